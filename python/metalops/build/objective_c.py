"""Which sources are Objective-C, and what compiles them where g++ cannot.

On a Mac every `.mm` file is Objective-C++. For the software device most of them are compiled as C++, by the user's
compiler; only those that need Objective-C, as a scan of them and their project's headers tells, go to clang, with the
headers of include/apple and the library _objc.so.

Imports nothing outside of the standard library: the compiler wrapper of `python -m metalops build-mac` uses it, too.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
APPLE_HEADERS = os.path.join(PACKAGE, "include", "apple")
# Substitutes for torch's headers, for units that are not Objective-C: the others read torch's own.
_SUBSTITUTES = os.path.join(PACKAGE, "include", "software_device")
LIBRARY = os.path.join(PACKAGE, "_objc.so")

# Header folders for C++ units of a build that knows nothing of metalops; include/apple has what is plain C, such as dispatch.
HEADERS_FOR_CPP = (
    *("-I", _SUBSTITUTES, "-I", os.path.dirname(_SUBSTITUTES)),
    *("-idirafter", APPLE_HEADERS),
)

FLAGS = ("-fobjc-runtime=gnustep-2.0", "-fblocks", "-fobjc-exceptions")
# Flags of g++, from Python's own build, which clang does not know.
_NO_WARNINGS = (
    "-Wno-unknown-warning-option",
    "-Wno-ignored-optimization-argument",
    "-Qunused-arguments",
)

_FRAMEWORKS = "Foundation|Metal|MetalKit|MetalPerformanceShaders(?:Graph)?|CoreFoundation|objc|Cocoa|AppKit|CoreGraphics"
_SIMD = "(?:simd|types|vector(?:_types|_make)?|matrix(?:_types)?|geometry|common)"
_EVIDENCE = re.compile(
    rf"""
    ^[ \t]*\#[ \t]*(?:import|include)[ \t]*<(?:{_FRAMEWORKS})/[\w./+-]+\.h>
    | ^[ \t]*\#[ \t]*include[ \t]*<(?:dispatch/dispatch|simd/{_SIMD})\.h>
    | @(?:autoreleasepool|interface|implementation|protocol|class|property|selector|try|catch|finally|throw|synchronized
        |available|import|encode|end|optional|required|synthesize|dynamic)\b
    | @["\[{{(\d] | @(?:YES|NO)\b
    | \bid[ \t]*<[ \t]*(?:MTL|NS)\w*
    | \bNS(?:Error|String|MutableString|URL|Dictionary|MutableDictionary|Array|MutableArray|Number|Data|Bundle|Object)
        [ \t]*\*
    | \^[ \t]*(?:\([ \t]*(?:void)?[ \t]*\)[ \t]*)?\{{
    | \b__(?:bridge|bridge_retained|bridge_transfer|block|weak|strong|unsafe_unretained)\b
    """,
    re.VERBOSE | re.MULTILINE,
)
# Apple's C++ interface, which is made of messages to the same objects, and whose headers use blocks; and its vector types.
_FOR_CLANG = re.compile(
    rf"^[ \t]*#[ \t]*include[ \t]*<(?:(?:Foundation|Metal|QuartzCore)/\w+\.hpp|simd/{_SIMD}\.h)>",
    re.MULTILINE,
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*(?:include|import)[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_COMMENT_OR_TEXT = re.compile(
    r"""//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<d>[^()\s\\]{0,16})\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b(.*)$")
_MACS = r"(?:__APPLE__|__OBJC__|TARGET_OS_\w+)"
_MAC_ONLY = re.compile(rf"defined[ \t]*\(?[ \t]*{_MACS}|^[ \t]*{_MACS}")

# Classes of Metal's companions of which the software device has none, by their prefix: what they compute is not there.
_CLASS_MESSAGE = re.compile(r"\[[ \t]*((?:MPS|MTL4|MTLFX|MTK)\w+)[ \t\n]+\w")
_OTHER_FRAMEWORK = re.compile(r"(?:MPS|MTL|NS|MTK|CA|CI|CG|CF)[A-Z0-9]\w*")
_REFERENCE = re.compile(rb"\._OBJC_REF_CLASS_(\w+)\0")
_DEFINITION = re.compile(rb"\._OBJC_CLASS_(\w+)\0")


class NoObjectiveC(Exception):
    """An Objective-C source that cannot be compiled here; the text is one sentence for the user."""


@dataclass(frozen=True)
class Evidence:
    """Where a source, or a header that it includes, is Objective-C. text: what is written there."""

    file: str
    line: int
    text: str


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


@functools.cache
def _code(path: str) -> str:
    """Returns a file without comments, the insides of literals, and what only a Mac's or an Objective-C compiler reads
    by its own conditions. Lines stay where they are."""
    text = _text(path)

    def blank(match: re.Match) -> str:
        word = match.group()
        kept = (
            word
            if word[0] == '"' and _is_include(text, match.start())
            else word[0] * (word[0] == '"')
        )
        return kept + "\n" * (word.count("\n") - kept.count("\n"))

    lines = _COMMENT_OR_TEXT.sub(blank, text).split("\n")
    skipped: list[bool] = []  # for each open condition
    for number, line in enumerate(lines):
        match = _DIRECTIVE.match(line)
        if match:
            word, condition = match.groups()
            if word in ("if", "ifdef", "ifndef"):
                skipped.append(
                    word != "ifndef" and bool(_MAC_ONLY.search(condition)) and "!" not in condition
                )
            elif word == "endif":
                skipped[-1:] = []
            elif skipped:
                skipped[-1] = (
                    word == "elif" and bool(_MAC_ONLY.search(condition)) and "!" not in condition
                )
        elif any(skipped):
            lines[number] = ""
    return "\n".join(lines)


def _is_include(text: str, at: int) -> bool:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return re.fullmatch(r"[ \t]*#[ \t]*(?:include|import)[ \t]*", line) is not None


def _own_files(source: str, include_dirs: Iterable[str]) -> list[str]:
    """Returns a source and the headers of its project that it includes: not those of torch, of metalops, of Python and of
    the system."""
    foreign = (PACKAGE + os.sep, "/usr/include/")
    folders = [os.path.abspath(folder) for folder in include_dirs]
    folders = [f for f in folders if "site-packages" not in f and not f"{f}/".startswith(foreign)]
    waiting, found = [os.path.abspath(source)], {}
    while waiting:
        path = waiting.pop()
        found[path] = None
        for name in _INCLUDE.findall(_code(path)):
            for folder in (os.path.dirname(path), *folders):
                candidate = os.path.abspath(os.path.join(folder, name))
                if os.path.isfile(candidate):
                    if candidate not in found:
                        waiting.append(candidate)
                    break
    return list(found)


def evidence(source: str, include_dirs: Iterable[str] = ()) -> Evidence | None:
    """Returns where a source is Objective-C, or, if its name is that of a C++ file, where it uses metal-cpp or Apple's simd
    types, which need clang, too; None if it is C++. An `.m` file always is Objective-C."""
    pattern = _EVIDENCE if source.endswith(_OBJECTIVE_C) else _FOR_CLANG
    for path in _own_files(source, include_dirs):
        code = _code(path)
        match = pattern.search(code)
        if match:
            at = match.start() + len(match.group()) - len(match.group().lstrip())
            line = code.count("\n", 0, at)
            return Evidence(path, line + 1, _text(path).split("\n")[line].strip())
    if source.endswith(".m"):
        return Evidence(os.path.abspath(source), 1, "its name ends in .m")
    return None


def missing_class(source: str, include_dirs: Iterable[str] = ()) -> str | None:
    """Returns a sentence on the first class that a source uses of which the software device has none; None without."""
    available = classes()
    for path in _own_files(source, include_dirs):
        code = _code(path)
        for match in _CLASS_MESSAGE.finditer(code):
            if match[1] not in available:
                return _absent(
                    f"{_short(path)}:{code.count(chr(10), 0, match.start()) + 1}", match[1]
                )
    return None


def missing_class_of_object(source: str, output: str) -> str | None:
    """Returns a sentence on a class that a compiled source refers to and neither it nor the software device has."""
    with open(output, "rb") as stream:
        data = stream.read()
    known = {name.decode() for name in _DEFINITION.findall(data)} | classes()
    for name in sorted({name.decode() for name in _REFERENCE.findall(data)} - known):
        if _OTHER_FRAMEWORK.fullmatch(name):
            code = _code(os.path.abspath(source))
            match = re.search(rf"\b{name}\b", code)
            line = f":{code.count(chr(10), 0, match.start()) + 1}" if match else ""
            return _absent(f"{_short(source)}{line}", name)
    return None


def _absent(place: str, name: str) -> str:
    group = next((g for g in ("MPSGraph",) if name.startswith(g)), name)
    return f"metalops: {place} uses {group}, which the software Metal device does not have."


@functools.cache
def classes() -> frozenset[str]:
    """Returns the names of the classes that _objc.so has."""
    try:
        with open(LIBRARY, "rb") as stream:
            data = stream.read()
    except OSError:
        return frozenset()
    return frozenset(name.decode() for name in _REFERENCE.findall(data))


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


_OBJECTIVE_C = (".mm", ".m", ".M")

_PROBE = """\
__attribute__((objc_root_class)) @interface Probe { int x; } - (int)x; @end
@implementation Probe - (int)x { return x; } @end
template <class T> requires requires(T t) { t(); } int call(T t) { return t(); }
int main() { return call(^{ return 0; }); }
"""


@functools.cache
def _works(command: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "probe.mm")
        with open(source, "w") as stream:
            stream.write(_PROBE)
        words = [
            *shlex.split(command),
            "-std=c++20",
            "-x",
            "objective-c++",
            *FLAGS,
            "-w",
            "-c",
            source,
        ]
        try:
            result = subprocess.run(
                [*words, "-o", os.path.join(folder, "probe.o")], capture_output=True, check=False
            )
        except OSError:
            return False
        return result.returncode == 0


def _installed() -> list[str]:
    """Returns the names of the versions of clang++ on the PATH, the newest first."""
    versions: dict[str, int] = {}
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            match = re.fullmatch(r"clang\+\+-(\d+)", name)
            if match:
                versions[name] = int(match[1])
    numbered = sorted(versions, key=versions.__getitem__, reverse=True)
    return [*numbered, *(["clang++"] if shutil.which("clang++") else [])]


def find_compiler(chosen: str = "") -> str | None:
    """Returns the compiler of Objective-C++: the chosen one, else the newest clang++ that works; None if there is none."""
    return next((c for c in ([chosen] if chosen else _installed()) if _works(c)), None)


def no_compiler(found: Evidence, source: str, cxx: str, chosen: str = "") -> str:
    """Returns the sentence that says that a source needs clang, and why."""
    place = f"{'line' if _same(found.file, source) else _short(found.file) + ', line'} {found.line}"
    is_what = "is Objective-C++"
    if not source.endswith(_OBJECTIVE_C):
        is_what = "uses Apple's simd types" if "simd/" in found.text else "uses metal-cpp"
    reason = f"metalops: {_short(source)} {is_what} ({place}: {found.text}), which "
    if chosen:
        return reason + f"OBJCXX={chosen} cannot compile; set OBJCXX to a working clang++."
    name = os.path.basename(shlex.split(cxx)[0])
    return (
        reason
        + f"{name} cannot compile; install clang (apt-get install clang) or set OBJCXX to a clang++."
    )


def _same(a: str, b: str) -> bool:
    return os.path.abspath(a) == os.path.abspath(b)


def language(source: str) -> list[str]:
    """Returns the flags by which clang compiles a source of which there is evidence."""
    name = "objective-c" if source.endswith(".m") else "objective-c++"
    return ["-x", name if source.endswith(_OBJECTIVE_C) else "c++", *FLAGS]


def flags_for_clang(flags: Sequence[str]) -> list[str]:
    """Returns the flags of a unit that is Objective-C, from those that it would have as C++."""
    kept, words = [], iter(flags)
    for word in words:
        if word in ("-I", "-isystem"):
            folder = next(words, "")
            if os.path.abspath(folder) != _SUBSTITUTES:
                kept += [word, folder]
        elif not (word.startswith("-I") and os.path.abspath(word[2:]) == _SUBSTITUTES):
            kept.append(word)
    return [*_NO_WARNINGS, f"-I{APPLE_HEADERS}", *kept]


def link_flags() -> list[str]:
    """Returns the flags that link an extension with Objective-C code to the library of Metal's classes."""
    return ["-Wl,--push-state,--no-as-needed", LIBRARY, "-Wl,--pop-state", f"-Wl,-rpath,{PACKAGE}"]
