"""The kernels that ship in torch's headers compile, and agree with torch's CPU results."""

import math
import struct

import pytest
import torch
from metalops import msl

pytestmark = pytest.mark.nightly

PREAMBLE = """
#include <c10/metal/common.h>
#include <c10/metal/reduction_utils.h>
#include <c10/metal/utils.h>
#include <metal_simdgroup>
#include <metal_stdlib>
using namespace metal;
"""

EVERY_HEADER = "".join(
    f"#include <c10/metal/{name}.h>\n"
    for name in "atomic common error expm1f igamma indexing random reduction_utils special_math utils".split()
)


def library(header, *kernels, more=""):
    from metalops import _host

    source = PREAMBLE + more + f"#include <ATen/native/mps/kernels/{header}.h>\n"
    return _host.Library(msl.compile_source(source, options=msl.Options(kernels=kernels)))


def ints(*values, kind="i"):
    return struct.pack(f"{len(values)}{kind}", *values)


def test_all_of_c10_metal_compiles(bare_program):
    p = bare_program(
        EVERY_HEADER
        + """
        struct f_functor { template <typename T> inline T operator()(const T x) { return c10::metal::i1e(x); } };
        REGISTER_UNARY_OP(f, float, float);
        REGISTER_UNARY_OP(f, half, half);
        struct g_functor { template <typename T> inline T operator()(const T a, const T b) { return a * b; } };
        REGISTER_BINARY_OP(g, float2, float2);
        """
    )
    x = torch.randn(1000) * 3
    out = torch.empty_like(x)
    p.launch("f_dense_scalar_float_float", out, x, grid=1000, group=256)
    torch.testing.assert_close(out, torch.special.i1e(x))


TYPES = [(torch.float, "float"), (torch.half, "half"), (torch.bfloat16, "bfloat")]
TOLERANCE = {torch.float: 1e-5, torch.half: 2e-3, torch.bfloat16: 2e-2}


