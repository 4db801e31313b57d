"""Functions of floating-point numbers against NumPy in float64, in units in the last place, over all magnitudes."""

import numpy as np
import pytest
import torch

from .conftest import build

PI = np.longdouble("3.14159265358979323846264338327950288")


def turns(x):
    """x modulo 2, in long double."""
    x = x.astype(np.longdouble)
    return x - 2 * np.rint(x / 2)


def sinpi(x):
    t = turns(x)
    return np.where(np.abs(t) % 1 == 0, np.copysign(0.0, x), np.sin(PI * t)).astype(np.float64)


def cospi(x):
    t = np.abs(turns(x))
    return np.where(
        t == 0.5, 0.0, np.where(t < 0.25, np.cos(PI * t), np.sin(PI * (0.5 - t)))
    ).astype(np.float64)


def tanpi(x):
    turn = turns(x)
    t = turn - np.rint(turn)
    near = np.sin(PI * t) / np.cos(PI * t)
    far = 1 / np.tan(PI * (np.copysign(0.5, t) - t))
    value = np.where(np.abs(t) < 0.25, near, far)
    # IEEE 754: half way between integers, positive before an odd one.
    return np.where(np.abs(turn) == 0.5, np.copysign(np.inf, turn), value).astype(np.float64)


def rounded_half_away(x):
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def fract(x):
    return np.where(np.isinf(x), 0.0, np.minimum(x - np.floor(x), 1 - 2.0**-24))


def sign(x):
    return np.where(np.isnan(x), 0.0, np.where(x == 0, x, np.sign(x)))


def saturate(x):
    return np.fmin(np.fmax(x, 0), 1)


# Functions of metal::fast that may give zero for a denormal result: none on the software device.
FLUSHING: set[str] = set()
# function -> (reference in float64, allowed error in ulp of float)
UNARY = {
    "acos": (np.arccos, 1),
    "acosh": (np.arccosh, 2),
    "asin": (np.arcsin, 1),
    "asinh": (np.arcsinh, 2),
    "atan": (np.arctan, 1),
    "atanh": (np.arctanh, 2),
    "ceil": (np.ceil, 0),
    "cos": (np.cos, 4),
    "cosh": (np.cosh, 2),
    "cospi": (cospi, 2),
    "exp": (np.exp, 1),
    "exp10": (lambda x: np.power(10.0, x), 2),
    "exp2": (np.exp2, 1.1),
    "fabs": (np.abs, 0),
    "abs": (np.abs, 0),
    "floor": (np.floor, 0),
    "fract": (fract, 0.5),
    "log": (np.log, 1),
    "log10": (np.log10, 2),
    "log2": (np.log2, 2),
    "rint": (np.rint, 0),
    "round": (rounded_half_away, 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5),
    "saturate": (saturate, 0),
    "sign": (sign, 0),
    "sin": (np.sin, 4),
    "sinh": (np.sinh, 2),
    "sinpi": (sinpi, 2),
    "sqrt": (np.sqrt, 0.5),
    "tan": (np.tan, 4),
    "tanh": (np.tanh, 2),
    "tanpi": (tanpi, 5),
    "trunc": (np.trunc, 0),
}


def fdim(x, y):
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x > y, x - y, 0.0))


def powr(x, y):
    undefined = (
        (x < 0) | ((x == 0) & (y == 0)) | (np.isinf(x) & (y == 0)) | ((x == 1) & ~np.isfinite(y))
    )
    return np.where(undefined | ((y == 0) & np.isnan(x)), np.nan, np.power(x, y))


BINARY = {
    "atan2": (np.arctan2, 2),
    "copysign": (np.copysign, 0),
    "divide": (np.divide, 0.5),
    "fdim": (fdim, 0.5),
    "fmax": (np.fmax, 0),
    "fmin": (np.fmin, 0),
    "max": (np.fmax, 0),
    "min": (np.fmin, 0),
    "fmod": (np.fmod, 0),
    "pow": (np.power, 4),
    "powr": (powr, 4),
    "step": (lambda edge, x: np.where(x < edge, 0.0, 1.0), 0),
}


