"""Kernels: how they are written, what they are given, what the table says about them."""

import pytest
import torch
from metalops import _host, msl
from metalops.msl.analysis.program import integer_value

BUILTINS = """
    kernel void k(device uint* out,
                  ushort3 position [[thread_position_in_grid]],
                  uint3 grid [[threads_per_grid]],
                  uint3 size [[threads_per_threadgroup]],
                  uint3 full [[dispatch_threads_per_threadgroup]],
                  uint3 group [[threadgroup_position_in_grid]],
                  ushort3 groups [[threadgroups_per_grid]],
                  uint3 inside [[thread_position_in_threadgroup]],
                  uint index [[thread_index_in_threadgroup]],
                  ushort lane [[thread_index_in_simdgroup]],
                  uint simd [[simdgroup_index_in_threadgroup]],
                  uint simds [[simdgroups_per_threadgroup]],
                  uint width [[threads_per_simdgroup]],
                  uint execution [[thread_execution_width]],
                  uint quad_lane [[thread_index_in_quadgroup]],
                  uint quad [[quadgroup_index_in_threadgroup]],
                  uint quads [[quadgroups_per_threadgroup]],
                  uint full_simds [[dispatch_simdgroups_per_threadgroup]]) {
      BARRIER
      device uint* o = out + 31 * (position.x + grid.x * (position.y + grid.y * position.z));
      uint3 threes[] = {uint3(position), grid, size, full, group, uint3(groups), inside};
      for (int i = 0; i < 7; i++) for (int c = 0; c < 3; c++) *o++ = threes[i][c];
      uint ones[] = {index, lane, simd, simds, width, execution, quad_lane, quad, quads, full_simds};
      for (int i = 0; i < 10; i++) *o++ = ones[i];
    }
"""


