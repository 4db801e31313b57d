"""The command line: `python -m metalops COMMAND`. A command is one line in COMMANDS."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

# name -> (purpose, "module:function"). The function takes the arguments after the name and returns the exit status; its
# module is imported only when the command is used.
COMMANDS: dict[str, tuple[str, str]] = {
    "info": ("the device, the kernel libraries and the cache", "metalops._cli.info:main"),
    "coverage": ("which of torch's operators work on mps", "metalops._cli.coverage:main"),
    "doctor": (
        "which faults of stock operators this machine has, and what cures them",
        "metalops._doctor:main",
    ),
    "demo": (
        "the operators on a photograph, checked against torch on the CPU",
        "metalops.demo:main",
    ),
    "new": ("write a package with Metal operators of its own", "metalops._new:main"),
    "selftest": (
        "the kernels compared with the CPU, and a report for an issue",
        "metalops.selftest:main",
    ),
    "check": ("find what Apple's Metal compiler would reject", "metalops.msl.check.cli:main"),
    "sanitize": (
        "run a program with its kernels under a sanitizer",
        "metalops._sanitize:main",
    ),
    "compile": ("compile a .metal file and print its kernel table", "metalops.msl:main_compile"),
    "build-mac": (
        "build a Mac project with Objective-C for the software device",
        "metalops.build.mac.command:main",
    ),
    "replay": (
        "run the launches of a trace, or a call that differed from the CPU, again",
        "metalops.trace.cli:main",
    ),
    "sweep": ("try every kernel of a folder and print what fails first", "metalops.msl:main_sweep"),
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {purpose}" for name, (purpose, _) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: python -m metalops COMMAND [ARGUMENTS]",
            "       python -m metalops --version",
            "",
            *lines,
            "",
            "python -m metalops COMMAND --help tells more.",
        ]
    )


def main(arguments: list[str]) -> int:
    """Runs a command and returns the exit status. An OSError (a file that cannot be read or written) is one sentence on
    stderr and status 1, for all commands here; a reader that closes the pipe early, as `head` does, is no error."""
    name = next(iter(arguments), "")
    try:
        try:
            return _run(arguments)
        finally:
            # Not left to the interpreter, which can only complain.
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        print(f"metalops {name}: {_sentence(error)}", file=sys.stderr)
        _drop_output()
        return 1


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        from ._version import VERSION

        print(f"metalops {VERSION}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"metalops: unknown command {name!r}\n\n{usage()}", file=sys.stderr)
        return 2
    module, function = COMMANDS[name][1].split(":")
    return getattr(importlib.import_module(module), function)(rest) or 0


def _sentence(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    return f"{error.filename or 'standard output'}: {error.strerror}"


def _drop_output() -> None:
    """Drops output that cannot be written to standard output, buffered and future."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    if sys.stdout is not None:
        # File names need not be valid text.
        sys.stdout.reconfigure(errors="surrogateescape")
    sys.exit(main(sys.argv[1:]))
