"""Stand-ins for the programs of a Mac's developer tools, for builds of Mac projects on Linux: `metal` and `metallib`, which
compile Metal files for the software device, and what build scripts ask about Xcode and the system.

A program, started as `python -E tools.py NAME ARGUMENTS`. What it cannot stand for is an error that names it. It imports
neither torch nor the device.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

if __name__ == "__main__":
    from shells import import_without_device  # it lies beside this file

    del sys.path[0]
    import_without_device()

XCODE = "26.0"
DEVELOPER = os.environ.get("METALOPS_BUILD_MAC", "")  # the folder that has the stand-ins


class CannotStandIn(Exception):
    """A build asks for something that metalops does not have; the text is one sentence."""


# -- metal and metallib

_WITH_VALUE = frozenset(
    "-arch -isysroot -target -index-store-path -serialize-diagnostics -MT -MQ --serialize-diagnostics".split()
)
_HARMLESS = (
    "-W",
    "-w",
    "-g",
    "-O",
    "-mmacos",
    "-f",
    "-target=",
    "--target=",
    "-pedantic",
    "-v",
    "-MP",
    "-MO",
    "-Xclang",
)
_IMPOSSIBLE = {
    "-dynamiclib": "a dynamic Metal library",
    "-l": "linking with a dynamic Metal library",
    "-framework": "linking with a framework",
    "-S": "the assembly of GPU code",
    "-emit-llvm": "the LLVM code of Apple's compiler",
    "-include": "a header that the command line includes",
    "-N": "a pipeline script",
}


_MARKER = re.compile(r'# \d+ "([^"]*)"(?: (\d))?')


@dataclass
class MetalCommand:
    """A parsed command line of `metal`."""

    inputs: list[str] = field(default_factory=list)
    output: str = ""
    include_dirs: list[str] = field(default_factory=list)
    defines: list[str] = field(default_factory=list)
    standard: str = ""
    fast_math: bool = True  # as Apple's compiler does
    only_compiles: bool = False
    depfile: str | None = None  # "": beside the output
    only_preprocesses: bool = False
    has_markers: bool = True
    lists_headers: bool = False


def parse_metal(arguments: list[str]) -> MetalCommand:
    """Parses a command line of Apple's Metal compiler. Raises CannotStandIn."""
    command = MetalCommand()
    words = iter(arguments)
    for word in words:
        if word == "-c":
            command.only_compiles = True
        elif word == "-E":
            command.only_preprocesses = True
        elif word == "-P":
            command.has_markers = False
        elif word == "-H":
            command.lists_headers = True
        elif word in ("-C", "-CC"):
            pass  # comments, which change no meaning, are left out
        elif word == "-o":
            command.output = next(words, "")
        elif word == "-x":
            next(words, None)
        elif word in ("-I", "-isystem", "-iquote", "-D"):
            (command.defines if word == "-D" else command.include_dirs).append(next(words, ""))
        elif word.startswith("-I"):
            command.include_dirs.append(word[2:])
        elif word.startswith("-isystem"):
            command.include_dirs.append(word.removeprefix("-isystem"))
        elif word.startswith("-D"):
            command.defines.append(word[2:])
        elif word.startswith(("-std=", "--std=")):
            command.standard = word.partition("=")[2]
        elif word in ("-ffast-math", "-fno-fast-math"):
            command.fast_math = word == "-ffast-math"
        elif word.startswith("-fmetal-math-mode="):
            command.fast_math = not word.endswith("=safe")
        elif word in ("-MMD", "-MD"):
            command.depfile = command.depfile or ""
        elif word == "-MF":
            command.depfile = next(words, "")
        elif word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            command.inputs.append(word)
        else:
            _check_flag("metal", word)
    return command


def _check_flag(tool: str, word: str) -> None:
    for flag, what in _IMPOSSIBLE.items():
        if word == flag or (len(flag) == 2 and flag != "-S" and word.startswith(flag)):
            raise CannotStandIn(f"{tool} {word}: metalops has no stand-in for {what}")
    if not word.startswith(_HARMLESS):
        raise CannotStandIn(f"{tool}: metalops does not know the flag {word}")


def _language(standard: str) -> int | None:
    """Returns __METAL_VERSION__ for a value of -std; None for the default. Versions before 3.1 are compiled as 3.1."""
    from metalops.msl.source import languages

    name = standard.removeprefix("macos-").removeprefix("ios-").removeprefix("metal")
    if not standard:
        return None
    if name in languages.LANGUAGES:
        return languages.LANGUAGES[name]
    parts = name.split(".")
    if all(part.isdigit() for part in parts) and tuple(map(int, parts)) < (3, 1):
        print(
            f"metal: -std={standard} is compiled as Metal 3.1, the oldest that metalops has",
            file=sys.stderr,
        )
        return languages.FLOOR
    raise CannotStandIn(f"metal: metalops does not have the Metal version of -std={standard}")


