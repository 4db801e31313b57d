"""Kernels in the style in which they are published for MLX, each against torch."""

import metalops
import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.full


def call(kernel, inputs, shapes, dtypes, grid, threadgroup, **options):
    return kernel(
        inputs=inputs,
        output_shapes=shapes,
        output_dtypes=dtypes,
        grid=grid,
        threadgroup=threadgroup,
        **options,
    )


def device_randn(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype).to("mps")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_exp(dtype):
    kernel = metalops.metal_kernel(
        name="myexp",
        input_names=["inp"],
        output_names=["out"],
        source="""
            uint elem = thread_position_in_grid.x;
            T tmp = inp[elem];
            out[elem] = T(metal::exp(float(tmp)));
        """,
    )
    a = device_randn(4, 16, dtype=dtype)
    outputs = kernel(
        inputs=[a],
        template=[("T", dtype)],
        grid=(a.numel(), 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[a.shape],
        output_dtypes=[a.dtype],
    )
    torch.testing.assert_close(outputs[0].cpu(), a.cpu().float().exp().to(dtype))


def test_strided_exp():
    kernel = metalops.metal_kernel(
        name="myexp_strided",
        input_names=["inp"],
        output_names=["out"],
        source="""
            uint elem = thread_position_in_grid.x;
            // Works for any layout of inp; out is row-contiguous.
            uint loc = elem_to_loc(elem, inp_shape, inp_strides, inp_ndim);
            T tmp = inp[loc];
            out[elem] = metal::precise::exp(tmp) * threads_per_simdgroup;
        """,
        ensure_row_contiguous=False,
    )
    a = device_randn(4, 16, 3)[::2].permute(2, 0, 1)
    (out,) = kernel(
        inputs=[a],
        template=[("T", torch.float32)],
        grid=(a.numel(), 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[a.shape],
        output_dtypes=[a.dtype],
    )
    torch.testing.assert_close(out.cpu(), a.cpu().exp() * 32)


# Bilinear sampling of x (batch, height, width, channels) at grid (batch, rows, columns, 2) with (x, y) in [-1, 1];
# outside lie zeros. One thread for each channel of each point.
SAMPLE_POSITION = """
    const int H = x_shape[1], W = x_shape[2], C = x_shape[3];
    const int points = grid_shape[1] * grid_shape[2];
    const uint channels = (C + threads_per_simdgroup - 1) / threads_per_simdgroup * threads_per_simdgroup;
    const uint elem = thread_position_in_grid.x;
    const int c = PADDED ? elem % channels : elem % C;
    const uint point = PADDED ? elem / channels : elem / C;
    const int batch = point / points;
    const float px = (grid[2 * point] + 1) * W / 2 - 0.5f;
    const float py = (grid[2 * point + 1] + 1) * H / 2 - 0.5f;
    const int x0 = floor(px), y0 = floor(py);
    const float dx = px - x0, dy = py - y0;
"""
PIXEL = """
    inline bool inside(int y, int x, int H, int W) { return y >= 0 && y < H && x >= 0 && x < W; }
"""
grid_sample_forward = metalops.metal_kernel(
    name="grid_sample",
    input_names=["x", "grid"],
    output_names=["out"],
    header=PIXEL,
    source=SAMPLE_POSITION
    + """
    float sum = 0;
    for (int k = 0; k < 4; ++k) {
      const int xx = x0 + (k & 1), yy = y0 + (k >> 1);
      const float weight = ((k & 1) ? dx : 1 - dx) * ((k >> 1) ? dy : 1 - dy);
      if (inside(yy, xx, H, W)) sum += weight * x[((batch * H + yy) * W + xx) * C + c];
    }
    out[elem] = sum;
    """,
    backward=lambda grads, inputs, outputs: grid_sample_vjp(grads[0], *inputs),
)
grid_sample_backward = metalops.metal_kernel(
    name="grid_sample_grad",
    input_names=["x", "grid", "cotangent"],
    output_names=["x_grad", "grid_grad"],
    header=PIXEL,
    source=SAMPLE_POSITION
    + """
    float gx = 0, gy = 0;
    if (c < C) {
      const float g = cotangent[point * C + c];
      for (int k = 0; k < 4; ++k) {
        const bool right = k & 1, below = k >> 1;
        const int xx = x0 + right, yy = y0 + below;
        if (!inside(yy, xx, H, W)) continue;
        const int offset = ((batch * H + yy) * W + xx) * C + c;
        const float wx = right ? dx : 1 - dx, wy = below ? dy : 1 - dy;
        atomic_fetch_add_explicit(&x_grad[offset], wx * wy * g, memory_order_relaxed);
        gx += (right ? wy : -wy) * x[offset] * g;
        gy += (below ? wx : -wx) * x[offset] * g;
      }
    }
    // All lanes of a simdgroup belong to one point: one addition for all of them.
    gx = simd_sum(gx);
    gy = simd_sum(gy);
    if (thread_index_in_simdgroup == 0) {
      atomic_fetch_add_explicit(&grid_grad[2 * point], gx * W / 2, memory_order_relaxed);
      atomic_fetch_add_explicit(&grid_grad[2 * point + 1], gy * H / 2, memory_order_relaxed);
    }
    """,
    atomic_outputs=True,
)


def grid_sample(x, grid):
    shape = (*grid.shape[:3], x.shape[3])
    size = grid.shape[0] * grid.shape[1] * grid.shape[2] * x.shape[3]
    (out,) = grid_sample_forward(
        inputs=[x, grid],
        template=[("PADDED", False)],
        output_shapes=[shape],
        output_dtypes=[x.dtype],
        grid=(size, 1, 1),
        threadgroup=(256, 1, 1),
    )
    return out


def grid_sample_vjp(cotangent, x, grid):
    padded = (x.shape[3] + 31) // 32 * 32
    size = grid.shape[0] * grid.shape[1] * grid.shape[2] * padded
    return grid_sample_backward(
        inputs=[x, grid, cotangent],
        template=[("PADDED", True)],
        output_shapes=[x.shape, grid.shape],
        output_dtypes=[x.dtype, x.dtype],
        grid=(size, 1, 1),
        threadgroup=(256, 1, 1),
        init_value=0,
    )


def reference_grid_sample(x, grid):
    out = F.grid_sample(
        x.permute(0, 3, 1, 2), grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )
    return out.permute(0, 2, 3, 1)


def test_grid_sample_forward():
    x, grid = torch.randn(2, 7, 5, 6), torch.rand(2, 4, 3, 2) * 2.6 - 1.3
    out = grid_sample(x.to("mps"), grid.to("mps"))
    torch.testing.assert_close(out.cpu(), reference_grid_sample(x, grid))


@pytest.mark.parametrize("compiled", [False, True])
def test_grid_sample_backward(compiled):
    x, grid = torch.randn(2, 7, 5, 6), torch.rand(2, 4, 3, 2) * 2.6 - 1.3
    cotangent = torch.randn(2, 4, 3, 6)
    ours = [tensor.to("mps").requires_grad_() for tensor in (x, grid)]
    theirs = [tensor.clone().requires_grad_() for tensor in (x, grid)]
    function = torch.compile(grid_sample, backend="aot_eager") if compiled else grid_sample
    function(*ours).backward(cotangent.to("mps"))
    reference_grid_sample(*theirs).backward(cotangent)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.grad.cpu(), their.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_rms_norm(dtype):
    kernel = metalops.metal_kernel(
        name="rms_norm",
        input_names=["x", "w", "eps"],
        output_names=["out"],
        source="""
            threadgroup float partial[32];
            const uint row = threadgroup_position_in_grid.y;
            const uint lane = thread_position_in_threadgroup.x;
            const uint size = threads_per_threadgroup.x;
            const int D = x_shape[x_ndim - 1];
            const device T* in = x + row * D;
            float sum = 0;
            for (int i = lane; i < D; i += size) sum += float(in[i]) * float(in[i]);
            sum = simd_sum(sum);
            if (thread_index_in_simdgroup == 0) partial[simdgroup_index_in_threadgroup] = sum;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (simdgroup_index_in_threadgroup == 0) {
              sum = simd_sum(lane < simdgroups_per_threadgroup ? partial[lane] : 0.0f);
              if (lane == 0) partial[0] = metal::precise::rsqrt(sum / D + eps);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            const float scale = partial[0];
            for (int i = lane; i < D; i += size)
              out[row * D + i] = T(float(in[i]) * scale * float(w[i]));
        """,
    )
    x, w = device_randn(5, 200, dtype=dtype), device_randn(200, dtype=dtype)
    (out,) = call(
        kernel, [x, w, 1e-5], [x.shape], [dtype], (96, 5, 1), (96, 1, 1), template=[("T", dtype)]
    )
    expected = F.rms_norm(x.cpu().float(), (200,), w.cpu().float(), 1e-5).to(dtype)
    torch.testing.assert_close(out.cpu(), expected)


@pytest.mark.parametrize("k", [1, 5])
def test_top_k(k):
    kernel = metalops.metal_kernel(
        name="top_k",
        input_names=["x"],
        output_names=["values", "indices"],
        source="""
            // Insertion into K registers, one row for each thread.
            const uint row = thread_position_in_grid.x;
            const int D = x_shape[1];
            float best[K];
            int at[K];
            for (int j = 0; j < K; ++j) { best[j] = -INFINITY; at[j] = -1; }
            for (int i = 0; i < D; ++i) {
              float value = x[row * D + i];
              int index = i;
              for (int j = 0; j < K; ++j) {
                if (value > best[j]) {
                  const float v = best[j]; best[j] = value; value = v;
                  const int t = at[j]; at[j] = index; index = t;
                }
              }
            }
            for (int j = 0; j < K; ++j) {
              values[row * K + j] = best[j];
              indices[row * K + j] = at[j];
            }
        """,
    )
    x = device_randn(7, 50)
    values, indices = call(
        kernel,
        [x],
        [(7, k), (7, k)],
        [torch.float32, torch.int32],
        (7, 1, 1),
        (32, 1, 1),
        template=[("K", k)],
    )
    expected = x.cpu().topk(k)
    torch.testing.assert_close(values.cpu(), expected.values)
    assert torch.equal(indices.cpu().long(), expected.indices)


def test_tiled_matrix_product():
    kernel = metalops.metal_kernel(
        name="matmul",
        input_names=["a", "b"],
        output_names=["c"],
        source="""
            threadgroup T tile_a[TILE][TILE];
            threadgroup T tile_b[TILE][TILE + 1];
            const int M = a_shape[0], K = a_shape[1], N = b_shape[1];
            const uint2 at = thread_position_in_threadgroup.xy;
            const int row = threadgroup_position_in_grid.y * TILE + at.y;
            const int column = threadgroup_position_in_grid.x * TILE + at.x;
            float sum = 0;
            for (int k = 0; k < K; k += TILE) {
              tile_a[at.y][at.x] = row < M && k + int(at.x) < K ? a[row * K + k + at.x] : T(0);
              tile_b[at.y][at.x] = k + int(at.y) < K && column < N ? b[(k + at.y) * N + column] : T(0);
              threadgroup_barrier(mem_flags::mem_threadgroup);
              for (int i = 0; i < TILE; ++i) sum += float(tile_a[at.y][i]) * float(tile_b[i][at.x]);
              threadgroup_barrier(mem_flags::mem_threadgroup);
            }
            if (row < M && column < N) c[row * N + column] = T(sum);
        """,
    )
    a, b = device_randn(19, 37), device_randn(37, 26)
    tile = 8
    grid = tuple((size + tile - 1) // tile * tile for size in (26, 19))
    (c,) = call(
        kernel,
        [a, b],
        [(19, 26)],
        [torch.float32],
        (*grid, 1),
        (tile, tile, 1),
        template=[("T", torch.float32), ("TILE", tile)],
    )
    torch.testing.assert_close(c.cpu(), a.cpu() @ b.cpu(), rtol=1e-5, atol=1e-5)


def test_simdgroup_matrix_product():
    kernel = metalops.metal_kernel(
        name="matmul_8x8",
        input_names=["a", "b"],
        output_names=["c"],
        source="""
            const int K = a_shape[1], N = b_shape[1];
            const int row = threadgroup_position_in_grid.y * 8, column = threadgroup_position_in_grid.x * 8;
            simdgroup_float8x8 left, right;
            simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            for (int k = 0; k < K; k += 8) {
              simdgroup_load(left, a + row * K + k, K);
              simdgroup_load(right, b + k * N + column, N);
              simdgroup_multiply_accumulate(sum, left, right, sum);
            }
            simdgroup_store(sum, c + row * N + column, N);
        """,
    )
    a, b = device_randn(16, 24), device_randn(24, 32)
    (c,) = call(kernel, [a, b], [(16, 32)], [torch.float32], (4 * 32, 2, 1), (32, 1, 1))
    torch.testing.assert_close(c.cpu(), a.cpu() @ b.cpu(), rtol=1e-5, atol=1e-5)


def test_mandelbrot():
    kernel = metalops.metal_kernel(
        name="mandelbrot",
        input_names=["centre", "extent", "limit"],
        output_names=["image"],
        source="""
            const uint2 at = thread_position_in_grid.xy;
            const uint2 size = threads_per_grid.xy;
            const float cx = centre[0] + extent * (float(at.x) / size.x - 0.5f);
            const float cy = centre[1] + extent * (float(at.y) / size.y - 0.5f);
            float x = 0, y = 0;
            int n = 0;
            while (n < limit && x * x + y * y <= 4.0f) {
              const float next = x * x - y * y + cx;
              y = 2 * x * y + cy;
              x = next;
              ++n;
            }
            image[at.y * size.x + at.x] = n;
        """,
    )
    centre = torch.tensor([-0.5, 0.0])
    (image,) = call(
        kernel, [centre.to("mps"), 3.0, 40], [(48, 64)], [torch.int32], (64, 48, 1), (16, 16, 1)
    )
    real = centre[0] + 3.0 * (torch.arange(64) / 64 - 0.5)
    imaginary = centre[1] + 3.0 * (torch.arange(48) / 48 - 0.5)
    c = torch.complex(*torch.broadcast_tensors(real, imaginary[:, None]))
    z, count = torch.zeros_like(c), torch.zeros(48, 64, dtype=torch.int32)
    for _ in range(40):
        inside = z.abs() <= 2
        count += inside
        z = torch.where(inside, z * z + c, z)
    # Rounding decides for points on the edge.
    assert (image.cpu() != count).float().mean() < 0.005


def test_argmax_with_nan():
    kernel = metalops.metal_kernel(
        name="argmax",
        input_names=["x"],
        output_names=["out"],
        header="""
            struct Best { float value; int index; };
            // NaN counts as the greatest; of equals the first.
            inline bool beats(Best a, Best b) {
              const bool a_nan = isnan(a.value), b_nan = isnan(b.value);
              if (a_nan || b_nan) return a_nan && (!b_nan || a.index < b.index);
              return a.value > b.value || (a.value == b.value && a.index < b.index);
            }
        """,
        source="""
            const uint row = threadgroup_position_in_grid.y;
            const int D = x_shape[1];
            Best best = {-INFINITY, D};
            for (int i = thread_index_in_simdgroup; i < D; i += threads_per_simdgroup) {
              const Best next = {x[row * D + i], i};
              if (beats(next, best)) best = next;
            }
            for (ushort step = threads_per_simdgroup / 2; step > 0; step /= 2) {
              const Best other = {simd_shuffle_xor(best.value, step), simd_shuffle_xor(best.index, step)};
              if (beats(other, best)) best = other;
            }
            if (thread_index_in_simdgroup == 0) out[row] = best.index;
        """,
    )
    x = torch.randn(6, 100)
    x[1, 40] = x[1, 70] = float("nan")
    x[2, 99] = float("nan")
    x[3] = -float("inf")
    x[4, 10] = x[4, 50] = 100.0
    (out,) = call(kernel, [x.to("mps")], [(6,)], [torch.int64], (32, 6, 1), (32, 1, 1))
    assert torch.equal(out.cpu(), x.argmax(dim=1))


PHILOX = """
    // Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).
    inline uint4 philox(uint4 counter, uint2 key) {
      for (int round = 0; round < 10; ++round) {
        const uint low0 = 0xD2511F53u * counter.x, high0 = mulhi(0xD2511F53u, counter.x);
        const uint low1 = 0xCD9E8D57u * counter.z, high1 = mulhi(0xCD9E8D57u, counter.z);
        counter = uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key += uint2(0x9E3779B9u, 0xBB67AE85u);
      }
      return counter;
    }
"""


def philox(counter, key):
    """The same with Python's integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (second >> 32) ^ c[1] ^ k[0],
            second & 0xFFFFFFFF,
            (first >> 32) ^ c[3] ^ k[1],
            first & 0xFFFFFFFF,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_philox_random_numbers():
    kernel = metalops.metal_kernel(
        name="philox",
        input_names=["seed"],
        output_names=["bits"],
        header=PHILOX,
        source="""
            const uint i = thread_position_in_grid.x;
            const uint4 r = philox(uint4(i, 0, 0, 7), uint2(seed[0], seed[1]));
            for (int k = 0; k < 4; ++k) bits[4 * i + k] = r[k];
        """,
    )
    seed = [0x12345678, 0x9ABCDEF0]
    (bits,) = call(
        kernel,
        [torch.tensor(seed, dtype=torch.int64).to(torch.uint32).to("mps")],
        [(64, 4)],
        [torch.uint32],
        (64, 1, 1),
        (64, 1, 1),
    )
    assert bits.cpu().tolist() == [philox([i, 0, 0, 7], seed) for i in range(64)]


def test_dropout_keeps_the_mean():
    kernel = metalops.metal_kernel(
        name="dropout",
        input_names=["x", "p", "seed"],
        output_names=["out", "mask"],
        header=PHILOX,
        source="""
            const uint i = thread_position_in_grid.x;
            const float u = philox(uint4(i, 0, 0, 0), uint2(seed, 0)).x * 0x1p-32f;
            mask[i] = u >= p;
            out[i] = mask[i] ? x[i] / (1 - p) : 0;
        """,
    )
    x = torch.ones(10000, device="mps")
    out, mask = call(
        kernel,
        [x, 0.3, 42],
        [x.shape, x.shape],
        [torch.float32, torch.bool],
        (10000, 1, 1),
        (256, 1, 1),
    )
    assert abs(out.mean().item() - 1) < 0.03
    assert torch.equal(out.cpu(), mask.cpu() / torch.tensor(1 - 0.3))


def test_three_dimensional_stencil():
    kernel = metalops.metal_kernel(
        name="laplacian",
        input_names=["u"],
        output_names=["out"],
        source="""
            const int3 at = int3(thread_position_in_grid);
            const int3 size = int3(threads_per_grid);
            const int i = (at.z * size.y + at.y) * size.x + at.x;
            const int3 step = int3(1, size.x, size.x * size.y);
            float sum = -6 * u[i];
            for (int d = 0; d < 3; ++d) {
              sum += at[d] > 0 ? u[i - step[d]] : 0.0f;
              sum += at[d] < size[d] - 1 ? u[i + step[d]] : 0.0f;
            }
            out[i] = sum;
        """,
    )
    u = device_randn(5, 6, 7)
    (out,) = call(kernel, [u], [u.shape], [u.dtype], (7, 6, 5), (4, 4, 2))
    weight = torch.zeros(3, 3, 3)
    weight[1, 1] = weight[1, :, 1] = weight[:, 1, 1] = 1
    weight[1, 1] = torch.tensor([1.0, -6.0, 1.0])
    expected = F.conv3d(u.cpu()[None, None], weight[None, None], padding=1)[0, 0]
    torch.testing.assert_close(out.cpu(), expected)


def test_softmax():
    kernel = metalops.metal_kernel(
        name="softmax",
        input_names=["x"],
        output_names=["out"],
        source="""
            const uint row = threadgroup_position_in_grid.x;
            const int D = x_shape[1];
            float top = -INFINITY, sum = 0;
            // Maximum and sum in one pass.
            for (int i = thread_index_in_simdgroup; i < D; i += threads_per_simdgroup) {
              const float value = x[row * D + i], next = max(top, value);
              sum = sum * metal::exp(top - next) + metal::exp(value - next);
              top = next;
            }
            const float all = simd_max(top);
            sum = simd_sum(isinf(top) ? 0.0f : sum * metal::exp(top - all));
            for (int i = thread_index_in_simdgroup; i < D; i += threads_per_simdgroup)
              out[row * D + i] = metal::exp(x[row * D + i] - all) / sum;
        """,
    )
    for size in (7, 32, 131):
        x = device_randn(4, size) * 5
        (out,) = call(kernel, [x], [x.shape], [x.dtype], (4 * 32, 1, 1), (32, 1, 1))
        torch.testing.assert_close(out.cpu(), x.cpu().softmax(-1))


def test_histogram():
    kernel = metalops.metal_kernel(
        name="histogram",
        input_names=["x", "low", "high"],
        output_names=["counts"],
        source="""
            // Counts of a threadgroup in its own memory first.
            threadgroup atomic_uint local[BINS];
            const uint t = thread_index_in_threadgroup, i = thread_position_in_grid.x;
            for (int b = t; b < BINS; b += dispatch_threads_per_threadgroup.x)
              atomic_store_explicit(&local[b], 0u, memory_order_relaxed);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (int(i) < x_shape[0]) {
              const int bin = clamp(int((x[i] - low) / (high - low) * BINS), 0, BINS - 1);
              atomic_fetch_add_explicit(&local[bin], 1u, memory_order_relaxed);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (int b = t; b < BINS; b += dispatch_threads_per_threadgroup.x)
              atomic_fetch_add_explicit(
                  &counts[b], atomic_load_explicit(&local[b], memory_order_relaxed), memory_order_relaxed);
        """,
        atomic_outputs=True,
    )
    x = torch.rand(1000)
    (counts,) = call(
        kernel,
        [x.to("mps"), 0.0, 1.0],
        [(16,)],
        [torch.uint32],
        (1024, 1, 1),
        (128, 1, 1),
        template=[("BINS", 16)],
        init_value=0,
    )
    assert counts.cpu().tolist() == torch.histc(x, 16, 0, 1).int().tolist()


def test_inclusive_scan():
    kernel = metalops.metal_kernel(
        name="cumsum",
        input_names=["x"],
        output_names=["out"],
        source="""
            threadgroup T sums[32];
            const uint row = threadgroup_position_in_grid.y;
            const uint t = thread_position_in_threadgroup.x, size = threads_per_threadgroup.x;
            const int D = x_shape[1];
            T before = 0;
            for (int start = 0; start < D; start += size) {
              const int i = start + t;
              T sum = simd_prefix_inclusive_sum(i < D ? x[row * D + i] : T(0));
              if (thread_index_in_simdgroup == threads_per_simdgroup - 1)
                sums[simdgroup_index_in_threadgroup] = sum;
              threadgroup_barrier(mem_flags::mem_threadgroup);
              T total = 0;
              for (uint s = 0; s < simdgroups_per_threadgroup; ++s) {
                if (s < simdgroup_index_in_threadgroup) sum += sums[s];
                total += sums[s];
              }
              if (i < D) out[row * D + i] = before + sum;
              before += total;
              threadgroup_barrier(mem_flags::mem_threadgroup);
            }
        """,
    )
    x = torch.randint(-9, 9, (3, 300), dtype=torch.int32)
    (out,) = call(
        kernel,
        [x.to("mps")],
        [x.shape],
        [x.dtype],
        (64, 3, 1),
        (64, 1, 1),
        template=[("T", torch.int32)],
    )
    assert torch.equal(out.cpu(), x.cumsum(1).int())


def test_rotary_embedding():
    kernel = metalops.metal_kernel(
        name="rope",
        input_names=["x", "offset", "base"],
        output_names=["out"],
        source="""
            const uint3 at = thread_position_in_grid;  // pair, position, head
            const uint D = x_shape[2];
            const float theta = (at.y + offset) * metal::precise::pow(base, -2.0f * at.x / D);
            const float c = metal::precise::cos(theta), s = metal::precise::sin(theta);
            const uint i = (at.z * x_shape[1] + at.y) * D + at.x;
            const float first = x[i], second = x[i + D / 2];
            out[i] = T(first * c - second * s);
            out[i + D / 2] = T(first * s + second * c);
        """,
    )
    x = device_randn(3, 5, 16)
    (out,) = call(
        kernel,
        [x, 4, 10000.0],
        [x.shape],
        [x.dtype],
        (8, 5, 3),
        (8, 4, 1),
        template=[("T", x.dtype)],
    )
    theta = (torch.arange(5.0) + 4)[:, None] * 10000.0 ** (-2 * torch.arange(8.0) / 16)
    first, second = x.cpu().chunk(2, -1)
    expected = torch.cat(
        [
            first * theta.cos() - second * theta.sin(),
            first * theta.sin() + second * theta.cos(),
        ],
        -1,
    )
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_swiglu_in_half_precision():
    kernel = metalops.metal_kernel(
        name="swiglu",
        input_names=["gate", "up"],
        output_names=["out"],
        source="""
            const uint i = thread_position_in_grid.x;
            const float g = static_cast<float>(gate[i]);
            out[i] = static_cast<T>(g / (1.0f + metal::exp(-g)) * static_cast<float>(up[i]));
        """,
    )
    gate, up = device_randn(6, 33, dtype=torch.float16), device_randn(6, 33, dtype=torch.float16)
    (out,) = call(
        kernel,
        [gate, up],
        [gate.shape],
        [gate.dtype],
        (gate.numel(), 1, 1),
        (256, 1, 1),
        template=[("T", torch.float16)],
    )
    expected = (F.silu(gate.cpu().float()) * up.cpu().float()).half()
    torch.testing.assert_close(out.cpu(), expected)


def test_causal_depthwise_convolution():
    kernel = metalops.metal_kernel(
        name="conv1d",
        input_names=["x", "w", "bias"],
        output_names=["out"],
        source="""
            const uint c = thread_position_in_grid.x, t = thread_position_in_grid.y;
            const uint b = thread_position_in_grid.z;
            const int C = x_shape[2], L = x_shape[1];
            float sum = bias[c];
            #pragma unroll
            for (int k = 0; k < KERNEL; ++k) {
              const int s = int(t) - (KERNEL - 1) + k;
              if (s >= 0) sum += x[(b * L + s) * C + c] * w[c * KERNEL + k];
            }
            out[(b * L + t) * C + c] = sum;
        """,
    )
    x, w, bias = device_randn(2, 9, 12), device_randn(12, 4), device_randn(12)
    (out,) = call(
        kernel,
        [x, w, bias],
        [x.shape],
        [x.dtype],
        (12, 9, 2),
        (12, 1, 1),
        template=[("KERNEL", 4)],
    )
    padded = F.pad(x.cpu().transpose(1, 2), (3, 0))
    expected = F.conv1d(padded, w.cpu()[:, None], bias.cpu(), groups=12).transpose(1, 2)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_linear_recurrence_with_a_state():
    """The state of a selective scan: one simdgroup for each channel, one register for each lane's share of the state."""
    kernel = metalops.metal_kernel(
        name="recurrence",
        input_names=["decay", "k", "v", "q", "state_in"],
        output_names=["y", "state_out"],
        source="""
            const uint lane = thread_index_in_simdgroup, channel = thread_position_in_grid.y;
            const int L = v_shape[0], D = v_shape[1];
            float state[N / 32];
            for (int i = 0; i < N / 32; ++i) state[i] = state_in[channel * N + i * 32 + lane];
            for (int t = 0; t < L; ++t) {
              float sum = 0;
              for (int i = 0; i < N / 32; ++i) {
                const int n = i * 32 + lane;
                state[i] = state[i] * decay[t] + k[t * N + n] * v[t * D + channel];
                sum += state[i] * q[t * N + n];
              }
              sum = simd_sum(sum);
              if (lane == 0) y[t * D + channel] = sum;
            }
            for (int i = 0; i < N / 32; ++i) state_out[channel * N + i * 32 + lane] = state[i];
        """,
    )
    length, channels, n = 6, 5, 64
    decay = torch.rand(length)
    k, q, v = torch.randn(length, n), torch.randn(length, n), torch.randn(length, channels)
    state = torch.randn(channels, n)
    y, after = call(
        kernel,
        [tensor.to("mps") for tensor in (decay, k, v, q, state)],
        [(length, channels), (channels, n)],
        [torch.float32] * 2,
        (32, channels, 1),
        (32, 4, 1),
        template=[("N", n)],
    )
    expected = []
    for t in range(length):
        state = state * decay[t] + v[t][:, None] * k[t]
        expected.append(state @ q[t])
    torch.testing.assert_close(y.cpu(), torch.stack(expected), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.cpu(), state, rtol=1e-4, atol=1e-4)


layer_norm_backward = metalops.metal_kernel(
    name="layer_norm_grad",
    input_names=["g", "x", "w", "mean", "rstd"],
    output_names=["dx"],
    source="""
        const uint row = threadgroup_position_in_grid.x, lane = thread_index_in_simdgroup;
        const int D = x_shape[1];
        float sum = 0, dot = 0;
        for (int i = lane; i < D; i += 32) {
          const float normal = (x[row * D + i] - mean[row]) * rstd[row], gw = g[row * D + i] * w[i];
          sum += gw;
          dot += gw * normal;
        }
        sum = simd_sum(sum) / D;
        dot = simd_sum(dot) / D;
        for (int i = lane; i < D; i += 32) {
          const float normal = (x[row * D + i] - mean[row]) * rstd[row];
          dx[row * D + i] = (g[row * D + i] * w[i] - sum - normal * dot) * rstd[row];
        }
    """,
)


def layer_norm_gradient(grads, inputs, outputs):
    (x, w, _), (_, mean, rstd) = inputs, outputs
    rows, _ = x.shape
    (dx,) = call(
        layer_norm_backward,
        [grads[0], x, w, mean, rstd],
        [x.shape],
        [x.dtype],
        (32 * rows, 1, 1),
        (32, 1, 1),
    )
    normal = (x - mean[:, None]) * rstd[:, None]
    return [dx, (grads[0] * normal).sum(0), grads[0].sum(0)]


def test_layer_norm_forward_and_backward():
    kernel = metalops.metal_kernel(
        name="layer_norm",
        input_names=["x", "w", "b"],
        output_names=["y", "mean", "rstd"],
        source="""
            const uint row = threadgroup_position_in_grid.x, lane = thread_index_in_simdgroup;
            const int D = x_shape[1];
            float sum = 0, square = 0;
            for (int i = lane; i < D; i += 32) sum += x[row * D + i];
            const float middle = simd_sum(sum) / D;
            for (int i = lane; i < D; i += 32) {
              const float d = x[row * D + i] - middle;
              square += d * d;
            }
            const float scale = metal::precise::rsqrt(simd_sum(square) / D + 1e-5f);
            for (int i = lane; i < D; i += 32)
              y[row * D + i] = (x[row * D + i] - middle) * scale * w[i] + b[i];
            if (lane == 0) {
              mean[row] = middle;
              rstd[row] = scale;
            }
        """,
        backward=layer_norm_gradient,
    )
    values = [torch.randn(6, 50), torch.randn(50), torch.randn(50)]
    ours = [value.to("mps").requires_grad_() for value in values]
    theirs = [value.clone().requires_grad_() for value in values]
    y, _, _ = call(
        kernel,
        ours,
        [(6, 50), (6,), (6,)],
        [torch.float32] * 3,
        (32 * 6, 1, 1),
        (32, 1, 1),
    )
    expected = F.layer_norm(theirs[0], (50,), theirs[1], theirs[2])
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-5, atol=1e-5)
    g = torch.randn(6, 50)
    y.backward(g.to("mps"))
    expected.backward(g)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.grad.cpu(), their.grad, rtol=1e-4, atol=1e-5)


def test_four_bit_matrix_vector_product():
    kernel = metalops.metal_kernel(
        name="qmv",
        input_names=["packed", "scales", "biases", "x"],
        output_names=["y"],
        source="""
            const uint row = thread_position_in_grid.y, lane = thread_index_in_simdgroup;
            const int words = packed_shape[1], groups = scales_shape[1];
            float sum = 0;
            for (int word = lane; word < words; word += threads_per_simdgroup) {
              uint32_t bits = packed[row * words + word];
              const int group = word * 8 / GROUP;
              const float scale = scales[row * groups + group], bias = biases[row * groups + group];
              for (int i = 0; i < 8; ++i, bits >>= 4)
                sum += (float(bits & 0xf) * scale + bias) * x[word * 8 + i];
            }
            sum = simd_sum(sum);
            if (lane == 0) y[row] = sum;
        """,
    )
    rows, columns, group = 10, 256, 64
    q = torch.randint(0, 16, (rows, columns))
    scales, biases = torch.rand(rows, columns // group), torch.randn(rows, columns // group)
    x = torch.randn(columns)
    packed = (q.reshape(rows, -1, 8) << (4 * torch.arange(8))).sum(-1).to(torch.uint32)
    (y,) = call(
        kernel,
        [tensor.to("mps") for tensor in (packed, scales, biases, x)],
        [(rows,)],
        [torch.float32],
        (32, rows, 1),
        (32, 2, 1),
        template=[("GROUP", group)],
    )
    dense = q * scales.repeat_interleave(group, 1) + biases.repeat_interleave(group, 1)
    torch.testing.assert_close(y.cpu(), dense @ x, rtol=1e-4, atol=1e-3)


def test_ternary_matrix_vector_product():
    """Weights -1, 0 and 1 as two bit planes, as in 1.58-bit networks."""
    kernel = metalops.metal_kernel(
        name="bit_linear",
        input_names=["plus", "minus", "x", "invert_scale"],
        output_names=["y"],
        source="""
            const uint row = thread_position_in_grid.x;
            const int words = plus_shape[1];
            int sum = 0;
            for (int word = 0; word < words; ++word) {
              const uint p = plus[row * words + word], m = minus[row * words + word];
              for (uint bit = 0; bit < 32; ++bit) {
                const int value = x[word * 32 + bit];
                sum += (p >> bit & 1) ? value : (m >> bit & 1) ? -value : 0;
              }
            }
            y[row] = sum / invert_scale;
        """,
    )
    weight, x = torch.randint(-1, 2, (9, 64)), torch.randint(-127, 128, (64,))

    def plane(mask):
        return (mask.long().reshape(9, 2, 32) << torch.arange(32)).sum(-1).to(torch.uint32)

    (y,) = call(
        kernel,
        [plane(weight == 1).to("mps"), plane(weight == -1).to("mps"), x.char().to("mps"), 4.0],
        [(9,)],
        [torch.float32],
        (9, 1, 1),
        (9, 1, 1),
    )
    torch.testing.assert_close(y.cpu(), (weight @ x) / 4.0)


def test_game_of_life():
    kernel = metalops.metal_kernel(
        name="life",
        input_names=["cells"],
        output_names=["next"],
        source="""
            const int2 at = int2(thread_position_in_grid.xy), size = int2(grid_size.xy);
            int alive = 0;
            for (int dy = -1; dy <= 1; ++dy)
              for (int dx = -1; dx <= 1; ++dx) {
                if (dx == 0 && dy == 0) continue;
                const int2 p = (at + int2(dx, dy) + size) % size;
                alive += cells[p.y * size.x + p.x];
              }
            const bool lives = cells[at.y * size.x + at.x];
            next[at.y * size.x + at.x] = alive == 3 || (lives && alive == 2);
        """,
    )
    cells = torch.rand(20, 30) < 0.4
    (after,) = call(kernel, [cells.to("mps")], [(20, 30)], [torch.bool], (30, 20, 1), (8, 8, 1))
    alive = sum(
        cells.int().roll((dy, dx), (0, 1))
        for dy in (-1, 0, 1)
        for dx in (-1, 0, 1)
        if (dy, dx) != (0, 0)
    )
    assert torch.equal(after.cpu(), (alive == 3) | (cells & (alive == 2)))


def test_sobel_filter_of_an_image():
    kernel = metalops.metal_kernel(
        name="sobel",
        input_names=["image"],
        output_names=["edges"],
        header="constant float WEIGHTS[3] = {1.0f, 2.0f, 1.0f};",
        source="""
            const int x = thread_position_in_grid.x, y = thread_position_in_grid.y;
            const int W = image_shape[1], H = image_shape[0];
            float gx = 0, gy = 0;
            for (int j = -1; j <= 1; ++j)
              for (int i = -1; i <= 1; ++i) {
                const float p = image[clamp(y + j, 0, H - 1) * W + clamp(x + i, 0, W - 1)] / 255.0f;
                gx += i * WEIGHTS[j + 1] * p;
                gy += j * WEIGHTS[i + 1] * p;
              }
            edges[y * W + x] = metal::precise::sqrt(gx * gx + gy * gy);
        """,
    )
    image = torch.randint(0, 256, (17, 23), dtype=torch.uint8)
    (edges,) = call(kernel, [image.to("mps")], [(17, 23)], [torch.float32], (23, 17, 1), (8, 8, 1))
    padded = F.pad(image[None, None].float() / 255, (1, 1, 1, 1), mode="replicate")
    weights = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    gx, gy = F.conv2d(padded, torch.stack([weights, weights.t()])[:, None])[0]
    torch.testing.assert_close(edges.cpu(), torch.hypot(gx, gy), rtol=1e-4, atol=1e-5)


def test_pairwise_distances():
    kernel = metalops.metal_kernel(
        name="cdist",
        input_names=["a", "b"],
        output_names=["out"],
        source="""
            const uint j = thread_position_in_grid.x, i = thread_position_in_grid.y;
            float sum = 0;
            for (int d = 0; d < a_shape[1]; ++d) {
              const float step = a[i * a_strides[0] + d * a_strides[1]] - b[j * b_strides[0] + d * b_strides[1]];
              sum += step * step;
            }
            out[i * b_shape[0] + j] = metal::precise::sqrt(sum);
        """,
        ensure_row_contiguous=False,
    )
    a, b = device_randn(3, 6).t(), device_randn(9, 8)[:, 1:7:2]
    (out,) = call(kernel, [a, b], [(6, 9)], [torch.float32], (9, 6, 1), (8, 8, 1))
    torch.testing.assert_close(out.cpu(), torch.cdist(a.cpu(), b.cpu()), rtol=1e-5, atol=1e-5)


def test_bitonic_sort():
    kernel = metalops.metal_kernel(
        name="bitonic",
        input_names=["x"],
        output_names=["sorted", "order"],
        source="""
            threadgroup T keys[SIZE];
            threadgroup ushort at[SIZE];
            const uint row = threadgroup_position_in_grid.y, t = thread_position_in_threadgroup.x;
            const int D = x_shape[1];
            keys[t] = int(t) < D ? x[row * D + t] : Limits<T>::max;
            at[t] = t;
            for (uint width = 2; width <= SIZE; width *= 2) {
              for (uint step = width / 2; step > 0; step /= 2) {
                threadgroup_barrier(mem_flags::mem_threadgroup);
                const uint other = t ^ step;
                if (other > t) {
                  const bool rising = (t & width) == 0;
                  const bool after = keys[t] > keys[other] || (keys[t] == keys[other] && at[t] > at[other]);
                  if (after == rising) {
                    const T key = keys[t]; keys[t] = keys[other]; keys[other] = key;
                    const ushort place = at[t]; at[t] = at[other]; at[other] = place;
                  }
                }
              }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (int(t) < D) {
              sorted[row * D + t] = keys[t];
              order[row * D + t] = at[t];
            }
        """,
    )
    x = torch.randint(-20, 20, (3, 100), dtype=torch.int32)
    values, order = call(
        kernel,
        [x.to("mps")],
        [x.shape, x.shape],
        [x.dtype, torch.int64],
        (128, 3, 1),
        (128, 1, 1),
        template=[("T", torch.int32), ("SIZE", 128)],
    )
    expected = x.sort(dim=1, stable=True)
    assert torch.equal(values.cpu(), expected.values)
    assert torch.equal(order.cpu(), expected.indices)


def test_segment_sums_with_atomics():
    kernel = metalops.metal_kernel(
        name="segment_sum",
        input_names=["x", "segments"],
        output_names=["sums"],
        source="""
            const uint column = thread_position_in_grid.x, row = thread_position_in_grid.y;
            const int D = x_shape[1];
            atomic_fetch_add_explicit(
                &sums[segments[row] * D + column], x[row * D + column], memory_order_relaxed);
        """,
        atomic_outputs=True,
    )
    x, segments = torch.randn(50, 7), torch.randint(0, 6, (50,))
    (sums,) = call(
        kernel,
        [x.to("mps"), segments.to("mps")],
        [(6, 7)],
        [torch.float32],
        (7, 50, 1),
        (7, 8, 1),
        init_value=0,
    )
    expected = torch.zeros(6, 7).index_add_(0, segments, x)
    torch.testing.assert_close(sums.cpu(), expected, rtol=1e-5, atol=1e-5)


def cross_entropy_gradient(grads, inputs, outputs):
    (logits, target), (_, normaliser) = inputs, outputs
    p = torch.exp(logits - normaliser[:, None])
    p = p - F.one_hot(target, logits.shape[1])
    return [
        grads[0][:, None] * p + grads[1][:, None] * torch.exp(logits - normaliser[:, None]),
        None,
    ]


def test_cross_entropy():
    kernel = metalops.metal_kernel(
        name="cross_entropy",
        input_names=["logits", "target"],
        output_names=["loss", "normaliser"],
        source="""
            const uint row = thread_position_in_grid.y, lane = thread_index_in_simdgroup;
            const int D = logits_shape[1];
            float top = -INFINITY;
            for (int i = lane; i < D; i += 32) top = metal::max(top, logits[row * D + i]);
            top = simd_max(top);
            float sum = 0;
            for (int i = lane; i < D; i += 32) sum += metal::exp(logits[row * D + i] - top);
            sum = simd_sum(sum);
            if (lane == 0) {
              normaliser[row] = top + metal::log(sum);
              loss[row] = normaliser[row] - logits[row * D + target[row]];
            }
        """,
        backward=cross_entropy_gradient,
    )
    logits, target = torch.randn(8, 40), torch.randint(0, 40, (8,))
    ours, theirs = logits.to("mps").requires_grad_(), logits.clone().requires_grad_()
    loss, _ = call(
        kernel,
        [ours, target.to("mps")],
        [(8,), (8,)],
        [torch.float32] * 2,
        (32, 8, 1),
        (32, 4, 1),
    )
    expected = F.cross_entropy(theirs, target, reduction="none")
    torch.testing.assert_close(loss.cpu(), expected)
    loss.mean().backward()
    expected.mean().backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_adam_in_place():
    kernel = metalops.metal_kernel(
        name="adam",
        input_names=["grad", "rate", "step"],
        output_names=[],
        inout_names=["parameter", "m", "v"],
        source="""
            const uint i = thread_position_in_grid.x;
            m[i] = metal::mix(grad[i], m[i], 0.9f);
            v[i] = metal::mix(grad[i] * grad[i], v[i], 0.999f);
            const float mean = m[i] / (1 - metal::precise::pow(0.9f, float(step)));
            const float square = v[i] / (1 - metal::precise::pow(0.999f, float(step)));
            parameter[i] -= rate * mean / (metal::precise::sqrt(square) + 1e-8f);
        """,
    )
    start = torch.randn(50)
    theirs = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.1)
    parameter = torch.nn.Parameter(start.to("mps"))
    m, v = torch.zeros(50, device="mps"), torch.zeros(50, device="mps")
    for step in range(1, 4):
        grad = torch.randn(50)
        theirs.grad = grad
        optimizer.step()
        with torch.no_grad():
            none = call(
                kernel,
                [grad.to("mps"), 0.1, step, parameter, m, v],
                [],
                [],
                (50, 1, 1),
                (256, 1, 1),
            )
        assert none == []
    torch.testing.assert_close(parameter.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-5)


def test_transpose_through_threadgroup_memory():
    kernel = metalops.metal_kernel(
        name="transpose",
        input_names=["x"],
        output_names=["out"],
        source="""
            threadgroup T tile[16][17];
            const uint2 t = thread_position_in_threadgroup.xy;
            const uint2 from = threadgroup_position_in_grid.xy * 16 + t;
            const uint2 to = threadgroup_position_in_grid.yx * 16 + t;
            const uint rows = x_shape[0], columns = x_shape[1];
            if (from.x < columns && from.y < rows) tile[t.y][t.x] = x[from.y * columns + from.x];
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (to.x < rows && to.y < columns) out[to.y * rows + to.x] = tile[t.x][t.y];
        """,
    )
    x = torch.randint(0, 255, (21, 45), dtype=torch.uint8)
    (out,) = call(
        kernel,
        [x.to("mps")],
        [(45, 21)],
        [x.dtype],
        (48, 32, 1),
        (16, 16, 1),
        template=[("T", torch.uint8)],
    )
    assert torch.equal(out.cpu(), x.t())


def test_julia_iteration_of_complex_numbers():
    kernel = metalops.metal_kernel(
        name="julia",
        input_names=["z", "c"],
        output_names=["out"],
        source="""
            const uint i = thread_position_in_grid.x;
            complex64_t value = z[i];
            for (int k = 0; k < 3; ++k) value = value * value + c;
            out[i] = value;
        """,
    )
    z = torch.randn(20, dtype=torch.complex64) * 0.5
    (out,) = call(
        kernel, [z.to("mps"), -0.8 + 0.156j], [z.shape], [z.dtype], (20, 1, 1), (20, 1, 1)
    )
    for _ in range(3):
        z = z * z + (-0.8 + 0.156j)
    torch.testing.assert_close(out.cpu(), z, rtol=1e-5, atol=1e-5)
