"""kernels/attention/attention.metal: both bodies of their products, under every option."""

import random
import re
from pathlib import Path

import metalops
import pytest
import torch
from metalops import ops
from metalops.msl.flatten import flatten
from metalops.ops._cuda import plan as plans
from metalops.ops._cuda.attention_call import Call
from metalops.testing.samples import make

from ..families import kernel_file
from .helpers import BODIES, products_of

ROOT = Path(__file__).parents[3]

ROUNDING = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}
LENGTHS = (1, 2, 15, 31, 32, 33, 63, 64, 65, 100, 129)
FEATURES = (1, 7, 8, 16, 32, 40, 64, 72, 80, 96, 128, 192, 256)
OPTIONS = ("mask", "sinks", "slopes")
LIMITS = plans.Limits(multiprocessors=132, has_tensors=True)


@pytest.fixture
def body(request, monkeypatch):
    with products_of(request.param, monkeypatch):
        yield


bodies = pytest.mark.parametrize("body", BODIES, indirect=True)


def _case(seed):
    """Tensors (query, key, value, mask, sinks, slopes, where there are) and numbers of a call."""
    choose = random.Random(seed)
    dtype = choose.choice(list(ROUNDING))
    batch, heads, group = choose.choice((1, 2)), choose.choice((1, 2)), choose.choice((1, 1, 2, 3))
    # More than the kernels of few queries take.
    queries, keys = choose.choice([n for n in LENGTHS if n > 8]), choose.choice(LENGTHS)
    features, values = choose.choice(FEATURES), choose.choice(FEATURES)
    tensors = {
        "query": make((batch, heads * group, queries, features), dtype, seed=seed),
        "key": make((batch, heads, keys, features), dtype, seed=seed + 1),
        "value": make((batch, heads, keys, values), dtype, seed=seed + 2),
    }
    if choose.random() < 0.3:
        tensors["query"] = tensors["query"].transpose(1, 2).contiguous().transpose(1, 2)
    if choose.random() < 0.5:
        sizes = [choose.choice((1, n)) for n in (batch, heads * group, queries, keys)]
        kind = choose.choice((torch.bool, torch.float32, dtype))
        mask = make(sizes, torch.float32, seed=seed + 3)
        tensors["mask"] = mask > -2 if kind is torch.bool else mask.to(kind)
    if choose.random() < 0.3:
        tensors["sinks"] = make((heads * group,), torch.float32, seed=seed + 4)
    if choose.random() < 0.3:
        sizes = choose.choice(((heads * group,), (batch, heads * group)))
        tensors["slopes"] = make(sizes, torch.float32, low=0, high=1, seed=seed + 5)
    numbers = {
        "scale": features**-0.5,
        "left": choose.choice((-1, -1, 0, 10, 40)),
        "right": choose.choice((-1, 0, 0, 3)),
        "bottom_right": choose.random() < 0.5,
        "softcap": choose.choice((0.0, 0.0, 2.0)),
    }
    return tensors, numbers


