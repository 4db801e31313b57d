"""Kernels on a GPU: launches, streams, graphs, errors, caching, and kernels of Python against torch.

This needs a GPU and nothing that is compiled: in a source tree, `PYTHONPATH=python pytest --noconftest tests/cuda/test_launch.py`.
"""

import ctypes
import importlib
import struct
import threading
import time
from pathlib import Path

import metalops
import pytest
import torch
from metalops import cuda, ops
from metalops.cuda import compile_shader, nvrtc
from metalops.cuda.library import Library

from tests.cuda import simdgroup_operators
from tests.cuda.simdgroup_operators import NOTING
from tests.fuzz import programs

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no NVIDIA GPU, or torch has no CUDA"
)

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
MATRICES = "\ntypedef metal::simdgroup_half8x8 Unused;\n"
SOURCE = (
    HEADER
    + """
#include <c10/metal/error.h>
kernel void scale(device float* out, device const float* x, constant float& a, uint i [[thread_position_in_grid]]) {
  out[i] = a * x[i];
}
kernel void shift(device float* out, device const float* x, uint i [[thread_position_in_grid]],
                  uint n [[threads_per_grid]]) {
  const float next = x[(i + 1) % n];
  threadgroup_barrier(mem_flags::mem_device);
  out[i] = next;
}
kernel void mark(device uint* out, uint3 p [[thread_position_in_grid]], uint3 n [[threads_per_grid]]) {
  out[(p.z * n.y + p.y) * n.x + p.x] += p.x + 1000 * p.y + 100000000 * p.z;
}
kernel void ends(device uint* out, uint p [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
  if (p == n / 2) out[0] = p;
  if (p == n - 1) out[1] = p;
}
kernel void count(device atomic_uint* total, uint3 p [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(total, 1, memory_order_relaxed);
}
kernel void reversed(device float* out, device const float* x, constant uint& n, threadgroup float* s [[threadgroup(0)]],
                     uint t [[thread_index_in_threadgroup]], uint size [[threads_per_threadgroup]]) {
  for (uint i = t; i < n; i += size) s[i] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = t; i < n; i += size) out[i] = s[n - 1 - i];
}
kernel void sum_of_all(device const float* const* inputs, device float* out, constant uint& count,
                       uint i [[thread_position_in_grid]]) {
  float s = 0;
  for (uint k = 0; k < count; ++k) s += inputs[k][i];
  out[i] = s;
}
kernel void read(device float* out, constant float* table, uint i [[thread_position_in_grid]]) { out[i] = table[i]; }
kernel void check(device int* out, constant int& limit, device c10::metal::ErrorMessages* errors,
                  uint i [[thread_position_in_grid]]) {
  if (int(i) >= limit) {
    TORCH_REPORT_ERROR(errors, "index ", int(i), " is out of bounds for size ", limit);
    return;
  }
  out[i] = i;
}
constant int offset [[function_constant(0)]];
constant bool negated [[function_constant(3)]];
constant float factor = is_function_constant_defined(offset) ? 0.5f : 2.0f;
kernel void specialised(device float* x, uint i [[thread_position_in_grid]]) {
  x[i] = (negated ? -1.0f : 1.0f) * factor * float(i) + float(offset);
}
"""
)


@pytest.fixture(scope="module")
def shader():
    return compile_shader(SOURCE)


@pytest.fixture(scope="module")
def library(shader):
    return shader._library


def random(*shape, **options):
    return torch.randn(*shape, device="cuda", **options)


# ---- launches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 31, 256, 257, 100_003])
@pytest.mark.parametrize("start", [0, 1, 4], ids="from {}".format)
def test_lines(shader, n, start):
    x, out = random(n + start)[start:], torch.zeros(n + start, device="cuda")[start:]
    shader.scale(out, x, 3.0)
    assert torch.equal(out, 3 * x)


def test_in_place_and_overlapping(shader):
    x = random(128)
    expected = 2 * x
    shader.scale(x, x, 2.0)
    assert torch.equal(x, expected)
    whole = random(256)
    expected = torch.roll(whole[:256], -1)
    shader.shift(whole, whole, group_size=256)
    assert torch.equal(whole, expected)


