"""csrc/plans/quantized: what a product launches, by its sizes and the GPU."""

import pytest
import torch
from metalops.ops._cuda import plan as plans

H100 = plans.Limits(multiprocessors=132, has_tensors=True)
H200 = H100._replace(has_warpgroups=True)
MODES = ("affine", "mxfp4", "mxfp8", "nvfp4", "nf4", "fp4", "int8")


def launch_of(rows, columns, inner, mode="affine", bits=4, dtype=torch.half, limits=H200, **call):
    group_size = {"mxfp4": 32, "mxfp8": 32, "nvfp4": 16, "int8": inner}.get(mode, 64)
    of_groups = 1, columns, inner // group_size
    arguments = {
        "result": torch.empty(1, rows, columns, dtype=dtype),
        "x": torch.empty(1, rows, inner, dtype=dtype),
        "codes": torch.empty(1, columns, inner // 8 * bits, dtype=torch.uint8),
        "scales": torch.empty(of_groups, dtype=dtype),
        "biases": torch.empty(of_groups, dtype=dtype) if mode == "affine" else None,
        "bits": bits,
        "group_size": group_size,
        "mode": MODES.index(mode),
        "transpose": True,
    }
    plan, _ = plans.functions().plan("quantized_matmul", limits, arguments | call)
    (launch,) = (step for step in plan.steps if isinstance(step, plans.Launch))
    return launch


def groups(launch):
    return launch.grid[0] // launch.group[0]


@pytest.mark.parametrize(
    ("rows", "tile", "rows_of_tile", "lines", "threads"),
    [(17, "32", 32, 64, 512), (64, "64", 64, 64, 384), (100, "128", 128, 64, 256), (129, "256", 128, 128, 256), (256, "256", 128, 128, 256), (257, "large", 256, 128, 256), (1000, "large", 256, 128, 256)],
)  # fmt: skip
def test_warpgroups_decode_weights_of_many_rows(rows, tile, rows_of_tile, lines, threads):
    launch = launch_of(rows, 4100, 1024)
    assert launch.kernel == f"quantized_matmul_lines_{tile}_int4_half"
    assert launch.group[0] == threads
    assert groups(launch) == -(-rows // rows_of_tile) * -(-4100 // lines)


@pytest.mark.parametrize(
    "call",
    [
        {"limits": H100},
        {"dtype": torch.float32},
        {"bits": 3},
        {"inner": 1056},
        {"transpose": False, "result": torch.empty(1, 40, 1024, dtype=torch.half)},
        {"rows": 16},
        {"mode": "int8", "bits": 8},
        {"left_index": torch.zeros(1, dtype=torch.long)},
    ],
    ids=lambda call: " ".join(call),
)
def test_other_products_of_many_rows(call):
    sizes = {"rows": 40, "columns": 40, "inner": 1024} | call
    if "transpose" in call:
        sizes |= {"columns": 1024, "x": torch.empty(1, 40, 1024, dtype=torch.half)}
    assert "_lines_" not in launch_of(**sizes).kernel
