"""Depthwise convolutions on GPUs: kernels/spatial/convolution_depthwise.metal."""

import re

import pytest
import torch

from .test_convolution import DTYPES, ours
from .test_convolution_packed import launched_by

__all__ = ["ours"]

# Shapes, and the kernels of the result and of the gradients of input and weight: "?" stands for those of a layout.
CASES = {
    "plain": ((2, 24, 9, 11), (24, 1, 3, 3), {"groups": 24, "padding": 1}, "depthwise_?3", "depthwise_?3", "depthwise_weight_?3"),
    "strides": ((3, 5, 19, 11), (10, 1, 5, 4), {"groups": 5, "padding": (2, 1), "stride": (2, 1)}, "depthwise", "direct", "depthwise_weight"),
    "dilation": ((2, 33, 8, 9), (33, 1, 3, 3), {"groups": 33, "padding": 2, "dilation": 2}, "depthwise", "depthwise", "depthwise_weight"),
    "long": ((2, 8, 50), (8, 1, 7), {"groups": 8, "padding": 3, "stride": 2}, "depthwise", "depthwise", "depthwise_weight"),
    "volume": ((1, 4, 5, 6, 7), (4, 1, 3, 3, 3), {"groups": 4, "padding": 1}, "depthwise_3", "depthwise_3", "depthwise_weight_3"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_and_gradients(name, dtype, tmp_path):
    for launched in launched_by(CASES[name], dtype, tmp_path):
        for kernel in CASES[name][3:] if dtype == torch.float32 else ():
            pattern = kernel.replace("?", "(last_|packs_)?")
            assert re.search(f"convolution_{pattern}_", launched), launched
        assert "convolution_tile" not in launched
