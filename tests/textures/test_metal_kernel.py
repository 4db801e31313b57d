"""Textures and samplers among the inputs of a metal_kernel."""

import metalops
import pytest
import torch
import torch.nn.functional as F

from .cases import DEVICE

pytestmark = pytest.mark.full  # compiles several sources

resize = metalops.metal_kernel(
    name="resize_texture",
    input_names=["image", "factor", "s"],
    output_names=["y"],
    source="""
      uint2 p = thread_position_in_grid.xy;
      float2 size = float2(threads_per_grid.xy);
      float4 color = image.sample(s, (float2(p) + 0.5f) / size);
      for (uint c = 0; c < C; c++) y[(p.y * threads_per_grid.x + p.x) * C + c] = color[c] * factor;
    """,
)


def run(image, height, width, factor=1.0, filter="linear", **options):
    channels = image.levels[0].shape[2]
    return resize(
        inputs=[image, factor, metalops.sampler(filter)],
        template=[("C", channels)],
        output_shapes=[(height, width, channels)],
        output_dtypes=[torch.float32],
        grid=(width, height, 1),
        threadgroup=(8, 8, 1),
        **options,
    )[0]


def test_a_texture_is_sampled():
    image = torch.rand(12, 9, 4)
    wanted = F.interpolate(image.permute(2, 0, 1)[None], (24, 27), mode="bilinear")[0].permute(
        1, 2, 0
    )
    got = run(metalops.texture(image.to(DEVICE)), 24, 27, factor=3.0)
    torch.testing.assert_close(got.cpu(), wanted * 3)
    # Another format with the same shapes; and other texels of a texture that was used before.
    bytes_ = (image[..., :2] * 255).round().to(torch.uint8).contiguous().to(DEVICE)
    texture = metalops.texture(bytes_, "rg8unorm")
    for _ in range(2):
        small = F.interpolate(bytes_.cpu().permute(2, 0, 1)[None] / 255, (6, 5), mode="bilinear")[0]
        torch.testing.assert_close(run(texture, 6, 5).cpu(), small.permute(1, 2, 0))
        bytes_.fill_(51)


def test_the_text_numbers_textures_and_buffers_apart():
    text = resize.source(
        inputs=[
            metalops.texture(torch.zeros(2, 2, 4, dtype=torch.int32, device=DEVICE)),
            2.0,
            metalops.sampler(),
        ],
        template=[("C", 4)],
        output_shapes=[(2, 2, 4)],
        output_dtypes=[torch.float32],
        grid=(2, 2, 1),
        threadgroup=(2, 2, 1),
    )
    for part in (
        "const constant float& factor [[buffer(0)]]",
        "device float* y [[buffer(1)]]",
        "texture2d<int, access::sample> image",
        "sampler s",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda z: metalops.texture(z(3), kind="buffer"), "texture_buffer<float, access::read>"),
        (lambda z: metalops.texture(z(3, 3), "depth32float"), "depth2d<float, access::sample>"),
        (
            lambda z: metalops.texture(z(6, 3, 3).half(), kind="cube"),
            "texturecube<float, access::sample>",
        ),
        (
            lambda z: metalops.texture(z(2, 3, 3).byte(), kind="2d_array"),
            "texture2d_array<uint, access::sample>",
        ),
        (
            lambda z: metalops.texture(z(2, 3).int(), "rgb10a2uint"),
            "texture2d<uint, access::sample>",
        ),
    ],
)
def test_each_texture_has_a_parameter(make, parameter):
    assert make(lambda *shape: torch.zeros(shape, device=DEVICE)).parameter == parameter


def test_what_textures_do_not_do():
    image = torch.zeros(2, 2, 4, device=DEVICE)
    factor = torch.ones((), device=DEVICE, requires_grad=True)
    with pytest.raises(
        NotImplementedError, match="'image' is a texture or a sampler, which autograd"
    ):
        run(metalops.texture(image), 2, 2, factor)
    with pytest.raises(RuntimeError, match="must be a texture of mps or cuda tensors, but"):
        run(metalops.texture(image.cpu()), 2, 2)
    writes = metalops.metal_kernel(
        "writes", [], [], "t.write(float4(1), uint2(0));", inout_names=["t"]
    )
    with pytest.raises(TypeError, match="written in place and must be a tensor"):
        writes(
            inputs=[metalops.texture(image)],
            output_shapes=[],
            output_dtypes=[],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
        )


