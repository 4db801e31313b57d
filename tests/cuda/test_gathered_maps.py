"""Maps of gathered operands for the copy engine: include/msl/cuda/gathered_maps.h, metalops/cuda/copy_maps.py, and the convolutions
that use them."""

import struct

import pytest
import torch
from metalops.cuda import copy_maps, nvrtc
from metalops.cuda.nvrtc import GatheredOperand
from torch.nn import functional as F

from .convolutions import convolve, convolve_weight, images_of, library
from .recorded import needs_nvrtc

needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="there is no NVIDIA GPU of compute capability 9.0",
)
IMAGES_AT, OTHER_AT = 112, 228
PIXELS = GatheredOperand(0, 0, 1, 4, IMAGES_AT)
TAPS = PIXELS._replace(number=1)
WEIGHT = GatheredOperand(1, 1, 2, 4, OTHER_AT)
OUTPUTS = WEIGHT._replace(number=0)


@pytest.mark.full
@needs_nvrtc
@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("kernel", "operands"),
    [
        ("128x64_half", (PIXELS, WEIGHT)),
        ("columns_128x128_bfloat", (PIXELS, WEIGHT)),
        ("weight_split_64x128_half", (OUTPUTS, TAPS)),
        ("128x16_half", ()),  # fewer columns than the lines of a copy
        ("128x64_float", ()),
    ],
)
def test_code_tells_the_launch_of_operands_that_may_have_maps(kernel, operands):
    """So do cubins; other GPUs have no copy engine."""
    for architecture in ("compute_90a", "sm_90a", "compute_80"):
        code = library(kernel).compile(architecture)
        found = nvrtc.launch_facts(code, "msl_kernel_0").gathered
        assert found == (() if architecture == "compute_80" else operands)
    text = library(kernel).compile("compute_90a").decode()
    assert ("im2col" in text) == bool(operands)


def described(images, *taps, groups=1):
    return struct.pack("<29i", *images_of(images, *taps, groups))


def last(*sizes):
    """Images (of any contents) with channels last."""
    x = torch.zeros(sizes, dtype=torch.half)
    return x.contiguous(
        memory_format=torch.channels_last_3d if len(sizes) == 5 else torch.channels_last
    )


ONES = (1, 1, 1)
# Images, and taps: counts, filters, first positions, steps, moves; and groups. The arguments of driver.copy_map_of_images,
# without the address.
MAPPED = {
    "3 x 3": (last(2, 64, 1, 9, 7), ((1, 9, 7), (1, 3, 3), (0, -1, -1), ONES, ONES), 1,
              ([64, 7, 9, 2], [128, 896, 8064], [-1, -1], [-1, -1], [1, 1])),
    "stride": (last(2, 128, 1, 10, 8), ((1, 5, 4), (1, 3, 3), (0, -1, -1), (1, 2, 2), ONES), 1,
               ([128, 8, 10, 2], [256, 2048, 20480], [-1, -1], [-2, -2], [2, 2])),
    "transposed": (last(1, 64, 1, 6, 5), ((1, 8, 7), (1, 3, 3), (0, 0, 0), ONES, (1, -1, -1)), 1,
                   ([64, 5, 6, 1], [128, 640, 3840], [-2, -2], [0, 0], [1, 1])),
    "groups": (last(1, 128, 1, 4, 4), ((1, 4, 4), ONES, (0, 0, 0), ONES, ONES), 2,
               ([128, 4, 4, 1], [256, 1024, 4096], [0, 0], [0, 0], [1, 1])),
    "depth": (last(1, 64, 5, 6, 7), ((4, 3, 7), (2, 3, 3), (0, -1, -1), (1, 2, 1), ONES), 1,
              ([64, 7, 6, 5, 1], [128, 896, 5376, 26880], [-1, -1, 0], [-1, -2, -1], [1, 2, 1])),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPPED)
def test_images_are_mapped_as_kernels_count_their_pixels(name, monkeypatch):
    images, taps, groups, expected = MAPPED[name]
    asked = []

    def mapped(*arguments):
        asked.append(arguments)
        return bytes([len(asked)]) * 128

    monkeypatch.setattr("metalops.cuda.copy_maps.driver.copy_map_of_images", mapped)
    monkeypatch.setattr("metalops.cuda.copy_maps.driver.copy_map", mapped)
    copy_maps._gathered.cache_clear()
    parameters = bytes(IMAGES_AT) + described(images, *taps, groups=groups)
    parameters += struct.pack("<2i", 576, 40)
    values = [None, images, torch.zeros(40, 576, dtype=torch.half), None, parameters]
    maps = copy_maps.of_gathered((PIXELS, WEIGHT), values)
    copy_maps._gathered.cache_clear()
    address = values[2].data_ptr()
    assert asked == [(images.data_ptr(), *expected), (address, 40, 576, 1152, 64)]
    assert len(maps) == copy_maps.MAPS_BYTES and maps[0] == 1 and maps[128] == 2
    is_deep = len(expected[0]) == 5
    assert struct.unpack_from("<2I", maps, copy_maps._COUNT_AT) == (0, 3 | is_deep << 8)


ONE_TAP = ((1, 4, 4), ONES, (0, 0, 0), ONES, ONES)


