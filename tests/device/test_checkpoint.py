"""torch.utils.checkpoint draws the random numbers of the forward pass again in the backward pass."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.full  # torch.utils.checkpoint imports the compiler

both = pytest.mark.parametrize("use_reentrant", [True, False])


def _masks(function, *args, **options):
    """Returns the results of dropout in the forward pass and when it is computed again, and checks that what is drawn
    afterwards does not depend on the backward pass."""
    masks = []

    def segment(*args):
        masks.append(F.dropout(function(*args), 0.5))
        return masks[-1].sin()

    torch.manual_seed(3)
    result = checkpoint(segment, *args, **options)
    torch.rand(5, device="mps")
    state = torch.mps.get_rng_state()
    result.sum().backward()
    assert torch.equal(torch.mps.get_rng_state(), state) or not options.get("preserve_rng_state", 1)
    return masks


@both
def test_dropout_has_the_same_mask_again(use_reentrant):
    x = torch.ones(8, 64, device="mps", requires_grad=True)
    first, again = _masks(lambda x: 2 * x, x, use_reentrant=use_reentrant)
    assert torch.equal(first, again)
    torch.testing.assert_close(x.grad, first.cos() * 2 * (first != 0) * 2)


def test_functions_that_take_no_tensors_of_the_device():
    weight = torch.ones(8, 64, device="mps", requires_grad=True)
    for args in ((), (torch.ones(64),)):
        first, again = _masks(lambda *_: weight * 3, *args, use_reentrant=False)
        assert torch.equal(first, again)


@both
def test_the_state_is_not_kept_unless_it_is_asked_for(use_reentrant):
    x = torch.ones(8, 64, device="mps", requires_grad=True)
    options = {"use_reentrant": use_reentrant, "preserve_rng_state": False}
    first, again = _masks(lambda x: 2 * x, x, **options)
    assert not torch.equal(first, again)


def test_segments_in_a_row_and_within_each_other():
    masks = []

    def segment(x):
        masks.append(F.dropout(x, 0.5))
        return masks[-1].sin()

    def outer(x):
        return checkpoint(segment, checkpoint(segment, x, use_reentrant=False), use_reentrant=False)

    x = torch.ones(4, 64, device="mps", requires_grad=True)
    checkpoint(outer, x, use_reentrant=False).sum().backward()
    first, second, *again = masks
    assert not torch.equal(first != 0, second != 0)
    for mask in again:
        assert any(torch.equal(mask, one) for one in (first, second))


def test_the_device_is_a_context_as_those_of_other_modules():
    with torch.mps.device(0), torch.mps.device("mps"):
        pass
    with pytest.raises(RuntimeError, match="mps:0, but got 1"):
        torch.mps.device(1)
