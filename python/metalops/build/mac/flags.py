"""Flags of Apple's compilers and linker: which mean nothing on Linux, which have a counterpart, and which cannot be
honoured. Imports nothing of metalops."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Frameworks whose interface include/apple has, in part, and those that are listed by habit.
FRAMEWORKS = frozenset(
    """
    AppKit ApplicationServices Cocoa CoreFoundation CoreGraphics CoreServices Foundation IOKit Metal MetalKit
    MetalPerformancePrimitives MetalPerformanceShaders MetalPerformanceShadersGraph QuartzCore
    """.split()
)
_FRAMEWORK = frozenset(("-framework", "-weak_framework", "-needed_framework"))
_WITH_VALUE = frozenset(
    """
    -arch -isysroot -iframework -F -target -undefined -install_name -current_version
    -compatibility_version -compatibility-version -headerpad -exported_symbols_list -unexported_symbols_list -syslibroot
    -platform_version -macosx_version_min -macos_version_min -rpath_link -seg1addr -image_base
    """.split()
)
_WITHOUT = re.compile(
    r"""
    -m(?:macosx|macos|iphoneos)-version-min=.* | --target=.*(?:apple|darwin|macos).* | -stdlib=.* | -lc\+\+ | -lobjc
    | -ObjC(?:\+\+)? | -f(?:cxx-)?modules(?:-.*)? | -fapple-.* | -fembed-bitcode.* | -F.+ | -gfull | -flat_namespace
    | -m(?:cpu|tune)=apple-.* | -headerpad_max_install_names | -dead_strip(?:_dylibs)? | -single_module
    | -search_paths_first | -no_compact_unwind | -multiply_defined.* | -ObjC_link | -Wl,(?:-ld_classic|-ld64)
    | -dead_strip.* | -fvisibility-inlines-hidden-static-local-var | -no-cpp-precomp | -fpascal-strings
    """,
    re.VERBOSE,
)
_OF_LINKER = re.compile(
    r"-(?:headerpad.*|dead_strip.*|install_name|undefined|framework|weak_framework|search_paths_first|no_compact_unwind"
    r"|macosx?_version_min|compatibility_version|current_version|exported_symbols_list|no_warn_duplicate_libraries"
    r"|no_fixup_chains|ld_classic|w|x|S|object_path_lto|platform_version|reproducible|no_uuid|no_adhoc_codesign)"
)
# Found by find_library() of CMake for a framework: command.py writes these files.
_STAND_IN = re.compile(r".*/build-mac-\w+/frameworks/lib\w+\.so")
_INSTEAD = {"-bundle": "-shared", "-dynamiclib": "-shared", "-all_load": "-Wl,--whole-archive"}
# Flags that change what a program is, in ways that Linux does not have.
_IMPOSSIBLE = {
    "-sectcreate": "it puts a file into the program's Mach-O section",
    "-bundle_loader": "it links against a Mac program",
    "-static-libobjc": "it asks for another Objective-C runtime",
}
# Flags that only an Objective-C compiler knows.
OBJECTIVE_C = re.compile(
    r"-f(?:no-)?objc-.*|-fobjc-arc|-f(?:no-)?blocks|-f(?:no-)?constant-cfstrings|-Wobjc.*|-W(?:no-)?(?:objc|arc|nullability|"
    r"undeclared-selector|deprecated-objc|protocol|unguarded-availability|receiver).*"
)


class Impossible(ValueError):
    """A flag for which there is no stand-in; the text is one sentence."""


def for_linux(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of a compiler or linker for Linux. Raises Impossible."""
    result: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in _IMPOSSIBLE:
            raise Impossible(f"the flag {word} has no counterpart on Linux: {_IMPOSSIBLE[word]}")
        if word in _FRAMEWORK:
            _check_framework(next(words, ""))
        elif word in _WITH_VALUE:
            next(words, None)
        elif word in _INSTEAD:
            result.append(_INSTEAD[word])
        elif word == "-Xlinker":
            _linker_words(word, next(words, ""), words, result)
        elif word in ("-Xarch_arm64", "-Xarch_x86_64"):
            next(words, None)
        elif word == "-rpath":
            result += ["-Wl,-rpath," + _origin(next(words, ""))]
        elif word == "-force_load":
            result += ["-Wl,--whole-archive", next(words, ""), "-Wl,--no-whole-archive"]
        elif word.startswith("-Wl,"):
            result += _linker(word)
        elif not _WITHOUT.fullmatch(word) and not _STAND_IN.fullmatch(word):
            result.append(word)
    return result


def _check_framework(name: str) -> None:
    if name.partition(",")[0] not in FRAMEWORKS:
        raise Impossible(f"metalops has no stand-in for the framework {name}")


def _linker_words(flag: str, value: str, words, result: list[str]) -> None:
    """Handles `-Xlinker VALUE`; a value that takes another has it in the next -Xlinker."""
    if value in _FRAMEWORK or value in _WITH_VALUE:
        next(words, None)
        following = next(words, "")
        if value in _FRAMEWORK:
            _check_framework(following)
    elif not _OF_LINKER.fullmatch(value):
        result += [flag, _origin(value)]


def _linker(word: str) -> list[str]:
    parts = word.split(",")[1:]
    if parts[0] in _FRAMEWORK and len(parts) > 1:
        _check_framework(parts[1])
        return []
    if parts[0] == "-force_load":
        return ["-Wl,--whole-archive", *parts[1:], "-Wl,--no-whole-archive"]
    if parts[0] == "-sectcreate":
        raise Impossible(
            f"the flag {word} has no counterpart on Linux: {_IMPOSSIBLE['-sectcreate']}"
        )
    if _OF_LINKER.fullmatch(parts[0]):
        return []
    return ["-Wl," + ",".join(_origin(part) for part in parts)]


def _origin(path: str) -> str:
    """Returns a run path with Linux's name for the folder of the file that is loaded."""
    return re.sub(r"@(?:loader_path|executable_path|rpath)", "$ORIGIN", path)


def without_objective_c(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments without those that only an Objective-C compiler knows."""
    return [word for word in arguments if not OBJECTIVE_C.fullmatch(word)]
