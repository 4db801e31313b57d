"""The extension that gives the tests of this folder torch's C++ Metal classes."""

import sys
from pathlib import Path

import pytest
import torch

EXTENSION = Path(__file__).parent / "extension"

# Kernels that only say who they are: each writes its place in this list to the start of its output. Which of them runs
# shows how torch's names are put together.
MARKERS = [
    "which_dense_float_float",
    "which_dense_scalar_float_float",
    "which_strided_float_float",
    "which_dense_castout_float",
    "which_dense_castout_ilp_float",
    "which_strided_castout_float",
    "which_dense_float_float_float",
    "which_strided_float_float_float",
    "which_dense_float_float_half",
    "which_strided_castout_bool_float",
    "which_dense_ilp4_float_float",
    "which_dense_cast_float_float",
    "which_strided_cast_float_float",
    "which_dense_cast_bool_float",
    "which_strided_bool_float",
    "which_dense_broadcast_float_float",
    "which_dense_broadcast_rhs_float_float",
    "which_dense_broadcast_cast_float_float",
    "which_dense_broadcast_rhs_cast_float_float",
    "which_dense_scalar_lhs_float_float",
    "which_dense_scalar_cast_float_float",
    "which_dense_scalar_lhs_cast_float_float",
    "which_dense_scalar_cast_half_half",
    "which_dense_scalar_float_float_float",
    "which_dense_scalar_lhs_float_float_float",
    "which_dense_broadcast_float_float_float",
    "which_dense_cast_float_float_float",
    "which_dense_float_float_long",
    "which_dense_cast_float",
    "which_strided_cast_float",
    "which_dense_half_half",
    "which_dense_float2_float2",
    "which_dense_scalar_float2_float2",
    "only_ilp_dense_float_float",
    "only_ilp_dense_ilp4_float_float",
    "only_ilp_dense_castout_ilp_int",
]


def marker_source() -> str:
    return "".join(
        f"kernel void {name}(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {{\n"
        f"  if (i == 0) out[0] = {number};\n}}\n"
        for number, name in enumerate(MARKERS)
    )


@pytest.fixture(scope="session")
def metal_tests(tmp_path_factory):
    """torch.ops.metal_tests, built once for a whole run."""
    from metalops import build

    folder = tmp_path_factory.mktemp("metal_tests")
    markers = folder / "markers.metal"
    markers.write_text("#include <metal_stdlib>\nusing namespace metal;\n" + marker_source())
    sources = [
        str(EXTENSION / "metal_tests.metal"),
        str(markers),
        str(EXTENSION / "metal_tests.mm"),
    ]
    build.load("metal_tests", sources, build_directory=str(folder / "build"))
    return torch.ops.metal_tests


@pytest.fixture
def flavours():
    """flavours(unary=, binary=) pins a flavour ("ilp", "scalar") of dense kernels for the length of a test."""
    if sys.platform == "darwin":
        pytest.skip("torch reads PYTORCH_*_FORCE_FLAVOR itself on a Mac")
    from metalops import _host

    yield _host.set_elementwise_flavour
    _host.set_elementwise_flavour("", "")