@pytest.mark.parametrize(
    ("grid", "group"),
    [
        ((70, 1, 1), (32, 1, 1)),
        ((5, 7, 3), (4, 2, 2)),
        ((9, 4, 1), (16, 8, 1)),
        ((3, 70_000, 2), (2, 1, 1)),
        ((2, 3, 70_000), (1, 1, 1)),
        ((1 << 20, 3), (1000, 1)),
        ((100, 100, 9), None),
        ((1, 2, 100), None),
    ],
    ids=str,
)
def test_grids(shader, grid, group):
    nx, ny, nz = (*grid, 1)[:3]
    out = torch.zeros(nz, ny, nx, dtype=torch.int32, device="cuda")
    shader.mark(out, threads=grid, group_size=group)
    axes = [torch.arange(n, device="cuda") for n in (nz, ny, nx)]
    z, y, x = torch.meshgrid(*axes, indexing="ij")
    expected = x + 1000 * y + 100_000_000 * z
    assert torch.equal(out.long() & 0xFFFFFFFF, expected & 0xFFFFFFFF)


def test_a_grid_of_more_than_32_bits(shader):
    total = torch.zeros(2, dtype=torch.int32, device="cuda")
    shader.count(total, threads=(1 << 16, (1 << 16) + 1), group_size=(1024, 1))
    assert total.tolist() == [1 << 16, 0]  # 2^32 + 2^16, of which 32 bits are counted


