"""Expressions that mean something else in C++."""

import pytest
import torch


def test_literals_are_float(program):
    p = program("""
        kernel void k(device float* out, constant float* in) {
          out[0] = in[0] * 0.1 + 1e-3 + .5 + 0x1p-2;
          out[1] = sizeof(1.0) + sizeof(1.0h) + sizeof(2.bf) + sizeof(1.f);
          out[2] = float(0.1h) + 1.5h * 2.0h;
          out[3] = float(1.0e-1bf);
        }
    """)
    out = torch.zeros(4)
    p.launch("k", out, torch.tensor([3.0]), grid=1)
    f = torch.tensor
    assert out[0] == f(3.0) * f(0.1) + f(1e-3) + f(0.5) + f(0.25)
    assert out[1] == 4 + 2 + 2 + 4
    assert out[2] == torch.tensor(0.1).half().float() + 3
    assert out[3] == torch.tensor(0.1).bfloat16().float()


def test_swizzles_read_and_assign(program):
    p = program("""
        kernel void k(device float4* out, constant float4& in, device packed_float3* packed) {
          float4 v = in;
          out[0] = v.wzyx;
          out[1] = float4(v.rg, v.ba) + (all(v.yzw < 5) ? 0 : 1);
          v.xy = v.yx;
          v.zw += float2(10, 20);
          out[2] = v;
          device float4* p = out + 3;
          p->xyz = in.xxx;
          p->w = in.a;
          p->r *= 2;
          out[4].rgb = in.bgr;
          (out[4]).w = (in.xy + in.zw).y;
          packed[0].xy = in.yz;
          packed[0].z = packed[0].xy.x;
        }
    """)
    out = torch.zeros(5, 4)
    packed = torch.zeros(3)
    p.launch("k", out, torch.tensor([1.0, 2.0, 3.0, 4.0]), packed, grid=1)
    assert out.tolist() == [
        [4, 3, 2, 1],
        [1, 2, 3, 4],
        [2, 1, 13, 24],
        [2, 1, 1, 4],
        [3, 2, 1, 6],
    ]
    assert packed.tolist() == [2, 3, 2]


def test_members_named_like_swizzles(program):
    p = program("""
        struct color { float r, g, b; float2 xy; float rgb() const { return r + g + b; } };
        template <typename T> float red(T t) { return t.r; }
        struct keeper { int r; int get() { return this->r; } };
        kernel void k(device float* out) {
          color c = {1, 2, 3, float2(4, 5)};
          c.xy.x += 1;
          c.xy = c.xy.yx;
          keeper q = {7};
          out[0] = c.r + c.xy.x + c.rgb();
          out[1] = red(c) + red(float4(8));
          out[2] = q.get();
        }
    """)
    out = torch.zeros(3)
    p.launch("k", out, grid=1)
    assert out.tolist() == [1 + 5 + 6, 9, 7]


def test_shift_counts_are_taken_modulo_the_width(program):
    p = program("""
        kernel void k(device uint* out, constant uint* n, device long* wide, constant uchar& narrow,
                      uint i [[thread_position_in_grid]]) {
          out[i] = 1u << n[i];
          wide[i] = 1l << n[i];
          uint v = 0x80000000u;
          v >>= n[i];
          out[i] += v + (narrow << n[i]);
        }
    """)
    counts = torch.tensor([0, 1, 31, 32, 33, 64, 65], dtype=torch.int32)
    out, wide = torch.zeros(7, dtype=torch.int32), torch.zeros(7, dtype=torch.int64)
    p.launch("k", out, counts, wide, torch.tensor([3], dtype=torch.uint8), grid=7)
    expected = []
    for n in counts.tolist():
        m = n % 32
        value = ((1 << m) + (0x80000000 >> m) + (3 << m)) % 2**32
        expected.append(value - 2**32 if value >= 2**31 else value)
    assert out.tolist() == expected
    assert wide.tolist() == [1 << (n % 64) for n in counts.tolist()]


