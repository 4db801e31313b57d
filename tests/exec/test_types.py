"""Vectors, packed vectors, swizzles, matrices, half and bfloat, conversions, limits: what the language's types do."""

import math

import numpy as np
import torch

from .conftest import build

SOURCE = """
kernel void swizzles(device float* out) {
  float4 v = float4(1, 2, 3, 4);
  float3 w = v.zyx;
  v.xy = v.yx;
  v.wz += float2(10, 20);
  v.x *= 5;
  packed_float3 p = packed_float3(w);
  p.xz = p.zx;
  p.y -= 1;
  float4 colour = v.bgra;
  out[0] = v.x; out[1] = v.y; out[2] = v.z; out[3] = v.w;
  out[4] = w.x; out[5] = w.y; out[6] = w.z;
  out[7] = p.x; out[8] = p.y; out[9] = p.z;
  out[10] = colour.x; out[11] = colour.a;
  float2x2 m = float2x2(float2(1, 2), float2(3, 4));
  m[1].yx = m[0];
  out[12] = m[1].x; out[13] = m[1].y;
  out[14] = v.xxyy.w; out[15] = float4(v.xy, v.zw).z;
}
kernel void constructors(device float* out) {
  float4 a = 3;
  float4 b = float4(float2(1, 2), 3, 4), c = float4(1, float2(2, 3), 4), d = float4(1, 2, float2(3, 4));
  float4 e = float4(float3(1, 2, 3), 4), f = float4(1, float3(2, 3, 4)), g = float4(int4(1, 2, 3, 4));
  float3 h = float3(float2(1, 2), 3), i = float3(1, uint2(2, 3).x, 3);
  float4 j = {1, 2, 3, 4};
  half4 k = half4(b);
  out[0] = a.x + a.w;
  out[1] = all(b == c) && all(c == d) && all(d == e) && all(e == f) && all(f == g) && all(g == j) && all(float4(k) == g);
  out[2] = h.x + 10 * h.y + 100 * h.z + 1000 * i.y;
  out[3] = float(sizeof(float3)) + 100 * sizeof(packed_float3) + 10000 * sizeof(half3) + 100000 * sizeof(packed_half3);
  out[4] = alignof(float4) + 100 * alignof(char2) + 10000 * alignof(packed_float4);
}
kernel void operators(device float* out) {
  int4 a = int4(5, -6, 7, 8);
  int4 b = a * 2 - 1;
  b += a;
  b <<= 1;
  b = b & 255;
  b |= int4(256, 0, 0, 0);
  bool4 c = a > 0;
  uint2 u = ~uint2(0, 1);
  float3 f = -float3(1, 2, 3) / 2.0f;
  f++;
  out[0] = b.x; out[1] = b.y; out[2] = b.z; out[3] = b.w;
  out[4] = any(c) + 10 * all(c) + 100 * c.y;
  out[5] = u.y == 0xfffffffe;
  out[6] = f.x; out[7] = f.z;
  out[8] = any(!c) + 10 * all(c || !c) + 100 * any(c && !c);
  short2 s = short2(30000, -30000) + short2(10000, -10000);
  out[9] = s.x; out[10] = s.y;
  out[11] = (2.0f / float2(4, 8)).y;
  out[12] = a[1] + a[3];
  a[2] = 70;
  out[13] = a.z;
}
kernel void geometry(device float* out) {
  float3 a = float3(1, 2, 3), b = float3(4, -5, 6);
  out[0] = dot(a, b);
  float3 c = cross(a, b);
  out[1] = c.x; out[2] = c.y; out[3] = c.z;
  out[4] = length(a); out[5] = distance(a, b); out[6] = length_squared(a); out[7] = distance_squared(a, b);
  float3 n = normalize(a);
  out[8] = n.y;
  out[9] = reflect(float3(1, -1, 0), float3(0, 1, 0)).y;
  out[10] = refract(normalize(float3(1, -1, 0)), float3(0, 1, 0), 0.5f).x;
  out[11] = faceforward(a, b, b).x;
  out[12] = float(dot(half2(1, 2), half2(3, 4)));
  out[13] = dot(packed_float3(a), packed_float3(b));
  out[14] = fast::length(float2(3, 4)) + precise::normalize(float2(0, 2)).y;
}
kernel void matrices(device float* out) {
  float2x3 m = float2x3(float3(1, 2, 3), float3(4, 5, 6));  // two columns of three
  float3 v = m * float2(10, 1);
  float2 w = float3(1, 1, 1) * m;
  float3x2 t = transpose(m);
  float2x2 p = t * m;
  out[0] = v.x; out[1] = v.y; out[2] = v.z; out[3] = w.x; out[4] = w.y;
  out[5] = t[2].y; out[6] = p[0].x; out[7] = p[1].x; out[8] = p[1].y;
  out[9] = determinant(float2x2(1, 2, 3, 4));
  out[10] = determinant(float3x3(float3(2, 0, 1), float3(1, 3, 2), float3(0, 1, 1)));
  out[11] = determinant(float4x4(float4(1, 2, 0, 1), float4(0, 1, 3, 1), float4(2, 0, 1, 1), float4(1, 1, 1, 2)));
  float4x4 identity = float4x4(1);
  out[12] = identity[2].z + 10 * identity[2].y;
  m[1].y = 50;
  m = m * 2 + m - float2x3(float3(1), float3(1));
  out[13] = m[1].y; out[14] = m.columns[0].x;
  half2x2 h = half2x2(p);
  out[15] = float(h[1].y) + (p == p) * 1000;
}
kernel void small_floats(device float* out, device const float* in) {
  half h = half(in[0]);
  bfloat b = bfloat(in[0]);
  out[0] = h; out[1] = b;
  out[2] = half(in[1]) * half(in[1]) + half(in[2]);  // rounds twice
  bfloat c = bfloat(in[1]);
  out[3] = c * c + bfloat(in[2]);
  out[4] = b + 1.0f;            // float
  out[5] = sizeof(b + 1.0f) * 100 + sizeof(b + b) * 10 + sizeof(h + h) + sizeof(b + 1) * 1000 + sizeof(h + 1.0f) * 10000;
  b += 1;
  c = 3;
  c *= 2.0f;
  out[6] = b; out[7] = c;
  out[8] = (in[0] > 0 ? b : 0) + (in[0] > 0 ? c : c) + (in[0] < 0 ? b : 0.5f);
  out[9] = as_type<ushort>(b); out[10] = as_type<ushort>(h);
  out[11] = as_type<bfloat>(ushort(0x4049));
  out[12] = b > 1 && b < 100.0f && b != c && !(b == c) && c >= 6 && 6 <= c;
  out[13] = int(bfloat(2.75f)) + long(half(3.5h)) + uint(-(-b));
  bfloat4 v = bfloat4(float4(1, 2, 3, 4));
  v = v * v + v;
  out[14] = v.w;
  constexpr bfloat k = bfloat(1.5f) + bfloat(0.25f);
  out[15] = k;
}
kernel void bfloat_of(device bfloat* out, device const float* in, uint i [[thread_position_in_grid]]) { out[i] = bfloat(in[i]); }
kernel void half_of(device half* out, device const float* in, uint i [[thread_position_in_grid]]) { out[i] = half(in[i]); }
kernel void limits(device float* out, device long* whole) {
  out[0] = numeric_limits<float>::max(); out[1] = numeric_limits<float>::lowest(); out[2] = numeric_limits<float>::min();
  out[3] = numeric_limits<float>::epsilon(); out[4] = numeric_limits<float>::infinity(); out[5] = numeric_limits<float>::quiet_NaN();
  out[6] = numeric_limits<half>::max(); out[7] = numeric_limits<half>::min(); out[8] = numeric_limits<half>::epsilon();
  out[9] = numeric_limits<bfloat>::max(); out[10] = numeric_limits<bfloat>::min(); out[11] = numeric_limits<bfloat>::epsilon();
  out[12] = numeric_limits<half>::denorm_min(); out[13] = numeric_limits<bfloat>::lowest();
  out[14] = INFINITY; out[15] = NAN; out[16] = HALF_MAX; out[17] = FLT_MAX; out[18] = M_PI_F;
  whole[0] = numeric_limits<int>::max(); whole[1] = numeric_limits<int>::lowest(); whole[2] = numeric_limits<uchar>::max();
  whole[3] = numeric_limits<char>::min(); whole[4] = numeric_limits<long>::max(); whole[5] = numeric_limits<ushort>::max();
  whole[6] = numeric_limits<uint>::max(); whole[7] = numeric_limits<bool>::max();
  whole[8] = numeric_limits<float>::digits + 100 * numeric_limits<int>::is_signed + 1000 * numeric_limits<half>::is_integer;
}
struct Functor { template <typename T> T operator()(T x) const { return x + T(1); } };
kernel void traits(device int* out) {
  int k = 0;
  out[k++] = is_floating_point_v<float> && is_floating_point_v<half> && is_floating_point_v<bfloat> && !is_floating_point_v<int>;
  out[k++] = is_floating_point_v<float4> && is_integral_v<uint2> && !is_scalar_v<float4> && is_scalar_v<half>;
  out[k++] = is_integral_v<bool> && is_integral_v<char> && is_integral_v<const ulong> && !is_integral_v<half>;
  out[k++] = is_signed_v<int> && !is_signed_v<uint> && is_unsigned_v<uchar> && is_signed_v<float>;
  out[k++] = is_same_v<make_unsigned_t<int>, uint> && is_same_v<make_signed_t<ushort>, short>;
  out[k++] = is_same_v<conditional_t<true, int, float>, int> && is_same_v<remove_cv_t<const volatile int>, int>;
  out[k++] = is_convertible_v<bfloat, float> && !is_convertible_v<float, bfloat> && is_convertible_v<int, float>;
  out[k++] = is_same_v<decltype(declval<Functor>()(1.0h)), half> && is_same_v<make_scalar_t<short3>, short>;
  out[k++] = is_pointer_v<device int*> && is_same_v<remove_pointer_t<device int*>, device int>;
  out[k++] = is_same_v<decay_t<const int&>, int> && conjunction_v<true_type, is_integral<int>> && disjunction_v<false_type, true_type>;
  out[k++] = vec_elements<float3>::value == 3 && vec_elements<int>::value == 1;
}
kernel void containers(device float* out) {
  array<float, 4> a = {1, 2, 3, 4};
  a[1] = 20;
  float total = 0;
  for (float v : a) total += v;
  out[0] = total; out[1] = a.size();
  array_ref<float> r(a);
  out[2] = r[1] + r.size();
  uniform<int> u = make_uniform(7);
  out[3] = u;
}
kernel void wide_vectors(device float* out, device const vec<half, 8>* x) {
  vec<float, 8> v = vec<float, 8>(x[0]);
  v = v * 2 + 1.0f;
  v[3] -= v[2];
  vec<bool, 8> large = v > 9.0f;
  vec<int, 8> n = vec<int, 8>(v) % 4 << 1;
  vec<int, 16> all = -(~vec<int, 16>(0) * 3);
  for (int i = 0; i < 8; ++i) out[i] = large[i] ? -v[i] : v[i] + n[i];
  out[8] = all[15];
  out[9] = sizeof(vec<float, 8>) + 100 * alignof(vec<half, 16>) + 10000 * sizeof(vec<bool, 8>);
  vec<float, 8> made = vec<float, 8>(1, 2, 3, 4, 5, 6, 7, 8);
  made /= 2;
  out[10] = made[7] + vec<float, 8>(made)[0];
}
"""


