"""Element addressing of elementwise kernels, as parts of their Metal text. The text around these is in metal_text.

Each function of PLACES takes the types of a result and of an input, and the numbers of the results and of the inputs
among the operands. It returns the text before the values are computed, the loads of inputs, the stores of results, and
the text after them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Places = Callable[[str, str, range, range], tuple[list[str], list[str], list[str], list[str]]]


def _one(place: str, before: Sequence[str] = (), is_in_bytes: bool = False) -> Places:
    """Addresses one element per thread. place: its index, or offset, in operand {n}."""

    def places(result: str, element: str, outputs: range, inputs: range):
        lines = [*before]
        lines += [f"const auto metalops_i{n} = {place.format(n=n)};" for n in (*outputs, *inputs)]
        if is_in_bytes:
            reads = [_read(element, n, f"metalops_i{n}") for n in inputs]
            writes = [_written(result, n, f"metalops_i{n}") for n in outputs]
            return lines, reads, writes, []
        reads, writes = (
            [f"metalops_p{n}[metalops_i{n}]" for n in part] for part in (inputs, outputs)
        )
        return lines, reads, writes, []

    return places


def _four(place: str) -> Places:
    """Addresses four contiguous elements per thread, a vector load or store. place: their index."""

    def places(result: str, element: str, outputs: range, inputs: range):
        index = [place.format(n=n) for n in (*outputs, *inputs)]
        before = [
            *(f"{result} metalops_v{n};" for n in outputs),
            *(f"const {element} metalops_v{n} = metalops_p{n}[{index[n]}];" for n in inputs),
            "for (uint metalops_k = 0; metalops_k < 4; ++metalops_k) {",
        ]
        reads, writes = (
            [f"metalops_v{n}.values[metalops_k]" for n in part] for part in (inputs, outputs)
        )
        return (
            before,
            reads,
            writes,
            ["}", *(f"metalops_p{n}[{index[n]}] = metalops_v{n};" for n in outputs)],
        )

    return places


def _four_apart(result: str, element: str, outputs: range, inputs: range):
    """Addresses four elements per thread, a stride apart along the dimension `along`, so that all loads are in flight
    at once. The sizes, of that dimension a quarter, are followed by `along`, by the distance of the elements and by the
    end of the dimension."""
    operands = (*outputs, *inputs)
    before = [
        "const uint metalops_along = uint(metalops_sizes[metalops_ndim]);",
        "const uint metalops_apart = uint(metalops_sizes[metalops_ndim + 1]);",
        "const uint metalops_end = uint(metalops_sizes[metalops_ndim + 2]);",
        "uint metalops_first = metalops_position.x, metalops_rest = metalops_position.y;",
        *(
            f"long metalops_i{n} = metalops_position.x * metalops_strides[{n} * metalops_ndim];"
            for n in operands
        ),
        # Without coordinates in an array, which a GPU keeps in memory.
        "#pragma clang loop unroll(disable)",
        "for (uint metalops_d = 1; metalops_d < metalops_ndim; ++metalops_d) {",
        "  const uint metalops_size = uint(metalops_sizes[metalops_d]);",
        "  const uint metalops_left = metalops_rest / metalops_size;",
        "  const uint metalops_at = metalops_rest - metalops_left * metalops_size;",
        "  metalops_rest = metalops_left;",
        "  metalops_first = metalops_d == metalops_along ? metalops_at : metalops_first;",
        *(
            f"  metalops_i{n} += metalops_at * metalops_strides[{n} * metalops_ndim + metalops_d];"
            for n in operands
        ),
        "}",
        *(
            f"const long metalops_s{n} = metalops_apart * metalops_strides[{n} * metalops_ndim + metalops_along];"
            for n in operands
        ),
        *(f"{element} metalops_v{n}[4];" for n in inputs),
        "for (uint metalops_k = 0; metalops_k < 4; ++metalops_k) {",
        "  const bool metalops_is_there = metalops_first + metalops_k * metalops_apart < metalops_end;",
        *(
            f"  metalops_v{n}[metalops_k] = {_read(element, n, f'metalops_i{n} + (metalops_is_there ? metalops_k * metalops_s{n} : 0)')};"
            for n in inputs
        ),
        "}",
        "for (uint metalops_k = 0; metalops_k < 4; ++metalops_k) {",
        "  if (metalops_first + metalops_k * metalops_apart >= metalops_end) break;",
    ]
    reads = [f"metalops_v{n}[metalops_k]" for n in inputs]
    writes = [_written(result, n, f"metalops_i{n} + metalops_k * metalops_s{n}") for n in outputs]
    return before, reads, writes, ["}"]


def _read(element: str, operand: int, offset: str) -> str:
    return f"c10::metal::val_at_offs<{element}>((constant void*)metalops_p{operand}, {offset})"


def _written(result: str, operand: int, offset: str) -> str:
    return f"c10::metal::ref_at_offs<{result}>((device void*)metalops_p{operand}, {offset})"


_ROWS = "metalops_position.y * metalops_rows[{n}] + metalops_position.x"
PLACES: dict[str, Places] = {
    "dense": _one("metalops_position"),
    "rows": _one(_ROWS),
    "strided": _one(
        "c10::metal::offset_from_coord(metalops_coordinates, metalops_strides + {n} * metalops_ndim, metalops_ndim)",
        (
            "int metalops_coordinates[c10::metal::max_ndim];",
            "c10::metal::pos_from_thread_index(metalops_position, metalops_coordinates, metalops_sizes, metalops_ndim);",
        ),
        is_in_bytes=True,
    ),
    "four": _four("metalops_position"),
    "fourrows": _four(_ROWS),
    "fourstrided": _four_apart,
}