def median(x, y, z):
    middle = np.fmax(np.fmin(x, y), np.fmin(np.fmax(x, y), z))
    for a, b, c in ((x, y, z), (y, x, z), (z, x, y)):
        middle = np.where(np.isnan(a), np.fmin(b, c), middle)
    return middle


TERNARY = {
    "fma": None,  # tested apart: float64 does not hold the product and the sum
    "clamp": lambda x, low, high: np.fmin(np.fmax(x, low), high),
    "fmax3": lambda x, y, z: np.fmax(x, np.fmax(y, z)),
    "fmin3": lambda x, y, z: np.fmin(x, np.fmin(y, z)),
    "fmedian3": median,
    "max3": lambda x, y, z: np.fmax(x, np.fmax(y, z)),
    "min3": lambda x, y, z: np.fmin(x, np.fmin(y, z)),
    "median3": median,
}


def kernels():
    text = []
    parameters = "uint i [[thread_position_in_grid]]"
    for t in ("float", "half"):
        for f in UNARY:
            text.append(
                f"kernel void {f}_{t}(device {t}* out, device const {t}* x, {parameters}) {{ out[i] = metal::{f}(x[i]); }}"
            )
        for f in BINARY:
            text.append(
                f"kernel void {f}_{t}(device {t}* out, device const {t}* x, device const {t}* y, {parameters}) "
                f"{{ out[i] = metal::{f}(x[i], y[i]); }}"
            )
        for f in TERNARY:
            text.append(
                f"kernel void {f}_{t}(device {t}* out, device const {t}* x, device const {t}* y, "
                f"device const {t}* z, {parameters}) {{ out[i] = metal::{f}(x[i], y[i], z[i]); }}"
            )
        text.append(f"""
kernel void several_{t}(device {t}* out, device int* whole, device const {t}* x, {parameters}) {{
  {t} cosine, integer;
  int exponent;
  out[i * 6] = sincos(x[i], cosine);
  out[i * 6 + 1] = cosine;
  out[i * 6 + 2] = modf(x[i], integer);
  out[i * 6 + 3] = integer;
  out[i * 6 + 4] = frexp(x[i], exponent);
  whole[i * 2] = exponent;
  whole[i * 2 + 1] = ilogb(x[i]);
  out[i * 6 + 5] = ldexp(x[i], int(i % 40) - 20);
}}
kernel void classes_{t}(device bool* out, device const {t}* x, {parameters}) {{
  out[i * 7] = isnan(x[i]);
  out[i * 7 + 1] = isinf(x[i]);
  out[i * 7 + 2] = isfinite(x[i]);
  out[i * 7 + 3] = isnormal(x[i]);
  out[i * 7 + 4] = signbit(x[i]);
  out[i * 7 + 5] = isunordered(x[i], {t}(1));
  out[i * 7 + 6] = isordered(x[i], {t}(1));
}}
kernel void neighbours_{t}(device {t}* out, device const {t}* x, device const {t}* y, {parameters}) {{
  out[i] = nextafter(x[i], y[i]);
}}
kernel void blends_{t}(device {t}* out, device const {t}* x, {parameters}) {{
  out[i * 2] = mix({t}(2), {t}(6), x[i]);
  out[i * 2 + 1] = smoothstep({t}(-1), {t}(3), x[i]);
}}""")
    for namespace in ("precise", "fast"):
        for f in UNARY:
            if f not in ("sign", "saturate"):
                text.append(
                    f"kernel void {namespace}_{f}(device float* out, device const float* x, {parameters}) "
                    f"{{ out[i] = metal::{namespace}::{f}(x[i]); }}"
                )
    for f in ("exp", "sin", "fabs", "rsqrt", "sign"):
        text.append(
            f"kernel void {f}_float4(device float4* out, device const float4* x, {parameters}) {{ out[i] = {f}(x[i]); }}"
        )
    text.append(
        "kernel void vectors(device float4* out, device const float4* x, device const float4* y, "
        f"{parameters}) {{ out[i] = max(x[i], 0.5f) + min(0.25f, y[i]) + fma(x[i], y[i], 1.0f) + clamp(x[i], -1.0f, 1.0f)"
        " + pow(abs(x[i]), 2.0f) + mix(x[i], y[i], 0.5f) + select(x[i], y[i], x[i] < y[i]); }"
    )
    return "\n".join(text)