def compile_metal(source: str, command: MetalCommand):
    """Compiles one Metal file to a part of a metallib. Raises SyntaxError and OSError."""
    import tempfile

    from metalops import _metallib
    from metalops.msl import build, table
    from metalops.msl.source import languages
    from metalops.msl.source.paths import PACKAGE_HEADERS
    from metalops.msl.source.preprocess import preprocess

    if not os.path.isfile(source):
        raise FileNotFoundError(f"no such file: {source}")
    language = _language(command.standard) or languages.current()
    options = build.Options(
        include_dirs=(*map(os.path.abspath, command.include_dirs), PACKAGE_HEADERS),
        defines=tuple(command.defines),
        language=language,
        fast_math=command.fast_math,
        arch="portable",
        on_demand=True,
    )
    path = os.path.abspath(source)
    with tempfile.TemporaryDirectory(prefix="metalops") as folder:
        library = os.path.join(folder, "library.so")
        emitted = build.compile_path(path, library, options)
        with open(library, "rb") as stream:
            data = stream.read()
    text = preprocess(
        path=path,
        include_dirs=options.include_dirs,
        defines=options.defines,
        language=language,
        fast_math=options.fast_math,
    ).portable_text()
    for name, reason in emitted.program.skipped():
        print(f"metal: {name} is not in the library, because of {reason}", file=sys.stderr)
    entries = table.kernel_entries(emitted.program)
    kernels = tuple(entry.name for entry in entries if not entry.unsupported)
    compressed = zlib.compress(text.encode("latin-1"), 9)
    return _metallib.Part(os.path.basename(source), language, kernels, compressed, data)


def preprocess_metal(source: str, command: MetalCommand) -> None:
    """Writes the preprocessed text of a Metal file (-E), and the headers that it includes to standard error (-H), with a dot
    for each level. The library's own headers are not part of either. Raises SyntaxError and OSError."""
    from metalops.msl.source.paths import HEADERS, PACKAGE_HEADERS
    from metalops.msl.source.preprocess import preprocess

    if not os.path.isfile(source):
        raise FileNotFoundError(f"no such file: {source}")
    text = preprocess(
        path=os.path.abspath(source),
        include_dirs=(*command.include_dirs, PACKAGE_HEADERS),
        defines=command.defines,
        language=_language(command.standard),
        fast_math=command.fast_math,
    ).text
    lines, depth = [], 0
    for line in text.splitlines():
        marker = _MARKER.match(line)
        if marker is None:
            lines.append(line)
            continue
        file, flag = marker.groups()
        is_library = file.startswith((HEADERS, "<"))
        if flag == "1":
            depth += 1
            if command.lists_headers and not is_library:
                print("." * depth, file, file=sys.stderr)
        elif flag == "2":
            depth -= 1
        if command.has_markers and not is_library:
            lines.append(line)
    if not command.has_markers:
        lines = [line for line in lines if line.strip()]
    with contextlib.ExitStack() as files:
        to_file = command.output not in ("", "-")
        output = files.enter_context(open(command.output, "w")) if to_file else sys.stdout
        output.write("\n".join(lines) + "\n")


def _read_parts(tool: str, path: str) -> list:
    from metalops import _metallib

    with open(path, "rb") as stream:
        data = stream.read()
    try:
        return _metallib.unpack(data)
    except _metallib.NotAMetallib as error:
        raise CannotStandIn(f"{tool}: {path} cannot be linked: {error}") from None


def _write(tool: str, parts: list, output: str) -> None:
    from metalops import _metallib

    try:
        data = _metallib.pack(parts)
    except ValueError as error:
        raise CannotStandIn(f"{tool}: {output} cannot be linked: {error}") from None
    temporary = f"{output}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
        os.replace(temporary, output)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _write_depfile(command: MetalCommand, source: str, output: str) -> None:
    from metalops.build.compile_kernel import included_files

    if command.depfile is None:
        return
    files = [source, *included_files(source, command.include_dirs)]
    escaped = [path.replace("$", "$$").replace(" ", "\\ ") for path in (output, *files)]
    with open(command.depfile or os.path.splitext(output)[0] + ".d", "w") as stream:
        stream.write(f"{escaped[0]}: " + " \\\n  ".join(escaped[1:]) + "\n")


