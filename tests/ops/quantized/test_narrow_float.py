"""Floating-point numbers of 8 bits on mps: casts and movement. kernels/quantized/narrow_float.metal."""

import metalops
import pytest
import torch
from metalops.testing import to_device
from metalops.testing.samples import FLOATS, INTEGERS
from torch.nn import functional

from ..aten import assert_refused_as_on_the_cpu
from ..benchmark import Benchmark

NARROW = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
narrow = pytest.mark.parametrize("dtype", NARROW, ids=str)
floats = pytest.mark.parametrize("wide", FLOATS, ids=str)

BENCHMARKS = (
    Benchmark.same(
        "to float8_e4m3fn", lambda x, out: x.to(torch.float8_e4m3fn), only_dtype="float32"
    ),
    Benchmark.same(
        "from float8_e4m3fn",
        lambda x, out: x.view(torch.float8_e4m3fn).half(),
        only_dtype="float32",
    ),
)


def codes(dtype, *shape):
    """All 256 of them, or as many as a shape has."""
    count = torch.Size(shape).numel() if shape else 256
    return torch.arange(count).mul(37 if shape else 1).byte().view(dtype).reshape(shape or (256,))


def assert_same_bytes(actual, expected):
    assert actual.device.type == "mps"
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert torch.equal(actual.cpu().view(torch.uint8), expected.view(torch.uint8))


# ---- casts ---------------------------------------------------------------------------------------


def patterns(dtype):
    """All numbers of 16 bits; of 32, those whose lower half decides about roundings."""
    if dtype != torch.float32:
        return torch.arange(1 << 16).to(torch.int32).short().view(dtype)
    upper = torch.arange(1 << 16).to(torch.int32) << 16
    return torch.stack([upper | low for low in (0, 1, 0x7FFF, 0x8000, 0xFFFF)]).view(dtype).ravel()


@pytest.mark.sampled(2)
@narrow
@floats
def test_codes_are_those_of_the_cpu(dtype, wide):
    x = patterns(wide)
    assert_same_bytes(x.to("mps").to(dtype), x.to(dtype))


@pytest.mark.sampled(2)
@narrow
@floats
def test_values_are_those_of_the_cpu(dtype, wide):
    actual, expected = codes(dtype).to("mps").to(wide), codes(dtype).to(wide)
    assert torch.equal(actual.cpu().isnan(), expected.isnan())
    same = torch.int32 if wide == torch.float32 else torch.int16
    numbers = ~expected.isnan()
    assert torch.equal(actual.cpu().view(same)[numbers], expected.view(same)[numbers])


@narrow
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_integers_bools_and_complex_numbers(dtype):
    for other in (*INTEGERS, torch.bool, torch.uint16, torch.complex64):
        x = torch.arange(0, 100).to(other)
        assert_same_bytes(x.to("mps").to(dtype), x.to(dtype))
        y = torch.arange(0, 100).float().to(dtype)
        assert torch.equal(y.to("mps").to(other).cpu(), y.to(other))
    large = torch.tensor([2**24 + 1, 2**40 + 2**36, -(2**62), 447, 463, 465])
    assert_same_bytes(large.to("mps").to(dtype), large.to(dtype))


@narrow
def test_from_one_narrow_type_to_another(dtype):
    for other in NARROW:
        assert_same_bytes(codes(dtype).to("mps").to(other), codes(dtype).to(other))


