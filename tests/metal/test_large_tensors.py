"""Elementwise calls on tensors that 32-bit indices do not reach.

The device commits memory when it is first touched, so a view with a few elements far apart costs nothing.
"""

import pytest
import torch

GIB = 1 << 30


def far_apart(shape, strides, values=None):
    """A view over a large allocation, with `values` in it."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
    view = torch.empty(span, device="mps").as_strided(shape, strides)
    if values is not None:
        view.copy_(values)
    return view


# Element strides (4 bytes each) that pass 2^31 and 2^32 bytes, in the outer and in the inner dimension.
FAR = {
    "outer": ((3, 5), (GIB // 2 + 3, 1)),
    "outer beyond 2^32 elements": ((3, 5), (9 * GIB // 4, 1)),
    "inner": ((2, 4), (1, GIB // 3)),
    "both": ((3, 3), (GIB, GIB // 5)),
}


@pytest.mark.parametrize("place", FAR)
def test_strided_operands_far_apart(metal_tests, place):
    shape, strides = FAR[place]
    a, b, c = (torch.randint(-8, 9, shape).float() for _ in range(3))
    far, near = far_apart(shape, strides, a), torch.empty(shape, device="mps")
    metal_tests.unary(near, far, "metal_tests", "triple")
    assert torch.equal(near.cpu(), 3 * a)
    metal_tests.unary(near, far, "metal_tests", "scale", alpha=5)
    assert torch.equal(near.cpu(), 5 * a)
    metal_tests.binary(near, b.to("mps"), far, "metal_tests", "minus_twice")
    assert torch.equal(near.cpu(), b - 2 * a)
    metal_tests.binary(near, far, b.to("mps").half(), "metal_tests", "minus_twice")
    assert torch.equal(near.cpu(), a - 2 * b)
    metal_tests.ternary(near, b.to("mps"), far, c.to("mps"), "metal_tests", "select_sum")
    assert torch.equal(near.cpu(), b + 2 * a - c)
    metal_tests.unary_affine(near, far, 2, 1)
    assert torch.equal(near.cpu(), 2 * a + 1)
    metal_tests.binary_affine(near, b.to("mps"), far, 2, 1)
    assert torch.equal(near.cpu(), 2 * b + a + 1)


@pytest.mark.parametrize("place", FAR)
def test_outputs_far_apart(metal_tests, place):
    shape, strides = FAR[place]
    a, b = (torch.randint(-8, 9, shape).float() for _ in range(2))
    out = far_apart(shape, strides)
    metal_tests.unary(out, a.to("mps"), "metal_tests", "triple")
    assert torch.equal(out.cpu(), 3 * a)
    metal_tests.binary(out, a.to("mps"), b[0].to("mps"), "metal_tests", "minus_twice")
    assert torch.equal(out.cpu(), a - 2 * b[0])
    metal_tests.binary(out, torch.tensor(3), a.to("mps"), "metal_tests", "minus_twice")
    assert torch.equal(out.cpu(), 3 - 2 * a)


@pytest.mark.nightly
def test_dense_operands_of_more_than_2_to_the_31_elements(metal_tests):
    numel = 2 * GIB + 1000
    x = torch.zeros(numel, dtype=torch.uint8, device="mps")
    marks = torch.tensor(
        [0, 1, GIB - 1, GIB, GIB + 1, 2 * GIB - 1, 2 * GIB, numel - 1], device="mps"
    )
    x[marks] = torch.arange(1, 9, dtype=torch.uint8, device="mps")
    out = torch.empty_like(x)
    metal_tests.unary(out, x, "metal_tests", "triple")
    assert out[marks].tolist() == [3 * i for i in range(1, 9)]
    assert torch.count_nonzero(out).item() == 8
    two = torch.tensor(2, dtype=torch.uint8, device="mps")
    metal_tests.binary(out, x, two, "metal_tests", "minus_twice")
    assert out[marks].tolist() == [(i - 4) % 256 for i in range(1, 9)]


@pytest.mark.nightly
def test_dense_operands_of_more_than_2_to_the_32_elements(metal_tests):
    numel = 4 * GIB + 1000
    marks = [0, 1, numel - 1] + [k * GIB + step for k in (1, 2, 3, 4) for step in (-1, 0, 1)]
    places = torch.tensor(marks, device="mps")
    out = torch.empty(numel, dtype=torch.uint8, device="mps")
    values = torch.randint(0, 20, (3, len(marks)), dtype=torch.uint8)
    operands = [torch.empty_like(out) for _ in values]  # of which a few pages are touched
    for operand, value in zip(operands, values):
        operand[places] = value.to("mps")
    a, b, c = operands

    def check(out, expected):
        assert torch.equal(out[places].cpu(), expected)

    metal_tests.unary(out, a, "metal_tests", "scale", alpha=5)
    check(out, 5 * values[0])
    metal_tests.binary(out, a, b, "metal_tests", "minus_scaled", alpha=3)
    check(out, values[0] - 3 * values[1])
    metal_tests.binary(out, a[:1], b, "metal_tests", "minus_twice")
    check(out, values[0, 0] - 2 * values[1])
    metal_tests.ternary(out, a, b, c, "metal_tests", "select_sum")
    check(out, values[0] + 2 * values[1] - values[2])
    metal_tests.ternary(out, a, b[:1], c, "metal_tests", "select_sum")
    check(out, values[0] + 2 * values[1, 0] - values[2])
    del a, b, c, operands, out
    torch.mps.empty_cache()


@pytest.mark.nightly
def test_a_broadcast_row_that_is_itself_too_long(metal_tests):
    row = GIB + 8
    a = torch.zeros(2, row, dtype=torch.uint8, device="mps")
    b = torch.zeros(row, dtype=torch.uint8, device="mps")
    marks = torch.tensor([0, 7, GIB // 2 + 3, GIB, row - 1], device="mps")
    a[1, marks] = 50
    b[marks] = torch.arange(1, 6, dtype=torch.uint8, device="mps")
    out = torch.empty_like(a)
    metal_tests.binary(out, a, b, "metal_tests", "minus_twice")
    assert out[0, marks].tolist() == [-2 * i % 256 for i in range(1, 6)]
    assert out[1, marks].tolist() == [50 - 2 * i for i in range(1, 6)]
