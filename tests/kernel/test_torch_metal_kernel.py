"""TorchMetalKernel: kernels in its style, each against its reference in torch on the CPU."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from metalops import MetalParameter, TorchMetalKernel
from torch import Tensor

pytestmark = pytest.mark.full

ID = [MetalParameter("id", "uint", "thread_position_in_grid")]
GID2 = [MetalParameter("gid", "uint2", "thread_position_in_grid")]
GID3 = [MetalParameter("gid", "uint3", "thread_position_in_grid")]
TILE = [
    *GID2,
    MetalParameter("tid", "uint2", "thread_position_in_threadgroup"),
    MetalParameter("tgid", "uint2", "threadgroup_position_in_grid"),
]


def check(kernel, *inputs, grid, group=(1, 1, 1), shapes=None, tolerance=None):
    """Runs the kernel on mps and on the CPU, where the reference runs, and compares."""

    def run(device):
        moved = [x.to(device) if isinstance(x, Tensor) else x for x in inputs]
        result = kernel(
            *moved,
            threads_per_grid=grid,
            threads_per_thread_group=group,
            result_shapes=shapes or [list(inputs[0].shape)],
        )
        return [result] if isinstance(result, Tensor) else list(result)

    expected, actual = run("cpu"), run("mps")
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.device.type == "mps"
        assert a.is_contiguous()
        options = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(a.cpu(), e, equal_nan=True, **options)
    return actual


def _add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


ADD = TorchMetalKernel("case_vector_add", ["x", "y"], ["out"], "out[id] = x[id] + y[id];", _add, ID)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_sum(dtype):
    x, y = (torch.randn(1000) * 10).to(dtype), (torch.randn(1000) * 10).to(dtype)
    check(ADD, x, y, grid=(1000, 1, 1), group=(256, 1, 1))


def test_one_index_counts_elements_of_any_rank():
    x, y = torch.randn(3, 4, 5), torch.randn(3, 4, 5)
    check(ADD, x, y, grid=(60, 1, 1))


def test_inputs_of_any_layout():
    base = torch.randn(64)
    transposed = torch.randn(8, 4).t()
    check(ADD, transposed, base[::2].view(4, 8), grid=(32, 1, 1))
    check(ADD, base[5:15], base[40:60:2], grid=(10, 1, 1))
    check(ADD, torch.randn(4, 1).expand(4, 6), torch.randn(1, 6).expand(4, 6), grid=(24, 1, 1))
    check(ADD, base[:8].flip(0), torch.randn(8), grid=(8, 1, 1))


def _copy(x: Tensor) -> Tensor:
    return x.clone()


def test_six_dimensions():
    kernel = TorchMetalKernel(
        "case_six_dimensions",
        ["x"],
        ["out"],
        """
        uint c[x.get_rank()];
        uint rest = id;
        for (uint d = 0; d < x.get_rank(); ++d) {
            c[d] = rest % x.get_extent(d);
            rest /= x.get_extent(d);
        }
        out[c[0], c[1], c[2], c[3], c[4], c[5]] = x[c[0], c[1], c[2], c[3], c[4], c[5]];
        """,
        _copy,
        ID,
    )
    x = torch.randn(2, 3, 1, 4, 2, 5)
    for permuted in (x, x.permute(5, 2, 0, 4, 1, 3)):
        check(kernel, permuted, grid=(x.numel(), 1, 1))


def test_lazy_negation_is_resolved():
    x = torch.tensor([3 + 4j]).to("mps").conj().imag
    y = torch.zeros(1, device="mps")
    out = ADD(
        x, y, threads_per_grid=(1, 1, 1), threads_per_thread_group=(1, 1, 1), result_shapes=[[1]]
    )
    assert out.item() == -4


def _matmul(A: Tensor, B: Tensor) -> Tensor:
    return A @ B


MATMUL = TorchMetalKernel(
    "case_matmul",
    ["A", "B"],
    ["C"],
    """
    const uint K = A.get_extent(0);
    const uint M = A.get_extent(1);
    const uint N = B.get_extent(0);
    if (gid.x >= N || gid.y >= M) return;
    TYPE sum = TYPE(0);
    for (uint k = 0; k < K; ++k) {
        sum += A[k, gid.y] * B[gid.x, k];
    }
    C[gid.x, gid.y] = sum;
    """,
    _matmul,
    GID2,
    template_dtypes={"A": "TYPE"},
)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8]
)
def test_matrix_product_in_all_types(dtype):
    A, B = (torch.randn(5, 7) * 2).to(dtype), (torch.randn(7, 3) * 2).to(dtype)
    # Halves are summed in halves here, and in float32 by torch.
    tolerance = 0.2 if dtype in (torch.float16, torch.bfloat16) else None
    check(MATMUL, A, B, grid=(16, 16, 1), group=(8, 8, 1), shapes=[[5, 3]], tolerance=tolerance)


TILED_MATMUL = TorchMetalKernel(
    "case_tiled_matmul",
    ["A", "B"],
    ["C"],
    """
    const uint TILE = 8;
    const uint K = A.get_extent(0), M = A.get_extent(1), N = B.get_extent(0);
    threadgroup TYPE a[TILE][TILE];
    threadgroup TYPE b[TILE][TILE];
    float sum = 0;
    for (uint start = 0; start < K; start += TILE) {
        const uint ka = start + tid.x, kb = start + tid.y;
        a[tid.y][tid.x] = ka < K && gid.y < M ? A[ka, gid.y] : TYPE(0);
        b[tid.y][tid.x] = gid.x < N && kb < K ? B[gid.x, kb] : TYPE(0);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < TILE; ++k) sum += float(a[tid.y][k]) * float(b[k][tid.x]);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (gid.x < N && gid.y < M) C[metal::array<uint, 2>{{gid.x, gid.y}}] = TYPE(sum);
    """,
    _matmul,
    TILE,
    template_dtypes={"A": "TYPE"},
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_tiled_matrix_product_with_threadgroup_memory(dtype):
    A, B = torch.randn(21, 19).to(dtype), torch.randn(19, 11).to(dtype)
    check(TILED_MATMUL, A, B, grid=(16, 24, 1), group=(8, 8, 1), shapes=[[21, 11]])


def _transpose(x: Tensor) -> Tensor:
    return x.transpose(0, 1)


def test_transposition():
    kernel = TorchMetalKernel(
        "case_transpose", ["in"], ["out"], "out[gid.y, gid.x] = in[gid.x, gid.y];", _transpose, GID2
    )
    x = torch.randn(4, 9)
    check(kernel, x, grid=(9, 4, 1), shapes=[[9, 4]])
    check(kernel, x.t(), grid=(4, 9, 1), shapes=[[4, 9]])


def _softmax(input: Tensor, axis: int) -> Tensor:
    return input.softmax(axis)


def test_softmax_of_any_rank_along_any_axis():
    kernel = TorchMetalKernel(
        "case_softmax",
        ["input", "axis"],
        ["output"],
        """
        const uint rank = input.get_rank();
        const uint along = axis < 0 ? uint(-axis - 1) : rank - 1 - uint(axis);
        metal::array<uint, input.get_rank()> index;
        uint rest = id;
        for (uint d = 0; d < rank; ++d) {
            const uint extent = d == along ? 1 : input.get_extent(d);
            index[d] = rest % extent;
            rest /= extent;
        }
        float largest = -INFINITY;
        for (uint i = 0; i < input.get_extent(along); ++i) {
            index[along] = i;
            largest = max(largest, float(input[index]));
        }
        float sum = 0;
        for (uint i = 0; i < input.get_extent(along); ++i) {
            index[along] = i;
            sum += exp(float(input[index]) - largest);
        }
        for (uint i = 0; i < input.get_extent(along); ++i) {
            index[along] = i;
            output[index] = TYPE(exp(float(input[index]) - largest) / sum);
        }
        """,
        _softmax,
        ID,
        template_dtypes={"input": "TYPE"},
    )
    for shape, axis in [((6,), 0), ((3, 4), 1), ((3, 4), -2), ((2, 3, 4), 1)]:
        x = torch.randn(shape)
        check(kernel, x, axis, grid=(x.numel() // shape[axis], 1, 1))
    check(kernel, torch.randn(2, 8).half(), -1, grid=(2, 1, 1))


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, [x.shape[-1]], weight, eps)


def test_rms_norm_with_simdgroups():
    kernel = TorchMetalKernel(
        "case_rms_norm",
        ["x", "weight", "eps"],
        ["y"],
        """
        float squares = 0;
        for (uint i = lane; i < x.get_extent(0); i += 32) squares += square(float(x[i, row.y]));
        const float scale = rsqrt(simd_sum(squares) / x.get_extent(0) + eps);
        for (uint i = lane; i < x.get_extent(0); i += 32) {
            y[i, row.y] = T(float(x[i, row.y]) * scale * float(weight[i]));
        }
        """,
        _rms_norm,
        [
            MetalParameter("row", "uint2", "threadgroup_position_in_grid"),
            MetalParameter("lane", "ushort", "thread_index_in_simdgroup"),
        ],
        helper_src="static inline float square(float x) { return x * x; }",
        template_dtypes={"x": "T"},
    )
    check(kernel, torch.randn(5, 100), torch.randn(100), 1e-5, grid=(32, 5, 1), group=(32, 1, 1))


def _argmax(x: Tensor) -> Tensor:
    return x.argmax(-1).to(torch.int32)


def test_argmax_finds_the_first_nan():
    kernel = TorchMetalKernel(
        "case_argmax",
        ["x"],
        ["best"],
        """
        uint found = 0;
        for (uint i = 1; i < x.get_extent(0) && !isnan(x[found, id]); ++i) {
            if (isnan(x[i, id]) || x[i, id] > x[found, id]) found = i;
        }
        best[id] = found;
        """,
        _argmax,
        ID,
    )
    x = torch.randn(6, 20)
    x[1, 7] = math.nan
    x[1, 9] = math.nan
    x[2, 0] = math.nan
    x[3] = -math.inf
    check(kernel, x, grid=(6, 1, 1), shapes=[[6]])


def _gather(table: Tensor, index: Tensor) -> Tensor:
    return table[index.long()]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_gather(dtype):
    kernel = TorchMetalKernel(
        "case_gather",
        ["table", "index"],
        ["rows"],
        "rows[gid.x, gid.y] = table[gid.x, index[gid.y]];",
        _gather,
        GID2,
    )
    index = torch.tensor([3, 0, 3, 1]).to(dtype)
    check(kernel, torch.randn(5, 6), index, grid=(6, 4, 1), shapes=[[4, 6]])


def _grid_sample(image: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(image, grid, align_corners=False)


def test_grid_sample_of_rank_4_views():
    kernel = TorchMetalKernel(
        "case_grid_sample",
        ["image", "grid"],
        ["out"],
        """
        const int W = image.get_extent(0), H = image.get_extent(1), C = image.get_extent(2);
        const uint c = gid.z % C, n = gid.z / C;
        const float x = ((grid[0, gid.x, gid.y, n] + 1) * W - 1) / 2;
        const float y = ((grid[1, gid.x, gid.y, n] + 1) * H - 1) / 2;
        const int left = int(floor(x)), top = int(floor(y));
        float sum = 0;
        for (int dy = 0; dy < 2; ++dy) {
            for (int dx = 0; dx < 2; ++dx) {
                const int ix = left + dx, iy = top + dy;
                const float weight = (1 - abs(x - ix)) * (1 - abs(y - iy));
                if (inside(ix, W) && inside(iy, H)) sum += weight * image[ix, iy, c, n];
            }
        }
        out[gid.x, gid.y, c, n] = sum;
        """,
        _grid_sample,
        GID3,
        helper_src="inline bool inside(int i, int size) { return i >= 0 && i < size; }",
    )
    image, grid = torch.randn(2, 3, 7, 5), torch.rand(2, 4, 6, 2) * 2.4 - 1.2
    check(kernel, image, grid, grid=(6, 4, 6), group=(2, 2, 2), shapes=[[2, 3, 4, 6]])


def _conv1d(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return F.conv1d(x, weight, stride=stride)


def test_convolution():
    kernel = TorchMetalKernel(
        "case_conv1d",
        ["x", "weight", "stride"],
        ["y"],
        """
        float sum = 0;
        for (uint c = 0; c < x.get_extent(1); ++c) {
            for (uint k = 0; k < weight.get_extent(0); ++k) {
                sum += x[gid.x * stride + k, c, gid.z] * weight[k, c, gid.y];
            }
        }
        y[gid.x, gid.y, gid.z] = sum;
        """,
        _conv1d,
        GID3,
    )
    x, weight = torch.randn(2, 3, 12), torch.randn(4, 3, 5)
    for stride, size in [(1, 8), (3, 3)]:
        check(kernel, x, weight, stride, grid=(size, 4, 2), shapes=[[2, 4, size]])


def _upsample(x: Tensor, scale: int) -> Tensor:
    return x.repeat_interleave(scale, 0).repeat_interleave(scale, 1)


def test_upsampling_takes_result_shapes_from_scalars():
    kernel = TorchMetalKernel(
        "case_upsample",
        ["x", "scale"],
        ["y"],
        "y[gid.x, gid.y] = x[gid.x / scale, gid.y / scale];",
        _upsample,
        GID2,
    )
    x = torch.randn(3, 2)
    for scale in (2, 3):
        shape = [3 * scale, 2 * scale]
        check(kernel, x, scale, grid=(shape[1], shape[0], 1), shapes=[shape])


def _top2(x: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = x.topk(2, -1)
    return values, indices


def test_top_two_has_results_of_two_dtypes():
    kernel = TorchMetalKernel(
        "case_top2",
        ["x"],
        ["values", "indices"],
        """
        uint first = x[1, id] > x[0, id], second = 1 - first;
        for (uint i = 2; i < x.get_extent(0); ++i) {
            if (x[i, id] > x[first, id]) {
                second = first;
                first = i;
            } else if (x[i, id] > x[second, id]) {
                second = i;
            }
        }
        values[0, id] = x[first, id];
        values[1, id] = x[second, id];
        indices[0, id] = first;
        indices[1, id] = second;
        """,
        _top2,
        ID,
    )
    values, indices = check(
        kernel, torch.randn(7, 9), grid=(7, 1, 1), group=(64, 1, 1), shapes=[[7, 2], [7, 2]]
    )
    assert (values.dtype, indices.dtype) == (torch.float32, torch.int64)


def _sincos(x: Tensor) -> list[Tensor]:
    return [x.sin(), x.cos()]


def test_a_list_of_results_under_the_name_of_a_function_of_metal():
    kernel = TorchMetalKernel(
        "case_sincos",
        ["x"],
        ["s", "c"],
        "float t; s[id] = sincos(x[id], t); c[id] = t;",
        _sincos,
        ID,
    )
    x = torch.randn(33)
    check(kernel, x, grid=(33, 1, 1), shapes=[[33], [33]])
    launch = {"threads_per_grid": (33, 1, 1), "threads_per_thread_group": (1, 1, 1)}
    assert isinstance(kernel(x, **launch, result_shapes=[[33], [33]]), list)
    assert isinstance(kernel(x.to("mps"), **launch, result_shapes=[[33], [33]]), list)


def _mandelbrot(cx: Tensor, cy: Tensor, limit: int) -> Tensor:
    c = torch.complex(cx, cy)
    z, count = torch.zeros_like(c), torch.zeros(c.shape, dtype=torch.int32)
    for _ in range(limit):
        inside = z.abs() <= 2
        count += inside
        z = torch.where(inside, z * z + c, z)
    return count


def test_mandelbrot_on_a_two_dimensional_grid():
    kernel = TorchMetalKernel(
        "case_mandelbrot",
        ["cx", "cy", "limit"],
        ["count"],
        """
        float2 z = 0;
        int steps = 0;
        while (steps < limit && dot(z, z) <= 4) {
            z = float2(z.x * z.x - z.y * z.y + cx[gid.x, gid.y], 2 * z.x * z.y + cy[gid.x, gid.y]);
            ++steps;
        }
        count[gid.x, gid.y] = steps;
        """,
        _mandelbrot,
        GID2,
    )
    cy, cx = torch.meshgrid(torch.linspace(-1, 1, 9), torch.linspace(-2, 0.5, 11), indexing="ij")
    check(kernel, cx, cy, 12, grid=(11, 9, 1), group=(4, 4, 1))


def _pad(x: Tensor, fill: float, reflect: bool) -> Tensor:
    padded = F.pad(x, (1, 1), value=fill)
    return F.pad(x[None], (1, 1), mode="reflect")[0] if reflect else padded


def test_scalars_of_each_type_and_any_value():
    kernel = TorchMetalKernel(
        "case_pad_rows",
        ["x", "fill", "reflect"],
        ["y"],
        """
        const uint W = x.get_extent(0);
        const bool inside = gid.x >= 1 && gid.x <= W;
        const uint mirrored = gid.x == 0 ? 1 : W - 2;
        y[gid.x, gid.y] = inside ? x[gid.x - 1, gid.y] : reflect ? x[mirrored, gid.y] : fill;
        """,
        _pad,
        GID2,
    )
    x = torch.randn(2, 5)
    for fill in (0.0, -2.5, math.nan, math.inf, -math.inf, 1e-45, 3):
        for reflect in (False, True):
            check(kernel, x, fill, reflect, grid=(7, 2, 1), shapes=[[2, 7]])


def _affine(x: Tensor, factor: int, offset: int) -> Tensor:
    return x * factor + offset


def test_integer_scalars_are_32_bits():
    kernel = TorchMetalKernel(
        "case_affine",
        ["x", "factor", "offset"],
        ["y"],
        'static_assert(sizeof(factor) == 4, "int"); y[id] = x[id] * factor + offset;',
        _affine,
        ID,
    )
    x = torch.arange(-3, 3, dtype=torch.int32)
    for factor, offset in [(1, 2**31 - 10), (-1, -(2**31) + 10), (0, True)]:
        check(kernel, x, factor, offset, grid=(6, 1, 1))


def _scaled_sum(x: Tensor, factor: Tensor) -> tuple[Tensor]:
    return ((x * factor).sum(),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_of_rank_0_are_numbers(dtype):
    kernel = TorchMetalKernel(
        "case_scaled_sum",
        ["x", "factor"],
        ["total"],
        """
        total = 0;
        for (uint i = 0; i < x.get_extent(0); ++i) total += x[i] * factor;
        """,
        _scaled_sum,
        template_dtypes={"x": "T"},
    )
    factor = torch.tensor(0.5, dtype=dtype)
    (total,) = check(kernel, torch.ones(6, dtype=dtype), factor, grid=(1, 1, 1), shapes=[[]])
    assert total.shape == ()


def test_tensors_of_rank_0_are_views_where_the_code_subscripts_them():
    (out,) = check(ADD, torch.tensor(2.0), torch.tensor(3.0), grid=(1, 1, 1), shapes=[[]])
    assert out.item() == 5


def _iota3(x: Tensor) -> Tensor:
    return torch.arange(x.numel(), dtype=torch.float32).view(x.shape) + x


def test_dispatch_in_three_dimensions():
    kernel = TorchMetalKernel(
        "case_iota3",
        ["x"],
        ["y"],
        """
        if (any(gid >= uint3(x.get_extent(0), x.get_extent(1), x.get_extent(2)))) return;
        const uint linear = (gid.z * x.get_extent(1) + gid.y) * x.get_extent(0) + gid.x;
        y[gid.x, gid.y, gid.z] = linear + x[linear];
        """,
        _iota3,
        GID3,
    )
    x = torch.randn(3, 4, 5)
    for grid, group in [((5, 4, 3), (1, 1, 1)), ((5, 4, 3), (4, 4, 4)), ((8, 8, 8), (2, 4, 8))]:
        check(kernel, x, grid=grid, group=group)


def _cumsum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def test_scan_across_a_threadgroup():
    kernel = TorchMetalKernel(
        "case_cumsum",
        ["x"],
        ["y"],
        """
        threadgroup float partial[64];
        partial[tid] = x[tid, row.y];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint step = 1; step < 64; step *= 2) {
            const float other = tid >= step ? partial[tid - step] : 0;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            partial[tid] += other;
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        y[tid, row.y] = partial[tid];
        """,
        _cumsum,
        [
            MetalParameter("tid", "uint", "thread_index_in_threadgroup"),
            MetalParameter("row", "uint2", "threadgroup_position_in_grid"),
        ],
    )
    x = torch.randn(3, 64)
    check(kernel, x, grid=(64, 3, 1), group=(64, 1, 1), tolerance=1e-4)


def _histogram(x: Tensor, bins: int) -> Tensor:
    return (
        torch.bincount(x, minlength=bins).to(torch.int32)
        if x.is_cpu and not _fake(x)
        else x.new_empty(bins, dtype=torch.int32)
    )


def _fake(x: Tensor) -> bool:
    return isinstance(x, torch._subclasses.FakeTensor)


def test_atomics_on_results_and_a_reference_that_knows_fake_tensors():
    kernel = TorchMetalKernel(
        "case_histogram",
        ["x", "bins"],
        ["counts"],
        """
        if (int(tid) < bins) counts[tid] = 0;
        threadgroup_barrier(mem_flags::mem_device);
        atomic_fetch_add_explicit((device atomic_int*)&counts[x[tid]], 1, memory_order_relaxed);
        """,
        _histogram,
        [MetalParameter("tid", "uint", "thread_index_in_threadgroup")],
    )
    x = torch.randint(0, 10, (200,))
    check(kernel, x, 10, grid=(200, 1, 1), group=(200, 1, 1), shapes=[[10]])


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, [x.shape[-1]], weight, bias, eps)


def test_helpers_take_views_as_template_parameters():
    kernel = TorchMetalKernel(
        "case_layer_norm",
        ["x", "weight", "bias", "eps"],
        ["y"],
        """
        const float2 moments = mean_and_variance(x, id);
        for (uint i = 0; i < x.get_extent(0); ++i) {
            y[i, id] = (x[i, id] - moments.x) * rsqrt(moments.y + eps) * weight[i] + bias[i];
        }
        """,
        _layer_norm,
        ID,
        helper_src="""
        template <typename View>
        float2 mean_and_variance(View view, uint row) {
            float sum = 0, squares = 0;
            for (uint i = 0; i < view.get_extent(0); ++i) sum += view[i, row];
            const float mean = sum / view.get_extent(0);
            for (uint i = 0; i < view.get_extent(0); ++i) {
                squares += (view[i, row] - mean) * (view[i, row] - mean);
            }
            return float2(mean, squares / view.get_extent(0));
        }
        """,
    )
    x, weight, bias = torch.randn(4, 12), torch.randn(12), torch.randn(12)
    check(kernel, x, weight, bias, 1e-5, grid=(4, 1, 1), tolerance=1e-5)


def _unpack(packed: Tensor, scale: Tensor) -> Tensor:
    low, high = packed & 15, packed >> 4
    return (torch.stack([low, high], -1).flatten(-2).half() - 8) * scale[:, None]


def test_dequantization_of_packed_bytes():
    kernel = TorchMetalKernel(
        "case_unpack_int4",
        ["packed", "scale"],
        ["out"],
        """
        const uchar byte = packed[gid.x, gid.y];
        const S factor = scale[gid.y];
        out[2 * gid.x, gid.y] = (S(byte & 15) - S(8)) * factor;
        out[2 * gid.x + 1, gid.y] = (S(byte >> 4) - S(8)) * factor;
        """,
        _unpack,
        GID2,
        template_dtypes={"scale": "S"},
    )
    packed = torch.randint(0, 256, (3, 5), dtype=torch.uint8)
    check(kernel, packed, torch.randn(3).half(), grid=(5, 3, 1), shapes=[[3, 10]])


def _rotate(x: Tensor, angle: Tensor) -> Tensor:
    return x * torch.polar(torch.ones_like(angle), angle)


def test_complex_tensors_are_pairs():
    kernel = TorchMetalKernel(
        "case_rotate",
        ["x", "angle"],
        ["y"],
        """
        const float2 z = x[id];
        const float c = cos(angle[id]), s = sin(angle[id]);
        y[id] = float2(z.x * c - z.y * s, z.x * s + z.y * c);
        """,
        _rotate,
        ID,
    )
    x = torch.randn(9, dtype=torch.complex64)
    check(kernel, x, torch.randn(9), grid=(9, 1, 1))
    check(kernel, x.conj(), torch.randn(9), grid=(9, 1, 1))


def _threshold(x: Tensor, mask: Tensor) -> Tensor:
    return (x > 0) & mask


def test_booleans():
    kernel = TorchMetalKernel(
        "case_threshold", ["x", "mask"], ["y"], "y[id] = x[id] > 0 && mask[id];", _threshold, ID
    )
    check(kernel, torch.randn(50), torch.rand(50) > 0.5, grid=(50, 1, 1))


def test_what_no_thread_writes_stays_as_it_was(monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: torch.full(*args, 7.0, **kwargs))
    monkeypatch.setattr(
        torch, "empty_like", lambda *args, **kwargs: torch.full_like(*args, 7.0, **kwargs)
    )
    x = torch.ones(10, device="mps")
    out = ADD(
        x,
        x,
        threads_per_grid=(4, 1, 1),
        threads_per_thread_group=(8, 1, 1),
        result_shapes=[[10]],
    )
    assert out.tolist() == [2.0] * 4 + [7.0] * 6


def test_results_are_new_tensors_on_the_cpu_too():
    def identity(x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x.t()

    kernel = TorchMetalKernel(
        "case_identity",
        ["x"],
        ["same", "turned"],
        "same[id] = x[id]; turned[id] = x[id];",
        identity,
        ID,
    )
    x = torch.randn(3, 3)
    results = kernel(
        x,
        threads_per_grid=(9, 1, 1),
        threads_per_thread_group=(1, 1, 1),
        result_shapes=[[3, 3], [3, 3]],
    )
    assert all(result.is_contiguous() for result in results)
    assert len({x.data_ptr(), *(result.data_ptr() for result in results)}) == 3


def test_a_kernel_without_inputs_runs_where_its_reference_makes_tensors():
    def ramp(n: int) -> Tensor:
        return torch.arange(n, dtype=torch.float32)

    kernel = TorchMetalKernel(
        "case_ramp", ["n"], ["out"], "out[id] = id < uint(n) ? id : 0;", ramp, ID
    )

    def run():
        return kernel(
            5,
            threads_per_grid=(5, 1, 1),
            threads_per_thread_group=(1, 1, 1),
            result_shapes=[[5]],
        )

    assert run().device.type == "cpu"
    with torch.device("mps"):
        on_mps = run()
    assert on_mps.device.type == "mps"
    assert on_mps.tolist() == run().tolist() == [0, 1, 2, 3, 4]


def test_random_numbers_by_seed_ask_the_reference_once():
    asked = []

    def uniform(like: Tensor, seed: int) -> Tensor:
        asked.append(seed)
        return torch.rand_like(like)

    kernel = TorchMetalKernel(
        "case_uniform",
        ["like", "seed"],
        ["out"],
        "out[id] = c10::metal::rand(seed, id);",
        uniform,
        ID,
        helper_src="#include <c10/metal/random.h>",
    )

    def run(seed):
        return kernel(
            torch.empty(1000, device="mps"),
            seed,
            threads_per_grid=(1000, 1, 1),
            threads_per_thread_group=(1000, 1, 1),
            result_shapes=[[1000]],
        )

    first = run(1000)
    for seed in range(1001, 1010):
        assert not torch.equal(run(seed), first)
    assert torch.equal(run(1000), first)
    assert 0 <= first.min() and first.max() < 1
    assert asked == [1000]