@narrow
def test_casts_of_tensors_with_gaps_broadcast_and_to_and_from_the_cpu(dtype):
    x = torch.randn(6, 8).abs() * 4
    wide = x.to("mps")
    for view in (lambda t: t.t(), lambda t: t[::2, 1::3], lambda t: t[:, :1].expand(-1, 5)):
        assert_same_bytes(view(wide).to(dtype), view(x).to(dtype))
        small = x.to(dtype)
        assert torch.equal(view(small.to("mps")).float().cpu(), view(small).float())
        for into, source in ((dtype, torch.float32), (torch.float16, dtype), (dtype, dtype)):
            expected = torch.zeros(9, 9).to(into)[:6, 1:].t()
            for from_cpu in (False, True):
                actual = torch.zeros(9, 9).to(into).to("mps")[:6, 1:].t()
                actual.copy_(x.to(source).t().to("cpu" if from_cpu else "mps"))
                expected.copy_(x.to(source).t())
                assert_same_bytes(actual.contiguous(), expected.contiguous())
            on_cpu = torch.zeros(9, 9).to(into)[:6, 1:].t()
            on_cpu.copy_(x.to(source).t().to("mps"))
            assert torch.equal(on_cpu.float(), expected.float())
    row = torch.zeros(6, 8, device="mps").to(dtype).copy_(wide[0])
    assert_same_bytes(row, x[0].expand(6, 8).to(dtype))
    row.copy_(row)
    assert_same_bytes(torch.empty(0, 3, device="mps").to(dtype), torch.empty(0, 3).to(dtype))
    assert_same_bytes(wide[0, 0].to(dtype), x[0, 0].to(dtype))


def test_copies_that_do_not_fit_are_refused_as_on_the_cpu():
    assert_refused_as_on_the_cpu(
        [
            lambda move: move(torch.zeros(3)).to(torch.float8_e5m2).copy_(move(torch.zeros(2, 3))),
            lambda move: (
                move(torch.zeros(1)).to(torch.float8_e5m2).expand(3).copy_(move(torch.zeros(3)))
            ),
        ],
        RuntimeError,
    )


def test_a_cast_of_gradients():
    x = torch.randn(8, device="mps", requires_grad=True)
    x.to(torch.float8_e5m2).half().sum().backward()
    assert torch.equal(x.grad.cpu(), torch.ones(8))


# ---- movement ------------------------------------------------------------------------------------

MASK = torch.arange(12).reshape(3, 4) % 3 == 0
MOVES = {
    "clone": lambda x: x.t().clone(),
    "contiguous": lambda x: x.t().contiguous(),
    "cat": lambda x: torch.cat([x, x[:1]]),
    "cat.out": lambda x: torch.cat([x, x], out=x.new_empty(0)),
    "stack": lambda x: torch.stack([x, x], 1),
    "index": lambda x: x[to_device(torch.tensor([2, 0]), x.device)],
    "index by a mask": lambda x: x[MASK.to(x.device)],
    "index_select": lambda x: x.index_select(1, torch.tensor([3, 1]).to(x.device)),
    "masked_select": lambda x: x.masked_select(MASK.to(x.device)),
    "where": lambda x: torch.where(MASK.to(x.device), x, x.roll(1, 0)),
    "where with a number": lambda x: torch.where(MASK.to(x.device), x, 2.0),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "repeat": lambda x: x.repeat(2, 1, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "embedding": lambda x: functional.embedding(torch.tensor([1, 1, 0]).to(x.device), x),
    "unfold": lambda x: x.unfold(1, 2, 1).contiguous(),
    "diag": lambda x: x[0].diag(),
    "assigned row": lambda x: _assigned(x, 1, x[0]),
    "assigned number": lambda x: _assigned(x, (0, 1), 2.0),
    "fill": lambda x: x.clone().fill_(3),
    "fill of a part": lambda x: _filled(x.clone(), 3),
    "fill with a tensor": lambda x: x.clone().fill_(torch.tensor(3.0).to(x.device)),
    "fill with a tensor of the CPU": lambda x: x.clone().fill_(torch.tensor(3.0)),
    "zero": lambda x: x.clone().zero_(),
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "new_full": lambda x: x.new_full((2, 2), 0.3),
    "view": lambda x: x.view(2, 6).t().reshape(3, 4),
}


def _assigned(x, place, value):
    y = x.clone()
    y[place] = value
    return y


def _filled(x, value):
    x.t()[1:, ::2].fill_(value)
    return x


@narrow
@pytest.mark.parametrize("move", MOVES)
def test_elements_move_as_on_the_cpu(dtype, move):
    x = codes(dtype, 3, 4)
    assert_same_bytes(MOVES[move](x.to("mps")), MOVES[move](x))


@pytest.mark.parametrize("dtype", NARROW[:-1], ids=str)  # the CPU lacks it for the last one
def test_index_put_and_padding(dtype):
    x = codes(dtype, 3, 4)

    def put(t):
        return t.index_put((torch.tensor([2, 0]).to(t.device),), t[:2])

    assert_same_bytes(put(x.to("mps")), put(x))
    assert_same_bytes(functional.pad(x.to("mps"), (1, 2)), functional.pad(x, (1, 2)))


@narrow
def test_numbers_and_texts(dtype):
    x = torch.tensor([1.0, 2.0, 0.5]).to(dtype)
    assert x.to("mps")[2].item() == 0.5
    assert x.to("mps").tolist() == [1.0, 2.0, 0.5]
    assert str(x.to("mps")) == str(x).replace("dtype", "device='mps:0', dtype")


@narrow
def test_equality(dtype):
    x, y = codes(dtype), codes(dtype).roll(3)
    for compare in (torch.eq, torch.ne):
        for other in (x, y, x[5], 1.1, 0):
            on_mps = other.to("mps") if isinstance(other, torch.Tensor) else other
            expected = compare(x, other)
            assert torch.equal(compare(x.to("mps"), on_mps).cpu(), expected)
            out = torch.empty(0, dtype=torch.bool, device="mps")
            assert torch.equal(compare(x.to("mps"), on_mps, out=out).cpu(), expected)
    assert torch.equal(x.to("mps").isnan().cpu(), x.isnan())
    assert_refused_as_on_the_cpu([lambda move: move(x) == move(x.float())], RuntimeError)


@pytest.mark.parametrize("dtype", NARROW[:-1], ids=str)  # the CPU lacks it for the last one
def test_abs(dtype):
    x = codes(dtype)
    expected = x.float().abs()
    out = torch.empty(0, device="mps").to(dtype)
    for actual in (x.to("mps").abs(), torch.abs(x.to("mps"), out=out)):
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.float().cpu(), expected, rtol=0, atol=0, equal_nan=True)


