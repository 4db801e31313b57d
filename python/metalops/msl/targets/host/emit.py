"""Compiles Metal source to C++: preprocesses, parses, rewrites, and adds the launch code of the kernels.

The result maps each emitted character to its source, so that the host compiler's messages can be reported in terms of
the user's source.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from .... import _locks
from ...analysis import confinement
from ...analysis.needed import Needed, only_code_tells_errors
from ...analysis.program import Instance, Program
from ...dialect.accessors import accessors
from ...dialect.alignment import check_alignment
from ...dialect.assembly import assemble, errors_at, garbage_left, read_program
from ...dialect.emitted import Emitted
from ...dialect.rewrite import Rewritten
from ...source.errors import Diagnostic, syntax_error
from ...source.locations import LineMap
from ...source.preprocess import Preprocessed
from .group.loops import Explanation, GroupLoops
from .kernels import rewrite_for_host
from .lanes.loops import LaneLoops
from .thunks import GROUP_BUILTINS, Thunks

_HEAD = "#include <msl/metal.h>\n#include <msl/host/launch.h>\n"
_TEXTURES = "#include <msl/texture_argument.h>\n"
_TABLES = "#include <msl/host/function_table.h>\n"
_TENSORS = "#include <msl/tensors.h>\n#include <msl/host/tensor_argument.h>\n"
# The number of characters that the kernels of a program need, each by itself, above which they are compiled on demand.
# For half of it a compiler took 3.5 s (loops over the grid) to 4.5 s (group loops); to check a program and compile one of
# its kernels takes 1 to 3 s.
MUCH = 400_000
_KERNELS_OF_A_PART = 16


@dataclass
class HostCode(Emitted):
    """C++ text for the host, and the program it was emitted from.

    thunks_at: where the user's code ends. engines: by kernel, the engine that runs it ("loop", "group" or "fiber"), and
    why no group loop does. group_loops: by kernel with a group loop, how it is cut. left_out: the part of each kernel
    that is compiled at its first use. described: true if these are all kernels, and the library describes them.
    lanes: by kernel that runs as vector lanes, how many threads run together. no_lanes: why a loop kernel does not.
    """

    program: Program | None = None
    thunks_at: int = 0
    engines: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    group_loops: dict[str, Explanation] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    described: bool = False
    lanes: dict[str, int] = field(default_factory=dict)
    no_lanes: dict[str, str] = field(default_factory=dict)


def emit(
    preprocessed: Preprocessed,
    only: Collection[str] = (),
    group_loops: bool = True,
    at_first_use: Iterable[str] = (),
    on_demand: bool = False,
    is_sanitized: bool = False,
    lanes: bool = False,
    fibers: bool = True,
) -> HostCode:
    """Emits a host program, with the kernels named in `only` (default: all). group_loops: true if kernels that
    synchronise become work-item loops (region splitting) where they can. at_first_use: patterns of the names of kernels
    that the program only lists, to be compiled when they are used. on_demand: true if a program of much code only
    describes its kernels, to be compiled when they are used. is_sanitized: true if a sanitizer is to check the
    alignment of vectors. lanes: true if kernels that loop and never synchronise run as vector lanes where they can.
    fibers: true if kernels with a group loop can also run on fibers.

    Raises SyntaxError for constructs that Metal forbids and the host compiler would accept, ValueError for unknown
    kernels.
    """
    program = HostProgram(
        preprocessed, only, group_loops, at_first_use, on_demand, is_sanitized, lanes, fibers
    )
    return program.code()


class HostProgram:
    """A program as C++ for the host, without the launch code, for any of its kernels. Arguments and errors: see emit()."""

    def __init__(
        self,
        preprocessed: Preprocessed,
        only: Collection[str],
        group_loops: bool,
        at_first_use: Iterable[str],
        on_demand: bool,
        is_sanitized: bool,
        lanes: bool,
        fibers: bool,
    ):
        self.preprocessed = preprocessed
        self._lines = lines = LineMap(
            preprocessed.text, preprocessed.name, dict(preprocessed.sources)
        )
        self._fibers = fibers
        self._lock = _locks.lock()  # several threads may compile kernels of it
        with garbage_left(), errors_at(lines):
            self._program = program = read_program(preprocessed, only, lines)
            self._described = on_demand and _is_much(program)
            left_out = _supported(program) if self._described else _leave_out(program, at_first_use)
            self._rewritten, self._sites = rewrite_for_host(program)
            if is_sanitized:
                check_alignment(self._rewritten)
            # Text that is only checked stays as it was written.
            with_groups = group_loops and not self._described
            self._groups = (
                GroupLoops(self._rewritten, self._sites, GROUP_BUILTINS) if with_groups else None
            )
            self._in_lanes = LaneLoops(self._rewritten) if lanes and with_groups else None
            self._parts = _parts(left_out, self._rewritten, lines)
            self._thunks().engines()  # before the edits are applied, since group loops add edits
            self._body, self._runs = self._rewritten.edits.apply()

    def _thunks(self, only: Collection[str] = ()) -> Thunks:
        return Thunks(
            self._rewritten,
            self._sites,
            self._lines,
            self.preprocessed.recorded,
            self._groups,
            self._described,
            self._in_lanes,
            self._fibers,
            only,
        )

    def code(self, only: Collection[str] = ()) -> HostCode:
        """Returns the program with launch code for the kernels named in `only` (none: all)."""
        program, groups, lines = self._program, self._groups, self._lines
        with self._lock, garbage_left(), errors_at(lines):
            thunks = self._thunks(only)
            engines = thunks.engines()
            pieces = list(thunks.pieces(self._parts, self.preprocessed.language))

        head = _HEAD + (_TEXTURES if program.mentions_textures else "")
        head += _TENSORS if program.has_tensors else ""
        head += _TABLES if "visible_function_table" in program.source.identifiers else ""
        if "group" in {engine for engine, _ in engines.values()}:
            head += (
                "#include <msl/host/closures.h>\n"
                if groups.has_closures
                else "#include <msl/host/group.h>\n"
            )
        names = confinement.names_of_headers(program.source.words_at)
        head += "".join(f"#undef {name}\n" for name in names)
        head += accessors(self._rewritten.swizzles) + "namespace msl {\n"
        text, runs, thunks_at = assemble(head, self._body, self._runs, pieces, lines)
        _check_confinement(HostCode(text, lines, runs), len(head), len(pieces[-1].text))
        cut = {
            instance.name: groups.explain(instance.kernel)
            for instance in thunks.instances
            if engines[instance.name][0] == "group"
        }
        lanes_of, no_lanes = (
            ({}, {}) if self._in_lanes is None else self._in_lanes.explain(thunks.instances)
        )
        return HostCode(
            text,
            lines,
            runs,
            program,
            thunks_at,
            engines,
            cut,
            self._parts,
            self._described,
            lanes_of,
            no_lanes,
        )


def _is_much(program: Program) -> bool:
    """Returns true if compiling the kernels one by one pays: the compiler generates code for each of them from all that
    it needs. Not if some errors of the source would be found only then."""
    kernels = _supported(program)
    # No kernel needs more than the whole text, which tells of most sources that they are short.
    if len(kernels) < 2 or len(kernels) * len(program.source.masked) <= MUCH:
        return False
    needed = Needed(program)
    return sum(needed.size([k.name]) for k in kernels) > MUCH and not only_code_tells_errors(
        program
    )


def _supported(program: Program) -> list[Instance]:
    return [i for i in program.instances if not i.kernel.unsupported]


def _leave_out(program: Program, patterns: Iterable[str]) -> list[Instance]:
    """Removes the kernels with these names from the program and returns them."""
    matches = re.compile("|".join(fnmatch.translate(p) for p in patterns) or "(?!)").match
    kept, left_out = [], []
    for instance in program.instances:
        is_left_out = matches(instance.name) and not instance.kernel.unsupported
        (left_out if is_left_out else kept).append(instance)
    program.instances = kept
    return left_out


def _parts(left_out: list[Instance], rewritten: Rewritten, lines: LineMap) -> dict[str, int]:
    """Returns the part of each kernel that is left out. Kernels of one part are compiled together: those that never
    synchronise and are registered in one line, which are the dtypes and flavours of one function and cheap, up to a
    number of them. Any other kernel is a part of its own."""
    of_lines: dict[object, list[str]] = {}
    for instance in left_out:
        alone = rewritten.calls.synchronises(instance)
        key = instance.name if alone else lines.place(instance.offset)
        of_lines.setdefault(key, []).append(instance.name)
    parts = [
        names[first : first + _KERNELS_OF_A_PART]
        for names in of_lines.values()
        for first in range(0, len(names), _KERNELS_OF_A_PART)
    ]
    return {name: number for number, names in enumerate(parts) for name in names}


# Forbidden text that is the kernel table's own (thunks.py).
_OF_THE_TABLE = (
    "#ifndef METALOPS_BUILD\n",
    '#define METALOPS_BUILD ""\n',
    "#endif\n",
    'extern "C" {\n__attribute__((visibility("default"))) extern const ::msl::abi::Library ',
)


def _check_confinement(emitted: HostCode, begin: int, table: int) -> None:
    """Checks confinement once more in the text that the compiler will see, since rewriting may have changed the user's
    text. begin: where the user's code begins; table: the length of the kernel table at the end. Raises SyntaxError."""
    for breach in confinement.breaches(emitted.text[begin:], emitted=True):
        at = begin + breach.offset
        if at >= len(emitted.text) - table and emitted.text.startswith(_OF_THE_TABLE, at):
            continue
        position = emitted.lines.position(emitted.source_offset(at) or 0)
        line = emitted.lines.source_line(position.file, position.line)
        raise syntax_error(
            [Diagnostic(position.file, position.line, position.column, breach.message, line)]
        )
