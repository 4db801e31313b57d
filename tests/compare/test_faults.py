"""metalops.debug.compare() finds each fault that users reported in a small transformer, and names module and operator."""

import metalops
import pytest
import torch
from metalops.debug import compare
from metalops.testing.faults import FAULTS, planted, replaced
from torch import nn

pytestmark = pytest.mark.skipif(
    not metalops._is_software, reason="faults are planted in the stand-ins of the software device"
)

HIDDEN, HEADS = 16, 2


class Attention(nn.Module):
    """Scores by baddbmm into memory that is not initialised, as in several published models."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x):
        rows = x.shape[0]
        q, k, v = self.qkv(x).view(rows, 3, HEADS, -1).permute(1, 2, 0, 3)
        memory = torch.full((HEADS, rows, rows), torch.nan, device=x.device)
        scores = torch.baddbmm(memory, q, k.mT, beta=0, alpha=HIDDEN**-0.5)
        mixed = torch.bmm(scores.softmax(-1), v)
        return self.out(mixed.transpose(0, 1).reshape(rows, HIDDEN))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.self_attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 32), nn.GELU(), nn.Linear(32, HIDDEN))

    def forward(self, x):
        x = x + self.self_attn(self.norm(x))
        return x + self.mlp(x)


class Head(nn.Module):
    """Logits in every other column of a buffer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HIDDEN, 8))

    def forward(self, x):
        buffer = torch.zeros(x.shape[0], 16, device=x.device)
        with torch.no_grad():
            torch.mm(x, self.weight, out=buffer[:, ::2])
        return buffer[:, ::2] + torch.mm(x, self.weight) * 0.5


class Sampler(nn.Module):
    """Draws by the largest of exponential races, and by multinomial from the best two."""

    def forward(self, logits):
        best = logits.detach().nan_to_num().softmax(-1)
        best = torch.where(best >= best.topk(2).values[:, -1:], best, 0.0)
        races = torch.empty_like(best).exponential_()
        return best.multinomial(1), races


