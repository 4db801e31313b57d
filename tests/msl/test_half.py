"""half and bfloat where C++ treats classes and arithmetic types differently: conditional expressions above all.

Every program is compiled with each compiler that is installed, because half is a class under some of them.
"""

import pytest
import torch
from metalops.msl import emit_source

HELPERS = """
template <typename A, typename B> struct same { static constexpr constant bool value = false; };
template <typename A> struct same<A, A> { static constexpr constant bool value = true; };
#define TYPE(expression, T) same<decltype(expression), T>::value
"""


@pytest.fixture
def values(compiler, program):
    """The values of float expressions, in a kernel that may use c (true), h = 3, f = 0.1, i = 7, b = 5, and p, which
    points at two halves 3 and 4.
    """

    def evaluate(*expressions, before=""):
        lines = "\n".join(f"out[{n}] = float({e});" for n, e in enumerate(expressions))
        kernel = f"""{HELPERS}{before}
            kernel void k(device float* out, device half* p, constant float& f, constant int& i) {{
              bool c = i == 7;
              half h = p[0];
              bfloat b = bfloat(5);
              {lines}
            }}
        """
        out = torch.full((len(expressions),), -1.0)
        p = torch.tensor([3, 4], dtype=torch.float16)
        program(kernel).launch(
            "k", out, p, torch.tensor([0.1]), torch.tensor([7], dtype=torch.int32), grid=1
        )
        return out.tolist()

    return evaluate


TENTH = torch.tensor(0.1).item()
TENTH_HALF = torch.tensor(0.1).half().item()


def test_conditional_expressions_convert_as_metal_does(values):
    cases = {
        "c ? h : 1.0": ("float", 3),
        "!c ? h : f": ("float", TENTH),
        "c ? f : h": ("float", TENTH),
        "c ? h : 0": ("half", 3),
        "c ? -1 : h": ("half", -1),
        "!c ? h : i": ("half", 7),
        "c ? i : h": ("half", 7),
        "!c ? h : c": ("half", 1),
        "!c ? h : 0.1h": ("half", TENTH_HALF),
        "!c ? half(1) : h * h": ("half", 9),
        "c ? h : b": ("float", 3),
        "c ? b : i": ("bfloat", 5),
        "!c ? b : f": ("float", TENTH),
        "c ? b : 0u": ("bfloat", 5),
        "!c ? b : half(2)": ("float", 2),
        "c ? i : 2u": ("uint", 7),
        "c ? f : 2": ("float", TENTH),
        "c ? 1.0h : 0.1": ("float", 1),
        "!c ? 2.0f : -1.0h": ("float", -1),
        "!c ? 1.0bf : 2": ("bfloat", 2),
        "!c ? 1h : c ? 0.1h : 2": ("half", TENTH_HALF),
    }
    expressions = list(cases)
    types = [f"TYPE(({e}), {t})" for e, (t, _) in cases.items()]
    result = values(*expressions, *types)
    assert dict(zip(expressions, result, strict=False)) == {e: v for e, (_, v) in cases.items()}
    assert dict(zip(types, result[len(cases) :], strict=True)) == dict.fromkeys(types, 1)


def test_integer_arms_are_rounded_to_half(values):
    assert values("(!c ? h : 2049)", "(i > 0 ? i + 2042 : h)") == [2048, 2048]


def test_chains_and_nested_conditional_expressions(values):
    cases = {
        "i < 0 ? h : i > 100 ? 1 : 0.1": TENTH,
        "i < 0 ? 0 : i > 5 ? h : 0": 3,
        "(c ? (i > 5 ? 1 : h) : f)": 1,
        "(c ? !c ? h : f : 0) + h": TENTH + 3,
        "metal::max(c ? h : 0, (c ? metal::min(!c ? h : 2, h) : 1))": 3,
        "metal::abs(c ? -(c ? h : 1) : 0)": 3,
        "i == 1 ? 1 : i == 2 ? 2 : i == 3 ? h : i == 4 ? 4 : i == 7 ? b : f": 5,
    }
    assert values(*cases) == pytest.approx(list(cases.values()), rel=1e-7)


def chain(arms, last):
    return " : ".join(f"i == {n} ? {arm}" for n, arm in enumerate(arms)) + f" : {last}"


