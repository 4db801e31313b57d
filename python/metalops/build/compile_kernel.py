"""Compiles one Metal source file and writes the list of its dependencies; ninja runs this command for each file.

It is a script and not a module of the package, because importing metalops would bring the device up, which is slow and,
while metalops itself is being built, impossible.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import types

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*(?:include|import)[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)


def _import_without_device() -> None:
    """Makes `metalops.msl` importable without running metalops/__init__.py."""
    shell = types.ModuleType("metalops")
    shell.__path__ = [_PACKAGE]
    sys.modules["metalops"] = shell


def included_files(source: str, include_dirs: list[str]) -> list[str]:
    """Returns every file that `source` may include, found by name; preprocessor conditions are ignored."""
    found: dict[str, None] = {}
    pending = [os.path.abspath(source)]
    while pending:
        path = pending.pop()
        with open(path, encoding="utf-8", errors="replace") as f:
            names = _INCLUDE.findall(f.read())
        for name in names:
            for folder in (os.path.dirname(path), *include_dirs):
                candidate = os.path.abspath(os.path.join(folder, name))
                if os.path.isfile(candidate):
                    if candidate not in found:
                        found[candidate] = None
                        pending.append(candidate)
                    break
    return list(found)


def _compile_for_apple(source: str, output: str, include_dirs: list[str], flags: list[str]) -> None:
    intermediate = output + ".air"
    include_flags = [flag for folder in include_dirs for flag in ("-I", folder)]
    compiler = ["xcrun", "-sdk", "macosx", "metal", *flags, *include_flags]
    subprocess.run([*compiler, "-c", source, "-o", intermediate], check=True)
    subprocess.run(["xcrun", "-sdk", "macosx", "metallib", intermediate, "-o", output], check=True)
    os.remove(intermediate)


def _compile_for_host(
    source: str, output: str, include_dirs: list[str], language: str, at_first_use: list[str]
) -> None:
    from metalops import msl
    from metalops.msl.source import languages

    try:
        msl.compile_file(
            source,
            output,
            include_dirs=include_dirs,
            arch="portable",
            language=languages.number_of(language),
            at_first_use=at_first_use,
        )
    except msl.CompilerNotFound as error:
        sys.exit(str(error))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("-o", dest="output", required=True)
    parser.add_argument("--depfile", required=True)
    parser.add_argument("-I", dest="include_dirs", action="append", default=[])
    parser.add_argument(
        "--apple", metavar="FLAGS", help="use Apple's Metal compiler, with these flags"
    )
    parser.add_argument(
        "--language", metavar="VERSION", help="build for the software device, from this Metal"
    )
    parser.add_argument(
        "--at-first-use",
        metavar="PATTERN",
        action="append",
        default=[],
        help="names of kernels that the software device compiles later",
    )
    arguments = parser.parse_args()
    include_dirs = arguments.include_dirs
    depends = included_files(arguments.source, include_dirs)
    try:
        if arguments.apple is not None:
            flags = arguments.apple.split()
            _compile_for_apple(arguments.source, arguments.output, include_dirs, flags)
        else:
            _import_without_device()
            from metalops.msl.source.paths import files_for

            depends += files_for("host")
            _compile_for_host(
                arguments.source,
                arguments.output,
                include_dirs,
                arguments.language,
                arguments.at_first_use,
            )
    except SyntaxError as error:
        print(error.msg, file=sys.stderr)  # with the position and the source line of each error
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    with open(arguments.depfile, "w") as f:
        escaped = [
            path.replace(" ", "\\ ").replace("$", "$$") for path in [arguments.output, *depends]
        ]
        f.write(escaped[0] + ": " + " \\\n  ".join(escaped[1:]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