def test_a_grid_of_more_than_2_to_the_31_groups(shader):
    out, n = torch.zeros(2, dtype=torch.int64, device="cuda").view(torch.uint32), 2**32 - 2
    shader.ends(out, threads=n, group_size=1)
    assert out.tolist()[:2] == [n // 2, n - 1]


@pytest.mark.parametrize("n", [100, 12_000, 40_000])
def test_threadgroup_memory_whose_size_the_launch_says(library, n):
    x, out = random(n), torch.zeros(n, device="cuda")
    library.launch("reversed", [out, x, struct.pack("I", n)], 256, 256, {0: 4 * n})
    assert torch.equal(out, x.flip(0))


def test_argument_buffers(shader):
    inputs, out = [random(50) for _ in range(5)], torch.zeros(50, device="cuda")
    shader.sum_of_all(inputs, out, 5, threads=50)
    torch.testing.assert_close(out, torch.stack(inputs).sum(0))


@pytest.mark.parametrize("n", [3, 256, 10_000])
def test_numbers_that_come_with_the_launch(shader, n):
    values = [float(i) for i in range(n)]
    out = torch.zeros(n, device="cuda")
    shader.read(out, values)
    assert out.tolist() == values


def test_textures_in_graphs():
    """See tests/textures, which runs on GPUs, for all else."""
    source = (
        HEADER
        + """
kernel void k(texture2d<float> in, texture2d<float, access::write> out, uint2 p [[thread_position_in_grid]]) {
  out.write(in.read(p) + 1, p);
}
"""
    )
    x, y = torch.zeros(4, 4, device="cuda"), torch.zeros(4, 4, device="cuda")
    kernel = compile_shader(source).k
    kernel(metalops.texture(x), metalops.texture(y), threads=(4, 4))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(metalops.texture(x), metalops.texture(y), threads=(4, 4))
        kernel(metalops.texture(y), metalops.texture(x), threads=(4, 4))
    for _ in range(3):
        graph.replay()
    assert x.eq(6).all() and y.eq(5).all()
    with pytest.raises(RuntimeError, match="tensors are on one GPU"):
        kernel(metalops.texture(x), metalops.texture(y.cpu()), threads=(4, 4))


def test_function_constants(shader):
    def run(shader):
        x = torch.zeros(8, device="cuda")
        shader.specialised(x)
        return x.tolist()

    assert run(shader.specialise({0: 7, 3: False})) == [0.5 * i + 7 for i in range(8)]
    assert run(shader.specialise({"negated": True, "offset": -1})) == [
        -0.5 * i - 1 for i in range(8)
    ]
    assert run(shader.specialise({0: 1, 3: b"\1"})) == [1 - 0.5 * i for i in range(8)]
    with pytest.raises(ValueError, match="specialised.*(offset|negated)"):
        run(shader)


def test_wrong_launches(shader):
    x = random(8)
    with pytest.raises(RuntimeError, match="tensors are on one GPU"):
        shader.scale(x, x.cpu(), 1.0)
    with pytest.raises(ValueError, match="groups of 1 to 1024 threads"):
        shader.scale(x, x, 1.0, threads=8, group_size=2048)
    # Only a kernel that asks for its group has to have the very group that was given.
    source = "kernel void mark(device float* x, uint3 p [[thread_position_in_threadgroup]]) { x[p.z] = p.y; }"
    with pytest.raises(ValueError, match="at most 64 threads in the third dimension, got"):
        compile_shader(HEADER + source).mark(
            torch.zeros(100, device="cuda"), threads=(1, 2, 100), group_size=(1, 2, 100)
        )


@pytest.mark.parametrize(
    "more", ["", MATRICES, NOTING], ids=["", "with matrices", "with operators"]
)
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random_programs_run_as_the_model_of_a_simdgroup(first, more):
    """With matrices in the program the lanes of a warp are others of the simdgroup's; with simdgroup operations in operators all
    threads note where they are."""
    made = [programs.program_of(seed) for seed in range(first, first + 20)]
    library = Library(programs.source_of(made) + more)
    wrong = []
    for program in made:
        out = torch.zeros(programs.THREADS, dtype=torch.int32, device="cuda")
        library.launch(program.name, [out], programs.THREADS, programs.THREADS)
        expected = program.run(programs.THREADS, has_last_values=False)
        if not torch.equal(out.cpu().long() & programs.WORD, expected):
            wrong.append(program.name)
    assert wrong == []


@pytest.mark.parametrize("more", ["", MATRICES])
def test_simdgroup_operations_in_operators_are_among_the_lanes_that_are_there(more):
    shader = compile_shader(simdgroup_operators.SOURCE + more)
    results = []
    for kernel in (shader.by_operators, shader.by_functions):
        results.append(torch.zeros(330, dtype=torch.int32, device="cuda"))
        kernel(results[-1], group_size=70)
    assert torch.equal(*results) and results[0].unique().numel() > 20


# ---- simdgroup matrices --------------------------------------------------------------------------

MATRIX_TYPES = {"half": torch.float16, "bfloat": torch.bfloat16, "float": torch.float32}


def products(factors, sums):
    """Each simdgroup multiplies a strip of A, 8 rows, by B."""
    return f"""
kernel void product(device const {factors}* a, device const {factors}* b, device {sums}* c, constant int& depth,
                    constant int& columns, uint2 i [[thread_position_in_grid]], uint w [[threads_per_simdgroup]]) {{
  const int strip = i.y, column = i.x / w * 8;
  simdgroup_matrix<{sums}, 8, 8> C({sums}(0.0f));
  for (int k = 0; k < depth; k += 8) {{
    simdgroup_matrix<{factors}, 8, 8> A, B;
    simdgroup_load(A, a, depth, ulong2(k, strip * 8));
    simdgroup_load(B, b, columns, ulong2(column, k));
    simdgroup_multiply_accumulate(C, A, B, C);
  }}
  simdgroup_store(C, c, columns, ulong2(column, strip * 8));
}}"""


@pytest.mark.parametrize("sums", list(MATRIX_TYPES))
@pytest.mark.parametrize("factors", list(MATRIX_TYPES))
def test_products_of_simdgroup_matrices(factors, sums):
    shader = compile_shader(HEADER + products(factors, sums))
    rows, columns, depth = 24, 48, 256
    a, b = (random(*n).to(MATRIX_TYPES[factors]) for n in ((rows, depth), (depth, columns)))
    exact = a.double() @ b.double()
    for group in ((32, 1), (64, 3), (192, 1)):
        c = torch.zeros(rows, columns, dtype=MATRIX_TYPES[sums], device="cuda")
        shader.product(
            a, b, c, depth, columns, threads=(columns // 8 * 32, rows // 8), group_size=group
        )
        # Sums of half and bfloat are rounded at each of 32 steps.
        tolerance = {"half": 0.3, "bfloat": 2.5, "float": 5e-4}[sums]
        torch.testing.assert_close(c.double(), exact, rtol=0, atol=tolerance)


def test_whole_numbers_are_multiplied_exactly_by_every_way():
    """A sum in which each element of A and B counts once, in its place."""
    a = torch.randint(-8, 9, (8, 8), device="cuda")
    b = torch.randint(-8, 9, (8, 8), device="cuda")
    for factors, dtype in MATRIX_TYPES.items():
        c = torch.zeros(8, 8, device="cuda")
        shader = compile_shader(HEADER + products(factors, "float"))
        shader.product(a.to(dtype), b.to(dtype), c, 8, 8, threads=(32, 1), group_size=(32, 1))
        assert torch.equal(c.long().cpu(), a.cpu() @ b.cpu()), factors


@pytest.mark.parametrize("metal_type", ["half", "bfloat"])
def test_the_benchmark_of_matrix_products(metal_type):
    path = Path(__file__).parents[2] / "benchmarks" / "matmul.metal"
    kernel = getattr(compile_shader(path.read_text()), f"matmul_{metal_type}")
    a, b = random(128, 80), random(80, 192)
    a, b = a.to(MATRIX_TYPES[metal_type]), b.to(MATRIX_TYPES[metal_type])
    c = a.new_zeros(128, 192)
    kernel(a, b, c, [128, 192, 80, 0], threads=(384, 2), group_size=(128, 1), arg_casts="int32")
    torch.testing.assert_close(c, (a.double() @ b.double()).to(c.dtype), rtol=1e-2, atol=1e-2)


# ---- streams, graphs, threads --------------------------------------------------------------------


def test_work_goes_to_the_current_stream_and_nobody_waits(shader):
    x, out = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
    shader.scale(out, x, 1.0)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(500_000_000)
        x.fill_(2)
        start = time.perf_counter()
        shader.scale(out, x, 3.0)
        took = time.perf_counter() - start
        result = out.clone()
    assert not stream.query() and took < 0.05
    stream.synchronize()
    assert torch.equal(result, torch.full_like(result, 6))


def test_cuda_graphs(shader):
    x, out = random(1000), torch.zeros(1000, device="cuda")
    shader.scale(out, x, 2.0)  # compiles and loads the kernel, which a capture cannot
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        shader.scale(out, x, 2.0)
        shader.scale(out, out, 5.0)
    assert torch.equal(out, 2 * x)
    x.copy_(random(1000))
    graph.replay()
    torch.testing.assert_close(out, 10 * x)


def test_values_that_are_too_long_for_a_launch_are_part_of_cuda_graphs(shader):
    values, out = [float(i) for i in range(5000)], torch.zeros(5000, device="cuda")
    shader.read(out, values)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        shader.read(out, values)
        shader.read(out[:1000], values[1000:2000])
    for _ in range(2):
        out.zero_()
        graph.replay()
        assert out.tolist() == values[1000:2000] + values[1000:]


def test_lines_of_os_log_go_to_the_standard_output(capfd):
    about = importlib.import_module("tests.exec.test_pack_and_log")
    Library(HEADER + about.SOURCE).launch("say", [], 2, 1)
    torch.cuda.synchronize()
    ctypes.CDLL(None).fflush(None)
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == sorted(
        [f"thread {i} of 3: 1.50 text ff c    42 007 %" for i in range(2)]
        + ["vector 1,-2,3 and 0.500000,2.000000"] * 2
        + ["[subsystem:category] short -3 long -5000000000 half 0.250000 bool 1"] * 2
    )


def test_numbers_in_lines_of_os_log_are_written_as_printf_does(capfd):
    formats = ["%f", "%.0f", "%.1f", "%.3f", "%.9f"]
    values = [0.0, -0.0, 0.5, 1.5, 2.5, 0.05, 0.25, 9.9996, 999.95, 1e-7, 123456.789, 3e38, -1e20]
    values += [float("inf"), float("-inf"), float("nan")]
    lines = " ".join(f'os_log_default.log("{f}", x[i]);' for f in formats)
    source = f"kernel void say(constant float* x, uint i [[thread_position_in_grid]]) {{ {lines} }}"
    kernel = compile_shader("#include <metal_logging>\n" + HEADER + source).say
    for value in values:
        kernel([value], threads=1, group_size=1)
    torch.cuda.synchronize()
    ctypes.CDLL(None).fflush(None)
    rounded = torch.tensor(values).tolist()
    assert capfd.readouterr().out.splitlines() == [f % v for v in rounded for f in formats]


def test_threads_launch_at_the_same_time(shader):
    outs = [torch.zeros(1000, device="cuda") for _ in range(8)]
    ones = torch.ones(1000, device="cuda")

    def run(n):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                shader.scale(outs[n], ones, float(n))

    torch.cuda.synchronize()
    workers = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    torch.cuda.synchronize()
    assert [out.unique().tolist() for out in outs] == [[float(n)] for n in range(8)]


def test_a_thread_that_has_done_nothing_else_launches(shader):
    out, ones = torch.zeros(1000, device="cuda"), torch.ones(1000, device="cuda")
    shader.scale(out, ones, 1.0)
    torch.cuda.synchronize()
    failures = []

    def run():
        try:
            shader.scale(out, ones, 5.0)
        except Exception as error:  # noqa: BLE001 shown below
            failures.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    worker.join()
    assert failures == [] and out.unique().tolist() == [5]


def test_a_launch_costs_microseconds(shader):
    x, out = random(1000), random(1000)
    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(500):
            shader.scale(out, x, 2.0)
        best = min(best, (time.perf_counter() - start) / 500)
    print(f"a launch from Python takes {best * 1e6:.1f} us")
    assert best < 30e-6


# ---- errors and the cache ------------------------------------------------------------------------


def report(shader, limit=3):
    out = torch.zeros(8, dtype=torch.int32, device="cuda")
    shader.check(out, limit, error_buf_idx=2, arg_casts={1: "int32"}, group_size=1)
    return out


def test_reports_are_raised_by_synchronize(shader):
    out = report(shader)
    with pytest.raises(torch.AcceleratorError, match="index [3-7] is out of bounds for size 3"):
        cuda.synchronize()
    cuda.synchronize()
    assert out.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]
    assert report(shader, 8).tolist() == list(range(8))


def test_reports_are_raised_by_a_later_launch(shader):
    report(shader)
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="is out of bounds for size 3"):
        report(shader)
    report(shader, 8)
    cuda.synchronize()