def _expected(query, key, value, mask=None, sinks=None, slopes=None, *, numbers):
    """Result and log-sum-exp, by the formula in float64."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    scores = query @ key.mT * numbers["scale"]
    if numbers["softcap"]:
        scores = numbers["softcap"] * torch.tanh(scores / numbers["softcap"])
    rows, columns = scores.shape[-2:]
    diagonal = columns - rows if numbers["bottom_right"] else 0
    distance = torch.arange(rows)[:, None] + diagonal - torch.arange(columns)
    if slopes is not None:
        scores = scores - slopes.reshape(-1, slopes.shape[-1], 1, 1) * distance.abs()
    if mask is not None:
        hides = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -torch.inf) if hides else scores + mask
    if numbers["right"] >= 0:
        scores = scores.masked_fill(distance < -numbers["right"], -torch.inf)
    if numbers["left"] >= 0:
        scores = scores.masked_fill(distance > numbers["left"], -torch.inf)
    lse = torch.logsumexp(scores, -1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks[:, None])
    return torch.exp(scores - lse[..., None]).nan_to_num(0) @ value, lse


def _arguments(tensors, numbers):
    """Of the general operators, behind value."""
    query, key = tensors["query"], tensors["key"]
    return (
        *(tensors.get(name) for name in OPTIONS),
        *[None] * 4,
        query.shape[2],
        key.shape[2],
        numbers["scale"],
        numbers["left"],
        numbers["right"],
        numbers["bottom_right"],
        numbers["softcap"],
        0.0,
    )


def _close(actual, expected, rounding, name):
    assert actual.shape == expected.shape, name
    if expected.numel():
        error = (actual.cpu().double() - expected).abs().max().item()
        assert error <= rounding * (1 + expected.abs().max().item()), f"{name}: {error}"


# For the full tier one call for both dtypes of each body, of features and options of other tests, because each number of
# features and each dtype has kernels of its own.
SOONER = {
    ("simdgroup", 70),
    ("tensor", 20),
    ("tensor", 360),
    ("GPU's tensor", 290),
    ("GPU's tensor", 70),
}
CALLS = [
    pytest.param(body, seed, marks=() if (body, seed) in SOONER else pytest.mark.nightly)
    for seed in range(0, 400, 10)
    for body in BODIES
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("body", "seed"), CALLS, indirect=["body"])
def test_results_and_gradients_are_those_of_the_formula(body, seed):
    tensors, numbers = _case(seed)
    dtype = tensors["query"].dtype
    wide = {
        name: x if x.dtype == torch.bool else x.double().requires_grad_()
        for name, x in tensors.items()
    }
    expected, expected_lse = _expected(**wide, numbers=numbers)
    on_device = {name: x.to("mps") for name, x in tensors.items()}
    inputs = [on_device[name] for name in ("query", "key", "value")]
    arguments = _arguments(on_device, numbers)
    out, lse = torch.ops.metalops.attention_forward(*inputs, *arguments)
    _close(out, expected.detach(), ROUNDING[dtype], "result")
    seen = expected_lse.detach() > -torch.inf
    assert torch.equal(lse.cpu() > -torch.inf, seen)
    _close(lse.cpu()[seen], expected_lse.detach()[seen], 2e-5, "log-sum-exp")

    grad = make(out.shape, dtype, seed=seed + 6)
    grad_lse = make(lse.shape, torch.float32, seed=seed + 7).where(seen, 0)
    loss = (expected * grad.double()).sum() + (expected_lse.where(seen, 0) * grad_lse).sum()
    names = [name for name, x in wide.items() if x.requires_grad]
    gradients = torch.autograd.grad(loss, [wide[name] for name in names], allow_unused=True)
    places = ("query", "key", "value", *OPTIONS)
    actual = torch.ops.metalops.attention_backward(
        grad.to("mps"),
        grad_lse.to("mps"),
        *inputs,
        out,
        lse,
        *arguments,
        [name in names for name in places],
    )
    for name, gradient in zip(names, gradients, strict=True):
        given = actual[places.index(name)]
        assert given.dtype == tensors[name].dtype
        wanted = torch.zeros(given.shape) if gradient is None else gradient.nan_to_num(0)
        _close(given, wanted.double(), 4 * ROUNDING[dtype], name)


@pytest.mark.sampled(2)
@bodies
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_tokens_that_are_tiles_away_from_the_window_are_not_met(body, dtype):
    """They are no numbers, which would be seen even with a weight of 0."""
    tensors = [make((1, 1, 448, 32), dtype, seed=seed).to("mps") for seed in range(3)]
    near = slice(192, 256)

    def results(tensors):
        leaves = [x.detach().requires_grad_() for x in tensors]
        out = ops.attention(*leaves, window_size=(20, 10))
        found = out, *torch.autograd.grad(out, leaves, tensors[0].nan_to_num(1))
        return [x[:, :, near] for x in found]

    expected = results(tensors)
    numbers = {"scale": 32**-0.5, "left": 20, "right": 10, "bottom_right": False, "softcap": 0.0}
    exact, _ = _expected(*(x.cpu().double() for x in tensors), numbers=numbers)
    _close(expected[0].detach(), exact[:, :, near], ROUNDING[dtype], "result")
    assert all(x.isfinite().all() for x in expected)
    for x in tensors:
        x[:, :, :40] = torch.nan
        x[:, :, -40:] = torch.nan
    for actual, wanted in zip(results(tensors), expected, strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.sampled(2)
@bodies
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_sinks_far_above_and_below_the_scores(body, dtype):
    tensors = {
        name: make((1, 2, rows, 16), dtype, seed=rows)
        for name, rows in (("query", 20), ("key", 40), ("value", 41))
    }
    tensors["value"] = tensors["value"][:, :, :40]
    tensors["sinks"] = torch.tensor([300.0, -300.0])
    numbers = {"scale": 0.25, "left": -1, "right": -1, "bottom_right": False, "softcap": 0.0}
    expected = _expected(**{name: x.double() for name, x in tensors.items()}, numbers=numbers)
    tensors = {name: x.to("mps") for name, x in tensors.items()}
    inputs = [tensors[name] for name in ("query", "key", "value")]
    actual = torch.ops.metalops.attention_forward(*inputs, *_arguments(tensors, numbers))
    for name, a, e in zip(("result", "log-sum-exp"), actual, expected, strict=True):
        _close(a, e, ROUNDING[dtype], name)


@pytest.mark.sampled(2)
@bodies
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_nothing_is_read_behind_the_features(body, dtype):
    tensors = [make((1, 2, rows, 21), dtype, seed=rows).to("mps") for rows in (20, 40, 40)]
    gaps = [torch.full((*x.shape[:-1], 30), torch.nan, dtype=dtype, device="mps") for x in tensors]
    for x, among in zip(tensors, gaps, strict=True):
        among[..., :21] = x
    actual = ops.attention(*(among[..., :21] for among in gaps))
    assert torch.equal(actual, ops.attention(*tensors))


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["apple8", "scramble:3"])
def test_products_of_simdgroups_do_not_depend_on_where_their_elements_are(layout, monkeypatch):
    """Weights then go to the next product through threadgroup memory."""
    monkeypatch.setenv("METALOPS_COOPERATIVE_LAYOUT", layout)
    folders = [ROOT, ROOT / "python/metalops/include"]
    source = flatten(kernel_file("attention"), folders)
    others = r"^REGISTER_(?!FORWARD_BY_SIMDGROUPS\(half, 64\)).*$"
    source = re.sub(others, "", source, flags=re.MULTILINE)
    kernel = metalops.compile_shader(source, language="4.0").attention_forward_by_simdgroups_64_half
    tensors = {
        "query": make((2, 4, 70, 40), torch.half, seed=1),
        "key": make((2, 2, 150, 40), torch.half, seed=2),
        "value": make((2, 2, 150, 64), torch.half, seed=3),
        "mask": make((2, 1, 70, 150), torch.float32, seed=4),
        "sinks": make((4,), torch.float32, seed=5),
    }
    numbers = {"scale": 0.2, "left": -1, "right": 0, "bottom_right": True, "softcap": 0.0}
    expected = _expected(**{name: x.double() for name, x in tensors.items()}, numbers=numbers)
    on_device = {name: x.to("mps") for name, x in tensors.items()}
    inputs = [on_device[name] for name in ("query", "key", "value")]
    call = Call(*inputs, *_arguments(on_device, numbers))
    out = torch.empty(2, 4, 70, 64, dtype=torch.half, device="mps")
    lse = torch.empty(2, 4, 70, device="mps")
    arguments = {"out": out, "lse": lse, **call._asdict()}
    plan, given = plans.functions().plan("attention_forward", LIMITS, arguments)

    def launch(step, values):
        assert step.kernel == "attention_forward_by_simdgroups_64_half"
        buffers = [
            torch.frombuffer(bytearray(x), dtype=torch.uint8).to("mps") if isinstance(x, bytes)
            else out if x is None else x
            for x in values
        ]  # fmt: skip
        kernel(*buffers, threads=step.grid, group_size=step.group)

    plans.execute(plan, given, out, launch)
    for found, wanted, rounding in zip((out, lse), expected, (ROUNDING[torch.half], 2e-5)):
        _close(found, wanted, rounding, layout)