def test_chains_of_many_different_arms_convert_as_short_ones_do(values):
    before = "".join(
        f"half h{n}(half x) {{ return x + {n}; }} float f{n}(float x) {{ return x + {n}; }}\n"
        for n in range(20)
    )
    halves = [f"h{n}(h)" for n in range(20)]
    floats = [f"f{n}(f)" for n in range(20)]
    cases = {
        chain([*halves, *floats], 1): 3 + 7,
        chain([*floats, *halves], "h"): TENTH + 7,
        chain(halves, "i"): 3 + 7,
        # The type of the whole is float, and int: h and 1 / 2 are rounded before or not at all.
        f"({chain(halves, 'f')}) + 0.1": 3 + 7 + TENTH,
        f"({chain([f'i / {n}' for n in range(2, 22)], 1)}) / 2": 0,
        f"({chain([f'p[0] + p[{n}]' for n in (0, 1)] + [*halves], 'b')}) * 1": 3 + 5,
    }
    assert values(*cases, before=before) == pytest.approx(list(cases.values()), rel=1e-3)


def test_chains_of_many_different_arms_stay_lvalues(values):
    names = [f"x{n}" for n in range(20)]
    before = (
        "float assigned() { float "
        + ", ".join(f"{n} = 0" for n in names)
        + f"; int i = 7; ({chain(names, 'x0')}) = 3; return x7 + x8; }}"
    )
    assert values("assigned()", before=before) == [3]


def test_the_text_of_a_chain_is_as_long_as_its_arms():
    lengths = []
    for count in (200, 400):
        arms = [f"a{n} * h" for n in range(count)]
        arguments = ", ".join(f"float a{n}" for n in range(count))
        body = f"float f(int i, half h, {arguments}) {{ return {chain(arms, 'h')}; }}"
        lengths.append(len(emit_source(f"#include <metal_stdlib>\nusing namespace metal;\n{body}")))
    assert lengths[1] < 2.2 * lengths[0]


def test_conditional_expressions_in_templates(values):
    before = """
        template <typename T> T clipped(T x) { return x < 0 ? 0 : x > 2 ? 2 : x; }
        template <typename T> T relu(T x) { return x > 0 ? x : 0.0f; }
        template <typename A, typename B> bool is_float(A a, B b) { return TYPE((a > b ? a : b), float); }
        template <typename T> T larger(T a, T b) { return a > b ? a : b; }
        template <int A, int B> struct bigger { static constexpr constant int value = A > B ? A : B; };
        template <int N> int length() { float x[(N > 4 ? N : 4)]; return sizeof(x) / sizeof(x[0]); }
        template <typename T, typename = enable_if_t<(sizeof(T) > 2 ? false : true)>> int small(T) { return 1; }
    """
    expressions = [
        "clipped(h) + clipped(-h)", "clipped(f)", "clipped(i)", "clipped(b)",
        "relu(h)", "relu(-h)", "relu(f)",
        "is_float(h, f)", "is_float(h, i)", "is_float(h, b)",
        "larger(h, half(i))", "larger<half>(h, f)", "larger<half>(h, i)",
        "bigger<3, 8>::value + length<6>() + length<2>()", "small(h)",
    ]  # fmt: skip
    assert values(*expressions, before=before) == pytest.approx(
        [2, TENTH, 2, 2, 3, 0, TENTH, 1, 0, 1, 7, 3, 7, 8 + 6 + 4, 1], rel=1e-6
    )


