"""Sample tensors on the CPU: every memory layout, shape and special value that an operator may encounter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._torch.internals import negative_view, pytree

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class Case:
    """The arguments of one call, on the CPU.

    precise: True if a reference in float64 gives the expected values. False for operands at the limits of their range,
    where the result depends on the precision in which it is computed.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    precise: bool = True

    def __str__(self) -> str:
        return self.name


def make(
    shape: Sequence[int],
    dtype: torch.dtype,
    *,
    low: float | None = None,
    high: float | None = None,
    seed: int = 0,
) -> Tensor:
    """Returns a random tensor on the CPU, uniform in [low, high]; by default [-5, 5], for unsigned integers [0, 10]."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator).bool()
    low = -5 if low is None else low
    high = 5 if high is None else high
    if dtype.is_complex:
        parts = torch.rand(*shape, 2, generator=generator, dtype=torch.float64) * (high - low) + low
        return torch.view_as_complex(parts).to(dtype)
    if dtype.is_floating_point:
        values = torch.rand(tuple(shape), generator=generator, dtype=torch.float64)
        return (values * (high - low) + low).to(dtype)
    if not dtype.is_signed and low < 0:
        low, high = 0, high - low
    return torch.randint(
        math.ceil(low), math.floor(high) + 1, tuple(shape), generator=generator
    ).to(dtype)


def layouts(
    dtype: torch.dtype, *, low: float | None = None, high: float | None = None, seed: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """Yields tensors of all memory layouts and sizes, each with a name."""
    seeds = itertools.count(seed * 1000)

    def sample(*shape: int) -> Tensor:
        return make(shape, dtype, low=low, high=high, seed=next(seeds))

    yield "contiguous", sample(6, 7, 5)
    yield "transposed", sample(7, 6).t()
    yield "permuted 5-d", sample(2, 3, 4, 3, 2).permute(3, 0, 4, 2, 1)
    yield "slice with offset", sample(6, 9)[1:5, 2:7]
    yield "offset", sample(40)[7:]
    yield "step 2", sample(67)[::2]
    yield "step 2 in the last dimension", sample(5, 22)[:, 1::2]
    yield "step 2 in the first dimension", sample(10, 12)[1::2]
    yield "expanded", sample(1, 7).expand(5, 7)
    yield "expanded in the last dimension", sample(5, 1).expand(5, 7)
    yield "expanded from one", sample(1).expand(40)
    yield "channels_last", sample(2, 3, 4, 6).to(memory_format=torch.channels_last)
    yield "0-d", sample()
    yield "empty", sample(0)
    yield "empty 3-d", sample(3, 0, 2)
    yield "one element", sample(1)
    yield "one element 3-d", sample(1, 1, 1)
    yield "28 elements", sample(28)
    yield "33 elements", sample(33)
    yield "1024 elements", sample(1024)
    yield "many threadgroups", sample(5003)
    yield "many threadgroups 2-d", sample(90, 71).t()
    # Odd strides keep TensorIterator from merging dimensions.
    yield "10-d", sample(200).as_strided((2,) * 10, tuple(range(1, 20, 2)), 3)
    yield "16-d", sample(300).as_strided((2,) * 16, tuple(range(1, 32, 2)), 5)
    if dtype.is_complex:
        yield "conjugated view", sample(6, 7).conj()
        yield "conjugated view, transposed", sample(7, 6).t().conj()


def special_values(dtype: torch.dtype) -> Tensor:
    """Returns, in one dimension: NaN, infinities, both zeros, denormals and limits; for integers their limits and
    numbers that float64 cannot represent; for complex numbers these in either part with zero in the other, and numbers
    at the limits of being finite in both parts."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_complex:
        real = special_values(dtype.to_real()).double()
        zero = torch.zeros_like(real)
        both = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, torch.finfo(dtype).max]
        pairs = torch.cartesian_prod(*[torch.tensor(both, dtype=torch.float64)] * 2)
        parts = torch.cat([torch.stack([real, zero], 1), torch.stack([zero, real], 1), pairs])
        return torch.view_as_complex(parts).to(dtype)
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        values = [
            math.nan,
            math.inf,
            0.0,
            info.tiny,
            info.smallest_normal / 4,
            info.max,
            info.eps,
            1.0,
        ]
        values += [-x for x in values[1:]] + [0.5, -0.5, 10.0, -10.0, 100.0, -100.0]
        return torch.tensor(values, dtype=torch.float64).to(dtype)
    info = torch.iinfo(dtype)
    values = [info.min, info.max, info.max - 1, 0, 1, 2, 16, 100]
    if info.min < 0:
        values += [-1, -2, -16]
    if info.bits == 64:
        values += [2**53 + 1, -(2**53) - 1, 2**31, 2**32 + 1]
    return torch.tensor(values, dtype=dtype)


