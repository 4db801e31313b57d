"""torch.mps.compile_shader: kernels called from Python, with torch's argument rules, defaults and errors."""

import threading

import metalops
import pytest
import torch

from .common import software_device_only

SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void full(device float* out, constant float& value, uint i [[thread_position_in_grid]]) {
  out[i] = value;
}

kernel void add_long(device long* out, constant long* values, uint i [[thread_position_in_grid]]) {
  out[i] += values[i];
}

kernel void copy_half(device float* out, constant half* in, uint i [[thread_position_in_grid]]) {
  out[i] = in[i];
}
kernel void copy_bfloat(device float* out, constant bfloat* in, uint i [[thread_position_in_grid]]) {
  out[i] = in[i];
}
kernel void copy_int(device float* out, constant int* in, uint i [[thread_position_in_grid]]) {
  out[i] = in[i];
}
kernel void copy_short(device float* out, constant short* in, uint i [[thread_position_in_grid]]) {
  out[i] = in[i];
}
kernel void copy_char(device float* out, constant char* in, uint i [[thread_position_in_grid]]) {
  out[i] = in[i];
}
kernel void copy_uchar(device float* out, constant uchar* in, uint i [[thread_position_in_grid]]) {
  out[i] = in[i];
}
kernel void copy_float(device float* out, constant float* in, uint i [[thread_position_in_grid]]) {
  out[i] = in[i];
}
kernel void scaled_by_both(
    device float* out, constant char& first, constant half& second, uint i [[thread_position_in_grid]]) {
  out[i] = first * float(second);
}

struct Pointers { device float* at[2]; };
kernel void swap(constant Pointers& tensors, uint i [[thread_position_in_grid]]) {
  const float kept = tensors.at[0][i];
  tensors.at[0][i] = tensors.at[1][i];
  tensors.at[1][i] = kept;
}

kernel void positions(
    device int* out,
    uint3 position [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]],
    uint3 group [[threads_per_threadgroup]],
    uint3 groups [[threadgroups_per_grid]]) {
  const uint i = (position.z * threads.y + position.y) * threads.x + position.x;
  out[4 * i] = threads.x * 10000 + threads.y * 100 + threads.z;
  out[4 * i + 1] = group.x * 10000 + group.y * 100 + group.z;
  out[4 * i + 2] = groups.x * 10000 + groups.y * 100 + groups.z;
  out[4 * i + 3] = position.x * 10000 + position.y * 100 + position.z;
}