def test_wrong_source_says_where():
    with pytest.raises(SyntaxError, match='program_source:2:.*"missing" is undefined'):
        compile_shader("kernel void k(device float* x) {\n  x[0] = missing;\n}").k(random(1))


def test_what_was_compiled_is_kept(monkeypatch, shader):
    x, out = random(4), torch.zeros(4, device="cuda")
    shader.scale(out, x, 1.0)
    monkeypatch.setattr(nvrtc, "compile_program", None)
    compile_shader(SOURCE).scale(out, x, 2.0)
    assert torch.equal(out, 2 * x)


# ---- kernels of Python ---------------------------------------------------------------------------


SCALE = metalops.metal_kernel(
    "gpu_scale",
    ["x", "a"],
    ["y"],
    "uint i = thread_position_in_grid.x; y[i] = T(a * float(x[elem_to_loc(i, x_shape, x_strides, x_ndim)]));",
    ensure_row_contiguous=False,
    backward=lambda grads, inputs, outputs: [grads[0] * inputs[1], None],
)


def scaled(x, a):
    return SCALE(
        inputs=[x, a],
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
        grid=(x.numel(), 1, 1),
        threadgroup=(128, 1, 1),
        template=[("T", x.dtype)],
    )[0]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32], ids=str
)
def test_metal_kernel(dtype):
    x = (10 * random(30, 40)).to(dtype)
    for view in (x, x.t(), x[::2, 1:], x[0], x[:, :1].expand(30, 7)):
        y = scaled(view, 3.0)
        assert y.is_cuda and y.dtype == dtype and y.is_contiguous()
        torch.testing.assert_close(y, (3 * view.float()).to(dtype))


