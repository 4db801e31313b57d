"""Textures in whole programs: declarations of samplers, sizes of handles, queries, atomics, textures in functions and
arrays, and typical kernels of image processing, against torch."""

import metalops
import pytest
import torch
import torch.nn.functional as F

from .cases import DEVICE

pytestmark = pytest.mark.full  # compiles several sources

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
# The same samplers as a source declares them and as the host makes them.
DECLARED = {
    "": {},
    "filter::linear": {"filter": "linear"},
    "mag_filter::linear, address::repeat": {"mag_filter": "linear", "address": "repeat"},
    "min_filter::linear, mip_filter::nearest": {"min_filter": "linear", "mip_filter": "nearest"},
    "coord::pixel, address::clamp_to_zero, filter::linear": {
        "coord": "pixel",
        "address": "clamp_to_zero",
        "filter": "linear",
    },
    "s_address::mirrored_repeat, t_address::clamp_to_border, border_color::opaque_white, filter::linear": {
        "address": ("mirrored_repeat", "clamp_to_border", "clamp_to_edge"),
        "border_color": "opaque_white",
        "filter": "linear",
    },
    "mip_filter::linear, filter::linear, lod_clamp(0.5f, 1.25f), max_anisotropy(4)": {
        "mip_filter": "linear",
        "filter": "linear",
        "lod_clamp": (0.5, 1.25),
        "max_anisotropy": 4,
    },
    "coord::normalized, r_address::repeat, compare_func::less_equal, border_color::opaque_black": {
        "address": ("clamp_to_edge", "clamp_to_edge", "repeat"),
        "compare_func": "less_equal",
        "border_color": "opaque_black",
    },
}


def test_samplers_of_a_source_equal_those_of_the_host():
    """Every option sets the field of a sampler that the host sets."""
    kernels = "".join(
        f"""
        kernel void k{i}(sampler bound, device ulong* out) {{
          constexpr sampler s({options});
          out[0] = as_type<ulong>(s) == as_type<ulong>(bound) ? 1 : as_type<ulong>(s);
        }}"""
        if options
        else f"""
        constexpr sampler plain{i};
        kernel void k{i}(sampler bound, device ulong* out) {{
          out[0] = as_type<ulong>(plain{i}) == as_type<ulong>(bound) ? 1 : as_type<ulong>(plain{i});
        }}"""
        for i, options in enumerate(DECLARED)
    )
    library = metalops.compile_shader(HEAD + kernels)
    for i, (text, options) in enumerate(DECLARED.items()):
        out = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        made = metalops.sampler(**options)
        getattr(library, f"k{i}")(made, out, threads=1)
        assert out.item() == 1, (text, hex(out.item()), hex(made.bits))


def test_handles_have_the_size_of_apples():
    types = [
        "texture1d<float>", "texture1d_array<half>", "texture2d<int, access::write>", "texture2d_array<uint>",
        "texture3d<float, access::read_write>", "texturecube<float>", "texturecube_array<short>",
        "texture_buffer<float>", "depth2d<float>", "depth2d_array<float>", "depthcube<float>",
        "depthcube_array<float>", "sampler",
    ]  # fmt: skip
    sizes = ", ".join(f"sizeof({t}), alignof({t})" for t in types)
    library = metalops.compile_shader(f"""{HEAD}
        kernel void k(device ulong* out, uint i [[thread_position_in_grid]]) {{
          const ulong sizes[] = {{{sizes}}};
          out[i] = sizes[i];
        }}""")
    out = torch.zeros(2 * len(types), dtype=torch.int64, device=DEVICE)
    library.k(out)
    assert out.tolist() == [8] * len(out)


