"""`python -m metalops compile` and `python -m metalops sweep`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass

from . import build, cache
from .emit import emit
from .errors import CompilerNotFound
from .preprocess import preprocess
from .table import KernelEntry, kernel_entries

STAGES = ("preprocess", "parse", "emit", "compile", "run")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-I", dest="include_dirs", action="append", default=[], metavar="DIR")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]")
    parser.add_argument("-O", dest="optimize", type=int, default=3, metavar="LEVEL")
    parser.add_argument(
        "--metal-version",
        type=int,
        default=build.METAL_VERSION,
        help="__METAL_VERSION__, such as 310",
    )


def _options(arguments: argparse.Namespace) -> build.Options:
    return build.with_options(
        arguments.optimize,
        arguments.include_dirs,
        arguments.defines,
        metal_version=arguments.metal_version,
    )


def main_compile(argv: list[str]) -> int:
    """Compiles one Metal file; --list prints its kernel table instead of compiling unless -o is
    given too.
    """
    parser = argparse.ArgumentParser(prog="metalops compile", description=main_compile.__doc__)
    parser.add_argument("file", metavar="FILE.metal")
    parser.add_argument("-o", dest="output", metavar="LIB")
    parser.add_argument("--list", action="store_true", help="print the kernel table")
    parser.add_argument("--emit", action="store_true", help="print the emitted C++")
    _arguments(parser)
    arguments = parser.parse_args(argv)
    options = _options(arguments)
    try:
        if not os.path.isfile(arguments.file):
            raise FileNotFoundError(f"no Metal source at {arguments.file}")
        if arguments.list or arguments.emit:
            emitted = emit(_preprocess(arguments.file, options))
            if arguments.emit:
                print(emitted.text)
            if arguments.list:
                print(format_table(kernel_entries(emitted.program)))
        if arguments.output or not (arguments.list or arguments.emit):
            output = arguments.output or os.path.splitext(arguments.file)[0] + ".so"
            build.compile_path(arguments.file, output, options)
            if not arguments.list:
                print(output)
    except SyntaxError as error:
        print(error.msg, file=sys.stderr)
        return 1
    except (CompilerNotFound, OSError) as error:
        print(f"metalops compile: {error}", file=sys.stderr)
        return 1
    return 0


def _preprocess(path: str, options: build.Options):
    return preprocess(
        path=path,
        include_dirs=options.include_dirs,
        defines=options.defines,
        metal_version=options.metal_version,
    )


def format_table(entries: list[KernelEntry]) -> str:
    """The kernel table as text: a line for each kernel, its arguments below it."""
    lines = []
    for entry in entries:
        attributes = "".join(f" [[{a}]]" for a in entry.attributes)
        note = f"  (not in the library: {entry.unsupported})" if entry.unsupported else ""
        if entry.threadgroup_variables:
            attributes += f"  ({entry.threadgroup_variables} threadgroup variables)"
        lines.append(f"{entry.name}{attributes}{note}")
        lines += [f"    {argument}" for argument in entry.arguments]
    return "\n".join(lines) if lines else "no kernels"


# ---- sweep ---------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What became of one file: the first stage that failed, or None, and why."""

    path: str
    kernels: int
    stage: str | None
    reason: str
    seconds: float
    skipped: int = 0


def main_sweep(argv: list[str]) -> int:
    """Tries every .metal file under a folder, and prints a table of the first stage that fails for
    each.
    """
    parser = argparse.ArgumentParser(prog="metalops sweep", description=main_sweep.__doc__)
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--stop-at", choices=STAGES, default="run", help="the last stage to try")
    _arguments(parser)
    arguments = parser.parse_args(argv)
    if not os.path.isdir(arguments.directory):
        print(f"metalops sweep: no folder at {arguments.directory}", file=sys.stderr)
        return 1
    options = _options(arguments)
    outcomes = []
    for path in metal_files(arguments.directory):
        if arguments.only not in path:
            continue
        outcome = sweep_file(path, options, arguments.stop_at)
        outcomes.append(outcome)
        shown = os.path.relpath(path, arguments.directory)
        skipped = f" ({outcome.skipped} not for this device)" if outcome.skipped else ""
        print(
            f"{shown:60} {outcome.kernels:5} kernels{skipped}  {outcome.stage or 'ok':10} "
            f"{outcome.seconds:6.2f} s  {outcome.reason}",
            flush=True,
        )
    stages = Counter(o.stage or "ok" for o in outcomes)
    summary = ", ".join(f"{stages[s]} {s}" for s in ("ok", *STAGES) if stages[s])
    print(
        f"{len(outcomes)} files, {sum(o.kernels for o in outcomes)} kernels: "
        f"{summary or 'nothing found'}"
    )
    return 0 if set(stages) <= {"ok"} else 1


def metal_files(directory: str) -> list[str]:
    found = []
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        found += [os.path.join(folder, f) for f in sorted(files) if f.endswith(".metal")]
    return found


def sweep_file(path: str, options: build.Options, last: str = "run") -> Outcome:
    """Runs the stages on one file up to `last`."""
    start = time.monotonic()
    outcome = Outcome(path, 0, None, "", 0.0)
    stage = "preprocess"
    try:
        preprocessed = _preprocess(path, options)
        if last != "preprocess":
            stage = "emit"
            emitted = emit(preprocessed)
            program = emitted.program
            outcome.skipped = len(program.skipped())
            outcome.kernels = len(program.instances) - outcome.skipped
            if last in ("compile", "run"):
                stage = "compile"
                _compile_and_open(emitted, options, last, outcome)
    except SyntaxError as error:
        first = error.diagnostics[0]
        if stage == "compile" and _in_broken_syntax(emitted, first):
            stage = "parse"
        outcome.stage = stage
        outcome.reason = f"{os.path.basename(first.file)}:{first.line}: {first.message}"[:160]
    except RecursionError:
        outcome.stage, outcome.reason = "parse", "nested too deeply"
    outcome.seconds = time.monotonic() - start
    return outcome


def _in_broken_syntax(emitted, diagnostic) -> bool:
    """Whether the parser lost its way on the line of an error."""
    for node in emitted.program.source.find("(ERROR) @e"):
        position = emitted.lines.position(node.start_byte)
        last = emitted.lines.position(max(node.start_byte, node.end_byte - 1))
        if position.file == diagnostic.file and position.line <= diagnostic.line <= last.line:
            return True
    return False


def _compile_and_open(emitted, options: build.Options, last: str, outcome: Outcome) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir=cache.directory()) as folder:
        library = os.path.join(folder, "kernels.so")
        build.compile_emitted(emitted, library, options)
        if last == "run":
            try:
                opened = open_table(library)
            except OSError as error:
                outcome.stage, outcome.reason = "run", str(error)[:160]
                return
            if opened != outcome.kernels:
                outcome.stage, outcome.reason = "run", f"the table has {opened} kernels"


def open_table(library: str) -> int:
    """Loads a kernel library and returns how many kernels its table has. Raises OSError when it
    does not load.
    """
    import ctypes

    handle = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_LOCAL)

    class Table(ctypes.Structure):
        _fields_ = [
            ("abi_version", ctypes.c_uint32),
            ("cpu_features", ctypes.c_uint32),
            ("build", ctypes.c_char_p),
            ("kernels", ctypes.c_void_p),
            ("kernel_count", ctypes.c_uint32),
        ]

    return Table.in_dll(handle, "metalops_library").kernel_count
