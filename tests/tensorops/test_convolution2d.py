"""convolution2d against torch's convolution in float64."""

import pytest
import torch

from .products import build

TYPES = {"half": torch.float16, "bfloat": torch.bfloat16, "float": torch.float32}
# Channels, filters, kernel (width, height), strides, dilations, padding (x, y): of one tile of 16 x 8 x 4 pixels and more.
SHAPES = [
    (3, 16, (3, 3), (1, 1), (1, 1), (1, 1)),
    (5, 24, (1, 1), (1, 1), (1, 1), (0, 0)),
    (140, 8, (2, 3), (1, 1), (1, 1), (0, 1)),
    (4, 16, (5, 3), (2, 1), (1, 2), (2, 2)),
    (2, 10, (4, 2), (1, 3), (2, 1), (3, 0)),
]


def kernel(name, filters, size, strides, dilations, scope, cooperative, accumulates):
    mode = "multiply_accumulate" if accumulates else "multiply"
    if cooperative:
        begin = """auto sum = op.get_destination_cooperative_tensor<decltype(a), decltype(w), float>();
  sum.load(c);"""
        end = "sum.store(c);"
    else:
        begin, end = "auto& sum = c;", ""
    return f"""
constant constexpr auto d = convolution2d_descriptor(
    int4({-(-filters // 8) * 8}, 8, 4, 1), int4(-1, 16384, 16384, 1), int2({size[0]}, {size[1]}),
    convolution2d_activation_layout::nhwc, convolution2d_weights_layout::hwio, int2({strides[0]}, {strides[1]}),
    int2({dilations[0]}, {dilations[1]}), 1, false, convolution2d_descriptor::mode::{mode});
kernel void convolve(device {name}* A, device {name}* W, device float* C, constant int4& source, constant int4& result,
                     constant int2& padding, uint3 g [[threadgroup_position_in_grid]]) {{
  tensor<device {name}, dextents<int, 4>, tensor_inline> a(A, dextents<int, 4>(source.x, source.y, source.z, source.w));
  tensor<device {name}, dextents<int, 4>, tensor_inline> w(W, dextents<int, 4>(result.x, source.x, {size[0]}, {size[1]}));
  tensor<device float, dextents<int, 4>, tensor_inline> out(C, dextents<int, 4>(result.x, result.y, result.z, result.w));
  convolution2d<d, {scope}> op;
  const int x = g.x * 8, y = g.y * 4;
  op.set_offsets(int2(x * {strides[0]} - padding.x + (({size[0]} - 1) * {dilations[0]} + 1) / 2,
                      y * {strides[1]} - padding.y + (({size[1]} - 1) * {dilations[1]} + 1) / 2));
  auto c = out.slice(0, x, y, int(g.z));
  auto image = a.slice(0, 0, 0, int(g.z));
  auto& b = image;
  {begin.replace("decltype(a)", "decltype(b)")}
  op.run(b, w, sum);
  {end}
}}
"""


@pytest.mark.sampled(16)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("scope", "threads", "cooperative", "accumulates", "name"),
    [
        ("execution_simdgroups<4>", 128, True, False, "half"),
        ("execution_simdgroups<4>", 128, False, True, "bfloat"),
        ("execution_simdgroup", 32, True, True, "float"),
        ("execution_thread", 1, False, False, "float"),
    ],
)
def test_convolution(shape, scope, threads, cooperative, accumulates, name):
    channels, filters, size, strides, dilations, padding = shape
    a = torch.randn(2, 11, 19, channels).to(TYPES[name])  # N, H, W, C
    w = torch.randn(size[1], size[0], channels, filters).to(TYPES[name])
    expected = torch.nn.functional.conv2d(
        a.permute(0, 3, 1, 2).double(),
        w.permute(3, 2, 0, 1).double(),
        stride=strides[::-1],
        dilation=dilations[::-1],
        padding=padding[::-1],
    ).permute(0, 2, 3, 1)
    before = torch.randn(expected.shape)
    out = before.clone()
    library = build(
        kernel(name, filters, size, strides, dilations, scope, cooperative, accumulates)
    )
    numbers = [
        torch.tensor(n, dtype=torch.int32)
        for n in ([channels, 19, 11, 2], [filters, *expected.shape[2:0:-1], 2], padding)
    ]
    groups = (-(-expected.shape[2] // 8), -(-expected.shape[1] // 4), 2)
    grid = (groups[0] * threads, *groups[1:])
    library.launch("convolve", [a, w, out, *numbers], grid, (threads, 1, 1))
    expected = expected + before if accumulates else expected
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)
