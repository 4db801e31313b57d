"""Probes, by the name of a fault in metalops.fixes.FAULTS: each returns true if this machine has the fault now.

A probe computes on mps what it knows the result of, at the sizes and layouts of the report. Where a fault happens by
chance, it repeats that on a Mac until it would have happened with a probability of 99 %; on the software device, whose
planted faults are certain, it tries once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import _is_software

PROBES: dict[str, Callable[[], bool]] = {}


def _probe(name: str) -> Callable[[Callable[[], bool]], Callable[[], bool]]:
    def register(function: Callable[[], bool]) -> Callable[[], bool]:
        PROBES[name] = function
        return function

    return register


def _times() -> int:
    return 1 if _is_software else 20


def _surrounded(*shape: int) -> Tensor:
    """Returns ones, with large numbers in front of them and behind them in memory."""
    count = torch.Size(shape).numel()
    memory = torch.full((count + 2**17,), 1000.0, device="mps")
    memory[2**16 : 2**16 + count] = 1.0
    return memory[2**16 : 2**16 + count].view(shape)


@_probe("linear-bias-rows")
def linear_bias_rows() -> bool:
    rows = torch.arange(65_537 * 2.0).remainder(251).view(65_537, 2, 1).expand(-1, -1, 32)
    x, weight, bias = rows.to("mps"), torch.ones(64, 32, device="mps"), torch.ones(64, device="mps")
    expected = rows[..., :1].to("mps") * 32 + 1
    flat = torch.addmm(bias, x.reshape(-1, 32)[::2], weight.t())
    return not bool(
        (F.linear(x, weight, bias) == expected).all() and (flat == expected.view(-1, 1)[::2]).all()
    )


def _depth(product: Callable[[Tensor, Tensor], Tensor]) -> bool:
    for depth in (32_767, 32_769):
        a, b = _surrounded(2, 32, depth), _surrounded(2, depth, 32)
        if not bool((product(a, b) == depth).all()):
            return True
    return False


@_probe("bmm-depth")
def bmm_depth() -> bool:
    return _depth(torch.bmm)


@_probe("baddbmm-depth")
def baddbmm_depth() -> bool:
    return _depth(lambda a, b: torch.baddbmm(torch.zeros(1, device="mps"), a, b))


@_probe("baddbmm-beta")
def baddbmm_beta() -> bool:
    x = torch.ones(2, 3, 3, device="mps")
    added = torch.full((1, 1, 1), torch.nan, device="mps")
    return not bool((torch.baddbmm(added, x, x, beta=0) == 3).all())


@_probe("mm-allocation")
def mm_allocation() -> bool:
    a = torch.randn(50_000, 25, generator=torch.Generator().manual_seed(0))
    expected = (a.double().t() @ a.double()).float()
    for megabytes in (0, 1, 7, 64):
        torch.full((megabytes, 2**18), torch.pi, device="mps").sum().item()  # and free
        x = a.to("mps")
        for left in (x.t(), x.t().contiguous(), a.t().to("mps")):
            if not torch.allclose((left @ x).cpu(), expected, rtol=1e-3, atol=1.0):
                return True
    return False


@_probe("mm-out")
def mm_out() -> bool:
    x, out = torch.ones(4, 4, device="mps"), torch.zeros(4, 8, device="mps")
    torch.mm(x, x, out=out[:, ::2])
    return not bool((out[:, ::2] == 4).all())


@_probe("mm-empty")
def mm_empty() -> bool:
    for _ in range(8):
        torch.full((64, 64), 7.0, device="mps").sum().item()  # and free
        a, b = torch.empty(64, 0, device="mps"), torch.empty(0, 64, device="mps")
        if bool((torch.mm(a, b) != 0).any()):
            return True
    return False


@_probe("multinomial-zero")
def multinomial_zero() -> bool:
    rows, categories = (64, 2**17) if not _is_software else (4, 64)
    weights = torch.zeros(rows, categories, device="mps")
    weights[:, 7] = 1.0
    return any(bool((torch.multinomial(weights, 1) != 7).any()) for _ in range(_times()))


@_probe("multinomial-range")
def multinomial_range() -> bool:
    weights = torch.tensor([4e-4, 2e-7, 6e-7, 3e-5, 5e-5, 6e-3, 0.99348587, 5e-8, 5e-4, 3e-7])
    draws = 10**8 if not _is_software else 10**3
    drawn = torch.multinomial(weights.to("mps"), draws, True)
    return int(drawn.max()) > 9 or int(drawn.min()) < 0


@_probe("multinomial-large")
def multinomial_large() -> bool:
    weights = torch.zeros(2**20, device="mps")
    weights[-1] = 1
    return not bool((torch.multinomial(weights, 2, True) == 2**20 - 1).all())


@_probe("exponential-zero")
def exponential_zero() -> bool:
    numbers = torch.empty(2**23 if not _is_software else 2**10, device="mps")
    return any(bool((numbers.exponential_() <= 0).any()) for _ in range(_times()))


@_probe("adaptive-max-pool")
def adaptive_max_pool() -> bool:
    x = torch.arange(25.0).view(1, 1, 5, 5)
    expected = F.adaptive_max_pool2d(x, 3, return_indices=True)
    moved = x.to("mps").requires_grad_()
    try:
        actual = F.adaptive_max_pool2d(moved, 3, return_indices=True)
        actual[0].sum().backward()
    except RuntimeError:
        return True
    return not all(a.shape == e.shape and bool((a.cpu() == e).all()) for a, e in zip(actual, expected, strict=True))  # fmt: skip


@_probe("nanmedian-rank")
def nanmedian_rank() -> bool:
    x = torch.arange(24.0, device="mps").view(2, 1, 3, 2, 2)
    return not all(
        torch.equal(function(x, 0).values, x[0]) for function in (torch.nanmedian, torch.median)
    )


@_probe("sort-rank")
def sort_rank() -> bool:
    x = torch.arange(24.0, device="mps").view(2, 1, 3, 2, 2)
    return not torch.equal(torch.sort(x, 0, descending=True).values, x.flip(0))


@_probe("topk-rank")
def topk_rank() -> bool:
    x = torch.arange(24.0, device="mps").view(2, 1, 3, 2, 2)
    return not torch.equal(torch.topk(x, 1, 0).values, x[1:])


@_probe("cumulative-rank")
def cumulative_rank() -> bool:
    x = torch.ones(2, 1, 3, 2, 2, device="mps")
    sums, products = torch.cumsum(x, 0), torch.cumprod(x * 2, 0)
    return not (bool((sums[1] == 2).all()) and bool((products[1] == 4).all()))


@_probe("sum-axis")
def sum_axis() -> bool:
    return not bool((torch.ones(1, 2, 1, 1, 1, device="mps").sum(2) == 1).all())


@_probe("sum-saturates")
def sum_saturates() -> bool:
    ones = torch.ones(300, dtype=torch.uint8, device="mps")
    return int(ones.sum(dtype=torch.uint8)) != 300 % 256


@_probe("grid-sample-empty")
def grid_sample_empty() -> bool:
    x, grid = torch.ones(1, 1, 2, 2, device="mps"), torch.ones(1, 1, 0, 2, device="mps")
    try:
        return F.grid_sample(x, grid, align_corners=True).shape != (1, 1, 1, 0)
    except RuntimeError:
        return True


def _is_moved(x: Tensor, grid: Tensor, **options: str) -> bool:
    """Compares samples at the centers of pixels with the CPU's."""
    result = F.grid_sample(x.to("mps"), grid.to("mps"), align_corners=True, **options).cpu()
    return not torch.allclose(result, F.grid_sample(x, grid, align_corners=True, **options), atol=1e-3)  # fmt: skip


