"""Small wrong kernels, one rule each: the checker names the rule and the line; their mended twins
are clean.

Those of gallery/tensors.txt are Metal 4.0, the others Metal 3.1. A case of gallery/*.txt is `=== RULE: what`, the wrong source with `//!` on each line at fault,
`---`, and the twin.
"""

import os
import re

import pytest
from metalops.msl.check import RULES, check_source, opencl

GALLERY = os.path.join(os.path.dirname(__file__), "gallery")
COMPILERS = {"compile", "opencl"}  # rules that are a compiler's; others are shown without it
HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
TENSORS = """#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
"""
needs_clang = pytest.mark.skipif(opencl.find() is None, reason="needs clang 15 or newer")


def _cases():
    for file in sorted(os.listdir(GALLERY)):
        with open(os.path.join(GALLERY, file)) as stream:
            text = stream.read()
        for title, rule, body in re.findall(r"(?ms)^=== ((\S+): .*?)\n(.*?)(?=^=== |\Z)", text):
            wrong, right = body.split("\n---\n")
            marks = [needs_clang] if rule == "opencl" else []
            name = re.sub(r"\W+", "-", title)
            header, language = (TENSORS, 400) if file == "tensors.txt" else (HEADER, 310)
            texts = (header + wrong, header + right)
            yield pytest.param(language, rule, *texts, id=name, marks=marks)


CASES = list(_cases())


@pytest.mark.parametrize("language, rule, wrong, right", CASES)
def test_wrong_kernel_is_rejected_at_its_line_and_its_twin_is_clean(language, rule, wrong, right):
    lines = [number for number, line in enumerate(wrong.split("\n"), 1) if line.endswith("//!")]
    found = check_source(wrong, language=language, compiles=rule in COMPILERS)
    assert [(f.rule, f.line) for f in found] == [(rule, line) for line in lines]
    assert all(f.is_error != RULES[rule].is_suspicion for f in found)
    assert check_source(right, language=language, compiles=rule in COMPILERS) == []


@pytest.mark.full
@pytest.mark.parametrize("language, header", [(310, HEADER), (400, TENSORS)])
def test_all_mended_twins_compile(language, header):
    twins = [c.values[3].removeprefix(header) for c in CASES if c.values[0] == language]
    source = header + "".join(f"namespace n{i} {{\n{twin}\n}}\n" for i, twin in enumerate(twins))
    found = [f for f in check_source(source, language=language) if f.rule in COMPILERS]
    assert found == []


def test_the_gallery_has_enough_cases():
    assert len(CASES) >= 80


def test_every_rule_has_a_case():
    assert {case.values[1] for case in CASES} == set(RULES) - {"apple", "preprocessor"}


def test_a_function_that_only_mentions_one_with_a_barrier_has_none():
    source = """
    void check(device c10::metal::ErrorMessages* errors, uint label) {
      if (label > 9) TORCH_REPORT_ERROR(errors, "total(): ", label, " is out of range");
    }
    kernel void total(device c10::metal::ErrorMessages* errors [[buffer(0)]],
                      device uint* x [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
      threadgroup uint sum[32];
      if (i < 4) check(errors, x[i]);
      sum[i % 32] = x[i];
      threadgroup_barrier(mem_flags::mem_threadgroup);
      x[i] = sum[0];
    }
    """
    assert check_source("#include <c10/metal/error.h>\n" + HEADER + source) == []


def test_a_barrier_behind_a_return_is_said_to_be_of_its_group():
    (found,) = check_source(
        HEADER
        + """kernel void k(device float* out, uint i [[thread_index_in_threadgroup]]) {
          if (i > 5) return;
          threadgroup_barrier(mem_flags::mem_device);
          out[i] = 1;
        }""",
        compiles=False,
    )
    assert "not all threads of the group reach this threadgroup_barrier" in str(found)


def test_threadgroup_memory_of_structures_is_counted_by_the_compiler():
    source = (
        HEADER
        + """
    struct Tile { float values[9000]; };
    template <typename T> kernel void k(device float* x, uint i [[thread_position_in_threadgroup]]) {
      threadgroup T tile;
      tile.values[i] = x[i];
      x[i] = tile.values[i];
    }
    template [[host_name("large")]] kernel void k<Tile>(device float*, uint);
    """
    )
    (found,) = check_source(source)
    assert (found.rule, found.line) == ("threadgroup-memory", 10)
    assert "variables of large take more than the 32768 bytes" in found.sentence


def test_threadgroup_memory_of_which_an_instance_has_one_branch_is_not_added_up():
    """As candle's sorts of MLX."""
    source = (
        HEADER
        + """
    template <typename T, bool both> kernel void k(device T* x) {
      if (both) {
        threadgroup T a[4096], b[4096];
        x[0] = a[0] + b[0];
      } else {
        threadgroup T c[4096];
        x[0] = c[0];
      }
    }
    template [[host_name("one")]] kernel void k<float, false>(device float*);
    template [[host_name("two")]] kernel void k<float, true>(device float*);
    """
    )
    assert check_source(source) == []


def test_conversion_functions_to_bool_are_no_names():
    source = (
        HEADER
        + """
    #define FUNCTION inline __attribute__((__always_inline__))
    struct Always {
      char x;
      constexpr FUNCTION operator bool() thread { return true; }
      constexpr FUNCTION operator bool() const threadgroup { return true; }
      constexpr FUNCTION operator bool() const device { return true; }
    };
    kernel void k(device float* x) { Always a; x[0] = bool(a); }
    """
    )
    assert check_source(source, compiles=False) == []
