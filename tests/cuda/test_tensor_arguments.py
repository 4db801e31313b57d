"""Tensors as arguments of kernels on CUDA tensors: what a launch passes for them."""

import re
import struct

import pytest
import torch
from metalops.cuda.library import Library
from metalops.cuda.tensor_argument import TensorArgument, described, unpack
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.cuda.emit import emit

from .recorded import ARCHITECTURE, needs_nvrtc

HEADER = """
#include <metal_stdlib>
#include <metal_tensor>
using namespace metal;
"""
HALVES = TensorArgument("half", 16, 32, False, (-1, -1))
FP4 = TensorArgument("metal_fp4_e2m1_format", 4, 32, False, (-1, -1))


def layout(argument, tensor):
    (value,) = described("k", {0: argument}, [tensor])
    address, *numbers = struct.unpack("<Q32q", value)
    rank = len(argument.extents)
    assert numbers[rank:16] == [0] * (16 - rank)
    return address, numbers[:rank], numbers[16 : 16 + rank]


def test_dimensions_are_reversed():
    whole = torch.zeros(10, 12, dtype=torch.float16)
    view = whole[2:5, 3:8]
    assert layout(HALVES, view) == (view.data_ptr(), [5, 3], [1, 12])
    assert layout(TensorArgument("half", 16, 32, False, ()), whole[0, 0])[1:] == ([], [])


def test_bytes_hold_elements_of_formats():
    x = torch.zeros(3, 8, dtype=torch.uint8)
    assert layout(FP4, x)[1:] == ([16, 3], [1, 16])
    assert layout(FP4, x.view(torch.float4_e2m1fn_x2))[1:] == ([16, 3], [1, 16])
    fp8 = TensorArgument("metal_fp8_e5m2_format", 8, 32, False, (8, -1))
    assert layout(fp8, x.view(torch.float8_e5m2))[1:] == ([8, 3], [1, 8])


@pytest.mark.parametrize(
    ("argument", "value", "error", "message"),
    [
        (HALVES, 1.0, TypeError, "buffer 0 takes a tensor, but got 1.0"),
        (HALVES, torch.zeros(2, 2), TypeError, "has elements of half, but got a tensor of torch.f"),
        (FP4, torch.zeros(2, 2), TypeError, "has elements of metal_fp4_e2m1_format"),
        (HALVES, torch.zeros(2).half(), ValueError, "has 2 dimensions, but got .*shape \\[2\\]"),
        (HALVES, torch.zeros(4, 8).half().t(), ValueError, "strides are \\[1, 8\\]"),
        (
            TensorArgument("half", 16, 32, False, (4, -1)),
            torch.zeros(4, 8).half(),
            ValueError,
            "has extent 4 in dimension 0",
        ),
        (
            TensorArgument("half", 16, 16, False, (-1,)),
            torch.zeros(40000).half(),
            ValueError,
            "counts elements in 16 bits",
        ),
        (
            TensorArgument("half", 16, 32, True, (-1,)),
            torch.zeros(4).half(),
            NotImplementedError,
            "has a plane of scales",
        ),
    ],
)
def test_what_is_refused(argument, value, error, message):
    with pytest.raises(error, match=f"Metal kernel 'k': .*{message}"):
        described("k", {0: argument}, [value])


def test_facts_of_a_module():
    rows = [
        struct.pack("<24s4I16q", b"half", 16, 2, 32, 0, -1, 32, *[0] * 14),
        struct.pack("<24s4I16q", b"", 0, 0, 0, 0, *[0] * 16),
        struct.pack("<24s4I16q", b"metal_fp8_e4m3_format", 8, 1, 64, 1, -1, *[0] * 15),
    ]
    assert unpack(b"".join(rows), [0, 2, 5]) == {
        0: TensorArgument("half", 16, 32, False, (-1, 32)),
        5: TensorArgument("metal_fp8_e4m3_format", 8, 64, True, (-1,)),
    }


@needs_nvrtc
def test_kernels_with_handles_compile():
    source = (
        HEADER
        + """
using T = tensor<device half, dextents<int, 2>>;
kernel void add(T x, tensor<device const float, extents<long, 8, dynamic_extent>> y [[buffer(3)]],
                tensor<device float, dextents<int, 2>> out, device int* plain [[buffer(7)]],
                uint2 at [[thread_position_in_grid]]) {
  out[at.x, at.y] = float(x[at.x, at.y]) + y[at.x, at.y];
  plain[0] = out.get_extent(1);
}
"""
    )
    library = Library(source, language=400)
    ptx = library.compile(ARCHITECTURE).decode()
    assert "msl_tensors_0[504]" in ptx  # three of 168 bytes
    assert library._code.entries["add"].arguments == ("tensor", "tensor", "tensor", "pointer")


SWITCHED = (
    HEADER
    + """
constant bool on [[function_constant(0)]];
kernel void k(tensor<device float, dextents<int, 1>> x [[buffer(1), function_constant(on)]],
              device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = on ? x[int(i)] : -1.0f;
}
"""
)


def test_a_handle_that_is_switched_off_is_no_tensor():
    rows = [struct.pack("<24s4I16q", b"", 0, 0, 0, 0, *[0] * 16)]
    asked = unpack(b"".join(rows), [1])
    assert described("k", asked, [HALVES, None]) == [HALVES, None]
    text = emit(preprocess(SWITCHED, language=400)).text
    assert re.search(r"msl_tensors_0\[\] = \{bool\(on\) \? [^?]* : \S*TensorArgument\{\}\}", text)


@needs_nvrtc
def test_kernels_with_switched_handles_compile():
    for is_on in (False, True):
        assert Library(SWITCHED, language=400).specialise({"on": is_on}).compile(ARCHITECTURE)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_kernels_take_tensors():
    from metalops import cuda

    source = (
        HEADER
        + """
kernel void add(tensor<device half, dextents<int, 2>> x, tensor<device float, dextents<int, 2>> y,
                tensor<device float, dextents<int, 2>> out, uint2 at [[thread_position_in_grid]]) {
  out[at.x, at.y] = float(x[at.x, at.y]) + y[at.x, at.y];
}
"""
    )
    x = torch.randn(20, 30, device="cuda").half()[2:12, 4:20]
    y, out = torch.randn(10, 16, device="cuda"), torch.zeros(12, 32, device="cuda")
    cuda.compile_shader(source).add(x, y, out[1:11, 8:24], threads=(16, 10), group_size=(16, 2))
    expected = torch.zeros(12, 32, device="cuda")
    expected[1:11, 8:24] = x.float() + y
    assert torch.equal(out, expected)
    with pytest.raises(TypeError, match="buffer 0 has elements of half"):
        cuda.compile_shader(source).add(y, y, out, threads=1)
