"""Metal kernels compile for NVIDIA's GPUs. This needs NVRTC (`pip install nvidia-cuda-nvrtc`) and no GPU."""

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from metalops.cuda import nvrtc
from metalops.cuda.function import EXTENT_BYTES, LAUNCH_BYTES
from metalops.cuda.library import Library
from metalops.msl.source.paths import HEADERS

from tests.cuda import simdgroup_operators
from tests.cuda.recorded import needs_software_device
from tests.exec.conftest import HEADER
from tests.fuzz import programs
from tests.msl import spaces_gallery, test_async_copies, test_thread_values

ROOT = Path(__file__).parent.parent.parent
INCLUDES = [str(ROOT), str(ROOT / "python" / "metalops" / "include")]
ARCHITECTURE = "compute_90"

pytestmark = pytest.mark.skipif(
    not nvrtc.is_available(), reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc"
)


def assert_all_compile(library):
    text = library.compile(ARCHITECTURE, debug=True).decode()
    assert text.count(".entry msl_kernel_") == len(library.kernel_names) > 0


@pytest.mark.nightly
@pytest.mark.skipif(
    torch.torch_version.TorchVersion(torch.__version__) < (2, 13),
    reason="the operators' kernels include headers of torch 2.13",
)
@pytest.mark.parametrize("path", sorted((ROOT / "kernels").rglob("*.metal")), ids=lambda p: p.stem)
def test_kernels_of_operators(path):
    includes = [*INCLUDES, str(ROOT)]
    assert_all_compile(Library(path.read_text(), str(path), include_dirs=includes))


def test_programs_that_begin_alike_share_a_precompiled_header(monkeypatch):
    """The code is that of a process that compiles one program, to the byte."""
    library = Library(HEADER + "kernel void k(device float* x) { x[0] = 1; }")
    text, folder = library._code.without_markers(), Path(nvrtc._folder_of_headers())
    monkeypatch.setattr(nvrtc, "_compiled", Counter())
    # Options of its own, so that no earlier test has made the header.
    options = (f"-I{HEADERS}", "-std=c++17", "-DMSL_THIS_TEST")
    before = set(folder.iterdir())
    first = nvrtc.compile_program(text, "program_source", ARCHITECTURE, options)
    assert set(folder.iterdir()) == before
    later = [nvrtc.compile_program(text, "program_source", ARCHITECTURE, options) for _ in range(2)]
    assert later == [first, first]
    assert len(set(folder.iterdir()) - before) == (nvrtc.version() >= (12, 8))


@pytest.mark.parametrize(
    "to, instructions",
    [
        ("char", [r"cvt\.rzi\.s32\.f32", r"min\.s32 .*, 127;", r"max\.s32 .*, -128;"]),
        ("ushort", [r"cvt\.rzi\.s32\.f32", r"min\.s32 .*, 65535;", r"max\.s32 .*, 0;"]),
        ("uint", [r"cvt\.rzi\.u32\.f32"]),
        ("long", [r"cvt\.rzi\.s64\.f32", r"setp\.(?:num|nan)\.f32"]),
    ],
)
def test_conversions_saturate(to, instructions):
    """The instructions saturate to 32 and 64 bits, and give 2^63 for NaN in 64 bits (see test_conversions.py for values)."""
    source = f"kernel void k(device {to}* out, device const float* x) {{ out[0] = {to}(x[0]); }}"
    text = Library(HEADER + source).compile(ARCHITECTURE).decode()
    for instruction in instructions:
        assert re.search(instruction, text), instruction


@pytest.mark.nightly
@needs_software_device  # which their modules import
@pytest.mark.parametrize(
    "about",
    "atomics barriers group_loops launches pack_and_log simdgroup_matrix thread_attributes threadgroup_memory types".split(),
)
def test_kernels_of_tests(about):
    module = importlib.import_module(f"tests.exec.test_{about}")
    assert_all_compile(Library(HEADER + module.SOURCE))


