"""copy_ while the fix "copy" is on: csrc/ops/creation/copy.mm."""

import metalops
import pytest
import torch
from metalops.testing import faults

pytestmark = pytest.mark.skipif(
    not metalops._is_software, reason="faults are planted in the software device"
)


@pytest.fixture
def asked():
    """The values of non_blocking that torch's kernel is given, with the fix on."""
    values = []

    def noted(kernel, x, source, non_blocking=False):
        values.append(non_blocking)
        return kernel(x, source, non_blocking)

    with faults.replaced("copy_", noted), metalops.enable_fixes("copy"):
        yield values


def test_copies_from_pageable_memory_wait(asked):
    source = torch.arange(12.0).view(3, 4)
    x = source.to("mps", non_blocking=True)
    torch.empty(4, 3, device="mps").t().copy_(source, non_blocking=True)
    torch.empty(3, 4, dtype=torch.int32, device="mps").copy_(source, True)
    assert asked == [False] * 3
    assert torch.equal(x.cpu(), source)


def test_others_are_as_they_were(asked):
    x = torch.ones(3, device="mps")
    del asked[:]
    x.to("cpu", non_blocking=True)
    torch.empty(3, device="mps").copy_(x, non_blocking=True)
    torch.empty(3, device="mps").copy_(torch.ones(3).pin_memory(), non_blocking=True)
    assert asked == [True] * 3
    x.copy_(torch.ones(()))
    assert asked[3:] == [False] and x.copy_(torch.zeros(3)) is x


def test_the_fault_is_there_without_it():
    source = torch.ones(2**11)
    with faults.planted("copy-pageable"):
        assert not bool(source.to("mps", non_blocking=True).any())
        with metalops.enable_fixes("copy"):
            assert bool(source.to("mps", non_blocking=True).all())
        assert not bool(source.to("mps", non_blocking=True).any())
    with metalops.enable_fixes("copy"):  # another kernel is torch's now
        assert bool(source.to("mps", non_blocking=True).all())


def test_gradients_and_errors(asked):
    source = torch.ones(3, requires_grad=True)
    source.to("mps", non_blocking=True).sum().backward()
    assert torch.equal(source.grad, torch.ones(3))
    with pytest.raises(RuntimeError, match="size of tensor|expand"):
        torch.empty(2, device="mps").copy_(torch.ones(3), non_blocking=True)
