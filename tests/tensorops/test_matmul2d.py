"""matmul2d: every type, size, scope, transposition and kind of operand, against float64."""

import itertools
from dataclasses import replace

import pytest
import torch

from .elements import NEWER_TRIPLES, TRIPLES
from .products import Product, build

LAYOUTS = ["apple10", "apple8", "scramble:3"]


def library_of(products, **options):
    """A library of kernels for these products; built when it is first asked for."""
    return build("".join(p.text() for p in dict.fromkeys(products)), **options)


OF_TYPES = {
    language: [Product(*triple) for triple in triples]
    for language, triples in (("4.0", TRIPLES), ("4.1", NEWER_TRIPLES))
}


# The compiler takes long for so many products; few parts belong to the full tier.
PARTS = 4


@pytest.mark.sampled(12)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("language", OF_TYPES)
def test_every_triple_of_types(language, layout, part):
    products = OF_TYPES[language][part::PARTS]
    library = library_of(products, language=language, layout=layout, optimize=0)
    for product in products:
        product.check(library, 40, 72, 96)


# Each role that operands of these types may have besides that of a tensor. Formats have none.
IN_REGISTERS = {"half", "bfloat", "float", "char", "uchar"}
INPUTS = {
    language: [
        Product(left, right, result, m=16, n=16, k=32, inputs=inputs)
        for left, right, result in triples
        for inputs in (("left",), ("right",), ("left", "right"))
        if {{"left": left, "right": right}[side] for side in inputs} <= IN_REGISTERS
        and (len(inputs) == 1 or result in ("float", "int"))
    ]
    for language, triples in (("4.0", TRIPLES), ("4.1", NEWER_TRIPLES))
}


@pytest.mark.nightly
@pytest.mark.sampled(6)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("language", INPUTS)
def test_every_type_of_cooperative_inputs(language, layout):
    library = library_of(INPUTS[language], language=language, layout=layout, optimize=0)
    for product in INPUTS[language]:
        product.check(library, 40, 24, 96)


TRANSPOSED_INPUTS = [
    Product(k=32, n=16, transpose_left=tl, transpose_right=tr, inputs=("left", "right"))
    for tl, tr in ((False, True), (True, False), (True, True))
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_transposed_cooperative_inputs(layout):
    library = library_of(TRANSPOSED_INPUTS, layout=layout)
    for product in TRANSPOSED_INPUTS:
        product.check(library, 40, 24, 96)


# Each tile once in each scope that can have it, and each pair of transpositions.
SHAPES = [(16, 8), (8, 16), (16, 16), (16, 32), (32, 16), (32, 32), (64, 32), (24, 48), (64, 64)]
SCOPES = [
    *(Product(m=m, n=n, simdgroups=1) for m, n in SHAPES),
    *(Product(m=m, n=n, simdgroups=s) for m, n in SHAPES for s in (2, 4, 7)),
    *(Product(m=m, n=n, simdgroups=0) for m, n in ((1, 1), (2, 4), (8, 16), (40, 8))),
]
TRANSPOSED = [
    Product(simdgroups=s, k=k, transpose_left=tl, transpose_right=tr, cooperative=c, accumulates=a)
    for s, k, (tl, tr), (c, a) in itertools.product(
        (1, 4),
        (0, 32),
        ((False, True), (True, False), (True, True)),
        ((True, False), (True, True), (False, True)),
    )
]


@pytest.mark.sampled(6)
@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_scope_and_shape(layout, part):
    library = library_of(SCOPES[part::PARTS], layout=layout)
    for product in SCOPES[part::PARTS]:
        product.check(library, 2 * product.m + 3, product.n + 5, 40)


@pytest.mark.full
@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(3))
def test_transpositions_steps_and_destinations(part):
    library = library_of(TRANSPOSED[part::3])
    for product in TRANSPOSED[part::3]:
        product.check(library, 50, 45, 96)


# Tiles of several simdgroups in factors of 16 bits, which some GPUs multiply with groups of four: of types
# and sizes that their copies take, and of others.
LARGE = [
    Product(*types, m, n, 0, tl, tr, simdgroups, cooperative=c, accumulates=a)
    for m, n, simdgroups in ((64, 32, 4), (128, 128, 4), (128, 256, 8), (192, 64, 12))
    for tl, tr, c, a, types in (
        (False, False, False, False, ("half", "half", "half")),
        (False, True, False, True, ("bfloat", "bfloat", "bfloat")),
        (True, False, True, True, ("half", "half", "float")),
        (True, True, True, False, ("bfloat", "bfloat", "float")),
    )
]
LARGE += [
    Product("half", "half", "half", m=128, n=64, k=64, simdgroups=4),
    Product("char", "half", "half", m=64, n=64, simdgroups=4, transpose_right=True),
    Product("bfloat", "uint4", "float", m=128, n=64, simdgroups=8, transpose_right=True),
]


