"""Sums, differences, products and quotients of vectors against NumPy's, element by element and bit for bit: of vectors
of each width and type with vectors and with scalars, on either compiler."""

import numpy as np
import pytest
import torch

from .conftest import build

OPERATORS = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
FORMS = {"a {op} b": "ab", "a {op} b.x": "ax", "a.x {op} b": "xb", "(c = a, c {op}= b)": "ab"}
TYPES = {"float": np.float32, "half": np.float16, "int": np.int32, "uint": np.uint32}
LENGTH = 96  # vectors

PARTS = "xyzw"


def source(name, width):
    """A kernel k(a, b, out): a thread for each vector, of which out has one for each operator and form."""
    parts = ", ".join(f"{{0}}[{width} * i + {n}]" for n in range(width))
    lines = [
        f"{{ V c; (void)c; const V r = {form.format(op=op)};"
        + "".join(f" *out++ = r.{PARTS[n]};" for n in range(width))
        + " }"
        for op in OPERATORS
        for form in FORMS
    ]
    return f"""
typedef vec<{name}, {width}> V;
kernel void k(device const {name}* a_in, device const {name}* b_in, device {name}* out,
              uint i [[thread_position_in_grid]]) {{
  const V a = V({parts.format("a_in")});
  const V b = V({parts.format("b_in")});
  out += i * {len(lines) * width};
  {"".join(lines)}
}}
"""


def numbers(dtype, width):
    """Of all magnitudes, infinite ones and zeros among those that are not integers."""
    random = np.random.default_rng(width)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        x = random.integers(limits.min + 1, limits.max, (2, LENGTH, width), dtype)
        return np.where(x == 0, 1, x).astype(dtype)
    finite = np.finfo(dtype)
    x = np.exp2(random.uniform(finite.minexp, finite.maxexp, (2, LENGTH, width)))
    x *= random.choice([-1.0, 1.0], x.shape)
    special = random.choice([0.0, -0.0, np.inf, -np.inf, 1.0, float(finite.max)], x.shape)
    return np.where(random.random(x.shape) < 0.2, special, x).astype(dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("name", list(TYPES))
def test_arithmetic_of_vectors_is_that_of_their_elements(name, width, each_compiler):
    dtype = TYPES[name]
    a, b = numbers(dtype, width)
    given = {"a": a, "b": b, "x": a[:, :1]}
    with np.errstate(all="ignore"):
        results = []
        for function in OPERATORS.values():
            for form in FORMS.values():
                left = given[form[0]]
                right = b[:, :1] if form[1] == "x" else given[form[1]]
                if function is np.divide and np.issubdtype(dtype, np.integer):
                    magnitude = np.abs(left.astype(np.int64)) // np.abs(right.astype(np.int64))
                    result = np.where((left < 0) != (right < 0), -magnitude, magnitude)
                else:
                    result = function(left, right)
                results.append(result.astype(dtype))
    expected = np.stack(results, axis=1)
    out = torch.from_numpy(np.zeros_like(expected))
    library = build(source(name, width))
    library.launch("k", [torch.from_numpy(a), torch.from_numpy(b), out], LENGTH, 32)
    np.testing.assert_array_equal(out.numpy(), expected)