kernel void group_sum(
    device float* out,
    constant float* in,
    uint i [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint group [[threadgroup_position_in_grid]]) {
  const float sum = simd_sum(in[i]);
  if (lane == 0) out[group] = sum;
}

kernel void with_scratch(device float* out, uint i [[thread_index_in_threadgroup]]) {
  threadgroup float scratch[100];
  if (i < 100) scratch[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i < 100) out[i] = scratch[99 - i];
}

[[max_total_threads_per_threadgroup(64)]]
kernel void small_groups(device float* out, uint i [[thread_position_in_grid]]) { out[i] = i; }
"""


@pytest.fixture(scope="module")
def lib():
    return torch.mps.compile_shader(SOURCE)


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device="mps")


def test_the_example_of_torchs_documentation():
    source = """kernel void full(device float* out, constant float& val, uint idx [[thread_position_in_grid]]) {
      out[idx] = val;
    }"""
    x = zeros(16)
    assert torch.mps.compile_shader(source).full(x, 3.14) is None
    assert torch.equal(x.cpu(), torch.full((16,), 3.14))


def test_dir_lists_the_kernels_and_nothing_else(lib):
    assert sorted(dir(lib)) == sorted(
        line.split("(")[0].split()[-1]
        for line in SOURCE.split("kernel void ")[1:]
        for line in [line.split("(")[0]]
    )


def test_an_unknown_kernel(lib):
    with pytest.raises(RuntimeError, match="Failed to create function state object for: missing"):
        lib.missing  # noqa: B018


def test_an_unknown_kernel_with_names_like_it():
    kernels = "".join(
        f"kernel void {name}(device int* x) {{}}" for name in ("blur", "blurs", "sharpen")
    )
    library = torch.mps.compile_shader(kernels)
    message = "Failed to create function state object for: {}"
    with pytest.raises(RuntimeError, match=message.format(r"blurr, did you mean blur or blurs\?$")):
        library.blurr  # noqa: B018
    with pytest.raises(RuntimeError, match=message.format(r"sharpem, did you mean sharpen\?$")):
        library.sharpem  # noqa: B018
    with pytest.raises(RuntimeError, match=message.format("edges$")):
        library.edges  # noqa: B018


def test_a_kernel_outlives_its_library():
    kernel = torch.mps.compile_shader("kernel void one(device int* x) { x[0] = 1; }").one
    x = zeros(1, dtype=torch.int32)
    kernel(x)
    assert x.item() == 1


def test_compiling_the_same_source_twice_gives_independent_libraries():
    source = "kernel void one(device int* x) { x[0] += 1; }"
    x = zeros(1, dtype=torch.int32)
    for _ in range(2):
        torch.mps.compile_shader(source).one(x)
    assert x.item() == 2


@pytest.mark.parametrize(
    "source, line, column",
    [
        ("kernel void bad(device float* x) {\n  x[0] = undeclared_name;\n}", 2, 10),
        ("// a comment\n\nkernel void bad(device float* x) {\n  int y = ;\n}", 4, 11),
    ],
)
def test_wrong_source_is_a_syntax_error_with_metals_text(source, line, column):
    with pytest.raises(SyntaxError, match=rf"program_source:{line}:{column}: error: ") as caught:
        torch.mps.compile_shader(source)
    assert (caught.value.lineno, caught.value.offset) == (line, column)


@pytest.mark.parametrize("source", [5, None, b"kernel void k() {}", ["kernel void k() {}"]])
def test_a_source_that_is_no_string_is_a_type_error(source):
    with pytest.raises(TypeError, match=f"'source' must be str, not {type(source).__name__}"):
        torch.mps.compile_shader(source)


def test_an_error_below_an_include_is_at_the_line_that_the_user_wrote():
    source = "#include <c10/metal/utils.h>\nkernel void k(device float* x) {\n  x[0] = missing;\n}"
    with pytest.raises(SyntaxError, match=r"^program_source:3:10: error: .*missing"):
        torch.mps.compile_shader(source)


@pytest.mark.parametrize(
    ("setting", "expected"), [(None, "0"), ("0", "0"), ("1", "1"), ("yes", "1"), ("", "1")]
)
def test_the_fast_math_mode_is_chosen_as_on_a_mac(setting, expected, monkeypatch):
    monkeypatch.delenv("PYTORCH_MPS_FAST_MATH", raising=False)
    if setting is not None:
        monkeypatch.setenv("PYTORCH_MPS_FAST_MATH", setting)
    source = """
    #ifndef __FAST_MATH__
    #define __FAST_MATH__ 0
    #endif
    kernel void mode(device int* out) { out[0] = __FAST_MATH__; }"""
    x = zeros(1, dtype=torch.int32)
    torch.mps.compile_shader(source).mode(x)
    assert x.item() == int(expected)


def test_headers_of_torch_are_found():
    source = """
    #include <c10/metal/utils.h>
    kernel void run(device float* out, uint i [[thread_position_in_grid]]) {
      out[i] = c10::metal::max(float(i), 2.0);
    }"""
    x = zeros(4)
    torch.mps.compile_shader(source).run(x)
    assert x.tolist() == [2, 2, 2, 3]


def test_a_tensor_is_its_storage_at_its_offset(lib):
    base = zeros(4, 6)
    view = base.t()[
        1:, 2:
    ]  # starts at element 13; 20 elements follow it in the storage's own order
    lib.full(view, 7.0, threads=3)
    assert base.flatten().nonzero().flatten().tolist() == [13, 14, 15]


def test_threads_default_to_the_elements_of_the_first_tensor(lib):
    out = zeros(8)
    lib.copy_float(out[:5], torch.ones(8, device="mps"))
    assert out.tolist() == [1] * 5 + [0] * 3


def test_a_cpu_tensor_is_refused(lib):
    with pytest.raises(RuntimeError, match="Passed CPU tensor to MPS op"):
        lib.full(torch.zeros(3), 1.0)
    with pytest.raises(RuntimeError, match="Passed CPU tensor to MPS op"):
        lib.swap([zeros(2), torch.zeros(2)], threads=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_0d_cpu_tensor_is_a_number(lib, dtype):
    out = zeros(3)
    lib.full(out, torch.tensor(2.5, dtype=dtype))
    assert out.tolist() == [2.5] * 3


def test_integers_are_64_bit_and_floats_32_bit(lib):
    out = zeros(1, dtype=torch.int64)
    lib.add_long(out, 1 << 40)
    lib.add_long(out, True)
    assert out.item() == (1 << 40) + 1
    x = zeros(2)
    lib.full(x, 0.1)
    assert torch.equal(x.cpu(), torch.full((2,), 0.1))


@pytest.mark.parametrize("sequence", [list, tuple])
def test_sequences_of_numbers(lib, sequence):
    out = zeros(3, dtype=torch.int64)
    lib.add_long(out, sequence([5, -1, 1 << 33]))
    assert out.tolist() == [5, -1, 1 << 33]
    x = zeros(3)
    lib.copy_float(x, sequence([0.5, 2.0, -3.0]))
    assert x.tolist() == [0.5, 2, -3]


def test_a_list_of_tensors_is_an_array_of_addresses(lib):
    a, b = torch.arange(5.0, device="mps"), zeros(9)
    lib.swap([a, b[4:]], threads=5)
    assert a.tolist() == [0] * 5
    assert b.tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "cast, kernel",
    [
        ("fp16", "copy_half"),
        ("bf16", "copy_bfloat"),
        ("int32", "copy_int"),
        ("int16", "copy_short"),
        ("int8", "copy_char"),
        ("uint8", "copy_uchar"),
    ],
)
def test_arg_casts(lib, cast, kernel):
    for values in ([3, 1, 100], [3.0, 1.0, 100.0]):
        for casts in (cast, {1: cast}):
            out = zeros(3)
            getattr(lib, kernel)(out, values, arg_casts=casts)
            assert out.tolist() == [3, 1, 100]
    out = zeros(1)
    getattr(lib, kernel)(out, 7, arg_casts=cast)
    assert out.item() == 7


def test_arg_casts_by_index(lib):
    out = zeros(2)
    lib.scaled_by_both(out, 3, 0.5, arg_casts={1: "int8", 2: "fp16"})
    assert out.tolist() == [1.5, 1.5]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda lib, x: lib.full(x, []), "Empty list/tuple can not be an argument to metal kernel"),
        (lambda lib, x: lib.full(x, ()), "Empty list/tuple can not be an argument to metal kernel"),
        (lambda lib, x: lib.full(x, ["a"]), "Unexpected argument types"),
        (lambda lib, x: lib.full(x, "a"), "Unsupported argument type"),
        (lambda lib, x: lib.full(x, None), "Unsupported argument type"),
        (lambda lib, x: lib.full(x, 1j), "Unsupported argument type"),
        (lambda lib, x: lib.full(x, 1.0, arg_casts="fp8"), "Unsupported cast instruction fp8"),
        (lambda lib, x: lib.full(x, 1.0, arg_casts={1: "f"}), "Unsupported cast instruction"),
        (lambda lib, x: lib.full(x, 1.0, arg_casts=1), "Unexpected caster arg type int"),
        (lambda lib, x: lib.full(1.0, 1.0), "Number of threads is undefined"),
        (lambda lib, x: lib.full(x, 1.0, threads=[]), r"1 to 3|vec.size\(\)"),
        (lambda lib, x: lib.full(x, 1.0, threads=[1, 1, 1, 1]), r"1 to 3|vec.size\(\)"),
        (
            lambda lib, x: lib.full(x, 1.0, threads=[2, 2], group_size=2),
            r"same number|threads->size\(\)",
        ),
        (
            lambda lib, x: lib.full(x, 1.0, threads=4, group_size=[2, 2]),
            r"same number|threads->size\(\)",
        ),
    ],
)
def test_wrong_arguments(lib, call, message):
    x = zeros(3)
    with pytest.raises(RuntimeError, match=message):
        call(lib, x)
    lib.full(x, 1.0)
    assert x.tolist() == [1, 1, 1]


@software_device_only
@pytest.mark.parametrize(
    "call, message",
    [
        (lambda lib, x: lib.full(x), "nothing is bound to buffer 1"),
        (lambda lib, x: lib.full(x, [1.0] * 1025), "at most 4096 bytes by value"),
        (lambda lib, x: lib.full(x, *[1.0] * 31), "buffers 0 to 30"),
        (lambda lib, x: lib.full(x, 1.0, threads=1 << 33), "exceeds 32 bits"),
    ],
)
def test_what_metal_itself_would_not_survive(lib, call, message):
    test_wrong_arguments(lib, call, message)


@software_device_only
def test_a_threadgroup_argument_is_refused_if_it_is_used():
    source = """kernel void run(device float* out, threadgroup float* scratch [[threadgroup(0)]]) { BODY }"""
    used = source.replace("BODY", "scratch[0] = 2; out[0] = scratch[0];")
    with pytest.raises(RuntimeError, match="'scratch' cannot be set from torch"):
        torch.mps.compile_shader(used).run(zeros(1))
    x = zeros(1)
    torch.mps.compile_shader(source.replace("BODY", "out[0] = 1;")).run(x)
    assert x.item() == 1


@software_device_only
def test_a_comment_in_another_language():
    source = "// größer, 大きい\nkernel void run(device float* out) { out[0] = 1; }"
    x = zeros(1)
    torch.mps.compile_shader(source).run(x)
    assert x.item() == 1


def test_only_the_named_options_are_keywords(lib):
    with pytest.raises(TypeError):
        lib.full(zeros(3), value=1.0)


@pytest.mark.parametrize(
    "threads, group_size, error",
    [
        (2048, 1025, "exceeds 1024 limit"),
        ([64, 64], [64, 17], "exceeds 1024 limit"),
        ([8, 8, 8], [1024, 1, 2], "exceeds 1024 limit"),
        pytest.param(
            [8, 8, 8], [1 << 32, 1 << 32, 1], "exceeds 1024 limit", marks=software_device_only
        ),
        pytest.param(8, 0, "must be positive", marks=software_device_only),
    ],
)
def test_group_sizes_out_of_range(lib, threads, group_size, error):
    with pytest.raises(ValueError, match=error):
        lib.positions(zeros(4, dtype=torch.int32), threads=threads, group_size=group_size)


def test_a_kernels_own_limit(lib):
    assert lib.small_groups.max_threads_per_threadgroup == 64
    x = zeros(100)
    lib.small_groups(x)
    assert x.tolist() == list(range(100))
    with pytest.raises(ValueError, match="Threadgroup size exceeds 64 limit"):
        lib.small_groups(x, group_size=65)


@pytest.mark.parametrize(
    "threads, group_size, groups_of",
    [
        (10, None, (10, 1, 1)),
        (3000, None, (1024, 1, 1)),
        (10, 4, (4, 1, 1)),
        ([10], [4], (4, 1, 1)),
        ([6, 5], None, (1024, 1, 1)),
        ([6, 5], [4, 2], (4, 2, 1)),
        ([6, 5, 4], None, (1024, 1, 1)),
        ([6, 5, 4], [4, 2, 3], (4, 2, 3)),
    ],
)
def test_grids_and_partial_groups(lib, threads, group_size, groups_of):
    grid = (*([threads] if isinstance(threads, int) else threads), 1, 1)[:3]
    x, y, z = grid
    out = zeros(z, y, x, 4, dtype=torch.int32)
    lib.positions(out, threads=threads, group_size=group_size)
    code = lambda triple: triple[0] * 10000 + triple[1] * 100 + triple[2]
    groups = tuple(-(-n // g) for n, g in zip(grid, groups_of))
    for k in range(z):
        for j in range(y):
            for i in range(x):
                place = (i, j, k)
                # The last group along an axis is as small as what is left.
                actual = [min(g, n - p // g * g) for g, n, p in zip(groups_of, grid, place)]
                if x > 1000 and i % 100:
                    continue
                assert out[k, j, i].tolist() == [
                    code(grid),
                    code(actual),
                    code(groups),
                    code(place),
                ]


def test_no_threads_do_nothing(lib):
    x = zeros(3)
    lib.full(x, 1.0, threads=0)
    lib.full(zeros(0), 1.0)
    assert x.tolist() == [0, 0, 0]


def test_attributes(lib):
    assert lib.full.max_threads_per_threadgroup == 1024
    assert lib.full.thread_execution_width == 32
    assert lib.full.static_thread_group_memory_length == 0
    assert lib.with_scratch.static_thread_group_memory_length == 400


def test_threadgroup_memory_and_barriers(lib):
    out = zeros(100)
    lib.with_scratch(out, threads=128, group_size=128)
    assert out.tolist() == list(range(99, -1, -1))


def test_a_simd_sum_over_28_lanes(lib):
    x, out = torch.arange(56.0, device="mps"), zeros(2)
    lib.group_sum(out, x, threads=56, group_size=28)
    assert out.tolist() == [sum(range(28)), sum(range(28, 56))]


def test_kernels_run_in_threads(lib):
    results = [zeros(50) for _ in range(4)]

    def work(out, value):
        for _ in range(300):
            lib.full(out, value)

    threads = [
        threading.Thread(target=work, args=(out, float(value))) for value, out in enumerate(results)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [out.unique().tolist() for out in results] == [[0], [1], [2], [3]]


@software_device_only
def test_using_a_kernel_that_needs_what_the_device_lacks_says_why():
    library = torch.mps.compile_shader("""
        #include <metal_stdlib>
        using namespace metal;
        kernel void one(device float* out) { out[0] = 1; }
        kernel void trace(raytracing::instance_acceleration_structure scene, device float* out) { out[0] = 1; }
    """)
    assert dir(library) == ["one"]
    message = (
        "Failed to create function state object for: trace. The software device leaves it out because of ray tracing "
        "(instance_acceleration_structure)"
    )
    with pytest.raises(RuntimeError) as raised:
        _ = library.trace
    assert str(raised.value).splitlines()[0] == message


SWITCHED = """
#include <metal_stdlib>
using namespace metal;
constant bool adds [[function_constant(0)]];
constant int mode [[function_constant(1)]];
constant bool scales = mode > 0;
kernel void k(device float* out [[buffer(0)]],
              device float* extra [[buffer(1), function_constant(adds)]],
              constant float& scale [[buffer(2), function_constant(scales)]],
              uint i [[thread_position_in_grid]]) {
  if (adds) out[i] += extra[i];
  if (scales) out[i] *= scale;
}
"""


def test_arguments_that_a_function_constant_switches_off_need_no_buffer():
    out = torch.ones(3, device="mps")
    metalops.compile_shader(SWITCHED, constants={"adds": False, "mode": 0}).k(out)
    assert out.tolist() == [1, 1, 1]
    metalops.compile_shader(SWITCHED, constants={"adds": True, "mode": 0}).k(out, out)
    assert out.tolist() == [2, 2, 2]
    metalops.compile_shader(SWITCHED, constants={"adds": False, "mode": 1}).k(out, out, 3.0)
    assert out.tolist() == [6, 6, 6]


@software_device_only
def test_an_argument_that_is_switched_on_needs_its_buffer():
    out = torch.ones(3, device="mps")
    shader = metalops.compile_shader(SWITCHED, constants={"adds": True, "mode": 0})
    with pytest.raises(
        RuntimeError, match=r"nothing is bound to buffer 1 \('device float \* extra'\)"
    ):
        shader.k(out)