def test_queries():
    library = metalops.compile_shader(f"""{HEAD}
        kernel void k(texture1d<float> a, texture1d_array<float> b, texture2d<float> c, texture2d_array<float> d,
                      texture3d<float> e, texturecube<float> f, texturecube_array<float> g, texture_buffer<float> h,
                      depth2d<float> j, device uint* out) {{
          const uint found[] = {{
            a.get_width(), a.get_num_mip_levels(), b.get_width(), b.get_array_size(),
            c.get_width(), c.get_height(), c.get_width(1), c.get_height(2), c.get_num_mip_levels(),
            d.get_width(), d.get_height(), d.get_array_size(),
            e.get_width(), e.get_height(), e.get_depth(), e.get_depth(1),
            f.get_width(), f.get_height(), g.get_array_size(), g.get_width(), h.get_width(),
            j.get_width(), j.get_height()}};
          for (uint i = 0; i < sizeof(found) / sizeof(uint); i++) out[i] = found[i];
        }}""")

    def texture(kind, *shapes, format=None):
        return metalops.texture([torch.zeros(s, device=DEVICE) for s in shapes], format, kind)

    out = torch.zeros(23, dtype=torch.int32, device=DEVICE)
    library.k(
        texture("1d", (7,)),
        texture("1d_array", (3, 5)),
        texture("2d", (6, 9, 4), (3, 4, 4), (1, 2, 4)),
        texture("2d_array", (2, 4, 6)),
        texture("3d", (5, 6, 7), (2, 3, 3)),
        texture("cube", (6, 8, 8)),
        texture("cube_array", (3, 6, 4, 4)),
        texture("buffer", (100,)),
        texture("2d", (3, 2), format="depth32float"),
        out,
        threads=1,
    )
    wanted = [7, 1, 5, 3, 9, 6, 4, 1, 3, 6, 4, 2, 7, 6, 5, 2, 8, 8, 3, 4, 100, 2, 3]
    assert out.tolist() == wanted


ATOMICS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "min": min,
    "max": max,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "at"),
    [("1d", "1u"), ("1d_array", "1u, 2"), ("2d", "uint2(1, 2)"), ("2d_array", "uint2(1, 2), 1"), ("3d", "uint3(1, 2, 1)"), ("buffer", "1u")],
)  # fmt: skip
def test_atomics(kind, at):
    name = {"buffer": "texture_buffer"}.get(kind, f"texture{kind}")
    body = "\n".join(
        f"kernel void fetch_{op}({name}<int, access::read_write> t, device int4* out, uint i [[thread_position_in_grid]]) {{ out[i] = t.atomic_fetch_{op}({at}, int4(int(i) + 3)); }}"
        for op in ATOMICS
    )
    library = metalops.compile_shader(f"""{HEAD}
        {body}
        kernel void others({name}<uint, access::read_write> t, device uint4* out) {{
          t.atomic_store(uint4(5), {at});
          out[0] = t.atomic_load({at});
          out[1] = t.atomic_exchange({at}, uint4(6));
          uint4 expected = 9;
          out[2].x = t.atomic_compare_exchange_weak({at}, &expected, uint4(7));
          out[2].y = expected.x;
          out[3].x = t.atomic_compare_exchange_weak({at}, &expected, uint4(7));
          t.fence();
          out[4] = t.atomic_load({at});
        }}""")
    shape = {
        "1d": (3,),
        "1d_array": (3, 3),
        "2d": (4, 3),
        "2d_array": (2, 4, 3),
        "3d": (2, 4, 3),
        "buffer": (3,),
    }[kind]
    place = {
        "1d": (1,),
        "1d_array": (2, 1),
        "2d": (2, 1),
        "2d_array": (1, 2, 1),
        "3d": (1, 2, 1),
        "buffer": (1,),
    }[kind]
    for op, function in ATOMICS.items():
        tensor = torch.full(shape, 100, dtype=torch.int32, device=DEVICE)
        out = torch.zeros(64, 4, dtype=torch.int32, device=DEVICE)
        getattr(library, f"fetch_{op}")(metalops.texture(tensor, kind=kind), out, threads=64)
        value = 100
        for i in range(64):
            value = function(value, i + 3)
        wanted = torch.full(shape, 100, dtype=torch.int32)
        wanted[place] = value
        assert torch.equal(tensor.cpu(), wanted)
        assert (out[:, 0] == 100).sum() >= 1  # the first one sees the initial value
    tensor = torch.zeros(shape, dtype=torch.int32, device=DEVICE)
    out = torch.zeros(5, 4, dtype=torch.int32, device=DEVICE)
    library.others(metalops.texture(tensor, "r32uint", kind), out, threads=1)
    assert out[:, 0].tolist() == [5, 5, 0, 1, 7] and out[2, 1].item() == 6
    assert tensor.cpu()[place] == 7 and tensor.cpu().count_nonzero() == 1