@pytest.mark.parametrize("count", ["31", "32", "33u", "0x21", "041", "63", "64ul", "(65)"])
def test_shift_counts_that_are_literals_are_taken_modulo_the_width(program, count):
    """Of literals, which a C++ compiler evaluates itself, and of variables; of int, uint, long, ulong and narrower types."""
    p = program(f"""
        constant constexpr uint at_program_scope = 1u << {count};
        kernel void k(device uint* out, device long* wide, constant uint& n, constant uchar& narrow) {{
          uint v = n;
          v <<= {count};
          out[0] = 1u << {count};
          out[1] = 0x80000005u >> {count};
          out[2] = uint(5 << {count});
          out[3] = n << {count};
          out[4] = v;
          v = n;
          v >>= {count};
          out[5] = v;
          out[6] = at_program_scope;
          out[7] = narrow << {count};
          out[8] = uint(int(n) >> {count});
          out[9] = uint(-8 >> {count});
          wide[0] = 1l << {count};
          wide[1] = long(0x8000000000000005ul >> {count});
          wide[2] = long(n) << {count};
        }}
    """)
    n, narrow = 0x90000007, 3
    out, wide = torch.zeros(10, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)
    number = torch.tensor([n - 2**32], dtype=torch.int32)
    p.launch("k", out, wide, number, torch.tensor([narrow], dtype=torch.uint8), grid=1)
    digits = count.strip("()ul")
    s = int(digits, 8 if digits[0] == "0" and digits[1] != "x" else 0)
    m, w = s % 32, s % 64
    expected = [1 << m, 0x80000005 >> m, 5 << m, n << m, n << m, n >> m, 1 << m, narrow << m]
    expected += [(n - 2**32) >> m, -8 >> m]
    assert [x % 2**32 for x in out.tolist()] == [x % 2**32 for x in expected]
    expected = [1 << w, 0x8000000000000005 >> w, n << w]
    assert [x % 2**64 for x in wide.tolist()] == [x % 2**64 for x in expected]


def test_integer_division_does_not_trap(program):
    p = program("""
        kernel void k(device int* out, constant int* a, constant int* b, uint i [[thread_position_in_grid]]) {
          int q = a[i] / b[i];
          int r = a[i] % b[i];
          int s = a[i];
          s /= b[i];
          out[i] = (q == s) + (b[i] != 0 ? 2 * (q * b[i] + r == a[i]) : 2);
        }
    """)
    low = -(2**31)
    a = torch.tensor([7, -7, 5, low, low, 0], dtype=torch.int32)
    b = torch.tensor([2, 2, 0, -1, 0, 0], dtype=torch.int32)
    out = torch.zeros(6, dtype=torch.int32)
    p.launch("k", out, a, b, grid=6)
    assert out.tolist() == [3] * 6


def test_division_of_other_types_is_left_alone(program):
    p = program("""
        struct ratio { float v; ratio operator/(ratio o) const { return {v / o.v}; } };
        template <int N> struct halved { float data[N / 2]; };
        constant constexpr int eight = 8;
        template <int A, int B> constexpr int quotient() { return A / B; }
        kernel void k(device float* out, constant float& x, constant int& n) {
          ratio a = {6}, b = {4};
          float two[eight / quotient<8, 2>()];
          two[1] = x / n;
          half h = half(x) / half(4);
          float4 v = float4(x) / 2;
          out[0] = (a / b).v + two[1] + h + (v / float4(2)).x;
          out[1] = sizeof(halved<eight>) + sizeof(two);
          out[2] = x / 0;
        }
    """)
    out = torch.zeros(3)
    p.launch("k", out, torch.tensor([8.0]), torch.tensor([2], dtype=torch.int32), grid=1)
    assert out.tolist() == [1.5 + 4 + 2 + 2, 16 + 8, float("inf")]


@pytest.mark.parametrize(
    "kind, dtype", [("float", torch.float), ("bfloat", torch.bfloat16), ("int", torch.int32)]
)
def test_conditional_expressions_with_integer_arms(program, kind, dtype):
    p = program(f"""
        kernel void k(device {kind}* out, constant {kind}* in, uint i [[thread_position_in_grid]]) {{
          {kind} y = in[i] > 0 ? in[i] : 0;
          out[i] = in[i] < 0 ? -1 : in[i] > 5 ? y : 0;
        }}
    """)
    out = torch.zeros(3, dtype=dtype)
    p.launch("k", out, torch.tensor([-4, 2, 9]).to(dtype), grid=3)
    assert out.tolist() == [-1, 0, 9]


def test_names_that_libc_also_has(program):
    p = program("""
        struct div { float operator()(float a, float b) { return a / b; } };
        float index(float x) { return x + 1; }
        float y0(float x) { return x; }
        constant int linux = 3, unix = 4;
        typedef float time;
        kernel void k(device float* out) { out[0] = div()(8, 2) + index(1) + y0(1) + time(1) + linux + unix; }
    """)
    out = torch.zeros(1)
    p.launch("k", out, grid=1)
    assert out[0] == 4 + 2 + 1 + 1 + 7


