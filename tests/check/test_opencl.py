"""The second opinion: clang's OpenCL C++ mode with a metal_stdlib of ours."""

import re
import shutil
import subprocess

import pytest
from metalops.msl.analysis.absent import present_program
from metalops.msl.check import opencl
from metalops.msl.check.sources import Wanted
from metalops.msl.source.preprocess import preprocess

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"

needs_clang = pytest.mark.skipif(opencl.find() is None, reason="needs clang 15 or newer")


def check(text, include_dirs=()):
    source = preprocess(HEADER + text, include_dirs=include_dirs, language=310)
    present = present_program(source.parsed)
    return [(f.line, f.sentence) for f in opencl.check(source, present, Wanted([]))]


def _newest_clang():
    names = ["clang", *(f"clang-{number}" for number in range(15, 31))]
    commands = [[name, "--version"] for name in names if shutil.which(name)]
    outputs = [
        subprocess.run(c, capture_output=True, text=True, check=True).stdout for c in commands
    ]
    return max((int(re.search(r"version (\d+)", o)[1]) for o in outputs), default=0)


def test_a_clang_that_is_new_enough_reads_our_metal_stdlib():
    assert (opencl.find() is not None) == (_newest_clang() >= 15)


# What is right in Metal and would be wrong, or is written in another way, in OpenCL.
RIGHT = {
    "arrays_of_each_address_space_and_temporaries": """
        array<long, 2> f(int i) { array<long, 2> r = {i, 2 * i}; return r; }
        constant array<int, 2> table = {1, 2};
        kernel void k(device long* out, device array<int, 2>* d, constant array<int, 2>& c) {
          threadgroup array<int, 2> t;
          t[0] = 1;
          const array<int, 2> p = {1, 2};
          d[0][1] = 3;
          out[0] = f(1)[1] + t[0] + p[1] + d[0][0] + c[1] + table[0];
        }
    """,
    "vectors of several values": """
        template <typename T> inline T twice(float x) { return T(x, x); }
        kernel void k(device float4* out, constant uchar3& c) {
          out[0] = float4(twice<float2>(1), float2(2));
          out[1] = float4(float3(c), half(1));
          out[2] = float4(vec<float, 2>(1, 2), 3, 4);
        }""",
    "a vector of several values in a template that is called twice": """
        template <typename V> struct Packs;
        template <> struct Packs<float4> {
          template <typename T> static void store(device T* to, float4 x) {
            *reinterpret_cast<device vec<T, 4>*>(to) = vec<T, 4>(T(x.x), T(x.y), T(x.z), T(x.w));
          }
        };
        template <typename V, int N, typename T> void fill(device T* out) { Packs<V>::store(out, V(N)); }
        kernel void k(device half* out) { fill<float4, 1>(out); fill<float4, 2>(out + 4); }
    """,
    "copies of structures out of any address space": """
        struct Pair { float a, b; static Pair zero() { return Pair{0, 0}; } };
        template <typename T> T or_zero(device const T* x, uint i) { return i < 3 ? x[i] : T::zero(); }
        kernel void k(device Pair* out, constant Pair& p, uint i [[thread_position_in_grid]]) {
          Pair one = Pair(p), other = (Pair)p;
          out[0] = i > 1 ? p : Pair::zero();
          out[1] = i > 1 ? one : static_cast<Pair>(p);
          out[2] = or_zero(out, i);
        }""",
    "static members that are defined outside of their class": """
        struct Table { static constant const int size; static const constant float values[2]; };
        constant const int Table::size = 2;
        const constant float Table::values[2] = {1, 2};
        kernel void k(device float* out) { out[0] = Table::values[Table::size - 1]; }""",
    "functions of fragments": """
        struct Varying { float4 position [[position]]; float a; };
        fragment float4 f(Varying v [[stage_in]]) {
          if (v.a < 0) discard_fragment();
          return float4(dfdx(v.a));
        }
        kernel void k(device float* out) { out[0] = 1; }""",
    "vectors and wider scalars": """
        template <typename A, typename B> A as_functional(B b) { return A(b); }
        template <typename A, typename B> A as_c(B b) { return (A)b; }
        kernel void k(device half4* out, constant float& s, device short4* t, constant int& n) {
          out[0] = out[1] * s + 1.0f;
          out[2] *= s;
          t[0] = t[1] * n;
          out[3].xy = as_functional<half2>(float2(1)) + as_c<half2>(float2(2));
        }""",
    "conversions of vectors and of half and bfloat": """
        kernel void k(device half2* out, device bfloat* b) {
          out[0] = static_cast<half2>(float2(1, 2));
          b[0] = static_cast<bfloat>(out[0].x);
        }""",
    "threadgroup variables, also in templates and in blocks": """
        template <typename T, int N> kernel void k(device T* out) {
          threadgroup T all[N][2], last;
          for (int i = 0; i < N; ++i) {
            threadgroup vec<T, 2> pair;
            pair.x = T(i);
            all[i][0] = pair.x;
          }
          threadgroup_barrier(mem_flags::mem_threadgroup);
          last = all[0][0];
          out[0] = last;
        }
        template [[host_name("k_float")]] kernel void k<float, 4>(device float*);""",
    "comparisons of vectors": """
        kernel void k(device half2* out) {
          const bool2 less = out[0] < out[1];
          out[0] = select(out[0], out[1], less);
          out[1] = select(out[0], out[1], out[0] == out[1]);
          if (any(less) || all(isnan(out[0]))) out[2] = half2(0);
        }""",
    "copies of structures by templates, more than once": """
    struct tiny {
      uchar bits;
      tiny() = default;
      template <typename T> tiny(T x) : bits(uchar(x)) {}
    };
    template <typename T> T load(constant void* p, long i) { return static_cast<constant T*>(p)[i]; }
    template <typename T, typename P> T any(P p, long i) { return T(load<tiny>(p, i).bits); }
    kernel void f(constant void* a, device float* b, device int* c) {
      b[0] = any<float>(a, 0);
      c[0] = any<int>(a, 0);
    }""",
    "copies of structures": """
        struct Place { float x; int i; };
        kernel void k(device Place* out, constant Place* in) {
          threadgroup Place shared;
          const Place place = in[0];
          out[0] = place;
          shared = out[0];
          out[1] = in[1];
        }""",
    "a method that returns its object": """
        struct Sum {
          float x;
          thread Sum& add(float y) { x += y; return *this; }
        };
        kernel void k(device float* out) {
          Sum sum = {0};
          out[0] = sum.add(1).add(2).x;
        }""",
    "an enumeration as NS_ENUM declares it": """
        typedef enum Shade : int Shade; enum Shade : int { dark, light };
        kernel void k(device int* out) { out[0] = light; }""",
    "conversions of half and bfloat that a template asks for": """
        template <typename T, typename U, enable_if_t<(sizeof(T(U(1))) > 1), bool> = true>
        inline T cast_to(U x) { return T(x); }
        kernel void k(device half* out, device bfloat* b, device half2* c) {
          out[0] = cast_to<half>(b[0]);
          b[0] = cast_to<bfloat>(out[0]);
        }""",
    "widths of vectors that are deduced": """
        template <typename T, uint N> inline T first(vec<T, N> v) { return v[0]; }
        kernel void k(device float* out) { out[0] = first(float3(1, 2, 3)); }""",
    "pragmas": """
        kernel void k(device float* out) {
          #pragma unroll(MAX(COUNT, 2))
          for (int i = 0; i < 4; i++) out[0] += i;
        }""",
    "function constants": """
        constant bool flag [[function_constant(0)]];
        constant uint size [[function_constant(1)]];
        kernel void k(device float* out) { if (flag) out[0] = size; }""",
    "literals of half and bfloat": """
        kernel void k(device half* h, device bfloat* b) { h[0] = 1.5h; b[0] = 2.5bf; }""",
    "words of OpenCL": """
        kernel void k(device int* out) {
          int local = 1, global = 2, generic = 3, pipe = 4;
          out[0] = local + global + generic + pipe;
        }""",
    "the space of a variable beside that of its pointers": """
        kernel void k(device const float* in, device float* out) {
          thread const device float* rows[2];
          rows[0] = in;
          rows[1] = in + 1;
          out[0] = rows[0][0] + rows[1][0];
        }""",
    "bit-fields": """
        struct codes { uint low : 4; uint high : 4; };
        kernel void k(device uint* out, device const codes* c) { out[0] = c[0].low + c[1].high; }""",
    "packing and bits to insert": """
        kernel void k(device uint* out, device half2* h) {
          out[0] = pack_float_to_unorm4x8(unpack_snorm4x8_to_float(out[1]));
          h[0] = unpack_unorm2x16_to_half(insert_bits(out[2], out[3], 4, 2));
        }""",
    "constructors of objects in thread memory": """
        struct number {
          float x;
          number(float v) thread : x(v) {}
          number(float v) device : x(v) {}
        };
        number made(float v) { return v; }
        kernel void k(device float* out) { number a = number(out[1]); out[0] = a.x + made(2).x; }""",
    "matrices of each address space, and their products": """
        constant float3x3 turn = float3x3(float3(1), float3(2), float3(3));
        constant float2x2 table = {1, 2, 3, 4};
        struct Camera {
          float4x4 view;
          half3x3 small;
          float3x3 turned() const { return float3x3(view[0].xyz, view[1].xyz, view[2].xyz); }
        };
        template <typename T> T trace(matrix<T, 3, 3> m) { return m[0][0] + m[1][1] + m[2].z; }
        void add(thread float4x4& m, device const float4x4* p) { m += p[0]; m *= 2; m = p[1]; }
        kernel void k(device Camera* out, constant Camera& c, device float4x4* ms, constant float4x4* cs,
                      device float4* v) {
          threadgroup float2x2 shared[2];
          float4x4 m = c.view, zero(0.0f), other{};
          m = ms[3] * cs[2] + m - transpose(m) * 2 * -m;
          add(m, ms);
          v[0] = m * v[1] + v[2] * cs[1] + (2 * m)[1] + cs[0][3];
          ms[2] = cs[1];
          ms[1][2] = float4(v[3].xyz, c.view[0].x);
          ms[1][2][3] = c.view[0][1];
          shared[0] = table * float2x2(1);
          shared[0][1].x = shared[1].columns[0].y;
          out[0] = c;
          out[1].small = half3x3(float3x3(v[0].xyz, v[1].xyz, v[2].xyz));
          out[1].small[0] = half3(1);
          const float2x3 two = matrix<float, 2, 3>(v[0].xyz, v[1].xyz);
          Camera here = c;
          v[4].xyz = here.turned() * (two * v[5].xy) + trace(turn) + determinant(turn);
          device float4x4& last = ms[4];
          last = v[6].x > 0 ? m : c.view;
          last[0] = m == zero ? other[1] : v[7];
        }""",
    "matrices of a simdgroup, also as members": """
        template <typename T> struct Tile {
          simdgroup_matrix<T, 8, 8> a[2];
          simdgroup_float8x8 sum[2][2];
          void load(const threadgroup T* p, int ld) { simdgroup_load(a[1], p, ld, ulong2(0, 0), false); }
          void multiply(thread simdgroup_matrix<T, 8, 8>& b) {
            simdgroup_multiply_accumulate(sum[0][1], a[0], b, sum[0][1]);
          }
          void store(device float* out) {
            simdgroup_store(sum[0][0], out, 8);
            sum[0][1].thread_elements()[0] = sum[0][0].thread_elements()[1];
          }
        };
        kernel void k(device float* out, device const half* in, threadgroup half* s, constant int& n) {
          simdgroup_float8x8 sum[2];
          simdgroup_half8x8 a, b;
          sum[0] = make_filled_simdgroup_matrix<float, 8>(0.f);
          sum[1] = simdgroup_float8x8(0);
          simdgroup_load(a, in, n);
          simdgroup_load(b, s + 3, 8, ulong2(0), true);
          simdgroup_multiply_accumulate(sum[0], a, b, sum[0]);
          thread auto& mine = sum[0].thread_elements();
          mine[0] *= 2;
          simdgroup_store(sum[0] * sum[1], out, n, ulong2(0, 0), false);
          Tile<half> tile;
          tile.load(s, 8);
          tile.multiply(a);
          tile.store(out);
        }""",
    "names that are known with their namespace, too": """
        kernel void k(device uint* out, device float* x) {
          metal::nullptr_t none = nullptr;
          out[0] = metal::as_type<uint>(x[0]) + as_type<uint>(x[1]) + metal::uint(1);
        }""",
    "vectors in braces as arguments": """
        struct Box { float2 low; Box(const float2 x, float) thread : low(x) {} };
        float2 sum(const float2 x, thread const float3& y) { return {x.x + y.x, x.y}; }
        kernel void k(device float2* out, constant float& x) {
          out[0] = sum({x, 2}, {x, 1, 2});
          out[1] = Box({x, 3}, 4).low;
        }""",
    "types of variables as arguments of templates": """
        template <typename T> struct bytes { enum { each = 1 }; };
        template <typename T> struct bytes<device T*> { enum { each = sizeof(T) }; };
        template <int N> struct block { char of[N]; };
        kernel void k(device float* out) {
          auto at = out + 1;
          block<4> b = block<bytes<decltype(at)>::each>();
          at[0] = b.of[0];
        }""",
    "functions that are arguments of templates": """
        float twice(float x) { return 2 * x; }
        template <float (*F)(float)> float of(float x) { return F(x); }
        kernel void k(device float* out) { out[0] = of<twice>(out[1]); }""",
    "an assignment that is the usual one": """
        struct pair { float a, b; thread pair& operator=(const thread pair& other) = default; };
        kernel void k(device float* out) { pair p = {1, 2}, q; q = p; out[0] = q.b; }""",
    "members in braces that are copied out of any address space": """
        struct Places { long first, last; };
        struct Parameters { Places places; int size; };
        struct Operand { device float* first; Places places; int size; };
        Operand of(device float* x, constant Parameters& p) { return {x, p.places, p.size}; }
        kernel void k(device float* out, constant Parameters& p, device Parameters* others) {
          const Operand a = of(out, p), b{out, others[1].places, 2};
          out[a.places.first] = b.places.last;
        }""",
    "atomics of both address spaces": """
        kernel void k(device atomic_uint* out, device atomic<float>* sum) {
          threadgroup atomic_int count;
          uint expected = 0;
          atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
          atomic_compare_exchange_weak_explicit(out, &expected, 1, memory_order_relaxed,
                                                memory_order_relaxed);
          atomic_fetch_add_explicit(sum, 1, memory_order_relaxed);
        }""",
}


