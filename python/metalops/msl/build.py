"""From Metal source to a kernel library on disk: the pipeline of stages, and the host compiler's errors in terms of the
user's source."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from .. import _environment, _outputs
from . import cache
from .dialect.anonymous_members import PREFIX
from .source import compiler, languages
from .source.errors import Diagnostic, syntax_error
from .source.paths import HEADERS, files_for
from .source.preprocess import Preprocessed, preprocess, torch_include
from .targets.host import objects, precompiled, sanitizers, tensors
from .targets.host.emit import HostCode, HostProgram
from .targets.host.token_lines import one_token_a_line

_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\n:]+):(?P<line>\d+):(?P<column>\d+): "
    r"(?P<kind>(?:fatal )?error|sorry, unimplemented|note|warning): (?P<message>.*)$"
)
_GNU_CONTEXT = re.compile(r"^(?P<file>[^\n:]+):(?P<line>\d+):(?P<column>\d+):\s+required from")
_UNDEFINED = re.compile(r"undefined (?:reference to [`']|symbol: )([^'\n]+)")
GENERATED_NAME = re.compile(r"\bmsl_\w")


@dataclass(frozen=True)
class Options:
    """How kernels are compiled.

    kernels: names of the kernels to build (default: all). at_first_use: patterns of names of kernels that the library
    leaves out; the device compiles them when they are used. on_demand: true if a source of much code becomes a library
    that only describes its kernels; each is compiled when it is used. debug keeps line tables of the Metal source for debuggers.
    sanitize names the compiler's sanitizer ("address", "thread") to build in, without most optimisations; None stands
    for the one whose runtime this process has loaded, if any. fast_math is what the kernels see of the math mode,
    `__FAST_MATH__`: they are compiled for IEEE arithmetic in either, which the fast mode allows. language is
    __METAL_VERSION__; cooperative_layout is the layout of the elements of cooperative tensors; None stands for what the
    environment chooses. lanes: true if kernels that loop and never synchronise may run as vector lanes. engines names those
    that a kernel that synchronises is compiled for: "fiber", "all", or the one that runs it unless another is asked for
    ("auto"). arch is the value of -march; flags are the last arguments of the host compiler.
    """

    optimize: int = 3
    include_dirs: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    language: int | None = None
    fast_math: bool = False
    arch: str = "native"
    debug: bool = False
    sanitize: str | None = None
    kernels: tuple[str, ...] = ()
    at_first_use: tuple[str, ...] = ()
    on_demand: bool = False
    flags: tuple[str, ...] = ()
    cooperative_layout: str | None = None
    lanes: bool = False
    engines: str = "auto"


def version(target: str = "host") -> str:
    """Returns a version of everything that built kernels depend on for a target ("host" or "cuda"): the front end, its
    headers and the host compiler."""
    return _version_of_files(target) + compiler.find().identity


@functools.cache
def _version_of_files(target: str) -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    state = hashlib.sha256()
    for path in files_for(target):
        state.update(os.path.relpath(path, here).encode())
        with open(path, "rb") as stream:
            state.update(stream.read())
    state.update(torch_version().encode())
    return state.hexdigest()[:16]


@functools.cache
def torch_version() -> str:
    """Returns the installed torch's version, found without importing it; empty without torch."""
    include = torch_include()
    if include is None:
        return ""
    try:
        with open(os.path.join(os.path.dirname(include), "version.py")) as stream:
            match = re.search(r"__version__ = ['\"](.*?)['\"]", stream.read())
    except OSError:
        return ""
    return match.group(1) if match else ""


# g++ and clang tell that the program which compiles was ended from outside, for example for want of memory.
_ENDED = re.compile(
    r"(Killed|Terminated|Interrupt) signal terminated program|execute command: (Killed|Terminated)"
)