def test_other_arms_are_left_alone(values):
    before = """
        struct pair { half a; float b; int narrow : 5; };
        void set(thread float& x, float v) { x = v; }
        pair made(half a) { pair x = {a, 1, -3}; return x; }
        template <typename T> T read(thread const T& r) { return r; }
        half through(device half* p) { return p ? *p : half(0); }
        thread half& pick(bool c, thread half& a, thread half& b) { return c ? a : b; }
    """
    expressions = [
        "([&] { half a = 1, b2 = 2; (c ? a : b2) = 8; return a + b2; })()",
        "([&] { half a = 1, b2 = 2; *&(c ? a : b2) = h; return a * 10 + b2; })()",
        "([&] { half a = 1, b2 = 2; (c ? a : b2)++; (!c ? a : b2) += 4; return a * 10 + b2; })()",
        "([&] { half a = 1, b2 = 2; thread half& r = c ? a : b2; r = 9; return a; })()",
        "([&] { half a = 1, b2 = 2; pick(!c, a, b2) = 5; return a * 10 + b2; })()",
        "([&] { half a = 1; half4 v = c ? half4(a) : half4(2); return v.x + (c ? v : half4(0)).w; })()",
        "([&] { device half* q = c ? p + 1 : nullptr; return q ? *q : h; })()",
        "([&] { device half* q = c ? p : 0; return through(q) + through(!c ? q : nullptr); })()",
        "([&] { float x; c ? set(x, 1) : set(x, 2); return x; })()",
        "(c ? made(h) : made(2)).a",
        "([&] { thread const half& r = c ? h : 1; return r; })()",
        "read(c ? h : half(1)) + read(c ? made(h) : made(1)).narrow",
        "([&] { pair x = made(1); return c ? x.narrow : 4; })()",
        "([&] { pair x = made(2); return (c ? x : x).a; })()",
        "([&] { half x[2] = {1, 2}; return (c ? x : x + 1)[1]; })()",
        "(c ? i / 2 : i >> 1) + (c ? i << i % 3 : i) + (!c ? f / h : 1.0h)",
        "([&] { half x[2] = {c ? h : 1, c ? 0.5f : h}; return x[0] + x[1]; })()",
    ]
    assert values(*expressions, before=before) == [
        10, 32, 26, 9, 15, 2, 4, 3, 1, 3, 3, 0, -3, 2, 2, 3 + 14 + 1, 3.5,
    ]  # fmt: skip


def test_half_behaves_as_an_arithmetic_type(values):
    before = """
        constant half table[3] = {1, 2.5, 0.1h};
        constexpr constant half ten = 10;
        union bits { half h; ushort u; };
        struct item { half h = 2; half more[2] = {1, 2}; };
        int kind(half) { return 1; }
        int kind(float) { return 2; }
        int kind(int) { return 3; }
        template <typename T> T scaled(T x, float by) { return x * by; }
        template <typename T> T power(T x, int n) { T r = 1; while (n-- > 0) r *= x; return r; }
    """
    cases = {
        "metal::max(h, half(0)) + metal::min(h, 1.0h)": 4,
        "metal::pow(h, half(2))": 9,
        "metal::fma(h, h, 1.0h) + metal::clamp(h, 0.0h, 1.0h)": 11,
        "kind(h) + 10 * kind(h + h) + 100 * kind(h + 1) + 1000 * kind(h + 1.0f) + 10000 * kind(-h)": 12111,
        "kind(h * i) + 10 * kind(h++) + 100 * kind(h += 1.5f) + 1000 * kind(+h)": 1111,
        "h": 5.5,
        "int(h) + static_cast<int>(h) + (int)h + uint(h) + short(-h)": 15,
        "as_type<ushort>(half(1)) + as_type<ushort>(-0.0h)": 0x3C00 + 0x8000,
        "as_type<half>(ushort(0x3c00))": 1,
        "([&] { bits x; x.h = 1.5; return x.u; })()": 0x3E00,
        "([&] { item x; item y = {4, {3, 2}}; return x.h + x.more[1] + y.h + y.more[0]; })()": 11,
        "table[0] + table[1] + table[2] + ten": torch.tensor(3.5 + 10 + TENTH_HALF).half().item(),
        "([&] { half x = 1, y = 2.5, z = i; x -= 0.25; y *= 2; z /= 2; return x + y + z; })()": 9.25,
        "([&] { half x = 0; return (x ? 1 : 0) + (!x ? 2 : 0) + (x || h ? 4 : 0) + (x && h ? 8 : 0); })()": 6,
        "(h > 5) + (h >= 5.5) + (h < 6u) + (h == 5.5f) + (h != i) + (5.5 == h) + (i > h) + (h <= 5.5h)": 8,
        "([&] { switch (int(h)) { case 5: return 1; default: return 0; } })()": 1,
        "([&] { int n = h; uint m = h; bool t = h; long l = h; float g = h; return n + m + t + l + g; })()": 21.5,
        "scaled(h, 2) + power(half(2), 3) + power(2.0h, 2)": 23,
        "([&] { float x = 1; x += h; x *= h; int n = 2; n += h; return x + n; })()": 35.75 + 7,
        "TYPE(h + 1, half) && TYPE(h + 1.0f, float) && TYPE(2 * h, half) && TYPE(-h, half) && TYPE(1.0h, half)": 1,
        "is_floating_point_v<half> && is_scalar_v<half> && is_arithmetic_v<half> && is_signed_v<half> "
        "&& !is_integral_v<half> && is_same_v<half, decltype(h)>": 1,
        "numeric_limits<half>::max() + numeric_limits<half>::lowest() + numeric_limits<half>::digits": 11,
        "sizeof(half) + 10 * alignof(half) + 100 * sizeof(half3) + 1000 * sizeof(packed_half3)": 6822,
        "([&] { half4 v(1, h, i, 0.5h); v.xy += v.zw; v = v * 2; return v.x + v.y + v.z + dot(v, half4(1)); })()":
            16 + 12 + 14 + 43,
        "([&] { half2x2 m(h); half2 v = m * half2(1, 2); return v.x + v.y + float4(half4(h)).w; })()": 22,
        "([&] { half3 v = select(half3(1), half3(h), bool3(true, false, true)); return v.x + v.y; })()": 6.5,
        "any(half2(h) > half2(5)) && !all(half2(1, h) < 2)": 1,
        "([&] { float2 v = float2(half2(1, 2)); half2 w = half2(v); return v.y + w.x; })()": 3,
        "isnan(half(NAN)) + isinf(half(1e6)) + isfinite(h) + signbit(-h)": 4,
        "([&] { half x = h--; return x * 100 + --h; })()": 550 + 3.5,
    }  # fmt: skip
    result = dict(zip(cases, values(*cases, before=before), strict=True))
    assert result == pytest.approx({e: float(v) for e, v in cases.items()}, rel=1e-6)


