"""The operators that nn.SyncBatchNorm is made of: csrc/ops/training/sync_batch_norm.mm. tests/distributed has the module."""

import pytest
import torch
import torch.nn.functional as F
from metalops.testing.samples import FLOATS, make, to_device

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
EPS = 1e-3
SHAPES = [(4, 3), (6, 5, 7), (3, 4, 5, 6), (3, 3, 2, 4, 3)]


def _tolerance(dtype):
    eps = max(torch.finfo(dtype).eps, 2**-20)
    return {"rtol": 4 * eps, "atol": 4 * eps}


def _of_two(x, weight, bias, running, momentum=0.3):
    """Returns the result of two processes, of which each has half of the samples, and a function that does the backward
    pass: what nn.SyncBatchNorm does, in one process."""
    halves = x[: len(x) // 2 + 1], x[len(x) // 2 + 1 :]
    means, invstds = map(torch.stack, zip(*(torch.batch_norm_stats(h, EPS) for h in halves)))
    counts = torch.tensor([h.numel() // h.shape[1] for h in halves], device=x.device)
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        x, means, invstds, *running, momentum, EPS, counts.float()
    )
    results = [torch.batch_norm_elemt(h, weight, bias, mean, invstd, EPS) for h in halves]

    def backward(grad):
        grads = grad[: len(halves[0])], grad[len(halves[0]) :]
        parts = [
            torch.batch_norm_backward_reduce(g, h, mean, invstd, weight, True, True, True)
            for g, h in zip(grads, halves)
        ]
        dy, xmu, of_weight, of_bias = (sum(some) for some in zip(*parts))
        of_x = [
            torch.batch_norm_backward_elemt(g, h, mean, invstd, weight, dy, xmu, counts.int())
            for g, h in zip(grads, halves)
        ]
        return torch.cat(of_x), of_weight, of_bias

    return torch.cat(results), backward


@by_float
@pytest.mark.parametrize(
    ("shape", "is_last"), [*((shape, False) for shape in SHAPES), (SHAPES[2], True)], ids=str
)
def test_processes_have_the_statistics_of_all(shape, dtype, is_last):
    x, grad = make(shape, dtype, low=-1, high=3), make(shape, dtype)
    weight, bias = make(shape[1:2], torch.float32, low=0.5, high=2), make(shape[1:2], torch.float32)
    before = make(shape[1:2], torch.float32), make(shape[1:2], torch.float32, low=0.5, high=2)
    if is_last:
        x, grad = (t.to(memory_format=torch.channels_last) for t in (x, grad))

    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    running = [t.double() for t in before]
    expected = F.batch_norm(leaves[0], *running, *leaves[1:], True, 0.3, EPS)
    expected.backward(grad.double())

    x, grad, weight, bias, *averages = to_device((x, grad, weight, bias, *before), "mps")
    result, backward = _of_two(x, weight, bias, averages)
    assert result.dtype == dtype
    torch.testing.assert_close(result.cpu(), expected.detach().to(dtype), **_tolerance(dtype))
    for found, right in zip(averages, running):
        torch.testing.assert_close(found.cpu(), right.float(), rtol=1e-5, atol=1e-5)
    gradients = backward(grad)
    assert [g.dtype for g in gradients] == [dtype, torch.float32, torch.float32]
    for found, leaf in zip(gradients, leaves):
        close = {"rtol": 1e-4, "atol": 1e-4} if found.dtype == torch.float32 else _tolerance(dtype)
        torch.testing.assert_close(found.cpu(), leaf.grad.to(found.dtype), **close)


def test_options_that_are_absent():
    x = to_device(make((4, 3, 5), torch.float32), "mps")
    result, backward = _of_two(x, None, None, (None, None))
    expected = F.batch_norm(x.cpu().double(), None, None, training=True, eps=EPS)
    torch.testing.assert_close(result.cpu(), expected.float(), rtol=1e-5, atol=1e-5)
    assert backward(torch.ones_like(x))[1].dtype == torch.float32
    mean, invstd = torch.batch_norm_stats(x, EPS)
    none = torch.batch_norm_backward_reduce(x, x, mean, invstd, None, False, False, False)
    assert none == (None, None, None, None)
    out = torch.empty(0, device="mps")
    torch.batch_norm_elemt(x, None, None, mean, invstd, EPS, out=out)
    torch.testing.assert_close(out, torch.batch_norm_elemt(x, None, None, mean, invstd, EPS))
    pairs = torch.stack([mean, mean]), torch.stack([invstd, invstd])
    for found, right in zip(torch.batch_norm_gather_stats(x, *pairs, None, None, 0.1, EPS, 20), (mean, invstd)):  # fmt: skip
        torch.testing.assert_close(found, right)


def test_arguments_that_do_not_fit():
    x, short = torch.ones(4, 3, device="mps"), torch.ones(2, device="mps")
    three = torch.ones(3, device="mps")
    with pytest.raises(
        RuntimeError, match="batch_norm_elemt: mean should contain 3 elements not 2"
    ):
        torch.batch_norm_elemt(x, None, None, short, three, EPS)
    with pytest.raises(RuntimeError, match="weight should contain 3 elements not 2"):
        torch.batch_norm_elemt(x, short, None, three, three, EPS)
    with pytest.raises(RuntimeError, match="at least two dimensions, but has 1"):
        torch.batch_norm_stats(three, EPS)
    with pytest.raises(RuntimeError, match="counts should contain 1 elements not 3"):
        torch.batch_norm_gather_stats_with_counts(
            x, three[None], three[None], None, None, 0.1, EPS, three
        )
    with pytest.raises(RuntimeError, match="grad_out must have the sizes"):
        torch.batch_norm_backward_reduce(three, x, three, three, None, True, True, True)
    with pytest.raises(NotImplementedError):
        torch.batch_norm_stats(x.int(), EPS)
