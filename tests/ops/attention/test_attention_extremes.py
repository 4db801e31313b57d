"""Attention with every option at its ends, several of them together: sinks, masks, softcaps, scales and slopes that are infinite,
huge, tiny or zero, and sizes of zero; against the formula in float64."""

import math
import random
from typing import NamedTuple

import pytest
import torch
from metalops import flash_attn, ops
from torch import Tensor

from .helpers import BACKWARD, BODIES, FORWARD, products_of

INF = math.inf
MOST = torch.finfo(torch.float32).max
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NAMES = ("query", "key", "value", "mask", "sinks", "slopes")


# ---- the formula -------------------------------------------------------------------------------------


class _Rounded(torch.autograd.Function):
    """To float32, which scores are in."""

    @staticmethod
    def forward(ctx, x):
        return x.float().double()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Numbers(NamedTuple):
    scale: float = 0.25
    softcap: float = 0.0
    left: int = -1
    right: int = -1
    bottom_right: bool = False


def formula(query, key, value, mask, sinks, slopes, numbers: Numbers, lengths=None):
    """Result and log-sum-exp of four dimensions, in float64. lengths: of the keys of each sample."""
    group = query.shape[1] // max(key.shape[1], 1)
    if key.shape[1]:
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    else:
        key, value = (x[:, :0] for x in (key, value))
    key, value = (x[:, : query.shape[1]] for x in (key, value))
    batch, heads, rows, features = query.shape
    columns = key.shape[2]
    if lengths is None:
        lengths = torch.full((batch,), columns)
    lengths = lengths[:, None, None, None]
    scores = _Rounded.apply(numbers.scale * (query @ key.mT))
    if numbers.softcap > 0:
        scores = _Rounded.apply(numbers.softcap * torch.tanh(scores / numbers.softcap))
    column = torch.arange(columns)
    distance = torch.arange(rows)[:, None] - column
    if numbers.bottom_right:
        distance = distance + lengths - rows
    if slopes is not None:
        scores = _Rounded.apply(scores - slopes[..., None, None] * distance.abs())
    hidden = (column >= lengths).expand(batch, heads, rows, columns)
    if numbers.left >= 0:
        hidden = hidden | (distance > numbers.left)
    if numbers.right >= 0:
        hidden = hidden | (distance < -numbers.right)
    if features == 0:
        hidden = torch.ones_like(hidden)
    if mask is not None and mask.dtype == torch.bool:
        hidden = hidden | ~mask
    elif mask is not None:
        scores = _Rounded.apply(scores + mask)
    scores = scores.masked_fill(hidden, -INF)
    sink = torch.full((heads,), -INF) if sinks is None else sinks
    sink = sink.double()[:, None, None].expand(batch, heads, rows, 1)
    both = torch.cat([scores, sink], -1)
    is_nan = (scores.isnan() | (scores == INF)).any(-1, True) | sink.isnan()
    is_sink = (sink == INF) & ~is_nan
    is_empty = (both == -INF).all(-1, True)
    is_usual = ~(is_nan | is_sink | is_empty)
    usual = torch.where(is_usual, both, 0.0)
    # Not torch.logsumexp, whose derivative is wrong where the logarithm has no room beside the largest score.
    most = usual.detach().amax(-1, True)
    relative = torch.exp(usual - most)
    total = relative.sum(-1, True)
    out = torch.where(
        is_nan, math.nan, torch.where(is_usual, relative / total, 0.0)[..., :-1] @ value
    )
    lse = torch.where(is_usual, most + total.log(), -INF)
    lse = torch.where(is_sink, sink, torch.where(is_nan, math.nan, lse))
    return out, lse[..., 0]


# ---- calls at the ends of their options ----------------------------------------------------------


def exact(choose, shape, dtype):
    """Numbers whose products and sums of products float32 has room for, whatever their order."""
    generator = torch.Generator().manual_seed(choose.getrandbits(30))
    return (torch.randint(-2, 3, shape, generator=generator) / 2).to(dtype)


def a_mask(choose, full, dtype, softcap):
    sizes = [choose.choice((1, n)) for n in full]
    kind = choose.choice((torch.bool, torch.float32, dtype))
    generator = torch.Generator().manual_seed(choose.getrandbits(30))
    seen = torch.rand(sizes, generator=generator) < choose.choice((0.0, 0.1, 0.6))
    if kind == torch.bool:
        return seen
    least = torch.finfo(kind).min
    if kind == torch.float16 and softcap:
        least = -INF  # there is room for some of the digits of a score, which tanh decides
    hides = torch.full(sizes, choose.choice((-INF, least)), dtype=kind)
    return torch.where(seen, exact(choose, sizes, kind), hides)