def test_out_keeps_its_place_and_is_resized():
    x = codes(torch.float8_e4m3fn, 3, 4).to("mps")
    base = torch.zeros(8, 6, device="mps").to(x.dtype)
    out = base[1:7, 1:5]
    assert torch.cat([x, x], out=out) is out
    assert_same_bytes(base[1:7, 1:5].contiguous(), torch.cat([x.cpu(), x.cpu()]))
    assert base.float()[0].abs().sum() == 0
    small = torch.zeros(0, device="mps").to(x.dtype)
    torch.index_select(x, 0, torch.tensor([1], device="mps"), out=small)
    assert_same_bytes(small, x.cpu()[1:2])


def test_what_is_not_of_one_type_is_refused_as_before():
    x = codes(torch.float8_e4m3fn, 3, 4).to("mps")
    for call in (
        lambda: torch.cat([x, x.float()]),
        lambda: torch.cat([x, x.to(torch.float8_e5m2)]),
        lambda: torch.where(x.float() > 0, x, x.float()),
        lambda: x + x,
        lambda: torch.stack([x, x]).sum(),
    ):
        with pytest.raises((TypeError, RuntimeError)):
            call()


def test_other_types_are_left_to_torch():
    x = torch.randn(3, 4)
    with metalops.debug.standins() as served:
        assert torch.equal(torch.cat([x.to("mps"), x.to("mps")]).cpu(), torch.cat([x, x]))
    assert "aten::cat" in " ".join(served)


@narrow
def test_fake_tensors_have_the_strides_of_real_ones(dtype):
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = codes(dtype, 3, 4).to("mps")
    for call in (lambda t: t.t().float(), lambda t: torch.cat([t, t]), lambda t: t.flip(0)):
        real = call(x)
        with FakeTensorMode() as mode:
            fake = call(mode.from_tensor(x))
        assert (real.shape, real.dtype, real.stride()) == (fake.shape, fake.dtype, fake.stride())