def elementwise_cases(
    arity: int,
    dtype: torch.dtype,
    *,
    low: float | None = None,
    high: float | None = None,
    promote: bool = True,
    specials: bool = True,
) -> Iterator[Case]:
    """Yields calls of an elementwise operator with ``arity`` tensor operands.

    All memory layouts, in all operands and in one of them; broadcasting; promoted dtypes, if ``promote``; special
    values, if ``specials``. low, high: the range of the operands, for complex dtypes of both parts.
    """

    def sample(*shape: int, dtype: torch.dtype = dtype, seed: int) -> Tensor:
        return make(shape, dtype, low=low, high=high, seed=seed)

    in_all = [layouts(dtype, low=low, high=high, seed=i) for i in range(arity)]
    for variants in zip(*in_all, strict=True):
        name, first = variants[0]
        yield Case(name, tuple(x for _, x in variants))
        for place in range(arity if arity > 1 and first.numel() < 10_000 else 0):
            others = [sample(*first.shape, seed=90 + i) for i in range(arity)]
            others[place] = first
            yield Case(f"{name} in operand {place}", tuple(others))
    if arity > 1:
        yield from _broadcast_cases(arity, sample)
    if promote and arity > 1:
        yield from _promoted_cases(arity, dtype, sample)
    if specials:
        yield from _special_cases(arity, dtype)


def _broadcast_cases(arity: int, sample) -> Iterator[Case]:
    shapes = {
        "row": ((5, 7), (7,)),
        "column": ((5, 7), (5, 1)),
        "outer product": ((5, 1), (1, 7)),
        "0-d": ((5, 7), ()),
        "one element": ((5, 7), (1,)),
        "middle": ((3, 1, 4), (2, 1)),
        "empty": ((0, 3), (1, 3)),
    }
    for name, pair in shapes.items():
        for flipped in (False, True):
            first, second = reversed(pair) if flipped else pair
            operands = [sample(*first, seed=50), sample(*second, seed=51)]
            operands += [sample(*first, seed=52)] * (arity - 2)
            yield Case(f"broadcast {name}{', flipped' if flipped else ''}", tuple(operands))


def _promoted_cases(arity: int, dtype: torch.dtype, sample) -> Iterator[Case]:
    for other in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
    ):
        if other == dtype:
            continue
        for place in range(arity):
            operands = [sample(33, seed=60 + i) for i in range(arity)]
            operands[place] = sample(33, dtype=other, seed=70)
            yield Case(f"{other} in operand {place}", tuple(operands))
            operands[place] = sample(66, dtype=other, seed=71)[::2]
            yield Case(f"{other} step 2 in operand {place}", tuple(operands))
            # It is unspecified if an operand without dimensions is rounded to the common dtype first.
            operands[place] = sample(dtype=torch.int64, seed=72).abs().to(other)
            yield Case(f"0-d {other} in operand {place}", tuple(operands))


def _special_cases(arity: int, dtype: torch.dtype) -> Iterator[Case]:
    values = special_values(dtype)
    grids = torch.meshgrid(*[values] * min(arity, 2), indexing="ij")
    operands = [grid.reshape(-1).clone() for grid in grids]
    while len(operands) < arity:
        operands.append(operands[0].roll(len(values) // 2 + 1))
    yield Case("special values", tuple(operands), precise=False)
    yield Case("special values strided", tuple(_with_step(x) for x in operands), precise=False)


def _with_step(x: Tensor) -> Tensor:
    return torch.stack([x, x], dim=1)[:, 0]


def _same_layout(tensor: Tensor, device: torch.device | str) -> Tensor:
    if tensor.is_sparse:
        return tensor.to(device, copy=True)
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    copy = storage.to(device).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    copy = copy.conj() if tensor.is_conj() else copy
    return negative_view(copy) if tensor.is_neg() else copy


def to_device(tree: Any, device: torch.device | str) -> Any:
    """Returns copies of all tensors in a tree of containers, with their strides, storage offsets and overlaps; lazily
    conjugated or negated views stay such views.

    Tensors that share a storage do not share one afterwards. ``requires_grad`` is kept.
    """
    return pytree.tree_map_only(
        Tensor,
        lambda x: _same_layout(x.detach(), device).requires_grad_(x.requires_grad),
        tree,
    )
