"""Metal source to CUDA C++: parse, rewrite, and add what starts the kernels."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field

from ... import restrictions
from ...dialect.accessors import accessors
from ...dialect.emitted import Emitted
from ...errors import Diagnostic, syntax_error
from ...locations import LineMap
from ...parse import Source, unbalanced_bracket
from ...preprocess import Preprocessed
from ...program import Program, ProgramError
from .entries import Entries, arguments, has_fast_entry
from .kernels import rewrite_for_cuda

_HEAD = "#include <msl/metal.h>\n#include <msl/rewrite.h>\n#include <msl/cuda/launch.h>\n"


@dataclass
class CudaCode(Emitted):
    """CUDA C++ text, and the program it was emitted from. entries: by a kernel's name its number and what its arguments
    are (see entries.arguments), and whether it has a fast entry."""

    program: Program | None = None
    entries: dict[str, tuple[int, tuple[str, ...], bool]] = field(default_factory=dict)


def emit(preprocessed: Preprocessed, only: Collection[str] = ()) -> CudaCode:
    """Emits a program for NVRTC, with the kernels named in `only` (default: all).

    Raises SyntaxError for what Metal forbids and for what this target lacks, ValueError for kernels that are not there.
    """
    lines = LineMap(preprocessed.text, preprocessed.name, dict(preprocessed.sources))
    source = Source(preprocessed.text)
    try:
        fault = unbalanced_bracket(source.masked)
        if fault is not None:
            raise ProgramError(*fault)
        program = Program(source)
        if only:
            missing = sorted(set(only) - {i.name for i in program.instances})
            if missing:
                raise ValueError(f"the source has no kernel {missing[0]!r}")
            program.instances = [i for i in program.instances if i.name in only]
        restrictions.check(program)
        rewritten, sites = rewrite_for_cuda(program)
        entries = Entries(rewritten, sites)
        body, runs = rewritten.edits.apply()
        pieces = list(entries.pieces())
    except ProgramError as error:
        position = lines.position(error.offset)
        raise syntax_error(
            [
                Diagnostic(
                    position.file,
                    position.line,
                    position.column,
                    error.message,
                    lines.source_line(position.file, position.line),
                )
            ]
        ) from None
    head = _HEAD + accessors(rewritten.swizzles) + "namespace msl {\n"
    all_runs = [(0, -1, False)]
    all_runs += [(len(head) + at, there, copied) for at, there, copied in runs]
    text = [head, body, "\n}\n"]
    length = len(head) + len(body) + 3
    for piece in pieces:
        marker = '# 1 "kernel table"\n'
        if piece.offset is not None:
            file, line = lines.place(piece.offset)
            marker = f"# {line} {json.dumps(file)}\n"
        all_runs.append((length, -1 if piece.offset is None else piece.offset, False))
        text += [marker, piece.text]
        length += len(marker) + len(piece.text)
    table = {
        i.name: (number, arguments(i.kernel), has_fast_entry(i.kernel))
        for number, i in enumerate(entries.instances)
    }
    return CudaCode("".join(text), lines, all_runs, program, table)
