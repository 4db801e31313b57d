r"""Copies between device and threadgroup memory by a simdgroup, which kernels declare as functions of Apple's compiler:

    thread _simdgroup_event_t* name(ulong, ulong, threadgroup void*, ...) __asm("air.simdgroup_async_copy_2d.p3i8.p1i8");

Apple's GPUs copy in the background until air.wait_simdgroup_events. Definitions in Metal take the place of the
declarations: the lanes that are there copy the elements together, and waiting is a barrier of the simdgroup.
"""

from __future__ import annotations

import re

from ..analysis.program import Program, parameters_of
from ..source.locations import LineMap
from ..source.parse import Source, blanked

_LABEL = re.compile(
    r'__asm(?:__)?\s*\(\s*"(?:\\0?01|\\1)?air\.(?:simdgroup_async_copy_(?P<axes>[12])d'
    r'\.p[13]i8\.p[13]i8|wait_simdgroup_events)"'
)
_EVENT = "thread _simdgroup_event_t*"
_ELEMENT = {
    "1": "const bool is_inside = true;"
    " thread uchar* at = (thread uchar*)to + i * size;"
    " const thread uchar* from = (const thread uchar*)of + i * size;",
    # clamp_mode: 0, clamp_to_zero, or 1, clamp_to_edge.
    "2": "const long x = long(i % to_tile.x) + origin.x, y = long(i / to_tile.x) + origin.y;"
    " const long width = long(of_tile.x), height = long(of_tile.y);"
    " const bool is_inside = clamp_mode == 1 || (x >= 0 && y >= 0 && x < width && y < height);"
    " const long column = x < 0 ? 0 : x < width ? x : width - 1;"
    " const long row = y < 0 ? 0 : y < height ? y : height - 1;"
    " thread uchar* at = (thread uchar*)to + (i / to_tile.x * to_row + i % to_tile.x * to_stride) * size;"
    " const thread uchar* from ="
    " (const thread uchar*)of + (row * long(of_row) + column * long(of_stride)) * long(size);",
}
_TOTAL = {"1": "count_of_elements", "2": "to_tile.x * to_tile.y"}
_COPY = (
    "for (ulong i = metal::simd_prefix_exclusive_sum(1u), lanes = metal::simd_sum(1u); i < {total}; i += lanes)"
    " {{ {element}"
    " if (size == 4 && alignment % 4 == 0) *(thread uint*)at = is_inside ? *(const thread uint*)from : 0u;"
    " else if (size == 2 && alignment % 2 == 0)"
    " *(thread ushort*)at = is_inside ? *(const thread ushort*)from : ushort(0);"
    " else for (ulong k = 0; k < size; ++k) at[k] = is_inside ? from[k] : uchar(0); }} return nullptr;"
)
_PARAMETERS = {
    "1": "ulong size, ulong alignment, void* to, const void* of, ulong count_of_elements",
    "2": "ulong size, ulong alignment, void* to, ulong to_row, ulong to_stride, ulong2 to_tile,"
    " const void* of, ulong of_row, ulong of_stride, ulong2 of_tile, long2 origin, int clamp_mode",
}
_NUMBER_OF_PARAMETERS = {"1": 5, "2": 12, None: 2}


def with_copies(program: Program, lines: LineMap, forbid=None) -> Program:
    """Returns the program with definitions in place of such declarations: the program itself, if it has none. lines,
    forbid: see with_parameters."""
    insertions, ranges = [], []
    defined: set[tuple[str, str | None]] = set()
    for function in program.functions:
        node = function.node
        match = _LABEL.search(program.source.text, node.start_byte, node.end_byte)
        if function.body is not None or match is None:
            continue
        if len(parameters_of(program.source, function)) != _NUMBER_OF_PARAMETERS[match["axes"]]:
            continue
        ranges.append((function.head, node.end_byte))
        # The directions differ in address spaces alone, which are erased.
        if (function.name, match["axes"]) not in defined:
            defined.add((function.name, match["axes"]))
            insertions.append((node.start_byte, _definition(function.name, match["axes"])))
    if not insertions:
        return program
    text = blanked(program.source.text, ranges)
    made = Program(Source(lines.insert(insertions, text)), forbid)
    made.left_out = program.left_out
    return made


def _definition(name: str, axes: str | None) -> str:
    if axes is None:
        flags = "metal::mem_flags::mem_device | metal::mem_flags::mem_threadgroup"
        return f"static void {name}(int, {_EVENT}*) {{ metal::simdgroup_barrier({flags}); }}"
    body = _COPY.format(element=_ELEMENT[axes], total=_TOTAL[axes])
    return f"static {_EVENT} {name}({_PARAMETERS[axes]}) {{ {body} }}"
