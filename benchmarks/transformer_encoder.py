"""nn.TransformerEncoder in eval mode on the mps device: torch's inference fast path against its slow path.

    python benchmarks/transformer_encoder.py [--tokens 128]

Sequences of different lengths are padded to one and masked. Prints whether the fast path was used, how far its results
are from those of the slow path, and how the times compare, also with those of torch's CPU fast path.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import metalops
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

LAYER = "aten::_transformer_encoder_layer_fwd"


class Result(NamedTuple):
    """fast_layers, slow_layers: how many layers of an encoder ran as one operator. difference: the largest, at tokens,
    between the paths. seconds: of one call."""

    layers: int
    fast_layers: int
    slow_layers: int
    difference: float
    fast_seconds: float
    slow_seconds: float
    cpu_seconds: float


class Record(TorchDispatchMode):
    """The operators that are called, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[function._schema.name] += 1
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def fast_path(enabled: bool) -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        with metalops.enable_transformer_fast_path():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def make(
    layers: int, samples: int, tokens: int, width: int, heads: int
) -> tuple[nn.Module, Tensor, Tensor]:
    """An encoder on the CPU, its input, and the mask, which is true for padding."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
    # On the CPU a nested tensor would replace the mask, and results would be zero where there is padding.
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()
    lengths = torch.linspace(tokens / 4, tokens, samples).long()
    padding = torch.arange(tokens) >= lengths[:, None]
    return encoder, torch.randn(samples, tokens, width), padding


def call(encoder: nn.Module, x: Tensor, padding: Tensor) -> tuple[Tensor, int, float]:
    """The result, how many layers ran as one operator, and the seconds that the fastest of several calls took."""
    with Record() as record:
        result = encoder(x, src_key_padding_mask=padding)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        encoder(x, src_key_padding_mask=padding)
        torch.mps.synchronize()
        best = min(best, time.perf_counter() - start)
    return result, record.calls[LAYER], best


@torch.no_grad()
def run(
    layers: int = 2, samples: int = 8, tokens: int = 128, width: int = 128, heads: int = 4
) -> Result:
    encoder, x, padding = make(layers, samples, tokens, width, heads)
    with fast_path(True):
        cpu_seconds = call(encoder, x, padding)[2]
    encoder, x, padding = encoder.to("mps"), x.to("mps"), padding.to("mps")
    with fast_path(True):
        fast, fast_layers, fast_seconds = call(encoder, x, padding)
    with fast_path(False):
        slow, slow_layers, slow_seconds = call(encoder, x, padding)
    difference = (fast - slow)[~padding].abs().max().item()
    return Result(
        layers, fast_layers, slow_layers, difference, fast_seconds, slow_seconds, cpu_seconds
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--width", type=int, default=128, help="features of a token")
    parser.add_argument("--heads", type=int, default=4)
    result = run(**vars(parser.parse_args(arguments)))
    print(f"{result.fast_layers} of {result.layers} layers on the fast path")
    print(f"largest difference from the slow path: {result.difference:.1e}")
    print(f"slow path's time / fast path's: {result.slow_seconds / result.fast_seconds:.2f}")
    print(f"CPU's fast path's time / ours: {result.cpu_seconds / result.fast_seconds:.2f}")
    return 0 if result.fast_layers == result.layers and result.difference < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