@_probe("grid-sample-channels-last")
def grid_sample_channels_last() -> bool:
    grid = F.affine_grid(torch.eye(2, 3)[None], [1, 64, 16, 16], align_corners=True)
    x = _small_integers(1, 64, 16, 16).to(memory_format=torch.channels_last)
    return _is_moved(x, grid)


@_probe("grid-sample-strided-grid")
def grid_sample_strided_grid() -> bool:
    grid = F.affine_grid(torch.eye(3, 4)[None], [1, 2, 4, 5, 6], align_corners=True)
    grid = grid.movedim(-1, 1).contiguous().movedim(1, -1)
    return _is_moved(_small_integers(1, 2, 4, 5, 6), grid)


@_probe("grid-sample-border")
def grid_sample_border() -> bool:
    grid = F.affine_grid(torch.eye(2, 3)[None] * 2, [1, 2, 4, 5], align_corners=True)
    try:
        return _is_moved(_small_integers(1, 2, 4, 5), grid, padding_mode="border")
    except RuntimeError:
        return True


@_probe("batch-norm-mixed")
def batch_norm_mixed() -> bool:
    x = torch.full((2, 3, 4), 3.0, dtype=torch.float16, device="mps")
    mean = torch.ones(3, device="mps")
    return not bool((F.batch_norm(x, mean, mean, eps=0.0) == 2).all())