@pytest.mark.parametrize(
    ("images", "taps"),
    [
        (last(1, 48, 1, 4, 4), ONE_TAP),  # a tap's channels are no whole boxes
        (torch.zeros(1, 64, 1, 4, 4, dtype=torch.half), ONE_TAP),  # channels are not adjacent
        (last(1, 64, 1, 4, 8)[..., :4], ONE_TAP),  # nor are pixels
        (last(1, 64, 1, 40, 4), ((1, 4, 4), ONES, (0, 0, 0), (1, 9, 1), ONES)),  # a large step
        (last(1, 64, 1, 200, 4), ((1, 4, 4), ONES, (0, 0, 0), ONES, ONES)),  # a distant corner
        (last(1, 64, 1, 4, 4), ((1, 0, 0), (1, 0, 0), (0, 0, 0), ONES, ONES)),  # no taps
        (last(1, 64, 1, 300, 4), ((1, 40, 4), (1, 3, 1), (0, 0, 0), ONES, (1, 130, 1))),  # dilation
    ],
)
def test_images_that_the_copy_engine_cannot_read_have_no_map(images, taps, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a map is made")

    monkeypatch.setattr("metalops.cuda.copy_maps.driver.copy_map_of_images", refuse)
    copy_maps._gathered.cache_clear()
    parameters = bytes(IMAGES_AT) + described(images, *taps)
    maps = copy_maps.of_gathered((PIXELS,), [None, images, None, None, parameters])
    assert maps == bytes(copy_maps.MAPS_BYTES)


def test_operands_at_other_addresses_have_no_map():
    images = last(1, 64, 1, 4, 4)
    parameters = bytes(IMAGES_AT) + described(images, *ONE_TAP)
    for values in (
        [None, images.data_ptr() + 8, None, None, parameters],
        [None, None, None, None, parameters],
        [None, images, None, None, images],
        [None, images],
    ):
        assert copy_maps.of_gathered((PIXELS,), values) == bytes(copy_maps.MAPS_BYTES)


# Sizes of images and weights, options of torch's convolution, and splits of K.
CASES = {
    "3 x 3": ((2, 64, 13, 11), (128, 64, 3, 3), {"padding": 1}, 1),
    "stride": ((3, 128, 9, 10), (64, 128, 3, 3), {"stride": 2, "padding": 1}, 2),
    "one tap": ((2, 192, 7, 7), (320, 192, 1, 1), {}, 1),
    "dilation": ((1, 64, 20, 9), (128, 64, 3, 2), {"padding": (2, 1), "dilation": (2, 1)}, 3),
    "groups": ((2, 128, 9, 9), (128, 64, 3, 3), {"groups": 2, "padding": 1}, 2),
    "depth": ((1, 64, 5, 6, 7), (64, 64, 2, 3, 2), {"padding": 1, "stride": (1, 2, 1)}, 1),
    "many splits": ((2, 320, 9, 8), (64, 320, 3, 3), {"padding": 1}, 20),
}


def dims_of(options, name, count, default):
    value = options.get(name, default)
    return (default,) * (3 - count) + (value if isinstance(value, tuple) else (value,) * count)


def with_depth(x):
    return x if x.dim() == 5 else x.unsqueeze(2)


@needs_hopper
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_convolutions_have_the_same_bits_with_maps_and_without(name, dtype, monkeypatch):
    sizes, weights, options, splits = CASES[name]
    torch.manual_seed(1)
    count = len(sizes) - 2
    layout = torch.channels_last if count == 2 else torch.channels_last_3d
    x, w, bias = (
        (torch.rand(s, device="cuda") * 2 - 1).to(dtype) for s in (sizes, weights, weights[:1])
    )
    x, w = x.contiguous(memory_format=layout), w.contiguous(memory_format=layout)
    wide = [t.double().requires_grad_() for t in (x, w)]
    function = F.conv2d if count == 2 else F.conv3d
    expected = function(*wide, bias.double(), **options)
    outputs = (torch.rand(expected.shape, device="cuda") * 2 - 1).to(dtype)
    outputs = outputs.contiguous(memory_format=layout)
    expected = [expected, *torch.autograd.grad(expected, wide, outputs.double())]
    padding, stride, dilation = (
        dims_of(options, *of) for of in (("padding", count, 0), ("stride", count, 1), ("dilation", count, 1))
    )  # fmt: skip
    groups = options.get("groups", 1)
    x, w, outputs = map(with_depth, (x, w, outputs))
    counts, filters = outputs.shape[2:], w.shape[2:]
    taps = (counts, filters, [-n for n in padding], stride, dilation)
    back = (x.shape[2:], filters, padding, ONES, [-n for n in dilation])

    def results():
        found = []
        for memory in (layout, torch.contiguous_format):
            like = [
                torch.full_like(e, float("nan"), dtype=dtype, memory_format=memory)
                for e in expected
            ]
            convolve(with_depth(like[0]), x, w, taps, groups, False, splits, bias)
            if max(stride) == 1:
                convolve(with_depth(like[1]), outputs, w, back, groups, True, splits)
            convolve_weight(with_depth(like[2]), x, outputs, taps, groups, splits)
            found += like[:1] + like[1:2] * (max(stride) == 1) + like[2:]
        return found

    made = []
    make = copy_maps.of_gathered

    def counted(operands, values):
        made.append(make(operands, values))
        return made[-1]

    monkeypatch.setattr("metalops.cuda.copy_maps.of_gathered", counted)
    with_maps = results()
    assert len(made) == len(with_maps)
    assert all(maps[copy_maps._COUNT_AT + 4] == 3 for maps in made)  # of both operands
    monkeypatch.setattr(
        "metalops.cuda.copy_maps.of_gathered", lambda operands, values: bytes(copy_maps.MAPS_BYTES)
    )
    exact = expected[:1] + expected[1:2] * (max(stride) == 1) + expected[2:]
    for found, without, true in zip(with_maps, results(), exact * 2, strict=True):
        assert torch.equal(found, without)
        bound = 2 * torch.finfo(dtype).eps * max(true.abs().max().item(), 1)
        assert (found.double() - true).abs().max().item() <= bound
