"""Vectors in memory at the alignment of an element, which Apple's GPUs take, with both host compilers."""

import pytest
import torch
from metalops.msl.source import compiler
from metalops.msl.targets.host import sanitizers

# As many bytes of memory as tests take from a buffer, after the offset.
SIZE = 4096
VECTORS = {
    "float4": 4,
    "float3": 4,
    "float2": 4,
    "uint4": 4,
    "long4": 8,
    "half4": 2,
    "ushort2": 2,
    "char4": 1,
    "float4x4": 4,
    "vec<float, 8>": 4,
    "vec<half, 16>": 2,
    "Pair": 4,
}
SOURCE = """
#include <metal_stdlib>
using namespace metal;
struct Pair { float a; float4 b; float2 c; };

kernel void copy(device char* to, device const char* from, uint i [[thread_position_in_grid]]) {
  ((device VECTOR*)(to + OFFSET))[i] = ((device const VECTOR*)(from + OFFSET))[i];
}
kernel void through_threadgroup(device char* to, constant char* from, uint i [[thread_position_in_grid]],
                                uint t [[thread_index_in_threadgroup]]) {
  threadgroup char memory[8192];
  threadgroup VECTOR* all = (threadgroup VECTOR*)(memory + OFFSET);
  all[t] = ((constant VECTOR*)(from + OFFSET))[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ((device VECTOR*)(to + OFFSET))[i] = all[t];
}
kernel void compute(device float* to, device const float* from, uint i [[thread_position_in_grid]]) {
  device float4* row = (device float4*)(to + 1) + i;
  const float4 x = ((device const float4*)(from + 1))[i];
  *row = x * 2.0f;
  *row += 1.0f;
  row->yz = x.zy;
  (*row)[3] -= x[0];
}
"""


@pytest.fixture(params=["g++", "clang++-19"])
def host(request, monkeypatch):
    if not isinstance(compiler._probe([request.param]), compiler.Compiler):
        pytest.skip(f"{request.param} is not here")
    monkeypatch.setenv("CXX", request.param)
    return compiler.find()


pytestmark = pytest.mark.skipif(bool(sanitizers.loaded()), reason="a finding under sanitizers")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("vector", VECTORS)
def test_copies(vector, host):
    alignment = VECTORS[vector]
    for offset in (alignment, 3 * alignment):
        text = SOURCE.replace("VECTOR", vector).replace("OFFSET", str(offset))
        library = torch.mps.compile_shader(text)
        data = torch.randint(-128, 128, (16384,), dtype=torch.int8, device="mps")
        for kernel in (library.copy, library.through_threadgroup):
            out = torch.zeros_like(data)
            kernel(out, data, threads=64, group_size=32)
            # Each copies its own bytes; the fourth component of a vector of three may stay behind.
            written = out.cpu() != 0
            assert torch.equal(out.cpu()[written], data.cpu()[written])
            assert (
                written[offset : offset + 64 * (4 if vector == "char4" else 4)].float().mean() > 0.5
            )
            assert not written[:offset].any()


def test_arithmetic_and_components(host):
    library = torch.mps.compile_shader(SOURCE.replace("VECTOR", "float4").replace("OFFSET", "4"))
    data = torch.randn(1 + 4 * 100, device="mps")
    out = torch.zeros_like(data)
    library.compute(out, data, threads=100)
    x = data.cpu()[1:].view(100, 4)
    expected = torch.stack([2 * x[:, 0] + 1, x[:, 2], x[:, 1], 2 * x[:, 3] + 1 - x[:, 0]], dim=1)
    assert torch.equal(out.cpu()[1:].view(100, 4), expected) and out[0] == 0


def test_layouts_are_those_of_aligned_vectors(host):
    library = torch.mps.compile_shader("""
#include <metal_stdlib>
using namespace metal;
struct S { char a; float4 b; half c; half3 d; char e; vec<float, 8> f; };
kernel void k(device int* out) {
  out[0] = alignof(float4); out[1] = alignof(half3); out[2] = sizeof(S); out[3] = alignof(S);
  out[4] = __builtin_offsetof(S, b); out[5] = __builtin_offsetof(S, d); out[6] = __builtin_offsetof(S, f);
  out[7] = sizeof(float3); out[8] = alignof(float4x4); out[9] = sizeof(packed_float3);
}
""")
    out = torch.zeros(10, dtype=torch.int, device="mps")
    library.k(out, threads=1)
    assert out.tolist() == [16, 8, 96, 32, 16, 40, 64, 16, 16, 12]