def test_metal_kernel_is_differentiable_compiled_and_exported():
    x = random(30, requires_grad=True)
    (2 * scaled(x, 2.5)).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 5))
    compiled = torch.compile(lambda x: scaled(x + 1, 2.0) * 3, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x.detach()), 6 * (x.detach() + 1))

    class Module(torch.nn.Module):
        def forward(self, x):
            return scaled(x, 2.0)

    program = torch.export.export(Module(), (x.detach(),))
    assert "gpu_scale" in str(program.graph)
    torch.testing.assert_close(program.module()(x.detach()), 2 * x.detach())


def test_metal_kernel_with_threadgroups_atomics_and_tensors_in_place():
    kernel = metalops.metal_kernel(
        "gpu_histogram",
        ["x"],
        ["counts"],
        """
        threadgroup uint local[4];
        uint t = thread_index_in_threadgroup;
        if (t < 4) local[t] = 0;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        atomic_fetch_add_explicit((threadgroup atomic_uint*)&local[x[thread_position_in_grid.x]], 1, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (t < 4) atomic_fetch_add_explicit(&counts[t], local[t], memory_order_relaxed);
        """,
        atomic_outputs=True,
    )
    x = torch.randint(0, 4, (10_000,), device="cuda", dtype=torch.int32)
    (counts,) = kernel(
        inputs=[x],
        output_shapes=[(4,)],
        output_dtypes=[torch.uint32],
        grid=(10_000, 1, 1),
        threadgroup=(256, 1, 1),
        init_value=0,
    )
    assert counts.tolist() == torch.bincount(x, minlength=4).tolist()
    add = metalops.metal_kernel(
        "gpu_add", ["x"], [], "uint i = thread_position_in_grid.x; y[i] += x[i];", inout_names=["y"]
    )
    y, z = random(100), random(100)
    expected = y + z
    add(inputs=[z, y], output_shapes=[], output_dtypes=[], grid=(100, 1, 1), threadgroup=(32, 1, 1))
    assert torch.equal(y, expected) and y._version == 1