def metal(arguments: list[str]) -> int:
    if "--version" in arguments or arguments == ["-v"]:
        print("Apple metal version 32023.830 (metalops: a stand-in for the software Metal device)")
        print("Target: air64-apple-darwin25.0.0")
        return 0
    command = parse_metal(_expanded(arguments))
    if not command.inputs:
        raise CannotStandIn("metal: no input files")
    if command.only_preprocesses:
        for source in command.inputs:
            preprocess_metal(source, command)
        return 0
    if command.only_compiles:
        if command.output and len(command.inputs) > 1:
            raise CannotStandIn("metal: -o names one file, and there are several to compile")
        for source in command.inputs:
            output = command.output or os.path.splitext(os.path.basename(source))[0] + ".air"
            _write("metal", [compile_metal(source, command)], output)
            _write_depfile(command, source, output)
        return 0
    parts = []
    for path in command.inputs:
        if path.endswith((".air", ".metallib")):
            parts += _read_parts("metal", path)
        else:
            parts.append(compile_metal(path, command))
    _write("metal", parts, command.output or "default.metallib")
    return 0


def metallib(arguments: list[str]) -> int:
    inputs, output = [], "default.metallib"
    words = iter(_expanded(arguments))
    for word in words:
        if word == "-o":
            output = next(words, "")
        elif word == "--version":
            print("AIR-LLD 32023.830 (metalops: a stand-in for the software Metal device)")
            return 0
        elif word.startswith("-"):
            raise CannotStandIn(f"metallib: metalops does not know the flag {word}")
        else:
            inputs.append(word)
    if not inputs:
        raise CannotStandIn("metallib: no input files")
    _write("metallib", [part for path in inputs for part in _read_parts("metallib", path)], output)
    return 0


def _expanded(arguments: list[str]) -> list[str]:
    import shlex

    result = []
    for word in arguments:
        if word.startswith("@") and os.path.isfile(word[1:]):
            with open(word[1:], encoding="utf-8") as stream:
                result += shlex.split(stream.read())
        else:
            result.append(word)
    return result


# -- questions about Xcode and the system

# Tools of Linux that have the same meaning.
_OF_LINUX = frozenset(
    "ar as ld make nm objdump ranlib size strings strip git python3 m4 flex bison cmake ninja".split()
)


def _folder(*names: str) -> str:
    path = os.path.join(DEVELOPER, *names)
    os.makedirs(path, exist_ok=True)
    return path


def _macos() -> str:
    from metalops.build.mac import identity

    return identity.MACOS


def _find_tool(name: str) -> str:
    own = os.path.join(DEVELOPER, "bin", name)
    if os.path.exists(own):
        return own
    found = shutil.which(name) if name in _OF_LINUX else None
    if found is None:
        raise CannotStandIn(f"xcrun: metalops has no stand-in for Xcode's {name}")
    return found


def xcrun(arguments: list[str]) -> int:
    words: Iterator[str] = iter(arguments)
    finds = False
    for word in words:
        option = "-" + word.lstrip("-") if word.startswith("-") else word
        if option in ("-sdk", "-toolchain"):
            value = next(words, "")
            if option == "-sdk" and "macos" not in value.lower():
                raise CannotStandIn(
                    f"xcrun: metalops stands in for the macosx SDK, and not for {value}"
                )
        elif option in ("-f", "-find"):
            finds = True
        elif option == "-show-sdk-path":
            print(_folder("SDKs", "MacOSX.sdk"))
            return 0
        elif option == "-show-sdk-platform-path":
            print(_folder("MacOSX.platform"))
            return 0
        elif option == "-show-toolchain-path":
            print(_folder("Metal.xctoolchain"))
            return 0
        elif option in ("-show-sdk-version", "-show-sdk-platform-version"):
            print(_macos())
            return 0
        elif option == "-version":
            print("xcrun version 72 (metalops: a stand-in)")
            return 0
        elif option in (
            "-r",
            "-run",
            "-v",
            "-verbose",
            "-l",
            "-log",
            "-n",
            "-no-cache",
            "-k",
            "-kill-cache",
        ):
            continue
        elif option.startswith("-"):
            raise CannotStandIn(f"xcrun: metalops does not know the option {word}")
        else:
            path = _find_tool(word)
            if finds:
                print(path)
                return 0
            return subprocess.run([path, *words], check=False).returncode
    if "-k" in arguments or "--kill-cache" in arguments:
        return 0
    raise CannotStandIn("xcrun: no tool is named")


