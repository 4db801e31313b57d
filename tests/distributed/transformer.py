"""A small transformer with operators of metalops, for one process and for ranks that share it."""

import metalops
import torch
import torch.nn.functional as F
from torch import nn

FEATURES, HEADS, TOKENS, WORDS = 32, 4, 12, 19


class Block(nn.Module):
    """Heads and hidden features are independent until the last product, so that ranks can have some each."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.query, self.key, self.value, self.out = (
            nn.Linear(FEATURES, FEATURES) for _ in range(4)
        )
        self.gate, self.up = nn.Linear(FEATURES, 2 * FEATURES), nn.Linear(FEATURES, 2 * FEATURES)
        self.down = nn.Linear(2 * FEATURES, FEATURES)

    def forward(self, x):
        y = self.norm(x)
        query, key, value = (
            part(y).unflatten(-1, (-1, FEATURES // HEADS)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        heads = metalops.ops.attention(query, key, value, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(metalops.ops.swiglu(self.gate(x), self.up(x)))


class Transformer(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.words = nn.Embedding(WORDS, FEATURES)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(FEATURES, WORDS)

    def forward(self, words):
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make():
    torch.manual_seed(0)
    return Transformer().to("mps")


def loss(model, words):
    logits = model(words[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(WORDS, (4, TOKENS + 1), generator=generator).to("mps")
