"""torch's optimisers on the device, fused, by lists of tensors and one by one, against float64 on the CPU: the CPU's own
fused kernels compute other things with 16-bit floats, and with tensors that lie in memory in different ways.
"""

import itertools

import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW

# Around the numbers that a vector of a CPU holds, all at once.
SIZES = (1, 8, 15, 16, 17, 33, 64, 100)
STEPS = 3
LR = 0.1


def choices(**options):
    """Every combination of these options."""
    return [
        dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())
    ]


def is_allowed(options) -> bool:
    has_momentum = options["momentum"] != 0
    return not options["nesterov"] or has_momentum and options["dampening"] == 0


EITHER = (False, True)
OPTIMISERS = {
    SGD: [
        options
        for options in choices(
            momentum=(0, 0.9),
            dampening=(0, 0.3),
            weight_decay=(0, 0.1),
            nesterov=EITHER,
            maximize=EITHER,
        )
        if is_allowed(options)
    ],
    Adam: choices(weight_decay=(0, 0.1), amsgrad=EITHER, maximize=EITHER),
    AdamW: choices(weight_decay=(0, 0.1), amsgrad=EITHER, maximize=EITHER),
    Adagrad: choices(weight_decay=(0, 0.1), lr_decay=(0, 0.1), maximize=EITHER),
}
CASES = [(optimiser, options) for optimiser, every in OPTIMISERS.items() for options in every]

# Each step rounds to the dtype.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def numbers(shape, seed: int, dtype) -> torch.Tensor:
    """Neither small nor large, so that squares keep their digits in half precision."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
    return (size * (torch.rand(shape, generator=generator) < 0.5).double().mul(2).sub(1)).to(dtype)


def contiguous(x):
    return x.contiguous()


def transposed(x):
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def every_second(x):
    whole = torch.zeros([*x.shape[:-1], 2 * x.shape[-1]], dtype=x.dtype, device=x.device)
    return whole[..., ::2].copy_(x)


def trained(
    optimiser,
    options,
    shapes,
    dtype,
    device,
    *,
    steps=STEPS,
    compute=None,
    scale=None,
    infinite=False,
    layouts=(contiguous, contiguous),
    **form,
):
    """The parameters after some steps with gradients of the dtype, computed in that or another one."""

    def make(shape, seed, layout):
        return layout(numbers(shape, seed, dtype).to(compute or dtype).to(device))

    parameters = [make(shape, i, layouts[0]).requires_grad_() for i, shape in enumerate(shapes)]
    training = optimiser(parameters, lr=form.pop("lr", LR), **options, **form)
    for step in range(steps):
        for i, (parameter, shape) in enumerate(zip(parameters, shapes, strict=True)):
            gradient = make(shape, 1000 * (step + 1) + i, layouts[1])
            parameter.grad = gradient if scale is None else gradient * scale
        if scale is not None:
            is_left_out = infinite and step == steps - 1
            training.grad_scale = torch.tensor(float(scale), device=device)
            training.found_inf = torch.tensor(float(is_left_out), device=device)
        training.step()
    return [parameter.detach().cpu() for parameter in parameters]


def expected(optimiser, options, shapes, dtype, steps=STEPS):
    return trained(
        optimiser,
        options,
        shapes,
        dtype,
        "cpu",
        steps=steps,
        compute=torch.float64,
        foreach=False,
        fused=False,
    )


def assert_trained(actual, wanted, dtype) -> None:
    for a, b in zip(actual, wanted, strict=True):
        torch.testing.assert_close(
            a.double(),
            b,
            rtol=TOLERANCE[dtype],
            atol=TOLERANCE[dtype],
            msg=lambda m, a=a: f"{a.shape}: {m}",
        )


@pytest.fixture(autouse=True)
def one_thread():
    """The CPU's fused kernels wait for all threads at each tensor, however small: long, where others use the CPUs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


FORMS = {
    "fused": {"fused": True},
    "foreach": {"fused": False, "foreach": True},
    "single": {"fused": False, "foreach": False},
}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])
FUSED = pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda optimiser: optimiser.__name__)


@dtypes
@pytest.mark.parametrize("form", FORMS)
@FUSED
def test_every_option_agrees_with_float64(optimiser, form, dtype):
    shapes = [(size,) for size in SIZES]
    for options in OPTIMISERS[optimiser]:
        actual = trained(optimiser, options, shapes, dtype, "mps", **FORMS[form])
        assert_trained(actual, expected(optimiser, options, shapes, dtype), dtype)


@dtypes
@pytest.mark.parametrize("on", ["cpu", "mps"])
@FUSED
def test_rates_that_are_tensors(optimiser, on, dtype):
    shapes, options = [(size,) for size in SIZES], OPTIMISERS[optimiser][-1]
    rate = torch.tensor(LR, device=on)
    actual = trained(optimiser, options, shapes, dtype, "mps", fused=True, lr=rate)
    assert_trained(actual, expected(optimiser, options, shapes, dtype), dtype)


@dtypes
@FUSED
def test_scaled_gradients(optimiser, dtype):
    """A power of two, which costs no digits; and a last step that is left out because a gradient is infinite."""
    shapes, options = [(size,) for size in SIZES], OPTIMISERS[optimiser][-1]
    for infinite in EITHER:
        actual = trained(
            optimiser, options, shapes, dtype, "mps", fused=True, scale=4, infinite=infinite
        )
        wanted = expected(optimiser, options, shapes, dtype, steps=STEPS - infinite)
        assert_trained(actual, wanted, dtype)


LAYOUTS = (contiguous, transposed, channels_last, every_second)


@dtypes
@pytest.mark.parametrize(
    "layouts",
    list(itertools.product(LAYOUTS, LAYOUTS)),
    ids=lambda pair: f"{pair[0].__name__}-{pair[1].__name__}",
)
@FUSED
def test_layouts_of_parameters_and_gradients(optimiser, layouts, dtype):
    """A Mac's fused kernels refuse what does not lie in memory alike, or with gaps; ours of Adagrad takes all."""
    shapes, options = [(2, 3, 4, 5)], OPTIMISERS[optimiser][-1]

    def train():
        return trained(optimiser, options, shapes, dtype, "mps", fused=True, layouts=layouts)

    alike = layouts[0] is layouts[1] and layouts[0] is not every_second
    if alike or optimiser is Adagrad:
        assert_trained(train(), expected(optimiser, options, shapes, dtype), dtype)
    else:
        with pytest.raises(
            RuntimeError, match="check_fast_path_restrictions|dtype, device, and layout"
        ):
            train()
