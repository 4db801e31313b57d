"""Quantisation-aware training: kernels/quantized/fake_quantize.metal."""

import copy
import itertools
import math
import warnings

import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, layouts, make, to_device
from torch._subclasses.fake_tensor import FakeTensorMode

from ..aten import CPU_FLOATS, OPINFO_SHAPES, Calls, OpInfoSamples, served_by_us
from ..benchmark import Benchmark, ones

aten = torch.ops.aten
by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
by_range = pytest.mark.parametrize(("low", "high"), [(-128, 127), (0, 255), (-8, 7), (0, 1)])

per_tensor = aten.fake_quantize_per_tensor_affine_cachemask
per_tensor_qparams = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
per_channel = aten.fake_quantize_per_channel_affine_cachemask
learnable_per_tensor = aten._fake_quantize_learnable_per_tensor_affine
learnable_per_tensor_backward = aten._fake_quantize_learnable_per_tensor_affine_backward
learnable_per_channel = aten._fake_quantize_learnable_per_channel_affine
learnable_per_channel_backward = aten._fake_quantize_learnable_per_channel_affine_backward
observe_and_quantize = aten._fused_moving_avg_obs_fq_helper


def _opinfo_per_tensor(dtype: torch.dtype) -> Calls:
    for shape in OPINFO_SHAPES:
        x = make(shape, dtype)
        yield (x, 0.25, 1, -8, 7), {}
        zero_point = torch.tensor([-3], dtype=torch.int32)
        yield (x, torch.tensor([0.5]), zero_point, -8, 7), {}
    for _, x in layouts(dtype):
        yield (x, 0.125, 0, -128, 127), {}


def _opinfo_channels(dtype: torch.dtype):
    for shape, axis in (((4, 6), 0), ((4, 6), 1), ((3, 5, 40), 1), ((8,), 0), ((2, 3, 4, 5), 1)):
        x = make(shape, dtype)
        scale = 0.25 * (1 + torch.arange(shape[axis]) % 2)
        zero_point = torch.arange(shape[axis]) % 5 - 2
        yield x, scale, zero_point, axis
        if x.dim() == 4:
            yield x.to(memory_format=torch.channels_last), scale, zero_point, axis


def _opinfo_per_channel(dtype: torch.dtype) -> Calls:
    for x, scale, zero_point, axis in _opinfo_channels(dtype):
        yield (x, scale, zero_point.int(), axis, -8, 7), {}


def _opinfo_learnable_per_tensor(dtype: torch.dtype) -> Calls:
    for shape in OPINFO_SHAPES:
        yield (make(shape, dtype), torch.tensor([0.25]), torch.tensor([1.3]), -8, 7, 0.5), {}


def _opinfo_learnable_per_channel(dtype: torch.dtype) -> Calls:
    for x, scale, zero_point, axis in _opinfo_channels(dtype):
        yield (x, scale, zero_point + 0.3, axis, -8, 7, 0.5), {}


OPINFO_SAMPLES = (
    OpInfoSamples(
        "fake_quantize_per_tensor_affine",
        torch.fake_quantize_per_tensor_affine,
        CPU_FLOATS,
        _opinfo_per_tensor,
    ),
    OpInfoSamples(
        "fake_quantize_per_channel_affine",
        torch.fake_quantize_per_channel_affine,
        CPU_FLOATS,
        _opinfo_per_channel,
    ),
    OpInfoSamples(
        "_fake_quantize_learnable_per_tensor_affine",
        torch._fake_quantize_learnable_per_tensor_affine,
        CPU_FLOATS,
        _opinfo_learnable_per_tensor,
    ),
    OpInfoSamples(
        "_fake_quantize_learnable_per_channel_affine",
        torch._fake_quantize_learnable_per_channel_affine,
        CPU_FLOATS,
        _opinfo_learnable_per_channel,
    ),
)


def _quantize_per_channel(x, out):
    scale = ones(len(x), dtype=torch.float32, device=x.device)
    zero_point = ones(len(x), dtype=torch.int32, device=x.device)
    return torch.fake_quantize_per_channel_affine(x, scale, zero_point, 0, -128, 127)


BENCHMARKS = (
    Benchmark.same(
        "fake_quantize", lambda x, out: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7)
    ),
    Benchmark.same("fake_quantize per channel", _quantize_per_channel),
)