def test_all_halves_become_floats_and_floats_round_to_even(compiler, program):
    p = program("""
        kernel void widen(device float* out, device const half* in, uint i [[thread_position_in_grid]]) {
          out[i] = in[i];
        }
        kernel void narrow(device half* out, device const float* in, uint i [[thread_position_in_grid]]) {
          out[i] = in[i];
        }
    """)
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.float16)
    out = torch.zeros(2**16)
    p.launch("widen", out, halves, grid=2**16, group=1024)
    torch.testing.assert_close(out, halves.float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out.signbit(), halves.signbit())

    # Every half, what lies halfway to the next, and the floats beside these; then all exponents with many fractions.
    finite = halves[halves.isfinite()].float()
    next_half = (finite.half().view(torch.int16) + 1).view(torch.float16).float()
    middle = ((finite.double() + next_half.double()) / 2).float()
    infinity = torch.tensor(float("inf"))
    floats = torch.cat([
        finite, middle, torch.nextafter(middle, infinity), torch.nextafter(middle, -infinity),
        torch.tensor([65504, 65519.996, 65520, 65536, 3e38, 2**-24, 2**-25, 2**-25 + 2**-48, 1e-45, float("inf")]),
        (torch.arange(-(2**31), 2**31, 4099) % 2**32 - 2**31).to(torch.int32).view(torch.float32),
    ])  # fmt: skip
    out = torch.zeros(len(floats), dtype=torch.float16)
    p.launch("narrow", out, floats, grid=len(floats), group=1024)
    torch.testing.assert_close(out, floats.half(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out.signbit(), floats.signbit())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind, dtype, literals",
    [
        ("half", torch.float16, [".5H", "1.h", "1e1h", "5h"]),
        ("bfloat", torch.bfloat16, ["0.5bf", "5BF"]),
    ],
)
def test_literals_end_expressions_that_become_loops_over_threads(program, kind, dtype, literals):
    statements = "\n".join(
        f"out[{n} * 4 + i] = (n >= 2 ? simd_shuffle(x, 3) : {literal}) "
        f"+ (n < 2 ? simd_shuffle(x, 1) : {literal}) - simd_sum(x * {literal}) * {literal};"
        for n, literal in enumerate(literals)
    )
    p = program(f"""
        kernel void k(device {kind}* out, device const {kind}* in, constant uint& n,
                      uint i [[thread_position_in_threadgroup]]) {{
          {kind} x = in[i];
          {statements}
        }}
    """)
    out, x = torch.zeros(len(literals), 4, dtype=dtype), torch.arange(4, dtype=dtype)
    p.launch("k", out, x, torch.tensor([2], dtype=torch.uint32), grid=4, engine="group")
    values = [float(literal.lower().rstrip("bfh")) for literal in literals]
    assert out.tolist() == [[3 + v - 6 * v * v] * 4 for v in values]
