"""Function constants: a specialised library is a copy of its own."""

import struct

import pytest
import torch
from metalops import _host

from .conftest import build

SOURCE = """
constant int shift [[function_constant(0)]];
constant bool doubled [[function_constant(1)]];
constant float factor [[function_constant(5)]];
constant bool has_shift = is_function_constant_defined(shift);
constant int effective_shift = has_shift ? shift : 1000;
kernel void use(device const float* in, device float* out, uint i [[thread_position_in_grid]]) {
  float v = in[i] + float(effective_shift);
  if (is_function_constant_defined(doubled) && doubled) v *= 2;
  if (is_function_constant_defined(factor)) v *= factor;
  out[i] = v;
}
"""


def run(library):
    x = torch.arange(10.0)
    out = torch.zeros(10)
    library.launch("use", [x, out], 10, 10)
    return out


def integer(value):
    return struct.pack("i", value)


def test_unset():
    assert torch.equal(run(build(SOURCE)), torch.arange(10.0) + 1000)


def test_set():
    library = build(SOURCE).specialise({0: integer(3), 1: b"\1", 5: struct.pack("f", 0.5)})
    assert torch.equal(run(library), (torch.arange(10.0) + 3) * 2 * 0.5)


def test_copies_do_not_share_their_constants():
    base = build(SOURCE)
    copies = [base.specialise({0: integer(k)}) for k in range(20)]
    twice = copies[4].specialise({1: b"\1"})  # specialising starts from the unset library
    for k, library in enumerate(copies):
        assert torch.equal(run(library), torch.arange(10.0) + k)
    assert torch.equal(run(twice), (torch.arange(10.0) + 1000) * 2)
    assert torch.equal(run(base), torch.arange(10.0) + 1000)
    del base, copies[::2]
    for k, library in zip(range(1, 20, 2), copies):
        assert torch.equal(run(library), torch.arange(10.0) + k)


def test_library_from_bytes(tmp_path):
    from metalops import msl

    from .conftest import HEADER

    with open(msl.compile_source(HEADER + SOURCE), "rb") as file:
        data = file.read()
    library = _host.Library.from_bytes(data)
    assert torch.equal(run(library), torch.arange(10.0) + 1000)
    assert torch.equal(run(library.specialise({0: integer(-1)})), torch.arange(10.0) - 1)


def test_errors():
    library = build(SOURCE)
    with pytest.raises(ValueError, match="no function constant 2"):
        library.specialise({2: integer(1)})
    with pytest.raises(
        ValueError, match=r"function constant 0 \('shift'\) has 4 bytes; the value has 1"
    ):
        library.specialise({0: b"\1"})