def _compare(function, *args, exact=True):
    """The results on the device against those on the CPU: devices, dtypes, strides and, if exact, bits."""
    expected = function(*args)
    actual = function(*to_device(args, "mps"))
    pairs = [(actual, expected)] if isinstance(expected, torch.Tensor) else zip(actual, expected)
    for a, e in pairs:
        assert a.device.type == "mps" and a.dtype == e.dtype
        assert a.shape == e.shape and a.stride() == e.stride()
        if exact:
            torch.testing.assert_close(a.cpu(), e, rtol=0, atol=0, equal_nan=True)
        else:
            torch.testing.assert_close(a.cpu(), e, rtol=1e-5, atol=1e-5, equal_nan=True)


def _zero_point(value, dtype=torch.int32):
    return torch.tensor([value]).to(dtype)


# ---- one scale for all elements ------------------------------------------------------------------


@by_float
def test_per_tensor_in_every_layout(dtype):
    for _, x in layouts(dtype):
        _compare(per_tensor, x, 0.1, 3, -8, 7)
        one = torch.tensor([1])
        _compare(per_tensor_qparams, x, torch.tensor([0.1]), _zero_point(-2), one, -8, 7)


@by_range
def test_per_tensor_of_special_values(low, high):
    x = torch.cat([testing.special_values(torch.float32), torch.arange(-20, 20) / 8])
    for scale, zero_point in itertools.product(
        (1.0, 0.25, 1e-3, 1e30, 0.0, -0.5, math.inf), (0, 1)
    ):
        _compare(per_tensor, x, scale, zero_point, low, high)


@by_float
@pytest.mark.parametrize("zero_point", [0, 5, 100])
@pytest.mark.parametrize("enabled", [torch.tensor([1]), torch.tensor(False), torch.tensor([2.0])])
def test_per_tensor_with_tensors_of_any_dtype(dtype, zero_point, enabled):
    x = make((7, 9), dtype)
    for scale_dtype in FLOATS:
        for place_dtype in (torch.int32, torch.int64, torch.float32, torch.float16):
            scale = torch.tensor([0.37]).to(scale_dtype)
            place = _zero_point(zero_point, place_dtype)
            _compare(per_tensor_qparams, x, scale, place, enabled, -8, 7)


@by_float
def test_tensors_that_begin_anywhere(dtype):
    for begin, size in itertools.product(range(4), (1, 4, 16, 19, 20, 1028)):
        x = make((3 * size + 4,), dtype)[begin : begin + 3 * size]
        _compare(per_tensor, x, 0.1, 3, -8, 7)
        scale, zero_point = make((3,), torch.float32, low=0.05, high=0.6), torch.tensor([1, -2, 0])
        _compare(per_channel, x.view(3, size), scale, zero_point.int(), 0, -8, 7)
        if dtype == torch.float32:
            grad = make((3 * size + 1,), dtype, seed=1)[1:].view(3, size)
            arguments = grad, x.view(3, size), scale, zero_point.float(), 0, -8, 7, 0.5
            _compare(learnable_per_channel_backward, *arguments, exact=False)


@by_float
def test_error_is_at_most_half_a_step_inside_the_range(dtype):
    x = make((4001,), dtype, low=-0.8, high=0.7)
    y, inside = (t.cpu() for t in per_tensor(x.to("mps"), 0.1, 0, -8, 7))
    assert inside.all()
    rounding = 4 * torch.finfo(dtype).eps
    assert ((y.double() - x.double()).abs() <= 0.05 + rounding).all()
    assert len(y.unique()) == 16


@by_float
def test_gradient_of_per_tensor_is_the_mask(dtype):
    x = make((5, 7), dtype).to("mps").requires_grad_()
    cotangent = make((7, 5), dtype, seed=1).t().to("mps")
    y = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -20, 20)
    (gradient,) = torch.autograd.grad(y, x, cotangent)
    _, inside = per_tensor(x.detach(), 0.1, 0, -20, 20)
    assert torch.equal(gradient, cotangent * inside)


@by_float
def test_gradient_of_per_channel_is_the_mask(dtype):
    x = make((5, 7), dtype).to("mps").requires_grad_()
    cotangent = make((7, 5), dtype, seed=1).t().to("mps")
    arguments = (torch.full((7,), 0.1).to("mps"), torch.zeros(7).int().to("mps"), 1, -20, 20)
    y = torch.fake_quantize_per_channel_affine(x, *arguments)
    (gradient,) = torch.autograd.grad(y, x, cotangent)
    _, inside = per_channel(x.detach(), *arguments)
    assert torch.equal(gradient, cotangent * inside)


# ---- one scale for each channel ------------------------------------------------------------------