class Average(nn.Module):
    """A running average in the layout of a transposed weight."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.ones(8, HIDDEN).t())

    def forward(self, weight):
        return self.average.addcmul_(weight.detach(), weight.detach(), value=0.1)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head, self.sampler, self.average = Head(), Sampler(), Average()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)
        self.average(self.head.weight)
        return logits, self.sampler(logits)


# The module and the operator that the first difference is in.
WHERE = {
    "linear-bias-rows": ("layers.0.self_attn.qkv", "aten::addmm"),
    "bmm-depth": ("layers.0.self_attn", "aten::bmm"),
    "baddbmm-depth": ("layers.0.self_attn", "aten::baddbmm"),
    "baddbmm-beta": ("layers.0.self_attn", "aten::baddbmm"),
    "mm-allocation": ("head", "aten::mm"),
    "mm-out": ("head", "aten::mm.out"),
    "multinomial-zero": ("sampler", "aten::multinomial"),
    "exponential-zero": ("sampler", "aten::exponential_"),
    "addcmul-strided": ("average", "aten::addcmul_"),
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = Transformer().to("mps")
    # A copy to the device makes it contiguous.
    model.average.average = torch.ones(8, HIDDEN, device="mps").t()
    return model


def differences(model):
    x = torch.randn(6, HIDDEN, device="mps")
    with compare(halt=False) as comparison:
        logits, _ = model(x)
        logits.square().mean().backward()
    assert comparison.compared > 60
    return comparison.differences


def test_nothing_is_found_where_there_is_no_fault(model):
    assert differences(model) == []


def _frequencies():
    weight = torch.ones(4, 2, device="mps", requires_grad=True)
    bags = torch.tensor([[1, 1]], device="mps")
    nn.functional.embedding_bag(bags, weight, mode="sum", scale_grad_by_freq=True).sum().backward()


def _images(dims):
    """Two images and a weight of eight channels."""
    return (
        torch.randn(2, 3, *dims * [7], device="mps"),
        torch.randn(8, 3, *dims * [4], device="mps"),
    )


# Calls of the other faults.
ELSEWHERE = {
    "mm-empty": lambda: torch.mm(torch.ones(2, 0, device="mps"), torch.ones(0, 3, device="mps")),
    "adaptive-max-pool": lambda: nn.functional.adaptive_max_pool2d(torch.arange(25.0, device="mps").view(1, 5, 5), 3),
    "argsort-large": lambda: torch.arange(30.0, device="mps").view(3, 10).argsort(0),
    "batch-norm-gradient": lambda: nn.functional.batch_norm(_images(2)[0].to(memory_format=torch.channels_last).requires_grad_(), None, None, training=True).square().mul(torch.rand(7, device="mps")).sum().backward(),
    "batch-norm-offset": lambda: nn.functional.batch_norm(torch.rand(3, 5, 5, 4, device="mps")[1:].permute(0, 3, 1, 2), torch.rand(4, device="mps"), torch.ones(4, device="mps")),
    "bool-accumulate": lambda: torch.zeros(8, dtype=torch.bool, device="mps")[1:5].index_add_(0, torch.tensor([1], device="mps"), torch.ones(1, dtype=torch.bool, device="mps")),
    "convolution-3d": lambda: nn.functional.conv3d(*_images(3)),
    "convolution-channels": lambda: nn.functional.conv2d(*_images(2)),
    "convolution-strided-weight": lambda: nn.functional.conv2d(_images(2)[0], _images(3)[1][:, :, 1]),
    "convolution-wide-filter": lambda: nn.functional.conv2d(*_images(2)),
    "copy-pageable": lambda: torch.empty(2**10, device="mps").copy_(torch.ones(2**10), non_blocking=True),
    "embedding-bag-frequency": lambda: _frequencies(),
    "grid-sample-channels-last": lambda: nn.functional.grid_sample(_images(2)[0].to(memory_format=torch.channels_last), torch.rand(2, 5, 5, 2, device="mps"), align_corners=True),
    "grid-sample-strided-grid": lambda: nn.functional.grid_sample(_images(3)[0], torch.rand(2, 3, 2, 4, 5, device="mps").movedim(1, -1), align_corners=True),
    "histogram-range": lambda: torch.histc(torch.tensor([0.5, 1.0000001], device="mps"), 4, 0, 1),
    "index-add-complex": lambda: torch.zeros(2, dtype=torch.complex64, device="mps").index_add_(0, torch.tensor([1], device="mps"), torch.full((1,), 1j, device="mps")),
    "layer-norm-mixed": lambda: nn.functional.layer_norm(torch.rand(3, 8, device="mps").half(), (8,), torch.rand(8, device="mps")),
    "multinomial-range": lambda: torch.rand(2, 4, device="mps").multinomial(3, True),
    "sort-strided": lambda: torch.arange(30.0, device="mps").view(3, 10).neg().t().sort(0),
    "sum-axis": lambda: torch.ones(2, 1, 3, 1, 2, device="mps").sum(0),
    "sum-saturates": lambda: torch.full((3,), 100, dtype=torch.uint8, device="mps").sum(0, dtype=torch.uint8),
    "unique-counts": lambda: torch.unique(torch.arange(9, device="mps") % 2, return_counts=True),
    "unique-large": lambda: torch.unique(2**24 + torch.arange(5, device="mps"), return_inverse=True),
}  # fmt: skip
# The process ends, the operator raises, or the CPU does for such arguments; or the CPU is wrong in float64, too.
NOT_COMPARED = {
    "nanmedian-rank", "sort-rank", "topk-rank", "cumulative-rank", "grid-sample-empty", "index-fill-bounds",
    "index-copy-bounds", "scatter-narrow", "embedding-bag-bounds", "multinomial-large",
    "embedding-bag-last-offset", "grid-sample-border", "batch-norm-mixed", "histogram-bins", "histc-integers",
}  # fmt: skip


def test_every_fault_has_its_place_in_the_model():
    assert set(FAULTS) == {*WHERE, *ELSEWHERE, *NOT_COMPARED}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_faults_outside_of_the_model_are_found(name):
    limit = 4 if FAULTS[name].limit else None
    with compare(halt=False) as comparison:
        ELSEWHERE[name]()
        assert comparison.differences == []
        with planted(name, limit=limit):
            ELSEWHERE[name]()
    assert comparison.differences


@pytest.mark.parametrize("name", WHERE)
def test_each_fault_is_found_where_it_is(name, model):
    with planted(name, limit=4):
        first = differences(model)[0]
    assert (first.module, first.operator) == WHERE[name]
    assert not first.backward


# Small calls that are wrong with the fault's own limit, or right below it.
OWN_LIMITS = {
    "linear-bias-rows": lambda n: torch.addmm(torch.ones(1, device="mps"), torch.arange(1.0, n + 1, device="mps")[:, None], torch.ones(1, 1, device="mps")),
    "bmm-depth": lambda n: torch.bmm(torch.ones(1, 1, n, device="mps"), torch.ones(1, n, 1, device="mps")),
    "baddbmm-depth": lambda n: torch.baddbmm(torch.ones(1, device="mps"), torch.ones(1, 1, n, device="mps"), torch.ones(1, n, 1, device="mps")),
    "mm-allocation": lambda n: torch.mm(torch.ones(1, n, device="mps"), torch.ones(n, 1, device="mps")),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN_LIMITS)
def test_faults_begin_where_they_were_reported(name):
    limit = FAULTS[name].limit
    first = limit + 1 if name == "linear-bias-rows" else limit
    with planted(name), compare(halt=False) as comparison:
        OWN_LIMITS[name](first - 1)
        assert comparison.differences == []
        OWN_LIMITS[name](first)
    assert len(comparison.differences) == 1


def test_faults_end_with_the_block():
    a = torch.ones(3, 3, device="mps")
    with planted("mm-allocation", limit=1):
        assert not torch.equal(a @ a, a * 3)
    assert torch.equal(a @ a, a * 3)


def test_kernels_are_replaced_one_over_the_other():
    """The kernel that a fault is put before is the one that the operator has again."""
    x = torch.ones(3, device="mps")
    with replaced("sin", lambda kernel, x: kernel(x) + 1), replaced("sin", lambda kernel, x: kernel(x) * 2):  # fmt: skip
        torch.testing.assert_close(x.sin(), (x.cpu().sin() + 1).to("mps") * 2)
    torch.testing.assert_close(x.sin().cpu(), x.cpu().sin())


def test_unknown_faults_are_rejected():
    with pytest.raises(ValueError, match="no fault 'nonsense'; there are linear-bias-rows"):
        with planted("nonsense"):
            pass