def run(name, n, *more):
    out = torch.zeros(n)
    build(SOURCE).launch(name, [out, *more], 1, 1)
    return out.tolist()


def test_swizzles():
    # v: (1 2 3 4) -> xy swapped (2 1 3 4) -> w += 10, z += 20: (2 1 23 14) -> x * 5
    assert run("swizzles", 16) == [10, 1, 23, 14, 3, 2, 1, 1, 1, 3, 23, 14, 2, 1, 1, 23]


def test_constructors_sizes_and_alignment():
    assert run("constructors", 5) == [
        6,
        1,
        1 + 20 + 300 + 2000,
        16 + 1200 + 80000 + 600000,
        16 + 200 + 40000,
    ]


def test_operators():
    expected = [
        2 * (9 + 5) | 256,
        2 * (-13 - 6) & 255,
        2 * (13 + 7),
        2 * (15 + 8),
        1,
        1,
        0.5,
        -0.5,
        11,
        -25536,
        25536,
        0.25,
        2,
        70,
    ]
    assert run("operators", 14) == expected


def test_geometry():
    out = run("geometry", 15)
    a, b = np.array([1.0, 2, 3]), np.array([4.0, -5, 6])
    refracted = 0.5 * math.sqrt(0.5)
    expected = [
        a @ b, *np.cross(a, b), np.linalg.norm(a), np.linalg.norm(a - b), a @ a, (a - b) @ (a - b),
        2 / np.linalg.norm(a), 1, refracted, -1, 11, a @ b, 6,
    ]  # fmt: skip
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_matrices():
    m = np.array([[1.0, 2, 3], [4, 5, 6]]).T
    p = m.T @ m
    three = np.array([[2.0, 0, 1], [1, 3, 2], [0, 1, 1]]).T
    four = np.array([[1.0, 2, 0, 1], [0, 1, 3, 1], [2, 0, 1, 1], [1, 1, 1, 2]]).T
    expected = [
        *(m @ [10, 1]), *(np.ones(3) @ m), 6, p[0, 0], p[0, 1], p[1, 1], -2, np.linalg.det(three),
        np.linalg.det(four), 1, 149, 2, p[1, 1] + 1000,
    ]  # fmt: skip
    np.testing.assert_allclose(run("matrices", 16), expected, rtol=1e-6)