def _channelled(dtype):
    """Tensors and an axis of theirs, with long and short runs of elements of a channel."""
    yield make((5, 3, 4, 6), dtype), 0
    yield make((5, 3, 4, 6), dtype), 1
    yield make((5, 3, 4, 6), dtype), 3
    yield make((5, 3, 4, 6), dtype).to(memory_format=torch.channels_last), 1
    yield make((5, 3, 4, 6), dtype).to(memory_format=torch.channels_last), 3
    yield make((40, 7), dtype).t(), 0
    yield make((7, 40), dtype), 0
    yield make((9, 40), dtype)[1:8, ::2], 0
    yield make((7, 1), dtype).expand(7, 20), 1
    yield make((1, 40), dtype), 0
    yield make((33,), dtype), 0
    yield make((0, 4), dtype), 1
    yield make((3, 17, 40), dtype), 1


@by_float
@pytest.mark.parametrize("place", [torch.int32, torch.float32, torch.float16], ids=str)
def test_per_channel(dtype, place):
    for x, axis in _channelled(dtype):
        channels = x.shape[axis]
        scale = make((channels,), torch.float32, low=0.05, high=0.6, seed=2)
        zero_point = make((channels,), torch.float32, low=-7, high=7, seed=3)
        if place == torch.int32:
            zero_point = zero_point.round()
        # Of zero points that are no integers the CPU's vectorised code rounds the product differently.
        exact = place == torch.int32
        _compare(per_channel, x, scale, zero_point.to(place), axis, -8, 7, exact=exact)


def test_per_channel_with_strided_scales_and_bfloat16_scales():
    x = make((6, 30), torch.float32)
    scale = make((12,), torch.float32, low=0.05, high=0.6)[::2]
    zero_point = torch.arange(12, dtype=torch.int32)[::2] - 5
    _compare(per_channel, x, scale, zero_point, 0, -8, 7)
    # torch's CPU operator cannot mix them.
    rounded = scale.bfloat16()
    actual, _ = per_channel(x.to("mps"), rounded.to("mps"), zero_point.to("mps"), 0, -8, 7)
    expected, _ = per_channel(x, rounded.float(), zero_point, 0, -8, 7)
    assert torch.equal(actual.cpu(), expected)


def test_per_channel_is_per_tensor_of_each_channel():
    x = make((4, 50), torch.float32).to("mps")
    scale, zero_point = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 1, -2, 3])
    whole = torch.fake_quantize_per_channel_affine(
        x, scale.to("mps"), zero_point.int().to("mps"), 0, -8, 7
    )
    for i in range(4):
        one = torch.fake_quantize_per_tensor_affine(
            x[i], scale[i].item(), zero_point[i].item(), -8, 7
        )
        assert torch.equal(whole[i], one)


@pytest.mark.parametrize("value", [-9, 8])
def test_a_zero_point_out_of_range_is_reported(value):
    x = torch.zeros(2, 3, device="mps")
    scale, zero_point = torch.ones(2, device="mps"), torch.tensor([0, value]).int().to("mps")
    torch.fake_quantize_per_channel_affine(x, scale, zero_point, 0, -8, 7)
    message = "`zero_point` must be between `quant_min` and `quant_max`, but that of channel 1"
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()


def test_a_learned_zero_point_that_is_nan_is_reported():
    x = torch.zeros(2, 3, device="mps")
    nan = torch.full((2,), math.nan, device="mps")
    for call in (
        lambda: learnable_per_channel(x, torch.ones_like(nan), nan, 0, -8, 7),
        lambda: learnable_per_tensor(x, torch.ones_like(nan), nan, -8, 7),
        lambda: learnable_per_tensor_backward(x, x, torch.ones_like(nan), nan, -8, 7),
    ):
        call()
        with pytest.raises(torch.AcceleratorError, match="`zero_point` must be between"):
            torch.mps.synchronize()


# ---- learned scales and zero points --------------------------------------------------------------

PLACES = (-0.7, -0.5, 0.0, 0.2, 0.5, 0.7, 1.5, 2.5, -1.5, 90.0, -90.0)


@by_float
def test_learnable_per_tensor(dtype):
    x = make((5, 7), dtype).t()
    for place in PLACES:
        scale, zero_point = torch.tensor([0.3]), torch.tensor([place])
        _compare(learnable_per_tensor, x, scale, zero_point, -8, 7, 0.5)
        if dtype != torch.float16:
            y = make((7, 5), dtype, seed=1)
            _compare(
                learnable_per_tensor_backward, y, x, scale, zero_point, -8, 7, 0.5, exact=False
            )


