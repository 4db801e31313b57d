"""Every engine that takes a kernel writes the same bytes: the operators' kernels, those of the tests and of torch's headers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import metalops
import pytest
import torch
from metalops.msl.targets.host import sanitizers

from ..ops.families import gather, kernel_file
from .conftest import build
from .engines import compared

pytestmark = pytest.mark.skipif(
    not metalops._is_software or bool(sanitizers.loaded()), reason="there is one engine"
)

ROOT = Path(__file__).parents[2]
FAMILIES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "tests/ops").rglob("test_*.py")
    if kernel_file(path.stem.removeprefix("test_")).exists()
)
# Others are not about what kernels compute, or take long.
OF_THE_DEVICE = [
    "tests/metal/test_compile_shader.py",
    "tests/metal/test_elementwise_names.py",
    "tests/metal/test_elementwise_values.py",
    "tests/metal/test_kernel_function.py",
    "tests/metal/test_rows.py",
]
OF_THE_ENGINES = [f"tests/exec/test_{name}.py" for name in (
    "argument_buffers", "atomics", "barriers", "divergence", "function_constants", "integer", "math", "pack_and_log",
    "simdgroup", "simdgroup_matrix", "thread_attributes", "threadgroup_memory", "types", "vectorised_loops",
)]  # fmt: skip

SOURCE = """
kernel void in_place(device float* x, device float* same, device const float* read, uint i [[thread_position_in_grid]]) {
  x[i] = same[i] + read[i] + 1;
}
kernel void order(device atomic_uint* count, device uint* out, uint2 i [[thread_position_in_grid]]) {
  out[i.y * 4 + i.x] = atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
}
"""


def test_each_engine_starts_with_the_same_memory():
    x = torch.zeros(100)
    with compared() as record:
        build(SOURCE).launch("in_place", [x, x, x], 100, 32)
        build(SOURCE).launch("in_place", [x[50:], x, x], 50, 32)
    assert record.differences == []
    assert dict(record.kernels) == {"in_place": 2}
    assert x.tolist() == [1] * 50 + [3] * 50


def test_what_depends_on_the_engine_is_reported():
    count, out = torch.zeros(1, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)
    with compared() as record:
        build(SOURCE).launch("order", [count, out], (4, 4), (2, 2))
    (line,) = record.differences
    assert line.startswith("order, [4, 4, 1] threads in groups of [2, 2, 1]: 8 of 64 bytes differ")
    assert sorted(out.tolist()) == list(range(16))
    assert count.item() == 16


def _small(measured, dtype):
    shape = (4, 64)
    inputs = [
        torch.empty(shape).uniform_(measured.low, measured.high).to(dtype).to("mps")
        for _ in range(measured.inputs)
    ]
    out = torch.zeros((4, 32) if measured.halves else shape, device="mps", dtype=dtype)
    measured.ours(*inputs, out)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("measured", gather("BENCHMARKS"), ids=lambda measured: measured.name)
def test_operators_are_the_same_on_every_engine(measured):
    with compared() as record:
        _small(measured, torch.float32)
        if measured.only_dtype is None:
            _small(measured, torch.float16)
    assert record.differences == []


def _compare(files, compiler):
    # Comparing takes time, which one test measures.
    command = [sys.executable, "-m", "pytest", "--all", "--compare-engines"]
    command += ["-k", "not microsecond"]
    result = subprocess.run(
        [*command, "-n", "0", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env={**os.environ, **({"CXX": compiler} if compiler else {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


@pytest.mark.nightly
def test_operators_are_the_same_through_all_of_their_tests():
    _compare(FAMILIES, None)


@pytest.mark.nightly
@pytest.mark.parametrize("compiler", ["g++", "clang++-19"])
@pytest.mark.parametrize(
    "files",
    [OF_THE_ENGINES, OF_THE_DEVICE, ["tests/msl/test_torch_headers.py"]],
    ids=["engines", "device", "torch's headers"],
)
def test_kernels_of_the_tests_are_the_same(files, compiler):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    _compare(files, compiler)
