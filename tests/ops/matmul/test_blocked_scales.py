"""to_blocked and from_blocked."""

import pytest
import torch
from metalops import ops

OTHERS = ("to_blocked", "from_blocked")

devices = pytest.mark.parametrize("device", ["mps", "cpu"])


@devices
@pytest.mark.parametrize("shape", [(1, 1), (128, 4), (130, 9), (384, 20), (0, 4), (5, 0)])
def test_each_scale_is_where_the_hardware_looks_for_it(device, shape):
    """By the formula of NVIDIA's documentation of block scaling factors, a scale at a time."""
    rows, columns = shape
    scale = torch.randint(1, 255, shape, dtype=torch.uint8)
    across = -(-columns // 4)
    expected = torch.zeros(-(-rows // 128) * across * 512, dtype=torch.uint8)
    for r in range(rows):
        for c in range(columns):
            block = r // 128 * across + c // 4
            expected[block * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scale[r, c]
    for dtype in (torch.uint8, torch.float8_e8m0fnu):
        blocked = ops.to_blocked(scale.view(dtype).to(device))
        assert blocked.dtype == dtype
        assert torch.equal(blocked.view(torch.uint8).cpu(), expected)
        back = ops.from_blocked(blocked, rows, columns)
        assert back.dtype == dtype
        assert torch.equal(back.view(torch.uint8).cpu(), scale)


def test_wide_scales():
    scale = torch.randn(200, 7)
    assert torch.equal(ops.from_blocked(ops.to_blocked(scale), 200, 7), scale)


def test_wrong_sizes_are_named():
    with pytest.raises(ValueError, match="to_blocked: scale must have 2 dimensions"):
        ops.to_blocked(torch.zeros(4))
    with pytest.raises(ValueError, match="5 times 6 scales are in 1024 elements, but scale has 4"):
        ops.from_blocked(torch.zeros(4), 5, 6)