@by_float
def test_learnable_per_channel(dtype):
    for x, axis in _channelled(dtype):
        channels = x.shape[axis]
        scale = make((channels,), torch.float32, low=0.05, high=0.6, seed=2)
        zero_point = make((channels,), torch.float32, low=-9, high=9, seed=3)
        _compare(learnable_per_channel, x, scale, zero_point, axis, -8, 7, 0.5)
        if dtype != torch.float16 and x.dim() > 1:
            y = make(x.shape, dtype, seed=1)
            _compare(
                learnable_per_channel_backward,
                y,
                x,
                scale,
                zero_point,
                axis,
                -8,
                7,
                0.5,
                exact=False,
            )


def test_gradients_of_a_scale_for_each_element():
    x, ones = make((9,), torch.float32), torch.ones(9)
    scale, zero_point = 0.3 * ones, 1.2 * ones
    arguments = (scale, zero_point, 0, -8, 7, 1.0)
    actual = learnable_per_channel_backward(*to_device((ones, x, *arguments), "mps"))
    # torch's CPU operator adds up those of all elements if there is one dimension only.
    columns = (ones[:, None], x[:, None], *arguments)
    expected = learnable_per_channel_backward(*columns)
    for a, e in zip(actual, expected):
        torch.testing.assert_close(a.cpu(), e.flatten())


def test_learned_parameters_get_gradients():
    x = make((6, 50), torch.float32)
    for axis in (None, 0):
        size = 1 if axis is None else 6
        inputs = (x, torch.full((size,), 0.3), torch.full((size,), 1.2))

        def call(x, scale, zero_point, axis=axis):
            if axis is None:
                return learnable_per_tensor(x, scale, zero_point, -8, 7, 0.1)
            return learnable_per_channel(x, scale, zero_point, axis, -8, 7, 0.1)

        gradients = []
        for device in ("cpu", "mps"):
            leaves = [t.clone().to(device).requires_grad_() for t in inputs]
            (call(*leaves) * x.to(device).cos()).sum().backward()
            gradients.append([t.grad.cpu() for t in leaves])
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-4)


# ---- observers -----------------------------------------------------------------------------------


def _observed(size=1, running=(math.inf, -math.inf)):
    return [
        torch.full((size,), running[0]),
        torch.full((size,), running[1]),
        torch.ones(size),
        torch.zeros(size, dtype=torch.int32),
    ]


def _compare_observed(x, state, switches, arguments):
    """Both the results and the four changed tensors."""
    on_cpu, on_device = copy.deepcopy(state), [t.to("mps") for t in state]
    expected = observe_and_quantize(x, *switches, *on_cpu, *arguments)
    device_switches = [t.to("mps") for t in switches]
    actual = observe_and_quantize(to_device(x, "mps"), *device_switches, *on_device, *arguments)
    assert on_device[3].cpu().tolist() == on_cpu[3].tolist(), (x, arguments)
    for a, e in zip(on_device[:3], on_cpu[:3]):
        torch.testing.assert_close(a.cpu(), e, rtol=2e-7, atol=0)
    step = on_cpu[2].max().item()
    assert actual[0].stride() == expected[0].stride()
    # The scale may be rounded differently, and then a value halfway between two steps too.
    difference = (actual[0].cpu() - expected[0]).abs()
    assert (difference <= 1.001 * step).all() and (difference > 1e-5 * x.abs().max()).sum() < 3
    assert (actual[1].cpu() != expected[1]).sum() < 3


@by_range
@pytest.mark.parametrize("symmetric", [False, True])
def test_observed_ranges_scales_and_zero_points(low, high, symmetric):
    if symmetric and high - low == 1:
        pytest.skip("there is nothing above the middle of two numbers")
    on = torch.tensor([1])
    for seed, (lowest, highest) in enumerate(
        [(-3, 7), (-7, 3), (0.1, 7), (-7, -0.1), (0, 1), (-1e-5, 2e-5), (-1e20, 1e15), (-2, 2)] * 5
    ):
        factor = 1 + seed / 7
        x = make((40,), torch.float32, low=lowest * factor, high=highest * factor, seed=seed)
        arguments = (0.01, low, high, -1, False, symmetric)
        _compare_observed(x, _observed(), (on, on), arguments)
        _compare_observed(x, _observed(running=(-0.5, 1.0)), (on, on), arguments)


