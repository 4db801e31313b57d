"""Operands of elementwise operators at random: permuted, broadcast, with gaps and misaligned."""

import math
import random

import torch

_SIZES = (1, 2, 3, 4, 7, 8, 24, 31, 32, 33, 48, 64, 65, 96, 128, 130, 260)
_LARGE = (31, 32, 48, 60, 63, 64, 96, 120, 125, 128, 190)


def operands(seed: int, dtype: torch.dtype, device: str, count: int, most: int) -> list:
    """Tensors that broadcast to one shape of at most so many elements. Their elements are small whole numbers, so that products
    and sums of a few are exact in all dtypes."""
    chance = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    if chance.random() < 0.6:  # matrices, of which there may be several
        shape = [chance.choice(_LARGE), chance.choice(_LARGE)]
        shape += [chance.choice((1, 2, 3, 5)) for _ in range(chance.randint(0, 2))]
        chance.shuffle(shape)
    else:
        shape = [chance.choice(_SIZES) for _ in range(chance.randint(1, 5))]
    while math.prod(shape) > most:
        shape[shape.index(max(shape))] //= 2
    return [_operand(chance, generator, shape, dtype, device) for _ in range(count)]


def _operand(chance, generator, shape, dtype, device):
    sizes = [1 if chance.random() < 0.1 else n for n in shape]
    steps = [2 if chance.random() < 0.1 else 1 for _ in shape]
    gaps = [chance.choice((1, 4)) if chance.random() < 0.15 else 0 for _ in shape]
    order = list(range(len(shape)))
    if chance.random() < 0.7:
        chance.shuffle(order)
    stored = [sizes[d] * steps[d] + gaps[d] for d in order]
    first = chance.choice((0, 0, 0, 1, 4))
    flat = torch.randint(-4, 5, (first + math.prod(stored),), generator=generator)
    x = flat.to(dtype).to(device)[first:].view(stored)
    x = x.permute([order.index(d) for d in range(len(shape))])
    for d, (size, step, gap) in enumerate(zip(sizes, steps, gaps, strict=True)):
        x = x.narrow(d, gap, size * step)[(slice(None),) * d + (slice(None, None, step),)]
    if chance.random() < 0.2:  # strides of zero
        x = x.expand(shape)
    return x


def strides(x: torch.Tensor) -> list[int]:
    """Those that matter."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