@needs_clang
@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_what_differs_between_the_languages_is_no_finding(text):
    assert check(text) == []


@needs_clang
def test_messages_speak_of_metal_and_of_the_users_lines():
    found = check(
        "kernel void k(device half2* out, uint i [[thread_position_in_grid]]) {\n"
        "  threadgroup half2 shared[4];\n"
        "  thread half2* p = i > 1 ? shared : shared + 1;\n}\n"
    )
    assert found == [
        (5, "cannot initialize a variable of type 'thread half2 *' with an rvalue of type "
            "'threadgroup half2 *'")
    ]  # fmt: skip


@needs_clang
def test_an_error_inside_a_template_of_others_is_at_the_line_that_uses_it(tmp_path):
    header = tmp_path / "c10" / "metal" / "others.h"
    header.parent.mkdir(parents=True)
    header.write_text("template <typename T> inline void clear(T x) { thread float* p = x; }\n")
    text = "#include <c10/metal/others.h>\nkernel void k(device float* out) {\n  clear(out);\n}\n"
    assert [line for line, _ in check(text, [tmp_path])] == [5]


@needs_clang
def test_a_source_with_what_our_metal_stdlib_lacks_is_left_alone():
    wrong = "  thread float* p = out;\n}\n"
    assert len(check("kernel void k(device float* out) {\n" + wrong)) == 1
    for type_ in ("texture2d<float>", "vec<bool, 2>"):
        assert check(f"kernel void k(device float* out) {{\n  {type_} x;\n" + wrong) == []


