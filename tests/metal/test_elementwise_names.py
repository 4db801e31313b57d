"""Which kernel the elementwise calls of MetalShaderLibrary look for: the names of c10/metal/indexing.h."""

import pytest
import torch

from .common import MARKERS, software_device_only

pytestmark = pytest.mark.nightly

F, H, I, L, B, D = (
    torch.float32,
    torch.float16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float64,
)
LARGE = 1 << 18


def tensor(*shape, dtype=F):
    return torch.zeros(shape, dtype=dtype, device="mps")


def strided(*shape, dtype=F):
    return torch.zeros((*shape, 2), dtype=dtype, device="mps")[..., 0]


def number(value, dtype):
    return torch.tensor(value, dtype=dtype)


def marker_of(run, out):
    run(out)
    written = torch.empty(0, dtype=torch.uint8, device="mps").set_(out.untyped_storage())
    return MARKERS[int(written[:4].cpu().view(torch.int32))]


UNARY = {
    "dense": (tensor(8), tensor(8), {}, "which_dense_scalar_float_float"),
    "column-major counts as dense": (
        tensor(4, 5).t(),
        tensor(4, 5).t(),
        {},
        "which_dense_scalar_float_float",
    ),
    "strided input": (tensor(8), strided(8), {}, "which_strided_float_float"),
    "layouts that differ": (tensor(5, 4), tensor(4, 5).t(), {}, "which_strided_float_float"),
    "a single element is dense": (tensor(1), strided(1), {}, "which_dense_scalar_float_float"),
    "other output dtype": (tensor(8, dtype=I), tensor(8), {}, "which_dense_castout_float"),
    "other output dtype, strided": (
        tensor(8, dtype=I),
        strided(8),
        {},
        "which_strided_castout_float",
    ),
    "alpha in the common dtype": (
        tensor(8),
        tensor(8),
        {"alpha": 2},
        "which_dense_float_float_float",
    ),
    "alpha, strided": (tensor(8), strided(8), {"alpha": 2}, "which_strided_float_float_float"),
    "alpha of a given dtype": (
        tensor(8),
        tensor(8),
        {"alpha": 2, "alpha_type": H},
        "which_dense_float_float_half",
    ),
}


@pytest.mark.parametrize("case", UNARY)
def test_unary(metal_tests, case):
    out, x, options, expected = UNARY[case]
    run = lambda out: metal_tests.unary(out, x, "markers", "which", **options)
    assert marker_of(run, out) == expected