@pytest.mark.nightly
@pytest.mark.parametrize("rows, columns, inner", [(130, 264, 328), (200, 40, 24), (65, 51, 41)])
def test_large_tiles_of_several_simdgroups(rows, columns, inner):
    library = library_of(LARGE)
    for product in LARGE:
        product.check(library, rows, columns, inner + inner % 2)


# Factors of other sizes, which GPUs read along K only: the threads turn what is contiguous across it, in patches
# of four rows. Each type with each pair of transpositions.
WAYS = list(itertools.product((False, True), repeat=2))
ALONG_K = {
    types: [
        Product(
            *types, m, n, 0, tl, tr, s, cooperative=c, accumulates=a, relaxed="int" not in types
        )
        for (tl, tr), (m, n, s), (c, a) in zip(
            WAYS,
            [(128, 128, 4), (128, 256, 8), (64, 32, 4), (128, 128, 8)],
            [(False, False), (False, True), (True, True), (True, False)],
            strict=True,
        )
    ]
    for types in (
        ("char", "char", "int"),
        ("uchar", "uchar", "int"),
        ("char", "int4", "int"),
        ("float", "float", "float"),
        ("float", "half", "float"),
        ("e4m3_whole", "e4m3_whole", "float"),
        ("e5m2_whole", "e5m2_whole", "half"),
    )
}
for of_types in ALONG_K.values():
    of_types.append(replace(of_types[0], m=128, n=64, k=32, transpose_right=True))


@pytest.mark.sampled(12)
@pytest.mark.full
@pytest.mark.parametrize("types", ALONG_K, ids="_".join)
@pytest.mark.parametrize("rows, columns, inner", [(256, 512, 640), (130, 264, 528), (65, 52, 42)])
def test_large_tiles_of_other_factors(types, rows, columns, inner):
    library = library_of(ALONG_K[types], language="4.1")
    for product in ALONG_K[types]:
        product.check(library, rows, columns, inner)


# Bytes that are factors of 16 bits: where the precision is not relaxed, sums need all 24 bits of a float.
WIDENED = [
    Product(*types, m, n, 0, tl, tr, s, cooperative=False)
    for (tl, tr), (m, n, s), types in zip(
        [*WAYS, (False, False)],
        [(64, 32, 4), (128, 128, 4), (128, 256, 8), (64, 64, 4), (128, 64, 4)],
        [
            ("e4m3", "e4m3", "float"),
            ("e5m2", "e5m2", "float"),
            ("half", "e4m3", "half"),
            ("char", "half", "float"),
            ("bfloat", "uchar", "float"),
        ],
        strict=True,
    )
]


@pytest.mark.full
@pytest.mark.parametrize("rows, columns, inner", [(256, 512, 320), (136, 264, 168), (65, 51, 41)])
def test_large_tiles_of_bytes_among_floats(rows, columns, inner):
    products = [*WIDENED, Product("float", "float", "float", 64, 64, 0, simdgroups=4)]
    library = library_of(products, language="4.1")
    for product in products:
        product.check(library, rows, columns, inner)


SHORT = """
constant constexpr auto d = matmul2d_descriptor(16, 32, 64);
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;
kernel void product(device float* A, device float* B, device float* C, constant int& K) {
  Matrix a(A, dextents<int, 2>(K, 16), array<int, 2>{1, 64}), b(B, dextents<int, 2>(32, K));
  Matrix c(C, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroup> op;
  op.run(a, b, c);
}
"""


@pytest.mark.parametrize("inner", [64, 40, 1])
def test_a_static_inner_dimension_takes_zeros_for_what_dynamic_extents_lack(inner):
    """As torch's kernels on Metal 4 expect; sanitizers warn of it."""
    a, b, c = torch.randn(16, 64), torch.randn(64, 32), torch.zeros(16, 32)
    build(SHORT).launch("product", [a, b, c, torch.tensor([inner], dtype=torch.int32)], 32, 32)
    expected = a[:, :inner].double() @ b[:inner].double()
    torch.testing.assert_close(c.double(), expected, rtol=1e-5, atol=1e-5)
