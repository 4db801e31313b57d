"""metalops.compile_shader: function constants, threadgroup memory that the host sizes, a choice of the Metal version."""

import struct

import metalops
import numpy as np
import pytest
import torch
from metalops import msl
from metalops._shaders.compile import by_definition
from metalops._shaders.declared import of_source
from metalops._shaders.definitions import define

SOURCE = """
#include <metal_stdlib>
using namespace metal;
#define BASE 700
constant int shift [[function_constant(0)]];
constant bool doubled [[function_constant(1)]];  // constant bool ignored [[function_constant(99)]];
constant float factor [[function_constant(BASE + 5)]];
namespace inner { constant uint2 pair [[ function_constant( 7 ) ]]; }
constant half narrow [[function_constant(8)]];
constant bfloat wide
    [[function_constant(9)]];
constant bool has_factor = is_function_constant_defined(factor);
constant int effective = shift + 1;

int helper() { return effective; }

kernel void with_constants(device float* out [[buffer(0)]],
                           device float* more [[buffer(1), function_constant(has_factor)]]) {
  out[0] = helper();
  out[1] = doubled ? 17 : 18;
  out[2] = has_factor ? factor : -1.0f;
  out[3] = inner::pair.y;
  out[4] = narrow;
  out[5] = wide;
}
kernel void with_one(device int* out, constant int& n [[buffer(1)]]) { out[0] = shift * n; }
kernel void plain(device int* out) { out[0] = __METAL_VERSION__; }
"""
VALUES = {"shift": 3, "doubled": True, "factor": 0.1, "pair": [5, 6], "narrow": 1.5, 9: -2}
EXPECTED = [4, 17, np.float32(0.1), 6, 1.5, -2]

MEMORY = """
#include <metal_stdlib>
using namespace metal;
// Each group turns its part around.
kernel void turn(device float* out [[buffer(0)]], device const float* x [[buffer(1)]],
                 threadgroup float* row [[threadgroup(0)]], uint i [[thread_position_in_grid]],
                 uint t [[thread_index_in_threadgroup]], threadgroup half4 *second [[ threadgroup(2) ]],
                 uint n [[threads_per_threadgroup]]) {
  row[t] = x[i];
  second[t] = half4(t);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = row[n - 1 - t] + float(second[n - 1 - t].w);
}
template <typename T>
kernel void first(threadgroup T* memory [[threadgroup(1)]], device T* out [[buffer(0)]],
                  uint t [[thread_index_in_threadgroup]]) {
  memory[t] = T(t + 1);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = memory[0];
}
template [[host_name("first_float")]] kernel void first<float>(threadgroup float* memory [[threadgroup(1)]],
                                                               device float* out [[buffer(0)]], uint t);
kernel void none(device float* out) { out[0] = 1; }
"""


def on_the_device(source, constants=None, threadgroup_memory=None):
    return metalops.compile_shader(source, constants, threadgroup_memory)


def on_a_mac(source, constants=None, threadgroup_memory=None):
    """The same by definitions in the text, which here too is compiled by torch.mps.compile_shader."""
    declared = of_source(source, msl.runtime_options(400))
    return by_definition(
        source, declared, declared.values(constants), declared.check_memory(threadgroup_memory)
    )


ways = pytest.mark.parametrize("compiled", [on_the_device, on_a_mac])


def run(shader, name="with_constants", n=6):
    out = torch.zeros(n, device="mps")
    getattr(shader, name)(out, out, threads=1)
    return out.tolist()


@ways
def test_constants_by_name_and_index(compiled):
    assert run(compiled(SOURCE, VALUES)) == pytest.approx(EXPECTED, rel=1e-7)
    by_index = {0: 3, 1: 1, 705: 0.1, 7: (5, 6), 8: 1.5, 9: -2.0}
    assert run(compiled(SOURCE, by_index)) == pytest.approx(EXPECTED, rel=1e-7)
    as_bytes = VALUES | {"shift": struct.pack("i", 3), "pair": struct.pack("II", 5, 6)}
    assert run(compiled(SOURCE, as_bytes)) == pytest.approx(EXPECTED, rel=1e-7)