def test_textures_pass_through_functions_templates_and_arrays():
    library = metalops.compile_shader(f"""{HEAD}
        template <typename T, access A>
        vec<T, 4> first(texture2d<T, A> t) {{ return t.read(uint2(0)); }}
        float4 at(thread const texture2d<float>& t, sampler s, float2 p) {{ return t.sample(s, p); }}
        struct Source {{ texture2d<float> image; sampler s; float4 middle() const {{ return at(image, s, 0.5f); }} }};
        kernel void k(array<texture2d<float>, 3> images [[texture(1)]], texture2d<float, access::read> other [[texture(0)]],
                      texture2d<float> last, device float4* out, sampler s) {{
          float4 sum = 0;
          for (uint i = 0; i < images.size(); i++) sum += images[i].sample(s, float2(0.5)) * (i + 1);
          out[0] = sum;
          out[1] = first(other);
          texture2d<float> chosen = sum.x > 100000 ? images[0] : last;
          out[2] = Source{{chosen, s}}.middle();
        }}""")
    tensors = [torch.full((2, 2), float(10**i), device=DEVICE) for i in range(5)]
    out = torch.zeros(3, 4, device=DEVICE)
    library.k(*(metalops.texture(t) for t in tensors), metalops.sampler("linear"), out, threads=1)
    assert out[:, 0].tolist() == [10 + 200 + 3000, 1, 10000]


def test_indices_may_have_gaps_and_textures_may_be_switched_off():
    source = f"""{HEAD}
        constant bool tinted [[function_constant(0)]];
        kernel void gap(texture2d<float> t [[texture(2)]], device float* out) {{ out[0] = t.read(uint2(0)).x; }}
        kernel void off(texture2d<float> tint [[texture(0), function_constant(tinted)]],
                        sampler s [[sampler(0), function_constant(tinted)]], device float* out) {{
          out[0] = is_null_texture(tint) ? 7 : tint.sample(s, float2(0)).x;
        }}"""
    library = metalops.compile_shader(source, constants={"tinted": False})
    out = torch.zeros(1, device=DEVICE)
    textures = [metalops.texture(torch.full((1, 1), float(i), device=DEVICE)) for i in (1, 2, 3)]
    library.gap(*textures, out)
    assert out.item() == 3
    library.off(out)
    assert out.item() == 7
    library = metalops.compile_shader(source, constants={"tinted": True})
    with pytest.raises(RuntimeError, match="nothing is bound to texture 0"):
        library.off(out)
    library.off(textures[1], metalops.sampler(), out)
    assert out.item() == 2


