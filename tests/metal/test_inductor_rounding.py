"""Division, remainders, rounding and their like in Inductor's Metal code, of numbers of every kind, against float64."""

import math

import pytest
import torch

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("fresh_compiler")]

# 1 / 0.1 is less than 10, to which it is rounded; 41 * (1 / 41) is less than 1.
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 0.3, 0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 41.0, 6.0, 1e-3]
FLOATS += [1e10, -1e10, 123456.789, math.inf, -math.inf, math.nan]
# As float32 has them.
NUMBERS = torch.tensor([0.1, 3.0, -7.0, 41.0, math.inf]).tolist()
INTEGERS = [1, -1, 2, -2, 3, -3, 7, -7, 41, 100, -100, 127]


def truncated(x, y):
    return torch.div(x, y, rounding_mode="trunc")


def floored(x, y):
    return torch.div(x, y, rounding_mode="floor")


# Of two tensors. Those of ROUNDED are what they are because of how the operands' dtype rounds.
BINARY = {
    "//": lambda x, y: x // y,
    "div floor": floored,
    "div trunc": truncated,
    "%": lambda x, y: x % y,
    "fmod": torch.fmod,
}
BINARY_OF_FLOATS = {
    "pow": torch.pow,
    "copysign": torch.copysign,
    "hypot": torch.hypot,
    "nextafter": torch.nextafter,
}
UNARY = {
    name: getattr(torch, name)
    for name in "round floor ceil trunc frac sinh cosh asinh acosh log2 log10 exp2 log1p expm1".split()
}
ROUNDED = {"div trunc", "nextafter"}
WITH_NUMBERS = {
    f"{name} {number}": (lambda x, f=f, number=number: f(x, number))
    for number in NUMBERS
    for name, f in (("//", BINARY["//"]), ("%", BINARY["%"]), ("div trunc", truncated))
}
OF_NUMBERS = {f"{number} // x": (lambda x, number=number: number // x) for number in NUMBERS}


def check(functions, *operands):
    """Compiles all as one function and compares it with the same on the CPU."""

    def all_of_them(*operands):
        return [f(*operands) for f in functions.values()]

    results = torch.compile(all_of_them, fullgraph=True)(*(x.to("mps") for x in operands))
    wrong = []
    for (name, f), actual in zip(functions.items(), results, strict=True):
        is_exact = not operands[0].is_floating_point() or any(name.startswith(r) for r in ROUNDED)
        expected = f(*(operands if is_exact else [x.double() for x in operands])).to(actual.dtype)
        actual = actual.cpu()
        close = actual == expected
        if expected.is_floating_point():
            close = torch.isclose(
                actual, expected, rtol=4 * torch.finfo(expected.dtype).eps, atol=0, equal_nan=True
            )
        wrong += [
            (name, *(x[i].item() for x in operands), actual[i].item(), expected[i].item())
            for i in (~close).nonzero().flatten()
        ]
    assert wrong == [], "function, operands, result, and what it should be"


def pairs(numbers, dtype):
    values = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    return [x.contiguous() for x in torch.cartesian_prod(values, values).unbind(1)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_two_floats(dtype):
    functions = BINARY if dtype == torch.float16 else BINARY | BINARY_OF_FLOATS
    functions = {k: f for k, f in functions.items() if dtype == torch.float32 or k != "div trunc"}
    check(
        functions, *pairs([x for x in FLOATS if dtype == torch.float32 or not abs(x) > 6e4], dtype)
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8], ids=str)
def test_two_integers(dtype):
    check(BINARY, *pairs(INTEGERS, dtype))


def test_a_float_and_a_number():
    x = torch.tensor(FLOATS)
    check(WITH_NUMBERS | OF_NUMBERS, x)


def test_an_integer_and_a_number():
    x = torch.tensor(INTEGERS)
    check(
        {
            "// 3": lambda x: x // 3,
            "% -7": lambda x: x % -7,
            "div trunc -7": lambda x: truncated(x, -7),
            "7 // x": lambda x: 7 // x,
            "xor": lambda x: torch.logical_xor(x, x > 2),
        },
        x,
    )


def test_one_float():
    check(
        UNARY | {f"round {n}": (lambda x, n=n: x.round(decimals=n)) for n in (1, 2)},
        torch.tensor(FLOATS),
    )


def test_a_tenth_goes_nine_times_into_one():
    x = torch.tensor([1.0], device="mps")
    assert torch.compile(lambda x: x // 0.1)(x).item() == 1.0 // 0.1 == 9
