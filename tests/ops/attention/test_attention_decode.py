"""paged_attention and merge_attention: kernels/attention/attention_decode.metal."""

import itertools
import math

import pytest
import torch
from metalops import flash_attn, ops
from metalops.testing import no_standins
from metalops.testing.samples import FLOATS
from torch.nn import functional

from ..benchmark import Benchmark
from ..direct import as_bytes, kernels

OTHERS = ("paged_attention", "merge_attention")

devices = pytest.mark.parametrize("device", ["mps", "cpu"])
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)
METAL = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}
CODES = {torch.int8: "char", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}

# Of results, for inputs of N(0, 1).
GUARD_RAIL = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def _one_query(x):
    """x as keys of 64 features and 8 heads in pages of 64 tokens, or of 1 head where that is too much, one query, and what
    there is to know of the pages."""
    heads, tokens = (8, 64) if x.numel() >= 8 * 64 * 64 else (1, 4)
    size = x.numel() // (heads * tokens * 64) * (heads * tokens * 64)
    keys = x.reshape(-1)[:size].view(-1, tokens, heads, 64)
    query = x.reshape(-1)[: heads * 64].view(1, heads, 64)
    pages = len(keys)
    table = torch.arange(pages, dtype=torch.int32, device=x.device)[None]
    return query, keys, table, torch.full((1,), tokens * pages, dtype=torch.int32, device=x.device)


def _ours(x, out):
    query, keys, table, lengths = _one_query(x)
    return ops.paged_attention(query, keys, keys, table, lengths)


def _theirs(x, out):
    query, keys, _, _ = _one_query(x)
    keys = keys.flatten(0, 1).transpose(0, 1)[None]
    return functional.scaled_dot_product_attention(query[:, :, None], keys, keys)[:, :, 0]


BENCHMARKS = (Benchmark("paged_attention, one query", _ours, _theirs, composed=True),)


# ---- the reference -------------------------------------------------------------------------------


def attention(
    query, key, value, *, scale, window=(-1, -1), softcap=0.0, sinks=None, slopes=None, mask=None
):
    """Of query (L, Hq, E) over key (S, Hkv, E) and value (S, Hkv, Ev) in float64, one head after the other; diagonals end in the
    last key. mask: (Hq, L, S), bool or to add. The result, and its log-sum-exp (L, Hq)."""
    queries, heads, _ = query.shape
    outs, lses = [], []
    for head in range(heads):
        of_key = head // (heads // key.shape[1])
        scores = scale * query[:, head].double() @ key[:, of_key].double().T
        if softcap > 0:
            scores = softcap * torch.tanh(scores / softcap)
        place = torch.arange(queries)[:, None] + len(key) - queries - torch.arange(len(key))
        if slopes is not None:
            scores = scores - slopes[head].double() * place.abs()
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask[head, :, : len(key)], -math.inf)
        elif mask is not None:
            scores = scores + mask[head, :, : len(key)].double()
        if window[0] >= 0:
            scores = scores.masked_fill(place > window[0], -math.inf)
        if window[1] >= 0:
            scores = scores.masked_fill(-place > window[1], -math.inf)
        sink = -math.inf if sinks is None else sinks[head].double().item()
        lse = torch.cat([scores, scores.new_full((queries, 1), sink)], 1).logsumexp(1)
        weights = torch.exp(scores - torch.where(lse == -math.inf, 0, lse)[:, None])
        outs.append(weights @ value[:, of_key].double())
        lses.append(lse)
    return torch.stack(outs, 1), torch.stack(lses, 1)


def decoded(codes, scale):
    """A cache as numbers."""
    return codes.double() if scale is None else codes.double() * float(scale)


