"""Kernels that are compiled when they are first used, under sanitizers: each is checked, and reported at its place."""

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.nightly

PROGRAM = """
import metalops, torch
from metalops.msl.targets.host import emit
emit.MUCH = 0
source = '''#include <metal_stdlib>
using namespace metal;
template <typename T> kernel void halves(device T* x, uint i [[thread_position_in_grid]]) {
  x[i / 2] += T(1);
}
template <typename T> kernel void next(device T* x, uint i [[thread_position_in_grid]]) {
  x[i] = simd_sum(x[i + 1]);
}
#define REGISTER(NAME, T) template [[host_name(#NAME "_" #T)]] kernel void NAME<T>(device T*, uint);
REGISTER(halves, int) REGISTER(halves, float) REGISTER(next, int) REGISTER(next, float)
'''
library = torch.mps.compile_shader(source)
kernels = [getattr(library, name) for name in ("halves_float", "next_float")]
for kernel in kernels:
    x = torch.zeros(64, device="mps")
    try:
        kernel(x)
        torch.mps.synchronize()
        print("nothing")
    except metalops.debug.SanitizerError as error:
        print(str(error).splitlines()[0])
"""


@pytest.mark.parametrize(
    "mode, found",
    [
        ("thread", ["program_source:4:3: data-race in kernel 'halves_float'", "program_source:7:"]),
        # The operator for clang, the element for g++.
        ("address", ["nothing", "program_source:7:1[89]: heap-buffer-overflow"]),
    ],
)
def test_kernels_compiled_on_demand_are_sanitized(tmp_path, mode, found):
    settings = {"METALOPS_SANITIZE": mode, "METALOPS_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    for line, pattern in zip(lines, found, strict=True):
        assert re.match(pattern, line), done.stdout + done.stderr
