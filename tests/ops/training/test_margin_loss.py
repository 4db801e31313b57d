"""multi_margin_loss and multilabel_margin_loss: kernels/training/margin_loss.metal."""

import functools
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from metalops import testing
from metalops.testing.samples import FLOATS, make, to_device
from torch.ops import aten

from ..aten import reference, served_by_us
from ..benchmark import Benchmark, random_classes

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
by_reduction = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
# One and several threads a row, one and several threadgroups, rows longer than a threadgroup.
SHAPES = [(1, 1), (3, 4), (5, 64), (4, 65), (2, 3000), (300, 7)]


# In torch's op_db.
OPINFOS = (
    "nn.functional.multi_margin_loss",
    "nn.functional.multilabel_margin_loss",
)


@functools.cache
def _label_lists(rows, columns, device):
    """Targets of multilabel_margin_loss: four classes for each row."""
    lists = torch.full((rows, columns), -1)
    lists[:, :4] = torch.randint(columns, (rows, min(4, columns)))
    return lists.to(device)


BENCHMARKS = (
    *Benchmark.with_gradient(
        "multi_margin_loss",
        lambda x: F.multi_margin_loss(x, random_classes(len(x), x.shape[1], 1, x.device)),
        low=-6,
        high=-2,
    ),
    *Benchmark.with_gradient(
        "multilabel_margin_loss",
        lambda x: F.multilabel_margin_loss(x, _label_lists(len(x), x.shape[1], x.device)),
        low=-6,
        high=-2,
    ),
)


def _classes(rows, classes, seed=0):
    """A class for each row."""
    return torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(seed))