@pytest.mark.sampled(5)
@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random_programs(first):
    """Lanes part and meet in every way (see tests/fuzz/programs.py)."""
    source = programs.source_of([programs.program_of(n) for n in range(first, first + 20)])
    assert_all_compile(Library(source))


def test_overloads_that_differ_by_address_space():
    assert_all_compile(Library(spaces_gallery.SOURCE))


@pytest.mark.parametrize(
    ("call", "instruction"),
    [
        *((f"simd_sum({t}(x[i]))", r"add\.[su]32") for t in ("uint", "int")),
        ("simd_max(x[i])", r"max\.u32"),
        ("simd_min(x[i])", r"min\.u32"),
        ("simd_max(int(x[i]))", r"max\.s32"),
        ("simd_min(int(x[i]))", r"min\.s32"),
        *((f"simd_{name}(x[i])", rf"{name}\.b32") for name in ("and", "or", "xor")),
    ],
)
def test_integers_of_a_simdgroup_are_reduced_by_one_instruction(call, instruction):
    source = f"kernel void k(device uint* x, uint i [[thread_position_in_grid]]) {{ x[i] = metal::{call}; }}"
    text = Library(HEADER + source).compile(ARCHITECTURE).decode()
    assert re.search(rf"redux\.sync\.{instruction}", text)
    assert "shfl.sync" not in text


def test_what_an_entry_is_given_is_as_large_as_what_is_passed():
    library = Library("kernel void k(device float* x, constant float& y) { x[0] = y; }")
    text = library.compile(ARCHITECTURE).decode()
    sizes = dict(re.findall(r"param .align \d+ .b8 (msl_\w+_0_param_\d)\[(\d+)\]", text))
    assert sizes == {
        "msl_kernel_0_param_0": str(LAUNCH_BYTES),
        "msl_fast_0_param_0": str(EXTENT_BYTES),
        "msl_fast_0_param_2": "4",
    }


def test_errors_are_said_of_the_metal_source():
    library = Library("kernel void k(device float* x) {\n  x[0] = missing;\n}")
    with pytest.raises(SyntaxError, match='2:.*"missing" is undefined'):
        library.compile(ARCHITECTURE)


def test_simdgroup_operations_in_operators_constructors_and_conversions():
    assert_all_compile(Library(simdgroup_operators.SOURCE))


@pytest.mark.nightly
def test_random_programs_whose_threads_note_where_they_are():
    source = programs.source_of([programs.program_of(n) for n in range(100, 120)])
    assert_all_compile(Library(source + simdgroup_operators.NOTING))


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


@pytest.mark.full
def test_other_loops_are_left_alone():
    for body in (
        "for (uint i = lane; i < n; i += lanes) { if (x[i] < 0) break; total = i; }",
        "for (uint i = lane; i < n; i += lanes) total += simd_sum(x[i]);",
        "for (uint i = 0; i < n; i += 1) total += sqrt(abs(x[i]));",
    ):
        assert loads_of(body) < 4


def instructions(type_of_a, type_of_b, architecture=ARCHITECTURE, sums="float"):
    """Of tensor cores, transpositions and shuffles, in a product of simdgroup matrices."""
    source = f"""kernel void k(device {type_of_a}* a, device {type_of_b}* b, device {sums}* c) {{
      simdgroup_matrix<{type_of_a}, 8, 8> A;
      simdgroup_matrix<{type_of_b}, 8, 8> B;
      simdgroup_matrix<{sums}, 8, 8> C;
      simdgroup_load(A, a);
      simdgroup_load(B, b);
      simdgroup_load(C, c);
      simdgroup_multiply_accumulate(C, A, B, C);
      simdgroup_store(C, c);
    }}"""
    text = Library(HEADER + source).compile(architecture).decode().partition(".entry msl_fast_0")[2]
    return [text.count(f"{name}.sync") for name in ("mma", "movmatrix", "shfl")]


