"""Calls operators on mps with arguments that are spoilt: python -m tests.fuzz.arguments [--seed N] [--count N]

A call (see calls.py) gets one or two arguments of another size, dtype, device, layout or value. It must then work, or
raise one of the exceptions that torch raises for wrong arguments: what ends the process, breaks an assertion of a
program's own or raises something else is a fault. Each seed is printed before its call: the last one is that of a call
that ended the process.
"""

from __future__ import annotations

import argparse
import random
import sys
from typing import Any

import metalops  # noqa: F401
import torch
from torch import Tensor

from .calls import Call, random_call

# OverflowError: where a function of torch in Python makes an integer of an infinity.
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, OverflowError)
DTYPES = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64),
    *(torch.int32, torch.int64, torch.int8, torch.uint8, torch.uint32, torch.bool),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu),
)
NUMBERS = (0, -1, 1, 7, 64, 4097, -(2**31), None)
FLOATS = (0.0, -1.0, 2.0, float("nan"), float("inf"), 1e300, None)


class _OnTheCpu:
    """A tensor that stays there."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


def _spoilt_tensor(chance: random.Random, x: Tensor) -> Any:
    last = x.shape[-1] if x.dim() else 0
    ways = [
        lambda: x[..., :-1],
        lambda: x[:0],
        lambda: x[0],
        lambda: x[..., :0],
        lambda: x.unsqueeze(0),
        lambda: torch.cat([x, x]),
        lambda: torch.cat([x, x], -1),
        lambda: x.mT,
        lambda: x.transpose(0, 1),
        lambda: x.reshape(-1)[0],
        lambda: x.as_strided(x.shape, [0] * x.dim()),
        lambda: torch.cat([x, x], -1)[..., :last],  # features with gaps between them
        lambda: x.to(chance.choice(DTYPES)),
        lambda: x * chance.choice([-1, 0, 1000, 2**20]) - 1,
        lambda: x * chance.choice([1e30, float("nan"), float("inf")]),
        lambda: _OnTheCpu(x),
        lambda: None,
    ]
    try:
        return chance.choice(ways)()
    except REFUSALS:
        return x  # which has not the sizes or the dtype for this


def _spoilt(chance: random.Random, x: Any) -> Any:
    if isinstance(x, Tensor):
        return _spoilt_tensor(chance, x)
    if isinstance(x, bool):
        return not x
    if isinstance(x, int):
        return chance.choice(NUMBERS)
    if isinstance(x, float):
        return chance.choice(FLOATS)
    if isinstance(x, str):
        return chance.choice(["", "x", "Q9_9", 0])
    if isinstance(x, (list, tuple)):
        way = chance.randrange(3)
        return type(x)([[], [*x, *x], [_spoilt(chance, one) for one in x]][way])
    return x


def _moved(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.to("mps")
    if isinstance(x, _OnTheCpu):
        return x.tensor
    return type(x)(map(_moved, x)) if type(x) in (list, tuple) else x


def spoilt_call(chance: random.Random) -> Call:
    name, function, args, options = random_call(chance)
    changed = {**dict(enumerate(args)), **options}
    for place in chance.sample(list(changed), min(len(changed), chance.choice([1, 1, 2]))):
        changed[place] = _spoilt(chance, changed[place])
    return Call(
        name,
        function,
        tuple(changed[i] for i in range(len(args))),
        {key: changed[key] for key in options},
    )


def fault_of(call: Call) -> str:
    """What is wrong with how the operator takes it, or ""."""
    try:
        args = [_moved(x) for x in call.args]
        options = {key: _moved(x) for key, x in call.options.items()}
    except (TypeError, RuntimeError):
        return ""  # mps has no tensors of the dtype
    try:
        call.function(*args, **options)
        torch.mps.synchronize()
    except REFUSALS as error:
        return str(error) if "INTERNAL ASSERT" in str(error) else ""
    except Exception as error:
        # None in place of a tensor is not looked for by Python functions, torch's or ours.
        is_none = isinstance(error, AttributeError) and "'NoneType' object" in str(error)
        return "" if is_none else f"{type(error).__name__}: {error}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Calls operators with arguments that are spoilt.")
    parser.add_argument("--seed", type=int, default=0, help="of the first call (0)")
    parser.add_argument("--count", type=int, default=1000, help="how many calls (1000)")
    options = parser.parse_args()
    faults = 0
    for seed in range(options.seed, options.seed + options.count):
        chance = random.Random(seed)
        torch.manual_seed(seed)
        call = spoilt_call(chance)
        print(f"{seed} {call.name}", flush=True)
        fault = fault_of(call)
        if fault:
            faults += 1
            print(f"  FAULT: {fault[:500]}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