def test_metal_kernel_without_inputs():
    kernel = metalops.metal_kernel(
        "gpu_iota", [], ["y"], "y[thread_position_in_grid.x] = thread_position_in_grid.x;"
    )
    (y,) = kernel(
        inputs=[],
        output_shapes=[(9,)],
        output_dtypes=[torch.int32],
        grid=(9, 1, 1),
        threadgroup=(4, 1, 1),
        device="cuda",
    )
    assert y.is_cuda and y.tolist() == list(range(9))


def matmul(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return A @ B


def test_torch_metal_kernel():
    kernel = metalops.TorchMetalKernel(
        "gpu_matmul",
        ["A", "B"],
        ["C"],
        """
        float sum = 0;
        for (uint k = 0; k < A.get_extent(0); ++k) sum += A[k, p.y] * B[p.x, k];
        C[p.x, p.y] = sum;
        """,
        matmul,
        metal_params=[metalops.MetalParameter("p", "uint2", "thread_position_in_grid")],
        backward=lambda grads, inputs, outputs: [
            grads[0] @ inputs[1].t(),
            inputs[0].t() @ grads[0],
        ],
    )

    def call(A, B):
        shape = [A.shape[0], B.shape[1]]
        return kernel(
            A,
            B,
            threads_per_grid=(shape[1], shape[0], 1),
            threads_per_thread_group=(8, 8, 1),
            result_shapes=[shape],
        )

    A, B = random(20, 30, requires_grad=True), random(15, 30).t().requires_grad_()
    C = call(A, B)
    torch.testing.assert_close(C, A @ B, rtol=1e-4, atol=1e-4)
    C.sum().backward()
    torch.testing.assert_close(A.grad, B.detach().sum(1).expand(20, 30))
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(A.detach(), B.detach()), C.detach())