def _lists(rows, classes, seed=0):
    """Targets of multilabel_margin_loss: up to 9 classes, some twice, then -1, then anything."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, classes, (rows, classes), generator=generator)
    ends = torch.randint(0, min(classes, 9) + 1, (rows,), generator=generator)
    ends[0] = min(classes, 9)
    for row, end in enumerate(ends.tolist()):
        targets[row, end : end + 1] = -1
    return targets


def _multi(target, weight=None, **options):
    def loss(x):
        w = None if weight is None else weight.to(x.device, x.dtype)
        return F.multi_margin_loss(x, target.to(x.device), weight=w, **options)

    return loss


def _multilabel(target, reduction):
    return lambda x: F.multilabel_margin_loss(x, target.to(x.device), reduction=reduction)


def _check(loss, x, name):
    case = testing.Case(f"{tuple(x.shape)} {x.stride()}", (x,))
    testing.check_forward(loss, reference(loss), case, "mps", name=name)
    testing.check_gradient(loss, reference(loss), case, "mps", name=name)


def _layouts(rows, classes, dtype):
    yield make((classes, rows), dtype).t()
    yield make((rows + 2, 2 * classes), dtype)[1:-1, 1::2]
    yield make((1, classes), dtype).expand(rows, classes)
    yield make((rows, 1), dtype).expand(rows, classes)


# ---- values and gradients ------------------------------------------------------------------------


@pytest.mark.sampled(6)
@by_float
@by_reduction
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss(dtype, reduction, p):
    for rows, classes in SHAPES:
        target = _classes(rows, classes)
        x = make((rows, classes), dtype, low=-1, high=1)
        for weight in (None, make((classes,), dtype, low=0, high=2)):
            loss = _multi(target, weight, reduction=reduction, p=p, margin=0.75)
            _check(loss, x, "multi_margin_loss")


@pytest.mark.sampled(4)
@by_float
@by_reduction
def test_multilabel_margin_loss(dtype, reduction):
    for rows, classes in SHAPES:
        x = make((rows, classes), dtype, low=-1, high=1)
        loss = _multilabel(_lists(rows, classes), reduction)
        _check(loss, x, "multilabel_margin_loss")


@by_float
@pytest.mark.parametrize("classes", [6, 100])
def test_inputs_of_every_layout(dtype, classes):
    target, lists = _classes(10, classes), _lists(10, classes)
    weight = make((2 * classes,), dtype, low=0, high=2)[::2]
    for x in _layouts(10, classes, dtype):
        _check(_multi(target, weight, reduction="none"), x, "multi_margin_loss")
        _check(_multilabel(lists, "none"), x, "multilabel_margin_loss")
    # Targets with strides and an offset.
    x = make((10, classes), dtype)
    _check(_multi(torch.stack([target, target], 1)[:, 1]), x, "multi_margin_loss")
    _check(_multilabel(lists.t().contiguous().t(), "mean"), x, "multilabel_margin_loss")


@by_reduction
def test_a_sample_without_a_batch(reduction):
    x = make((7,), torch.float32)
    for target in (torch.tensor(3), torch.tensor([3])):
        _check(_multi(target, reduction=reduction), x, "multi_margin_loss")
    _check(_multi(torch.tensor(0), reduction=reduction), x[0], "multi_margin_loss")
    lists = torch.tensor([2, 5, -1, 0, 0, 0, 0])
    _check(_multilabel(lists, reduction), x, "multilabel_margin_loss")
    _check(_multilabel(lists[2], reduction), x[0], "multilabel_margin_loss")


def test_is_target_marks_the_targets_before_the_first_negative_one():
    for rows, classes in SHAPES:
        x, target = make((rows, classes), torch.float32), _lists(rows, classes)
        expected = aten.multilabel_margin_loss_forward(x, target, 0)
        actual = aten.multilabel_margin_loss_forward(x.to("mps"), target.to("mps"), 0)
        torch.testing.assert_close(actual[0].cpu(), expected[0])
        assert torch.equal(actual[1].cpu(), expected[1])


def test_rows_that_name_all_classes_or_none():
    x = make((2, 80), torch.float32)
    target = torch.stack([torch.arange(80).flip(0), torch.full((80,), -1)])
    for reduction in ("none", "mean", "sum"):
        _check(_multilabel(target, reduction), x, "multilabel_margin_loss")
    assert F.multilabel_margin_loss(x.to("mps"), target.to("mps")).item() == 0


def test_the_sum_over_many_rows_is_accurate():
    x = make((200_003, 3), torch.float32)
    target = _classes(200_003, 3)
    expected = F.multi_margin_loss(x.double(), target, reduction="sum")
    actual = F.multi_margin_loss(x.to("mps"), target.to("mps"), reduction="sum")
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("classes", [5, 70])
def test_infinities_and_nan(classes):
    target = torch.arange(5) % classes
    x = make((5, classes), torch.float32)
    x[0, 0], x[1, 2], x[2, 2], x[3, 0], x[4, 1] = math.nan, math.nan, math.inf, -math.inf, math.inf
    lists = torch.full((5, classes), -1)
    lists[:, 0] = target
    for options in ({"p": 1}, {"p": 2}, {"p": 2, "margin": math.inf}):
        loss = _multi(target, reduction="none", **options)
        torch.testing.assert_close(loss(x.to("mps")).cpu(), loss(x), equal_nan=True)
    loss = _multilabel(lists, "none")
    torch.testing.assert_close(loss(x.to("mps")).cpu(), loss(x), equal_nan=True)


def test_an_empty_batch():
    x, target = torch.empty(0, 4, device="mps"), torch.empty(0, dtype=torch.int64, device="mps")
    for loss, targets in (
        (F.multi_margin_loss, target),
        (F.multilabel_margin_loss, target.view(0, 4)),
    ):
        assert loss(x, targets, reduction="none").shape == (0,)
        assert loss(x, targets, reduction="sum").item() == 0
        given = x.clone().requires_grad_()
        loss(given, targets, reduction="sum").backward()
        assert given.grad.shape == (0, 4)


# ---- out= ----------------------------------------------------------------------------------------


def _outs(shape, dtype=torch.float32):
    yield torch.empty(shape, dtype=dtype, device="mps")
    yield torch.empty(0, dtype=dtype, device="mps")
    yield torch.empty([2 * n for n in shape], dtype=dtype, device="mps")[
        tuple(slice(None, None, 2) for _ in shape)
    ]


@by_float
def test_out_overloads(dtype):
    x, target, lists = (
        make((6, 5), dtype).to("mps"),
        _classes(6, 5).to("mps"),
        _lists(6, 5).to("mps"),
    )
    weight, grad = make((5,), dtype, low=0, high=1).to("mps"), make((6,), dtype).to("mps")
    for reduction in (0, 1, 2):
        g = grad if reduction == 0 else grad[2]
        calls = [
            (aten.multi_margin_loss, (x, target, 2, 0.5, weight, reduction), ["out"]),
            (
                aten.multi_margin_loss_backward,
                (g, x, target, 2, 0.5, weight, reduction),
                ["grad_input"],
            ),
            (aten.multilabel_margin_loss_forward, (x, lists, reduction), ["output", "is_target"]),
        ]
        is_target = aten.multilabel_margin_loss_forward(x, lists, reduction)[1]
        arguments = (g, x, lists, reduction, is_target)
        calls.append((aten.multilabel_margin_loss_backward, arguments, ["grad_input"]))
        for operator, arguments, names in calls:
            expected = operator(*arguments)
            expected = expected if isinstance(expected, tuple) else (expected,)
            for given in zip(*(_outs(e.shape, dtype) for e in expected), strict=True):
                actual = operator(*arguments, **dict(zip(names, given, strict=True)))
                for a, e, out in zip(
                    actual if isinstance(actual, tuple) else (actual,), expected, given, strict=True
                ):
                    assert a is out and torch.equal(a, e)


def test_outputs_that_do_not_fit():
    x, target = torch.rand(6, 5, device="mps"), _classes(6, 5).to("mps")
    with pytest.warns(UserWarning, match="was resized"):
        torch._C._nn.multi_margin_loss(x, target, reduction=0, out=torch.empty(3, device="mps"))
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        aten.multi_margin_loss(x, target, out=torch.empty((), device="mps").half())
    with pytest.raises(RuntimeError, match="single memory location"):
        aten.multi_margin_loss(x, target, reduction=0, out=torch.empty(1, device="mps").expand(6))
    with pytest.raises(RuntimeError, match="same device"):
        aten.multi_margin_loss(x, target, out=torch.empty(()))
    with pytest.raises(RuntimeError, match="single memory location"):
        aten.multi_margin_loss_backward(x[0, 0], x, target, 1, 1.0, grad_input=x)


# ---- errors --------------------------------------------------------------------------------------


def test_arguments_that_the_cpu_refuses():
    x, target, lists = torch.rand(3, 4), torch.tensor([0, 1, 2]), torch.zeros(3, 4).long()
    calls = [
        lambda to: F.multi_margin_loss(to(x), to(target.int())),
        lambda to: F.multi_margin_loss(to(x), to(target), weight=to(torch.ones(4).half())),
        lambda to: F.multi_margin_loss(to(x), to(target), weight=to(torch.ones(3))),
        lambda to: aten.multi_margin_loss(to(x), to(target), 3),
        lambda to: F.multi_margin_loss(to(x), to(target[:2])),
        lambda to: F.multi_margin_loss(to(x[:, :0]), to(target)),
        lambda to: F.multi_margin_loss(to(x[None]), to(target)),
        lambda to: F.multilabel_margin_loss(to(x), to(lists.int())),
        lambda to: F.multilabel_margin_loss(to(x), to(lists[:2])),
        lambda to: F.multilabel_margin_loss(to(x[0]), to(lists[:1])),
        lambda to: F.multilabel_margin_loss(to(x[0, 0]), to(lists[0])),
        lambda to: F.multilabel_margin_loss(to(x[:, :0]), to(lists[:, :0])),
        lambda to: aten.multilabel_margin_loss_backward(
            to(x[0, 0]), to(x), to(lists), 1, to(x[:, 1:])
        ),
    ]
    for call in calls:
        with pytest.raises(RuntimeError) as expected:
            call(lambda tensor: tensor)
        with pytest.raises(RuntimeError) as actual:
            call(lambda tensor: tensor.to("mps"))
        on_cpu, on_mps = (str(error.value).split(" (while")[0] for error in (expected, actual))
        assert on_mps == on_cpu
    for loss, targets in ((F.multi_margin_loss, target), (F.multilabel_margin_loss, lists)):
        with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
            loss(x.int().to("mps"), targets.to("mps"))
        with pytest.raises(RuntimeError, match="same device"):
            loss(x.to("mps"), targets)


@pytest.mark.parametrize(
    ("classes", "target"), list(itertools.product([4, 100], [-1, 100, 2**40, -(2**40)]))
)
def test_multi_margin_loss_reports_a_target_out_of_range(classes, target):
    x = torch.zeros(3, classes, device="mps", requires_grad=True)
    targets = torch.tensor([0, target, 1], device="mps")
    message = rf"multi_margin_loss\(\): target out of range: {target}, but there are {classes}"
    loss = F.multi_margin_loss(x, targets, reduction="none")
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert loss.cpu()[1] == 0 and (loss.cpu()[[0, 2]] > 0).all()
    loss.sum().backward()
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert (x.grad.cpu()[1] == 0).all() and (x.grad.cpu()[[0, 2]] != 0).all()


@pytest.mark.parametrize(("classes", "target"), list(itertools.product([4, 100], [-2, 100, 2**40])))
@pytest.mark.parametrize("place", [0, 1, 3])
def test_multilabel_margin_loss_reports_targets_out_of_range(classes, target, place):
    x = torch.zeros(2, classes, device="mps")
    targets = torch.full((2, classes), -1)
    targets[:, 0] = 1
    targets[0, place] = target
    targets = targets.to("mps")
    message = rf"argument #\d 'target' is out of range: {target}, but there are {classes} classes"
    loss, is_target = aten.multilabel_margin_loss_forward(x, targets, 0)
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert loss[1].item() == pytest.approx((classes - 1) / classes)
    assert is_target.cpu().sum() == (1 if place == 0 else 2)
    aten.multilabel_margin_loss_backward(loss, x, targets, 0, is_target)
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()


# ---- how they run --------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [5, 100])
@by_reduction
def test_no_host_copy_and_no_stand_in(classes, reduction):
    x = make((6, classes), torch.float32).to("mps").requires_grad_()
    target, lists = _classes(6, classes).to("mps"), _lists(6, classes).to("mps")

    def run():
        with testing.no_host_copies():
            F.multi_margin_loss(x, target, reduction=reduction).sum().backward()
            F.multilabel_margin_loss(x, lists, reduction=reduction).sum().backward()

    assert served_by_us(run) == []


def test_results_do_not_depend_on_chance():
    x = to_device(make((50, 300), torch.float32), "mps").requires_grad_()
    lists = _lists(50, 300).to("mps")
    torch.use_deterministic_algorithms(True)
    try:
        results = [torch.autograd.grad(F.multilabel_margin_loss(x, lists), x)[0] for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(*results)