def test_half_and_bfloat():
    values = torch.tensor([1.2345678, 1.0009766, 0.33])
    out = run("small_floats", 16, values)
    h, b = values.half(), values.bfloat16()
    assert out[0] == h[0].item() and out[1] == b[0].item()
    assert out[2] == (h[1] * h[1] + h[2]).item()
    assert out[3] == (b[1] * b[1] + b[2]).item()
    assert out[4] == b[0].float().item() + 1
    assert out[5] == 400 + 20 + 2 + 2000 + 40000
    one_more = (b[0] + 1).item()
    assert out[6] == one_more and out[7] == 6
    assert out[8] == (b[0] + 1 + 6).item() + 0.5  # a bfloat, and a float
    assert out[9] == torch.tensor([one_more]).bfloat16().view(torch.int16).item()
    assert out[10] == h[0].view(torch.int16).item()
    assert out[11] == torch.tensor([0x4049], dtype=torch.int16).view(torch.bfloat16).item()
    assert out[12] == 1 and out[13] == 2 + 3 + int(one_more) and out[14] == 20 and out[15] == 1.75


def test_rounding_to_half_and_bfloat():
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 2**32, 200_000, dtype=np.uint32)
    ties = (generator.integers(0, 2**16, 20_000, dtype=np.uint32) << 16) | 0x8000
    small = (generator.integers(0, 2**31, 50_000, dtype=np.uint32) % (16 << 23)) + (
        100 << 23
    )  # half's denormals
    x = torch.from_numpy(np.concatenate([bits, ties, small]).view(np.float32))
    for name, dtype in (("bfloat_of", torch.bfloat16), ("half_of", torch.float16)):
        out = torch.zeros(len(x), dtype=dtype)
        build(SOURCE).launch(name, [out, x], len(x), 256)
        expected = x.to(dtype)
        nan = expected.isnan()
        assert torch.equal(out.isnan(), nan)
        assert torch.equal(out[~nan].view(torch.int16), expected[~nan].view(torch.int16))