def of_heads(choose, shape, dtype, values):
    return torch.tensor([choose.choice(values) for _ in range(math.prod(shape))]).reshape(shape).to(dtype)  # fmt: skip


class Case(NamedTuple):
    seed: int
    tensors: dict[str, Tensor | None]
    numbers: Numbers
    has_gradients: bool


def case(seed: int, *, packed: bool = False, few: bool = False) -> Case:
    """packed: without a mask. few: as many queries as the kernels for few take."""
    choose = random.Random(seed)
    dtype = choose.choice(DTYPES)
    has_gradients = choose.random() < 0.7
    batch = choose.choice((1, 1, 2, 2, 0))
    heads, key_heads = choose.choice(((1, 1), (2, 2), (4, 2), (3, 1), (0, 0), (0, 2)))
    rows = choose.choice((1, 2, 7, 8) if few else (0, 1, 3, 9, 31, 33, 66))
    columns = choose.choice((0, 1, 2, 31, 33, 65, 100))
    if few and choose.random() < 0.2:
        columns = 1100  # in parts
    features = choose.choice((0, 1, 8, 16, 64, 130))
    values = choose.choice((0, 1, 8, 16, 64, 130))
    usual, ends = (0.25, -0.5, 0.0), (1e-40, 1e20, -1e36)
    scale = choose.choice(usual if has_gradients else usual + ends)
    softcap = choose.choice((0.0, 0.0, 0.5, 20.0, 1e-30, 1e-45, 1e30, 3e38))
    numbers = Numbers(
        scale,
        softcap,
        choose.choice((-1, -1, 0, 1, 40, 2**40)),
        choose.choice((-1, -1, 0, 0, 2, 2**40)),
        packed or choose.random() < 0.5,
    )
    infinite = (-INF, INF) if dtype == torch.float16 else (-INF, INF, 3e38, -3e38)
    tensors: dict[str, Tensor | None] = {
        "query": exact(choose, (batch, heads, rows, features), dtype),
        "key": exact(choose, (batch, key_heads, columns, features), dtype),
        "value": exact(choose, (batch, key_heads, columns, values), dtype),
        **dict.fromkeys(NAMES[3:]),
    }
    if not packed and choose.random() < 0.5:
        tensors["mask"] = a_mask(choose, (batch, heads, rows, columns), dtype, softcap)
    if choose.random() < 0.6:
        kind = choose.choice((torch.float32, dtype))
        tensors["sinks"] = of_heads(choose, (heads,), kind, (*infinite, -INF, 0.0, 2.0, -60000.0))
    if choose.random() < 0.3:
        shape = choose.choice(((heads,), (batch, heads)))
        slopes = (0.0, 0.5, -0.25, 2.0**60) if has_gradients else (0.0, 1e30, 3e38, INF, -INF)
        tensors["slopes"] = of_heads(choose, shape, torch.float32, slopes)
    return Case(seed, tensors, numbers, has_gradients)


def compare(name: str, actual: Tensor, expected: Tensor, atol: float, rtol: float = 0) -> None:
    assert actual.shape == expected.shape, name
    torch.testing.assert_close(
        actual.detach().cpu().double(),
        expected.detach(),
        rtol=rtol,
        atol=atol,
        equal_nan=True,
        msg=lambda text: f"{name}: {text}",
    )


def check(function, case: Case, device: str, lengths=None) -> None:
    """function: of the six tensors and the numbers."""
    given = case.tensors
    dtype = given["query"].dtype
    wide = {}
    for name, x in given.items():
        is_float = x is not None and x.is_floating_point()
        wide[name] = x.double().requires_grad_(case.has_gradients) if is_float else x
    placed = {
        name: x if x is None else x.to(device).requires_grad_(case.has_gradients and x.is_floating_point())
        for name, x in given.items()
    }  # fmt: skip
    expected = formula(*wide.values(), case.numbers, lengths)
    actual = function(*placed.values(), case.numbers)
    compare(f"out of {case.seed}", actual[0], expected[0], FORWARD[dtype])
    compare(f"lse of {case.seed}", actual[1], expected[1], 2e-5, rtol=2e-5)
    assert actual[0].dtype == dtype
    if not case.has_gradients:
        return
    choose = random.Random(7)
    grads = [exact(choose, x.shape, torch.float32) for x in expected]
    names = [name for name, x in wide.items() if x is not None and x.is_floating_point()]
    inputs = [wide[name] for name in names]
    found = [placed[name] for name in names]
    exact_gradients = torch.autograd.grad(expected, inputs, [x.double() for x in grads], materialize_grads=True)  # fmt: skip
    gradients = torch.autograd.grad(
        actual,
        found,
        [x.to(device=device, dtype=y.dtype) for x, y in zip(grads, actual)],
        materialize_grads=True,
    )
    for name, gradient, exact_gradient in zip(names, gradients, exact_gradients):
        most = max([1.0, *exact_gradient.abs().flatten().tolist()])
        if name == "slopes":
            most *= max(1, given["key"].shape[2] / 16)  # of distances as large as that
        compare(
            f"gradient of {name} of {case.seed}", gradient, exact_gradient, BACKWARD[dtype] * most
        )