@pytest.mark.parametrize("sums", ["float", "half", "bfloat"])
@pytest.mark.parametrize("factor", ["half", "bfloat"])
def test_products_of_simdgroup_matrices_are_made_by_tensor_cores(factor, sums):
    """Once for simdgroups of 32 threads, and once for others, where it is asked whether all lanes are there."""
    assert instructions(factor, factor, sums=sums) == [2, 2, 24]


@pytest.mark.full
def test_products_that_tensor_cores_do_not_make_exactly_are_made_by_shuffles():
    assert instructions("float", "float") == [0, 0, 48]
    assert instructions("half", "bfloat") == [0, 0, 48]
    assert instructions("half", "half", "compute_75") == [0, 0, 48]


@pytest.mark.full
def test_the_benchmark_of_matrix_products_is_unrolled():
    path = ROOT / "benchmarks" / "matmul.metal"
    text = Library(path.read_text(), str(path)).compile(ARCHITECTURE).decode()
    assert text.partition(".entry msl_kernel_0")[2].count("mma.sync") > 32
    assert ".local" not in text


@pytest.mark.full
def test_os_log_is_there_under_either_name():
    for call in ("os_log_default.log", 'os_log("a", "b").log_error'):
        source = f'kernel void k(device float* x) {{ {call}("%f", x[0]); }}'
        assert "vprintf" in Library(HEADER + source).compile(ARCHITECTURE).decode()


def uses_local_memory(loops):
    """Whether a kernel whose nine sums are added up in these loops keeps them in memory."""
    source = f"""kernel void k(device float* out, device const float* x, uint i [[thread_position_in_grid]]) {{
      float sums[9] = {{0}};
      for (uint at = 0; at < 64; ++at) {{
        {loops} for (uint j = 0; j < 9; ++j) sums[j] += x[(i * 64 + at) * 9 + j] * sqrt(float(j));
      }}
      float total = 0;
      {loops} for (uint j = 0; j < 9; ++j) total += sqrt(abs(sums[j])) * sums[8 - j];
      out[i] = total;
    }}"""
    text = Library(HEADER + source).compile(ARCHITECTURE).decode()
    return ".local" in text


@pytest.mark.parametrize(
    "hint",
    [
        "\n#pragma unroll\n",
        "\n# pragma unroll 9\n",
        "\n#pragma unroll(9)\n",
        "\n#pragma GCC unroll 9\n",
        "\n#pragma clang loop unroll(full)\n",
        "\n#pragma clang loop vectorize(disable) unroll_count(9)\n",
        '_Pragma("clang loop unroll(full)")',
        "[[unroll]]",
    ],
)
def test_loops_that_the_program_unrolls_need_no_memory_for_arrays(hint):
    assert uses_local_memory("\n#pragma clang loop unroll(disable)\n")
    assert not uses_local_memory(hint)


def test_loops_with_operations_of_simdgroups_are_unrolled():
    """Something is written around those in which lanes diverge."""
    source = """kernel void k(device float* x, uint i [[thread_position_in_grid]]) {
      if (i % 3 == 0) {
        #pragma unroll
        for (int j = 0; j < 5; ++j) { if (x[j] > 0) x[i] += simd_sum(x[i + j]); }
      }
    }"""
    assert_all_compile(Library(HEADER + source))