def xcodebuild(arguments: list[str]) -> int:
    options = ["-" + word.lstrip("-") if word.startswith("-") else word for word in arguments]
    if "-version" in options:
        print(f"Xcode {XCODE}\nBuild version 17A000")
    elif options[:1] in (["-showComponent"], ["-downloadComponent"]) and options[1:2] in (
        ["MetalToolchain"],
        ["metalToolchain"],
    ):
        print("Asset Path: /\nBuild Version: 17A000\nStatus: installed")
        print(
            f"Toolchain Identifier: com.apple.dt.toolchain.Metal.metalops\nToolchain Search Path: {DEVELOPER}"
        )
    elif options[:1] == ["-license"] or options == ["-runFirstLaunch"]:
        pass
    elif options[:1] == ["-showsdks"]:
        print(f"macOS SDKs:\n\tmacOS {_macos()}\t-sdk macosx{_macos()}")
    else:
        raise CannotStandIn(
            f"xcodebuild {' '.join(arguments)}: metalops stands in for the compilers of Xcode, and cannot build its projects"
        )
    return 0


def xcode_select(arguments: list[str]) -> int:
    if arguments[:1] in (["-p"], ["--print-path"]):
        print(DEVELOPER)
    elif arguments[:1] in (["-v"], ["--version"]):
        print("xcode-select version 2410.")
    elif arguments[:1] not in (["--install"], ["-s"], ["--switch"]):
        raise CannotStandIn(f"xcode-select: metalops does not know {' '.join(arguments)}")
    return 0


def sw_vers(arguments: list[str]) -> int:
    facts = {"ProductName": "macOS", "ProductVersion": _macos(), "BuildVersion": "25A000"}
    if not arguments:
        print("\n".join(f"{name}:\t\t{value}" for name, value in facts.items()))
        return 0
    name = arguments[0].lstrip("-")
    value = next((v for k, v in facts.items() if k.lower() == name.lower()), None)
    if value is None:
        raise CannotStandIn(f"sw_vers: metalops does not know {arguments[0]}")
    print(value)
    return 0


def uname(arguments: list[str]) -> int:
    from metalops.build.mac import identity

    system = identity.uname()
    fields = {
        "s": system.sysname,
        "n": system.nodename,
        "r": system.release,
        "v": system.version,
        "m": system.machine,
    }
    fields["p"] = identity.processor()
    fields["o"] = system.sysname
    letters = "".join(
        word[1:] for word in arguments if word.startswith("-") and not word.startswith("--")
    )
    letters = {"": "s", "a": "snrvm"}.get(letters, letters)
    unknown = [word for word in arguments if not word.startswith("-")] + [
        x for x in letters if x not in fields
    ]
    if unknown:
        raise CannotStandIn(f"uname: metalops does not know {unknown[0]}")
    print(" ".join(fields[x] for x in "snrvmpo" if x in letters))
    return 0


def sysctl(arguments: list[str]) -> int:
    from metalops.build.mac import identity

    cpus = str(os.cpu_count() or 1)
    facts = dict.fromkeys(("hw.ncpu", "hw.logicalcpu", "hw.physicalcpu", "hw.activecpu"), cpus)
    facts["hw.memsize"] = str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    facts["hw.machine"] = identity.uname().machine
    facts["hw.optional.arm64"] = str(int(identity.uname().machine == "arm64"))
    facts["machdep.cpu.brand_string"] = "Apple M (metalops)"
    for name in (word for word in arguments if not word.startswith("-")):
        if name not in facts:
            raise CannotStandIn(f"sysctl: metalops does not know {name}")
        print(facts[name] if "-n" in arguments else f"{name}: {facts[name]}")
    return 0


def of_mach_o(arguments: list[str]) -> int:
    """codesign, install_name_tool, dsymutil: they change what only files of a Mac have."""
    return 0


TOOLS: dict[str, Callable[[list[str]], int]] = {
    "metal": metal,
    "metallib": metallib,
    "xcrun": xcrun,
    "xcodebuild": xcodebuild,
    "xcode-select": xcode_select,
    "sw_vers": sw_vers,
    "uname": uname,
    "sysctl": sysctl,
    "codesign": of_mach_o,
    "install_name_tool": of_mach_o,
    "dsymutil": of_mach_o,
}


def main(name: str, arguments: list[str]) -> int:
    try:
        return TOOLS[name](arguments)
    except CannotStandIn as error:
        print(f"{error}.", file=sys.stderr)
    except SyntaxError as error:
        print(error.msg, file=sys.stderr)  # with the position and the source line of each error
    except (OSError, RuntimeError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
