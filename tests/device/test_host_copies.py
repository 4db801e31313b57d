"""metalops.testing.no_host_copies: what counts as a copy to the host."""

import metalops
import pytest
import torch
from metalops import testing

pytestmark = pytest.mark.skipif(
    not metalops._is_software, reason="nothing intercepts torch's copies"
)

COPIES = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x[0] > 1),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "copy_": lambda x: torch.empty(3).copy_(x),
    "to": lambda x: x.to("cpu", torch.float16),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_to_the_host_raise(name):
    x = torch.ones(3, device="mps")
    with testing.no_host_copies(), pytest.raises(RuntimeError, match="was copied to the host"):
        COPIES[name](x)
    COPIES[name](x)


def test_other_work_of_the_device_goes_on():
    with testing.no_host_copies():
        x = torch.ones(3).to("mps").half().clone()
        x.requires_grad_()
        (x * 2).sum().backward()
        torch.mps.synchronize()
    assert x.grad.tolist() == [2, 2, 2]


def test_it_reaches_into_autograd():
    class Peek(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            gradient.sum().item()
            return gradient

    x = torch.ones(3, device="mps", requires_grad=True)
    with testing.no_host_copies(), pytest.raises(RuntimeError, match="was copied to the host"):
        Peek.apply(x).sum().backward()


def test_it_nests():
    x = torch.ones(3, device="mps")
    with testing.no_host_copies():
        with testing.no_host_copies():
            pass
        with pytest.raises(RuntimeError, match="was copied to the host"):
            x.cpu()
    x.cpu()
