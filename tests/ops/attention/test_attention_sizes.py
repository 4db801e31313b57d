"""Attention that is large: what it allocates, offsets beyond 32 bits, and a model that is trained with it."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from metalops import debug, ops

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "text_model.py"


@pytest.mark.nightly
def test_memory_is_that_of_the_inputs_not_of_the_scores():
    """8192 queries and keys of 4 heads: their scores would be 128 times the inputs."""
    inputs = [
        torch.randn(1, 4, 8192, 64, device="mps", dtype=torch.float16, requires_grad=True)
        for _ in range(3)
    ]
    grad = torch.randn(1, 4, 8192, 64, device="mps", dtype=torch.float16)
    torch.accelerator.memory.reset_peak_memory_stats()
    before = torch.accelerator.memory.memory_allocated()
    F.scaled_dot_product_attention(*inputs, is_causal=True).backward(grad)
    torch.mps.synchronize()
    peak = torch.accelerator.memory.max_memory_allocated() - before
    assert peak < 10 * sum(x.nbytes for x in inputs)


def test_more_scores_than_32_bits_count():
    """Of 50,000 queries and keys each row sees a few; the mask that all share is one of the last keys."""
    length, window = 50_000, 16
    query, key, value = (torch.randn(1, 1, length, 8) for _ in range(3))
    mask = torch.zeros(1, 1, 1, length)
    mask[..., -4:] = -3.0
    out = ops.attention(
        *(x.to("mps") for x in (query, key, value)),
        mask.to("mps"),
        window_size=(window, 0),
        scale=1.0,
    )
    for first in (0, 25_000, length - 64):
        begin = max(0, first - window)
        rows, columns = torch.arange(first, first + 64), torch.arange(begin, first + 64)
        distance = rows[:, None] - columns
        scores = query[0, 0, rows].double() @ key[0, 0, columns].double().T + mask[0, 0, 0, columns]
        scores = scores.masked_fill((distance < 0) | (distance > window), -torch.inf)
        expected = scores.softmax(-1) @ value[0, 0, columns].double()
        torch.testing.assert_close(out[0, 0, rows].cpu().double(), expected, rtol=1e-4, atol=1e-4)


def test_expanded_masks_beyond_2_to_the_31_elements_are_not_written_out():
    length = 48_000
    query, key, value = (torch.randn(1, 1, length, 8, device="mps") for _ in range(3))
    mask = torch.ones(1, 1, 1, length, dtype=torch.bool, device="mps")
    mask[..., 100:] = False
    before = torch.accelerator.memory.memory_allocated()
    torch.accelerator.memory.reset_peak_memory_stats()
    out = F.scaled_dot_product_attention(
        query[:, :, -32:], key, value, mask.expand(1, 1, 32, length)
    )
    peak = torch.accelerator.memory.max_memory_allocated() - before
    expected = F.scaled_dot_product_attention(
        query[:, :, -32:].cpu(), key[:, :, :100].cpu(), value[:, :, :100].cpu()
    )
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert peak < 10 * key.nbytes


@pytest.mark.nightly
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_model_of_text_learns_as_on_the_cpu(load_script, compiled):
    script = load_script(SCRIPT)
    _, _, expected = script.train(60, "cpu")
    with debug.standins() as served:
        _, _, actual = script.train(60, "mps", compiled)
    assert not [name for name in served if "attention" in name]
    # Sums in another order lead to other losses: steps are those of one seed.
    actual, expected = (losses[-6:].mean().item() for losses in (actual, expected))
    assert actual == pytest.approx(expected, rel=0.02)
    assert actual < 3.2