def test_global_and_nested_names(program):
    p = program("""
        float twice(float x) { return 2 * x; }
        namespace c10 { namespace metal {
          float max(float a, float b) { return ::metal::max(a, b) + ::twice(1); }
        } }
        namespace metal { struct added_by_user { static constexpr constant int value = 3; }; }
        namespace a::b { template <typename T> T id(T t) { return t; } }
        kernel void k(device float* out) {
          bool less = out[0] < ::a::b::id<float>(2);
          out[0] = c10::metal::max(1, 2) + max(3.0, 4.0) + metal::added_by_user::value + less;
        }
    """)
    out = torch.zeros(1)
    p.launch("k", out, grid=1)
    assert out[0] == 4 + 4 + 3 + 1


def test_functions_that_overload_the_standard_library(program):
    p = program("""
        struct number { float v; };
        number max(number a, number b) { return a.v > b.v ? a : b; }
        float abs(number a) { return a.v < 0 ? -a.v : a.v; }
        kernel void k(device float* out) {
          number a = {-3}, b = {2};
          out[0] = max(a, b).v + max(5.0, 6.0) + abs(a) + abs(-1.0);
        }
    """)
    out = torch.zeros(1)
    p.launch("k", out, grid=1)
    assert out[0] == 2 + 6 + 3 + 1


def test_lambdas(program):
    p = program("""
        template <typename F> float apply(F f) { return f(3) + f(4); }
        kernel void k(device float* out, uint i [[thread_position_in_grid]]) {
          float c = i;
          auto square = [=](float x) { return x * x + c; };
          out[i] = apply(square) + apply([&](float x) -> float { return x / 2 + out[i]; });
        }
    """)
    out = torch.zeros(2)
    p.launch("k", out, grid=2)
    assert out.tolist() == [25 + 3.5, 27 + 3.5]


def test_pragmas_are_left_out(program):
    p = program("""
        #define COUNT 4
        kernel void k(device float* out) {
          #pragma unroll(MAX(COUNT, 2))
          for (int i = 0; i < COUNT; i++) out[0] += i;
          #pragma clang loop unroll(full)
          for (int i = 0; i < COUNT; i++) out[0] += i;
        }
    """)
    out = torch.zeros(1)
    p.launch("k", out, grid=1)
    assert out[0] == 12


def test_vector_widths_are_deduced_as_any_integer_type(program):
    p = program("""
        template <typename T, uint N> T total(vec<T, N> v) {
          T sum = 0;
          for (uint i = 0; i < N; i++) sum += v[i];
          return sum;
        }
        template <typename T, ushort N, size_t M>
        void put(device T* out, thread const metal::vec<T, N> (&a)[M]) {
          for (size_t i = 0; i < M; i++) out[i] = total(a[i]);
        }
        kernel void k(device float* out) {
          const float3 a[2] = {float3(1, 2, 3), float3(4, 5, 6)};
          put(out, a);
        }
    """)
    out = torch.zeros(2)
    p.launch("k", out, grid=1)
    assert out.tolist() == [6, 15]


def test_colons_before_what_is_rewritten(program):
    """`c ? a:b / c` must not become `c ? a:::msl...`, which begins with `::`."""
    p = program("""
        kernel void k(device int* out, constant int& n, uint i [[thread_position_in_grid]]) {
          out[i] = i > 1 ? n:n / 2;
          switch (n) { case 7:out[i] <<= n % 3; break; default:out[i] /= n; }
        }
    """)
    out = torch.zeros(4, dtype=torch.int32)
    p.launch("k", out, torch.tensor([7], dtype=torch.int32), grid=4)
    assert out.tolist() == [6, 6, 14, 14]


def test_bit_fields_may_be_called_as_components_are(program):
    p = program("""
        struct colour { uint r : 3; uint b : 5; int a : 4; };
        kernel void k(device int* out, device colour* in) {
          colour c = {5, 17, -3};
          c.b += 3;
          ++c.r;
          in->a = c.a;
          in[0].b = 7;
          out[0] = c.r + c.b;
          out[1] = max(c.r, 3u) + in[0].b * 2 + in->a;
          out[2] = uint4(c.r).a + (c.b << 1);
        }
    """)
    out = torch.zeros(3, dtype=torch.int32)
    p.launch("k", out, torch.zeros(1, dtype=torch.int32), grid=1)
    assert out.tolist() == [26, 17, 46]
