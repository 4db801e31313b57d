"""attention and varlen_attention: kernels/attention/attention.metal and, on the CPU, operators of torch."""

import itertools
import math
import random

import pytest
import torch
from metalops import ops
from metalops.testing import no_standins, tolerance
from metalops.testing.samples import FLOATS
from torch.nn import functional

OTHERS = ("attention", "varlen_attention")

DEVICES = ("cpu", "mps")
devices = pytest.mark.parametrize("device", DEVICES)
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)

# Of results and of gradients, for inputs of N(0, 1).
GUARD_RAILS = {
    torch.float32: (2e-5, 1e-4),
    torch.float16: (2e-3, 1e-2),
    torch.bfloat16: (1e-2, 5e-2),
}


# ---- the reference -------------------------------------------------------------------------------


def attention_of_head(query, key, value, mask, sink, slope, *, scale, window, softcap, diagonal):
    """Of one head of one sequence, in the dtype of the tensors: the result and its log-sum-exp."""
    scores = query @ key.T * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(len(query))[:, None] + diagonal - torch.arange(len(key))
    if slope is not None:
        scores = scores - slope.to(scores.dtype) * place.abs()
    seen = torch.ones(place.shape, dtype=torch.bool)
    if window[0] >= 0:
        seen &= place <= window[0]
    if window[1] >= 0:
        seen &= -place <= window[1]
    if mask is not None and mask.dtype == torch.bool:
        seen &= mask
    elif mask is not None:
        scores = scores + mask.to(scores.dtype)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sink is not None:
        scores = torch.cat([scores, sink.to(scores.dtype).expand(len(query), 1)], 1)
    sees = (scores > -torch.inf).any(1)
    weights = torch.zeros_like(scores)
    lse = torch.full((len(query),), -torch.inf, dtype=scores.dtype)
    if sees.any():
        weights = weights.index_put((sees,), scores[sees].softmax(1))
        lse = lse.index_put((sees,), scores[sees].logsumexp(1))
    return weights[:, : len(key)] @ value, lse


def reference(
    query,
    key,
    value,
    attn_mask=None,
    *,
    is_causal=False,
    causal_alignment="top_left",
    scale=None,
    window_size=(-1, -1),
    softcap=0.0,
    sinks=None,
    alibi_slopes=None,
):
    """Of four dimensions, in the dtype of the tensors, one head after the other."""
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    window = (window_size[0], 0 if is_causal else window_size[1])
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batch, heads, queries, keys)
    found = []
    for b, h in itertools.product(range(batch), range(heads)):
        of_key = h // (heads // key.shape[1])
        slopes = alibi_slopes
        found.append(
            attention_of_head(
                query[b, h],
                key[b, of_key],
                value[b, of_key],
                None if attn_mask is None else attn_mask[b, h],
                None if sinks is None else sinks[h],
                None if slopes is None else (slopes[b, h] if slopes.dim() == 2 else slopes[h]),
                scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
                window=window,
                softcap=softcap,
                diagonal=keys - queries if causal_alignment == "bottom_right" else 0,
            )
        )
    out, lse = (torch.stack(x).unflatten(0, (batch, heads)) for x in zip(*found))
    return out, lse


def varlen_reference(query, key, value, cu_q, cu_k, seqused_k=None, alibi_slopes=None, **options):
    """One sequence after the other."""
    outs, lses = [], []
    for i, (begin, end) in enumerate(itertools.pairwise(cu_q)):
        first = cu_k[i]
        last = cu_k[i + 1] if seqused_k is None else first + seqused_k[i]
        slopes = alibi_slopes
        if slopes is not None and slopes.dim() == 2:
            slopes = slopes[i]
        out, lse = reference(
            query[begin:end].transpose(0, 1)[None],
            key[first:last].transpose(0, 1)[None],
            value[first:last].transpose(0, 1)[None],
            causal_alignment="bottom_right",
            alibi_slopes=slopes,
            **options,
        )
        outs.append(out[0].transpose(0, 1))
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, 1)


def to(device, x):
    """Tensors, also those of tuples and dicts, on a device."""
    if isinstance(x, torch.Tensor):
        return x.detach().to(device)
    if isinstance(x, dict):
        return {name: to(device, value) for name, value in x.items()}
    return x


def results_and_gradients(function, tensors, options, cotangents):
    """Of a function of tensors and options that returns a result and its log-sum-exp; first those two."""
    tensors = [t.detach().clone().requires_grad_() for t in tensors]
    options = {
        name: x.detach().clone().requires_grad_()
        if isinstance(x, torch.Tensor) and x.is_floating_point()
        else x
        for name, x in options.items()
    }
    leaves = [*tensors, *(x for x in options.values() if is_leaf(x))]
    results = function(*tensors, **options)
    seen = torch.where(results[1] == -torch.inf, 0, results[1])
    total = (results[0] * cotangents[0]).sum() + (seen * cotangents[1]).sum()
    return [*results, *torch.autograd.grad(total, leaves, materialize_grads=True)]


def is_leaf(x):
    return isinstance(x, torch.Tensor) and x.requires_grad


def wide(x):
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def check(function, expected, tensors, options, device, *, gradients=True):
    """Compares a function of metalops with a reference in float64, and its error with that of the reference in the dtype."""
    dtype = tensors[0].dtype
    shape = (*tensors[0].shape[:-1], tensors[2].shape[-1])
    cotangents = [make(shape, dtype, 98)]
    with torch.no_grad():
        cotangents.append(make(expected(*tensors, **options)[1].shape, torch.float32, 99))

    def run(function, place, convert):
        values = [convert(to(place, t)) for t in tensors]
        others = {name: convert(to(place, x)) for name, x in options.items()}
        at = [convert(to(place, c)) for c in cotangents]
        if not gradients:
            with torch.no_grad():
                return function(*values, **others)
        return results_and_gradients(function, values, others, at)

    exact = run(expected, "cpu", wide)
    plain = run(expected, "cpu", lambda x: x)
    actual = run(function, device, lambda x: x)
    names = [
        "out",
        "lse",
        "query",
        "key",
        "value",
        *(n for n, x in options.items() if is_number(x)),
    ]
    for name, a, e, p in zip(names, actual, exact, plain):
        assert a.shape == e.shape, name
        assert name == "lse" or a.dtype == p.dtype, name
        compare(name, a.cpu().double(), e, p.double(), dtype)


def is_number(x):
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def compare(name, actual, exact, plain, dtype):
    if name == "lse":
        torch.testing.assert_close(actual, exact, rtol=1e-4, atol=1e-4)
        return
    error, plain_error = (
        (x - exact).abs().max().item() if x.numel() else 0 for x in (actual, plain)
    )
    most = max(exact.abs().max().item(), 1) if exact.numel() else 1
    rounded = exact.to(dtype)
    rounding = (rounded + 0.3 - 0.3 - rounded).abs().max().item() if exact.numel() else 0
    # What errors of one rounding may add to those that happen to be none in torch.
    eps = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
    assert error <= 2 * plain_error + 2 * rounding + eps * most, (name, error, plain_error)
    rail = GUARD_RAILS[dtype][name != "out"]
    assert error <= rail * most, (name, error, rail)


