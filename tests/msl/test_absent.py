"""Kernels that need what this device lacks are left out, with the reason, and cost nothing else in the file."""

import pytest
import torch
from metalops import msl
from metalops.msl.check import cli as check

from .conftest import HEADER

FINE = """
kernel void fine(device float* out, uint i [[thread_position_in_grid]]) { out[i] = plain(i); }
"""
RAYS = """
#include <metal_raytracing>
using namespace metal::raytracing;
using metal::raytracing::intersection_params;
typedef intersector<triangle_data, instancing> Tracer;
template <typename... Tags> using hit_of = typename intersector<Tags...>::result_type;
struct Payload { float3 color; ray next; };
struct Scene { device float* out; primitive_acceleration_structure accel; };
struct Camera {
  float3 at;
  ray to(float3 d) const { return ray(at, d); }
  float depth() const { return at.z; }
};
inline float plain(float x) { float3 ray = x; return 2 * ray.x; }
inline ray make_ray(float3 o, float3 d) { ray r; r.origin = o; r.direction = d; return r; }
inline float twice(float x) { return 2 * make_ray(x, 1).origin.x; }
static_assert(sizeof(Payload) > 0, "");
constant Payload nothing = {};
[[intersection(bounding_box, triangle_data)]]
bool sphere(float3 origin [[origin]], ray_data float& seen [[payload]]) { return true; }
kernel void trace(instance_acceleration_structure scene [[buffer(0)]],
                  intersection_function_table<triangle_data, instancing> table [[buffer(1)]],
                  device float* out [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  Tracer tracer;
  tracer.assume_geometry_type(geometry_type::triangle);
  auto hit = tracer.intersect(make_ray(0, 1), scene, table);
  out[i] = hit.type == intersection_type::none ? 0 : hit.distance;
}
kernel void by_helper(device float* out) { out[0] = twice(1); }
kernel void by_structure(constant Scene& s) { s.out[0] = 1; }
kernel void by_method(device float* out) { Camera c{}; out[0] = c.to(1).origin.x; }
kernel void other_method(device float* out) { Camera c{}; out[0] = c.depth(); }
template <typename T> kernel void of(device float* out) { out[0] = sizeof(T); }
template [[host_name("of_float")]] kernel void of<float>(device float*);
template [[host_name("of_payload")]] kernel void of<Payload>(device float*);
"""
COMMANDS = """
#include <metal_command_buffer>
struct Container { command_buffer commands [[id(0)]]; };
float plain(float x) { return 2 * x; }
kernel void encode(device Container* c, uint i [[thread_position_in_grid]]) {
  render_command command(c->commands, i);
  command.draw_primitives(primitive_type::triangle, 0, 3, 1, 0);
}
"""
RENDER = """
struct Varying { float4 position [[position]]; interpolant<float3, interpolation::perspective> c; };
struct Plain { float4 position [[position]]; };
float plain(float x) { return 2 * x; }
float edge(float x) { return fwidth(x) + dfdx(x); }
static void cut(float a) { if (a < 0.5) discard_fragment(); }
vertex Varying v(uint id [[vertex_id]], constant float4* p [[buffer(0)]]) { Varying o; return o; }
fragment float4 f(Plain in [[stage_in]]) { cut(in.position.x); return edge(in.position.y); }
struct Pixel { half4 a [[color(0)]]; rgba8unorm<half4> b; };
kernel void tile(imageblock<Pixel, imageblock_layout_implicit> block, ushort2 t [[thread_position_in_threadgroup]]) {
  Pixel p = block.read(t); block.write(p, t);
}
kernel void block(threadgroup_imageblock float* b, device float* out) { out[0] = 1; }
struct Vertex { float4 position [[position]]; };
struct Primitive { float3 normal; };
using Triangles = metal::mesh<Vertex, Primitive, 3, 1, topology::triangle>;
struct Payload { float4 a[3]; };
[[object]] void o(object_data Payload& p [[payload]], mesh_grid_properties m) {
  m.set_threadgroups_per_grid(uint3(1));
}
[[mesh]] void m(Triangles out, const object_data Payload& p [[payload]]) { out.set_primitive_count(1); }
[[patch(triangle, 3)]] vertex float4 t(patch_control_point<Vertex> c [[stage_in]]) { return c[0].position; }
"""
SOURCES = {
    "ray tracing": (
        RAYS,
        {
            "trace": "ray tracing (instance_acceleration_structure)",
            "by_helper": "ray tracing (ray in make_ray)",
            "by_structure": "ray tracing (primitive_acceleration_structure)",
            "by_method": "ray tracing (ray in to)",
            "of_payload": "ray tracing (ray)",
        },
        {"fine", "other_method", "of_float"},
    ),
    "command buffers": (
        COMMANDS,
        {"encode": "indirect command buffers (render_command)"},
        {"fine"},
    ),
    "render stages": (
        RENDER,
        {"tile": "imageblocks (imageblock)", "block": "imageblocks (threadgroup_imageblock)"},
        {"fine"},
    ),
}


@pytest.fixture(params=SOURCES)
def case(request):
    return SOURCES[request.param]


def test_a_kernel_is_left_out_with_its_reason(case):
    source, reasons, kernels = case
    table = {k.name: k.unsupported for k in msl.kernel_table(HEADER + source + FINE)}
    assert table == {**reasons, **dict.fromkeys(kernels)}


def test_the_other_kernels_of_the_file_run(case, program):
    source, reasons, kernels = case
    p = program(source + FINE)
    assert p.table().keys() == kernels
    out = torch.zeros(3)
    p.launch("fine", out, grid=3)
    assert out.tolist() == [0, 2, 4]
    for name, reason in reasons.items():
        with pytest.raises(KeyError) as raised:
            p.launch(name, out, grid=1)
        assert f"no kernel '{name}' in the library, because of {reason}" in str(raised.value)


def test_the_same_names_of_a_program_are_its_own(program):
    p = program("""
        struct ray { float origin; ray(float o) : origin(o) {} };
        template <typename mesh> float size(mesh m) { return sizeof(mesh); }
        enum topology { point, line };
        namespace mine { struct intersector { float distance(ray r) { return r.origin; } }; }
        inline float interpolation(float a, float b) { return a + b; }
        kernel void k(device float* out, uint imageblock [[thread_position_in_grid]]) {
          auto fwidth = [](float x) { return 2 * x; };
          topology t = topology::line;
          mine::intersector tracer;
          out[imageblock] = fwidth(tracer.distance(ray(3))) + size(1.0f) + interpolation(1, t);
        }
    """)
    out = torch.zeros(1)
    p.launch("k", out, grid=1)
    assert out.item() == 6 + 4 + 2


def test_an_error_below_what_is_left_out_names_its_own_line(program):
    with pytest.raises(SyntaxError) as raised:
        program(COMMANDS + "kernel void wrong(device float* out) { out[0] = missing; }")
    assert raised.value.lineno == 3 + COMMANDS.count("\n")
    assert "missing" in raised.value.msg


def test_the_command_line_says_what_is_left_out(tmp_path, capsys, monkeypatch):
    path = tmp_path / "commands.metal"
    path.write_text(HEADER + COMMANDS + FINE)
    assert msl.main_compile([str(path), "-o", str(tmp_path / "commands.so")]) == 0
    said = "encode is not in the library, because of indirect command buffers (render_command)"
    assert capsys.readouterr().err.splitlines() == [said]
    assert check.main([str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: note: metalops does not run kernel encode because of indirect command buffers (render_command)"
    ]
