"""What the driver is asked for and given. This needs NVRTC and no GPU: see recorded.py."""

import struct
import threading

import pytest
import torch
from metalops.cuda import compile_shader, nvrtc
from metalops.cuda.function import LAUNCH_BYTES
from metalops.cuda.library import Library
from metalops.msl.source import languages

from tests.tensorops import products

from .recorded import needs_nvrtc

pytestmark = needs_nvrtc

SCALE = """
kernel void scale(device float* out, device const float* x, constant float& a, uint i [[thread_position_in_grid]]) {
  out[i] = a * x[i];
}
"""


def pointers(*tensors):
    return [struct.pack("Q", t.data_ptr()) for t in tensors]


def test_a_line_of_aligned_tensors_is_passed_one_by_one(recorder):
    x, out = torch.ones(1000), torch.zeros(1000)
    compile_shader(SCALE).scale(out, x, 3.0)
    (launch,) = recorder.launches
    assert recorder.contexts == {0}
    assert launch.function == "msl_fast_0"
    assert (launch.blocks, launch.block, launch.shared) == ((4, 1, 1), (256, 1, 1), 0)
    assert launch.extent == ((1000, 1, 1), (256, 1, 1), (4, 1, 1), (0, 0, 0))
    assert launch.parameters[1:] == [*pointers(out, x), struct.pack("f", 3)]


@pytest.mark.parametrize(
    ("values", "grid", "group"),
    [
        (lambda x: [x, x, 3.0], 100, 100),
        (lambda x: [x, x[4:], 3.0], 100, 100),
        (lambda x: [x[1:], torch.ones(100), 3.0], 100, 100),
        (lambda x: [x, torch.ones(100), 3.0], (10, 10), (10, 10)),
    ],
    ids=["same", "overlapping", "unaligned", "two dimensions"],
)
def test_other_launches_are_passed_in_one_piece(recorder, values, grid, group):
    arguments = values(torch.ones(200))
    compile_shader(SCALE).scale(*arguments, threads=grid, group_size=group)
    (launch,) = recorder.launches
    assert launch.function == "msl_kernel_0"
    (given,) = launch.parameters
    assert len(given) == LAUNCH_BYTES
    inlined = struct.unpack_from("I", given, 48)[0]
    out, x, a = struct.unpack_from("3Q", given, 176)
    assert (out, x, a) == (arguments[0].data_ptr(), arguments[1].data_ptr(), 0)
    assert inlined == 4
    assert struct.unpack_from("f", given, 432) == (3,)


def test_values_may_be_longer_than_their_types_but_not_shorter(recorder):
    source = "kernel void k(device int* o, constant int& a) { o[0] = a; }"
    kernel, out = compile_shader(source).k, torch.zeros(1, dtype=torch.int32)
    kernel(out, 3 << 32 | 7)
    kernel(out, True)
    kernel(out, 3, arg_casts={1: "int8"})
    functions = [launch.function for launch in recorder.launches]
    assert functions == ["msl_fast_0", "msl_fast_0", "msl_kernel_0"]
    values = [launch.parameters[2] for launch in recorder.launches[:2]]
    assert values == [struct.pack("i", 7), struct.pack("i", 1)]


STRIDED = """
kernel void rows(device float* out, device const float* x, constant long* strides, constant uint2& n,
                 uint2 i [[thread_position_in_grid]]) {
  out[i.y * n.x + i.x] = x[i.y * strides[1] + i.x * strides[0]];
}
"""


@pytest.mark.parametrize("grid", [(10, 10), (100, 1)])
def test_constant_numbers_come_with_the_launch(recorder, grid):
    x, out = torch.ones(200), torch.zeros(100)
    strides, n = struct.pack("2q", 1, 20), struct.pack("2I", 10, 10)
    Library(STRIDED).launch("rows", [out, x, strides, n], grid, (10, 1))
    (launch,) = recorder.launches
    assert launch.function == "msl_brings_0"
    assert launch.parameters[1:] == [*pointers(out, x), strides.ljust(128, b"\0"), n]


def test_constant_numbers_in_a_tensor_are_passed_by_address(recorder):
    x, out, strides = torch.ones(200), torch.zeros(100), torch.tensor([1, 20])
    n = struct.pack("2I", 100, 1)
    library = Library(STRIDED)
    library.launch("rows", [out, x, strides, n], 100, 10)
    library.launch("rows", [out, x, strides, n], (10, 10), (10, 1))
    library.launch("rows", [out, x, bytes(136), n], 100, 10)
    assert [launch.function for launch in recorder.launches] == [
        "msl_fast_0",
        "msl_kernel_0",
        "msl_kernel_0",
    ]


