"""torch.compile with its default backend: forward and backward with dynamic shapes, by kind of operation."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("fresh_compiler")]


class TransformerBlock(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.projections(self.attention_norm(x)).view(batch, length, 3, self.heads, -1)
        attended = F.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.output(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.silu(self.up(self.norm(x))))


class ConvolutionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.convolution(x.view(-1, 3, 4, 4)))), 2)
        return self.linear(x.mean((2, 3)))


class TokenLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16, padding_idx=0)
        self.norm = nn.GroupNorm(4, 16)
        self.linear = nn.Linear(16, 20)

    def forward(self, x):
        tokens = (x * 20).long().clamp(0, 19)
        hidden = self.norm(self.embedding(tokens).transpose(1, 2)).transpose(1, 2)
        losses = F.cross_entropy(
            self.linear(hidden).flatten(0, 1), tokens.flatten(), reduction="none"
        )
        return losses + 0 * x.sum()


def scan(x):
    return x.cumsum(-1).logcumsumexp(-1) + x.cumprod(0) + x.cummax(-1).values


def gather_and_scatter(x):
    rows = torch.tensor([0, 2, 2, -1], device=x.device)
    columns = (x[:, :4] > 0.5).long()
    summed = (
        torch.zeros_like(x).index_add(0, rows % x.shape[0], x).scatter_add(1, columns, x[:, :4])
    )
    return summed[:, :4] + x[:, rows] + x.gather(1, columns)


def softmax(x):
    return x.softmax(-1).log() + x.log_softmax(0) + x.logsumexp(-1, keepdim=True)


def normalisation(x):
    return F.layer_norm(x, (x.shape[-1],)) + F.normalize(x) + F.rms_norm(x, (x.shape[-1],))


def reduction(x):
    return x.sum(0).mean() + x.amax(1).sum() + x.prod(1).sum() + x.std() + x.var(0).sum()


def long_rows(x):
    wide = x.repeat(1, 400)
    return wide.sum(-1) + wide.amax(-1) + wide.softmax(-1).square().sum(-1)


def selection(x):
    return torch.where(x > 0.5, x, -x) + x.clamp(0.2, 0.8) + x.tril() + x.masked_fill(x > 0.9, 0.0)


def losses(x):
    return F.mse_loss(x, x.roll(1, 0)) + F.smooth_l1_loss(x, x.flip(0)) + F.huber_loss(x, 2 * x)


CASES = {
    "convolution net": (ConvolutionNet, lambda n: (n, 48)),
    "transformer block": (TransformerBlock, lambda n: (2, n, 32)),
    "token loss": (TokenLoss, lambda n: (3, n)),
    **{
        function.__name__: (lambda function=function: function, lambda n: (4, n))
        for function in (
            scan,
            gather_and_scatter,
            softmax,
            normalisation,
            reduction,
            long_rows,
            selection,
            losses,
        )
    },
}


def _results_and_gradients(function, parameters, x):
    x = x.clone().requires_grad_()
    output = function(x)
    weights = torch.linspace(0.5, 1, output.numel(), device=x.device).view(output.shape)
    gradients = torch.autograd.grad((output * weights).sum(), [x, *parameters])
    return [output.detach(), *gradients]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_agree_with_eager_at_every_size(name):
    make, shape = CASES[name]
    function = make()
    parameters = []
    if isinstance(function, nn.Module):
        parameters = list(function.to("mps").parameters())
    compiled = torch.compile(function, dynamic=True)
    for n in (12, 33):
        x = torch.rand(shape(n)).to("mps")
        torch.testing.assert_close(
            _results_and_gradients(compiled, parameters, x),
            _results_and_gradients(function, parameters, x),
            rtol=2e-4,
            atol=1e-4,
        )


def test_dropout_drops_the_same_elements_backward():
    compiled = torch.compile(lambda x: F.dropout(x, 0.5))
    x = torch.ones(50, 40, device="mps", requires_grad=True)
    output = compiled(x)
    output.sum().backward()
    torch.testing.assert_close(x.grad, output.detach())
