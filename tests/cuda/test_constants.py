"""Values of function constants are compiled in. This needs NVRTC and no GPU."""

import re
import struct

import pytest
import torch
from metalops.cuda import compile_shader
from metalops.cuda.library import Library

from .recorded import ARCHITECTURE, needs_nvrtc

pytestmark = needs_nvrtc

SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant int shift [[function_constant(0)]];
constant bool doubled [[function_constant(1)]];
constant float factor [[function_constant(5)]];
namespace inner {
constant uint2 pair [[function_constant(7)]];
}
constant half narrow [[function_constant(8)]];
constant bool has_shift = is_function_constant_defined(shift);
constant int effective_shift = has_shift ? shift + 1 : 1000;
kernel void k(device int* out, device float* floats) {
  out[0] = effective_shift;
  out[1] = doubled ? 17 : 18;
  out[2] = is_function_constant_defined(factor) ? 19 : 20;
  out[3] = inner::pair.y;
  floats[0] = factor;
  out[4] = as_type<ushort>(narrow);
}
"""


def stored(library):
    """What the kernel stores, as bits: the integers, and the float."""
    text = library.compile(ARCHITECTURE).decode()
    body = text[text.index(".entry msl_fast_0") :]
    registers = dict(re.findall(r"mov\.(?:b|u|f)32\s+(%\w+), (-?\w+);", body))
    stores = re.findall(r"st\.global(?:\.\w+)*\s+\[(%\w+)(?:\+(\d+))?\], \{?([^};]+)\}?;", body)
    result = {}
    for base, offset, values in stores:
        for i, value in enumerate(values.split(", ")):
            value = registers.get(value, value)
            bits = int(value[2:], 16) if value.startswith("0f") else int(value)
            result[base, int(offset or 0) // 4 + i] = bits % 2**32
    bases = sorted({base for base, _ in result}, key=lambda b: -sum(b == x for x, _ in result))
    ints, floats = ([result.get((base, i)) for i in range(5)] for base in bases[:2])
    return ints, floats[0]


def bits(value):
    return struct.unpack("I", struct.pack("f", value))[0]


def test_without_values():
    ints, number = stored(Library(SOURCE))
    assert ints == [1000, 18, 20, 0, 0]
    assert number == 0


@pytest.mark.parametrize(
    "values",
    [
        {0: 3, 1: True, 5: 0.1, 7: struct.pack("II", 5, 6), 8: 1.5},
        {
            "shift": 3,
            "doubled": True,
            "factor": 0.1,
            "pair": struct.pack("II", 5, 6),
            "narrow": 1.5,
        },
        {
            0: struct.pack("i", 3),
            1: b"\1",
            5: struct.pack("f", 0.1),
            7: struct.pack("II", 5, 6),
            8: struct.pack("e", 1.5),
        },
    ],
    ids=["by index", "by name", "bytes"],
)
def test_values(values):
    expected = [4, 17, 19, 6, 0x3E00], bits(0.1)
    assert stored(Library(SOURCE, constants=values)) == expected
    assert stored(Library(SOURCE).specialise(values)) == expected


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e-45, -3.4e38])
def test_numbers_of_every_kind(value):
    assert stored(Library(SOURCE, constants={5: value, 8: value}))[1] == bits(value)
    ints, _ = stored(Library(SOURCE, constants={0: -(2**31)}))
    assert ints[0] == 2**31 + 1


def test_specialising_starts_from_constants_without_values_and_is_remembered():
    library = Library(SOURCE)
    first = library.specialise({0: 3})
    assert library.specialise({0: 3}) is first
    assert library.specialise({0: True}) is not first
    assert stored(first.specialise({1: True}))[0] == [1000, 17, 20, 0, 0]
    assert stored(library)[0] == [1000, 18, 20, 0, 0]


ALL = {0: 3, 1: True, 5: 0.1, 7: [5, 6], 8: 1.5}


def test_kernels_of_specialised_shaders_are_launched(recorder):
    out, floats = torch.zeros(5, dtype=torch.int32), torch.zeros(2)
    compile_shader(SOURCE, ALL).k(out, floats)
    compile_shader(SOURCE).specialise(ALL).k(out, floats)
    assert len(recorder.launches) == 2
    with pytest.raises(ValueError, match=r"'k' needs a value of function constant 'doubled'"):
        _ = compile_shader(SOURCE, {0: 3}).k


def test_threadgroup_memory_of_a_shader():
    source = """
    kernel void k(device float* out, threadgroup float* a [[threadgroup(1)]],
                  uint t [[thread_index_in_threadgroup]]) { a[t] = t; out[t] = a[0]; }
    """
    with pytest.raises(ValueError, match="no kernel has a threadgroup argument 0; there are 1"):
        compile_shader(source, threadgroup_memory={0: 64})
    with pytest.raises(ValueError, match="needs the size of its threadgroup argument 'a'"):
        _ = compile_shader(source).k
    launches = []
    kernel = compile_shader(source, threadgroup_memory={1: 64}).k
    kernel._library.launch = lambda *arguments: launches.append(arguments)
    kernel(torch.zeros(4), threads=4, group_size=4)
    assert launches[0][0] == "k" and launches[0][4] == {1: 64}


def test_the_language_of_a_shader():
    source = "kernel void k(device int* out) { out[0] = __METAL_VERSION__; }"
    for name, number in (("3.1", 310), ("4.1", 410)):
        assert f"= {number};" in compile_shader(source, language=name)._library._code.text
    with pytest.raises(ValueError, match=r"language is '5', but must be 3\.1, 3\.2, 4\.0 or 4\.1"):
        compile_shader(source, language="5")


def test_errors():
    library = Library(SOURCE)
    with pytest.raises(ValueError, match="no function constant 2"):
        library.specialise({2: 1})
    with pytest.raises(ValueError, match="no function constant 'other'"):
        library.specialise({"other": 1})
    with pytest.raises(TypeError, match=r"function constant 0 \(int\) takes an int or 4 bytes"):
        library.specialise({0: "3"})
    with pytest.raises(ValueError, match=r"function constant 0 \(int\) has 4 bytes, but got 1"):
        library.specialise({0: b"\1"})
    with pytest.raises(ValueError, match="'kIndex': give its value by that number"):
        Library(
            "constant int kIndex = 4;\nconstant int c [[function_constant(kIndex)]];\n"
            "kernel void k(device int* x) { x[0] = c; }"
        ).specialise({"c": 1})