class Cache:
    """Keys and values of sequences of the given lengths, in pages of a cache that is NaN elsewhere."""

    def __init__(self, lengths, heads, sizes, page_size, dtype, pages=None, scale=None):
        columns = pages or max(-(-max(lengths) // page_size), 1) + 1
        count = len(lengths) * columns + 2
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self.table = torch.randperm(count)[: len(lengths) * columns].int()
        self.table = self.table.reshape(len(lengths), columns)
        self.scale = scale
        stored = torch.float32 if dtype in CODES else dtype
        self.caches, self.numbers = [], []
        for size in sizes:
            numbers = [torch.randn(length, heads, size).to(stored) for length in lengths]
            if dtype == torch.int8:
                numbers = [torch.randint(-128, 128, x.shape).to(dtype) for x in numbers]
            elif dtype in CODES:
                numbers = [(8 * x).to(dtype) for x in numbers]
            cache = torch.full((count, page_size, heads, size), 77 if dtype == torch.int8 else math.nan, dtype=stored)  # fmt: skip
            cache = cache.to(dtype)
            for tokens, pages_of, length in zip(numbers, self.table, lengths):
                for place in range(length):
                    page = pages_of[place // page_size]
                    cache[page, place % page_size] = tokens[place]
            self.caches.append(cache)
            self.numbers.append([decoded(x, scale) for x in numbers])
        for row, length in zip(self.table, lengths):
            row[-(-length // page_size) :] = -7  # what is behind the last page does not matter

    def to(self, device):
        tensors = [*self.caches, self.table, self.lengths]
        if device == "mps" and self.caches[0].dtype in CODES:
            moved = [x.view(torch.uint8).to(device).view(x.dtype) for x in self.caches]
            return [*moved, *(x.to(device) for x in tensors[2:])]
        return [x.to(device) for x in tensors]


def check(device, query, cache, *, tolerance, **options):
    """Against the reference, sequence by sequence."""
    call = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with no_standins():
        out, lse = ops.paged_attention(
            query.to(device),
            *cache.to(device),
            k_scale=cache.scale,
            v_scale=cache.scale,
            return_lse=True,
            **call,
        )
    assert out.dtype == query.dtype and lse.dtype == torch.float32
    out, lse = out.cpu(), lse.cpu()
    if query.dim() == 3:
        assert out.shape[:2] == query.shape[:2]
        query, out, lse = query[:, None], out[:, None], lse[:, None]
    window = (options.get("window_size", (-1, -1))[0], 0)
    slopes = options.get("alibi_slopes")
    for i in range(len(query)):
        expected, expected_lse = attention(
            query[i],
            *(numbers[i] for numbers in cache.numbers),
            scale=options.get("scale", query.shape[-1] ** -0.5),
            window=window,
            softcap=options.get("softcap", 0.0),
            sinks=options.get("sinks"),
            slopes=slopes[i] if slopes is not None and slopes.dim() == 2 else slopes,
        )
        torch.testing.assert_close(out[i].double(), expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(lse[i].double(), expected_lse, rtol=1e-5, atol=1e-4)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# ---- paged_attention -----------------------------------------------------------------------------


@devices
@dtypes
@pytest.mark.parametrize("heads, key_heads", [(1, 1), (4, 4), (8, 2), (12, 1)])
def test_heads_in_groups(device, dtype, heads, key_heads):
    cache = Cache([37, 1, 16, 0, 129], key_heads, (64, 64), 16, dtype)
    query = torch.randn(5, heads, 64).to(dtype)
    check(device, query, cache, tolerance=GUARD_RAIL[dtype])


@devices
@pytest.mark.parametrize("page_size", [8, 16, 24, 32, 64, 128, 256])
def test_pages_of_any_size(device, page_size):
    cache = Cache([page_size - 1, page_size, 2 * page_size + 1], 2, (32, 32), page_size, FLOATS[0])
    check(device, torch.randn(3, 4, 32), cache, tolerance=2e-5)


@devices
@pytest.mark.parametrize(
    "size, value_size", [(1, 1), (7, 5), (16, 48), (72, 80), (96, 96), (128, 64), (192, 128), (256, 256)]
)  # fmt: skip
def test_features_of_any_number(device, size, value_size):
    cache = Cache([19, 33], 2, (size, value_size), 8, torch.float32)
    check(device, torch.randn(2, 4, size), cache, tolerance=2e-5)


@devices
@pytest.mark.parametrize("queries", [1, 2, 3, 8, 17])
def test_the_last_tokens_see_what_is_not_behind_them(device, queries):
    cache = Cache([40, queries, 1], 2, (64, 64), 16, torch.float32)
    check(device, torch.randn(3, queries, 6, 64), cache, tolerance=2e-5)


OPTIONS = {
    "scale": {"scale": -0.3},
    "window": {"window_size": (5, 3)},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "slopes": {"alibi_slopes": 1},
    "slopes of samples": {"alibi_slopes": 2},
    "all": {"scale": 0.2, "window_size": (20, -1), "softcap": 3.0, "sinks": True, "alibi_slopes": 2},
}  # fmt: skip


@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("name", OPTIONS)
def test_options(device, dtype, queries, name):
    options = dict(OPTIONS[name])
    if "sinks" in options:
        options["sinks"] = torch.randn(4).to(dtype)
    if "alibi_slopes" in options:
        sizes = (4,) if options["alibi_slopes"] == 1 else (3, 4)
        options["alibi_slopes"] = torch.rand(sizes)
    cache = Cache([50, 0, 33], 2, (64, 64), 16, dtype)
    query = torch.randn(3, queries, 4, 64).to(dtype)
    check(device, query, cache, tolerance=GUARD_RAIL[dtype], **options)


@devices
@pytest.mark.parametrize("codes", CODES, ids=str)
@dtypes
@pytest.mark.parametrize(
    "sizes, as_tensor", [((64, 32), False), ((64, 32), True), ((21, 13), False)]
)
def test_caches_of_codes(device, codes, dtype, sizes, as_tensor):
    scale = 0.0173
    cache = Cache([37, 5], 2, sizes, 16, codes, scale=scale)
    if as_tensor:
        cache.scale = torch.tensor(scale, device=device)
    query = torch.randn(2, 4, sizes[0]).to(dtype)
    check(device, query, cache, tolerance=2 * GUARD_RAIL[dtype])


def random_mask(kind, *sizes):
    """Hides keys, or is added to scores: which it does and its dtype are the kind."""
    return torch.rand(sizes) > 0.4 if kind == torch.bool else (2 * torch.randn(sizes)).to(kind)


def check_few_queries(query, key, value, mask=None, window=(-1, -1)):
    """ops.attention of (B, H, L, E), without pages, against the reference."""
    tensors = [x if x is None else x.to("mps") for x in (query, key, value, mask)]
    with no_standins():
        out, lse = ops.attention(
            *tensors, window_size=window, causal_alignment="bottom_right", return_lse=True
        )
    scale = query.shape[-1] ** -0.5
    for i in range(len(query)):
        tokens = (x[i].transpose(0, 1) for x in (query, key, value))
        mask_i = None if mask is None else mask[i]
        expected, expected_lse = attention(*tokens, scale=scale, window=window, mask=mask_i)
        result, rail = out[i].cpu().transpose(0, 1).double(), GUARD_RAIL[query.dtype]
        torch.testing.assert_close(result, expected, rtol=rail, atol=rail)
        torch.testing.assert_close(lse[i].T.cpu().double(), expected_lse, rtol=1e-5, atol=1e-4)


@dtypes
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("heads, key_heads", [(5, 1), (2, 2)])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32, None], ids=str)
def test_few_queries_under_a_mask(dtype, queries, heads, key_heads, kind):
    """Which is another one for each row; the rows are no multiple of what a kernel takes."""
    query = torch.randn(2, heads, queries, 20).to(dtype)
    key, value = (torch.randn(2, key_heads, 45, size).to(dtype) for size in (20, 12))
    check_few_queries(query, key, value, random_mask(kind or dtype, 2, heads, queries, 45))


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("window", [(5, -1), (-1, 3), (5, 3), (0, 0), (40, 40)], ids=str)
@pytest.mark.parametrize("keys", [2, 30])
def test_few_queries_in_a_window(queries, window, keys):
    """Also where there are fewer keys than queries, the first of which see nothing then."""
    query = torch.randn(2, 4, queries, 20)
    key, value = (torch.randn(2, 2, keys, size) for size in (20, 12))
    check_few_queries(query, key, value, window=window)


@devices
def test_lengths_end_where_there_is_no_room_for_more(device):
    cache = Cache([32, 5], 2, (8, 8), 16, torch.float32, pages=2)
    query = torch.randn(2, 4, 8).to(device)
    pages = cache.to(device)
    expected = ops.paged_attention(query, *pages)
    pages[-1] = torch.tensor([33, 5], dtype=torch.int32, device=device)
    assert torch.equal(ops.paged_attention(query, *pages), expected)
    pages[-1] = torch.tensor([32, -4], dtype=torch.int32, device=device)
    result = ops.paged_attention(query, *pages)
    assert torch.equal(result[0], expected[0]) and not result[1].any()


@devices
def test_sequences_that_begin_behind_their_end_are_empty(device):
    keys, values = (torch.randn(3, 12, 2, 8, device=device) for _ in range(2))
    query = torch.randn(3, 1, 4, 8, device=device)
    ends, starts = (
        torch.tensor(x, dtype=torch.int32, device=device) for x in ([9, 9, 9], [4, 9, 11])
    )
    out = flash_attn.flash_attn_with_kvcache(
        query, keys, values, cache_seqlens=ends, cache_leftpad=starts
    )
    tokens = (x[:1, 4:9] for x in (keys, values))
    expected = flash_attn.flash_attn_with_kvcache(query[:1], *tokens, cache_seqlens=5)
    torch.testing.assert_close(out[:1], expected, rtol=1e-5, atol=1e-6)
    assert not out[1:].any()


@devices
@pytest.mark.parametrize("queries", [1, 2])
def test_long_sequences_in_parts(device, queries):
    """So long that the keys are shared out, with a sequence that is short and one that is empty."""
    cache = Cache([2300, 3, 0], 2, (32, 32), 64, torch.float32)
    check(device, torch.randn(3, queries, 4, 32), cache, tolerance=2e-5)


def test_results_do_not_change_from_call_to_call():
    cache = Cache([1500, 700], 2, (64, 64), 64, torch.float16)
    query = torch.randn(2, 8, 64).half().to("mps")
    first = ops.paged_attention(query, *cache.to("mps"))
    assert all(torch.equal(first, ops.paged_attention(query, *cache.to("mps"))) for _ in range(3))


@devices
def test_strided_tensors(device):
    cache = Cache([37, 21], 2, (64, 64), 16, torch.float32)
    # Keys and values side by side, as vLLM has them, and queries that are a part of more.
    both = torch.stack(cache.caches, 1)
    query = torch.randn(2, 6, 64)
    wide = torch.cat([query, query], -1).to(device)
    key_cache, value_cache = both.to(device).unbind(1)
    table = torch.stack([cache.table, cache.table], -1).to(device)[..., 0]
    out = ops.paged_attention(wide[..., :64], key_cache, value_cache, table, cache.lengths.to(device))  # fmt: skip
    torch.testing.assert_close(
        out, ops.paged_attention(query.to(device), *cache.to(device)), rtol=1e-5, atol=1e-6
    )


@devices
def test_out(device):
    cache = Cache([9], 1, (8, 8), 8, torch.float32)
    query = torch.randn(1, 2, 8).to(device)
    out = torch.full((1, 2, 8), math.nan, device=device)
    result = ops.paged_attention(query, *cache.to(device), out=out)
    assert result is out
    assert torch.equal(out, ops.paged_attention(query, *cache.to(device)))


@devices
@pytest.mark.parametrize("page", [99, 4, -1])
def test_a_page_that_there_is_not_is_an_error(device, page):
    cache = Cache([9], 1, (8, 8), 8, torch.float32, pages=2)
    assert len(cache.caches[0]) == 4
    cache.table[0, 1] = page
    with pytest.raises(RuntimeError, match=f"block_table has page {page}, but there are"):
        ops.paged_attention(torch.randn(1, 1, 8).to(device), *cache.to(device)).cpu()


def _wrong():
    cache = Cache([9, 3], 2, (8, 8), 8, torch.float32)
    good = [torch.randn(2, 4, 8), *cache.to("cpu")]
    for message, place, wrong in (
        (r"query must have 3 or 4 dimensions, but has sizes \[4, 8\]", 0, good[0][0]),
        ("key_cache must have the dtype of query.*Half", 1, good[1].half()),
        ("as many features as query, 8", 1, good[1][..., :4]),
        (r"multiple of the heads of key_cache, 2, but has sizes \[2, 1, 3, 8\]", 0, good[0][:, :3]),
        ("block_table must be int32", 3, good[3].long()),
        ("seq_lens must be integers", 4, good[4].float()),
    ):
        yield message, [wrong if i == place else x for i, x in enumerate(good)]


@devices
def test_errors_name_the_operator_and_the_argument(device):
    for message, args in _wrong():
        message = message.replace("Half", "(Half|float16)")
        with pytest.raises(RuntimeError, match="paged_attention: .*" + message):
            ops.paged_attention(*(x.to(device) for x in args))
    args = [x.to(device) for x in next(_wrong())[1][1:]]
    query = torch.randn(2, 4, 8)
    with pytest.raises(NotImplementedError, match="paged_attention"):
        ops.paged_attention(query.int().to(device), *args)
    with pytest.raises(
        ValueError,
        match="paged_attention: softcap must be a finite number of float32 that is not negative, but is -1",
    ):
        ops.paged_attention(query.to(device), *args, softcap=-1)
    with pytest.raises(RuntimeError, match="paged_attention: k_scale must be a number"):
        ops.paged_attention(query.to(device), *args, k_scale=torch.ones(2))
    for wrong, message in (
        ({"sinks": torch.ones(0)}, "sinks must be .*4.*0"),
        ({"sinks": torch.ones(4).int()}, "sinks must be"),
        ({"alibi_slopes": torch.ones(2)}, "alibi_slopes must be .*4.*2"),
        ({"alibi_slopes": torch.ones(3, 4)}, "alibi_slopes must be"),
    ):
        options = {name: x.to(device) for name, x in wrong.items()}
        with pytest.raises(RuntimeError, match="paged_attention: " + message):
            ops.paged_attention(query.to(device), *args, **options)


# ---- the kernels of GPUs ---------------------------------------------------------------------------


def launched(query, key, value, table, lengths, *, splits, window_left=-1, scale=1.0, mask=None):
    """What kernels for GPUs make of query (B, L, Hq, E), on the software device too: the result and its log-sum-exp. scale: of
    the cache's codes. mask: (B, Hq, L, S)."""
    library = kernels("attention_decode")
    batch, queries, heads, size = query.shape
    _, page_size, key_heads, value_size = value.shape
    group = heads // key_heads
    codes = CODES.get(key.dtype)
    rows = 4 if codes or 1 < queries * group <= 4 else 1 if queries * group == 1 else 8
    mask_kind = 0 if mask is None else {torch.bool: 1, torch.float32: 2}.get(mask.dtype, 3)
    row_blocks = -(-queries * group // rows)
    out = torch.empty(batch, queries, heads, value_size, dtype=query.dtype, device="mps")
    lse = torch.empty(batch, heads, queries, device="mps")
    all_rows = batch * heads * queries
    part_outs = torch.empty(all_rows, splits, value_size, device="mps")
    part_sums = torch.empty(all_rows, splits, 2, device="mps")
    parameters = as_bytes(
        "21q15i3f8?",
        *(stride for x in (query, key, value, out) for stride in x.stride()[:3]),
        *(lse.stride(0), lse.stride(2), lse.stride(1)),
        *((0, 0, 0, 0) if mask is None else mask.stride()),
        *(table.stride(0), 0),
        *(batch, key_heads, group, queries, table.shape[1] * page_size, size, value_size, splits),
        *(row_blocks, page_size, -1, len(key), window_left, 0, mask_kind),
        *(scale * size**-0.5, scale, 0.0),
        *(True, True, False, False, False, False, False, size % 8 == value_size % 8 == 0),
    )
    name = METAL[query.dtype]
    largest = next(n for n in (64, 128, 256) if max(size, value_size) <= n)
    tensors = (out, lse, part_outs, part_sums, query, key, value, table)
    getattr(library, f"attention_decode_{name}_{codes or name}_{rows}_{largest}")(
        *tensors,
        *(table, lengths, lse if mask is None else mask, lse, lse, lse, lse, parameters),
        threads=128 * batch * key_heads * splits * row_blocks,
        group_size=128,
        error_buf_idx=16,
    )
    if splits > 1:
        simdgroups = all_rows * -(-value_size // 32)
        getattr(library, f"attention_decode_combine_simdgroup_{name}")(
            *(out, lse, part_outs, part_sums, lse, lse, parameters),
            threads=[simdgroups * 32, 1],
            group_size=[32, 1],
        )
    return out.cpu(), lse.cpu()


def check_kernels_of_gpus(query, cache, *, splits, window_left=-1, mask=None):
    tensors = (query.to("mps"), *cache.to("mps"))
    scale = 1.0 if cache.scale is None else cache.scale
    on_device = None if mask is None else mask.to("mps")
    out, lse = launched(
        *tensors, splits=splits, window_left=window_left, scale=scale, mask=on_device
    )
    for i in range(len(query)):
        expected, expected_lse = attention(
            query[i],
            *(numbers[i] for numbers in cache.numbers),
            scale=query.shape[-1] ** -0.5,
            window=(window_left, 0),
            mask=None if mask is None else mask[i],
        )
        rail = GUARD_RAIL[query.dtype] * (1 if cache.scale is None else 2)
        torch.testing.assert_close(out[i].double(), expected, rtol=rail, atol=rail)
        torch.testing.assert_close(lse[i].T.double(), expected_lse, rtol=1e-5, atol=1e-4)


@pytest.mark.sampled(16)
@dtypes
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("queries, heads", [(1, 2), (1, 8), (3, 6)])
@pytest.mark.parametrize("sizes", [(64, 64), (40, 24), (128, 96), (256, 192), (13, 7)])
def test_kernels_of_gpus(dtype, splits, queries, heads, sizes):
    cache = Cache([301, 2, 0], 2, sizes, 16, dtype)
    query = torch.randn(3, queries, heads, sizes[0]).to(dtype)
    check_kernels_of_gpus(query, cache, splits=splits, window_left=250)


@pytest.mark.sampled(6)
@dtypes
@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize("sizes", [(64, 32), (21, 13)])
def test_kernels_of_gpus_on_codes(dtype, codes, sizes):
    cache = Cache([37, 5], 2, sizes, 16, codes, scale=0.0173)
    query = torch.randn(2, 3, 6, sizes[0]).to(dtype)
    check_kernels_of_gpus(query, cache, splits=2)


@dtypes
@pytest.mark.parametrize("kind", [torch.bool, torch.float32, None], ids=str)
def test_kernels_of_gpus_under_a_mask(dtype, kind):
    cache = Cache([37, 12], 2, (40, 24), 16, dtype)
    query = torch.randn(2, 3, 6, 40).to(dtype)
    mask = random_mask(kind or dtype, 2, 6, 3, 37)
    check_kernels_of_gpus(query, cache, splits=2, mask=mask)


# ---- merge_attention -----------------------------------------------------------------------------


def merged(out_a, lse_a, out_b, lse_b):
    """The reference."""
    lse = torch.logaddexp(lse_a, lse_b)
    weights = [torch.exp(x - lse)[..., None] for x in (lse_a, lse_b)]
    return weights[0] * out_a + weights[1] * out_b, lse


@devices
@dtypes
def test_results_over_other_keys_are_put_together(device, dtype):
    outs = [torch.randn(3, 5, 40).to(dtype) for _ in range(2)]
    lses = [4 * torch.randn(3, 5) for _ in range(2)]
    args = [outs[0], lses[0], outs[1], lses[1]]
    with no_standins():
        out, lse = ops.merge_attention(*(x.to(device) for x in args))
    expected = merged(*(x.double() for x in args))
    rail = GUARD_RAIL[dtype]
    torch.testing.assert_close(out.cpu().double(), expected[0], rtol=rail, atol=rail)
    torch.testing.assert_close(lse.cpu().double(), expected[1], rtol=1e-5, atol=1e-5)


@devices
def test_what_has_seen_nothing_takes_no_part(device):
    out_a, out_b = torch.full((3, 4), math.nan), torch.randn(3, 4)
    lse_a, lse_b = torch.full((3,), -math.inf), torch.tensor([1.0, -2.0, -math.inf])
    out, lse = ops.merge_attention(*(x.to(device) for x in (out_a, lse_a, out_b, lse_b)))
    assert torch.equal(lse.cpu(), lse_b)
    assert torch.equal(out.cpu(), torch.where(lse_b[:, None] == -math.inf, 0, out_b))


@devices
def test_gradients_of_what_is_put_together(device):
    args = [torch.randn(3, 5, 40), torch.randn(3, 5), torch.randn(3, 5, 40), torch.randn(3, 5)]
    grads = [torch.randn(3, 5, 40), torch.randn(3, 5)]
    inputs = [x.clone().to(device).requires_grad_() for x in args]
    with no_standins():
        results = ops.merge_attention(*inputs)
        found = torch.autograd.grad(results, inputs, [x.to(device) for x in grads])
    doubles = [x.double().detach().requires_grad_() for x in args]
    expected = torch.autograd.grad(merged(*doubles), doubles, [x.double() for x in grads])
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours.cpu().double(), theirs, rtol=1e-4, atol=1e-5)


@devices
def test_halves_of_the_keys_make_the_whole(device):
    cache = Cache([64], 2, (16, 16), 16, torch.float32)
    query = torch.randn(1, 4, 16)
    key, value, table, lengths = cache.to(device)
    whole = ops.paged_attention(query.to(device), key, value, table, lengths, return_lse=True)
    halves = [
        ops.paged_attention(query.to(device), key, value, part, lengths // 2, return_lse=True)
        for part in (table[:, :2], table[:, 2:])
    ]
    parts = ops.merge_attention(*itertools.chain(*halves))
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)


# ---- torch.compile -------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["mps", "cpu"])
def test_opcheck(device):
    cache = Cache([19, 7], 2, (16, 16), 8, torch.float32)
    key, value, table, lengths = cache.to(device)
    query = torch.randn(2, 3, 4, 16, device=device)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    numbers = (0.25, 1.0, -1, 0, 0.0)
    args = (query, key, value, table, lengths, None, None, None, None, None, *numbers)
    paged = torch.ops.metalops.paged_attention.default
    torch.library.opcheck(paged, args, test_utils=checks)
    out, lse = torch.randn(2, 3, 4, device=device), torch.randn(2, 3, device=device)
    args = [out, lse, out.clone(), lse.clone()]
    args = [x.requires_grad_() for x in args]
    torch.library.opcheck(torch.ops.metalops.merge_attention.default, args, test_utils=checks)


def test_options_on_another_device_are_refused():
    args = next(_wrong())[1][1:]
    query = torch.randn(2, 4, 8).to("mps")
    args = [x.to("mps") for x in args]
    for name in ("sinks", "alibi_slopes"):
        with pytest.raises(RuntimeError, match="same device"):
            ops.paged_attention(query, *args, **{name: torch.ones(4)})
    for name in ("k_scale", "v_scale"):
        with pytest.raises(RuntimeError, match="same device"):
            ops.paged_attention(query, *args, **{name: torch.tensor(0.5)})