encode = metalops.metal_kernel(
    name="encode_texture",
    input_names=["image", "s"],
    output_names=["y", "counts"],
    source="""
      uint2 p = thread_position_in_grid.xy;
      float2 size = float2(y.get_width(), y.get_height());
      y.write(image.sample(s, (float2(p) + 0.5f) / size), p);
      counts[p.y * threads_per_grid.x + p.x] += 1;
    """,
)


def test_outputs_are_written_as_textures():
    image = torch.rand(10, 12, 4)
    options = {
        "inputs": [metalops.texture(image.to(DEVICE)), metalops.sampler()],
        "grid": (12, 10, 1),
        "threadgroup": (4, 2, 1),
    }
    for format, dtype, values in (
        ("rgba8unorm", torch.uint8, (image * 255).round()),
        ("rgba8snorm", torch.int8, (image * 127).round()),
        ("rgba16float", torch.float16, image.half()),
        ("rgba32float", torch.float32, image),
    ):
        for _ in range(2):
            y, counts = encode(
                output_shapes=[(10, 12, 4), (120,)],
                output_dtypes=[format, torch.int32],
                init_value=3,
                **options,
            )
            assert y.dtype == dtype and torch.equal(y.cpu(), values.to(dtype))
            assert counts.eq(4).all()
    text = encode.source(
        output_shapes=[(2, 2, 4), (4,)], output_dtypes=["rgba8uint", torch.int32], **options
    )
    assert "device int* counts [[buffer(0)]]" in text
    assert text.index("sampler s,") < text.index("texture2d<uint, access::write> y,")


def test_outputs_of_other_kinds():
    fill = metalops.metal_kernel(
        "fill_volume",
        [],
        ["y"],
        "uint3 p = thread_position_in_grid; y.write(uint4(p.x, p.y, p.z, 9), p);",
    )
    (y,) = fill(
        inputs=[],
        output_shapes=[(2, 3, 5, 4)],
        output_dtypes=["rgba16uint 3d"],
        grid=(5, 3, 2),
        threadgroup=(5, 3, 2),
    )
    z, y_, x = torch.meshgrid(torch.arange(2), torch.arange(3), torch.arange(5), indexing="ij")
    assert torch.equal(y.cpu().int(), torch.stack([x, y_, z, torch.full_like(x, 9)], -1).int())
    line = metalops.metal_kernel(
        "fill_line", [], ["y"], "y.write(2.5f, thread_position_in_grid.x);"
    )
    (y,) = line(
        inputs=[],
        output_shapes=[(7,)],
        output_dtypes=["r32float buffer"],
        grid=(7, 1, 1),
        threadgroup=(7, 1, 1),
    )
    assert y.tolist() == [2.5] * 7


@pytest.mark.parametrize(
    ("dtype", "shape", "error", "message"),
    [
        ("rgba8unorm", (4, 4, 3), ValueError, "output 'y': a texel of rgba8unorm is 4 elements"),
        ("rgba8", (4, 4, 4), ValueError, "output 'y': unknown pixel format 'rgba8'"),
        ("rgba8unorm 2D", (4, 4, 4), ValueError, "output 'y': kind is '2D'"),
        ("rgba8unorm 2d 3d", (4, 4, 4), ValueError, "output 'y' is a pixel format and a kind"),
        (
            "depth32float",
            (4, 4),
            TypeError,
            "output 'y': kernels cannot write a texture of depth32float",
        ),
        ("r32float", (0, 4), ValueError, "output 'y': the height of a texture must be from 1"),
    ],
)
def test_outputs_that_are_no_textures(dtype, shape, error, message):
    with pytest.raises(error, match=message):
        encode(
            inputs=[metalops.texture(torch.zeros(2, 2, device=DEVICE)), metalops.sampler()],
            output_shapes=[shape, (16,)],
            output_dtypes=[dtype, torch.int32],
            grid=(4, 4, 1),
            threadgroup=(4, 4, 1),
        )


def test_outputs_that_are_textures_have_no_gradient():
    twice = metalops.metal_kernel(
        "twice",
        ["x"],
        ["y"],
        "y.write(x[thread_position_in_grid.x] * 2, thread_position_in_grid.xy);",
        backward=lambda grads, inputs, outputs: [grads[0] * 2],
    )
    x = torch.rand(8, device=DEVICE, requires_grad=True)
    options = {
        "output_shapes": [(1, 8)],
        "output_dtypes": ["r32float"],
        "grid": (8, 1, 1),
        "threadgroup": (8, 1, 1),
    }
    with pytest.raises(NotImplementedError, match="output 'y' is a texture, which autograd"):
        twice(inputs=[x], **options)
    with torch.no_grad():
        (y,) = twice(inputs=[x], **options)
    assert torch.equal(y[0], x * 2)