def expected_builtins(grid, group):
    rows = []
    groups = [-(-a // b) for a, b in zip(grid, group)]
    volume = group[0] * group[1] * group[2]
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                at = (x, y, z)
                place = [p // g for p, g in zip(at, group)]
                size = [min(g, n - q * g) for g, n, q in zip(group, grid, place)]
                inside = [p - q * g for p, q, g in zip(at, place, group)]
                index = inside[0] + size[0] * (inside[1] + size[1] * inside[2])
                count = size[0] * size[1] * size[2]
                rows.append(
                    [*at, *grid, *size, *group, *place, *groups, *inside]
                    + [index, index % 32, index // 32, -(-count // 32), 32, 32]
                    + [index % 4, index // 4, -(-count // 4), -(-volume // 32)]
                )
    return rows


@pytest.mark.parametrize("engine", ["loop", "fiber"])
@pytest.mark.parametrize(
    "grid, group", [((7, 5, 3), (4, 2, 2)), ((70, 1, 1), (33, 1, 1)), ((5, 5, 1), (5, 5, 1))]
)
def test_builtins_in_whole_and_partial_groups(program, engine, grid, group):
    p = program(BUILTINS.replace("BARRIER", ""))
    out = torch.zeros(grid[0] * grid[1] * grid[2], 31, dtype=torch.int32)
    p.launch("k", out, grid=grid, group=group, engine=engine)
    assert out.tolist() == expected_builtins(grid, group)


def test_builtins_in_kernels_that_synchronise(program):
    p = program(BUILTINS.replace("BARRIER", "threadgroup_barrier(mem_flags::mem_none);"))
    assert "loop" not in p.table()["k"]["engines"]
    out = torch.zeros(7 * 5 * 3, 31, dtype=torch.int32)
    p.launch("k", out, grid=(7, 5, 3), group=(4, 2, 2))
    assert out.tolist() == expected_builtins((7, 5, 3), (4, 2, 2))


@pytest.mark.parametrize(
    "kind", ["ushort", "uint", "ushort2", "uint2", "const uint3", "thread const uint&"]
)
def test_builtins_of_every_type(program, kind):
    first = "p" if kind.endswith(("t", "&")) else "p.x"
    p = program(
        f"kernel void k(device uint* out, {kind} p [[thread_position_in_grid]]) {{ out[{first}] = {first}; }}"
    )
    out = torch.full((9,), -1, dtype=torch.int32)
    p.launch("k", out, grid=9, group=4)
    assert out.tolist() == list(range(9))


def test_automatic_numbering_takes_the_lowest_free_index(program):
    p = program("""
        kernel void k(device float* a, constant float* b [[buffer(0)]], constant float& c, constant float* d [[buffer(3)]],
                      threadgroup float* s, threadgroup float* t [[threadgroup(0)]], device float* e,
                      uint i [[thread_position_in_grid]]) { a[0] = b[0] + c + d[0] + e[0]; }
    """)
    arguments = {a["name"]: a for a in p.table()["k"]["arguments"]}
    assert {n: a["index"] for n, a in arguments.items()} == dict(
        a=1, b=0, c=2, d=3, s=1, t=0, e=4, i=-1
    )
    assert [a["kind"] for a in arguments.values()].count("threadgroup") == 2


def test_kernel_table(program):
    p = program("""
        struct params { int n; float x[3]; };
        enum { kIn = 5 };
        [[max_total_threads_per_threadgroup(256)]]
        kernel void k(device half4 *out [[buffer(0)]], const device uchar* in [[buffer(kIn)]],
                      constant params& p [[buffer(2)]], device atomic_uint& n [[buffer(4)]],
                      device const void* anything [[buffer(3)]],
                      uint2 i [[thread_position_in_grid]]) {}
    """)
    entry = p.table()["k"]
    assert entry["max_threads_per_threadgroup"] == 256
    facts = [
        (a["name"], a["attribute"], a["index"], a["element_bytes"], a["writable"])
        for a in entry["arguments"]
    ]
    assert facts == [
        ("out", "buffer", 0, 8, True),
        ("in", "buffer", 5, 1, False),
        ("p", "buffer", 2, 16, False),
        ("n", "buffer", 4, 4, True),
        ("anything", "buffer", 3, 0, False),
        ("i", "thread_position_in_grid", -1, 0, False),
    ]
    assert entry["arguments"][0]["type"] == "device half4 *"
    assert entry["arguments"][5]["variation"] == "affine_lane"


def test_templates_instantiated_in_every_style(program):
    p = program("""
        template <typename T, int N = 1>
        kernel void scale(device T* out, constant T* in, uint i [[thread_position_in_grid]]) { out[i] = in[i] * N; }
        template [[host_name("a")]] kernel void scale<float, 2>(device float*, constant float*, uint);
        template [[host_name("b")]] [[kernel]] decltype(scale<half, 3>) scale<half, 3>;
        typedef decltype(scale<int, 4>) scale_t;
        template [[host_name("c")]] kernel scale_t scale<int, 4>;
        template [[host_name("d" "_" "e")]] kernel void scale(device short* out [[buffer(0)]],
            constant short* in [[buffer(1)]], uint i [[thread_position_in_grid]]);
        #define instantiate_kernel(name, function, ...) \\
          template [[host_name(name)]] [[kernel]] decltype(function<__VA_ARGS__>) function<__VA_ARGS__>;
        instantiate_kernel("scale_" "uchar_6", scale, uchar, 2 * 3)
        template [[kernel, host_name("f")]] decltype(::scale<float, 7>) (::scale<float, 7>);
        template kernel void (scale<float, (9 > 8) + 7>) [[host_name("g")]] (device float*, constant float*, uint);
        template [[kernel]] decltype(scale<float>) scale<float>;
        [[kernel]] void plain(device float* out) { out[0] = 5; }
        [[host_name("renamed")]] kernel void original(device float* out) { out[0] = 6; }
        namespace inner { kernel void nested(device float* out) { out[0] = 7; } }
        namespace { [[host_name("hidden")]] kernel void anonymous(device float* out) { out[0] = 8; } }
        template <typename T> kernel void never(device T* out) { out[0] = T::nothing; }
    """)
    templates = ["a", "b", "c", "d_e", "scale_uchar_6", "f", "g", "scale<float>"]
    assert list(p.table()) == [*templates, "plain", "renamed", "inner::nested", "hidden"]
    for name, dtype, factor in [
        ("a", torch.float, 2),
        ("b", torch.half, 3),
        ("c", torch.int32, 4),
        ("d_e", torch.int16, 1),
        ("scale_uchar_6", torch.uint8, 6),
        ("f", torch.float, 7),
        ("g", torch.float, 8),
        ("scale<float>", torch.float, 1),
    ]:
        x = torch.arange(5).to(dtype)
        out = torch.zeros(5, dtype=dtype)
        p.launch(name, out, x, grid=5)
        assert out.tolist() == (x * factor).tolist()
    for name, value in [("plain", 5), ("renamed", 6), ("inner::nested", 7), ("hidden", 8)]:
        out = torch.zeros(1)
        p.launch(name, out, grid=1)
        assert out[0] == value


def test_instantiations_inside_namespaces_see_their_names(program):
    p = program("""
        namespace lib {
          struct square { float operator()(float x) { return x * x; } };
          template <typename F> kernel void map(device float* x, uint i [[thread_position_in_grid]]) { x[i] = F()(x[i]); }
          template [[host_name("square")]] kernel void map<square>(device float*, uint);
        }
        struct cube { float operator()(float x) { return x * x * x; } };
        template [[host_name("cube")]] kernel void lib::map<cube>(device float*, uint);
    """)
    for name, power in [("square", 2), ("cube", 3)]:
        x = torch.arange(4.0)
        p.launch(name, x, grid=4)
        assert x.tolist() == [i**power for i in range(4)]


def test_templates_of_one_name_in_several_namespaces(program):
    p = program("""
        template <typename T> kernel void f(device T* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }
        namespace a {
          template <typename T> kernel void f(uint i [[thread_position_in_grid]], device T* x) { x[i] = 2; }
          namespace b { template <typename T> kernel void f(device T* x, ushort i [[thread_position_in_grid]]) { x[i] = 3; } }
          template [[host_name("inside")]] [[kernel]] decltype(f<float>) f<float>;
          template [[host_name("below")]] [[kernel]] decltype(b::f<float>) b::f<float>;
          template [[host_name("outside")]] [[kernel]] decltype(::f<float>) (::f<float>);
        }
        template [[host_name("global")]] [[kernel]] decltype(f<half>) f<half>;
        template [[host_name("qualified")]] [[kernel]] decltype(a::f<half>) a::f<half>;
        template [[host_name("deep")]] kernel void a::b::f<half>(device half*, ushort);
        namespace c = a::b;
        template [[host_name("alias")]] [[kernel]] decltype(c::f<int>) c::f<int>;
    """)
    for name, dtype, value in [
        ("inside", torch.float, 2),
        ("below", torch.float, 3),
        ("outside", torch.float, 1),
        ("global", torch.half, 1),
        ("qualified", torch.half, 2),
        ("deep", torch.half, 3),
        ("alias", torch.int32, 3),
    ]:
        x = torch.zeros(3, dtype=dtype)
        p.launch(name, x, grid=3)
        assert x.tolist() == [value] * 3, name


def test_overloaded_kernel_templates(program):
    p = program("""
        template <typename T> kernel void f(device T* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }
        template <typename T> kernel void f(device T* x, constant T& y, uint i [[thread_position_in_grid]]) { x[i] = y; }
        template [[host_name("one")]] kernel void f<float>(device float*, uint);
        template [[host_name("two")]] kernel void f<float>(device float*, constant float&, uint);
    """)
    for name, more, value in [("one", [], 1), ("two", [torch.tensor([9.0])], 9)]:
        x = torch.zeros(2)
        p.launch(name, x, *more, grid=2)
        assert x.tolist() == [value] * 2


def test_forward_declared_and_recursive_names(program):
    p = program("""
        kernel void later(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]);
        float helper(float x);
        kernel void later(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = helper(i); }
        float helper(float x) { return x + 1; }
    """)
    out = torch.zeros(3)
    p.launch("later", out, grid=3)
    assert out.tolist() == [1, 2, 3]


def test_argument_buffers_hold_addresses(program):
    p = program("""
        struct table {
          device float* out [[id(0)]];
          constant float* in [[id(1)]];
          array<device float*, 2> more [[id(2)]];
          uint count [[id(4)]];
        };
        kernel void k(constant table& t [[buffer(0)]], uint i [[thread_position_in_grid]]) {
          if (i < t.count) t.out[i] = t.in[i] + t.more[1][i];
        }
    """)
    out, a, b = torch.zeros(4), torch.arange(4.0), torch.full((4,), 10.0)
    values = torch.tensor([out.data_ptr(), a.data_ptr(), 0, b.data_ptr(), 3])
    p.launch("k", values, grid=4)
    assert out.tolist() == [10, 11, 12, 0]


def test_reference_parameters_whose_address_is_taken(program):
    p = program("""
        kernel void k(device float* out, constant float& first, uint i [[thread_position_in_grid]]) {
          constant float* all = &first;
          out[i] = all[i];
        }
    """)
    out = torch.zeros(3)
    p.launch("k", out, torch.tensor([1.0, 2.0, 3.0]), grid=3)
    assert out.tolist() == [1, 2, 3]


def test_bytes_shorter_than_the_parameter_are_zero_extended(program):
    p = program("kernel void k(device long* out, constant long& n) { out[0] = n; }")
    out = torch.zeros(1, dtype=torch.int64)
    p.launch("k", out, (-1).to_bytes(4, "little", signed=True), grid=1)
    assert out[0] == 0xFFFFFFFF


def test_in_place_and_overlapping_buffers(program):
    p = program("""
        kernel void k(device float* x, device const float* y, uint i [[thread_position_in_grid]]) { x[i] = y[i] + x[i]; }
    """)
    x = torch.arange(1000.0)
    p.launch("k", x, x, grid=1000, group=256)
    assert x.tolist() == [2 * i for i in range(1000)]


def test_private_arrays_are_not_shared_between_threads(program):
    p = program("""
        kernel void k(device int* out, constant int* in, uint i [[thread_position_in_grid]]) {
          int own[4] = {0, 0, 0, 0};
          int4 vector = 0;
          for (int j = 0; j < 4; j++) { own[in[i] & 3] += j; vector[(in[i] + j) & 3] = j; }
          out[i] = own[in[i] & 3] * 10 + vector[i & 3];
        }
    """)
    x = torch.randint(0, 100, (999,), dtype=torch.int32)
    out = torch.zeros_like(x)
    p.launch("k", out, x, grid=999, group=128)
    assert out.tolist() == [60 + (i - v) % 4 for i, v in enumerate(x.tolist())]


def test_functions_of_other_stages_are_left_out(program):
    p = program("""
        struct v2f { float4 position [[position]]; float2 uv; };
        vertex v2f vs(uint id [[vertex_id]], constant float4* v [[buffer(0)]]) { v2f o; o.position = v[id]; return o; }
        fragment float4 fs(v2f in [[stage_in]], float2 c [[point_coord]]) { return in.position; }
        [[vertex]] float4 vs2() { return 0; }
        kernel void k(device float* out) { out[0] = 1; }
    """)
    assert list(p.table()) == ["k"]


def test_kernels_with_multisampled_textures_are_left_out(program):
    p = program("""
        kernel void t(texture2d_ms<float, access::read> in [[texture(0)]], uint2 p [[thread_position_in_grid]]) {}
        kernel void k(device float* out) { out[0] = 1; }
    """)
    assert list(p.table()) == ["k"]


def test_kernels_with_textures_in_buffers_are_kernels(program):
    p = program("""
        struct Image { uint width; texture2d<float> pixels; };
        struct Images { Image images[2]; sampler s; };
        struct Plain { uint width; texture2d<float> pixels(device Image& i) { return i.pixels; } };
        kernel void a(device texture2d<float>* t [[buffer(0)]], device float* out [[buffer(1)]]) { out[0] = 1; }
        kernel void b(constant Image& i [[buffer(0)]], device float* out [[buffer(1)]]) { out[0] = i.width; }
        kernel void c(constant Images* i [[buffer(0)]], device float* out [[buffer(1)]]) { out[0] = 1; }
        kernel void d(constant Plain& p [[buffer(0)]], device float* out [[buffer(1)]]) { out[0] = p.width; }
        kernel void e(constant Plain* texture2d, device float* out) { out[0] = texture2d->width; }
    """)
    assert list(p.table()) == ["a", "b", "c", "d", "e"]


def test_only_the_kernels_asked_for():
    source = (
        "kernel void a(device int* x) { x[0] = 1; }\nkernel void b(device int* x) { x[0] = 2; }\n"
    )
    path = msl.compile_source(source, options=msl.Options(kernels=("b",)))
    assert _host.Library(path).names() == ["b"]
    with pytest.raises(ValueError, match="no kernel 'c'"):
        msl.compile_source(source, options=msl.Options(kernels=("b", "c")))


def test_kernels_and_types_with_any_names(program):
    p = program("""
        struct row { float v; };
        struct launch {};
        template <typename T> kernel void thread_(device float* x) { x[0] = sizeof(T); }
        template [[host_name("t")]] kernel void thread_<row>(device float*);
        kernel void group(device float* begin, uint end [[thread_position_in_grid]]) { begin[end] = 1; }
        kernel void x(device row* argument_0, uint at [[thread_position_in_threadgroup]]) {
          threadgroup float first[4];
          first[at] = 2;
          threadgroup_barrier(mem_flags::mem_threadgroup);
          argument_0[at].v = first[at];
        }
        kernel void rows(device float* row) { launch l; row[0] = 3 + sizeof(l); }
    """)
    for name, value in [("t", 4), ("group", 1), ("x", 2), ("rows", 4)]:
        out = torch.zeros(1)
        p.launch(name, out, grid=1)
        assert out[0] == value


def test_enumerations_shared_with_the_host(program):
    p = program("""
        #ifdef __METAL_VERSION__
        #define NS_ENUM(_type, _name) enum _name : _type _name; enum _name : _type
        #define NSInteger metal::int32_t
        #endif
        typedef NS_ENUM(NSInteger, BufferIndex) { kResult = 0, kInput = 1 };
        typedef enum Shade : uchar Tone;
        enum Shade : uchar { dark, light };
        #if !defined(__LITTLE_ENDIAN__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
        #error "Metal is little-endian"
        #endif
        kernel void k(device float* out [[buffer(kResult)]], constant float& in [[buffer(kInput)]]) {
          Tone tone = light;
          BufferIndex index = kInput;
          out[0] = in + tone + index + 10 * sizeof(Tone);
        }
    """)
    out = torch.zeros(1)
    p.launch("k", out, torch.tensor([5.0]), grid=1)
    assert out.item() == 17


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("12u", 12), ("(7)", 7), ("0x1F", 31), ("010", 8), ("08", None), ("N + 1", None)],
)
def test_integer_literals_are_read_as_cpp_reads_them(text, value):
    assert integer_value(text) == value


OPEN_ENDED = """
struct Item { float2 a; };
typedef Item Items[1];
struct Typedef { Items items; };
struct Outer { uint count; Typedef last; };
struct Plain { float x[1]; };
kernel void k(device float* out, const device Plain& p [[buffer(1)]], constant Typedef& t [[buffer(2)]],
              const device Outer& o [[buffer(3)]], uint i [[thread_position_in_grid]]) {
  out[i] = p.x[i] + t.items[i].a.y + 1000 * o.last.items[i].a.x + o.count;
}
"""


@pytest.mark.parametrize("engine", ["loop", "fiber"])
def test_read_only_references_to_structs_whose_last_array_goes_on(program, engine):
    """As the shaders of SPIRV-Cross and naga declare buffers of any length."""
    out = torch.zeros(100)
    p, t, o = torch.arange(100.0), torch.rand(100, 2), torch.rand(101, 2)
    o[0, 0] = 0
    program(OPEN_ENDED).launch("k", out, p, t, o, grid=100, engine=engine)
    assert torch.allclose(out, p + t[:, 1] + 1000 * o[1:, 0])


ELEMENTS = """
template <typename T, uint Num> struct values {
  T elements[Num];
  thread T& operator[](uint i) { return elements[i]; }
  threadgroup T& operator[](uint i) threadgroup { return elements[i]; }
};
kernel void k(device float* out, device const float* x, uint i [[thread_position_in_threadgroup]]) {
  threadgroup values<float, 4> shared;
  values<int, 2> own;
  float given = x[i];
  shared[i] = given;
  own[1] = given;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = shared[3 - i] + own[1];
}
"""


def test_elements_of_a_class_are_assigned(program):
    """The type of `shared[i]` is named T where its class is declared."""
    out, x = torch.zeros(4), torch.tensor([1.5, 2.0, 3.25, 4.0])
    program(ELEMENTS).launch("k", out, x, grid=4)
    assert out.tolist() == [5.0, 5.25, 5.0, 5.5]


MULTISAMPLED = """
template <typename T> uint2 size_of(T t) { return uint2(t.get_width(), t.get_height()); }
float4 first(texture2d_ms<float> t) { return t.read(size_of(t), 0) / t.get_num_samples(); }
float last(depth2d_ms_array<float> t) { return t.read(uint2(0), t.get_array_size() - 1, 0); }
kernel void resolve(texture2d_ms<float> t, device float4* o) { o[0] = first(t); }
kernel void k(device float* o) { o[0] = 3; }
"""


def test_functions_of_multisampled_textures_cost_no_other_kernel(program):
    out = torch.zeros(1)
    p = program(MULTISAMPLED)
    p.launch("k", out, grid=1)
    assert out[0] == 3
    with pytest.raises(KeyError, match="resolve"):
        p.launch("resolve", out, grid=1)