@_probe("batch-norm-gradient")
def batch_norm_gradient() -> bool:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, 8, 8, generator=generator).to(memory_format=torch.channels_last)
    grads = []
    for device in ("cpu", "mps"):
        moved = x.to(device).requires_grad_()
        weight = torch.ones(3, device=device, requires_grad=True)
        result = F.batch_norm(moved, None, None, weight, training=True)
        grads.append(torch.autograd.grad(result.pow(3).sum(), (moved, weight)))
    return not all(torch.allclose(a, e.cpu(), rtol=1e-3, atol=1e-3) for a, e in zip(*grads, strict=True))  # fmt: skip


@_probe("batch-norm-offset")
def batch_norm_offset() -> bool:
    memory = torch.full((5 * 16,), 7.0, device="mps")
    memory[16:] = 3.0
    x = memory[16:].view(1, 2, 2, 16).permute(0, 3, 1, 2)
    mean = torch.ones(16, device="mps")
    return not bool((F.batch_norm(x, mean, mean, eps=0.0) == 2).all())


@_probe("layer-norm-mixed")
def layer_norm_mixed() -> bool:
    x, weight = torch.tensor([[-1.0, 1.0]] * 3), torch.tensor([2.0, 3.0])
    expected = torch.tensor([[0.0, 6.0]] * 3)
    for dtype in (torch.float16, torch.bfloat16):
        result = F.layer_norm(x.to("mps", dtype), (2,), weight.to("mps"), weight.to("mps"), 0.0)
        if not torch.equal(result.cpu().float(), expected):
            return True
    return False


@_probe("addcmul-strided")
def addcmul_strided() -> bool:
    ones = torch.ones(4, 4, device="mps")
    wrong = False
    for update in (Tensor.addcmul_, Tensor.addcdiv_):
        x = torch.zeros(4, 8, device="mps")[:, ::2].t()
        wrong |= not bool((update(x, ones, ones) == 1).all())
    return wrong


@_probe("index-fill-bounds")
def index_fill_bounds() -> bool:
    memory = torch.zeros(64, device="mps")
    try:
        memory[:32].index_fill_(0, torch.tensor([40], device="mps"), 7.0)
        torch.mps.synchronize()
    except (IndexError, RuntimeError):
        return False
    return True


@_probe("index-copy-bounds")
def index_copy_bounds() -> bool:
    memory = torch.zeros(64, device="mps")
    try:
        memory[:32].index_copy_(
            0, torch.tensor([40], device="mps"), torch.tensor([7.0], device="mps")
        )
        torch.mps.synchronize()
    except (IndexError, RuntimeError):
        return False
    return True


@_probe("bool-accumulate")
def bool_accumulate() -> bool:
    index, ones = torch.tensor([0, 2], device="mps"), torch.ones(2, dtype=torch.bool, device="mps")
    wrong = False
    for add in (Tensor.scatter_add_, Tensor.index_add_):
        memory = torch.zeros(8, dtype=torch.bool, device="mps")
        add(memory[3:7], 0, index, ones)
        wrong |= memory.nonzero().flatten().tolist() != [3, 5]
    return wrong


@_probe("index-add-complex")
def index_add_complex() -> bool:
    index = torch.zeros(2, dtype=torch.int64, device="mps")
    x = torch.zeros(3, dtype=torch.complex64, device="mps")
    return x.index_add_(0, index, torch.full((2,), 2j, device="mps"))[0].item() != 4j


@_probe("scatter-narrow")
def scatter_narrow() -> bool:
    x = torch.zeros(10, 100, 1, device="mps")
    index = torch.arange(20, device="mps").view(10, 2, 1)
    return float(x.scatter_(1, index, 1.0).sum()) != 20


def _bags(index: list[int], offsets: list[int], weight: Tensor, **options: bool) -> Tensor:
    return F.embedding_bag(
        torch.tensor(index, device="mps"),
        weight,
        torch.tensor(offsets, device="mps"),
        mode="sum",
        **options,
    )


@_probe("embedding-bag-last-offset")
def embedding_bag_last_offset() -> bool:
    weight = torch.arange(4.0, device="mps")[:, None]
    return _bags([1, 2, 3], [0, 2], weight, include_last_offset=True).item() != 3


