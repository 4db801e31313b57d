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
