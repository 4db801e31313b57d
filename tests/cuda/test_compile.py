"""Metal kernels compile for NVIDIA's GPUs. This needs NVRTC (`pip install nvidia-cuda-nvrtc`) and no GPU."""

import importlib
import re
from pathlib import Path

import pytest
from metalops.cuda import nvrtc
from metalops.cuda.function import EXTENT_BYTES, LAUNCH_BYTES
from metalops.cuda.library import Library

from tests.exec.conftest import HEADER
from tests.fuzz import programs

ROOT = Path(__file__).parent.parent.parent
INCLUDES = [str(ROOT), str(ROOT / "python" / "metalops" / "include")]
ARCHITECTURE = "compute_90"

pytestmark = pytest.mark.skipif(
    not nvrtc.is_available(), reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc"
)


def assert_all_compile(library):
    text = library.compile(ARCHITECTURE, debug=True).decode()
    assert text.count(".entry msl_kernel_") == len(library.kernel_names) > 0


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "kernels").glob("*.metal")), ids=lambda p: p.stem)
def test_kernels_of_operators(path):
    includes = [*INCLUDES, str(path.parent)]
    assert_all_compile(Library(path.read_text(), str(path), include_dirs=includes))


@pytest.mark.slow
@pytest.mark.parametrize(
    "about",
    "atomics barriers group_loops launches simdgroup_matrix thread_attributes threadgroup_memory types".split(),
)
def test_kernels_of_tests(about):
    module = importlib.import_module(f"tests.exec.test_{about}")
    assert_all_compile(Library(HEADER + module.SOURCE))


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random_programs(first):
    """Lanes part and meet in every way (see tests/fuzz/programs.py)."""
    source = programs.source_of([programs.program_of(n) for n in range(first, first + 20)])
    assert_all_compile(Library(source))


def test_what_an_entry_is_given_is_as_large_as_what_is_passed():
    library = Library("kernel void k(device float* x, constant float& y) { x[0] = y; }")
    text = library.compile(ARCHITECTURE).decode()
    sizes = dict(re.findall(r"param .align \d+ .b8 (msl_\w+_0_param_\d)\[(\d+)\]", text))
    assert sizes == {
        "msl_kernel_0_param_0": str(LAUNCH_BYTES),
        "msl_fast_0_param_0": str(EXTENT_BYTES),
        "msl_fast_0_param_2": "4",
    }


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("kernel void k(device float* x) {\n  x[0] = missing;\n}", '2:.*"missing" is undefined'),
        (
            "struct P { uint a; };\ninline P operator+(P x, P y) { return {simd_sum(x.a)}; }\n"
            "kernel void k(device uint* x) { x[0] = (P{1} + P{2}).a; }",
            "2:.*operator\\+.*make it a function with a name",
        ),
    ],
)
def test_errors_are_said_of_the_metal_source(source, message):
    with pytest.raises(SyntaxError, match=message):
        Library(source).compile(ARCHITECTURE)


def test_threadgroup_memory_may_begin_with_zeros():
    library = Library("""
        kernel void k(device float* x, uint t [[thread_index_in_threadgroup]]) {
          threadgroup float sums[4] = {0};
          threadgroup int count = 0, other;
          if (t == 0) { count = 3; other = 1; }
          threadgroup_barrier(metal::mem_flags::mem_threadgroup);
          x[t] = sums[t % 4] + count + other;
        }""")
    assert_all_compile(library)


def loads_of(body):
    source = f"""kernel void k(device float* out, device const float* x, constant uint& n,
        uint lane [[thread_position_in_threadgroup]], uint lanes [[threads_per_threadgroup]]) {{
      float total = 0;
      {body}
      out[lane] = total;
    }}"""
    text = Library(HEADER + source).compile(ARCHITECTURE).decode()
    return text.partition(".entry msl_fast_0")[2].count("ld.global")


def test_a_thread_of_a_strided_loop_has_several_elements_on_their_way():
    assert loads_of("for (uint i = lane; i < n; i += lanes) total += x[i];") == 5
    assert loads_of("if (n > 3) for (uint i = lane; i < n; i += lanes) { total += x[i]; }") >= 4


def test_other_loops_are_left_alone():
    for body in (
        "for (uint i = lane; i < n; i += lanes) { if (x[i] < 0) break; total = i; }",
        "for (uint i = lane; i < n; i += lanes) total += simd_sum(x[i]);",
        "for (uint i = 0; i < n; i += 1) total += sqrt(abs(x[i]));",
    ):
        assert loads_of(body) < 4
