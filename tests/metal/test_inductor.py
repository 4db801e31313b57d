"""torch.compile with its default backend: Inductor's own Metal code for mps runs and agrees with eager execution."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor.utils import run_and_get_code

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("fresh_compiler")]


def data(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype).to("mps")


def pointwise(x, y):
    return torch.sin(x) * torch.exp(-y * y) + torch.where(x > y, x, y.abs().sqrt())


def many_outputs(x, y):
    return x + y, (x * y).sigmoid(), (x > 0) & (y < 0.5)


def integers(x, y):
    i, j = (x * 100).int(), (y * 100).int() | 1
    return i // j, i % j, i & j, i << 2, (i.long() * j).clamp(-50, 50)


def strided(x, y):
    return x.t() + y.flip(0).t().contiguous(), x[:, ::2] * y[:, 1::2]


def reductions(x, y):
    return x.sum(), y.mean(dim=1), x.amax(dim=0), y.prod(dim=1), (x > 0).any(dim=1), x.argmin(dim=1)


def variance(x, y):
    return torch.var_mean(x, dim=1), y.std(dim=0)


def softmax(x, y):
    return torch.softmax(x, dim=-1), torch.log_softmax(y, dim=0)


def layer_norm(x, y):
    return F.layer_norm(x, x.shape[-1:]), F.rms_norm(y, y.shape[-1:])


def index(x, y):
    rows = torch.tensor([3, 0, 3, -1], device=x.device)
    return x[rows], y.gather(1, (x > 0).long()), y.index_select(0, rows + 1)


def cat(x, y):
    return torch.cat([x, y[:3] * 2]), torch.stack([x, y]).sum(0)


def cumulative(x, y):
    return x.cumsum(dim=1), (y.abs() + 0.5).cumprod(dim=1)


def special(x, y):
    return torch.erf(x), torch.lgamma(y.abs() + 1), torch.special.i0(x), torch.digamma(y.abs() + 1)


FUNCTIONS = [
    pointwise,
    many_outputs,
    integers,
    strided,
    reductions,
    variance,
    softmax,
    layer_norm,
    index,
    cat,
    cumulative,
    special,
]


def compiled_with_metal(function, *args):
    """What the compiled function returns; its code must hold Metal kernels."""
    result, (code, *_) = run_and_get_code(torch.compile(function, fullgraph=True), *args)
    assert "kernel void generated_kernel" in code
    return result


@pytest.mark.sampled(8)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_function_agrees_with_eager(function):
    x, y = data(33, 50), data(33, 50)
    torch.testing.assert_close(
        compiled_with_metal(function, x, y), function(x, y), rtol=1e-4, atol=1e-5
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", [pointwise, softmax], ids=lambda function: function.__name__)
def test_low_precision_agrees_with_eager(function, dtype):
    x, y = data(33, 50, dtype=dtype), data(33, 50, dtype=dtype)
    torch.testing.assert_close(
        compiled_with_metal(function, x, y), function(x, y), rtol=2e-2, atol=2e-2
    )


@pytest.mark.nightly
@pytest.mark.parametrize("width", [28, 1024, 3000])
def test_reductions_over_rows_of_any_width(width):
    x = data(5, width)
    function = lambda x: (x.sum(1), x.amax(1), x.softmax(1), x.argmax(1))
    torch.testing.assert_close(compiled_with_metal(function, x), function(x), rtol=1e-4, atol=1e-4)


def test_dynamic_shapes():
    function = torch.compile(lambda x: (x.cos() + 1).sum(dim=-1), dynamic=True)
    for rows in (3, 40, 7):
        x = data(rows, 2 * rows)
        torch.testing.assert_close(function(x), (x.cos() + 1).sum(dim=-1), rtol=1e-4, atol=1e-4)


def test_random_numbers_have_the_right_distribution():
    function = torch.compile(
        lambda x: (torch.rand_like(x), torch.randn_like(x), F.dropout(x, 0.25))
    )
    uniform, normal, dropped = function(torch.ones(200, 500, device="mps"))
    assert 0 <= uniform.min() and uniform.max() < 1
    torch.testing.assert_close(uniform.mean().item(), 0.5, rtol=0, atol=0.01)
    torch.testing.assert_close(normal.std().item(), 1.0, rtol=0, atol=0.02)
    torch.testing.assert_close((dropped == 0).float().mean().item(), 0.25, rtol=0, atol=0.01)


def test_an_index_out_of_bounds_is_reported():
    function = torch.compile(lambda x, i: x[i] + 1)
    x = data(10)
    torch.testing.assert_close(function(x, torch.tensor([2, -3], device="mps")), x[[2, -3]] + 1)
    function(x, torch.tensor([2, 99], device="mps"))
    with pytest.raises(torch.AcceleratorError, match=r"Index 99 out of range \[0, 10\)"):
        torch.mps.synchronize()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.linear = nn.Linear(32, 64)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens):
        hidden = F.gelu(self.norm(self.linear(self.embedding(tokens))))
        return torch.softmax(self.head(hidden), dim=-1).mean(dim=1)


def test_a_model_agrees_forward_and_backward():
    model = Model().to("mps")
    tokens = torch.randint(0, 50, (4, 17)).to("mps")
    target = torch.rand(4, 10).to("mps")

    def step(function):
        model.zero_grad()
        output = function(tokens)
        ((output - target) ** 2).sum().backward()
        return output.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}

    eager = step(model)
    compiled, codes = run_and_get_code(step, torch.compile(model))
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-6)
    assert len(codes) == 2  # forward and backward
    assert all("kernel void generated_kernel" in code for code in codes)


@pytest.mark.nightly
def test_training_with_a_compiled_step_lowers_the_loss():
    model = Model().to("mps")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tokens = torch.randint(0, 50, (4, 17)).to("mps")
    target = torch.rand(4, 10).softmax(-1).to("mps")
    compiled = torch.compile(model)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = ((compiled(tokens) - target) ** 2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