SOURCE = kernels()
DTYPES = {"float": torch.float32, "half": torch.float16}
NUMPY = {"float": np.float32, "half": np.float16}


def launch(name, buffers, n):
    build(SOURCE).launch(name, buffers, n, 256)


def specials(dtype):
    info = np.finfo(dtype)
    tiny = info.smallest_subnormal
    some = [
        0,
        1,
        0.5,
        2,
        3,
        1.5,
        2.5,
        10,
        88.7,
        0.1,
        np.pi,
        np.pi / 2,
        103.9,
        info.max,
        info.tiny,
        tiny,
        3 * tiny,
        info.eps,
    ]
    x = np.array([*some, np.inf, np.nan], dtype=dtype)
    return np.concatenate([x, -x])


def samples(name, count=200_000, seed=0):
    """Numbers of every magnitude, dense around 1, and the special ones."""
    dtype = NUMPY[name]
    generator = np.random.default_rng(seed)
    if name == "half":
        if seed == 0:
            return np.arange(2**16, dtype=np.uint16).view(np.float16)
        return generator.integers(0, 2**16, 2**16, dtype=np.uint16).view(np.float16)
    bits = generator.integers(0, 2**32, count, dtype=np.uint32).view(dtype)
    near = (generator.standard_normal(count) * 10).astype(dtype)
    unit = generator.uniform(-1, 1, count).astype(dtype)
    return np.concatenate([specials(dtype), bits, near, unit])


def check(name, result, expected, ulp, message):
    """result is within `ulp` units in the last place of `expected` (float64), with the same NaN, infinities and zeros."""
    info = np.finfo(NUMPY[name])
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = expected.astype(NUMPY[name])
    wrong_kind = np.isnan(result) != np.isnan(rounded)
    # A result that overflows may be the largest number and the other way round, within the allowed error.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        result, rounded = result.astype(np.float64), rounded.astype(np.float64)
        exponent = np.floor(np.log2(np.abs(expected)))
        exponent = np.clip(exponent, np.log2(float(info.tiny)), info.maxexp - 1)
        unit = np.exp2(exponent - info.nmant)
        error = np.abs(result - expected) / unit
    same = (result == rounded) | (np.isnan(result) & np.isnan(rounded))
    bad = wrong_kind | (~same & ~(error <= ulp))
    assert not bad.any(), (
        f"{message}: {bad.sum()} wrong, first {result[bad][0]!r} for {expected[bad][0]!r}, {error[bad][0]:.2f} ulp"
    )


def allowed(name, ulp):
    # half is computed in float and rounded: half a unit, and hardly more where float's error tips it over.
    return ulp if name == "float" else 0 if ulp == 0 else 0.51


def quietly(function, *arguments):
    with np.errstate(all="ignore"):
        return np.asarray(function(*(a.astype(np.float64) for a in arguments)), dtype=np.float64)


@pytest.mark.parametrize("name", list(DTYPES))
@pytest.mark.parametrize("function", list(UNARY))
def test_unary(function, name):
    reference, ulp = UNARY[function]
    x = samples(name)
    out = np.zeros_like(x)
    launch(f"{function}_{name}", [torch.from_numpy(out), torch.from_numpy(x)], len(x))
    expected = quietly(reference, x)
    if function == "fract" and name == "half":
        expected = np.where(expected > 1 - 2.0**-11, 1 - 2.0**-11, expected)
    check(name, out, expected, allowed(name, ulp), function)
    if function in (
        "ceil",
        "floor",
        "trunc",
        "rint",
        "sqrt",
        "sin",
        "tanh",
        "asinh",
        "sinh",
        "atan",
        "sign",
        "round",
    ):
        zero = x == 0
        np.testing.assert_array_equal(np.signbit(out[zero]), np.signbit(x[zero]))


