"""Textures and samplers on a Mac: the messages that Metal gets, and what its kernels are called with. Neither needs a Mac."""

import ctypes
import itertools
import subprocess
from pathlib import Path
from types import SimpleNamespace

import metalops
import pytest
import torch
from metalops._shaders.compile import by_definition
from metalops._shaders.declared import of_source
from metalops._shaders.textured import described
from metalops._textures.sampler import _ADDRESSES, _COMPARISONS
from metalops.build.paths import include_paths, torch_include
from metalops.msl import runtime_options
from metalops.msl.source import compiler

ROOT = Path(__file__).parent.parent.parent

# Metal's own numbers, from its documentation.
ADDRESS_MODES = {
    "clamp_to_edge": 0,
    "mirror_clamp_to_edge": 1,
    "repeat": 2,
    "mirrored_repeat": 3,
    "clamp_to_zero": 4,
    "clamp_to_border": 5,
}
COMPARE_FUNCTIONS = {
    "none": 0,
    "never": 0,
    "less": 1,
    "equal": 2,
    "less_equal": 3,
    "greater": 4,
    "not_equal": 5,
    "greater_equal": 6,
    "always": 7,
}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    """csrc/macos with a runtime that writes down messages."""
    library = tmp_path_factory.mktemp("runtime") / "runtime.so"
    sources = [ROOT / "tests/macos/objective_c_runtime.cpp", ROOT / "csrc/macos/texture.cpp"]
    folders = [f"-I{path}" for path in (ROOT, *include_paths(), torch_include())]
    libraries = Path(torch.__file__).parent / "lib"
    command = [
        *compiler.find().command,
        "-std=c++20",
        "-O0",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        *folders,
    ]
    command += [
        *map(str, sources),
        f"-L{libraries}",
        "-lc10",
        f"-Wl,-rpath,{libraries}",
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    for function, count in ((loaded.texture_messages, 10), (loaded.sampler_messages, 1)):
        function.restype = ctypes.c_char_p
        function.argtypes = [ctypes.c_uint64] * count
    return loaded


def texture_messages(runtime, texture, usage=1, alignment=16, length=1 << 20):
    tensor, *numbers = described(texture, usage)
    offset = tensor.storage_offset() * tensor.element_size()
    return (
        runtime.texture_messages(*numbers[:6], offset, usage, alignment, length)
        .decode()
        .splitlines()
    )


@pytest.mark.full  # compiles a source
def test_a_texture_of_a_buffer(runtime):
    crop = torch.zeros(8, 16, 4, dtype=torch.uint8)[2:6, 4:9]
    assert texture_messages(runtime, metalops.texture(crop, "rgba8unorm_srgb"), usage=2) == [
        "device minimumLinearTextureAlignmentForPixelFormat: 71",
        "a MTLTextureDescriptor setTextureType: 2",
        "a MTLTextureDescriptor setPixelFormat: 71",
        "a MTLTextureDescriptor setWidth: 5",
        "a MTLTextureDescriptor setHeight: 4",
        "a MTLTextureDescriptor setUsage: 2",
        "a MTLTextureDescriptor setResourceOptions: 48",
        "buffer newTextureWithDescriptor:offset:bytesPerRow: a MTLTextureDescriptor 144 64",
        "a MTLTextureDescriptor release",
        "made release",
    ]
    texels = texture_messages(runtime, metalops.texture(torch.zeros(9, 2), kind="buffer"))
    assert texels[:2] == [
        "device minimumTextureBufferAlignmentForPixelFormat: 105",
        "a MTLTextureDescriptor setTextureType: 9",
    ]
    assert (
        texels[-3]
        == "buffer newTextureWithDescriptor:offset:bytesPerRow: a MTLTextureDescriptor 0 80"
    )
    # The stride of a single row is nobody's.
    row = texture_messages(runtime, metalops.texture(torch.zeros(3, 5)[:1]))
    assert (
        row[-3] == "buffer newTextureWithDescriptor:offset:bytesPerRow: a MTLTextureDescriptor 0 32"
    )


@pytest.mark.full
def test_textures_that_a_gpu_cannot_read_in_a_buffer(runtime):
    def error(texture, **options):
        return texture_messages(runtime, texture, **options)[-1]

    image = metalops.texture(torch.zeros(4, 5))
    assert error(image).startswith(
        "error: the rows of a texture of this format must be a multiple of 16 bytes apart on this GPU, but are 20"
    )
    assert error(image, alignment=4) == "made release"
    part = metalops.texture(torch.zeros(4, 8)[:, 1:])
    assert (
        "must begin at a multiple of 16 bytes of the storage on this GPU, but is at byte 4"
        in error(part)
    )
    wide = metalops.texture(torch.zeros(4, 8)[1:, :6])
    assert error(wide, length=128) == "made release"
    assert "the last row of the texture must have 32 bytes in the storage" in error(
        wide, length=120
    )


@pytest.mark.full
def test_samplers(runtime):
    def sent(**options):
        lines = runtime.sampler_messages(metalops.sampler(**options).bits).decode().splitlines()
        assert lines[-3:] == [
            "device newSamplerStateWithDescriptor: a MTLSamplerDescriptor",
            "a MTLSamplerDescriptor release",
            "made release",
        ]
        return dict(
            line.removeprefix("a MTLSamplerDescriptor set").split(": ") for line in lines[:-3]
        )

    assert sent() == {
        "MagFilter": "0",
        "MinFilter": "0",
        "MipFilter": "0",
        "SAddressMode": "0",
        "TAddressMode": "0",
        "RAddressMode": "0",
        "NormalizedCoordinates": "1",
        "CompareFunction": "0",
        "BorderColor": "0",
        "MaxAnisotropy": "1",
        "LodMinClamp": "0",
        "LodMaxClamp": "3.40282e+38",
    }
    for modes in itertools.permutations(_ADDRESSES, 3):
        got = sent(address=modes)
        assert [int(got[f"{axis}AddressMode"]) for axis in "STR"] == [
            ADDRESS_MODES[m] for m in modes
        ]
    for compare in _COMPARISONS:
        assert int(sent(compare_func=compare)["CompareFunction"]) == COMPARE_FUNCTIONS[compare]
    other = sent(
        mag_filter="linear",
        mip_filter="linear",
        max_anisotropy=8,
        lod_clamp=(0.5, 4),
        border_color="opaque_white",
    )
    assert [
        other[k]
        for k in (
            "MagFilter",
            "MinFilter",
            "MipFilter",
            "MaxAnisotropy",
            "LodMinClamp",
            "LodMaxClamp",
            "BorderColor",
        )
    ] == "1 0 2 8 0.5 4 2".split()
    assert sent(coord="pixel")["NormalizedCoordinates"] == "0"


# ---- kernels -------------------------------------------------------------------------------------

SOURCE = """#include <metal_stdlib>
using namespace metal;
constant bool masked [[function_constant(0)]];
kernel void copy(texture2d<float> in, texture2d<float, access::write> out, sampler s, constant float& scale,
                 texture2d<uint> mask [[texture(2), function_constant(masked)]], device float* x,
                 uint2 p [[thread_position_in_grid]]) {
  out.write(in.sample(s, float2(p)) * scale, p);
}
kernel void count(texture2d<uint, access::read_write> t) { t.atomic_fetch_add(uint2(0), 1); }
kernel void computed(texture2d<float> t [[texture(N)]], device float* x) { x[0] = t.get_width(); }
kernel void plain(device float* out) { out[0] = 1; }
"""


@pytest.fixture
def launches(monkeypatch):
    """What metalops._C launches on a Mac."""
    made = []

    class Launcher:
        max_threads_per_threadgroup = 1024
        thread_execution_width = 32

        def __init__(self, library, name):
            self.launch = lambda *arguments: made.append((name, *arguments))

    class Compiled:
        plain = "torch's kernel"

    module = SimpleNamespace(ShaderLibrary=lambda text: text, TexturedKernel=Launcher)
    monkeypatch.setattr(metalops, "_C", module)
    monkeypatch.setattr(torch.mps, "compile_shader", lambda text: Compiled())
    return made


def shader(masked=False):
    declared = of_source(SOURCE, runtime_options(310))
    return by_definition(SOURCE, declared, {0: bytes([masked])}, {})


def test_a_kernel_is_called_with_its_textures(launches):
    image, out = torch.zeros(4, 8), torch.zeros(4, 8)
    x, s = torch.zeros(32), metalops.sampler("linear")
    kernel = shader().copy
    assert (kernel.max_threads_per_threadgroup, kernel.thread_execution_width) == (1024, 32)
    kernel(
        metalops.texture(image), 2.0, metalops.texture(out), x, s, threads=(8, 4), group_size=[8, 1]
    )
    ((name, buffers, textures, samplers, threads, group, error),) = launches
    assert (name, threads, group, error) == ("copy", (8, 4), (8, 1), None)
    assert buffers[0] == b"\0\0\0\x40" and buffers[1] is x
    assert [t[0].data_ptr() for t in textures] == [image.data_ptr(), out.data_ptr()]
    assert [t[1:] for t in textures] == [(55, False, 8, 4, 32, 4, 1), (55, False, 8, 4, 32, 4, 2)]
    assert samplers == [s.bits]
    assert shader().plain == "torch's kernel"


def test_usages_and_default_threads(launches):
    counts = metalops.texture(torch.zeros(4, 4, dtype=torch.int32), "r32uint")
    shader().count(counts, torch.zeros(3), error_buf_idx=1)
    assert launches[0][2][0][-1] == 3 | 0x20
    assert launches[0][4:] == ((3,), None, 1)
    bytes_ = metalops.texture(torch.zeros(4, 4, dtype=torch.uint8))
    shader().count(bytes_, threads=1, group_size=1)
    assert launches[1][2][0][-1] == 3


def test_what_a_mac_refuses(launches):
    good, s = metalops.texture(torch.zeros(4, 4)), metalops.sampler()

    def fails(error, message, kernel, *arguments):
        with pytest.raises(error, match=message):
            kernel(*arguments, threads=1, group_size=1)
        assert not launches

    copy = shader().copy
    for kind, shape in (
        ("1d", (4,)),
        ("3d", (2, 4, 4)),
        ("cube", (6, 4, 4)),
        ("2d_array", (2, 4, 4)),
    ):
        other = metalops.texture(torch.zeros(shape), kind=kind)
        fails(TypeError, f"kind '2d', but got one of kind '{kind}'", copy, other, good, s)
        with pytest.raises(
            NotImplementedError, match=f"of kind '2d' or 'buffer', but got one of kind '{kind}'"
        ):
            described(other, 1)
    levels = metalops.texture([torch.zeros(4, 4), torch.zeros(2, 2)])
    fails(NotImplementedError, "has one level, but got one of 2", copy, levels, good, s)
    depth = metalops.texture(torch.zeros(4, 4), "depth32float")
    fails(NotImplementedError, "has no depth format", copy, depth, good, s)
    fails(RuntimeError, "nothing is bound to texture 1", copy, good, s)
    fails(RuntimeError, "nothing is bound to sampler 0", copy, good, good)
    fails(
        RuntimeError,
        "nothing is bound to texture 2 .'texture2d<uint> mask'",
        shader(True).copy,
        good,
        good,
        s,
    )
    fails(RuntimeError, "has no texture 3", copy, *[good] * 4, s)
    fails(TypeError, "unsigned integer components, but .* floating-point", shader().count, good)
    fails(NotImplementedError, "takes no lists of tensors", copy, good, good, s, [torch.zeros(1)])
    with pytest.raises(
        NotImplementedError, match="index of argument 't' must be written as a number"
    ):
        _ = shader().computed
