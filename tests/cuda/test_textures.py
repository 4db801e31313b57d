"""Textures and samplers of kernels on CUDA tensors: every kernel of tests/textures compiles, and what a launch passes. This needs
NVRTC and no GPU. On a machine with one, tests/textures itself runs there (see its cases.py)."""

import functools
import inspect
import struct

import metalops
import pytest
import torch
from metalops import trace
from metalops._textures.layout import KINDS
from metalops.cuda import compile_shader
from metalops.cuda.library import Library
from metalops.trace.replay import _CudaLibrary, launching

from tests.textures import kernels, test_programs

from .recorded import ARCHITECTURE, needs_nvrtc

pytestmark = [needs_nvrtc, pytest.mark.full]  # compiles several sources

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
SAMPLED = [kind for kind in KINDS if kind != "buffer"]
SOURCES = {
    kernels.sampling_source: SAMPLED,
    kernels.gradient_source: ["2d", "2d_array", "3d", "cube", "cube_array"],
    kernels.depth_source: ["2d", "2d_array", "cube", "cube_array"],
    kernels.texel_source: KINDS,
}


def assert_all_compile(source, constants=None):
    library = Library(source, constants=constants)
    assert not library.left_out
    text = library.compile(ARCHITECTURE, debug=True).decode()
    assert text.count(".entry msl_kernel_") == len(library.kernel_names) > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", SOURCES, ids=lambda function: function.__name__)
def test_every_operation_compiles(function):
    """All kinds of textures in one source, with float and half or integers."""
    parts = []
    for number, kind in enumerate(SOURCES[function]):
        component = "float" if number % 2 else "half"
        if function in (kernels.gradient_source, kernels.depth_source):
            component = "float"
        parts.append(f"namespace n{number} {{{function(kind, component)}}}")
    assert_all_compile(HEAD + "\n".join(parts))


class _Compiled(Exception):
    pass


def _compiles(function):
    """Returns the test that the source of another test compiles for GPUs."""

    @functools.wraps(function)
    def test(*arguments, **named):
        with pytest.raises(_Compiled):
            function(*arguments, **named)

    return test


@pytest.fixture(autouse=True)
def programs_only_compile(monkeypatch):
    def compile_for_gpus(source, constants=None):
        assert_all_compile(source, constants)
        raise _Compiled

    stand_in = type("metalops", (), {"compile_shader": staticmethod(compile_for_gpus)})
    monkeypatch.setattr(test_programs, "metalops", stand_in)


globals().update(
    {
        f"{name}_compile": _compiles(function)
        for name, function in inspect.getmembers(test_programs, inspect.isfunction)
        if name.startswith("test_")
    }
)


# ---- what a launch passes ------------------------------------------------------------------------

COPY = """#include <metal_stdlib>
using namespace metal;
constant bool masked [[function_constant(0)]];
kernel void copy(device float* before, texture2d<float> in [[texture(1)]], sampler s,
                 array<texture2d<float, access::write>, 2> out [[texture(3)]], sampler other [[sampler(3)]],
                 texture2d<uint> mask [[texture(0), function_constant(masked)]], constant float& scale,
                 texture2d<uint> last [[texture(5), function_constant(masked)]],
                 uint2 p [[thread_position_in_grid]]) {
  out[p.x & 1].write(in.sample(s, float2(p)) * scale, p);
}
kernel void mix(texture2d<uint, access::read_write> t, texture2d<float> image, device float* x) { x[0] = image.read(uint2(0)).x; }
kernel void plain(device float* out) { out[0] = 1; }
kernel void deep(depth2d<float> d, texture2d<float, access::write> t, device float* x) { x[0] = d.read(uint2(0)); }
"""


def table_of(launch):
    """Returns the table of textures and samplers that a launch passes with its parameters."""
    (given,) = launch.parameters
    assert struct.unpack_from("I", given, 48)[0] >> 31
    return given[432 + struct.unpack_from("Q", given, 176 + 8 * 31)[0] :]


def test_a_table_of_textures_and_samplers_is_passed(recorder):
    before, images = torch.zeros(4), [torch.rand(4, 5, 4) for _ in range(4)]
    first = torch.zeros(4, 5, dtype=torch.int32)
    textures = [metalops.texture(x) for x in images]
    samplers = [
        metalops.sampler("linear", a)
        for a in ("clamp_to_edge", "repeat", "clamp_to_zero", "mirrored_repeat")
    ]
    mask = metalops.texture(first, "r32uint")
    for is_masked in (False, True):
        shader = compile_shader(COPY, constants={"masked": is_masked})
        arguments = [before, mask, *textures, *samplers, 2.0]
        if is_masked:
            with pytest.raises(RuntimeError, match="nothing is bound to texture 5"):
                shader.copy(*arguments, threads=1)
            arguments.append(mask)
        shader.copy(*arguments, threads=(5, 4), group_size=(5, 4))
        launch = recorder.launches[-1]
        assert launch.function == "msl_kernel_0"
        table = table_of(launch)
        at, s, left, right, other, masked = struct.unpack_from("6Q", table)
        assert (s, other) == (samplers[0].bits, samplers[3].bits)
        for place, texture in (
            (at, textures[0]),
            (left, textures[2]),
            (right, textures[3]),
            (masked, mask),
        ):
            level = struct.unpack_from("<3Q3I", table, place + 24)
            pixels = texture.levels[0]
            assert level == (
                pixels.data_ptr(),
                80 if pixels.dim() == 3 else 20,
                320 if pixels.dim() == 3 else 80,
                5,
                4,
                1,
            )
            assert table[place : place + 24] == texture.description[:24]