MISH = metalops.functor(
    "gpu_tests::mish",
    "x * tanh(log(1 + exp(x)))",
    grad="grad * (tanh(log(1 + exp(x))) + x * (1 - pow(tanh(log(1 + exp(x))), 2.0f)) / (1 + exp(-x)))",
)
PRODUCT = metalops.functor(
    "gpu_tests::product",
    "x * y + a",
    inputs=("x", "y"),
    params={"a": 1.0},
    grad=("grad * y", "grad * x"),
)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64], ids=str
)
def test_functor(dtype):
    x = (random(60, 70, 8) * 3).to(dtype)
    views = [
        x,
        x.permute(2, 0, 1),
        x[:, 1:3],
        x[:, ::2, ::2],
        x[0, 0, 0],
        x[:0],
        x[:1].expand(5, 70, 8),
    ]
    for view in views:
        result = MISH(view)
        expected = torch.nn.functional.mish(view.float())
        torch.testing.assert_close(
            result,
            expected.to(result.dtype),
            rtol=1e-2 if dtype == torch.bfloat16 else 2e-3,
            atol=1e-3,
        )
        assert result.stride() == torch.nn.functional.relu(view).stride() or view.numel() < 2


def test_functor_broadcasts_promotes_and_is_differentiable():
    x, y = random(30, 1, 5, requires_grad=True), random(7, 1).half().requires_grad_()
    result = PRODUCT(x, y, a=3.0)
    torch.testing.assert_close(result, x * y + 3)
    gradients = torch.autograd.grad(result.square().sum(), (x, y), create_graph=True)
    expected = torch.autograd.grad((x * y + 3).square().sum(), (x, y), create_graph=True)
    torch.testing.assert_close(gradients, expected, rtol=1e-2, atol=1e-2)
    (second,) = torch.autograd.grad(gradients[0].sum(), x)
    (expected,) = torch.autograd.grad(expected[0].sum(), x)
    torch.testing.assert_close(second, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(PRODUCT(x, 2.0), 2 * x + 1)
    torch.testing.assert_close(PRODUCT(x, torch.tensor(2.0)), 2 * x + 1)
    out = torch.empty(0, device="cuda")
    PRODUCT(x.detach(), y.detach(), out=out)
    torch.testing.assert_close(out, x.detach() * y.detach() + 1)
    z = random(5)
    expected = z * z + 1
    PRODUCT.inplace(z, z)
    torch.testing.assert_close(z, expected)


def test_functor_compiled_exported_and_in_a_graph():
    x, y = random(6, 8).t(), random(6)
    compiled = torch.compile(lambda x, y: PRODUCT(x, y) * 2, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, y), 2 * (x * y + 1))

    class Module(torch.nn.Module):
        def forward(self, x, y):
            return PRODUCT(x, y)

    program = torch.export.export(Module(), (x, y))
    assert "gpu_tests.product" in str(program.graph)
    torch.testing.assert_close(program.module()(x, y), x * y + 1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = PRODUCT(x, y)
    graph.replay()
    torch.testing.assert_close(result, x * y + 1)


# ---- operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_operators_agree_with_the_cpu(dtype):
    x, y = torch.randn(6, 10).to(dtype), torch.randn(10).to(dtype)
    calls = {
        "gelu_new": lambda x, y: ops.gelu_new(x),
        "softcap": lambda x, y: ops.softcap(x, 2.0),
        "silu_and_mul": lambda x, y: ops.silu_and_mul(x),
        "swiglu_clamped": lambda x, y: ops.swiglu_clamped(x, y),
        "fma": lambda x, y: ops.fma(x, y, x),
        "lerp_clamped": lambda x, y: ops.lerp_clamped(x, y, x),
    }
    for name, call in calls.items():
        results = []
        for device in ("cpu", "cuda"):
            a, b = (t.to(device).requires_grad_() for t in (x, y))
            out = call(a, b)
            gradients = torch.autograd.grad(out.sum(), (a, b), allow_unused=True)
            results.append([t.cpu() for t in (out, *gradients) if t is not None])
        torch.testing.assert_close(*results, msg=lambda text, name=name: f"{name}: {text}")