@pytest.mark.parametrize("namespace", ["precise", "fast"])
def test_precise_and_fast(namespace):
    x = samples("float", 20_000)
    for function, (reference, ulp) in UNARY.items():
        if function in ("sign", "saturate"):
            continue
        out = np.zeros_like(x)
        launch(f"{namespace}_{function}", [torch.from_numpy(out), torch.from_numpy(x)], len(x))
        expected = quietly(reference, x)
        if namespace == "fast" and function in FLUSHING:
            expected[np.abs(expected) < np.finfo(np.float32).tiny] = 0
        check("float", out, expected, ulp, f"{namespace}::{function}")


@pytest.mark.parametrize("name", list(DTYPES))
@pytest.mark.parametrize("function", list(BINARY))
def test_binary(function, name):
    reference, ulp = BINARY[function]
    x, y = samples(name, 100_000, 0), samples(name, 100_000, 1)
    special = specials(NUMPY[name])
    x = np.concatenate([x, np.repeat(special, len(special))])
    y = np.concatenate([y, np.tile(special, len(special))])
    out = np.zeros_like(x)
    launch(f"{function}_{name}", [torch.from_numpy(v) for v in (out, x, y)], len(x))
    check(name, out, quietly(reference, x, y), allowed(name, ulp), function)


@pytest.mark.parametrize("name", list(DTYPES))
@pytest.mark.parametrize(
    "function", [f for f, reference in TERNARY.items() if reference is not None]
)
def test_ternary(function, name):
    x, y, z = (samples(name, 50_000, seed) for seed in range(3))
    special = np.array([1, -1, 0, 2, np.inf, -np.inf, np.nan], dtype=NUMPY[name])
    grid = [g.reshape(-1) for g in np.meshgrid(special, special, special)]
    x, y, z = (np.concatenate(pair) for pair in zip((x, y, z), grid))
    out = np.zeros_like(x)
    launch(f"{function}_{name}", [torch.from_numpy(v) for v in (out, x, y, z)], len(x))
    check(name, out, quietly(TERNARY[function], x, y, z), 0, function)


def test_fma_rounds_once():
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    y = np.random.default_rng(1).standard_normal(100_000).astype(np.float32)
    z = (-(x.astype(np.float64) * y)).astype(
        np.float32
    )  # what is left is the rounding error of the product
    out = np.zeros_like(x)
    launch("fma_float", [torch.from_numpy(v) for v in (out, x, y, z)], len(x))
    exact = x.astype(np.longdouble) * y.astype(np.longdouble) + z.astype(np.longdouble)
    np.testing.assert_array_equal(out, exact.astype(np.float32))
    h = [v.astype(np.float16) for v in (x, y, z)]
    out = np.zeros_like(h[0])
    launch("fma_half", [torch.from_numpy(v) for v in (out, *h)], len(x))
    exact = h[0].astype(np.float64) * h[1] + h[2]
    check("half", out, exact, 0.51, "fma")


@pytest.mark.parametrize("name", list(DTYPES))
def test_results_by_reference_and_exponents(name):
    x = samples(name, 20_000)
    x = x[np.isfinite(x)]
    out = np.zeros((len(x), 6), dtype=x.dtype)
    whole = np.zeros((len(x), 2), dtype=np.int32)
    launch(f"several_{name}", [torch.from_numpy(v) for v in (out, whole, x)], len(x))
    wide = x.astype(np.float64)
    check(name, out[:, 0], np.sin(wide), allowed(name, 4), "sincos")
    check(name, out[:, 1], np.cos(wide), allowed(name, 4), "sincos")
    fraction, integer = np.modf(wide)
    np.testing.assert_array_equal(out[:, 2], fraction.astype(x.dtype))
    np.testing.assert_array_equal(out[:, 3], integer.astype(x.dtype))
    mantissa, exponent = np.frexp(wide)
    np.testing.assert_array_equal(out[:, 4], mantissa.astype(x.dtype))
    np.testing.assert_array_equal(whole[:, 0], exponent)
    nonzero = x != 0
    np.testing.assert_array_equal(whole[nonzero, 1], exponent[nonzero] - 1)
    check(name, out[:, 5], wide * np.exp2(np.arange(len(x)) % 40 - 20.0), 0.5, "ldexp")