def test_threads_of_a_group_share_a_tile_of_a_texture():
    """A blur with barriers, which the group engine and fibers run; writes to a texture from every thread."""
    library = metalops.compile_shader(f"""{HEAD}
        kernel void blur(texture2d<float, access::read> in, texture2d<float, access::write> out,
                         uint2 p [[thread_position_in_grid]], uint2 t [[thread_position_in_threadgroup]]) {{
          threadgroup float tile[10][10];
          for (uint y = t.y; y < 10; y += 8)
            for (uint x = t.x; x < 10; x += 8) tile[y][x] = in.read(p - t + uint2(x, y)).x;
          threadgroup_barrier(mem_flags::mem_threadgroup);
          float sum = 0;
          for (uint y = 0; y < 3; y++)
            for (uint x = 0; x < 3; x++) sum += tile[t.y + y][t.x + x];
          out.write(float4(sum / 9), p);
        }}""")
    image = torch.rand(26, 34, device=DEVICE)
    out = torch.zeros(24, 32, device=DEVICE)
    library.blur(
        metalops.texture(image), metalops.texture(out), threads=(32, 24), group_size=(8, 8)
    )
    wanted = F.avg_pool2d(image.cpu()[None, None], 3, stride=1)[0, 0]
    torch.testing.assert_close(out.cpu(), wanted)


# ---- image processing ----------------------------------------------------------------------------


