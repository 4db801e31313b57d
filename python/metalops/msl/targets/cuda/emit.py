"""Metal source to CUDA C++: parse, rewrite, and add what starts the kernels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ...dialect.accessors import accessors
from ...dialect.assembly import assemble, errors_at, read_program
from ...dialect.emitted import Emitted
from ...locations import LineMap
from ...preprocess import Preprocessed
from ...program import Program
from .entries import Entries, Entry
from .kernels import rewrite_for_cuda

_HEAD = (
    "#include <msl/metal.h>\n#include <msl/rewrite.h>\n#include <msl/cuda/launch.h>\n"
    "#include <msl/cuda/function_constants.h>\n"
)


@dataclass
class CudaCode(Emitted):
    """CUDA C++ text, and the program it was emitted from. entries: by a kernel's name."""

    program: Program | None = None
    entries: dict[str, Entry] = field(default_factory=dict)


def emit(preprocessed: Preprocessed, only: Collection[str] = ()) -> CudaCode:
    """Emits a program for NVRTC, with the kernels named in `only` (default: all).

    Raises SyntaxError for what Metal forbids and for what this target lacks, ValueError for kernels that are not there.
    """
    lines = LineMap(preprocessed.text, preprocessed.name, dict(preprocessed.sources))
    with errors_at(lines):
        program = read_program(preprocessed, only)
        rewritten, sites = rewrite_for_cuda(program)
        entries = Entries(rewritten, sites)
        body, runs = rewritten.edits.apply()
        pieces = list(entries.pieces())
    head = _HEAD + accessors(rewritten.swizzles) + "namespace msl {\n"
    text, runs, _ = assemble(head, body, runs, pieces, lines)
    return CudaCode(text, lines, runs, program, entries.table())