BINARY = {
    "dense": (tensor(8), tensor(8), tensor(8), {}, "which_dense_float_float"),
    "strided": (tensor(8), strided(8), tensor(8), {}, "which_strided_float_float"),
    "strided output": (strided(8), tensor(8), tensor(8), {}, "which_strided_float_float"),
    "mixed dtypes": (tensor(8), tensor(8), tensor(8, dtype=H), {}, "which_dense_cast_float_float"),
    "mixed dtypes, strided": (
        tensor(8),
        strided(8),
        tensor(8, dtype=H),
        {},
        "which_strided_cast_float_float",
    ),
    "a comparison names the dtype it computes in": (
        tensor(8, dtype=B),
        tensor(8),
        tensor(8, dtype=H),
        {},
        "which_dense_cast_bool_float",
    ),
    "a comparison, strided": (
        tensor(8, dtype=B),
        tensor(8),
        strided(8),
        {},
        "which_strided_bool_float",
    ),
    "natural output dtype differs": (
        tensor(8),
        tensor(8),
        tensor(8),
        {"natural": B},
        "which_strided_castout_bool_float",
    ),
    "natural output dtype is the output's": (
        tensor(8),
        tensor(8),
        tensor(8),
        {"natural": F},
        "which_dense_float_float",
    ),
    "broadcast": (tensor(4, 5), tensor(4, 5), tensor(5), {}, "which_dense_broadcast_float_float"),
    "broadcast through ones": (
        tensor(3, 4, 5),
        tensor(3, 4, 5),
        tensor(1, 4, 5),
        {},
        "which_dense_broadcast_float_float",
    ),
    "broadcast on the left": (
        tensor(4, 5),
        tensor(5),
        tensor(4, 5),
        {},
        "which_dense_broadcast_rhs_float_float",
    ),
    "broadcast, mixed dtypes": (
        tensor(4, 5),
        tensor(4, 5),
        tensor(5, dtype=H),
        {},
        "which_dense_broadcast_cast_float_float",
    ),
    "broadcast on the left, mixed dtypes": (
        tensor(4, 5),
        tensor(5, dtype=H),
        tensor(4, 5),
        {},
        "which_dense_broadcast_rhs_cast_float_float",
    ),
    "along the last dimension is not a dense broadcast": (
        tensor(4, 5),
        tensor(4, 5),
        tensor(4, 1),
        {},
        "which_strided_float_float",
    ),
    "broadcast onto a strided output": (
        strided(4, 5),
        tensor(4, 5),
        tensor(5),
        {},
        "which_strided_float_float",
    ),
    "both broadcast": (tensor(4, 5), tensor(4, 1), tensor(5), {}, "which_strided_float_float"),
    "scalar": (tensor(8), tensor(8), tensor(), {}, "which_dense_scalar_float_float"),
    "one element is a scalar": (
        tensor(8),
        tensor(8),
        tensor(1),
        {},
        "which_dense_scalar_float_float",
    ),
    "scalar on the left": (
        tensor(8),
        tensor(),
        tensor(8),
        {},
        "which_dense_scalar_lhs_float_float",
    ),
    "float64 CPU scalar becomes float32": (
        tensor(8),
        tensor(8),
        number(2.5, D),
        {},
        "which_dense_scalar_float_float",
    ),
    "integer scalar is converted beforehand": (
        tensor(8),
        tensor(8),
        number(2, L),
        {},
        "which_dense_scalar_float_float",
    ),
    "integer device scalar too": (
        tensor(8),
        tensor(8),
        tensor(dtype=I),
        {},
        "which_dense_scalar_float_float",
    ),
    "half scalar is cast": (
        tensor(8),
        tensor(8),
        tensor(dtype=H),
        {},
        "which_dense_scalar_cast_float_float",
    ),
    "half scalar on the left is cast": (
        tensor(8),
        tensor(dtype=H),
        tensor(8),
        {},
        "which_dense_scalar_lhs_cast_float_float",
    ),
    "integer scalar beside half is cast": (
        tensor(8, dtype=H),
        tensor(8, dtype=H),
        number(2, L),
        {},
        "which_dense_scalar_cast_half_half",
    ),
    "complex with an integer scalar": (
        tensor(8, dtype=torch.complex64),
        tensor(8, dtype=torch.complex64),
        number(2, L),
        {},
        "which_dense_scalar_float2_float2",
    ),
    "scalar with alpha": (
        tensor(8),
        tensor(8),
        tensor(),
        {"alpha": 2},
        "which_dense_scalar_float_float_float",
    ),
    "scalar on the left with alpha": (
        tensor(8),
        tensor(),
        tensor(8),
        {"alpha": 2},
        "which_dense_scalar_lhs_float_float_float",
    ),
    "broadcast with alpha": (
        tensor(4, 5),
        tensor(4, 5),
        tensor(5),
        {"alpha": 2},
        "which_dense_broadcast_float_float_float",
    ),
    "alpha": (tensor(8), tensor(8), tensor(8), {"alpha": 2}, "which_dense_float_float_float"),
    "alpha, strided": (
        tensor(8),
        strided(8),
        tensor(8),
        {"alpha": 2},
        "which_strided_float_float_float",
    ),
    "alpha with mixed dtypes has the output's dtype": (
        tensor(8),
        tensor(8),
        tensor(8, dtype=H),
        {"alpha": 2},
        "which_dense_cast_float_float_float",
    ),
    "alpha of a given dtype": (
        tensor(8),
        tensor(8),
        tensor(8),
        {"alpha": 2, "alpha_type": L},
        "which_dense_float_float_long",
    ),
}


@pytest.mark.parametrize("case", BINARY)
def test_binary(metal_tests, case):
    out, a, b, options, expected = BINARY[case]
    run = lambda out: metal_tests.binary(out, a, b, "markers", "which", **options)
    assert marker_of(run, out) == expected


TERNARY = {
    "dense": (tensor(8), tensor(8), tensor(8), tensor(8), "which_dense_float_float"),
    "strided": (tensor(8), tensor(8), strided(8), tensor(8), "which_strided_float_float"),
    "scalars are strided": (tensor(8), tensor(8), tensor(), tensor(8), "which_strided_float_float"),
    "mixed dtypes": (
        tensor(8),
        tensor(8),
        tensor(8),
        tensor(8, dtype=H),
        "which_dense_cast_float",
    ),
    "mixed dtypes, strided": (
        tensor(8),
        tensor(8, dtype=H),
        tensor(8),
        strided(8),
        "which_strided_cast_float",
    ),
    "float64 CPU scalar becomes float32": (
        tensor(8),
        tensor(8),
        tensor(8),
        number(2.5, D),
        "which_strided_float_float",
    ),
}


