"""Random operators. The CPU draws other numbers than mps from the same seed, so results are not compared; for some
operators there is still something that all results have, whatever was drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._torch.internals import OpOverload
from .differences import Mismatch


def is_random(func: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def has_properties(func: OpOverload) -> bool:
    """Returns true if results of this random operator can be checked."""
    return func.name() in _PROPERTIES


def check(func: OpOverload, args: tuple, kwargs: dict[str, Any], results: list) -> Mismatch | None:
    """Returns what is wrong with the results of a random operator, or None. All are on the CPU; the arguments are those
    after the call."""
    return _PROPERTIES[func.name()](*args, results=results, **kwargs)


def _every(right: Tensor, found: Tensor, problem: str) -> Mismatch | None:
    wrong = ~right
    if not bool(wrong.any()):
        return None
    place = tuple(wrong.nonzero()[0].tolist())
    return Mismatch(problem, int(wrong.sum()), wrong.numel(), place, found[place].item())


def _multinomial(weights, count, replacement=False, *, results, **_) -> Mismatch | None:
    drawn = results[0]
    if drawn.shape != (*weights.shape[:-1], count):
        return Mismatch(f"shape {tuple(drawn.shape)} of {count} categories")
    categories = weights.shape[-1]
    found = _every((drawn >= 0) & (drawn < categories), drawn, f"there are {categories} categories")
    if found is not None:
        return found
    chances = weights.double().gather(-1, drawn)
    found = _every(chances > 0, drawn, "the category has probability 0")
    if found is not None or replacement or count < 2:
        return found
    ordered = drawn.sort(-1).values
    again = ordered[..., 1:] == ordered[..., :-1]
    return _every(~again, ordered[..., 1:], "drawn twice without replacement")


def _native_dropout(x, p, train, *, results, **_) -> Mismatch | None:
    y, mask = results
    if not (train is None or train):
        return _every(y == x, y, "dropout in evaluation changes elements")
    kept = x.double() / (1 - p) if p < 1 else torch.zeros_like(x, dtype=torch.float64)
    expected = torch.where(mask.bool(), kept, 0.0)
    eps = torch.finfo(x.dtype).eps
    close = torch.isclose(y.double(), expected, rtol=4 * eps, atol=4 * eps, equal_nan=True)
    return _every(close, y, "neither 0 nor the element scaled, as the mask has it")


def _each(right: Callable[[Tensor], Tensor], problem: str) -> Callable[..., Mismatch | None]:
    def check(x, *_, results, **__) -> Mismatch | None:
        return _every(right(results[0]), results[0], problem)

    return check


def _uniform(x, low=0.0, high=1.0, *, results, **_) -> Mismatch | None:
    y = results[0]
    # The end itself may come out of rounding.
    return _every((y >= low) & (y <= high), y, f"not between {low} and {high}")


def _bernoulli(x, p=None, *, results, **_) -> Mismatch | None:
    y = results[0]
    chance = x if p is None or isinstance(p, torch.Generator) else p
    right = (y == 0) | (y == 1)
    if isinstance(chance, Tensor):
        chance = chance.expand(y.shape)
    right &= torch.logical_not((y == 1) & torch.as_tensor(chance == 0))
    right &= torch.logical_not((y == 0) & torch.as_tensor(chance == 1))
    return _every(right, y, "neither 0 nor 1, or one that has no chance")


def _permutation(n, *, results, **_) -> Mismatch | None:
    drawn = results[0]
    expected = torch.arange(n, dtype=drawn.dtype)
    return _every(drawn.sort().values == expected, drawn, f"no permutation of {n} numbers")


_exponential = _each(lambda y: (y > 0) & y.isfinite(), "not positive and finite")
_normal = _each(lambda y: y.isfinite(), "not finite")

_PROPERTIES: dict[str, Callable[..., Mismatch | None]] = {
    "aten::multinomial": _multinomial,
    "aten::native_dropout": _native_dropout,
    "aten::uniform_": _uniform,
    "aten::exponential_": _exponential,
    "aten::normal_": _normal,
    "aten::bernoulli": _bernoulli,
    "aten::bernoulli_.float": _bernoulli,
    "aten::bernoulli_.Tensor": _bernoulli,
    "aten::randperm": _permutation,
    "aten::randperm.generator": lambda n, generator=None, *, results, **_: _permutation(
        n, results=results
    ),
}
