"""Tensors that a TorchMetalKernel takes as textures."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from metalops import MetalParameter, TorchMetalKernel

from .cases import DEVICE

pytestmark = pytest.mark.full  # compiles several sources


def halved(
    image: torch.Tensor, gain: float, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    planes = (image.float() / 255).permute(2, 0, 1)[None]
    small = F.avg_pool2d(planes, 2)[0].permute(1, 2, 0) * gain + bias[0]
    return (small * 255).round().to(torch.uint8), small[..., 0].contiguous()


def halve(name="halve_texture", **options):
    return TorchMetalKernel(
        name,
        input_names=["image", "gain", "bias"],
        result_names=["small", "red"],
        src="""
            constexpr sampler s(filter::linear);
            float2 size = float2(small.get_width(), small.get_height());
            float4 color = image.sample(s, (float2(p) + 0.5f) / size) * gain + bias[0];
            small.write(color, p);
            red[p.x, p.y] = color.r + red.get_extent(1) * 0.0f;
        """,
        torch_defn=halved,
        metal_params=[MetalParameter("p", "uint2", "thread_position_in_grid")],
        textures={"image": "rgba8unorm", "small": "rgba8unorm"},
        **options,
    )


def arguments(height=6, width=10):
    image = torch.randint(0, 256, (height, width, 4), dtype=torch.uint8, device=DEVICE)
    bias = torch.tensor([0.125], device=DEVICE)
    options = {
        "threads_per_grid": (width // 2, height // 2, 1),
        "threads_per_thread_group": (width // 2, 1, 1),
        "result_shapes": [[height // 2, width // 2, 4], [height // 2, width // 2]],
    }
    return (image, 0.5, bias), options


def check(results, inputs):
    small, red = halved(*[x.cpu() if isinstance(x, torch.Tensor) else x for x in inputs])
    assert (
        results[0].cpu().int() - small.int()
    ).abs().max() <= 1  # half a code, rounded either way
    torch.testing.assert_close(results[1].cpu(), red)


def test_inputs_are_sampled_and_results_are_written():
    kernel = halve()
    for size in ((6, 10), (4, 4)):
        inputs, options = arguments(*size)
        for _ in range(2):
            check(kernel(*inputs, **options), inputs)
    # A part of an image is copied, as every strided input is.
    (image, *rest), options = arguments(6, 6)
    wide = torch.zeros(6, 9, 4, dtype=torch.uint8, device=DEVICE)
    wide[:, 3:] = image
    check(kernel(wide[:, 3:], *rest, **options), (image, *rest))


def test_the_text_has_textures_and_buffers():
    inputs, options = arguments()
    text = halve().source(*inputs, result_shapes=options["result_shapes"])
    for part in (
        "texture2d<float, access::sample> image,",
        "constant float& metalops_gain [[buffer(0)]]",
        "device float* metalops_bias [[buffer(1)]]",
        "texture2d<float, access::write> small,",
        "device float* metalops_red [[buffer(2)]]",
        "metalops_extents [[buffer(3)]]",
    ):
        assert part in text


def test_they_compile_and_can_be_pickled():
    kernel = halve()
    inputs, options = arguments()
    compiled = torch.compile(lambda *x: kernel(*x, **options), backend="eager", fullgraph=True)
    check(compiled(*inputs), inputs)
    again = pickle.loads(pickle.dumps(kernel))
    assert again.textures == {"image": "rgba8unorm", "small": "rgba8unorm"}
    check(again(*inputs, **options), inputs)
    with pytest.raises(NotImplementedError, match="Core AI's kernels take no textures"):
        kernel.to_coreai()


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("textures", "error", "message"),
    [
        ({"z": "r32float"}, ValueError, "textures has 'z', but the inputs and results are x, y"),
        (["x"], TypeError, "textures must be a dict of names and pixel formats"),
        ({"x": 3}, TypeError, "the format of 'x' in textures must be a string"),
        (
            {"x": "r16float"},
            TypeError,
            "input 'x': a texture of r16float takes a tensor of torch.float16",
        ),
        (
            {"x": "rg32float"},
            ValueError,
            "input 'x': a 2d texture of rg32float takes a tensor of shape",
        ),
        (
            {"y": "depth32float"},
            TypeError,
            "result 'y': kernels cannot write a texture of depth32float",
        ),
        ({"y": "r32float 4d"}, ValueError, "result 'y': kind is '4d'"),
    ],
)
def test_what_no_texture_is(textures, error, message):
    name = "no_texture_" + "".join(c for c in str(textures) if c.isalnum())
    with pytest.raises(error, match=message):
        kernel = TorchMetalKernel(name, ["x"], ["y"], "", doubled, textures=textures)
        kernel.source(torch.zeros(4, 4, device=DEVICE), result_shapes=[[4, 4]])