@pytest.mark.parametrize("case", TERNARY)
def test_ternary(metal_tests, case):
    out, a, b, c, expected = TERNARY[case]
    run = lambda out: metal_tests.ternary(out, a, b, c, "markers", "which")
    assert marker_of(run, out) == expected


@pytest.mark.parametrize(
    "kind, dtype, pinned, expected",
    [
        pytest.param("unary", F, "", "which_dense_scalar_float_float", marks=software_device_only),
        ("unary", F, "scalar", "which_dense_scalar_float_float"),
        ("unary", F, "ilp", "which_dense_float_float"),
        pytest.param(
            "unary", I, "ilp", "which_dense_castout_ilp_float", marks=software_device_only
        ),
        pytest.param("binary", F, "", "which_dense_float_float", marks=software_device_only),
        ("binary", F, "scalar", "which_dense_float_float"),
        ("binary", F, "ilp", "which_dense_ilp4_float_float"),
    ],
)
def test_the_device_takes_the_scalar_flavour_unless_told_otherwise(
    metal_tests, flavours, kind, dtype, pinned, expected
):
    flavours(pinned, pinned)
    out, x = tensor(LARGE, dtype=dtype), tensor(LARGE)
    if kind == "unary":
        run = lambda out: metal_tests.unary(out, x, "markers", "which")
    else:
        run = lambda out: metal_tests.binary(out, x, x, "markers", "which")
    assert marker_of(run, out) == expected


def test_an_ilp_kernel_without_a_scalar_one_serves_the_sizes_it_serves_on_a_mac(metal_tests):
    large, small = tensor(LARGE), tensor(LARGE - 1)
    unary = lambda out: metal_tests.unary(out, out.clone(), "markers", "only_ilp")
    assert marker_of(unary, large) == "only_ilp_dense_float_float"
    with pytest.raises(RuntimeError, match="only_ilp_dense_castout_float"):
        unary(small)
    out, x = tensor(8, dtype=F), tensor(8, dtype=I)
    castout = lambda out: metal_tests.unary(out, x, "markers", "only_ilp", ilp_threshold=8)
    assert marker_of(castout, out) == "only_ilp_dense_castout_ilp_int"


MISSING = {
    "unary": (lambda ops, x: ops.unary(x, x, "markers", "none"), "none_dense_castout_float"),
    "unary, strided": (
        lambda ops, x: ops.unary(x, strided(8), "markers", "none"),
        "none_strided_castout_float",
    ),
    "unary with alpha": (
        lambda ops, x: ops.unary(x, x, "markers", "none", alpha=1),
        "none_dense_float_float_float",
    ),
    "binary": (lambda ops, x: ops.binary(x, x, x, "markers", "none"), "none_dense_float_float"),
    "binary, mixed": (
        lambda ops, x: ops.binary(x, x, x.half(), "markers", "none"),
        "none_dense_cast_float_float",
    ),
    "ternary": (
        lambda ops, x: ops.ternary(x, x, x, x, "markers", "none"),
        "none_dense_float_float",
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_missing_kernel_is_named(metal_tests, case):
    call, name = MISSING[case]
    for _ in range(2):  # the second time it comes from no cache
        with pytest.raises(
            RuntimeError, match=f"Failed to create function state object for: {name}$"
        ):
            call(metal_tests, tensor(8))


def test_type_names(metal_tests):
    names = {
        torch.float32: "float",
        torch.float16: "half",
        torch.bfloat16: "bfloat",
        torch.int64: "long",
        torch.int32: "int",
        torch.int16: "short",
        torch.int8: "char",
        torch.uint8: "uchar",
        torch.bool: "bool",
        torch.uint64: "ulong",
        torch.uint32: "uint",
        torch.uint16: "ushort",
        torch.complex64: "float2",
        torch.complex32: "half2",
    }
    assert {dtype: metal_tests.type_name(dtype) for dtype in names} == names
    with pytest.raises(RuntimeError, match="Undefined type Double"):
        metal_tests.type_name(torch.float64)
