"""Quantisation-aware training on the mps device: a small convolutional network on scikit-learn's handwritten digits.

    python benchmarks/qat.py [--epochs 12]

Trains in float, then goes on with fake quantisation to 8 bits (torch.ao, eager mode), both on the device, and prints both
accuracies on held-out digits. They must be within one point of each other.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import metalops  # noqa: F401
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.ao import quantization

BATCH = 64


class Network(nn.Module):
    """Digits of 8 x 8 pixels to the logits of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = quantization.QuantStub()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(32 * 2 * 2, 10)
        self.dequant = quantization.DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(self.quant(x))
        return self.dequant(self.classifier(x.flatten(1)))


def load(device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, then 360 held-out ones."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images, dtype=torch.float32)[order, None] / 16
    labels = torch.tensor(digits.target)[order]
    parts = images[360:], labels[360:], images[:360], labels[:360]
    return tuple(x.to(device) for x in parts)


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, lr: float) -> None:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(epochs):
        order = torch.randperm(len(images)).to(images.device)
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """In percent."""
    model.eval()
    return 100 * (model(images).argmax(1) == labels).float().mean().item()


def prepare(model: Network) -> nn.Module:
    """The model with fake quantisation of weights (a scale for each channel) and activations."""
    model.train()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao announces its successor
        return quantization.prepare_qat(model)


def run(device: str = "mps", epochs: int = 12) -> tuple[float, float]:
    """Accuracies after training in float and after that with fake quantisation."""
    torch.manual_seed(0)
    images, labels, held_out, expected = load(device)
    model = Network().to(device)
    train(model, images, labels, epochs, lr=3e-3)
    in_float = accuracy(model, held_out, expected)
    quantized = prepare(model).to(device)
    train(quantized, images, labels, max(1, epochs // 3), lr=1e-3)
    return in_float, accuracy(quantized, held_out, expected)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--device", default="mps")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    in_float, quantized = run(options.device, options.epochs)
    print(
        f"float {in_float:.2f} %, quantised {quantized:.2f} %, {time.perf_counter() - start:.0f} s"
    )
    return 0 if quantized >= in_float - 1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
