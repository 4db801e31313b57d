"""torch.cond and other functions of functions in a compiled function: each of their graphs has kernels of its own."""

import pytest
import torch

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("fresh_compiler")]


def two_branches(x):
    y = 2 * x
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() - 1, (y,)) * 3


def nested(x):
    def positive(x):
        return torch.cond(x.amax() > 2, lambda x: x * 10, lambda x: x.exp(), (x + 1,))

    return torch.cond(x.sum() > 0, positive, lambda x: x.softmax(-1), (x,)) + x.mean()


def one_after_the_other(x):
    for limit in (-1.0, 0.0, 1.0):
        x = torch.cond(x.sum() > limit, lambda x: x - 1, lambda x: x + 0.5, (x,))
    return x


def the_same_branches_twice(x):
    branches = (lambda x: x.sin(), lambda x: x.cos())
    first = torch.cond(x.sum() > 0, *branches, (x,))
    return first + torch.cond(first.sum() > 0, *branches, (first,))


def loop(x):
    def goes_on(i, x):
        return (i < 4) & (x.abs().sum() < 100)

    def body(i, x):
        return i + 1, 2 * x + 1

    return torch.while_loop(goes_on, body, (torch.zeros((), dtype=torch.int64, device=x.device), x))


def branches_in_a_loop(x):
    def body(i, x):
        return i + 1, torch.cond(x.sum() > 0, lambda x: x - 2, lambda x: x * -0.5, (x,))

    zero = torch.zeros((), dtype=torch.int64, device=x.device)
    return torch.while_loop(lambda i, x: i < 3, body, (zero, x))


FUNCTIONS = [
    two_branches,
    nested,
    one_after_the_other,
    the_same_branches_twice,
    loop,
    branches_in_a_loop,
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_function_agrees_with_eager(function):
    compiled = torch.compile(function, fullgraph=True)
    for x in (torch.ones(2, 5), -torch.ones(2, 5), 4 * torch.ones(2, 5), torch.zeros(2, 5)):
        x = x.to("mps")
        torch.testing.assert_close(compiled(x), function(x))