@pytest.mark.parametrize("name", list(DTYPES))
def test_classes(name):
    x = np.concatenate([specials(NUMPY[name]), samples(name, 1000)])
    out = np.zeros((len(x), 7), dtype=bool)
    launch(f"classes_{name}", [torch.from_numpy(out), torch.from_numpy(x)], len(x))
    tiny = np.finfo(x.dtype).tiny
    expected = [
        np.isnan(x),
        np.isinf(x),
        np.isfinite(x),
        np.isfinite(x) & (np.abs(x) >= tiny),
        np.signbit(x),
    ]
    np.testing.assert_array_equal(out, np.stack([*expected, np.isnan(x), ~np.isnan(x)], 1))


@pytest.mark.parametrize("name", list(DTYPES))
def test_nextafter(name):
    x, y = samples(name, 20_000, 0), samples(name, 20_000, 1)
    special = specials(NUMPY[name])
    x = np.concatenate([x, np.repeat(special, len(special))])
    y = np.concatenate([y, np.tile(special, len(special))])
    out = np.zeros_like(x)
    launch(f"neighbours_{name}", [torch.from_numpy(v) for v in (out, x, y)], len(x))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, np.nextafter(x, y))


@pytest.mark.parametrize("name", list(DTYPES))
def test_mix_and_smoothstep(name):
    x = np.linspace(-2, 4, 1000).astype(NUMPY[name])
    out = np.zeros((len(x), 2), dtype=x.dtype)
    launch(f"blends_{name}", [torch.from_numpy(out), torch.from_numpy(x)], len(x))
    wide = x.astype(np.float64)
    t = np.clip((wide + 1) / 4, 0, 1)
    tolerance = 1e-6 if name == "float" else 5e-3
    np.testing.assert_allclose(out[:, 0], 2 + 4 * wide, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(out[:, 1], t * t * (3 - 2 * t), rtol=tolerance, atol=tolerance)


def test_vectors_are_computed_by_component():
    x = torch.randn(500, 4)
    for function in ("exp", "sin", "fabs", "rsqrt", "sign"):
        one, four = torch.zeros(2000), torch.zeros(500, 4)
        launch(f"{function}_float", [one, x], 2000)
        launch(f"{function}_float4", [four, x], 500)
        torch.testing.assert_close(four.reshape(-1), one, rtol=3e-7, atol=0, equal_nan=True)


def test_scalars_spread_over_vectors():
    x, y = torch.randn(500, 4), torch.randn(500, 4)
    out = torch.zeros(500, 4)
    launch("vectors", [out, x, y], 500)
    expected = x.clamp(min=0.5) + y.clamp(max=0.25) + (x * y + 1) + x.clamp(-1, 1) + x.abs() ** 2
    expected += (x + y) / 2 + torch.where(x < y, y, x)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "function", ["exp", "exp2", "exp10", "log", "log2", "log10", "tanh", "sinpi", "cospi", "tanpi"]
)
def test_every_float_of_the_functions_computed_here(function):
    """One float in 296, over all of them, for the functions that math_float.h computes itself."""
    reference, ulp = UNARY[function]
    for first in range(0, 2**32, 2**28):
        x = np.arange(first, first + 2**28, 296, dtype=np.uint64).astype(np.uint32).view(np.float32)
        out = np.zeros_like(x)
        launch(f"{function}_float", [torch.from_numpy(out), torch.from_numpy(x)], len(x))
        check("float", out, quietly(reference, x), ulp, function)