def test_values_that_are_too_long_for_a_launch_are_written_to_memory_by_launches_before_it(
    recorder,
):
    source = "kernel void k(device float* o, constant float* x, uint i [[thread_position_in_grid]]) { o[i] = x[i]; }"
    values = [float(i) for i in range(2001)]
    compile_shader(source).k(torch.zeros(2001), values)
    *parts, launch = recorder.launches
    assert [part.function for part in parts] == ["msl_fast_0"] * 3
    assert [part.blocks[0] * part.block[0] for part in parts] == [240, 240, 21]
    starts = [struct.unpack("Q", part.parameters[1])[0] for part in parts]
    assert [start - starts[0] for start in starts] == [0, 3840, 7680]
    written = b"".join(part.parameters[2] for part in parts)
    assert written[: 4 * 2001] == struct.pack("2001f", *values)
    assert struct.unpack_from("2Q", launch.parameters[0], 176)[1] == starts[0]
    assert struct.unpack_from("I", launch.parameters[0], 48) == (0,)


def test_threads_of_kernels_with_matrices_come_as_lines_of_whole_warps(recorder):
    source = """#include <metal_stdlib>
    using namespace metal;
    kernel void k(device float* x, uint2 t [[thread_position_in_threadgroup]]) {
      simdgroup_float8x8 m(1.0f);
      simdgroup_store(m, x);
      x[64 + t.x] = t.y;
    }"""
    for group in ((32, 4), (10, 4)):
        compile_shader(source).k(torch.zeros(200), threads=(64, 8), group_size=group)
    assert [(launch.block, launch.extent[1]) for launch in recorder.launches] == [
        ((128, 1, 1), (32, 4, 1)),
        ((64, 1, 1), (10, 4, 1)),
    ]


@pytest.mark.parametrize(
    ("group", "smaller"), [((1024,), (256, 1, 1)), ((32, 32), (32, 8, 1)), ((64,), (64, 1, 1))]
)
def test_groups_that_threads_cannot_tell_apart_are_of_a_usual_size(recorder, group, smaller):
    x, out = torch.ones(4096), torch.zeros(4096)
    Library(SCALE).launch("scale", [out, x, bytes(4)], (2048, 2)[: len(group)], group)
    (launch,) = recorder.launches
    assert launch.block == smaller
    assert launch.extent[1] == smaller


def test_groups_that_registers_do_not_allow_are_smaller_where_threads_cannot_tell(recorder):
    recorder.most_threads = 640
    x, out = torch.ones(4096), torch.zeros(4096)
    Library(SCALE).launch("scale", [out, x, bytes(4)], 4096, 1024)
    assert recorder.launches[0].block == (256, 1, 1)


def test_other_groups_are_as_large_as_was_said(recorder):
    source = """
    kernel void k(device int* out, uint i [[thread_position_in_grid]], uint g [[threadgroup_position_in_grid]]) {
      out[i] = g;
    }
    kernel void summed(device int* out, uint i [[thread_position_in_grid]]) { out[i] = metal::simd_sum(1); }
    """
    library = Library("#include <metal_stdlib>\n" + source)
    for name in ("k", "summed"):
        library.launch(name, [torch.zeros(2048, dtype=torch.int32)], 2048, 1024)
    assert [launch.block for launch in recorder.launches] == [(1024, 1, 1)] * 2


def test_inputs_may_be_the_same(recorder):
    source = "kernel void k(device float* o, device const float* x, device const float* y) { o[0] = x[0] + y[0]; }"
    x = torch.ones(4)
    compile_shader(source).k(torch.zeros(1), x, x)
    assert recorder.launches[0].function == "msl_fast_0"


def test_what_earlier_launches_passed_is_not_passed_again(recorder):
    source = """
    kernel void k(device int* a, device int* b, constant int* c, threadgroup int* d [[threadgroup(0)]],
                  threadgroup int* e [[threadgroup(1)]]) {
      a[0] = c[0] + d[0] + e[0]; b[0] = 1;
    }"""
    library = Library(source)
    a, b = torch.zeros(1), torch.zeros(1)
    library.launch("k", [a, b, b"1234"], 1, 1, {0: 20, 1: 40_000})
    library.launch("k", [a], 2, 1, {0: 16, 1: 60_000})
    first, second = [launch.parameters[0] for launch in recorder.launches]
    assert [launch.shared for launch in recorder.launches] == [32 + 40_000, 16 + 60_000]
    assert struct.unpack_from("3I", first, 48) == (4, 0, 32)
    assert struct.unpack_from("3I", second, 48) == (0, 0, 16)
    assert struct.unpack_from("3Q", first, 176) == (a.data_ptr(), b.data_ptr(), 0)
    assert struct.unpack_from("3Q", second, 176) == (a.data_ptr(), 0, 0)
    assert recorder.allowed == {"msl_kernel_0": 60_016}


