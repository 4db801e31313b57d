"""A small GPT trained on text with causal attention, on the mps device and on the CPU: the same seed, the same batches.

    python benchmarks/text_model.py [--steps 150] [--compile] [--device cpu]

Characters of the documentation of torch that is installed, 2 layers of 2 heads of 32 features. Prints the loss, in nats per
character, over the last tenth of the steps: about 2.3 after 150 steps, from 4.6 at the beginning.
"""

from __future__ import annotations

import argparse
import sys
import time

import metalops  # noqa: F401
import torch
import torch.nn.functional as F
from torch import Tensor, nn

CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 64, 16, 64, 2, 2


def text() -> str:
    """English prose that every installation of torch has."""
    modules = (torch.nn.Module, torch.nn.Transformer, torch.nn.LSTM, torch.Tensor, torch.optim.Adam)
    documented = [
        getattr(module, name)
        for module in (torch.nn, torch.nn.functional, torch)
        for name in sorted(dir(module))
        if not name.startswith("_")
    ]
    written = {x.__doc__ for x in (*modules, *documented) if isinstance(x.__doc__, str)}
    return "".join(c for c in "\n".join(sorted(written))[:400_000] if c.isascii())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(self.before_attention(x)).unflatten(-1, (3, HEADS, -1))
        query, key, value = (t.transpose(1, 2) for t in heads.unbind(2))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.layers(self.before_layers(x))


class Model(nn.Module):
    """Characters (batch, tokens) to the logits (batch, tokens, characters) of those that follow."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.characters(x) + self.places[: x.shape[1]])))


def train(steps: int, device: str = "mps", compiled: bool = False) -> tuple[Model, Tensor, Tensor]:
    """The model, the text as numbers of characters, of which the last tenth is left out, and the losses of all steps."""
    torch.manual_seed(0)
    words = text()
    alphabet = {c: i for i, c in enumerate(sorted(set(words)))}
    data = torch.tensor([alphabet[c] for c in words])
    model = Model(len(alphabet)).to(device)
    call = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        first = torch.randint(len(data) * 9 // 10 - CONTEXT, (BATCH,)).tolist()
        batch = torch.stack([data[i : i + CONTEXT + 1] for i in first]).to(device)
        logits = call(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return model, data, torch.stack(losses)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--device", default="mps")
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args(arguments)
    begin = time.perf_counter()
    _, _, losses = train(given.steps, given.device, given.compile)
    loss = losses[-max(1, given.steps // 10) :].mean()
    print(f"loss {loss:.4f} after {given.steps} steps, {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