# What is wrong beside a matrix: the type of a variable, a line with that variable, and the end of the message.
BESIDE_MATRICES = {
    "a pointer": ("float4x4", "thread float* p = out;", "'device float *'"),
    "beside as_type": ("int", "m = metal::as_type<int>(c[0]), out = &m;", "space of pointer"),
    "a simdgroup's matrix": ("simdgroup_float8x8", "simdgroup_load(m, c);", "'simdgroup_load'"),
    "the space of a matrix": ("float3x3", "device float3x3* p = &m;", "'thread float3x3 *'"),
    "a column": ("float2x3", "thread float3& x = cs[0][1];", "changes address space"),
    "the shape of a factor": ("float2x3", "float3 x = m * float3(1);", "'float3')"),
}


@needs_clang
@pytest.mark.parametrize("kind", BESIDE_MATRICES)
def test_a_source_with_matrices_is_checked(kind):
    type_, wrong, ending = BESIDE_MATRICES[kind]
    text = "kernel void k(device float* out, constant float* c, constant float2x3* cs) {\n"
    ((line, sentence),) = check(f"{text}  {type_} m;\n  {wrong}\n}}\n")
    assert line == 5
    assert sentence.endswith(ending)


def test_without_clang_there_is_no_second_opinion(monkeypatch):
    monkeypatch.setattr(opencl, "find", lambda: None)
    assert check("kernel void k(device float* out) { thread float* p = out; }\n") == []


VALUES = """
struct A { int a; A(thread const int2& x) : a(x.x) {} };
int f(SPACE const int2& x) { return x.y; }
kernel void k(device int* o) { A a(int2(1, 2)); o[0] = a.a + f(int2(3, 4)); }
"""


@needs_clang
def test_a_value_is_bound_to_a_reference_into_thread_memory_alone():
    assert check(VALUES.replace("SPACE", "thread")) == []
    ((line, sentence),) = check(VALUES.replace("SPACE", "device"))
    assert line == 6
    assert sentence.startswith("no matching function for call to 'f'")


@needs_clang
def test_a_static_member_in_constant_memory_has_its_value_in_the_class():
    member = "class A { static constant uint p = 3; public: uint get() { return p; } };\n"
    assert check(member + "kernel void k(device uint* o) { A a; o[0] = a.get(); }") == []
