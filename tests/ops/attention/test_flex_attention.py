"""flex_attention under autocast: python/metalops/_torch/flex_attention.py."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

pytestmark = pytest.mark.full


def _distance(score, batch, head, query, key):
    return score - (query - key).abs() * 0.1


@pytest.mark.nightly
def test_operands_of_several_dtypes_have_that_of_autocast(fresh_compiler):
    query, key, value = (torch.randn(1, 2, 128, 32, device="mps") for _ in range(3))
    half = query.half()  # as a linear layer leaves it
    compiled = torch.compile(flex_attention)
    expected = compiled(query, key, value, score_mod=_distance)
    with torch.autocast("mps", torch.float16):
        result = compiled(half, key, value, score_mod=_distance)
        with torch.autocast("mps", enabled=False):
            same = compiled(query, key, value, score_mod=_distance)
    assert result.dtype == torch.float16 and same.dtype == torch.float32
    torch.testing.assert_close(result.float(), expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(same, expected)
    with torch.autocast("cpu"):
        assert compiled(query, key, value, score_mod=_distance).dtype == torch.float32
