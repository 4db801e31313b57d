"""How fast attention is on the mps device: against torch's CPU attention, and against attention that stores its scores.

    python benchmarks/attention.py [--threads 1] [--materialised 4096]

A line for each case, with the CPU time of both in milliseconds and how many times faster ours is. On the software device the
kernels are those that the compiler of the installation made: with clang they are about a quarter faster than with g++ 12.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import metalops
import torch
import torch.nn.functional as F
from torch import Tensor


def milliseconds(function: Callable[[], object], repeat: int) -> float:
    """The least CPU time of a call, which a busy machine changes little."""
    function()
    torch.mps.synchronize()
    best = float("inf")
    for _ in range(repeat):
        begin = time.process_time()
        function()
        torch.mps.synchronize()
        best = min(best, time.process_time() - begin)
    return best * 1e3


def report(name: str, theirs: float, ours: float) -> None:
    print(f"{name:44} {theirs:10.2f} {ours:10.2f} {theirs / ours:8.2f}")


def inputs(queries: int, keys: int, heads: int, key_heads: int, features: int) -> list[Tensor]:
    sizes = ((heads, queries), (key_heads, keys), (key_heads, keys))
    return [torch.randn(1, h, n, features) for h, n in sizes]


def training(length: int, features: int) -> None:
    """Causal attention of 8 heads, forward and backward."""
    given = [x.requires_grad_() for x in inputs(length, length, 8, 8, features)]
    grad = torch.randn_like(given[0])
    times = []
    for device in ("cpu", "mps"):
        here = [x.detach().to(device).requires_grad_() for x in given]
        g = grad.to(device)
        out = F.scaled_dot_product_attention(*here, is_causal=True)
        with torch.no_grad():
            forward = milliseconds(
                lambda here=here: F.scaled_dot_product_attention(*here, is_causal=True), 10
            )
        backward = milliseconds(
            lambda out=out, here=here, g=g: torch.autograd.grad(out, here, g, retain_graph=True), 8
        )
        times.append((forward, backward))
    for name, theirs, ours in zip(("forward", "backward"), *times, strict=True):
        report(f"{name}, causal, 8 x {length} x {features}, f32", theirs, ours)


def decoding(heads: int, key_heads: int, keys: int, features: int) -> None:
    given = inputs(1, keys, heads, key_heads, features)
    times = []
    for device in ("cpu", "mps"):
        here = [x.to(device) for x in given]
        with torch.no_grad():
            times.append(
                milliseconds(
                    lambda here=here: F.scaled_dot_product_attention(*here, enable_gqa=True), 30
                )
            )
    report(f"one query, {heads}/{key_heads} x {keys} x {features}, f32", *times)


def materialised(length: int) -> None:
    """Against the formula in operators of the same device."""
    query, key, value = (x.to("mps") for x in inputs(length, length, 1, 1, 64))

    def stored() -> Tensor:
        return torch.softmax(query @ key.mT * 64**-0.5, -1) @ value

    with torch.no_grad():
        theirs = milliseconds(stored, 2)
        ours = milliseconds(lambda: F.scaled_dot_product_attention(query, key, value), 2)
    report(f"scores stored, 1 x {length} x 64, f32", theirs, ours)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--materialised", type=int, nargs="*", default=[4096])
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    metalops.set_attention("metalops")
    print(f"{'':44} {'torch ms':>10} {'ours ms':>10} {'times':>8}")
    for length, features in ((256, 64), (1024, 64), (1024, 128)):
        training(length, features)
    for case in ((8, 8, 4096, 64), (8, 2, 4096, 128)):
        decoding(*case)
    for length in given.materialised:
        materialised(length)


if __name__ == "__main__":
    main(sys.argv[1:])