def test_limits():
    out, whole = torch.zeros(19), torch.zeros(9, dtype=torch.int64)
    build(SOURCE).launch("limits", [out, whole], 1, 1)
    f, h, b = (torch.finfo(t) for t in (torch.float32, torch.float16, torch.bfloat16))
    expected = [
        f.max, f.min, f.tiny, f.eps, math.inf, math.nan, h.max, h.tiny, h.eps, b.max, b.tiny, b.eps, 2.0**-24, b.min,
        math.inf, math.nan, h.max, f.max, math.pi,
    ]  # fmt: skip
    torch.testing.assert_close(out, torch.tensor(expected), rtol=0, atol=0, equal_nan=True)
    assert whole.tolist() == [2**31 - 1, -(2**31), 255, -128, 2**63 - 1, 65535, 2**32 - 1, 1, 124]


def test_traits():
    out = torch.zeros(11, dtype=torch.int32)
    build(SOURCE).launch("traits", [out], 1, 1)
    assert out.tolist() == [1] * 11


def test_containers():
    assert run("containers", 4) == [28, 4, 24, 7]


def test_volatile_vectors_and_shifts_by_other_types():
    library = build("""
    struct Box { float4 value; };
    kernel void k(volatile device Box& box, device int4* shifted, device float4* out) {
      float4 before = box.value;
      out[0] = before + 1.0f;
      box.value = float4(20.0f);
      box.value = 3.0f;
      int4 v = int4(1, -16, 5, 7) << uint4(1u, 2u, 33u, 0u);
      v >>= ushort4(1);
      shifted[0] = v;
    }
    """)
    box, shifted, out = torch.arange(4.0), torch.zeros(4, dtype=torch.int32), torch.zeros(4)
    library.launch("k", [box, shifted, out], 1, 1)
    assert out.tolist() == [1, 2, 3, 4]
    assert box.tolist() == [3] * 4
    assert shifted.tolist() == [1, -32, 5, 3]