@_probe("embedding-bag-frequency")
def embedding_bag_frequency() -> bool:
    weight = torch.ones(4, 3, device="mps", requires_grad=True)
    result = _bags([1, 1], [0], weight, scale_grad_by_freq=True)
    (grad,) = torch.autograd.grad(result.sum(), weight)
    return not bool((grad[1] == 1).all())


@_probe("embedding-bag-bounds")
def embedding_bag_bounds() -> bool:
    memory = torch.ones(6, 3, device="mps")
    try:
        _bags([5], [0], memory[:5])
        torch.mps.synchronize()
    except (IndexError, RuntimeError):
        return False
    return True


def _is_convolution_wrong(x: Tensor, weight: Tensor, groups: int = 1) -> bool:
    """Compares sums of small integers, which are exact."""
    convolve = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.dim()]
    result = convolve(x.to("mps"), weight, groups=groups)
    return not torch.equal(result.cpu(), convolve(x, weight.cpu(), groups=groups))


def _small_integers(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).remainder(7).float().view(shape)


@_probe("convolution-strided-weight")
def convolution_strided_weight() -> bool:
    weight = _small_integers(3, 128, 3, 3, 3).to("mps")[:, :, 1]
    return _is_convolution_wrong(_small_integers(2, 128, 8, 8), weight)


@_probe("convolution-wide-filter")
def convolution_wide_filter() -> bool:
    weight = _small_integers(16, 1, 256, 1).to("mps")
    return _is_convolution_wrong(_small_integers(4, 8, 256, 6), weight, groups=8)


@_probe("convolution-channels")
def convolution_channels() -> bool:
    weight = _small_integers(65_537, 1, 3).to("mps")
    try:
        return _is_convolution_wrong(_small_integers(1, 1, 3), weight)
    except NotImplementedError:
        return True


@_probe("convolution-3d")
def convolution_3d() -> bool:
    weight = _small_integers(32, 32, 3, 3, 3).to("mps")
    return _is_convolution_wrong(_small_integers(1, 32, 5, 9, 9), weight)


@_probe("histogram-range")
def histogram_range() -> bool:
    x = torch.tensor([-1e-7, 0.5, 1.0000001], device="mps")
    edges = torch.tensor([0.0, 1.0], device="mps")
    counts = (
        torch.histc(x, 4, 0, 1),
        torch.histogram(x, 4, range=(0.0, 1.0)).hist,
        torch.histogram(x, edges).hist,
    )
    return any(float(each.sum()) != 1 for each in counts)


@_probe("histogram-bins")
def histogram_bins() -> bool:
    x = torch.tensor([0.0, 0.5, 1.0], device="mps")
    return float(torch.histc(x, 2**14, 0, 1).sum()) != 3


@_probe("histc-integers")
def histc_integers() -> bool:
    try:
        x = torch.tensor([0, 1, 2, 1], dtype=torch.int32, device="mps")
        return torch.histc(x, 3, 0, 2).tolist() != [1, 2, 1]
    except (NotImplementedError, RuntimeError):
        return True


@_probe("argsort-large")
def argsort_large() -> bool:
    columns = 2**22 + 1 if not _is_software else 4097
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(0)).to("mps")
    ordered = x.gather(0, x.argsort(dim=0))
    return not bool((ordered[:-1] <= ordered[1:]).all())


@_probe("sort-strided")
def sort_strided() -> bool:
    x = torch.tensor([[3.0, 1.0], [4.0, 2.0]], device="mps").t()
    values, indices = x.sort(dim=0)
    return not (torch.equal(values, x.flip(0)) and indices.tolist() == [[1, 1], [0, 0]])


@_probe("unique-large")
def unique_large() -> bool:
    keys = 2**24 + torch.tensor([3, 0, 1, 1, 2, 0, 5], device="mps")
    values, inverse = torch.unique(keys, return_inverse=True)
    return len(values) != 5 or not torch.equal(values[inverse], keys)


@_probe("unique-counts")
def unique_counts() -> bool:
    elements = 2**20 if not _is_software else 2**19 + 1
    x = torch.arange(elements).remainder(2)
    expected = torch.tensor([elements - elements // 2, elements // 2])
    for _ in range(_times()):
        _, counts = torch.unique(x.to("mps"), return_counts=True)
        if not torch.equal(counts.cpu(), expected):
            return True
    return False


@_probe("copy-pageable")
def copy_pageable() -> bool:
    for _ in range(_times()):
        source = torch.ones(2**22)
        copy = source.to("mps", non_blocking=True)
        source.zero_()
        if not bool((copy == 1).all()):
            return True
    return False
