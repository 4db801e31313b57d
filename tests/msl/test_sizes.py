"""sizeof and alignof of every type whose layout the specification states (Metal Shading Language Specification,
sections 2.1 to 2.6 and 2.14)."""

import pytest
from metalops.msl.source import languages

SCALARS = {
    "bool": 1, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "long": 8, "ulong": 8, "half": 2,
    "bfloat": 2, "float": 4,
}  # fmt: skip
OTHERS = {
    "int8_t": (1, 1), "uint16_t": (2, 2), "int32_t": (4, 4), "uint64_t": (8, 8), "size_t": (8, 8), "ptrdiff_t": (8, 8),
    "atomic_int": (4, 4), "atomic_uint": (4, 4), "atomic_bool": (1, 1), "atomic_float": (4, 4), "atomic_ulong": (8, 8),
    "atomic<int>": (4, 4), "device float*": (8, 8), "threadgroup float*": (8, 8), "constant float4*": (8, 8),
    "array<float3, 3>": (48, 16), "array<packed_float3, 3>": (36, 4),
    "visible_function_table<float(float)>": (8, 8),
}  # fmt: skip


def table():
    """Yields (type, size, alignment)."""
    for name, size in SCALARS.items():
        yield name, size, size
        for n in (2, 3, 4):
            whole = size * (4 if n == 3 else n)
            yield f"{name}{n}", whole, whole
            yield f"vec<{name}, {n}>", whole, whole
            if name != "bool":
                yield f"packed_{name}{n}", n * size, size
                yield f"packed_vec<{name}, {n}>", n * size, size
    for name in ("half", "float"):
        for columns in (2, 3, 4):
            for rows in (2, 3, 4):
                column = SCALARS[name] * (4 if rows == 3 else rows)
                yield f"{name}{columns}x{rows}", columns * column, column
                yield f"matrix<{name}, {columns}, {rows}>", columns * column, column
    yield from ((name, *layout) for name, layout in OTHERS.items())


@pytest.mark.full
def test_sizes_and_alignments(program, monkeypatch):
    monkeypatch.setenv(languages.VARIABLE, "4.0")
    lines = ["#include <metal_tensor>"]
    for number, (name, size, alignment) in enumerate(table()):
        lines.append(
            f'static_assert(sizeof({name}) == {size} && alignof({name}) == {alignment}, "{name}");'
        )
        lines.append(
            f"typedef {name} type_{number}; struct holder_{number} {{ char first; type_{number} second; }};"
        )
        lines.append(
            f'static_assert(sizeof(holder_{number}) == {size + max(alignment, 1)}, "in a structure: {name}");'
        )
    program("\n".join([*lines, "kernel void k() {}"]))  # fmt: skip