def compile_emitted(
    emitted: HostCode, output: str, options: Options, metal: str = "", with_header: bool = False
) -> None:
    """Builds a shared library from emitted C++. Raises SyntaxError with positions of the user's source, and RuntimeError
    if the compiler is ended by a signal.

    metal: the preprocessed source, which the library embeds. with_header: true to use a precompiled header where there
    is one.

    Without debug the compiler sees no line markers, so that its errors are positions of the emitted text, which map
    back to the exact column.
    """
    host = sanitizers.host_for(options.sanitize) if options.sanitize else compiler.find()
    optimize = min(options.optimize, 1) if options.sanitize else options.optimize
    flags = [*host.flags(optimize, options.arch, bool(options.sanitize)), f"-I{HEADERS}"]
    if emitted.program.has_tensors:
        chosen = _chosen(options)
        flags += tensors.flags("c++2b", chosen.language, chosen.cooperative_layout)
    if options.sanitize:
        # Signed integer overflow is undefined in Metal, too.
        flags = [flag for flag in flags if flag != "-fwrapv"]
        flags += sanitizers.flags(options.sanitize, host)
    flags += options.flags
    description = f"{os.path.basename(host.command[0])} {host.version} -O{optimize} {options.arch}"
    if options.sanitize:
        description += f" -fsanitize={options.sanitize}"
    flags.append(f'-DMETALOPS_BUILD="{description}"')
    if options.debug:
        flags.append("-g")
    if not options.flags and not options.sanitize:
        flags.append(
            "-Wl,-z,defs"
        )  # an undefined symbol is an error here, not when the library is loaded
    flags += host.diagnostic_flags()
    with tempfile.TemporaryDirectory(prefix="metalops") as folder:
        source = os.path.join(folder, "kernels.cpp")
        embedded = _embedded(metal, folder)
        if options.sanitize:
            _write(source, _sanitized_text(emitted, options.sanitize, folder) + embedded)
        else:
            text = emitted.text if options.debug else emitted.without_markers()
            _write(source, text + embedded)
        # Line tables and sanitizers are left the plain #include lines: headers are not tested with them.
        with_header = with_header and not (options.debug or options.sanitize or options.flags)
        header = (
            precompiled.flags(host, emitted.text, flags, version(), folder) if with_header else []
        )
        last = ["-shared", source, "-o", output, "-lm"]
        result = precompiled.run(host, flags, header, last)
        if result.returncode and (options.debug or options.sanitize):
            # Compiled once more for errors in terms of the emitted text, whose positions are known here.
            _write(source, emitted.without_markers())
            again = host.run([*flags, "-fsyntax-only", source])
            result = again if again.returncode else result
        messages = result.stderr.decode(errors="replace")
        if result.returncode < 0 or (result.returncode and _ENDED.search(messages)):
            last = messages.strip().rpartition("\n")[2] or f"signal {-result.returncode}"
            raise RuntimeError(
                f"metalops: the compiler was ended while it compiled {emitted.lines.main_file}, perhaps for want of memory: "
                f"{last}"
            )
        if result.returncode:
            raise syntax_error(explain(messages, source, emitted))
    if "-fsyntax-only" not in flags:
        _check_object(output, emitted, bool(options.sanitize))


def _check_object(library: str, emitted: HostCode, sanitized: bool) -> None:
    """Raises SyntaxError if a library refers to symbols that kernels may not use."""
    found = []
    for fault in objects.faults(library, sanitized):
        at = emitted.lines.position(_offset_of(fault.word, emitted))
        line = emitted.lines.source_line(at.file, at.line)
        found.append(Diagnostic(at.file, at.line, at.column, fault.message, line))
    if found:
        raise syntax_error(list(dict.fromkeys(found))[: compiler.MAX_ERRORS])


def _offset_of(word: str | None, emitted: HostCode) -> int:
    """Returns the offset in the source of a word, or of a builtin of that name; for "", of an initialiser outside of
    functions that computes something."""
    source = emitted.program.source
    if word == "":
        pattern = r"\b(?:constant|static|const)\b[^;{}()]*=[^;]*\("
    else:
        pattern = rf"\b(?:__builtin_)?{re.escape(word or '')}\b"
    match = re.search(pattern, source.text) if word is not None else None
    return match.start() if match else source.next_code(0)


_EMBEDDED = """
asm(".section .rodata.metalops_source,\\"a\\"\\n.globl metalops_source, metalops_source_end\\n"
    "metalops_source:\\n.incbin \\"{file}\\"\\nmetalops_source_end:\\n.previous\\n");
"""


def _embedded(metal: str, folder: str) -> str:
    """Returns C++ that embeds the Metal source in the library: traces of launches carry it."""
    path = os.path.join(folder, "source")
    with open(path, "wb") as stream:
        stream.write(zlib.compress(metal.encode("latin-1"), 9))
    return _EMBEDDED.format(file=path)


_SANITIZED = """
extern "C" {{
__attribute__((visibility("default"))) extern const char metalops_sanitizer[];
const char metalops_sanitizer[] = "{sanitizer}";
}}
asm(".section .rodata.metalops_positions,\\"a\\"\\n.balign 4\\n.globl metalops_positions\\n"
    "metalops_positions:\\n.incbin \\"{table}\\"\\n.previous\\n");
"""


def _sanitized_text(emitted: HostCode, sanitizer: str, folder: str) -> str:
    """Returns the text to compile with a sanitizer, with the table that the device needs to read its reports."""
    text, table = one_token_a_line(emitted)
    path = os.path.join(folder, "positions")
    with open(path, "wb") as stream:
        stream.write(table)
    return text + _SANITIZED.format(sanitizer=sanitizer, table=path)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="latin-1") as stream:
        stream.write(text)


