"""What a day with the mps device costs: importing metalops, first operators, training steps and attention, against torch's CPU.

    python benchmarks/user_day.py [--attention auto]

A line for each case, with the CPU time of both in milliseconds on one thread, the least of several calls, and their ratio;
both run in turn, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import metalops
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Call = Callable[[], object]

_START_NAMES = ("import metalops", "first operator", "first of ours")

# Prints the CPU milliseconds that importing metalops takes after torch, and those of the first operators: torch's and ours.
_START = """
import time, torch
times = [time.process_time()]
import metalops
times.append(time.process_time())
x = torch.ones(8, device="mps") + 1
times.append(time.process_time())
metalops.ops.gelu_new(x)
times.append(time.process_time())
print(*((b - a) * 1e3 for a, b in zip(times, times[1:])))
"""


def report(name: str, theirs: float, ours: float) -> None:
    print(f"{name:44} {theirs:10.2f} {ours:10.2f} {ours / theirs:8.2f}", flush=True)


def start(repeat: int = 3) -> None:
    """The least of several processes, of which the first writes the bytecode."""
    command = [sys.executable, "-c", _START]
    runs = [
        list(map(float, subprocess.run(command, capture_output=True, check=True).stdout.split()))
        for _ in range(repeat + 1)
    ]
    for name, times in zip(_START_NAMES, zip(*runs, strict=True), strict=True):
        print(f"{name:44} {'':10} {min(times):10.2f}")


def compare(name: str, make: Callable[[str], Call], repeat: int) -> None:
    """make: returns what is timed, for a device."""
    calls = [make("cpu"), make("mps")]
    for call in 2 * calls:
        call()
    best = [float("inf")] * 2
    for _ in range(repeat):
        for i, call in enumerate(calls):
            begin = time.process_time()
            call()
            torch.mps.synchronize()
            best[i] = min(best[i], time.process_time() - begin)
    report(name, best[0] * 1e3, best[1] * 1e3)


# ---- training -----------------------------------------------------------------------------------


class Block(nn.Module):
    """A pre-norm layer of a transformer with causal attention."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.projection = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        heads = self.projection(self.norms[0](x)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.feed_forward(self.norms[1](x))


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def transformer(width: int = 128, words: int = 256) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(words, width),
        Block(width, 4),
        Block(width, 4),
        nn.LayerNorm(width),
        nn.Linear(width, words),
    )


def step_of(make: Callable[[], nn.Module], x: Tensor, classes: int, device: str) -> Call:
    """Returns a training step of a model with AdamW."""
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = x.to(device)
    shape = x.shape if x.dtype == torch.long else x.shape[:1]
    target = torch.randint(classes, (shape.numel(),)).to(device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, -2), target).backward()
        optimizer.step()

    return step


def training() -> None:
    digits = torch.rand(64, 8, 8)
    words = torch.randint(256, (16, 64))
    compare("step, digits, perceptron", lambda d: step_of(perceptron, digits.flatten(1), 10, d), 20)
    compare("step, digits, convolutions", lambda d: step_of(convolutional, digits, 10, d), 20)
    compare("step, transformer, 2 x 128", lambda d: step_of(transformer, words, 256, d), 12)


# ---- attention ----------------------------------------------------------------------------------


def attention(shape: tuple[int, ...]) -> None:
    given = [torch.randn(shape) for _ in range(4)]

    def forward(device: str) -> Call:
        query, key, value = (x.to(device) for x in given[:3])
        return lambda: F.scaled_dot_product_attention(query, key, value)

    def both(device: str) -> Call:
        inputs = [x.to(device).requires_grad_() for x in given[:3]]
        grad = given[3].to(device)
        return lambda: torch.autograd.grad(F.scaled_dot_product_attention(*inputs), inputs, grad)

    name = " x ".join(map(str, shape))
    compare(f"attention, {name}", forward, 8)
    compare(f"attention, {name}, with gradients", both, 8)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attention", default="auto", choices=("auto", "metalops", "stock"))
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    metalops.set_attention(given.attention)
    print(f"{'':44} {'torch ms':>10} {'ours ms':>10} {'ratio':>8}")
    start()
    training()
    for shape in ((64, 4, 8, 8), (16, 4, 64, 32), (1, 8, 512, 64)):
        attention(shape)


if __name__ == "__main__":
    main(sys.argv[1:])
