"""A reference that is bound to fewer bytes than it refers to is a finding that says so."""

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.nightly

PROGRAM = """
import metalops, torch
lib = torch.mps.compile_shader('''
#include <metal_stdlib>
using namespace metal;
kernel void k(device int* out, constant TYPE& sizes, uint i [[thread_position_in_grid]]) {
  out[i] = int(sizes[0]) + int(sizes[1]) + int(sizes[2]);
}
''')
out = torch.zeros(4, dtype=torch.int32, device="mps")
try:
    lib.k(out, [1, 2, 3], arg_casts="int32")
    torch.mps.synchronize()
    print(out.tolist())
except RuntimeError as error:
    print(error)
"""


def _output(type_):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM.replace("TYPE", type_))],
        env={**os.environ, "METALOPS_SANITIZE": "address"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_vector_of_three_needs_the_bytes_of_four():
    found = _output("uint3")
    assert "short-argument in kernel 'k': constant uint3 & sizes needs 16 bytes" in found
    assert "has 12" in found


def test_a_packed_vector_of_three_does_not():
    assert _output("packed_uint3") == "[6, 6, 6, 6]\n"