@pytest.mark.parametrize("observer_on", [0, 1])
@pytest.mark.parametrize("fake_quant_on", [0, 1])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_observer_and_fake_quantisation_are_switched_on_the_device(
    observer_on, fake_quant_on, dtype
):
    switches = [torch.tensor([s]).to(dtype) for s in (observer_on, fake_quant_on)]
    x = make((4, 30), torch.float32)
    for per_row in (False, True):
        state = _observed(4 if per_row else 1, running=(-0.3, 0.5))
        _compare_observed(x, state, switches, (0.1, 0, 255, 0 if per_row else -1, per_row, False))


def test_rows_are_observed_in_every_layout():
    on = torch.tensor([1])
    for x in (
        make((5, 8), torch.float32),
        make((8, 5), torch.float32).t(),
        make((5, 3, 4, 2), torch.float32).to(memory_format=torch.channels_last),
        make((5,), torch.float32).view(5, 1, 1),
    ):
        _compare_observed(x, _observed(5), (on, on), (0.1, -128, 127, 0, True, True))
        empty = [torch.empty(0) for _ in range(3)] + [torch.empty(0, dtype=torch.int32)]
        _compare_observed(x, empty, (on, on), (0.1, -128, 127, 0, True, True))


def test_constant_inputs_get_a_usable_scale():
    on = torch.tensor([1])
    for value in (0.0, 1e-42, 1.0):
        _compare_observed(torch.full((9,), value), _observed(), (on, on), (0.1, 0, 255, -1))


def test_functional_overload_leaves_the_state_alone():
    x, on = make((4, 5), torch.float32).to("mps"), torch.tensor([1], device="mps")
    state = [t.to("mps") for t in _observed()]
    results = aten._fused_moving_avg_obs_fq_helper_functional(x, on, on, *state, 0.1, 0, 255, -1)
    assert state[0].item() == math.inf and state[2].item() == 1
    written = [t.clone() for t in state]
    expected = observe_and_quantize(x, on, on, *written, 0.1, 0, 255, -1)
    for a, e in zip(results, (*expected, *written)):
        assert torch.equal(a, e)


# ---- refusals ------------------------------------------------------------------------------------


def _refusal(function, args, device):
    try:
        function(*to_device(args, device))
    except Exception as error:  # noqa: BLE001
        return type(error), str(error).split(".")[0].split("  ")[0]
    return None


def _refused():
    x = torch.ones(2, 3)
    scale, place = torch.tensor([0.1, 0.2]), torch.tensor([0, 1], dtype=torch.int32)
    one = torch.tensor([1])
    yield per_tensor, (x, 0.1, 0, 8, 7)
    yield per_tensor, (x, 0.1, 9, -8, 7)
    yield per_tensor_qparams, (x, scale, place, one, -8, 7)
    yield per_tensor_qparams, (x, scale[:1], place[:1], one, 8, 7)
    yield per_channel, (x, scale, place.long(), 0, -8, 7)
    yield per_channel, (x, scale.half(), place, 0, -8, 7)
    yield per_channel, (x, scale, place, -2, -8, 7)
    yield per_channel, (x, scale, place, 2, -8, 7)
    yield per_channel, (x, scale, place, 0, 8, 7)
    yield per_channel, (x, scale, place[:1], 0, -8, 7)
    yield per_channel, (x, scale[:1], place[:1], 0, -8, 7)
    yield per_channel, (x, scale[None], place, 0, -8, 7)
    yield per_channel, (x, scale, place[None], 0, -8, 7)
    yield learnable_per_tensor, (x, scale[0], scale, -8, 7)
    yield learnable_per_tensor_backward, (x, x, scale, scale, 1, 7)
    yield learnable_per_tensor_backward, (x[0], x, scale, scale, -8, 7)
    yield learnable_per_tensor_backward, (x.half(), x, scale, scale, -8, 7)
    yield learnable_per_channel_backward, (x, x, scale, scale, 0, 1, 7)
    yield learnable_per_channel_backward, (x, x, scale, scale, 2, -8, 7)
    yield learnable_per_channel_backward, (x, x, scale, scale, -2, -8, 7)
    yield learnable_per_channel_backward, (x[0], x, scale, scale, 0, -8, 7)
    yield learnable_per_channel_backward, (x, x, scale, place, 0, -8, 7)
    yield observe_and_quantize, (x.half(), one, one, *_observed(), 0.1, 0, 255, -1)
    yield observe_and_quantize, (x[:0], one, one, *_observed(), 0.1, 0, 255, -1)
    yield observe_and_quantize, (x, one, one, *_observed(3), 0.1, 0, 255, 1, True)


