"""Depthwise convolutions on GPUs: kernels/spatial/convolution_depthwise.metal."""

import re

import pytest
import torch
from metalops import debug
from metalops.testing.samples import make
from torch.ops import aten

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


# Sizes of large images, whose width is a multiple of 8 or 4 elements, results of a channel, and the kernels of NCHW.
LARGE = {
    "eights": ((2, 128, 91, 96), 1, "rows8"),
    "fours": ((2, 128, 91, 92), 1, "rows4"),
    "two results": ((2, 64, 91, 96), 2, "rows8"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_have_several_rows_of_large_images(name, dtype, tmp_path):
    sizes, multiple, of_rows = LARGE[name]
    images, groups = sizes[:2]
    for layout, kind in ((torch.contiguous_format, of_rows), (torch.channels_last, "packs")):
        shapes = sizes, (groups * multiple, 1, 3, 3), (images, groups * multiple, *sizes[2:])
        operands = [make(s, dtype, low=-1, high=1).to(memory_format=layout) for s in shapes]

        def both(x, weight, outputs):
            options = [1, 1], [1, 1], [1, 1], False, [0, 0], groups
            result = aten.convolution(x, weight, None, *options)
            mask = True, True, False
            return result, *aten.convolution_backward(outputs, x, weight, None, *options, mask)[:2]

        with debug.capture(tmp_path / "trace", contents=False, gpu=True) as trace:
            found = both(*(x.to("mps") for x in operands))
        expected = both(*(x.double() for x in operands))
        for ours_, exact in zip(found, expected, strict=True):
            bound = max(2 * torch.finfo(dtype).eps, 3e-6) * max(exact.abs().max().item(), 1)
            assert (ours_.cpu().double() - exact).abs().max().item() <= bound
        launched = " ".join(launch.kernel for launch in trace.launches)
        # Channels of several results are no packs, and images with several results no depthwise convolution.
        products = (2 if multiple == 1 else 1) * (kind == of_rows or multiple == 1)
        assert launched.count(f"depthwise_square_{kind}_") == products, launched
        assert launched.count(f"depthwise_square_weight_{kind}_") == min(products, 1), launched
