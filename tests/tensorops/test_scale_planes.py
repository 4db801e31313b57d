"""Tensors with a plane of scales (Metal 4.1): one e8m0 for 32 elements along the inner dimension, against float64."""

import pytest
import torch

from .elements import ELEMENTS
from .products import build, fill

LAYOUTS = ["apple10", "apple8", "scramble:3"]
FORMATS = ["e2m1", "e4m3", "e5m2"]

# Left of M rows, right of N rows (transposed), both with K elements in a row; from K's element FROM on.
KERNEL = """
constant constexpr auto d_NAME = matmul2d_descriptor(16, 32, DEPTH, false, true);
kernel void NAME(device POINTER* A, device uchar* SA, device uchar* B, device uchar* SB, device RESULT* C,
                 constant int& M, constant int& N, constant int& K, constant int& FROM,
                 uint2 tile [[threadgroup_position_in_grid]]) {
  using scales = tensor_blockwise<tensor_plane_scales, device metal_fp8_ue8m0_format, 32, 1>;
  using Right = tensor<device RIGHT, dextents<int, 2>, tensor_inline, scales>;
  LEFT_TYPE
  Right b(B, dextents<int, 2>(K, N), array<int, 2>({1, K}), scales(SB));
  tensor<device RESULT, dextents<int, 2>, tensor_inline> c(C, dextents<int, 2>(N, M));
  matmul2d<d_NAME, execution_simdgroup> op;
  const int row = tile.y * 16, column = tile.x * 32;
  auto left = a.slice(FROM, row);
  auto right = b.slice(FROM, column);
  auto sum = op.get_destination_cooperative_tensor<decltype(left), decltype(right), RESULT>();
  op.run(left, right, sum);
  auto to = c.slice(column, row);
  sum.store(to);
}
"""
PLAIN = "tensor<device LEFT, dextents<int, 2>, tensor_inline> a(A, dextents<int, 2>(K, M));"
SCALED = """using Left = tensor<device LEFT, dextents<int, 2>, tensor_inline, scales>;
  Left a(A, dextents<int, 2>(K, M), array<int, 2>({1, K}), scales(SA));"""
CASES = [
    *((f, f, result, depth) for f in FORMATS for result in ("float", "half") for depth in (0, 32)),
    *(("half", f, result, 0) for f in FORMATS for result in ("float", "half")),
]


def name_of(left, right, result, depth):
    return f"product_{left}_{right}_{result}_{depth}"


def kernels():
    return "".join(
        fill(
            fill(KERNEL, left_type=PLAIN if left == "half" else SCALED),
            name=name_of(left, right, result, depth),
            left=ELEMENTS[left].metal,
            right=ELEMENTS[right].metal,
            pointer=ELEMENTS[left].pointer,
            result=result,
            depth=depth or "static_cast<int>(dynamic_extent)",
        ).replace("d_NAME", "d_" + name_of(left, right, result, depth))
        for left, right, result, depth in CASES
    )


def scaled(name, codes, scales):
    """The numbers that codes (rows, inner) and scales (rows, inner / 32) stand for."""
    return ELEMENTS[name].values(codes) * torch.exp2(scales.double() - 127).repeat_interleave(32, 1)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("first", [0, 32, 96])