@pytest.mark.parametrize(
    ("function", "args"),
    [pytest.param(*case, id=f"{case[0]}-{i}") for i, case in enumerate(_refused())],
)
def test_what_the_cpu_refuses_is_refused(function, args):
    expected = _refusal(function, args, "cpu")
    actual = _refusal(function, args, "mps")
    assert expected is not None and actual is not None
    assert actual[0] is expected[0]
    # torch's own text has a line break within.
    if "quant_min` should" not in expected[1]:
        assert actual[1] == expected[1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64], ids=str)
def test_other_dtypes_are_refused(dtype):
    x, scale = torch.ones(2, 3, dtype=dtype, device="mps"), torch.ones(2, device="mps")
    for call in (
        lambda: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7),
        lambda: torch.fake_quantize_per_tensor_affine(x, scale[:1], scale[:1].int(), -8, 7),
        lambda: torch.fake_quantize_per_channel_affine(x, scale, scale.int(), 0, -8, 7),
        lambda: learnable_per_tensor(x, scale, scale, -8, 7),
        lambda: learnable_per_channel(x, scale, scale, 0, -8, 7),
    ):
        with pytest.raises(NotImplementedError, match="not implemented for"):
            call()


# ---- all of them ---------------------------------------------------------------------------------


def _calls():
    scale = torch.tensor([0.1, 0.2], device="mps")
    place = torch.tensor([0, 1], device="mps", dtype=torch.int32)
    on = torch.tensor([1], device="mps")
    state = [t.to("mps") for t in _observed()]
    rows = [t.to("mps") for t in _observed(2)]

    def fused(x, state, *rest):
        return torch.fused_moving_avg_obs_fake_quant(
            x, on, on, *(t.clone() for t in state), 0.1, 0, 255, *rest
        )

    return {
        "per tensor": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7),
        "per tensor, tensors": lambda x: torch.fake_quantize_per_tensor_affine(
            x, scale[:1], place[:1], -8, 7
        ),
        "per channel": lambda x: torch.fake_quantize_per_channel_affine(x, scale, place, 0, -8, 7),
        "learnable": lambda x: learnable_per_tensor(x, scale, scale, -8, 7),
        "learnable per channel": lambda x: learnable_per_channel(x, scale, scale, 0, -8, 7),
        "observed": lambda x: fused(x, state, -1),
        "observed per channel": lambda x: fused(x, rows, 0, True, True),
    }


@pytest.mark.parametrize("name", _calls())
def test_no_host_copy_and_no_stand_in(name):
    call = _calls()[name]

    def run():
        x = torch.randn(2, 40, device="mps", requires_grad=True)
        with testing.no_host_copies():
            call(x).sum().backward()

    assert served_by_us(run) == []


@pytest.mark.parametrize("name", _calls())
def test_fake_tensors_have_the_results_properties(name):
    x = torch.randn(40, 2, device="mps").t()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = _calls()[name](mode.from_tensor(x))
    real = _calls()[name](x)
    assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
    assert fake.stride() == real.stride()


# ---- torch.ao ------------------------------------------------------------------------------------


def _qat_model(observer):
    from torch.ao import quantization

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.quant = quantization.QuantStub()
            self.conv = torch.nn.Conv2d(1, 3, 3)
            self.relu = torch.nn.ReLU()
            self.linear = torch.nn.Linear(3 * 36, 4)
            self.dequant = quantization.DeQuantStub()

        def forward(self, x):
            x = self.relu(self.conv(self.quant(x)))
            return self.dequant(self.linear(x.flatten(1)))

    torch.manual_seed(1)
    model = Model().train()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm", version=observer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return quantization.prepare_qat(model)


@pytest.mark.filterwarnings("ignore:.*reduce_range:UserWarning")
@pytest.mark.parametrize("observer", [0, 1], ids=["FakeQuantize", "FusedMovingAvgObsFakeQuantize"])
def test_a_step_of_eager_qat_is_that_of_the_cpu(observer):
    x = torch.randn(5, 1, 8, 8)
    losses = []
    states = []
    for device in ("cpu", "mps"):
        model = _qat_model(observer).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(x.to(device)).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        states.append({k: v.cpu() for k, v in model.state_dict().items()})
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    for name, expected in states[0].items():
        if expected.is_floating_point():
            torch.testing.assert_close(states[1][name], expected, rtol=1e-2, atol=1e-3)
