"""What several test files of this folder share."""

import sys

import pytest

software_device_only = pytest.mark.skipif(
    sys.platform == "darwin",
    reason="on a Mac this ends the process, blocks forever or is undefined",
)

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