def attention(q, k, v, **options):
    """In float64, with grouped keys and values."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1).double() for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q.double(), k, v, **options)


@pytest.mark.parametrize("dtype, name", TYPES)
def test_decode_attention(dtype, name):
    kernel = f"sdpa_vector_{name}_64_64_masknone"
    batch, heads, kv_heads, queries, keys, size = 2, 4, 2, 2, 37, 64
    q = torch.randn(batch, heads, queries, size).to(dtype)
    k, v = (torch.randn(batch, kv_heads, keys, size).to(dtype) for _ in range(2))
    out = torch.zeros(batch, heads, queries, size, dtype=dtype)
    head_strides = ints(queries * size, keys * size, keys * size, 0)
    row_strides = ints(size, size, size, 0)
    batch_strides = ints(
        heads * queries * size, kv_heads * keys * size, kv_heads * keys * size, heads
    )
    buffers = [
        q, k, v, out, ints(heads // kv_heads), ints(keys), head_strides, row_strides,
        struct.pack("f", 1 / math.sqrt(size)), None, None, batch_strides,
    ]  # fmt: skip
    library("DecodeAttention", kernel).launch(
        kernel, buffers, (batch * heads * 1024, queries, 1), (1024, 1, 1)
    )
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.double(), attention(q, k, v), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    "dtype, name, causal", [(torch.float, "float32", 0), (torch.half, "float16", 1)]
)
def test_prefill_attention(dtype, name, causal):
    kernel = f"prefill_attention_{name}_bq32_bk32_bd64_wm4_wn1_hm0_dc{causal}_mask{name}"
    batch, heads, kv_heads, queries, keys, size = 2, 4, 2, 45, 45 + 32 * (1 - causal), 64
    q = torch.randn(batch, heads, queries, size).to(dtype)
    k, v = (torch.randn(batch, kv_heads, keys, size).to(dtype) for _ in range(2))
    out = torch.zeros(batch, heads, queries, size, dtype=dtype)
    params = ints(batch, heads, size, queries, keys, heads // kv_heads)
    params += struct.pack("ff", 1 / math.sqrt(size), 1.0)
    for tensor in (q, k, v, out):
        params += ints(*tensor.stride()[:3])
    groups = -(-queries // 32)
    library("PrefillAttention", kernel).launch(
        kernel, [q, k, v, out, params, None, None], (groups * 32, heads * 4, batch), (32, 4, 1)
    )
    tolerance = TOLERANCE[dtype]
    expected = attention(q, k, v, is_causal=bool(causal))
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    "dtype, name", [(torch.float, "float"), (torch.bfloat16, "bfloat"), (torch.long, "long")]
)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_in_one_block(dtype, name, descending):
    kernel = f"sort_block_{name}_tptg64_stable"
    rows, size = 3, 250
    x = torch.randint(-50, 50, (rows, size)).to(dtype)
    if dtype.is_floating_point:
        x[0, 5], x[1, 6], x[2, 7] = math.nan, math.inf, -math.inf
    values, indices = torch.zeros_like(x), torch.zeros(rows, size, dtype=torch.long)
    library("SortMerge", kernel).launch(
        kernel,
        [x, values, indices, ints(size), ints(1, size, kind="q"), bytes([descending])],
        (64, rows, 1),
        (64, 1, 1),
    )
    expected = torch.sort(x, stable=True, descending=descending)
    torch.testing.assert_close(values, expected.values, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(indices, expected.indices)


def test_sort_in_several_blocks():
    names = ["mb_sort_block_int_tptg32_stable", "mb_merge_int_tptg32", "mb_merge_final_int_tptg32"]
    lib = library("SortMerge", *names)
    rows, size, block = 2, 700, 32 * 4
    blocks = -(-size // block)
    x = torch.randint(-1000, 1000, (rows, size), dtype=torch.int32)
    values = [torch.zeros_like(x) for _ in range(2)]
    indices = [torch.zeros_like(x) for _ in range(2)]
    final = torch.zeros(rows, size, dtype=torch.long)
    grid, group = (32 * blocks, rows, 1), (32, 1, 1)
    lib.launch(
        names[0],
        [x, values[0], indices[0], ints(size), ints(1, size, kind="q"), b"\0"],
        grid,
        group,
    )
    tiles = 2
    while True:
        last = tiles >= blocks
        target = final if last else indices[1]
        lib.launch(
            names[2] if last else names[1],
            [values[0], indices[0], values[1], target, ints(size, tiles, blocks, 0), b"\0"],
            grid,
            group,
        )
        values.reverse()
        indices.reverse()
        if last:
            break
        tiles *= 2
    expected = torch.sort(x, stable=True)
    assert torch.equal(values[0], expected.values) and torch.equal(final, expected.indices)


def test_radix_sort():
    """Two passes over eight bits each, as torch sorts 16-bit values."""
    names = [f"radix_{step}_short_8bit" for step in ("count", "scatter", "scatter_final")]
    more = "#include <ATen/native/mps/kernels/SortMerge.h>\n"
    lib = library("SortRadix", *names, "radix_scan", more=more)
    rows, size, block = 2, 5000, 1024 * 4
    blocks = -(-size // block)
    x = torch.randint(-(2**15), 2**15, (rows, size), dtype=torch.int16)
    keys, more_keys = x.clone(), torch.zeros_like(x)
    indices = torch.zeros(rows, size, dtype=torch.int32)
    final = torch.zeros(rows, size, dtype=torch.long)
    grid, group = (1024 * blocks, rows, 1), (1024, 1, 1)
    for number in range(2):
        histogram = torch.zeros(rows, 256 * blocks, dtype=torch.int32)
        dims = ints(size, blocks, 8 * number, 0)
        lib.launch(names[0], [keys, histogram, dims, b"\0"], grid, group)
        lib.launch("radix_scan", [histogram, ints(256 * blocks)], (1024, rows, 1), group)
        lib.launch(
            names[1 + number],
            [
                keys,
                indices,
                more_keys,
                final if number else indices,
                histogram,
                dims,
                bytes([0, number == 0]),
            ],
            grid,
            group,
        )
        keys, more_keys = more_keys, keys
    expected = torch.sort(x, stable=True)
    assert torch.equal(keys, expected.values)
    assert torch.equal(x.gather(1, final), expected.values)
    assert torch.equal(final, expected.indices)


def test_top_k():
    kernel = "sort_block_topk_float_tptg64"
    lib = library("SortTopK", kernel)
    rows, size, count = 3, 200, 7
    x = torch.randn(rows, size)
    values, indices = torch.zeros(rows, count), torch.zeros(rows, count, dtype=torch.long)
    lib.launch(
        kernel,
        [x, values, indices, ints(size), ints(1, size, kind="q"), b"\1", ints(0, count)],
        (64, rows, 1),
        (64, 1, 1),
    )
    expected = torch.topk(x, count)
    assert torch.equal(values, expected.values) and torch.equal(indices, expected.indices)