def test_launches_bring_shared_memory_and_maps_of_their_matrices(recorder, monkeypatch):
    source = products.HEADER + products.Product("half", "half", m=64, n=64, simdgroups=4).text()
    library = Library(source, language=languages.LANGUAGES["4.0"])
    facts = nvrtc.LaunchFacts(60_000)
    monkeypatch.setattr("metalops.cuda.nvrtc.launch_facts", lambda code, kernel: facts)
    a, b, c = (torch.zeros(64, 64, dtype=t) for t in (torch.half, torch.half, torch.float))
    asked = []

    def copy_map(*matrix):
        asked.append(matrix)
        return bytes([len(asked)]) * 128

    monkeypatch.setattr("metalops.cuda.copy_maps.driver.copy_map", copy_map)
    sizes = [struct.pack("i", 64)] * 3
    (name,) = library.kernel_names
    for grid in ((128, 2), 128):
        library.launch(name, [a, b, c, *sizes], grid, 128)
    # Those of 16 bits first, and columns in units of two bytes.
    expected = [(x.data_ptr(), 64, 32 * x.element_size(), 64 * x.element_size()) for x in (a, b, c)]
    assert asked == [(*matrix, rows) for rows in (64, 16) for matrix in expected]
    assert recorder.allowed == dict.fromkeys(["msl_kernel_0", "msl_fast_0"], 60_000)
    for launch in recorder.launches:
        assert launch.shared == 60_000
        maps = launch.parameters[-1]
        assert [maps[i * 128] for i in range(16)] == [1, 2, 3, *[0] * 5, 4, 5, 6, *[0] * 5]
        matrices = [struct.unpack_from("<2Q2I", maps, 2048 + 24 * i) for i in range(3)]
        assert matrices == [(at, stride, width, rows) for at, rows, width, stride in expected]
        assert struct.unpack_from("<I", maps, 2048 + 8 * 24) == (3,)


def test_grids_of_more_groups_than_a_gpu_counts_are_launched_in_parts(recorder):
    kernel = compile_shader(SCALE).scale
    x, out = torch.ones(4), torch.zeros(4)
    grid, group = (10, 70_000, 2), (4, 1, 1)
    kernel(out, x, 1.0, threads=grid, group_size=group)
    groups = (3, 70_000, 2)
    assert [(launch.blocks, launch.extent) for launch in recorder.launches] == [
        ((3, 65_535, 2), (grid, group, groups, (0, 0, 0))),
        ((3, 4_465, 2), (grid, group, groups, (0, 65_535, 0))),
    ]
    assert recorder.launches[0].parameters[0][48:] == recorder.launches[1].parameters[0][48:]


def test_lines_of_more_than_2_to_the_31_groups(recorder):
    source = "kernel void k(device int* o, uint g [[threadgroup_position_in_grid]]) { o[0] = g; }"
    compile_shader(source).k(torch.zeros(1), threads=2**32 - 1, group_size=1)
    assert [launch.function for launch in recorder.launches] == ["msl_fast_0"] * 3
    assert [(launch.blocks[0], launch.extent[3]) for launch in recorder.launches] == [
        (2**31 - 1, (0, 0, 0)),
        (2**31 - 1, (2**31 - 1, 0, 0)),
        (1, (2**32 - 2, 0, 0)),
    ]


def test_a_grid_without_threads_launches_nothing(recorder):
    compile_shader(SCALE).scale(torch.zeros(0), torch.zeros(0), 1.0)
    compile_shader(SCALE).scale(
        torch.zeros(1), torch.zeros(1), 1.0, threads=(4, 0), group_size=(1, 1)
    )
    assert recorder.launches == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 8, "group_size": 2000}, "groups of 1 to 1024 threads"),
        ({"threads": 8, "group_size": 0}, "groups of 1 to 1024 threads"),
        ({"threads": 2**32, "group_size": 1}, "integers below 2"),
        ({"threads": -1, "group_size": 1}, "integers below 2"),
    ],
)
def test_sizes_that_no_launch_has(recorder, options, message):
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            compile_shader(SCALE).scale(torch.zeros(8), torch.zeros(8), 1.0, **options)
    with pytest.raises(RuntimeError, match="same number of dimensions, got 2 and 1"):
        compile_shader(SCALE).scale(
            torch.zeros(8), torch.zeros(8), 1.0, threads=(8, 8), group_size=8
        )
    assert recorder.launches == []


def test_open_group_sizes_are_256_threads_or_what_the_kernel_takes(recorder):
    x = torch.zeros(1 << 20)
    compile_shader(SCALE).scale(x, x, 1.0)
    compile_shader(SCALE).scale(x, x, 1.0, threads=(100, 50, 2))
    limited = "[[max_total_threads_per_threadgroup(64)]]" + SCALE
    compile_shader(limited).scale(x, x, 1.0)
    assert [launch.block for launch in recorder.launches] == [(256, 1, 1), (100, 2, 1), (64, 1, 1)]


def test_threads_do_not_share_what_a_launch_passes(recorder):
    kernel = compile_shader(SCALE).scale
    tensors = [torch.zeros(16) for _ in range(8)]
    kernel(tensors[0], tensors[1], 1.0)

    def run(n):
        for _ in range(200):
            kernel(tensors[n], tensors[4 + n], float(n))

    workers = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seen = {tuple(launch.parameters[1:]) for launch in recorder.launches[1:]}
    expected = {(*pointers(tensors[n], tensors[4 + n]), struct.pack("f", n)) for n in range(4)}
    assert seen == expected