def explain(output: str, path: str, emitted: HostCode) -> list[Diagnostic]:
    """Translates the host compiler's messages about emitted code into errors of the user's source."""
    found: list[Diagnostic] = []
    context = None  # the user's code that led into an internal header (g++: before the error)
    pending = None  # an error inside an internal header (clang leads to the user's code after it)
    for line in output.splitlines():
        leading = _GNU_CONTEXT.match(line)
        if leading and leading["file"] == path:
            context = emitted.position(int(leading["line"]), int(leading["column"])) or context
            continue
        match = _DIAGNOSTIC.match(line)
        if not match:
            if line.startswith(path) and "In " in line:
                context = None
            continue
        position = None
        if match["file"] == path:
            position = emitted.position(int(match["line"]), int(match["column"]))
        if match["kind"] not in ("note", "warning"):
            if match["file"] == path and position is None and context is None:
                position = emitted.position_before(int(match["line"]), int(match["column"]))
            message = readable(match["message"])
            pending = None
            position = position or context
            if position is None:
                pending = message
            else:
                found.append(_diagnostic(position, message, emitted))
            context = None
        elif pending is not None and position is not None:
            found.append(_diagnostic(position, pending, emitted))
            pending = None
    found += [_undefined(m.group(1), emitted) for m in _UNDEFINED.finditer(output)]
    # Messages about generated names only follow from other errors.
    plain = [d for d in found if not GENERATED_NAME.search(d.message)]
    unique = list(dict.fromkeys(plain or found))
    if unique:
        return unique[: compiler.MAX_ERRORS]
    last = [x for x in output.strip().splitlines() if x.strip()]
    text = next((x for x in last if "error" in x), last[-1] if last else "the host compiler failed")
    if pending is not None:  # in an internal header, and nothing leads to the user's code
        text = pending
    return [Diagnostic(emitted.lines.main_file, 1, 0, readable(text))]


def _undefined(symbol: str, emitted: HostCode) -> Diagnostic:
    """Returns the error for an undefined symbol, at its declaration."""
    message = f"'{readable(symbol)}' is declared and used, but never defined"
    match = re.search(r"([A-Za-z_]\w*)(?:<[^()]*>)?(?:\(|$)", symbol)
    for function in emitted.program.functions:
        if match and function.body is None and function.name == match.group(1):
            return _diagnostic(
                emitted.lines.position(function.declarator.start_byte), message, emitted
            )
    return Diagnostic(emitted.lines.main_file, 1, 0, message)


def _diagnostic(position, message: str, emitted: HostCode) -> Diagnostic:
    source_line = emitted.lines.source_line(position.file, position.line)
    return Diagnostic(position.file, position.line, position.column, message, source_line)


_NOT_OF_LANES = re.compile(r"deleted function '[^']*?\b((?:simd|quad)_\w+)\b")
_NOT_TAKEN = (
    "takes neither bool nor 64-bit integers in Metal; convert the operand, or move its halves as the components of a "
    "uint2"
)
_AMBIGUOUS_OF_LANES = re.compile(
    r"call (?:of overloaded|to) '((?:simd|quad)_\w+)[^']*' is ambiguous"
)

# Messages of g++ alone, about constructs that are not rewritten for it where they stand.
_REFUSED_BY_GNU = re.compile(
    r"with constructor not allowed in anonymous aggregate|non-trivial designated initializers not supported"
    r"|designator order for field '.*' does not match declaration order"
)
_TAKEN_BY_CLANG = (
    "g++ refuses this and clang++ takes it: install clang++ 15 or newer, or name it in $CXX"
)


def readable(message: str) -> str:
    """Rewrites a compiler's message about emitted code in words of the user's source."""
    message = message.replace("‘", "'").replace("’", "'")
    message = re.sub(rf" [({{]aka '{PREFIX}(\w+)<void>'[)}}]", "", message)
    message = re.sub(rf"\b{PREFIX}(\w+)(<void>)?", r"\1", message)
    message = re.sub(r"'(?:[\w:]*::)?msl_\w+' [({]aka ('[^']*')[)}]", r"\1", message)
    message = re.sub(r"; did you mean '(?:[\w:]*::)?msl_\w+'\?", "", message)
    message = re.sub(r"\bmsl_is_defined_(\w+)", r"is_function_constant_defined(\1)", message)
    message = re.sub(r"(?:::)?\bmsl::(?:impl|msl_\w+)::", "", message)
    message = re.sub(r"(?<![\w:])(?:::)?msl::", "", message)
    if _REFUSED_BY_GNU.search(message):
        return f"{message}; {_TAKEN_BY_CLANG}"
    deleted = _NOT_OF_LANES.search(message)
    if deleted:
        return f"{deleted[1]} {_NOT_TAKEN}"
    ambiguous = _AMBIGUOUS_OF_LANES.search(message)
    if ambiguous:
        return f"the call of {ambiguous[1]} is ambiguous; it {_NOT_TAKEN}"
    return message


