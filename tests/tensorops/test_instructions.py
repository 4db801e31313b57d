"""matmul2d by each of the CPU's instructions for products of narrow types, and without them, against float64."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
from metalops import _host

from .products import Product, build

# Bits of ProductInstruction in msl/abi.h.
VNNI_BYTES, AMX_BYTES, AMX_BFLOATS = 1, 2, 4
INSTRUCTIONS = {
    "baseline": 0,
    "vnni": VNNI_BYTES,
    "amx": AMX_BYTES | AMX_BFLOATS,
}
TYPES = [
    ("char", "char", "int"),
    ("uchar", "uchar", "int"),
    ("bfloat", "bfloat", "float"),
    ("bfloat", "bfloat", "bfloat"),
]


@pytest.fixture(params=INSTRUCTIONS)
def instructions(request):
    """Lets kernels use these instructions only."""
    wanted = INSTRUCTIONS[request.param]
    before = _host.prefer_product_instructions(wanted)
    try:
        if _host.prefer_product_instructions(wanted) != wanted:
            pytest.skip("this CPU does not have them")
        yield wanted
    finally:
        _host.prefer_product_instructions(before)


PRODUCTS = [
    Product(*types, m, n, 0, tl, tr, simdgroups, cooperative, accumulates)
    for (types, (tl, tr), (m, n, simdgroups, cooperative, accumulates)) in zip(
        [types for types in TYPES for _ in range(4)],
        itertools.cycle(itertools.product((False, True), repeat=2)),
        itertools.cycle([(128, 64, 4, False, True), (64, 64, 4, True, False), (24, 48, 1, True, True)]),
        strict=False,
    )
]  # fmt: skip
# Whole tiles of 16 lines and 64 bytes of K, which are not packed, and all kinds of remainders.
SIZES = [(128, 128, 128), (130, 75, 301), (17, 16, 64), (1, 5, 3), (40, 100, 514)]


@pytest.fixture(scope="module")
def library():
    return build("".join(p.text() for p in PRODUCTS))


@pytest.mark.parametrize("rows, columns, inner", SIZES)
def test_products_are_those_of_float64(instructions, library, rows, columns, inner):
    for product in PRODUCTS:
        product.check(library, rows, columns, inner)


BYTE_PRODUCT = Product("char", "char", "int", 64, 64, 0, simdgroups=4, cooperative=False)
BFLOAT_PRODUCT = Product("bfloat", "bfloat", "float", 64, 64, 0, simdgroups=4)


def multiply(product, a, b, result):
    c = torch.zeros(a.shape[0], b.shape[1], dtype=result)
    sizes = (torch.tensor([n], dtype=torch.int32) for n in (*c.shape, a.shape[1]))
    groups = -(-c.shape[1] // 64) * 128, -(-c.shape[0] // 64), 1
    build(product.text()).launch(product.name, [a, b, c, *sizes], groups, (128, 1, 1))
    return c


def test_sums_of_bytes_wrap_around(instructions):
    """133,000 products of (-128)^2 are more than 2^31."""
    a, b = (torch.full(shape, -128, dtype=torch.int8) for shape in ((1, 133_000), (133_000, 1)))
    total = (133_000 * 128**2 + 2**31) % 2**32 - 2**31
    assert multiply(BYTE_PRODUCT, a, b, torch.int32).item() == total


def test_infinities_and_nan_stay_in_their_rows_and_columns(instructions):
    a = torch.randn(40, 70).bfloat16()
    b = torch.randn(70, 50).bfloat16()
    a[3, 69], a[20, 0], b[7, 49] = torch.inf, torch.nan, -torch.inf
    found = multiply(BFLOAT_PRODUCT, a, b, torch.float32)
    torch.testing.assert_close(
        found, (a.double() @ b.double()).float(), equal_nan=True, rtol=1e-4, atol=1e-4
    )


def test_denormal_numbers_count_as_they_are_or_as_zero(instructions):
    """Tiles of AMX take them for zero."""
    tiny, huge = 2.0**-130, 2.0**120
    a = torch.full((32, 64), tiny).bfloat16()
    found = multiply(BFLOAT_PRODUCT, a, torch.full((64, 32), huge).bfloat16(), torch.float32)
    expected = 0.0 if instructions & AMX_BFLOATS else 64 * tiny * huge
    assert (found == expected).all()


@pytest.mark.full
def test_the_environment_chooses_the_baseline():
    program = "from metalops import _host; print(_host.prefer_product_instructions(0))"
    environment = {**os.environ, "METALOPS_INSTRUCTIONS": "baseline"}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.stdout == "0\n", result.stderr