def test_products_with_scales(layout, first):
    """Whole rows, and slices that begin with a block."""
    library = build(kernels(), language="4.1", layout=layout)
    rows, columns, inner = 21, 45, 160
    generator = torch.Generator().manual_seed(7)
    for left, right, result, depth in CASES:
        a = ELEMENTS[left].codes(generator, rows, inner)
        b = ELEMENTS[right].codes(generator, columns, inner)
        scale_a, scale_b = (
            torch.randint(120, 131, (n, inner // 32), generator=generator) for n in (rows, columns)
        )
        c = torch.zeros(
            rows, columns, dtype=getattr(torch, {"half": "float16"}.get(result, "float32"))
        )
        sizes = (torch.tensor([n], dtype=torch.int32) for n in (rows, columns, inner, first))
        buffers = [
            ELEMENTS[left].pack(a),
            scale_a.to(torch.uint8),
            ELEMENTS[right].pack(b),
            scale_b.to(torch.uint8),
            c,
            *sizes,
        ]
        groups = (-(-columns // 32) * 32, -(-rows // 16), 1)
        library.launch(name_of(left, right, result, depth), buffers, groups, (32, 1, 1))
        x = a.double() if left == "half" else scaled(left, a, scale_a)
        y = scaled(right, b, scale_b)
        last = first + depth if depth else inner
        x, y = x[:, first:last], y[:, first:last].t()
        error = (torch.finfo(c.dtype).eps / 2 + 1e-6) * (x.abs() @ y.abs()) + 1e-30
        if result == "half":
            error += 2**-25  # of numbers below the smallest normal one
        expected = x @ y
        overflows = expected.abs() > 65504
        fits = ~overflows if result == "half" else torch.ones_like(overflows)
        assert ((c.double() - expected).abs() <= error)[fits].all(), (left, right, result, depth)


EXTREMES = """
kernel void product(device uchar* A, device uchar* SA, device uchar* B, device float* C) {
  using scales = tensor_blockwise<tensor_plane_scales, device metal_fp8_ue8m0_format, 32, 1>;
  using T = tensor<device metal_fp8_e4m3_format, dextents<int, 2>, tensor_inline, scales>;
  using Plain = tensor<device metal_fp8_e4m3_format, dextents<int, 2>, tensor_inline>;
  T a(A, dextents<int, 2>(32, 16), array<int, 2>({1, 32}), scales(SA));
  Plain b(B, dextents<int, 2>(32, 16));
  tensor<device float, dextents<int, 2>, tensor_inline> c(C, dextents<int, 2>(16, 16));
  constexpr auto d = matmul2d_descriptor(16, 16, 32, false, true);
  matmul2d<d, execution_simdgroup> op;
  op.run(a, b, c);
}
"""


def test_every_scale_is_a_power_of_two_and_the_last_one_is_not_a_number():
    library = build(EXTREMES, language="4.1")
    ones = torch.zeros(16, 32, dtype=torch.uint8)
    ones[:, 0] = 0x38  # 1.0 as e4m3, once in a row
    codes = torch.tensor([0, 1, 2, 3, 64, 126, 127, 128, 129, 200, 250, 251, 252, 253, 254, 255])
    c = torch.zeros(16, 16)
    library.launch("product", [ones, codes.to(torch.uint8), ones, c], 32, 32)
    expected = torch.exp2(codes.double() - 127).float()
    assert torch.equal(c[:15], expected[:15, None].expand(15, 16))
    assert c[15].isnan().all()


STATIC = """
kernel void product(device uchar* A, device SCALE* S, device float* C) {
  using Scaled = tensor<device metal_fp8_e4m3_format, dextents<int, 2>, tensor_inline,
                        tensor_blockwise<tensor_plane_scales, device SCALE, BLOCK>>;
  using Plain = tensor<device metal_fp8_e4m3_format, dextents<int, 2>, tensor_inline>;
  using Result = tensor<device float, dextents<int, 2>, tensor_inline>;
  SCALED_LEFT a;
  SCALED_RIGHT b;
  Result c;
  constexpr auto d = matmul2d_descriptor(16, 32, 32, FLAGS);
  matmul2d<d, execution_simdgroup> op;
  op.run(a, b, c);
}
"""
FIELDS = {
    "scale": "metal_fp8_ue8m0_format",
    "block": "32, 1",
    "flags": "false, true",
    "scaled_left": "Scaled",
    "scaled_right": "Scaled",
}
REFUSED = {
    "Scale data type must be metal_fp8_ue8m0_format": {"scale": "half"},
    "Scale block size 0 must be 32": {"block": "16, 1"},
    "Scale block size 1 must be 1": {"block": "32, 2"},
    "Left tensor must not be transposed if it has scale factors": {
        "flags": "true, true",
        "scaled_right": "Plain",
    },
    "Right tensor must be transposed if it has scale factors": {
        "flags": "false, false",
        "scaled_left": "Plain",
    },
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("message", REFUSED)
def test_is_refused(message):
    with pytest.raises(SyntaxError) as error:
        build(fill(STATIC, **{**FIELDS, **REFUSED[message]}), language="4.1", optimize=0)
    assert message in str(error.value)


def test_a_destination_has_no_scales():
    text = STATIC.replace(
        "Result c;",
        """tensor<device float, dextents<int, 2>, tensor_inline,
      tensor_blockwise<tensor_plane_scales, device metal_fp8_ue8m0_format, 32, 1>> c;""",
    )
    with pytest.raises(SyntaxError) as error:
        build(fill(text, **FIELDS), language="4.1", optimize=0)
    assert "Destination tensor cannot have scale factors" in str(error.value)


def test_the_kernel_without_a_mistake_is_compiled():
    assert build(fill(STATIC, **FIELDS), language="4.1", optimize=0)
