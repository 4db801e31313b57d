"""Strided operands with long rows: the device runs dense kernels on them, with the results of the strided ones."""

import itertools

import metalops
import pytest
import torch
from metalops.msl.targets.host import sanitizers

from .test_elementwise_values import to_mps, whole

# Inner dimensions around the shortest row that counts and around the length of a piece; outer dimensions of all kinds.
SHAPES = [(3, 64), (2, 63), (2, 2, 2048), (3, 2049), (5000,), (2, 3, 1, 2, 100), (200, 70)]


def views(shape, dtype):
    """The same shape as a slice of columns, with a step, transposed, with equal columns and with equal rows."""
    yield whole(*shape[:-1], shape[-1] + 5, dtype=dtype)[..., 3:-2]
    yield whole(*shape[:-1], shape[-1] * 2, dtype=dtype)[..., 1::2]
    yield whole(*shape[::-1], dtype=dtype).permute(*range(len(shape) - 1, -1, -1))
    yield whole(*shape[:-1], 1, dtype=dtype).expand(shape)
    yield whole(shape[-1], dtype=dtype).expand(shape)


def check(flavours, expected, operator, *arguments, **options):
    """Calls operator(out, *arguments, **options) both ways, on a dense and on a strided output."""
    shape, dtype = expected.shape, expected.dtype
    for make in (
        lambda: torch.full(shape, 77).to(dtype).to("mps"),
        lambda: torch.full((*shape[:-1], shape[-1] * 2), 77).to(dtype).to("mps")[..., ::2],
    ):
        for pinned in ("", "strided"):
            flavours(pinned, pinned)
            out = make()
            operator(out, *arguments, **options)
            assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_unary(metal_tests, flavours, shape):
    for dtype in (torch.float32, torch.float16, torch.uint8, torch.complex64):
        for x in views(shape, dtype):
            expected = x + x + x
            check(flavours, expected, metal_tests.unary, to_mps(x), "metal_tests", "triple")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_unary_with_alpha_and_with_conversion(metal_tests, flavours, shape):
    unary = metal_tests.unary
    for x in views(shape, torch.float32):
        check(flavours, x * 5, unary, to_mps(x), "metal_tests", "scale", alpha=5)
        check(flavours, (x * 3).long(), unary, to_mps(x), "metal_tests", "triple")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("other_dtype", [torch.float32, torch.float16, torch.int64], ids=str)
def test_binary(metal_tests, flavours, shape, other_dtype):
    binary = metal_tests.binary
    pairs = itertools.product(views(shape, torch.float32), views(shape, other_dtype))
    for a, b in itertools.islice(pairs, 0, None, 2):
        inputs = to_mps(a), to_mps(b)
        check(flavours, a - 2 * b, binary, *inputs, "metal_tests", "minus_twice")
        check(flavours, a - 3 * b, binary, *inputs, "metal_tests", "minus_scaled", alpha=3)


@pytest.mark.parametrize("value", [2.5, 3])
def test_numbers_from_the_cpu(metal_tests, flavours, value):
    a = whole(5, 2500)[:, 1:2400]
    x, number = to_mps(a), torch.tensor(value, dtype=torch.float64 if value == 2.5 else None)
    binary = metal_tests.binary
    check(flavours, a - 2 * value, binary, x, number, "metal_tests", "minus_twice")
    check(flavours, value - 2 * a, binary, number, x, "metal_tests", "minus_twice")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("third_dtype", [torch.float16, torch.int32], ids=str)
def test_ternary(metal_tests, flavours, shape, third_dtype):
    inputs = zip(
        views(shape, torch.float16),
        reversed([*views(shape, torch.float16)]),
        views(shape, third_dtype),
    )
    for a, b, c in inputs:
        on_device = to_mps(a), to_mps(b), to_mps(c)
        check(flavours, a + b + b - c, metal_tests.ternary, *on_device, "metal_tests", "select_sum")


@pytest.mark.parametrize("step", [1, 2])
def test_in_place_on_a_view(metal_tests, step):
    base = whole(300, 600)
    x = base.to("mps")
    view = x[::3, 5 : 5 + 200 * step : step]
    metal_tests.unary(view, view, "metal_tests", "triple")
    base[::3, 5 : 5 + 200 * step : step] *= 3
    assert torch.equal(x.cpu(), base)


def test_several_cpu_threads_share_the_rows(metal_tests):
    base = whole(3000, 300)
    out = torch.empty(3000, 200, device="mps")
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            metal_tests.unary(out.zero_(), base.to("mps")[:, 50:250], "metal_tests", "triple")
            if metalops._is_software and not sanitizers.loaded():
                assert metalops._host.threads_of_last_launch() == threads
            assert torch.equal(out.cpu(), 3 * base[:, 50:250])
    finally:
        torch.set_num_threads(before)
