"""A recogniser trained with CTC on the mps device: sequences of scikit-learn's handwritten digits.

    python benchmarks/ctc_digits.py [--epochs 6]

Each image is a row of three to five digits, with gaps of random widths between them; the network reads it column by
column and is not told where a digit begins. Prints how many held-out sequences, made of held-out digits, it gets right
as a whole: at least 90 %.
"""

from __future__ import annotations

import argparse
import sys
import time

import metalops  # noqa: F401
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

HEIGHT, WIDTH, BLANK = 8, 60, 10
BATCH = 32


class Recogniser(nn.Module):
    """Images (batch, 8, 60) to the log-probabilities (30, batch, 11) of ten digits and a blank for each two columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(HEIGHT, 64, 5, padding=2),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, padding=2, stride=2),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, padding=2),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, 11, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).permute(2, 0, 1).log_softmax(2)


def sequences(digits: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor, list[int]]:
    """`count` random images, the digits on them one sequence after the other, and the sequences' lengths."""
    images = torch.zeros(count, HEIGHT, WIDTH)
    lengths = torch.randint(3, 6, (count,)).tolist()
    written = []
    for image, length in zip(images, lengths, strict=True):
        chosen = torch.randint(len(digits), (length,))
        widths = torch.randint(0, 1 + (WIDTH - 8 * length) // length, (length,)).tolist()
        end = 0
        for digit, gap in zip(digits[chosen], widths, strict=True):
            end += gap + 8
            image[:, end - 8 : end] = digit
        written.append(labels[chosen])
    return images, torch.cat(written), lengths


def train(model: nn.Module, digits: Tensor, labels: Tensor, epochs: int, device: str) -> None:
    """epochs: of 50 batches, each of new sequences."""
    model.train()
    steps = 50 * epochs
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        images, targets, lengths = sequences(digits, labels, BATCH)
        log_probs = model(images.to(device))
        loss = nn.functional.ctc_loss(
            log_probs, targets.to(device), [len(log_probs)] * BATCH, lengths, blank=BLANK
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def decoded(log_probs: Tensor) -> list[list[int]]:
    """The most probable label of each step, without repetitions and blanks."""
    paths = log_probs.argmax(2).t().cpu()
    return [[x for x in path.unique_consecutive().tolist() if x != BLANK] for path in paths]


@torch.no_grad()
def accuracy(model: nn.Module, digits: Tensor, labels: Tensor, device: str) -> float:
    """Percentage of 400 sequences in which everything is right."""
    model.eval()
    images, targets, lengths = sequences(digits, labels, 400)
    expected = [part.tolist() for part in targets.split(lengths)]
    answers = decoded(model(images.to(device)))
    return 100 * sum(a == e for a, e in zip(answers, expected, strict=True)) / len(expected)


def run(epochs: int = 6, device: str = "mps") -> float:
    """Trains a recogniser; its accuracy in percent on sequences of digits that it has not seen."""
    torch.manual_seed(0)
    data = load_digits()
    digits = torch.tensor(data.images, dtype=torch.float32) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(digits))
    seen, held_out = order[360:], order[:360]
    model = Recogniser().to(device)
    train(model, digits[seen], labels[seen], epochs, device)
    return accuracy(model, digits[held_out], labels[held_out], device)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    right = run(options.epochs)
    print(f"{right:.1f} % of the sequences are right, after {time.perf_counter() - start:.0f} s")
    return 0 if right >= 90 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
