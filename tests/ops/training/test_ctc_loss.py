"""ctc_loss: kernels/training/ctc_loss.metal."""

import itertools
import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from metalops import testing
from metalops.testing.samples import make, to_device
from torch.ops import aten

from ..aten import only_ours, served_by_us
from ..benchmark import FIBERS, Benchmark, random_classes

pytestmark = only_ours("aten::_ctc_loss")

STEPS, LABELS = 14, 6
INPUT_LENGTHS = [14, 9, 3, 1, 0, 12, 4, 0]
# Among them: none, one that just fits, ones that are too long for their input.
TARGET_LENGTHS = [5, 0, 3, 2, 0, 6, 2, 1]
by_reduction = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
by_blank = pytest.mark.parametrize("blank", range(LABELS))


# In torch's op_db.
OPINFOS = ("nn.functional.ctc_loss",)


def _loss_of_blocks(x):
    """Samples of up to 64 steps and 32 labels, with targets a quarter as long."""
    labels = min(32, x.numel() // 2)
    steps = min(64, x.numel() // labels)
    batch = x.numel() // (labels * steps)
    log_probs = x.reshape(steps, batch, labels)
    length = steps // 4
    # Targets have no blank, 0.
    targets = 1 + random_classes(batch, labels - 1, max(2, length), x.device)
    return F.ctc_loss(log_probs, targets, [steps] * batch, [length] * batch, reduction="sum")


BENCHMARKS = Benchmark.with_gradient(
    "ctc_loss", _loss_of_blocks, low=-6, high=-2, only_dtype="float32", reason=FIBERS
)


def _log_probs(steps, batch, labels, seed=0):
    return make((steps, batch, labels), torch.float32, seed=seed).log_softmax(2)


def _targets(lengths, labels, blank, seed=0):
    """Padded and concatenated targets without the blank, in which labels are often repeated."""
    generator = torch.Generator().manual_seed(seed)
    padded = torch.randint(0, labels - 1, (len(lengths), max(lengths) + 1), generator=generator)
    padded[0, 1:3] = padded[0, 0]
    padded += padded >= blank
    return padded, torch.cat([row[:n] for row, n in zip(padded, lengths, strict=True)])


def _loss(targets, *lengths, **options):
    return lambda x: F.ctc_loss(x, targets.to(x.device), *lengths, **options)


def _assert_close(actual, expected):
    """expected: in float64. Infinite losses have gradients that are not numbers."""
    torch.testing.assert_close(
        actual.detach().cpu().double(), expected.detach(), rtol=2e-5, atol=2e-5, equal_nan=True
    )


def _check_accuracy(loss, x):
    """Sums of very many logarithms lose digits in float: not more of them than on the CPU."""
    errors = {}
    exact = x.double().requires_grad_()
    (exact_grad,) = torch.autograd.grad(loss(exact).sum(), exact)
    for device in ("cpu", "mps"):
        given = x.to(device).requires_grad_()
        result = loss(given)
        (grad,) = torch.autograd.grad(result.sum(), given)
        errors[device] = [
            (a.detach().cpu() - e.detach()).abs().max().item()
            for a, e in ((result, loss(exact)), (grad, exact_grad))
        ]
    for ours, theirs in zip(errors["mps"], errors["cpu"], strict=True):
        assert ours < 2 * theirs + 2e-5, errors


def _check(loss, x):
    """The loss and its gradient for random cotangents, against float64 on the CPU."""
    wide = x.detach().double().requires_grad_()
    narrow = to_device(x, "mps").requires_grad_()
    expected, actual = loss(wide), loss(narrow)
    assert actual.device.type == "mps" and actual.dtype == torch.float32
    assert actual.shape == expected.shape
    _assert_close(actual, expected)
    for name, cotangent in testing.checks.cotangents(actual):
        (e,) = torch.autograd.grad(expected, wide, cotangent.double().cpu(), retain_graph=True)
        (a,) = torch.autograd.grad(actual, narrow, to_device(cotangent, "mps"), retain_graph=True)
        assert a.shape == e.shape and a.stride() == e.stride(), name
        _assert_close(a, e)


# ---- values and gradients ------------------------------------------------------------------------


@by_blank
@by_reduction
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_padded_and_concatenated_targets(blank, reduction, zero_infinity):
    x = _log_probs(STEPS, len(INPUT_LENGTHS), LABELS)
    for targets in _targets(TARGET_LENGTHS, LABELS, blank):
        options = {"blank": blank, "reduction": reduction, "zero_infinity": zero_infinity}
        _check(_loss(targets, INPUT_LENGTHS, TARGET_LENGTHS, **options), x)


def test_losses_are_sums_over_all_paths():
    """Against the definition: the probability that a path, without repetitions and blanks, is the target."""
    x = _log_probs(5, 1, 3)
    for target in ([], [1], [1, 1], [1, 2], [2, 1, 2], [1, 1, 2]):
        total = 0.0
        for path in itertools.product(range(3), repeat=5):
            labels = [label for label, _ in itertools.groupby(path) if label != 0]
            if labels == target:
                total += math.exp(sum(x[t, 0, label].item() for t, label in enumerate(path)))
        loss = _loss(torch.tensor([target], dtype=torch.long), [5], [len(target)], reduction="sum")
        assert loss(x.to("mps")).item() == pytest.approx(-math.log(total), rel=1e-5)


def test_a_blank_among_the_targets():
    x = _log_probs(9, 2, 4)
    targets = torch.tensor([[1, 0, 1], [0, 0, 2]])
    _check(_loss(targets, [9, 9], [3, 3], reduction="none"), x)


def test_log_probs_of_every_layout():
    batch, lengths = 3, ([9, 7, 5], [2, 3, 1])
    loss = _loss(_targets(lengths[1], LABELS, 0)[0], *lengths, reduction="none")
    for x in (
        _log_probs(batch, 9, LABELS).transpose(0, 1),
        _log_probs(LABELS, batch, 9).permute(2, 1, 0),
        _log_probs(20, 2 * batch, LABELS)[1:10, 1::2],
        _log_probs(9, batch, 2 * LABELS)[:, :, 1::2],
        _log_probs(9, 1, LABELS).expand(9, batch, LABELS),
        _log_probs(1, batch, LABELS).expand(9, batch, LABELS),
    ):
        _check(loss, x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_targets_of_every_layout(dtype):
    x = _log_probs(9, 3, LABELS)
    padded, concatenated = _targets([2, 3, 1], LABELS, 0)
    lengths = ([9, 7, 5], [2, 3, 1])
    expected = aten._ctc_loss(x, padded, *lengths)[0]
    for targets in (padded, concatenated):
        targets = targets.to(dtype)
        wide = torch.stack([targets, -targets], -1).flatten(-2)
        for given in (targets, wide[..., ::2], torch.stack([targets[:1], targets[:1]])[1]):
            given = to_device(given, "mps")
            if given.shape == targets.shape:
                actual = aten._ctc_loss(x.to("mps"), given, *lengths)[0]
                torch.testing.assert_close(actual.cpu(), expected)
    transposed = padded.t().contiguous().t().to(dtype)
    actual = aten._ctc_loss(x.to("mps"), to_device(transposed, "mps"), *lengths)[0]
    torch.testing.assert_close(actual.cpu(), expected)
    expanded = to_device(padded[:1].to(dtype).expand(3, -1), "mps")
    expected = aten._ctc_loss(x, padded[:1].expand(3, -1).contiguous(), *lengths)[0]
    torch.testing.assert_close(aten._ctc_loss(x.to("mps"), expanded, *lengths)[0].cpu(), expected)


def test_log_alpha_is_minus_infinity_where_a_sample_has_no_state():
    x = _log_probs(STEPS, len(INPUT_LENGTHS), LABELS)
    for targets in _targets(TARGET_LENGTHS, LABELS, 0):
        arguments = (targets, INPUT_LENGTHS, TARGET_LENGTHS)
        expected = aten._ctc_loss(x.double(), *arguments)[1]
        for sample, (steps, length) in enumerate(zip(INPUT_LENGTHS, TARGET_LENGTHS, strict=True)):
            expected[sample, steps:] = -math.inf
            expected[sample, :, 2 * length + 1 :] = -math.inf
        actual = aten._ctc_loss(x.to("mps"), arguments[0].to("mps"), *arguments[1:])[1]
        _assert_close(actual, expected)


@pytest.mark.parametrize("length", [15, 16, 31, 32, 33, 64, 700])
def test_more_states_than_threads(length):
    x = _log_probs(2 * length + 5, 2, 20)
    lengths = ([2 * length + 5, 2 * length], [length, length // 2])
    _check_accuracy(_loss(_targets(lengths[1], 20, 0)[0], *lengths, reduction="none"), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float(dtype):
    """Sums of logarithms up to a thousand, of which half precision has no digit behind the point."""
    x = _log_probs(300, 3, 20).to(dtype)
    lengths = ([300, 280, 30], [100, 90, 0])
    loss = _loss(_targets(lengths[1], 20, 0)[0], *lengths, reduction="none")
    exact, given = (
        x.to(device, wide).requires_grad_()
        for device, wide in (("cpu", torch.double), ("mps", dtype))
    )
    expected, actual = loss(exact), loss(given)
    (expected_grad,) = torch.autograd.grad(expected.sum(), exact)
    (grad,) = torch.autograd.grad(actual.sum(), given)
    for a, e in ((actual, expected), (grad, expected_grad)):
        assert a.dtype == dtype
        tolerance = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(
            a.cpu().double(), e, rtol=tolerance, atol=tolerance, equal_nan=True
        )


def test_long_inputs_of_small_probabilities():
    """exp() of these sums vanishes long before the end, even in float64."""
    x = _log_probs(3000, 2, 5) - 20
    targets, _ = _targets([40, 3], 5, 0)
    loss = _loss(targets, [3000, 2500], [40, 3], reduction="none")
    assert (loss(x.to("mps")) > 50_000).all()
    _check_accuracy(loss, x)


def test_infinities_and_nan():
    x = _log_probs(9, 6, LABELS)
    x[4, 0], x[2, 1, 3], x[0, 2], x[8, 3, 1] = -math.inf, -math.inf, math.nan, math.nan
    x[5, 4, 2] = math.inf
    x[3, 5, 0] = math.nan
    padded, _ = _targets([3, 2, 2, 0, 2, 3], LABELS, 0)
    for zero_infinity in (False, True):
        loss = _loss(
            padded, [9] * 6, [3, 2, 2, 0, 2, 3], reduction="none", zero_infinity=zero_infinity
        )
        _check(loss, x)


@by_reduction
def test_a_sample_without_a_batch(reduction):
    x = _log_probs(9, 1, LABELS)[:, 0]
    targets = torch.tensor([1, 3, 3])
    for lengths in (([9], [3]), (torch.tensor(9), torch.tensor(3)), (torch.tensor([9]), (3,))):
        lengths = [torch.as_tensor(n) for n in lengths]
        _check(_loss(targets, *lengths, reduction=reduction), x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8], ids=str)
@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_lengths_as_tensors(dtype, device):
    x = _log_probs(STEPS, len(INPUT_LENGTHS), LABELS)
    targets, _ = _targets(TARGET_LENGTHS, LABELS, 0)
    lengths = [torch.tensor(n, dtype=dtype) for n in (INPUT_LENGTHS, TARGET_LENGTHS)]
    expected = aten._ctc_loss(x, targets, INPUT_LENGTHS, TARGET_LENGTHS)[0]
    given = [n.to(device) for n in lengths]
    loss, log_alpha = aten._ctc_loss.Tensor(x.to("mps"), targets.to("mps"), *given)
    torch.testing.assert_close(loss.cpu(), expected)
    grad = torch.ones_like(loss)
    arguments = (grad, x.to("mps"), targets.to("mps"))
    from_tensors = aten._ctc_loss_backward.Tensor(*arguments, *given, loss, log_alpha, 0)
    from_lists = aten._ctc_loss_backward(
        *arguments, INPUT_LENGTHS, TARGET_LENGTHS, loss, log_alpha, 0
    )
    torch.testing.assert_close(from_tensors, from_lists, rtol=0, atol=0, equal_nan=True)
    loss = _loss(targets, *given, zero_infinity=True)
    _check(
        lambda x: (
            loss(x) if x.device.type == device else _loss(targets, *lengths, zero_infinity=True)(x)
        ),
        x,
    )


# ---- errors --------------------------------------------------------------------------------------


def test_arguments_that_the_cpu_refuses():
    x, targets = _log_probs(5, 2, 4), torch.tensor([[1, 2], [1, 1]])
    calls = [
        (x, targets.float(), [5, 5], [2, 2]),
        (x, targets.short(), [5, 5], [2, 2]),
        (x, targets, [5, 5], [2, 2], 4),
        (x, targets, [5, 5], [2, 2], -1),
        (x, targets, [5], [2, 2]),
        (x, targets, [5, 5], [2]),
        (x, targets, [5, 6], [2, 2]),
        (x, targets, [5, -6], [2, 2]),
        (x, targets, [5, 5], [2, 3]),
        (x, targets, [5, 5], [2, -3]),
        (x, targets[0], [5, 5], [2, 2]),
        (x, targets[:1], [5, 5], [2, 2]),
        (x[0], targets, [5, 5], [2, 2]),
        (x, targets[None], [5, 5], [2, 2]),
        (x[:0], targets, [0, 0], [2, 0]),
        (x[:, :0], targets[:0], [], []),
        (x, targets, torch.tensor([5.0, 5.0]), torch.tensor([2, 2])),
        (x, targets, torch.tensor([5, 5]), torch.tensor([True, True])),
    ]
    for call in calls:
        with pytest.raises(RuntimeError) as expected:
            aten._ctc_loss(*call)
        with pytest.raises(RuntimeError) as actual:
            aten._ctc_loss(*to_device(call, "mps"))
        types = re.compile(r"but got \S+ instead")  # torch.FloatTensor, MPSFloatType
        assert types.sub("", str(actual.value)) == types.sub("", str(expected.value))
    with pytest.raises(NotImplementedError, match="not implemented for"):
        aten._ctc_loss(x.to("mps", torch.complex64), targets.to("mps"), [5, 5], [2, 2])
    with pytest.raises(RuntimeError, match="same device"):
        aten._ctc_loss(x.to("mps"), targets, [5, 5], [2, 2])


def test_the_backward_function_refuses_what_does_not_belong_to_the_call():
    x, targets = _log_probs(5, 2, 4).to("mps"), torch.tensor([[1, 2], [1, 1]], device="mps")
    loss, log_alpha = aten._ctc_loss(x, targets, [5, 5], [2, 2])
    for arguments in ((loss[:1], loss, log_alpha), (loss, loss[:1], log_alpha)):
        with pytest.raises(RuntimeError, match="one element for each of 2 samples"):
            aten._ctc_loss_backward(arguments[0], x, targets, [5, 5], [2, 2], *arguments[1:], 0)
    with pytest.raises(RuntimeError, match=r"log_alpha of size \[2, 5, 5\]"):
        aten._ctc_loss_backward(loss, x, targets, [5, 5], [2, 2], loss, log_alpha[..., :3], 0)


@pytest.mark.parametrize("label", [-1, LABELS, 2**40])
def test_a_target_out_of_range_is_reported_and_is_impossible(label):
    x = _log_probs(5, 2, LABELS).to("mps").requires_grad_()
    targets = torch.tensor([[1, label], [1, 2]], device="mps")
    loss = F.ctc_loss(x, targets, [5, 5], [2, 2], reduction="none")
    message = rf"ctc_loss\(\): target out of range: label {label}, but there are {LABELS} labels"
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert loss[0].item() == math.inf and loss[1].isfinite()
    loss[1].backward()
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert x.grad.cpu()[:, 1].isfinite().all()


# ---- how it runs ---------------------------------------------------------------------------------


@by_reduction
def test_no_host_copy_and_no_stand_in(reduction):
    x = _log_probs(STEPS, len(INPUT_LENGTHS), LABELS).to("mps").requires_grad_()
    targets = [t.to("mps") for t in _targets(TARGET_LENGTHS, LABELS, 0)]

    def run():
        with testing.no_host_copies():
            for given in targets:
                loss = _loss(given, INPUT_LENGTHS, TARGET_LENGTHS, reduction=reduction)
                loss(x).sum().backward()

    assert served_by_us(run) == []


def test_gradients_are_the_same_each_time():
    """torch's CUDA kernel adds with atomics, and so refuses deterministic algorithms; ours does not."""
    x = _log_probs(50, 4, 5).to("mps").requires_grad_()
    lengths = ([50, 40, 30, 20], [20, 15, 10, 5])
    loss = _loss(_targets(lengths[1], 5, 0)[1], *lengths)
    torch.use_deterministic_algorithms(True)
    try:
        results = [torch.autograd.grad(loss(x), x)[0] for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(*results)


@pytest.mark.nightly
def test_a_recogniser_of_digit_sequences(load_script):
    script = load_script(Path(__file__).parents[3] / "benchmarks" / "ctc_digits.py")
    assert script.run() >= 90
