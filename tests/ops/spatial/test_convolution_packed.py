"""Convolutions of packs of channels on GPUs with tensors: kernels/spatial/convolution_packed.metal."""

import re
import struct

import pytest
import torch
from metalops import debug
from metalops.testing.samples import make

from .test_convolution import DTYPES, check, function_of, generated, ours

__all__ = ["ours"]

# Shapes, and the kernels of the result and of the gradients of input and weight. Images of other layouts are copied to packs.
CASES = {
    "few results": ((2, 20, 13, 11), (70, 20, 3, 3), {"padding": 1}, "packed_128x64", "packed_128x64", "packed_weight_128x64"),
    "few channels": ((2, 3, 15, 17), (32, 3, 7, 7), {"stride": 2, "padding": 3}, "packed_128x64", "packed_128x16", "packed_weight_64x128"),
    "split": ((1, 96, 9, 9), (16, 96, 4, 4), {}, "packed_split_128x16", "packed_128x64", "packed_weight_64x128"),
    "split, weight": ((3, 20, 23, 22), (18, 20, 3, 2), {}, "packed_128x64", "packed_128x64", "packed_weight_split_64x128"),
    "two results": ((2, 32, 9, 9), (2, 32, 3, 3), {"padding": 1}, "packed_128x16", "packed_128x64", "direct"),
    "groups": ((3, 48, 8, 7), (48, 16, 3, 2), {"groups": 3, "padding": (1, 0), "dilation": (1, 2)}, "packed_128x16", "packed_128x16", "packed_weight_64x128"),
    "stride over the filter": ((2, 16, 9, 9), (16, 16, 2, 2), {"stride": 3}, "packed_128x16", "packed_128x16", "packed_weight_64x128"),
    "sound": ((2, 20, 50), (30, 20, 3), {"padding": 2, "dilation": 2}, "packed_128x64", "packed_128x64", "packed_weight_64x128"),
    "volume": ((1, 17, 5, 6, 7), (18, 17, 2, 3, 2), {"padding": 1, "stride": (1, 2, 1)}, "packed_128x64", "packed_128x64", "packed_weight_64x128"),
}  # fmt: skip


def launched_by(case, dtype, path):
    """Checks a convolution in each layout as on a GPU; yields the names of the kernels."""
    shape, weight, options, *_ = case
    operands = [make(s, dtype, low=-1, high=1) for s in (shape, weight, weight[:1])]
    layouts = (torch.contiguous_format, torch.channels_last) if len(shape) == 4 else (None,)
    for layout in layouts:
        inputs = [x.to(memory_format=layout) if layout and x.dim() == 4 else x for x in operands]
        with debug.capture(path / "trace", contents=False, gpu=True) as trace:
            check(function_of(len(shape) - 2, False), inputs, options)
        yield " ".join(launch.kernel for launch in trace.launches)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_and_gradients(name, dtype, tmp_path):
    for launched in launched_by(CASES[name], dtype, tmp_path):
        # Tiles of halves may be others than those of floats.
        for kernel in CASES[name][3:] if dtype == torch.float32 else ():
            assert re.search(f"convolution_{kernel}_", launched), launched
        if dtype == torch.float32 or name != "two results":  # which are a pack of halves, padded
            assert "convolution_tile" not in launched


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_of_halves_are_multiplied_by_columns_and_gradients_turned(dtype, tmp_path):
    case = ((2, 24, 9, 10), (40, 24, 3, 3), {"padding": 1})
    contiguous, last = launched_by(case, dtype, tmp_path)
    for launched in (contiguous, last):
        assert "packed_128x64_" in launched and "packed_columns_128x64_" in launched
    assert "packed_unpack_" in contiguous and "packed_unpack_" not in last
    assert last.count("packed_copy_") == 2  # of the outputs' gradient, whose channels are not last


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_channels_are_packed_from_every_order(dtype, tmp_path):
    """Pairs of pixels, runs of all of them, and others; those of floats are packed one by one."""
    orders = set()
    for shape in ((2, 24, 22, 22), (2, 24, 7, 7), (2, 24, 21, 21)):
        inputs = [make(s, dtype, low=-1, high=1) for s in (shape, (32, 24, 3, 3), (32,))]
        with debug.capture(tmp_path / "trace", contents=False, gpu=True) as trace:
            check(function_of(2, False), inputs, {"padding": 1})
        packings = [
            bytes.fromhex(launch.arguments[2].value)
            for launch in trace.launches
            if "packed_copy_" in launch.kernel
        ]
        orders |= {struct.unpack("<i", packing[-4:])[0] for packing in packings}
    assert orders == ({0, 1, 2} if dtype == torch.float16 else {0})


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_tensors_kernels_are_those_of_others(dtype, tmp_path, monkeypatch):
    monkeypatch.setenv("METALOPS_MATMUL", "simdgroup")
    for launched in launched_by(CASES["few results"], dtype, tmp_path):
        assert "packed" not in launched and "convolution_tile" in launched


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(2, 20))]
)
def test_generated_convolutions_as_on_a_gpu(seed, tmp_path):
    with debug.capture(tmp_path / "trace", contents=False, gpu=True) as trace:
        for case in range(6):
            check(*generated(6 * seed + case, torch.float32))
    assert any(
        "packed" in launch.kernel or "depthwise" in launch.kernel for launch in trace.launches
    )