@pytest.fixture(params=["cpu", *BODIES, "GPU's simdgroup"])
def place(request, monkeypatch):
    """A device, mps with each body of the kernels."""
    if request.param == "cpu":
        yield "cpu"
        return
    with products_of(request.param, monkeypatch):
        yield "mps"


def attention(query, key, value, mask, sinks, slopes, numbers):
    return ops.attention(
        query,
        key,
        value,
        mask,
        scale=numbers.scale,
        softcap=numbers.softcap,
        window_size=(numbers.left, numbers.right),
        causal_alignment="bottom_right" if numbers.bottom_right else "top_left",
        sinks=sinks,
        alibi_slopes=slopes,
        return_lse=True,
    )


@pytest.mark.sampled(8)
@pytest.mark.parametrize("first", range(0, 20, 5))
def test_attention(place, first):
    for seed in range(first, first + 5):
        check(attention, case(seed), place)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("first", range(1000, 1020, 5))
def test_attention_of_few_queries(place, first):
    for seed in range(first, first + 5):
        check(attention, case(seed, few=True), place)


# ---- packed sequences and pages ----------------------------------------------------------------------


def check_packed(seed: int, device: str) -> None:
    choose = random.Random(seed)
    given = case(seed, packed=True)
    batch, _, rows, _ = given.tensors["query"].shape
    columns = given.tensors["key"].shape[2]
    # Sequences of one length of queries, with other numbers of keys, some of which have none.
    lengths = torch.tensor([choose.choice((0, columns, columns // 2)) for _ in range(batch)], dtype=torch.int32)  # fmt: skip
    begins = [torch.arange(batch + 1, dtype=torch.int32) * n for n in (rows, columns)]

    def function(query, key, value, mask, sinks, slopes, numbers):
        heads = query.shape[1]
        together = [x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)]
        out, lse = ops.varlen_attention(
            *together,
            *(x.to(device) for x in begins),
            rows,
            columns,
            scale=numbers.scale,
            softcap=numbers.softcap,
            window_size=(numbers.left, numbers.right),
            sinks=sinks,
            alibi_slopes=slopes,
            seqused_k=lengths.to(device),
            return_lse=True,
        )
        shape = (batch, rows, heads, value.shape[3])
        lse = lse.reshape(heads, batch, rows).transpose(0, 1)
        return out.reshape(shape).transpose(1, 2), lse

    check(function, given, device, lengths)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("first", range(2000, 2020, 5))
def test_packed_sequences(place, first):
    for seed in range(first, first + 5):
        check_packed(seed, place)


def check_paged(seed: int, device: str) -> None:
    choose = random.Random(seed)
    given = case(seed, packed=True, few=choose.random() < 0.5)
    tensors, numbers = given.tensors, given.numbers._replace(right=0)
    query, key, value = (tensors[name] for name in NAMES[:3])
    if key.shape[1] == 0 or value.shape[3] == 0 or query.shape[2] == 0:
        return  # a cache has heads and features
    batch, columns = key.shape[0], key.shape[2]
    size = choose.choice((1, 4, 5))
    pages = -(-columns // size)
    lengths = torch.tensor([choose.choice((0, columns, columns // 2)) for _ in range(batch)], dtype=torch.int32)  # fmt: skip
    order = torch.randperm(batch * pages + 1, generator=torch.Generator().manual_seed(seed))
    table = order[: batch * pages].reshape(batch, pages).to(torch.int32)
    caches = []
    for x in (key, value):
        cache = torch.full((batch * pages + 1, size, x.shape[1], x.shape[3]), 7.0).to(x.dtype)
        padded = torch.nn.functional.pad(x, (0, 0, 0, pages * size - columns)).transpose(1, 2)
        cache[table.long()] = padded.reshape(batch, pages, *cache.shape[1:])
        caches.append(cache)

    def function(query, key, value, mask, sinks, slopes, numbers):
        out, lse = ops.paged_attention(
            query.transpose(1, 2),
            *(x.to(device) for x in (*caches, table, lengths)),
            scale=numbers.scale,
            softcap=numbers.softcap,
            window_size=(numbers.left, 0),
            sinks=sinks,
            alibi_slopes=slopes,
            return_lse=True,
        )
        return out.transpose(1, 2), lse.transpose(1, 2)

    check(function, Case(seed, tensors, numbers, False), device, lengths)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("first", range(3000, 3020, 5))
def test_pages(place, first):
    for seed in range(first, first + 5):
        check_paged(seed, place)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(10000, 10060, 20))
def test_more_of_all(place, first):
    for seed in range(first, first + 20):
        check(attention, case(seed), place)
        check(attention, case(seed, few=True), place)
        check_packed(seed, place)
        check_paged(seed, place)


# ---- single ones ---------------------------------------------------------------------------------------


devices = pytest.mark.parametrize("device", ("cpu", "mps"))


@devices
@pytest.mark.parametrize("rows", (1, 40))
@pytest.mark.parametrize("sink", (-INF, INF))
def test_rows_that_see_nothing_beside_an_infinite_sink_are_zero(device, rows, sink):
    tensors = [torch.ones(1, 2, n, 8, device=device, requires_grad=True) for n in (rows, 5, 5)]
    sinks = torch.full((2,), sink, device=device, requires_grad=True)
    mask = torch.zeros(rows, 5, dtype=torch.bool, device=device)
    out, lse = ops.attention(*tensors, mask, sinks=sinks, return_lse=True)
    assert not out.any()
    assert torch.all(lse == sink)
    gradients = torch.autograd.grad(out.sum() + lse.sum(), [*tensors, sinks], retain_graph=True)
    for gradient in gradients[:3]:
        assert torch.equal(gradient, torch.zeros_like(gradient))
    assert torch.all(gradients[3] == (0 if sink < 0 else rows))


@devices
def test_second_derivatives_are_numbers_beside_infinite_sinks(device):
    tensors = [torch.ones(1, 3, n, 4, device=device, requires_grad=True) for n in (10, 3, 3)]
    sinks = torch.tensor([-INF, INF, 0.5], device=device, requires_grad=True)
    mask = torch.ones(10, 3, dtype=torch.bool, device=device)
    mask[::2] = False
    out = ops.attention(*tensors, mask, sinks=sinks)
    firsts = torch.autograd.grad(out.square().sum(), [*tensors, sinks], create_graph=True)
    seconds = torch.autograd.grad(sum(x.square().sum() for x in firsts), [*tensors, sinks])
    assert all(x.isfinite().all() for x in seconds)


@devices
@pytest.mark.parametrize("lse", (INF, -INF))
def test_parts_whose_weights_are_infinite_are_put_together(device, lse):
    outs = torch.tensor([[1.0, 2.0], [3.0, 6.0]], device=device)
    lses = torch.tensor([lse, lse], device=device)
    other = torch.tensor([lse, 0.0], device=device)
    out, merged = ops.merge_attention(outs, lses, 2 * outs, other)
    expected = [[1.5, 3.0], [3.0, 6.0]] if lse > 0 else [[0.0, 0.0], [6.0, 12.0]]
    assert out.tolist() == expected
    assert merged.tolist() == ([INF, INF] if lse > 0 else [-INF, 0.0])


@devices
def test_a_log_sum_exp_that_is_no_number_stays_none(device):
    numbers = torch.tensor([math.nan, 0.0], device=device)
    out, lse = ops.merge_attention(torch.ones(2, 1, device=device), numbers, torch.ones(2, 1, device=device), numbers.flip(0))  # fmt: skip
    assert out.isnan().all()
    assert lse.isnan().all()
    empty = torch.ones(2, 0, device=device)
    assert ops.merge_attention(empty, numbers, empty, numbers)[1][1].item() == pytest.approx(math.log(2))  # fmt: skip


@devices
@pytest.mark.parametrize(
    "options",
    [{"scale": x} for x in (INF, -INF, math.nan, 1e39)] + [{"softcap": x} for x in (INF, math.nan, -1.0, 1e39)],
    ids=str,
)  # fmt: skip
def test_numbers_that_are_none_of_float32_are_refused(device, options):
    ((name, _),) = options.items()
    x = torch.ones(1, 1, 2, 4, device=device)
    begins = torch.tensor([0, 2], dtype=torch.int32, device=device)
    lengths = torch.tensor([2], device=device)
    flash = {"softmax_scale" if name == "scale" else name: options[name]}
    for call in (
        lambda: ops.attention(x, x, x, **options),
        lambda: ops.varlen_attention(x[0, 0][:, None], x[0, 0][:, None], x[0, 0][:, None], begins, begins, 2, 2, **options),
        lambda: ops.paged_attention(x, x, x, lengths.int()[:, None] * 0, lengths, **options),
        lambda: flash_attn.flash_attn_func(x, x, x, **flash),
        lambda: flash_attn.flash_attn_with_kvcache(x, x, x, **flash),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"attention: {name} must be a finite number of float32"):  # fmt: skip
            call()