def test_limits_of_vectors_and_initializer_lists():
    library = build("""
    struct Row {
      float cells[3];
      thread Row& operator=(initializer_list<float> values) {
        uint i = 0;
        for (auto p = values.begin(); p != values.end(); ++p) cells[i++] = *p;
        return *this;
      }
    };
    static_assert(__is_valid_simdgroup_type<half4>::value && !__is_valid_simdgroup_type<long>::value, "");
    kernel void k(device float* out) {
      Row row;
      row = {1, 2, 3};
      out[0] = row.cells[2];
      out[1] = numeric_limits<float3>::max().z == FLT_MAX;
      out[2] = numeric_limits<uint2>::max().x == 0xffffffffu;
      out[3] = numeric_limits<half4>::infinity().w;
    }
    """)
    out = torch.zeros(4)
    library.launch("k", [out], 1, 1)
    assert out.tolist() == [3, 1, 1, math.inf]


def test_integer_sequences_of_any_type():
    library = build("""
    template <int... I>
    int weighted(integer_sequence<int, I...>) {
      const int terms[] = {(I * 10)...};
      int sum = 0;
      for (uint i = 0; i < sizeof...(I); i++) sum += terms[i];
      return sum;
    }
    kernel void k(device int* out) { out[0] = weighted(make_integer_sequence<int, 4>{}); }
    """)
    out = torch.zeros(1, dtype=torch.int32)
    library.launch("k", [out], 1, 1)
    assert out.item() == 60


def test_vectors_of_8_and_16_elements():
    out = run("wide_vectors", 11, torch.arange(8, dtype=torch.half))
    values = [1, 3, 5, 2, 9, 11, 13, 15]
    assert out[:8] == [-v if v > 9 else v + (v % 4 << 1) for v in values]
    assert out[8:] == [3, 32 + 3200 + 80000, 4.5]