@ways
def test_a_constant_that_the_source_asks_for_may_be_missing(compiled):
    values = {k: v for k, v in VALUES.items() if k != "factor"}
    assert run(compiled(SOURCE, values))[2] == -1


@ways
@pytest.mark.parametrize("value", [-(2**31), 2**31 - 1, 0])
def test_integers_at_the_ends_of_their_types(compiled, value):
    out = torch.zeros(1, dtype=torch.int, device="mps")
    compiled(SOURCE, {"shift": value}).with_one(out, 1, threads=1, arg_casts="int32")
    assert out.item() == value


@ways
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 1e-45, -3.4e38, 1e300])
def test_numbers_of_every_kind(compiled, value):
    expected = np.float32(value).item() if abs(value) < 1e200 else value * float("inf")
    assert run(compiled(SOURCE, VALUES | {"factor": value}))[2] == expected


@ways
def test_a_kernel_needs_the_constants_that_it_comes_to(compiled):
    shader = compiled(SOURCE, {"shift": 2})
    out = torch.zeros(1, dtype=torch.int, device="mps")
    shader.with_one(out, 21, threads=1, arg_casts="int32")
    assert out.item() == 42
    shader.plain(out, threads=1)
    with pytest.raises(
        ValueError,
        match=r"kernel 'with_constants' needs a value of function constant 'doubled' \(index 1\)",
    ):
        _ = shader.with_constants
    with pytest.raises(ValueError, match=r"function constant 'shift' \(index 0\)"):
        _ = compiled(SOURCE).with_one


@ways
@pytest.mark.parametrize(
    "given, error, message",
    [
        ({"other": 1}, ValueError, "no function constant 'other'; it has shift"),
        ({2: 1}, ValueError, "no function constant 2"),
        ({"shift": 1.5}, TypeError, r"'shift' \(int\) takes an int or 4 bytes, but got 1.5"),
        ({"shift": "3"}, TypeError, "'shift'"),
        ({"shift": 2**31}, ValueError, r"'shift' \(int\) does not hold 2147483648"),
        ({"shift": b"\0"}, ValueError, r"'shift' \(int\) has 4 bytes, but got 1"),
        ({"doubled": 2}, TypeError, r"'doubled' \(bool\) takes a bool or 1 bytes, but got 2"),
        ({"factor": "x"}, TypeError, r"'factor' \(float\) takes a float"),
        ({"pair": 5}, TypeError, r"'pair' \(uint2\) takes 2 numbers or 8 bytes, but got 5"),
        ({7: [1, 2, 3]}, TypeError, "takes 2 numbers"),
        ({7: [1, -2]}, ValueError, "does not hold -2"),
        ({(): 1}, TypeError, "is an index or a name"),
    ],
)
def test_wrong_constants(compiled, given, error, message):
    with pytest.raises(error, match=message):
        compiled(SOURCE, given)


@ways
@pytest.mark.parametrize("group", [32, 40])
def test_threadgroup_memory(compiled, group):
    shader = compiled(MEMORY, threadgroup_memory={0: 4 * group, 2: 8 * group, 1: 4 * group})
    x = torch.randn(2 * group, device="mps")
    out = torch.empty_like(x)
    shader.turn(out, x, threads=2 * group, group_size=group)
    expected = x.view(2, group).flip(1) + torch.arange(group, device="mps").flip(0)
    torch.testing.assert_close(out.view(2, group), expected)
    shader.first_float(out, threads=group, group_size=group)
    assert out[:group].tolist() == [1] * group


@ways
@pytest.mark.parametrize(
    "given, error, message",
    [
        ({3: 16}, ValueError, "no kernel has a threadgroup argument 3; there are 0, 1, 2"),
        ({0: 0}, ValueError, "threadgroup argument 0 cannot have 0 bytes"),
        ({0: -4}, ValueError, "cannot have -4 bytes"),
        ({0: "16"}, TypeError, "the size '16'"),
        ({"row": 16}, TypeError, "the index 'row'"),
        ({0: 32769}, ValueError, "'turn' take 32784 bytes, but a threadgroup has 32768"),
        ({0: 32768, 2: 1}, ValueError, "'turn' take 32784 bytes, but a threadgroup has 32768"),
    ],
)
def test_wrong_threadgroup_memory(compiled, given, error, message):
    with pytest.raises(error, match=message):
        compiled(MEMORY, threadgroup_memory=given)


