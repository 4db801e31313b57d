"""torch.optim.Adagrad(fused=True): kernels/training/adagrad.metal."""

from itertools import chain, product

import pytest
import torch
from metalops import debug, testing
from metalops.testing.samples import FLOATS, layouts, make, to_device

from ..aten import CPU_FLOATS, OPINFO_SHAPES, Calls, OpInfoSamples, served_by_us
from ..benchmark import HALVES_ONE_BY_ONE, Benchmark, ones

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
OPTIONS = {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}


def _opinfo_adagrad(dtype: torch.dtype) -> Calls:
    params = [make(shape, dtype, seed=i) for i, shape in enumerate(OPINFO_SHAPES)]
    grads = [make(p.shape, dtype, seed=10) for p in params]
    sums = [make(p.shape, dtype, low=1, high=3, seed=20) for p in params]
    steps = [torch.tensor(3.0) for _ in params]
    options = {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8}
    for maximize in (False, True):
        yield (params, grads, sums, steps), {**options, "maximize": maximize}
        scaled = {"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(0.0)}
        yield (params, grads, sums, steps), {**options, **scaled, "maximize": maximize}


def _opinfo_functional_adagrad(params, grads, sums, steps, **options):
    # The step counts, which come last, stay as they are.
    return torch.ops.aten._fused_adagrad(params, grads, sums, steps, **options)[:3]


OPINFO_SAMPLES = (
    OpInfoSamples("_fused_adagrad", _opinfo_functional_adagrad, CPU_FLOATS, _opinfo_adagrad),
)


def _step(x, out):
    sums = ones(*x.shape, dtype=x.dtype, device=x.device)
    step = ones(dtype=torch.float32, device=x.device)
    options = {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
    torch._fused_adagrad_([out], [x], [sums], [step], **options)


BENCHMARKS = (Benchmark.same("_fused_adagrad_", _step, reason=HALVES_ONE_BY_ONE),)


def _lists(tensors, step=3.0):
    """Parameters, gradients, sums and step counts of an optimiser in the middle of its work."""
    grads = [make(p.shape, p.dtype, seed=50 + i) for i, p in enumerate(tensors)]
    sums = [make(p.shape, p.dtype, low=0.1, high=4, seed=90 + i) for i, p in enumerate(tensors)]
    return [list(tensors), grads, sums, [torch.tensor(step) for _ in tensors]]


def _exact_step(lists, *, lr, lr_decay, weight_decay, eps, maximize, grad_scale=1.0):
    """In float64."""
    for p, g, s, step in zip(*lists):
        g /= grad_scale
        gradient = (-g if maximize else g) + weight_decay * p
        s += gradient.square()
        p -= lr / (1 + (step - 1) * lr_decay) * gradient / (s.sqrt() + eps)


def _compare(lists, **options):
    expected = [[t.double() for t in tensors] for tensors in lists]
    actual = to_device(lists, "mps")
    on_device = {k: v.to("mps") if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    torch._fused_adagrad_(*actual, **on_device)
    numbers = {k: v.item() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    _exact_step(expected, **numbers)
    for a, e in zip(chain(*actual), chain(*expected)):
        # Parameters and sums are rounded once; the latter are seen before that.
        tolerance = 2 * torch.finfo(a.dtype).eps
        torch.testing.assert_close(a.cpu().double(), e, rtol=tolerance, atol=tolerance)


@by_float
def test_a_step_in_every_layout(dtype):
    overlapping = ("expanded", "10-d", "16-d")
    tensors = [x for name, x in layouts(dtype) if not name.startswith(overlapping)]
    _compare(_lists(tensors), **OPTIONS)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("tensor_lr", [False, True])
@by_float
def test_all_options(dtype, maximize, tensor_lr):
    tensors = [make((5, 7), dtype), make((33,), dtype), make((), dtype)]
    for lr_decay, weight_decay, eps, scale in product(
        (0.0, 0.1), (0.0, 0.2), (1e-8, 0.5), (None, 4.0)
    ):
        options = {"lr": torch.tensor(0.1) if tensor_lr else 0.1, "maximize": maximize}
        options |= {"lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        if scale is not None:
            options["grad_scale"] = torch.tensor(scale)
        _compare(_lists(tensors), **options)


@pytest.mark.parametrize("count", [1, 2, 6, 7, 100])
@pytest.mark.usefixtures("taken_as_on")
def test_lists_of_any_length(count):
    _compare(_lists([make((i % 7, 3), torch.float32, seed=i) for i in range(count)]), **OPTIONS)


@pytest.mark.usefixtures("taken_as_on")
def test_lists_of_several_dtypes_and_steps():
    dtypes = [FLOATS[i // 4 % len(FLOATS)] for i in range(20)]
    lists = _lists([make((i % 5 + 1, 9), dtype, seed=i) for i, dtype in enumerate(dtypes)])
    lists[3] = [torch.tensor(float(i + 1)) for i in range(len(dtypes))]
    options = {**OPTIONS, "lr_decay": 0.2, "weight_decay": 0.1}
    _compare(lists, **options, grad_scale=torch.tensor(4.0))


@by_float
@pytest.mark.usefixtures("taken_as_on")
def test_tensors_that_begin_anywhere(dtype):
    begins = [(0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 3), (4, 8, 12)]
    lists = _lists([make((n,), dtype, seed=n) for n in (8, 9, 10, 11, 40)])
    moved = [
        [
            torch.cat([torch.zeros(begins[i][k], dtype=dtype), x]).to("mps")[begins[i][k] :]
            for i, x in enumerate(lists[k])
        ]
        for k in range(3)
    ]
    expected = to_device(lists, "mps")
    torch._fused_adagrad_(*expected, **OPTIONS)
    torch._fused_adagrad_(*moved, to_device(lists[3], "mps"), **OPTIONS)
    for a, e in zip(chain(*moved), chain(*expected[:3])):
        assert torch.equal(a.cpu(), e.cpu())


def test_gpus_take_six_tensors_at_a_time(tmp_path):
    lists = to_device(_lists([make((i + 1,), torch.float32, seed=i) for i in range(15)]), "mps")
    with debug.capture(tmp_path / "a.trace", gpu=True) as trace:
        torch._fused_adagrad_(*lists, **OPTIONS)
    kernels = [x.kernel for x in trace.launches if x.kernel.startswith("adagrad")]
    assert kernels == ["adagrad_together_float"] * 3


def test_tensors_with_layouts_of_their_own():
    whole = torch.zeros(9, 13, device="mps")
    param = whole[1::2, 1::2]
    given = make((4, 6), torch.float32)
    param.copy_(given)
    grad, sums = make((6, 4), torch.float32).t(), make((4, 6), torch.float32, low=1, high=2)
    expected = [[t.double()] for t in (given, grad, sums, torch.tensor(1.0))]
    _exact_step(expected, **OPTIONS, grad_scale=2.0)
    actual = [[param], *([to_device(t, "mps")] for t in (grad, sums, torch.tensor(1.0)))]
    torch._fused_adagrad_(*actual, **OPTIONS, grad_scale=torch.tensor(2.0, device="mps"))
    for a, e in zip(actual, expected):
        torch.testing.assert_close(a[0].cpu().double(), e[0], rtol=1e-6, atol=1e-6)
    assert whole.count_nonzero() == 24


def test_a_learning_rate_on_the_cpu():
    lists = _lists([make((9,), torch.float32)])
    on_cpu, on_device = to_device(lists, "mps"), to_device(lists, "mps")
    torch._fused_adagrad_(*on_cpu, **{**OPTIONS, "lr": torch.tensor(0.3, dtype=torch.float64)})
    torch._fused_adagrad_(*on_device, **{**OPTIONS, "lr": 0.3})
    assert torch.equal(on_cpu[0][0], on_device[0][0])


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_an_overflow_skips_the_step(found):
    lists = to_device(_lists([make((9,), torch.float32)]), "mps")
    before = [t.clone() for t in chain(*lists)]
    scale = torch.tensor(2.0, device="mps")
    torch._fused_adagrad_(
        *lists, **OPTIONS, grad_scale=scale, found_inf=torch.tensor(found, device="mps")
    )
    unchanged = [torch.equal(a, b) for a, b in zip(before, chain(*lists))]
    assert unchanged == ([True] * 4 if found else [False, False, False, True])


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_optimiser_is_the_unfused_one(tensor_lr):
    torch.manual_seed(1)
    models = [torch.nn.Linear(7, 3) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models[1].to("mps")
    x = torch.randn(20, 7)
    for model, fused in zip(models, (False, True)):
        device = model.weight.device
        lr = torch.tensor(0.1, device=device) if tensor_lr else 0.1
        optimizer = torch.optim.Adagrad(
            model.parameters(), lr=lr, lr_decay=0.01, weight_decay=0.1, fused=fused or None
        )
        for _ in range(5):
            optimizer.zero_grad()
            model(x.to(device)).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(models[1].weight.cpu(), models[0].weight, rtol=1e-5, atol=1e-6)


def test_grad_scaler():
    model = torch.nn.Linear(7, 3).to("mps")
    optimizer = torch.optim.Adagrad(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("mps", init_scale=8.0)
    before = model.weight.clone()
    loss = model(torch.randn(4, 7, device="mps")).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(model.weight, before) and model.weight.isfinite().all()


def test_errors():
    lists = to_device(_lists([torch.ones(3)]), "mps")
    with pytest.raises(RuntimeError, match=r"grads.size\(\) == n_tensors"):
        torch._fused_adagrad_(lists[0], [], *lists[2:], **OPTIONS)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        torch._fused_adagrad_(lists[0], [lists[1][0].half()], *lists[2:], **OPTIONS)
    with pytest.raises(RuntimeError, match="the sizes of their parameter"):
        torch._fused_adagrad_(lists[0], [lists[1][0][:2]], *lists[2:], **OPTIONS)
    with pytest.raises(RuntimeError, match="same device"):
        torch._fused_adagrad_(lists[0], [lists[1][0].cpu()], *lists[2:], **OPTIONS)
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements cannot be converted"):
        torch._fused_adagrad_(*lists, **{**OPTIONS, "lr": torch.ones(2, device="mps")})
    with pytest.raises(NotImplementedError, match="not implemented for 'ComplexFloat'"):
        torch._fused_adagrad_(*([t.to(torch.complex64)] for (t,) in lists), **OPTIONS)


def test_no_host_copy_and_no_stand_in():
    lists = to_device(_lists([torch.ones(3), torch.ones(2, 2).t()]), "mps")
    scale = torch.tensor(2.0, device="mps")

    def call():
        with testing.no_host_copies():
            torch._fused_adagrad_(*lists, **OPTIONS, grad_scale=scale, found_inf=scale)
            torch._fused_adagrad_(*lists, **{**OPTIONS, "lr": scale})

    assert served_by_us(call) == []