def test_constants_that_nvrtc_would_not_take_for_such():
    """Parameters of generic lambdas that lambdas inside have captured; infinity and numbers of 16 bits."""
    assert_all_compile(
        Library(
            HEADER
            + """
        template <int N> struct number { static constant constexpr int value = N; constexpr operator int() const { return N; } };
        template <int N, class F> void count(F f) { if constexpr (N > 0) { f(number<N>{}); count<N - 1, F>(f); } }
        template <int I, int J> float sum(thread const float* x) { return x[I] + x[J]; }
        struct S {
          float x[4];
          float both() const thread {
            float result = 0;
            count<3>([&](auto i) { count<3>([&](auto j) {
              if constexpr (i && j.value > 1) result += sum<i.value, j>(x);
            }); });
            return result;
          }
        };
        static_assert(half(1.5h) * half(2.0h) == 3.0h, "");
        constexpr constant float most = numeric_limits<float>::infinity();
        constexpr constant half least = -numeric_limits<half>::infinity();
        template <typename T, int N>
        [[max_total_threads_per_threadgroup(N * 32)]] kernel void k(device T* out) {
          S s = {{1, 2, 3, 4}};
          out[0] = s.both() + most + float(least);
        }
        template [[host_name("k4")]] kernel void k<float, 4>(device float*);
        """
        )
    )


def test_kernels_have_no_more_registers_than_the_threads_that_they_are_for_can_have():
    code = Library(
        HEADER
        + """
        constant constexpr uint LIMIT = 1000;
        [[max_total_threads_per_threadgroup(LIMIT)]] kernel void k(device float* x, uint i [[thread_position_in_grid]]) {
          x[i] += 1;
        }
        kernel void other(device float* x, uint i [[thread_position_in_grid]]) { x[i] += 1; }
        """
    ).compile("compute_90")
    entries = code.decode().split(".entry ")[1:]
    assert len(entries) == 4
    for entry in entries:
        is_limited = "_0(" in entry.split("\n")[0]
        assert (".maxntid 1024, 1, 1" in entry) == is_limited  # whole warps


def test_lanes_may_leave_a_function_whose_result_s_type_has_no_name():
    assert_all_compile(
        Library(
            HEADER
            + """
        auto f(float x, uint lane) {
          float y = simd_sum(x);
          if (x > 0) { y += 1; return y; }
          return y + simd_max(x);
        }
        kernel void k(device float* x, uint i [[thread_position_in_grid]]) { x[i] = f(x[i], i); }
        """
        )
    )


def test_conditions_that_look_like_declarations():
    assert_all_compile(
        Library(
            HEADER
            + """
        template <int A, int B> kernel void k(device float* x, constant int& n, uint i [[thread_position_in_grid]]) {
          if (A * B < n && int(i) >= B) { x[i] = simd_sum(x[i]); }
          if (A * B < n && n >= B) return;
          x[i] += simd_max(x[i]);
        }
        template [[host_name("k2")]] kernel void k<2, 3>(device float*, constant int&, uint);
        """
        )
    )


def test_types_may_be_made_of_kernels_that_are_not_compiled():
    source = """
    template <typename T> inline T f(T x) { return simd_sum(x); }
    template <typename T> kernel void k(device T* x, uint i [[thread_position_in_grid]]) { x[i] = f(x[i]); }
    typedef decltype(k<float>) k_t;
    template [[host_name("one")]] kernel k_t k<float>;
    template <typename T> kernel void l(device T* x, uint i [[thread_position_in_grid]]) { x[i] = f(x[i]) + 1; }
    typedef decltype(l<float>) l_t;
    template [[host_name("other")]] kernel l_t l<float>;
    """
    assert_all_compile(Library(HEADER + source, kernels=["one"]))


def test_a_power_of_two_that_may_be_fast_is_one_instruction():
    source = "kernel void k(device float* x, uint i [[thread_position_in_grid]]) { x[i] = NAME::exp2(x[i]); }"
    texts = {
        name: Library(HEADER + source.replace("NAME", name)).compile("compute_90").decode()
        for name in ("fast", "precise")
    }
    # The other one multiplies where the result is denormal.
    assert "ex2.approx.ftz.f32" in texts["fast"] and "ex2.approx.f32" in texts["precise"]


@pytest.mark.full
def test_thread_values_at_program_scope_and_async_copies():
    for source in (test_thread_values.SOURCE, test_async_copies.DECLARED):
        assert_all_compile(Library(HEADER + source))