@ways
def test_a_kernel_needs_the_sizes_of_its_memory(compiled):
    shader = compiled(MEMORY, threadgroup_memory={0: 256})
    out = torch.zeros(1, device="mps")
    shader.none(out, threads=1)
    with pytest.raises(
        ValueError, match=r"'turn' needs the size of its threadgroup argument 'second' \(index 2\)"
    ):
        _ = shader.turn


def test_with_what_a_kernel_declares_memory_has_32_kib():
    shader = metalops.compile_shader(
        "kernel void k(device int* out, threadgroup int* a [[threadgroup(0)]]) {"
        " threadgroup int b[4096]; b[0] = a[0] = 1; out[0] = b[0]; }",
        threadgroup_memory={0: 20000},
    )
    with pytest.raises(RuntimeError, match="36384 bytes of threadgroup memory"):
        shader.k(torch.zeros(1, dtype=torch.int, device="mps"), threads=1)


def test_the_language_of_one_source(monkeypatch):
    monkeypatch.setenv("METALOPS_METAL_VERSION", "3.2")
    out = torch.zeros(1, dtype=torch.int, device="mps")
    found = []
    for language in ("3.1", None, "4.0", "4.1"):
        metalops.compile_shader(SOURCE, language=language).plain(out, threads=1)
        found.append(out.item())
    assert found == [310, 320, 400, 410]
    with pytest.raises(ValueError, match=r"language is '5', but must be 3\.1, 3\.2, 4\.0 or 4\.1"):
        metalops.compile_shader(SOURCE, language="5")
    with pytest.raises(TypeError, match="language must be a str"):
        metalops.compile_shader(SOURCE, language=400)


def test_it_is_torchs_otherwise():
    shader = metalops.compile_shader(SOURCE)
    assert sorted(dir(shader)) == ["plain", "with_constants", "with_one"]
    assert shader.plain.max_threads_per_threadgroup == 1024 and shader.plain is shader.plain
    with pytest.raises(RuntimeError, match="did you mean plain"):
        _ = shader.plaim
    with pytest.raises(SyntaxError, match="program_source:1:"):
        metalops.compile_shader("kernel void k(device int* x) { x[0] = y; }")
    with pytest.raises(TypeError, match="'source' must be str"):
        metalops.compile_shader(b"")


def test_definitions_stay_at_their_lines():
    declared = of_source(SOURCE, msl.runtime_options(400))
    text = define(SOURCE, declared, declared.values(VALUES), {})
    assert text.count("\n") == SOURCE.count("\n")
    assert text.split("\n")[4:6] == [
        "constant int shift = int(3l);",
        "constant bool doubled = bool(true);  // constant bool ignored [[function_constant(99)]];",
    ]
    assert "device float* more [[buffer(1)]]" in text
    assert text.count("function_constant") == 1  # in a comment


def test_what_a_mac_cannot_define():
    source = "#define C(n, i) constant int n [[function_constant(i)]];\nC(hidden, 1)\nkernel void k(device int* x) { x[0] = hidden; }"
    with pytest.raises(ValueError, match="'hidden' is not declared on its own in the text"):
        on_a_mac(source, {"hidden": 1})
    shader = on_the_device(source, {"hidden": 6})
    out = torch.zeros(1, dtype=torch.int, device="mps")
    shader.k(out, threads=1)
    assert out.item() == 6


def test_a_mac_has_the_language_of_its_system(monkeypatch):
    from metalops._shaders import compile as compile_module

    for system, name in (("14.5", "3.1"), ("15.0", "3.2"), ("26.1", "4.0")):
        monkeypatch.setattr(compile_module.platform, "mac_ver", lambda v=system: (v, (), ""))
        assert compile_module._language_of_mac(None) == compile_module._language_of_mac(name)
        with pytest.raises(ValueError, match=f"torch compiles in Metal {name} on this Mac"):
            compile_module._language_of_mac("4.1")