def test_bilinear_resize():
    library = metalops.compile_shader(f"""{HEAD}
        constexpr sampler linear(filter::linear, address::clamp_to_edge);
        kernel void resize(texture2d<half> in, texture2d<half, access::write> out,
                           uint2 p [[thread_position_in_grid]]) {{
          if (p.x >= out.get_width() || p.y >= out.get_height()) return;
          float2 size = float2(out.get_width(), out.get_height());
          out.write(in.sample(linear, (float2(p) + 0.5f) / size), p);
        }}""")
    image = torch.rand(20, 30, 4).half()
    for height, width in ((40, 60), (13, 47), (1, 1)):
        out = torch.zeros(height, width, 4, dtype=torch.float16, device=DEVICE)
        grid = ((width + 7) // 8 * 8, (height + 7) // 8 * 8)
        library.resize(
            metalops.texture(image.to(DEVICE)),
            metalops.texture(out),
            threads=grid,
            group_size=(8, 8),
        )
        channels_first = image.float().permute(2, 0, 1)[None]
        wanted = F.interpolate(channels_first, (height, width), mode="bilinear")[0].permute(1, 2, 0)
        torch.testing.assert_close(out.cpu().float(), wanted, rtol=1e-3, atol=1e-3)


def test_separable_gaussian_blur_of_an_srgb_image():
    library = metalops.compile_shader(f"""{HEAD}
        constant float weights[] = {{0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f}};
        kernel void blur(texture2d<float, access::sample> in, texture2d<float, access::write> out, constant int2& step,
                         uint2 p [[thread_position_in_grid]]) {{
          constexpr sampler s(coord::pixel, address::clamp_to_edge, filter::nearest);
          float4 sum = 0;
          for (int i = -2; i <= 2; i++) sum += weights[i + 2] * in.sample(s, float2(p) + 0.5f + float2(step * i));
          out.write(sum, p);
        }}""")
    image = torch.randint(0, 256, (9, 14, 4), dtype=torch.uint8)
    between = torch.zeros(9, 14, 4, device=DEVICE)
    out = torch.zeros(9, 14, 4, dtype=torch.uint8, device=DEVICE)
    step = torch.tensor([1, 0], dtype=torch.int32, device=DEVICE)
    library.blur(
        metalops.texture(image.to(DEVICE), "rgba8unorm_srgb"),
        metalops.texture(between),
        step,
        threads=(14, 9),
    )
    library.blur(
        metalops.texture(between),
        metalops.texture(out, "rgba8unorm_srgb"),
        step.flip(0),
        threads=(14, 9),
    )
    values = image.double() / 255
    linear = torch.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    linear[..., 3] = values[..., 3]
    kernel = torch.tensor([1.0, 4, 6, 4, 1], dtype=torch.float64) / 16
    planes = F.pad(linear.permute(2, 0, 1)[None], (2, 2, 2, 2), mode="replicate")
    planes = F.conv2d(planes, (kernel[:, None] * kernel).expand(4, 1, 5, 5), groups=4)[0].permute(
        1, 2, 0
    )
    encoded = torch.where(planes < 0.0031308, 12.92 * planes, 1.055 * planes ** (1 / 2.4) - 0.055)
    encoded[..., 3] = planes[..., 3]
    assert (out.cpu().double() - encoded * 255).abs().max() <= 0.501


def test_lookup_table_of_colors():
    library = metalops.compile_shader(f"""{HEAD}
        kernel void grade(texture2d<float> in, texture3d<float> table, texture2d<float, access::write> out, sampler s,
                          uint2 p [[thread_position_in_grid]]) {{
          float3 color = in.read(p).rgb;
          float n = table.get_width();
          out.write(table.sample(s, (color * (n - 1) + 0.5f) / n), p);
        }}""")
    image, table = torch.rand(6, 5, 4), torch.rand(17, 17, 17, 4)
    out = torch.zeros(6, 5, 4, device=DEVICE)
    library.grade(
        metalops.texture(image.to(DEVICE)),
        metalops.texture(table.to(DEVICE), kind="3d"),
        metalops.texture(out),
        metalops.sampler("linear"),
        threads=(5, 6),
    )
    grid = image[..., :3].view(1, 1, 6, 5, 3) * 2 - 1
    wanted = F.grid_sample(table.permute(3, 0, 1, 2)[None], grid, align_corners=True)[
        0, :, 0
    ].permute(1, 2, 0)
    torch.testing.assert_close(out.cpu(), wanted, rtol=1e-4, atol=1e-5)


def test_levels_made_by_a_kernel_are_sampled_by_another():
    library = metalops.compile_shader(f"""{HEAD}
        kernel void halve(texture2d<float, access::sample> in, texture2d<float, access::write> out, constant long& level,
                          uint2 p [[thread_position_in_grid]]) {{
          constexpr sampler s(filter::linear);
          float2 size = float2(out.get_width(level + 1), out.get_height(level + 1));
          constexpr sampler m(filter::linear, mip_filter::nearest);
          out.write(in.sample(m, (float2(p) + 0.5f) / size, ::level(level)), p, level + 1);
        }}
        kernel void look(texture2d<float> in, sampler s, device float* out, uint i [[thread_position_in_grid]]) {{
          out[i] = in.sample(s, float2(0.5f), ::level(float(i) * 0.25f)).x;
        }}""")
    levels = [torch.rand(16 >> i, 16 >> i, device=DEVICE) for i in range(5)]
    texture = metalops.texture(levels)
    for level in range(4):
        library.halve(texture, texture, level, threads=(16 >> (level + 1),) * 2)
    pooled = levels[0].cpu()[None, None]
    for level in levels[1:]:
        pooled = F.avg_pool2d(pooled, 2)
        torch.testing.assert_close(level.cpu(), pooled[0, 0])
    out = torch.zeros(17, device=DEVICE)
    library.look(texture, metalops.sampler("linear", mip_filter="linear"), out)
    torch.testing.assert_close(out[16].cpu(), levels[4].cpu()[0, 0])
    torch.testing.assert_close(out[8].cpu(), levels[2].cpu()[1:3, 1:3].mean())


def test_a_structure_of_handles_is_copied():
    library = metalops.compile_shader(f"""{HEAD}
        struct Source {{ texture2d<float> image; sampler s; }};
        float4 look(Source source) {{ Source copy = source; return copy.image.sample(copy.s, float2(0.5f)); }}
        kernel void k(texture2d<float> t, sampler s, device float4* out) {{
          Source source = {{t, s}}, other;
          other = source;
          out[0] = look(other);
        }}""")
    out = torch.zeros(4, device=DEVICE)
    image = torch.full((3, 3, 4), 2.0, device=DEVICE)
    library.k(metalops.texture(image), metalops.sampler(), out, threads=1)
    assert out.tolist() == [2, 2, 2, 2]
