"""`python -m metalops compile`, and the options that it shares with `python -m metalops sweep`."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace

from . import build
from .source import languages
from .source.errors import CompilerNotFound
from .source.paths import PACKAGE_HEADERS
from .source.preprocess import preprocess
from .table import KernelEntry, kernel_entries
from .targets.host.emit import HostCode, emit


def add_arguments(parser: argparse.ArgumentParser, optimize: int) -> None:
    parser.add_argument("-I", dest="include_dirs", action="append", default=[], metavar="DIR")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]")
    parser.add_argument("-O", dest="optimize", type=int, default=optimize, metavar="LEVEL")
    parser.add_argument(
        "--language",
        type=languages.argument,
        metavar="VERSION",
        help=f"the Metal version: {', '.join(languages.LANGUAGES)} (default: what "
        f"{languages.VARIABLE} says, else {languages.name_of(languages.DEFAULT)})",
    )


def options_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> build.Options:
    language = arguments.language
    if language is None:
        try:
            language = languages.current()
        except ValueError as error:
            parser.error(str(error))
    return build.with_options(
        arguments.optimize,
        [*arguments.include_dirs, PACKAGE_HEADERS],
        arguments.defines,
        language=language,
    )


def main_compile(argv: list[str]) -> int:
    """Compiles one Metal file; --list and --explain print its kernel table and how the software device runs its
    kernels, instead of compiling unless -o is given too.
    """
    parser = argparse.ArgumentParser(prog="metalops compile", description=main_compile.__doc__)
    parser.add_argument("file", metavar="FILE.metal")
    parser.add_argument("-o", dest="output", metavar="LIB")
    parser.add_argument("--list", action="store_true", help="print the kernel table")
    parser.add_argument(
        "--explain", action="store_true", help="print the engine of each kernel, and why"
    )
    parser.add_argument("--emit", action="store_true", help="print the emitted C++")
    parser.add_argument(
        "--sanitize", choices=["address", "thread"], help="build the C++ compiler's sanitizer in"
    )
    add_arguments(parser, optimize=3)
    arguments = parser.parse_args(argv)
    options = replace(options_of(parser, arguments), sanitize=arguments.sanitize)
    if not os.path.isfile(arguments.file):
        print(f"metalops compile: no Metal source at {arguments.file}", file=sys.stderr)
        return 1
    try:
        shows = arguments.list or arguments.emit or arguments.explain
        if shows:
            emitted = emit(preprocess_file(arguments.file, options), lanes=arguments.explain)
            if arguments.emit:
                print(emitted.text)
            if arguments.list:
                print(format_table(kernel_entries(emitted.program)))
            if arguments.explain:
                print(explain(emitted))
        if arguments.output or not shows:
            output = arguments.output or os.path.splitext(arguments.file)[0] + ".so"
            emitted = build.compile_path(arguments.file, output, options)
            if not shows:
                print(output)
                for name, reason in emitted.program.skipped():
                    print(f"{name} is not in the library, because of {reason}", file=sys.stderr)
    except SyntaxError as error:
        print(error.msg, file=sys.stderr)
        return 1
    except CompilerNotFound as error:
        print(f"metalops compile: {error}", file=sys.stderr)
        return 1
    return 0


def preprocess_file(path: str, options: build.Options):
    return preprocess(
        path=path,
        include_dirs=options.include_dirs,
        defines=options.defines,
        language=options.language,
    )


def format_table(entries: list[KernelEntry]) -> str:
    """Returns the kernel table as text: a line for each kernel, with its arguments below it."""
    lines = []
    for entry in entries:
        attributes = "".join(f" [[{a}]]" for a in entry.attributes)
        note = f"  (not in the library: {entry.unsupported})" if entry.unsupported else ""
        if entry.threadgroup_variables:
            attributes += f"  ({entry.threadgroup_variables} threadgroup variables)"
        lines.append(f"{entry.name}{attributes}{note}")
        lines += [f"    {argument}" for argument in entry.arguments]
    return "\n".join(lines) if lines else "no kernels"


_ENGINES = {
    "loop": "a loop over the grid: no threads synchronise",
    "group": "a loop over the threads of a group, split where they synchronise",
    "fiber": "a stack for each thread",
}


def explain(emitted: HostCode) -> str:
    """Returns how the software device runs each kernel, as text."""
    lines = []
    for name, (engine, reason) in emitted.engines.items():
        lines.append(f"{name}: {engine}, {_ENGINES[engine]}")
        if reason is not None:
            lines.append(f"    no group loop because of {reason}")
        if name in emitted.lanes:
            lines.append(f"    {emitted.lanes[name]} threads at a time as vector lanes")
        elif name in emitted.no_lanes:
            lines.append(f"    not as vector lanes because of {emitted.no_lanes[name]}")
        if name in emitted.group_loops:
            how = emitted.group_loops[name]
            cuts = [f"{call} ({emitted.lines.position(at).line})" for at, call in how.cuts]
            for what, names in (
                ("split at (line)", cuts),
                ("uniform", how.uniform_values),
                ("uniform in a simdgroup, in loops of one", how.of_simdgroups),
                ("rematerialised in each loop", how.rematerialised),
                ("privatised", how.privatised),
            ):
                if names:
                    lines.append(f"    {what}: {', '.join(names)}")
    return "\n".join(lines) if lines else "no kernels"


def open_table(library: str) -> int:
    """Loads a kernel library and returns the number of kernels in its table. Raises OSError if it does not load."""
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