def make(shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def operands(batch, heads, key_heads, queries, keys, features, values=None, dtype=torch.float32):
    values = features if values is None else values
    return [
        make((batch, heads, queries, features), dtype, 1),
        make((batch, key_heads, keys, features), dtype, 2),
        make((batch, key_heads, keys, values), dtype, 3),
    ]


def attention(*args, **options):
    return ops.attention(*args, **options, return_lse=True)


def check_attention(tensors, device, **options):
    check(attention, reference, tensors, options, device)


# ---- values --------------------------------------------------------------------------------------

LENGTHS = (
    (1, 1), (1, 17), (1, 257), (2, 33), (15, 15), (16, 64), (17, 129), (31, 2), (32, 32), (33, 1),
    (63, 65), (64, 63), (65, 31), (127, 128), (129, 16), (255, 33), (256, 256), (257, 65),
)  # fmt: skip


# Kernels of float16 are instantiations of the same templates as those of bfloat16, and most sizes have kernels of their own.
def sooner(cases, dtype_of):
    """The cases, those of float16 for the nightly tier."""
    halves = [dtype_of(*case) == torch.float16 for case in cases]
    marks = [(pytest.mark.nightly,) if is_half else () for is_half in halves]
    return [pytest.param(*case, marks=mark) for case, mark in zip(cases, marks, strict=True)]


@devices
@pytest.mark.parametrize(
    ("queries", "keys"), sooner(LENGTHS, lambda *case: FLOATS[LENGTHS.index(case) % 3])
)
def test_lengths_around_those_of_tiles(queries, keys, device):
    number = LENGTHS.index((queries, keys))
    tensors = operands(1, 2, 1, queries, keys, 64, dtype=FLOATS[number % 3])
    check_attention(tensors, device, is_causal=number % 2 == 1, causal_alignment="bottom_right")


@devices
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_causal_tiles_of_many_heads(device, dtype):
    """Tiles of 16 heads are scheduled together: 3 x 6 heads are those and two more."""
    tensors = operands(3, 6, 2, 70, 75, 8, dtype=dtype)
    check_attention(tensors, device, is_causal=True, causal_alignment="bottom_right")


@devices
@pytest.mark.parametrize(("queries", "keys"), [(1, 1025), (2049, 33), (1024, 1023), (1025, 1024)])
def test_long_sequences(queries, keys, device):
    tensors = operands(1, 1, 1, queries, keys, 32)
    check_attention(tensors, device, is_causal=queries == 1024)


FEATURES = (
    (1, 1), (2, 5), (8, 8), (31, 32), (32, 32), (64, 64), (64, 128), (72, 72), (80, 80), (96, 96),
    (100, 7), (128, 128), (128, 64), (192, 128), (192, 192), (256, 256), (255, 129),
)  # fmt: skip


@pytest.mark.sampled(4)
@devices
@pytest.mark.parametrize(
    ("features", "values"), sooner(FEATURES, lambda *case: FLOATS[sum(case) % 3])
)
def test_head_sizes(features, values, device):
    dtype = FLOATS[(features + values) % 3]
    check_attention(operands(1, 2, 2, 35, 67, features, values, dtype), device, is_causal=True)


def generated_options(chance, heads, dtype, batch):
    """Options that packed and other sequences take; `chance` is a random.Random."""
    options = {}
    if chance.random() < 0.4:
        options["is_causal"] = True
    if chance.random() < 0.3:
        options["scale"] = chance.choice([0.1, -0.2, 0.5])
    if chance.random() < 0.4:
        options["window_size"] = (chance.choice([-1, 0, 5, 40]), chance.choice([-1, 0, 3, 33]))
    if chance.random() < 0.3:
        options["softcap"] = chance.choice([1.5, 20.0])
    if chance.random() < 0.3:
        options["sinks"] = make((heads,), chance.choice([torch.float32, dtype]), 7)
    if chance.random() < 0.3:
        shape = chance.choice([(heads,), (batch, heads)])
        options["alibi_slopes"] = make(shape, torch.float32, 8).abs() / 4
    return options


@devices
@pytest.mark.parametrize("seed", sooner([(n,) for n in range(30)], lambda seed: FLOATS[seed % 3]))
def test_generated_calls(seed, device):
    chance = random.Random(seed)
    dtype = FLOATS[seed % 3]
    batch, key_heads, group = (chance.choice(x) for x in ((1, 2, 3), (1, 2), (1, 2, 3)))
    heads = key_heads * group
    queries, keys = (chance.choice([1, 2, 15, 17, 32, 33, 64, 65, 100, 129]) for _ in range(2))
    features = chance.choice([8, 16, 32, 40, 64, 80, 128])
    values = chance.choice([features, features, 24, 64])
    options = generated_options(chance, heads, dtype, batch)
    options["causal_alignment"] = chance.choice(["top_left", "bottom_right"])
    kind = chance.choice([None, torch.bool, torch.float32, dtype])
    if kind is not None:
        full = (batch, heads, queries, keys)
        mask = make([chance.choice([1, n]) for n in full], torch.float32, 9)
        if kind == torch.bool:
            mask = mask > -0.5
        else:
            mask = mask.masked_fill(mask > 1.5, -torch.inf).to(kind)
        options["attn_mask"] = mask
    check_attention(operands(batch, heads, key_heads, queries, keys, features, values, dtype), device, **options)  # fmt: skip


@devices
@pytest.mark.parametrize("seed", sooner([(n,) for n in range(15)], lambda seed: FLOATS[seed % 3]))
def test_generated_packed_sequences(seed, device):
    chance = random.Random(seed)
    dtype = FLOATS[seed % 3]
    key_heads, group = chance.choice([1, 2]), chance.choice([1, 2, 3])
    count = chance.choice([1, 2, 4])
    lengths = [[chance.choice([0, 1, 7, 16, 33, 70]) for _ in range(count)] for _ in range(2)]
    cu_q, cu_k = ([0, *itertools.accumulate(x)] for x in lengths)
    options = generated_options(chance, key_heads * group, dtype, count)
    used = [chance.randint(0, n) for n in lengths[1]] if chance.random() < 0.4 else None
    features, values = chance.choice([(16, 16), (64, 64), (40, 64)])
    tensors = [
        make((cu_q[-1], key_heads * group, features), dtype, 1),
        make((cu_k[-1], key_heads, features), dtype, 2),
        make((cu_k[-1], key_heads, values), dtype, 3),
    ]

    def function(query, key, value, **options):
        begins = [torch.tensor(x, dtype=torch.int32, device=device) for x in (cu_q, cu_k)]
        seqused = None if used is None else torch.tensor(used, dtype=torch.int32, device=device)
        return ops.varlen_attention(
            query, key, value, *begins, max(lengths[0]), max(lengths[1]), seqused_k=seqused,
            return_lse=True, **options,
        )  # fmt: skip

    def expected(query, key, value, **options):
        return varlen_reference(query, key, value, cu_q, cu_k, used, **options)

    check(function, expected, tensors, options, device)


@devices
def test_queries_and_keys_of_packed_sequences_may_lie_behind_the_last_one(device):
    query, key, value = (make((20, 2, 8), seed=i).to(device) for i in range(3))
    begins = torch.tensor([0, 5, 12], dtype=torch.int32, device=device)
    out, lse = ops.varlen_attention(
        query, key, value, begins, begins, 7, 7, is_causal=True, return_lse=True
    )
    expected, _ = varlen_reference(
        query.cpu(), key.cpu(), value.cpu(), [0, 5, 12], [0, 5, 12], is_causal=True
    )
    torch.testing.assert_close(out[:12].cpu(), expected)
    assert out.shape == (20, 2, 8) and lse.shape == (2, 20)


@pytest.mark.parametrize("begin", [-40, 0])
def test_sequences_of_tokens_that_there_are_not_end_at_those_that_there_are(begin):
    """Lest a kernel reads or writes beyond its tensors."""
    leaves = [make((n, 2, 8), seed=n).to("mps").requires_grad_() for n in (20, 33, 33)]

    def results(cu_q, cu_k, used):
        numbers = [torch.tensor(x, dtype=torch.int32, device="mps") for x in (cu_q, cu_k, used)]
        out, lse = ops.varlen_attention(
            *leaves, *numbers[:2], 50, 60, seqused_k=numbers[2], return_lse=True
        )
        return [out, lse, *torch.autograd.grad(out.square().sum(), leaves)]

    actual = results([begin, 7, 60, 5], [begin, 9, 80, 3], [-3, 70, 40])
    expected = results([0, 7, 20, 20], [0, 9, 33, 33], [0, 24, 0])
    for a, e in zip(actual, expected):
        assert torch.equal(a, e)


@devices
def test_lengths_beyond_all_tokens_cost_nothing(device):
    begins = torch.tensor([0, 9, 40], dtype=torch.int32, device=device)
    inputs = [make((40, 2, 16), torch.float32, i).to(device).requires_grad_() for i in range(3)]
    inputs.append(torch.tensor([0.5, 0.1], device=device, requires_grad=True))

    def results(longest):
        *tokens, slopes = inputs
        out = ops.varlen_attention(*tokens, begins, begins, longest, longest, alibi_slopes=slopes)
        return [out, *torch.autograd.grad(out.square().sum(), inputs)]

    for actual, expected in zip(results(2**40), results(31), strict=True):
        assert torch.equal(actual, expected)


@devices
@dtypes
@pytest.mark.parametrize("page", [1, 8, 16])
def test_keys_on_pages(page, dtype, device):
    lengths, used = [3, 1, 20], [20, 3, 37]
    pages = -(-max(used) // page)
    order = torch.randperm(3 * pages)
    table = order.reshape(3, pages).to(torch.int32)
    caches = [make((3 * pages, page, 2, n), dtype, n) for n in (32, 16)]
    cu_q, cu_k = ([0, *itertools.accumulate(x)] for x in (lengths, used))
    query = make((cu_q[-1], 4, 32), dtype, 1)
    key, value = (
        torch.cat([cache[table[i].long()].flatten(0, 1)[: used[i]] for i in range(3)])
        for cache in caches
    )
    expected, lse = varlen_reference(
        query.double(), key.double(), value.double(), cu_q, cu_k, is_causal=True
    )
    # What lies on pages beyond a sequence's end, and behind them in the table, is not looked at.
    for cache in caches:
        for i in range(3):
            for at in range(used[i], pages * page):
                cache[table[i, at // page], at % page] = torch.nan
    table[1, -(-used[1] // page) :] = 1 << 20
    begins = [torch.tensor(x, dtype=torch.int32) for x in (cu_q, cu_k)]
    for options in ({}, {"seqused_k": torch.tensor(used, dtype=torch.int32)}):
        arguments = [x.to(device) for x in (query, *caches, *begins)]
        actual, actual_lse = ops.varlen_attention(
            *arguments, max(lengths), max(used), is_causal=True, return_lse=True,
            block_table=table.to(device), **to(device, options),
        )  # fmt: skip
        rail = GUARD_RAILS[dtype][0]
        torch.testing.assert_close(actual.cpu().double(), expected, rtol=rail, atol=rail)
        torch.testing.assert_close(actual_lse.cpu().double(), lse, rtol=1e-4, atol=1e-4)


def placed(x, device, how):
    """The same numbers with other strides, and what lies between them NaN."""
    if how == "bhld":
        return x.to(device)
    if how == "blhd":
        return x.transpose(1, 2).contiguous().to(device).transpose(1, 2)
    if how == "lbhd":
        return x.permute(2, 0, 1, 3).contiguous().to(device).permute(1, 2, 0, 3)
    if how == "features":
        return x.mT.contiguous().to(device).mT
    wider = torch.full([n + 3 for n in x.shape], torch.nan, dtype=x.dtype)
    inner = tuple(slice(2, 2 + n) for n in x.shape)
    wider[inner] = x
    if how == "gaps":
        return wider.to(device)[inner]
    assert how == "steps"
    wider = torch.full([*x.shape[:-1], 2 * x.shape[-1]], torch.nan, dtype=x.dtype)
    wider[..., ::2] = x
    return wider.to(device)[..., ::2]


@devices
@dtypes
def test_operands_with_any_strides(dtype, device):
    tensors = operands(2, 4, 2, 19, 37, 24, dtype=dtype)
    with torch.no_grad():
        expected = attention(*to_all(device, tensors), is_causal=True)
    cotangent = make(expected[0].shape, dtype, 4).to(device)
    gradients = grads(tensors, cotangent, device)
    for how in ("blhd", "lbhd", "features", "gaps", "steps"):
        moved = [placed(x, device, how) for x in tensors]
        actual = attention(*moved, is_causal=True)
        for a, e in zip(actual, expected):
            assert torch.equal(a, e), how
        leaves = [x.detach().requires_grad_() for x in moved]
        out = ops.attention(*leaves, is_causal=True)
        found = torch.autograd.grad(out, leaves, placed(cotangent.cpu(), device, how))
        for a, e in zip(found, gradients):
            torch.testing.assert_close(a, e, msg=how)


def to_all(device, tensors):
    return [x.to(device) for x in tensors]


def grads(tensors, cotangent, device, **options):
    leaves = [x.detach().to(device).requires_grad_() for x in tensors]
    out = ops.attention(*leaves, is_causal=True, **options)
    return torch.autograd.grad(out, leaves, cotangent)


@devices
def test_expanded_operands_masks_and_cotangents(device):
    query, key, value = operands(1, 2, 1, 9, 21, 16)
    mask = make((1, 1, 1, 21)) > -1
    full = [query.expand(3, 2, 9, 16), key.expand(3, 1, 21, 16), value.expand(3, 1, 21, 16)]
    expected, _ = reference(*(x.double() for x in full), mask)
    leaves = [to(device, x).requires_grad_() for x in (query, key, value)]
    out = ops.attention(
        leaves[0].expand(3, 2, 9, 16),
        leaves[1].expand(3, 1, 21, 16),
        leaves[2].expand(3, 1, 21, 16),
        mask.to(device).expand(3, 2, 9, 21),
    )
    torch.testing.assert_close(out.detach().cpu().double(), expected, rtol=1e-5, atol=1e-5)
    out.sum().backward()
    wide_leaves = [x.double().requires_grad_() for x in (query, key, value)]
    reference(*wide_leaves, mask)[0].sum().mul(3).backward()
    for a, e in zip(leaves, wide_leaves):
        torch.testing.assert_close(a.grad.cpu().double(), e.grad, rtol=1e-4, atol=1e-5)


@devices
def test_results_have_the_order_of_the_querys_dimensions_in_memory(device):
    for batch, heads, queries in ((2, 4, 7), (1, 4, 7), (5, 1, 7), (2, 4, 1)):
        for values in (8, 5):
            query, key, value = to_all(device, operands(batch, heads, heads, queries, 9, 8, values))
            for how in ("bhld", "blhd", "lbhd"):
                out = ops.attention(placed(query.cpu(), device, how), key, value)
                like = placed(torch.empty(batch, heads, queries, values), device, how)
                assert out.stride() == torch.empty_like(like).stride(), how


@devices
def test_batches_and_heads_broadcast_and_ranks_are_two_to_five(device):
    def scaled(q, k, v, mask=None):
        return functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), mask)

    for shapes, mask_shape in (
        (((7, 8), (9, 8), (9, 4)), (7, 9)),
        (((7, 8), (9, 8), (9, 4)), None),
        (((3, 7, 8), (3, 9, 8), (3, 9, 4)), (3, 1, 9)),
        (((3, 7, 8), (1, 9, 8), (3, 9, 4)), None),
        (((2, 3, 7, 8), (1, 3, 9, 8), (2, 1, 9, 4)), (1, 3, 1, 9)),
        (((1, 1, 7, 8), (2, 3, 9, 8), (2, 3, 9, 4)), (9,)),
        (((3, 7, 8), (2, 3, 9, 8), (9, 4)), (2, 1, 7, 9)),
        (((2, 4, 3, 7, 8), (2, 4, 3, 9, 8), (1, 4, 3, 9, 4)), (2, 1, 1, 7, 9)),
        (((2, 4, 3, 7, 8), (2, 1, 1, 9, 8), (2, 4, 3, 9, 4)), (7, 9)),
    ):
        tensors = [make(shape, seed=i) for i, shape in enumerate(shapes)]
        mask = None if mask_shape is None else make(mask_shape, seed=5) > -1
        actual, lse = attention(*to_all(device, tensors), to(device, mask))
        expected = scaled(*tensors, mask)
        assert actual.shape == expected.shape and lse.shape == expected.shape[:-1]
        torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-5, atol=1e-5)


@devices
def test_nothing_to_attend_to_and_no_queries(device):
    for shapes in (
        ((2, 3, 0, 8), (2, 3, 5, 8), (2, 3, 5, 4)),
        ((2, 3, 5, 8), (2, 3, 0, 8), (2, 3, 0, 4)),
        ((0, 3, 5, 8), (0, 3, 6, 8), (0, 3, 6, 4)),
        ((2, 3, 5, 0), (2, 3, 6, 0), (2, 3, 6, 4)),
        ((2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 0)),
    ):
        leaves = [make(shape).to(device).requires_grad_() for shape in shapes]
        out, lse = attention(*leaves)
        assert out.shape == (*shapes[0][:-1], shapes[2][-1]) and lse.shape == shapes[0][:-1]
        assert (out == 0).all()
        if shapes[1][2] == 0 or shapes[0][-1] == 0:
            assert (lse == -torch.inf).all()
        out.sum().backward()
        for x in leaves:
            assert (x.grad == 0).all() and x.grad.shape == x.shape


# ---- what is seen --------------------------------------------------------------------------------


@devices
@dtypes
@pytest.mark.parametrize("queries", [1, 8, 9, 40])
def test_a_future_token_changes_no_bit_of_the_past(queries, dtype, device):
    """Also a known defect of stock: up to three future tokens leaked."""
    query, key, value = to_all(device, operands(1, 2, 1, queries, queries + 30, 64, dtype=dtype))
    for alignment, diagonal in (("top_left", 0), ("bottom_right", 30)):
        options = {"is_causal": True, "causal_alignment": alignment}
        before = attention(query, key, value, **options)
        for row in {0, queries // 2, queries - 1}:
            changed = [x.clone() for x in (key, value)]
            for x in changed:
                x[:, :, row + diagonal + 1 :] = 77
            after = attention(query, *changed, **options)
            for a, b in zip(after, before):
                assert torch.equal(a[:, :, : row + 1], b[:, :, : row + 1])


@devices
def test_both_alignments_of_the_diagonal(device):
    query, key, value = operands(1, 1, 1, 3, 5, 4)
    seen = {"top_left": torch.ones(3, 5).tril(), "bottom_right": torch.ones(3, 5).tril(2)}
    for alignment, mask in seen.items():
        expected, _ = reference(query, key, value, mask.bool())
        moved = to_all(device, (query, key, value))
        actual = ops.attention(*moved, is_causal=True, causal_alignment=alignment)
        torch.testing.assert_close(actual.cpu(), expected)
        banded = ops.attention(*moved, window_size=(1, 0), causal_alignment=alignment)
        band = mask.bool() & mask.bool().flip(0, 1).new_tensor(
            [
                [j >= i + (2 if alignment == "bottom_right" else 0) - 1 for j in range(5)]
                for i in range(3)
            ]  # fmt: skip
        )
        torch.testing.assert_close(banded.cpu(), reference(query, key, value, band)[0])


@devices
def test_windows_may_be_far_wider_than_all_keys(device):
    """Which takes no time: tiles without keys or queries are not met."""
    tensors = [x.to(device).requires_grad_() for x in operands(1, 2, 1, 20, 40, 8)]
    results = []
    for window in ((-1, -1), (2**40, 2**40)):
        out = ops.attention(*tensors, window_size=window)
        results.append([out, *torch.autograd.grad(out.square().sum(), tensors)])
    for actual, expected in zip(*results, strict=True):
        assert torch.equal(actual, expected)


@devices
def test_a_mask_and_causality_both_hide(device):
    query, key, value = operands(2, 2, 1, 20, 20, 16)
    mask = make((2, 1, 20, 20)) > -0.7
    expected, _ = reference(query, key, value, mask & torch.ones(20, 20).tril().bool())
    moved = to_all(device, (query, key, value, mask))
    torch.testing.assert_close(ops.attention(*moved, is_causal=True).cpu(), expected, rtol=1e-5, atol=1e-5)  # fmt: skip


@devices
@dtypes
@pytest.mark.parametrize("queries", [1, 9, 40])
def test_rows_that_see_nothing_are_zero_with_zero_gradients(queries, dtype, device):
    tensors = operands(2, 2, 1, queries, 50, 32, dtype=dtype)
    hidden = queries // 2
    masks = [
        torch.ones(queries, 50, dtype=torch.bool),
        torch.zeros(queries, 50),
        torch.zeros(queries, 50, dtype=dtype),
    ]
    masks[0][hidden] = False
    masks[1][hidden] = masks[2][hidden] = -torch.inf
    for mask in masks:
        leaves = [to(device, x).requires_grad_() for x in tensors]
        numbers = mask.to(device)
        if mask.is_floating_point():
            numbers.requires_grad_()
            leaves.append(numbers)
        out, lse = attention(*leaves[:3], numbers)
        assert (out[:, :, hidden] == 0).all() and (lse[:, :, hidden] == -torch.inf).all()
        ((out * out).sum() + torch.exp(lse).sum()).backward()
        assert (leaves[0].grad[:, :, hidden] == 0).all()
        for x in leaves:
            assert x.grad.isfinite().all()
    sinks = torch.tensor([0.5, -0.25], device=device)
    out, lse = attention(*to_all(device, tensors), masks[0].to(device), sinks=sinks)
    assert (out[:, :, hidden] == 0).all()
    torch.testing.assert_close(lse[:, :, hidden], sinks.expand(2, 2))


@devices
@dtypes
@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("keys", [1, 31, 33, 70])
def test_nothing_is_read_beyond_the_keys(keys, queries, dtype, device):
    """Known defect of stock: keys that are no multiple of 32 were read beyond."""
    query, key, value = operands(2, 2, 1, queries, keys, 64, dtype=dtype)
    plain = attention(*to_all(device, (query, key, value)), is_causal=True, causal_alignment="bottom_right")  # fmt: skip
    longer = []
    for x in (key, value):
        tail = torch.full((2, 1, 90, 64), torch.nan, dtype=dtype)
        tail[:, :, :keys] = x
        longer.append(tail.to(device))
    tailed = [x[:, :, :keys] for x in longer]
    options = {"is_causal": True, "causal_alignment": "bottom_right"}
    for a, e in zip(attention(query.to(device), *tailed, **options), plain):
        torch.testing.assert_close(a, e)
    packed = [x.transpose(1, 2).flatten(0, 1) for x in (query.to(device), *longer)]
    begins = torch.tensor([0, 1, 2], dtype=torch.int32, device=device)
    used = torch.full((2,), keys, dtype=torch.int32, device=device)
    packed = [x.requires_grad_() for x in packed]
    out, lse = ops.varlen_attention(
        *packed, begins * queries, begins * 90, queries, 90, is_causal=True, seqused_k=used,
        return_lse=True,
    )  # fmt: skip
    expected = plain[0].transpose(1, 2).flatten(0, 1)
    # Other kernels take packed sequences: they add in another order, and round weights to half precision, each by half a
    # step of values of up to 4.
    rtol, atol = tolerance("attention", dtype)
    if dtype != torch.float32:
        rtol, atol = 0, 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(out, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(lse, plain[1].transpose(0, 1).flatten(1))
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in packed)
    for x in packed[1:]:
        assert (x.grad.unflatten(0, (2, 90))[:, keys:] == 0).all()


# ---- known defects of stock ----------------------------------------------------------------------


@devices
@pytest.mark.parametrize("queries", [1, 8, 30])
def test_masks_that_broadcast_in_part(queries, device):
    for shape in ((2, 1, queries, 8), (1, 3, 1, 8), (2, 3, queries, 1), (1, 1, 1, 8)):
        for mask in (make(shape) > -0.5, make(shape)):
            check_attention(operands(2, 3, 3, queries, 8, 64), device, attn_mask=mask)


@devices
def test_a_second_call_takes_its_own_scale(device):
    tensors = operands(1, 1, 1, 4, 6, 8)
    for scale in (1.0, 0.25, -3.0):
        expected, _ = reference(*tensors, scale=scale)
        actual = ops.attention(*to_all(device, tensors), scale=scale)
        torch.testing.assert_close(actual.cpu(), expected)


@devices
def test_large_products_of_float16_do_not_overflow(device):
    query, key, value = operands(1, 1, 1, 20, 40, 128, dtype=torch.float16)
    query, key = query * 50, key * 50
    expected, lse = reference(*(x.double() for x in (query, key, value)))
    out, actual_lse = attention(*to_all(device, (query, key, value)))
    torch.testing.assert_close(out.cpu().double(), expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(actual_lse.cpu().double(), lse, rtol=1e-5, atol=1e-2)


@devices
@pytest.mark.parametrize("queries", [1, 12])
def test_bfloat16_stays_accurate_over_many_keys(queries, device):
    query, key, value = operands(1, 1, 1, queries, 4000, 64, dtype=torch.bfloat16)
    value = value + 1  # so that sums do not cancel
    expected, lse = reference(*(x.double() for x in (query, key, value)))
    out, actual_lse = attention(*to_all(device, (query, key, value)))
    torch.testing.assert_close(out.cpu().double(), expected, rtol=2**-8, atol=1e-4)
    torch.testing.assert_close(actual_lse.cpu().double(), lse, rtol=1e-5, atol=1e-4)


@devices
def test_a_masks_gradient_is_there_where_it_alone_requires_one(device):
    tensors = to_all(device, operands(1, 2, 1, 6, 7, 8))
    mask = make((2, 1, 7)).to(device).requires_grad_()
    ops.attention(*tensors, mask).square().sum().backward()
    expected = mask.detach().cpu().requires_grad_()
    reference(*(x.cpu() for x in tensors), expected[None])[0].square().sum().backward()
    torch.testing.assert_close(mask.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-5)


# ---- dropout -------------------------------------------------------------------------------------


@devices
def test_dropout_keeps_the_mean_and_is_what_the_seed_says(device):
    query, key, value = to_all(device, operands(2, 4, 4, 65, 130, 16))
    value = value.abs() + 1
    plain = ops.attention(query, key, value)
    for p in (0.1, 0.5):
        torch.manual_seed(5)
        first = ops.attention(query, key, value, dropout_p=p)
        second = ops.attention(query, key, value, dropout_p=p)
        torch.manual_seed(5)
        again = ops.attention(query, key, value, dropout_p=p)
        assert torch.equal(first, again) and not torch.equal(first, second)
        assert abs((first.mean() / plain.mean()).item() - 1) < 0.02
    assert torch.equal(ops.attention(query, key, value, dropout_p=0.0), plain)
    leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    out, lse = attention(*leaves, dropout_p=1.0)
    assert (out == 0).all() and lse.isfinite().all()
    out.sum().backward()
    assert all((x.grad == 0).all() for x in leaves)


def kept_elements(device, shape, p, seed):
    """What dropout multiplies weights by, from results: equal weights, and values that tell keys apart."""
    batch, heads, queries, keys = shape
    query = torch.zeros(batch, heads, queries, 4, device=device)
    key = torch.zeros(batch, heads, keys, 4, device=device)
    value = torch.eye(keys, device=device).expand(batch, heads, keys, keys)
    torch.manual_seed(seed)
    return ops.attention(query, key, value, dropout_p=p) * keys


@devices
def test_dropout_drops_each_weight_by_itself(device):
    p = 0.3
    kept = kept_elements(device, (2, 3, 100, 130), p, 3).cpu()
    values = kept.unique()
    torch.testing.assert_close(values, torch.tensor([0, 1 / (1 - p)]), rtol=1e-5, atol=0)
    is_kept = (kept > 0).float()
    assert abs(is_kept.mean().item() - (1 - p)) < 0.01
    for dim in range(4):
        means = is_kept.mean([d for d in range(4) if d != dim])
        assert (means - (1 - p)).abs().max() < 0.08, dim
    # Neighbours do not follow each other.
    for dim in range(4):
        moved = is_kept.movedim(dim, 0)
        both = (moved[1:] * moved[:-1]).mean().item()
        assert abs(both - (1 - p) ** 2) < 0.02, dim


@devices
def test_gradients_are_those_of_the_elements_that_dropout_kept(device):
    p, shape = 0.4, (2, 2, 33, 70)
    kept = kept_elements(device, shape, p, 11).cpu().double()
    tensors = operands(2, 2, 2, 33, 70, 16)
    cotangent = make((2, 2, 33, 16), seed=6)
    leaves = [to(device, x).requires_grad_() for x in tensors]
    torch.manual_seed(11)
    out = ops.attention(*leaves, dropout_p=p)
    actual = torch.autograd.grad(out, leaves, cotangent.to(device))
    wide_leaves = [x.double().requires_grad_() for x in tensors]
    q, k, v = wide_leaves
    expected = ((q @ k.mT / 4).softmax(-1) * kept) @ v
    torch.testing.assert_close(out.detach().cpu().double(), expected.detach(), rtol=1e-4, atol=1e-4)
    for a, e in zip(actual, torch.autograd.grad(expected, wide_leaves, cotangent.double())):
        torch.testing.assert_close(a.cpu().double(), e, rtol=1e-3, atol=1e-4)


@devices
def test_dropout_of_packed_sequences_is_that_of_the_same_sequences_apart(device):
    """Heads and places in a sequence say what is dropped, not where the sequence is stored."""
    query, key, value = (make((2, 3, 20, 8), seed=i).to(device) for i in range(3))
    torch.manual_seed(2)
    apart = ops.attention(query, key, value, dropout_p=0.5)
    packed = [x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)]
    begins = torch.tensor([0, 20, 40], dtype=torch.int32, device=device)
    torch.manual_seed(2)
    together = ops.varlen_attention(*packed, begins, begins, 20, 20, dropout_p=0.5)
    torch.testing.assert_close(together, apart.transpose(1, 2).flatten(0, 1))


# ---- errors --------------------------------------------------------------------------------------


@devices
def test_wrong_arguments_are_named(device):
    def tensor(*shape, dtype=torch.float32):
        return torch.zeros(*shape, device=device, dtype=dtype)

    q = tensor(2, 4, 5, 8)
    k = tensor(2, 2, 6, 8)
    for arguments, options, error, message in (
        ((tensor(8), k, k), {}, RuntimeError, "at least 2 dimensions, but have 1, 4 and 4"),
        ((q, tensor(3, 2, 6, 8), k), {}, RuntimeError, r"batches of query, key and value must broadcast, but are \[2\] and \[3\] and \[2\]"),
        ((q, k, tensor(2, 2, 7, 8)), {}, RuntimeError, r"attention: value must have sizes .*\[2, 2, 7, 8\]"),
        ((q, tensor(2, 2, 6, 9), k), {}, RuntimeError, r"attention: key must have the features of query, 8, but has sizes \[2, 2, 6, 9\]"),
        ((q, tensor(2, 3, 6, 8), tensor(2, 3, 6, 8)), {}, RuntimeError, "attention: the heads of query must be a multiple of those of key, 3, but are 4"),
        ((q, k, tensor(2, 2, 6, 300)), {}, RuntimeError, "at most 256 features, but query has 8 and value has 300"),
        ((q, k.half(), k), {}, RuntimeError, "attention: key must have the dtype of query"),
        ((q, k, k.half()), {}, RuntimeError, "attention: value must have the dtype of query"),
        ((q, k, k, tensor(5, 7)), {}, RuntimeError, r"attention: attn_mask must have .*\[1, 1, 5, 7\]"),
        ((q, k, k, tensor(1, 1, 1, 5, 6)), {}, RuntimeError, r"attn_mask must broadcast to sizes \[2, 4, 5, 6\], but has sizes \[1, 1, 1, 5, 6\]"),
        ((q, k, k, tensor(5, 6, dtype=torch.int32)), {}, RuntimeError, "Expected attn_mask dtype to be bool or float or to match query dtype"),
        ((q, k, k, tensor(5, 6, dtype=torch.half)), {}, RuntimeError, "Expected attn_mask dtype to be bool or float or to match query dtype"),
        ((q, k, k), {"sinks": tensor(2)}, RuntimeError, r"attention: sinks must have sizes .*\[2\]"),
        ((q, k, k), {"alibi_slopes": tensor(2)}, RuntimeError, r"attention: alibi_slopes must have sizes .*\[2\]"),
        ((q, k, k), {"causal_alignment": "left"}, ValueError, "causal_alignment must be 'top_left' or 'bottom_right', but is 'left'"),
        ((q, k, k), {"window_size": (1,)}, ValueError, r"window_size must be two numbers, but is \(1,\)"),
        ((q, k, k), {"dropout_p": 1.5}, ValueError, "dropout_p must be between 0 and 1, but is 1.5"),
        ((q, k, k), {"softcap": -1.0}, ValueError, "softcap must be a finite number of float32 that is not negative, but is -1"),
        ((q.long(), k.long(), k.long()), {}, NotImplementedError, "\"attention\" not implemented for 'Long'"),
        ((q.cfloat(), k.cfloat(), k.cfloat()), {}, NotImplementedError, "not implemented for 'ComplexFloat'"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            ops.attention(*arguments, **options)


@devices
def test_wrong_arguments_of_packed_sequences_are_named(device):
    x = torch.zeros(6, 2, 8, device=device)
    begins = torch.tensor([0, 2, 6], dtype=torch.int32, device=device)
    for arguments, options, message in (
        ((x[None], x, x, begins, begins), {}, "query must have 3 dimensions"),
        ((x, x, x, begins.long(), begins), {}, "cu_seqlens_q must have dtype torch.int32|cu_seqlens_q must have dtype int32"),
        ((x, x, x, begins, begins[:2]), {}, r"cu_seqlens_k must have sizes .*\[2\]"),
        ((x, x, x, begins, begins), {"seqused_k": begins}, r"seqused_k must have sizes .*\[3\]"),
        ((x, x, x, begins, begins), {"block_table": begins}, "block_table of two dimensions key must have sizes"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=message):
            ops.varlen_attention(*arguments, 4, 4, **options)


@devices
def test_the_backward_operator_takes_results_of_its_call_only(device):
    q, k = torch.ones(2, 4, 5, 8, device=device), torch.ones(2, 4, 6, 8, device=device)
    numbers = (5, 6, 1.0, -1, -1, False, 0.0, 0.0)
    out, lse = torch.ops.metalops.attention_forward(q, k, k, *[None] * 7, *numbers)
    run = torch.ops.metalops.attention_backward

    def gradients(grad_out=out, grad_lse=None, out=out, lse=lse):
        return run(grad_out, grad_lse, q, k, k, out, lse, *[None] * 7, *numbers, [True] * 6)

    assert [x is not None for x in gradients()] == [True] * 3 + [False] * 3
    for wrong, message in (
        ({"lse": lse[..., :0]}, "attention: lse must"),
        ({"lse": lse.half()}, "attention: lse must"),
        ({"grad_lse": lse[:1]}, "attention: grad_lse must have"),
        ({"out": out[..., :4], "grad_out": out[..., :4]}, "attention: out must"),
        ({"grad_out": out[:1]}, "attention: grad_out must have"),
        ({"lse": lse.to("cpu" if device == "mps" else "mps")}, "same device"),
    ):
        with pytest.raises(RuntimeError, match=message):
            gradients(**wrong)


def test_float64_is_refused_as_on_mps():
    x = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="\"attention\" not implemented for 'Double'"):
        ops.attention(x, x, x)


def test_tensors_of_several_devices_are_refused():
    x = torch.zeros(1, 1, 2, 4)
    for arguments in ((x, x, x.to("mps")), (x.to("mps"), x, x), (x, x, x, x[..., :2].to("mps"))):
        with pytest.raises(RuntimeError, match="same device"):
            ops.attention(*arguments)


# ---- derivatives ---------------------------------------------------------------------------------

EVERYTHING = {
    "is_causal": True,
    "causal_alignment": "bottom_right",
    "softcap": 3.0,
    "window_size": (5, -1),
}


def everything(device, dtype=torch.float32):
    """Tensors of a call with every option, and the call."""
    tensors = [
        *operands(2, 4, 2, 6, 9, 8, 5, dtype),
        make((2, 1, 6, 9), dtype, 4),
        make((4,), torch.float32, 5),
        make((4,), torch.float32, 6).abs(),
    ]

    def call(query, key, value, mask, sinks, slopes, function=ops.attention):
        return function(query, key, value, mask, sinks=sinks, alibi_slopes=slopes, **EVERYTHING)

    return to_all(device, tensors), call


@devices
def test_second_derivatives_and_forward_mode(device):
    tensors, call = everything(device)
    tangents = [make(t.shape, seed=20 + i).to(device) for i, t in enumerate(tensors)]

    def second(tensors, tangents, **options):
        leaves = [t.detach().requires_grad_() for t in tensors]
        result, lse = call(*leaves, **options)
        total = result.square().sum() + lse.sin().sum()
        first = torch.autograd.grad(total, leaves, create_graph=True)
        return torch.autograd.grad(sum((g * t).sum() for g, t in zip(first, tangents)), leaves)

    def tangent(tensors, tangents, **options):
        return torch.func.jvp(lambda *t: call(*t, **options)[0], tuple(tensors), tuple(tangents))[1]

    def exact(group):
        return [t.cpu().double() for t in group]

    for function in (second, tangent):
        actual = function(tensors, tangents, function=attention)
        expected = function(exact(tensors), exact(tangents), function=reference)
        if function is tangent:
            actual, expected = [actual], [expected]
        for a, e in zip(actual, expected):
            torch.testing.assert_close(a.cpu().double(), e, rtol=1e-3, atol=1e-4)


@devices
def test_only_wanted_gradients_are_given(device):
    tensors, call = everything(device)
    for wanted in range(6):
        leaves = [t.detach().requires_grad_(i == wanted) for i, t in enumerate(tensors)]
        call(*leaves).sum().backward()
        assert [t.grad is not None for t in leaves] == [i == wanted for i in range(6)]


@devices
def test_the_log_sum_exp_alone_has_gradients(device):
    tensors, call = everything(device)
    leaves = [t.detach().requires_grad_() for t in tensors]
    call(*leaves, function=attention)[1].square().sum().backward()
    exact = [t.cpu().double().requires_grad_() for t in tensors]
    call(*exact, function=reference)[1].square().sum().backward()
    for a, e in zip(leaves, exact):
        expected = torch.zeros_like(e) if e.grad is None else e.grad
        torch.testing.assert_close(a.grad.cpu().double(), expected, rtol=1e-3, atol=1e-4)


# ---- torch.func, torch.compile, torch.export, autocast -----------------------------------------------


@devices
def test_vmap_over_any_of_the_tensors(device):
    tensors, call = everything(device)
    batches = [torch.stack([t, t / 2, t * 0.7]) for t in tensors]
    for dims in (
        (0, 0, 0, None, None, None),
        (0, None, None, None, None, None),
        (None, 0, 0, 0, None, None),
        (0, 0, 0, None, None, 0),
        (0, 0, 0, 0, 0, 0),
    ):
        given = [b if d == 0 else t for d, b, t in zip(dims, batches, tensors)]
        calls = [[t if d is None else t[i] for d, t in zip(dims, given)] for i in range(3)]
        actual = torch.vmap(call, in_dims=dims)(*given)
        torch.testing.assert_close(actual, torch.stack([call(*t) for t in calls]))

        def gradient(*t):
            return torch.func.grad(lambda *t: call(*t).square().sum(), argnums=tuple(range(6)))(*t)

        actual = torch.vmap(gradient, in_dims=dims)(*given)
        for a, *e in zip(actual, *(gradient(*t) for t in calls)):
            torch.testing.assert_close(a, torch.stack(e), rtol=1e-4, atol=1e-5)
    moved = [b.movedim(0, 2) for b in batches[:3]]
    actual = torch.vmap(ops.attention, in_dims=2)(*moved)
    torch.testing.assert_close(actual, torch.stack([ops.attention(*t) for t in zip(*batches[:3])]))


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(16, 48)

    def forward(self, x):
        parts = self.project(x).unflatten(-1, (3, 2, 8)).transpose(-4, -2).unbind(-3)
        return ops.attention(*parts, is_causal=True)


@devices
def test_gradients_of_each_sample(device):
    module = Attention().to(device)
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    x = make((3, 7, 16)).to(device)

    def loss(parameters, x):
        return torch.func.functional_call(module, parameters, (x,)).square().sum()

    actual = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(3):
        expected = torch.autograd.grad(module(x[i]).square().sum(), list(module.parameters()))
        for a, e in zip(actual.values(), expected):
            torch.testing.assert_close(a[i], e, rtol=1e-4, atol=1e-5)


@devices
def test_samples_draw_dropout_as_vmap_says(device):
    x = make((1, 2, 9, 8)).to(device).expand(2, 1, 2, 9, 8)

    def call(x):
        return ops.attention(x, x, x, dropout_p=0.5)

    same = torch.vmap(call, randomness="same")(x)
    assert torch.equal(same[0], same[1])
    different = torch.vmap(call, randomness="different")(x)
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(call)(x)


@devices
def test_autocast_lowers_the_precision_as_that_of_torchs_attention(device):
    query, key, value = to_all(device, operands(1, 2, 2, 6, 9, 8))
    mask = make((6, 9)).to(device)
    slopes = torch.tensor([0.25, 0.5], device=device)
    leaves = [query.requires_grad_(), key.bfloat16().requires_grad_(), value.requires_grad_()]
    options = {"sinks": slopes, "alibi_slopes": slopes}
    with torch.autocast(device, dtype=torch.bfloat16):
        out = ops.attention(*leaves, mask, **options)
        out.sum().backward()
    assert out.dtype == torch.bfloat16
    with torch.no_grad():
        low = [x.bfloat16() for x in leaves]
        assert torch.equal(out, ops.attention(*low, mask, **options))
    assert [x.grad.dtype for x in leaves] == [x.dtype for x in leaves]


def operator_arguments(device, kind, requires_grad=True):
    """Arguments of metalops::attention_forward."""
    if kind == "packed":
        q, k, v = (make((14, h, 8), seed=i) for i, h in enumerate((4, 2, 2)))
        begins = torch.tensor([0, 5, 14], dtype=torch.int32)
        used = torch.tensor([5, 4], dtype=torch.int32)
        tensors = [q, k, v, None, None, None, begins, begins, used, None]
        numbers = [9, 9, 0.3, -1, 0, True, 0.0, 0.0]
    elif kind == "dropout":
        tensors = [*operands(2, 2, 2, 6, 9, 8), *[None] * 6, torch.tensor([3, 4])]
        numbers = [6, 9, 0.3, -1, -1, False, 0.0, 0.25]
    else:
        tensors = [*everything("cpu")[0], None, None, None, None]
        numbers = [6, 9, 0.3, 5, 0, True, 3.0, 0.0]
        if kind == "blhd":
            tensors[:3] = [placed(x, "cpu", "blhd") for x in tensors[:3]]
    tensors = [None if x is None else x.to(device) for x in tensors]
    for x in tensors:
        if is_number(x):
            x.requires_grad_(requires_grad)
    return (*tensors, *numbers)


@pytest.mark.sampled(2)
@devices
@pytest.mark.parametrize("kind", ["dense", "blhd", "packed", "dropout"])
def test_opcheck(kind, device):
    operators = torch.ops.metalops
    utilities = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    args = operator_arguments(device, kind)
    torch.library.opcheck(operators.attention_forward.default, args, test_utils=utilities)
    args = operator_arguments(device, kind, requires_grad=False)
    out, lse = operators.attention_forward(*args)
    grads = (torch.ones_like(out), torch.ones_like(lse))
    everything_else = [x is not None for x in args[3:6]]
    for wanted in ([True] * 3 + everything_else, [False, True, False] + [False] * 3):
        torch.library.opcheck(
            operators.attention_backward.default,
            (*grads, *args[:3], out, lse, *args[3:], wanted),
            test_utils=utilities[:2],
        )


@devices
@pytest.mark.parametrize("kind", ["dense", "blhd", "packed", "dropout"])
def test_fake_results_have_the_strides_of_real_ones(kind, device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    args = operator_arguments(device, kind, requires_grad=False)
    operator = torch.ops.metalops.attention_forward.default
    backward = torch.ops.metalops.attention_backward.default
    wanted = [x is not None for x in args[:6]]
    real = operator(*args)
    real += backward(real[0], None, *args[:3], *real, *args[3:], wanted)
    with FakeTensorMode() as mode:
        args = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in args]
        fake = operator(*args)
        fake += backward(fake[0], None, *args[:3], *fake, *args[3:], wanted)
    for r, f in zip(real, fake):
        assert (r is None) == (f is None)
        if r is not None:
            assert (f.shape, f.dtype, f.device) == (r.shape, r.dtype, r.device)
            assert f.stride() == r.stride()


@pytest.mark.sampled(2)
@pytest.mark.full
@devices
@pytest.mark.parametrize("p", [0.0, 0.25])
def test_compile_in_one_graph_forward_and_backward(p, device):
    tensors, _ = everything(device)

    def function(query, key, value, mask, sinks, slopes):
        options = {"sinks": sinks, "alibi_slopes": slopes, "dropout_p": p}
        return ops.attention(query * 2, key, value, mask, **options, **EVERYTHING) + 1

    def run(function):
        leaves = [t.detach().requires_grad_() for t in tensors]
        torch.manual_seed(1)
        out = function(*leaves)
        return out, *torch.autograd.grad(out.square().sum(), leaves)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=p == 0)
    for a, e in zip(run(compiled), run(function)):
        torch.testing.assert_close(a, e)


@devices
def test_packed_sequences_compile(device):
    args = [make((14, 2, 8), seed=i).to(device) for i in range(3)]
    begins = torch.tensor([0, 5, 14], dtype=torch.int32, device=device)

    def function(query, key, value, begins):
        return ops.varlen_attention(query, key, value, begins, begins, 9, 9, is_causal=True)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*args, begins), function(*args, begins))


@pytest.mark.sampled(2)
@pytest.mark.full
@devices
def test_compiled_autograd_takes_the_gradient(device):
    tensors, call = everything(device)
    leaves = [t.detach().requires_grad_() for t in tensors]
    expected = torch.autograd.grad(call(*leaves).square().sum(), leaves)
    torch._dynamo.reset()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        call(*leaves).square().sum().backward()
    for leaf, e in zip(leaves, expected):
        torch.testing.assert_close(leaf.grad, e)


@pytest.mark.sampled(2)
@devices
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_export_keeps_the_operator(p, device):
    class Module(torch.nn.Module):
        def forward(self, query, key, value):
            return ops.attention(query, key, value, is_causal=True, dropout_p=p)

    args = tuple(to_all(device, operands(2, 2, 2, 6, 6, 8)))
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(
        Module(), args, dynamic_shapes=({2: length}, {2: length}, {2: length})
    ).run_decompositions()
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.metalops.attention_forward.default) == 1
    more = [torch.cat([x, x], 2) for x in args]
    torch.manual_seed(1)
    actual = program.module()(*more)
    torch.manual_seed(1)
    torch.testing.assert_close(actual, Module()(*more))


@devices
def test_operations_are_counted(device):
    from torch.utils.flop_counter import FlopCounterMode

    leaves = [x.to(device).requires_grad_() for x in operands(2, 4, 2, 16, 32, 8, 24)]
    with FlopCounterMode(display=False) as counter:
        ops.attention(*leaves, is_causal=True).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    scores = 2 * 4 * 16 * 32
    assert counts[torch.ops.metalops.attention_forward] == 2 * scores * (8 + 24)
    assert counts[torch.ops.metalops.attention_backward] == 2 * scores * (3 * 8 + 2 * 24)
    begins = torch.tensor([0, 3, 10], dtype=torch.int32, device=device)
    x = make((10, 2, 8)).to(device)
    with FlopCounterMode(display=False) as counter:
        ops.varlen_attention(x, x, x, begins, begins, 7, 7)
    assert counter.get_total_flops() == 2 * 2 * (9 + 49) * 16


@devices
def test_inference_mode_and_meta_tensors(device):
    tensors = to_all(device, operands(1, 2, 2, 6, 9, 8))
    expected = ops.attention(*tensors)
    with torch.inference_mode():
        assert torch.equal(ops.attention(*tensors), expected)
    out, lse = attention(*(x.to("meta") for x in tensors))
    assert out.shape == expected.shape and lse.shape == (1, 2, 6)


# ---- memory --------------------------------------------------------------------------------------


def test_no_kernel_is_a_stand_in():
    tensors, call = everything("mps")
    leaves = [x.requires_grad_() for x in tensors]
    cotangent = torch.ones(2, 4, 6, 5, device="mps")
    with no_standins():
        torch.autograd.grad(call(*leaves), leaves, cotangent)


def test_memory_grows_with_the_tokens_not_with_their_product():
    tensors = [make((1, 4, 8192, 64), seed=i).to("mps").requires_grad_() for i in range(3)]
    cotangent = torch.ones(1, 4, 8192, 64, device="mps")
    torch.accelerator.memory.reset_peak_memory_stats()
    before = torch.accelerator.memory.memory_allocated()
    # The window is for the time that it takes: it does not change what is allocated.
    out = ops.attention(*tensors, is_causal=True, window_size=(64, -1))
    torch.autograd.grad(out, tensors, cotangent)
    used = torch.accelerator.memory.max_memory_allocated() - before
    assert used < 10 * sum(x.nbytes for x in tensors)


def test_more_scores_than_numbers_of_32_bits():
    """Known defect of stock: silently wrong."""
    length = 1 << 16
    query, key, value = (make((1, 1, length, 8), seed=i) for i in range(3))
    out = ops.attention(*to_all("mps", (query, key, value)), window_size=(20, 0)).cpu()
    for begin in (0, length // 2, length - 64):
        first = max(begin - 20, 0)
        rows, keys = slice(begin, begin + 64), slice(first, begin + 64)
        expected, _ = reference(
            query[:, :, rows], key[:, :, keys], value[:, :, keys], window_size=(20, 0),
            causal_alignment="bottom_right",
        )  # fmt: skip
        torch.testing.assert_close(out[:, :, rows], expected, rtol=1e-5, atol=1e-5)