def host_program(preprocessed: Preprocessed, options: Options) -> HostProgram:
    """Returns the program that these options make of a source."""
    return HostProgram(
        preprocessed,
        options.kernels,
        # Sanitizers check each thread by itself.
        group_loops=not options.sanitize and options.engines != "fiber",
        at_first_use=options.at_first_use,
        on_demand=options.on_demand and not options.kernels,
        is_sanitized=options.sanitize == "address",
        lanes=options.lanes,
        fibers=options.engines != "auto",
    )


def _build(
    program: HostProgram, output: str, options: Options, with_header: bool = False
) -> HostCode:
    preprocessed = program.preprocessed
    emitted = program.code(options.kernels)
    try:
        compile_emitted(emitted, output, options, preprocessed.portable_text(), with_header)
        return emitted
    except SyntaxError as raised:
        runs = {engine for engine, _ in emitted.engines.values()}
        if "group" not in runs and not emitted.lanes:
            raise
        error = raised
    # Errors are reported for the program as it was written, not for its group loops, and once.
    plain = replace(options, engines="fiber", lanes=False, on_demand=False)
    emitted = host_program(preprocessed, plain).code()
    compile_emitted(emitted, output, options, preprocessed.portable_text(), with_header)
    warnings.warn(
        f"the loops over threads that the kernels of {preprocessed.name} became do not compile, which is an error of "
        f"metalops; they run in other ways, which are slower (line {error.lineno}: {error.msg})",
        RuntimeWarning,
        stacklevel=2,
    )
    return emitted


def _chosen(options: Options) -> Options:
    """Returns the options with unset ones filled in from the environment."""
    language = languages.current() if options.language is None else options.language
    layout = options.cooperative_layout or tensors.layout()
    engines = options.engines
    if engines == "auto" and _environment.value("METALOPS_ENGINE") == "fiber":
        engines = "all"
    return replace(options, language=language, cooperative_layout=layout, engines=engines)


def preprocess_text(source: str, name: str | None, options: Options) -> Preprocessed:
    """Preprocesses a source text for compile_text()."""
    return preprocess(source, name=name, **_of_preprocessor(options))


def _of_preprocessor(options: Options) -> dict[str, object]:
    names = ("include_dirs", "defines", "language", "fast_math")
    return {name: getattr(options, name) for name in names}


def compile_text(
    source: str,
    name: str | None,
    options: Options,
    read: Callable[[Options], HostProgram] | None = None,
) -> str:
    """Returns the cached library of a source text; builds it if it is missing. read: returns the program of the options,
    all chosen, that has the kernels; by default it is what host_program() makes of the text."""
    if options.sanitize is None:
        options = replace(options, sanitize=sanitizers.loaded())
    options = _chosen(options)
    key = cache.key_of(
        "source",
        version(),
        sanitizers.host_for(options.sanitize).identity if options.sanitize else "",
        cache.cpu_identity() if options.arch == "native" else "",
        options,
        name,
        source,
    )
    found = cache.lookup(key)
    if found is not None:
        return found
    with cache.turn(key):
        found = cache.lookup(key)  # built by another process in the meantime
        if found is not None:
            return found
        program = (
            read(options) if read else host_program(preprocess_text(source, name, options), options)
        )
        read_too = program.preprocessed
        dependencies = [f for f in read_too.dependencies if f != read_too.name]
        return cache.store(
            key, dependencies, lambda path: _build(program, path, options, True) and None
        )


def compile_path(path: str, output: str, options: Options) -> HostCode:
    """Builds the library of a file at `output`, and returns what was compiled; leaves nothing there on failure. Raises
    OSError if `output` cannot be written."""
    _outputs.check_file(output)
    preprocessed = preprocess(path=path, **_of_preprocessor(options))
    temporary = f"{output}.{os.getpid()}.tmp"
    try:
        emitted = _build(host_program(preprocessed, options), temporary, options)
        os.replace(temporary, output)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return emitted


def with_options(
    optimize: int, include_dirs: Iterable[str], defines: Iterable[str], **others
) -> Options:
    return Options(
        optimize=optimize,
        include_dirs=tuple(os.fspath(d) for d in include_dirs),
        defines=tuple(defines),
        **others,
    )


__all__ = [
    "Options",
    "compile_path",
    "compile_text",
    "explain",
    "preprocess_text",
    "version",
    "with_options",
]