def test_a_long_table_is_written_to_memory(recorder):
    levels = [torch.zeros(max(64 >> i, 1), max(64 >> i, 1)) for i in range(7)]
    declared = ", ".join(f"texture2d<float> t{i}" for i in range(4))
    source = f"{HEAD}kernel void k({declared}, device float* x) {{ x[0] = t3.read(uint2(0)).x; }}"
    compile_shader(source).k(*[metalops.texture(levels)] * 4, torch.zeros(1))
    *writes, launch = recorder.launches
    assert writes and launch.function == "msl_kernel_0"
    assert struct.unpack_from("I", launch.parameters[0], 48)[0] >> 31 == 0
    assert struct.unpack_from("Q", launch.parameters[0], 176 + 8 * 31)[0] != 0


def test_a_recorded_launch_passes_the_same(recorder):
    source = f"""{HEAD}kernel void k(texture2d<float> t [[texture(1)]], sampler s, device float* x) {{
  x[0] = t.sample(s, float2(0)).x;
}}"""
    texture, sampler = metalops.texture(torch.zeros(4, 8)[:, 4:]), metalops.sampler("linear")
    memories = [torch.zeros(16, dtype=torch.uint8), torch.zeros(128, dtype=torch.uint8)]
    launch = trace.Launch(
        "",
        "k",
        (1, 1, 1),
        (1, 1, 1),
        (trace.Argument(0, memory=0),),
        textures=(trace.BoundTexture(1, texture.description.hex(), ((1, 16),)),),
        samplers={0: sampler.bits},
    )
    launching(launch, _CudaLibrary(Library(source), 0), memories)()
    table = table_of(recorder.launches[-1])
    at, bits = struct.unpack_from("2Q", table)
    address = memories[1].data_ptr() + 16
    assert bits == sampler.bits
    assert table[at : at + len(texture.description)] == texture.layout.described([address])


def test_other_kernels_are_launched_as_before(recorder):
    compile_shader(COPY).plain(torch.zeros(4))
    assert recorder.launches[-1].function == "msl_fast_2"


def test_kernels_reject_other_textures(recorder):
    shader = compile_shader(COPY, constants={0: False})
    x, s = torch.zeros(4), metalops.sampler()
    good = metalops.texture(torch.zeros(4, 4))
    ints = metalops.texture(torch.zeros(4, 4, dtype=torch.int32), "r32uint")
    two = metalops.texture(torch.zeros(4, 4, 2, dtype=torch.int32), "rg32uint")
    depth = metalops.texture(torch.zeros(4, 4), "depth32float")
    array = metalops.texture(torch.zeros(1, 4, 4), kind="2d_array")

    def fails(error, message, kernel, *arguments):
        with pytest.raises(error, match=message):
            kernel(*arguments, threads=1, group_size=1)
        assert not recorder.launches

    fails(
        RuntimeError, "nothing is bound to texture 1 .'texture2d<float> image'", shader.mix, ints, x
    )
    fails(
        RuntimeError,
        "nothing is bound to sampler 3 .'sampler other'",
        shader.copy,
        x,
        *[good] * 5,
        *[s] * 3,
        1.0,
    )
    fails(RuntimeError, "'mix' has no texture 2", shader.mix, ints, good, good, x)
    fails(RuntimeError, "'mix' has no sampler 0", shader.mix, ints, good, s, x)
    fails(RuntimeError, "'plain' has no texture 0", shader.plain, x, good)
    fails(TypeError, "kind '2d', but got one of kind '2d_array'", shader.mix, ints, array, x)
    fails(
        TypeError,
        "unsigned integer components, but .* floating-point ones",
        shader.mix,
        good,
        good,
        x,
    )
    fails(TypeError, "access::read_write, which the format", shader.mix, two, good, x)
    fails(TypeError, "kernels cannot write the format", shader.deep, depth, depth, x)
    tensor = torch.zeros(4, 4)
    small = metalops.texture(tensor)
    tensor.resize_(2).untyped_storage().resize_(8)
    fails(
        RuntimeError,
        "storage of level 0 of the texture has become too small",
        shader.mix,
        ints,
        small,
        x,
    )


def test_sources_without_kernels_with_textures_compile():
    """Textures in functions that no kernel calls, and samplers at program scope."""
    source = f"""{HEAD}
constexpr sampler s(filter::linear);
float4 look(texture2d<float> t, float2 p) {{ return t.sample(s, p); }}
kernel void k(device float* out) {{ out[0] = 1; }}"""
    assert_all_compile(source)


def test_textures_in_buffers_are_left_out():
    source = f"""{HEAD}
struct Images {{ texture2d<float> one; }};
kernel void k(device const Images& images, device float* out) {{ out[0] = images.one.get_width(); }}
kernel void plain(device float* out) {{ out[0] = 1; }}"""
    library = Library(source)
    assert library.kernel_names == ("plain",)
    assert library.left_out == {"k": "parameter images (textures in a buffer)"}
    library.compile(ARCHITECTURE)
