"""Textures, samplers and kernels that do not go together."""

import metalops
import pytest
import torch

SOURCE = """#include <metal_stdlib>
using namespace metal;
kernel void copy(texture2d<float> in, texture2d<float, access::write> out, sampler s, uint2 p [[thread_position_in_grid]]) {
  out.write(in.sample(s, float2(p)), p);
}
kernel void count(texture2d<uint, access::read_write> t, uint2 p [[thread_position_in_grid]]) {
  t.write(t.read(p) + 1, p);
}
kernel void depth(depth2d<float> t, device float* out) { out[0] = t.read(uint2(0)); }
kernel void plain(device float* out) { out[0] = 1; }
"""


def floats(*shape, dtype=torch.float32, device="mps"):
    return torch.zeros(shape, device=device).to(dtype)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((4, 4, 3),), ValueError, "a texture has 1, 2 or 4 channels, but got 3"),
        (((4, 4, 2), "rgba32float"), ValueError, "4 elements of torch.float32.* has 2 channels"),
        (
            ((4, 4), "rgba32float"),
            ValueError,
            r"shape \(height, width, channels\), but got \(4, 4\)",
        ),
        (((4,), "r32float"), ValueError, r"shape \(height, width\), but got \(4,\)"),
        (((4, 4), "rgba8unorm"), TypeError, "takes a tensor of torch.int8 or torch.uint8"),
        (((4, 4), "rgba8"), ValueError, "unknown pixel format 'rgba8'; there are"),
        (((4, 4), None, "2D"), ValueError, "kind is '2D'; it must be '1d'"),
        (((0, 4),), ValueError, "height of a texture must be from 1 to 16384"),
        (((1, 16385),), ValueError, "width of a texture must be from 1 to 16384"),
        (((2049, 1, 1), None, "3d"), ValueError, "depth of a texture must be from 1 to 2048"),
        (((5, 4, 4), None, "cube"), ValueError, "a cube has 6 faces"),
        (((6, 4, 5), None, "cube"), ValueError, "faces of a cube are squares"),
    ],
)
def test_a_tensor_that_is_no_texture(arguments, error, message):
    shape, *rest = arguments
    with pytest.raises(error, match=message):
        metalops.texture(floats(*shape), *rest)


def test_strides_dtypes_and_levels_that_no_texture_has():
    with pytest.raises(ValueError, match="texels of a row must follow each other"):
        metalops.texture(floats(4, 5).t())
    with pytest.raises(ValueError, match="channels of a texel must follow each other"):
        metalops.texture(floats(4, 4, 5).permute(1, 2, 0))
    with pytest.raises(ValueError, match="texels of a texture must not overlap"):
        metalops.texture(floats(1, 4).expand(3, 4))
    with pytest.raises(ValueError, match="cubes of an array must follow each other"):
        metalops.texture(floats(2, 7, 4, 4)[:, :6], kind="cube_array")
    with pytest.raises(TypeError, match="a tensor of torch.bfloat16 has no pixel format"):
        metalops.texture(floats(4, 4, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="level 1 of the texture must have width 2, but has 3"):
        metalops.texture([floats(4, 5), floats(2, 3)])
    with pytest.raises(ValueError, match="a buffer texture cannot have 2 levels"):
        metalops.texture([floats(4), floats(2)], kind="buffer")
    with pytest.raises(ValueError, match="a 2d texture cannot have 0 levels"):
        metalops.texture([])
    with pytest.raises(TypeError, match="takes a tensor, or the tensors of its levels"):
        metalops.texture([1.0])
    with pytest.raises(ValueError, match="the levels are on several devices"):
        metalops.texture([floats(2, 2), floats(1, 1, device="cpu")])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"filter": "cubic"},
            ValueError,
            "mag_filter is 'cubic'; it must be 'nearest' or 'linear'",
        ),
        ({"address": ()}, ValueError, "1 to 3 modes, but got 0"),
        ({"address": "wrap"}, ValueError, "address is 'wrap'"),
        (
            {"coord": "pixel", "address": "repeat"},
            ValueError,
            "coord='pixel' takes the address modes",
        ),
        (
            {"coord": "pixel", "mip_filter": "linear"},
            ValueError,
            "coord='pixel' takes no mip_filter",
        ),
        ({"max_anisotropy": 17}, ValueError, "must be from 1 to 16"),
        ({"max_anisotropy": 2.0}, TypeError, "max_anisotropy is an int"),
        ({"lod_clamp": (2, 1)}, ValueError, "in order, but is"),
        ({"compare_func": None}, TypeError, "compare_func is a str"),
    ],
)
def test_samplers_that_metal_does_not_have(options, error, message):
    with pytest.raises(error, match=message):
        metalops.sampler(**options)


@pytest.mark.full
def test_kernels_reject_other_textures():
    library = torch.mps.compile_shader(SOURCE)
    good, s = metalops.texture(floats(4, 4)), metalops.sampler()

    def fails(error, message, kernel, *arguments):
        with pytest.raises(error, match=message):
            kernel(*arguments, threads=(4, 4), group_size=(4, 4))

    fails(
        RuntimeError,
        "nothing is bound to texture 1 .'texture2d<float, access::write> out'",
        library.copy,
        good,
        s,
    )
    fails(RuntimeError, "nothing is bound to sampler 0 .'sampler s'", library.copy, good, good)
    fails(RuntimeError, "'copy' has no texture 2", library.copy, good, good, good, s)
    fails(
        TypeError,
        "kind '2d', but got one of kind '2d_array'",
        library.copy,
        metalops.texture(floats(1, 4, 4), kind="2d_array"),
        good,
        s,
    )
    ints = metalops.texture(floats(4, 4, dtype=torch.int32))
    fails(
        TypeError,
        "floating-point components, but .* signed integer ones",
        library.copy,
        ints,
        good,
        s,
    )
    fails(TypeError, "unsigned integer components, but .* signed integer ones", library.count, ints)
    cpu = metalops.texture(floats(4, 4, device="cpu"))
    fails(RuntimeError, "takes a texture over tensors on mps", library.copy, cpu, good, s)
    depth = metalops.texture(floats(4, 4), "depth32float")
    fails(TypeError, "kernels cannot write the format", library.copy, good, depth, s)
    two = metalops.texture(floats(4, 4, 2, dtype=torch.int32), "rg32uint")
    fails(TypeError, "access::read_write, which the format", library.count, two)
    tensor = floats(4, 4)
    texture = metalops.texture(tensor)
    tensor.resize_(2)
    tensor.untyped_storage().resize_(8)
    fails(
        RuntimeError,
        "storage of level 0 of the texture has become too small",
        library.copy,
        texture,
        good,
        s,
    )
    fails(RuntimeError, "has no texture 0", library.plain, good, tensor)
