"""Compiles Metal source to CUDA C++: parses, rewrites, and adds the entry points of the kernels."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from ...analysis.program import Program
from ...dialect.accessors import accessors
from ...dialect.assembly import assemble, errors_at, garbage_left, read_program
from ...dialect.emitted import Emitted
from ...source.locations import LineMap
from ...source.preprocess import Preprocessed
from .entries import Entries, Entry
from .kernels import rewrite_for_cuda
from .sites import Sites

_HEAD = (
    "#include <msl/metal.h>\n#include <msl/rewrite.h>\n#include <msl/cuda/launch.h>\n"
    "#include <msl/cuda/function_constants.h>\n"
)
_TENSORS = "#include <msl/tensors.h>\n#include <msl/cuda/indices.h>\n#include <msl/cuda/tensor_argument.h>\n"
_TEXTURES = "#include <msl/cuda/texture_argument.h>\n"
_LOGGING = "#include <msl/cuda/logging.h>\n"
_MENTIONS_LOGS = re.compile(r"\bos_log")
_MENTIONS_MATRICES = re.compile(r"\bsimdgroup_(?:matrix|(?:half|bfloat|float)8x8)\b")


@dataclass
class CudaCode(Emitted):
    """CUDA C++ text, and the program it was emitted from. entries: by a kernel's name. has_matrices: true if the lanes
    of a simdgroup are numbered as in include/msl/cuda/lanes.h, which tensor cores require; blocks then are
    one-dimensional and consist of whole warps. language: __METAL_VERSION__."""

    program: Program | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    has_matrices: bool = False
    language: int = 0


def emit(preprocessed: Preprocessed, only: Collection[str] = ()) -> CudaCode:
    """Emits a program for NVRTC, with the kernels named in `only` (default: all).

    Raises SyntaxError for constructs that Metal forbids or this target lacks, ValueError for unknown kernels.
    """
    lines = LineMap(preprocessed.text, preprocessed.name, dict(preprocessed.sources))
    with garbage_left(), errors_at(lines):
        program = read_program(preprocessed, only, lines, is_for_gpus=True)
        rewritten, sites = rewrite_for_cuda(program)
        has_matrices = any(map(_MENTIONS_MATRICES.match, program.source.words_at))
        entries = Entries(rewritten, sites, has_matrices)
        body, runs = rewritten.edits.apply()
        pieces = list(entries.pieces())
    lanes = "#define MSL_MATRIX_LANES 1\n" if has_matrices else ""
    logging = _LOGGING if any(map(_MENTIONS_LOGS.match, program.source.words_at)) else ""
    notes = "#define MSL_NOTED_SITES 1\n" if sites.are_noted else ""
    tensors = ""
    if program.has_tensors:
        tensors = f"#define MSL_STAGING_BYTES {_staging_bytes(program, sites)}\n{_TENSORS}"
    head = (
        lanes
        + notes
        + _HEAD
        + (_TEXTURES if program.mentions_textures else "")
        + tensors
        + logging
        + accessors(rewritten.swizzles)
        + "namespace msl {\n"
    )
    text, runs, _ = assemble(head, body, runs, pieces, lines)
    return CudaCode(
        text, lines, runs, program, entries.table(), has_matrices, preprocessed.language
    )


def _staging_bytes(program: Program, sites: Sites) -> int:
    """Returns how much of a block's static shared memory (48 KiB) operations on tensors may use: the rest after the
    threadgroup memory that kernels declare, which is at most 32 KiB in Metal, and the noted Sites of threads
    (include/msl/cuda/site.h)."""
    declares = any(kernel.threadgroup_variables for kernel in program.kernels)
    return (48 - 32 * declares - 4 * sites.are_noted) * 1024
