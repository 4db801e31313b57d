"""Kernel libraries with and without a sanitizer."""

import os
import subprocess
import sys

import pytest
import torch
from metalops import _host, msl
from metalops.msl import main_compile

SOURCE = "kernel void k(device float* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }\n"


def test_the_cache_tells_sanitizers_apart():
    paths = {msl.compile_source(SOURCE, options=msl.Options(sanitize=s)) for s in ("", "address")}
    assert len(paths) == 2


def test_a_library_with_a_sanitizer_needs_its_runtime(tmp_path, capsys):
    source = tmp_path / "k.metal"
    source.write_text(SOURCE)
    output = tmp_path / "k.so"
    assert main_compile(["--sanitize", "address", "-o", str(output), str(source)]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    with pytest.raises(RuntimeError, match="was built with a sanitizer, which this process"):
        torch.mps.load_metallib(str(output))


def test_a_library_that_does_not_link_is_an_error_with_debug_information_too():
    options = msl.Options(debug=True, flags=("-lmetalops-nowhere",))
    with pytest.raises(SyntaxError, match="program_source"):
        msl.compile_source(SOURCE, options=options)


def test_launches_are_not_checked_by_default():
    before = _host.set_sanitizer("")
    assert before == ""


ON_DEMAND = """
import metalops, torch
from metalops.msl.targets.host import emit
emit.MUCH = 0
library = torch.mps.compile_shader('''
float one(float x) { return x + 1; }
kernel void fine(device float* x, uint i [[thread_position_in_grid]]) { x[i] = one(x[i]); }
kernel void wrong(device float* x, uint i [[thread_position_in_grid]]) {
  x[i + 4] = one(x[i]);
}
''')
x = torch.ones(4, device="mps")
library.fine(x)
print(x.tolist())
try:
    library.wrong(x)
    torch.mps.synchronize()
except metalops.debug.SanitizerError as error:
    print(error)
"""


@pytest.mark.nightly
def test_kernels_that_are_compiled_on_demand_are_checked(tmp_path):
    environment = {"METALOPS_SANITIZE": "address", "METALOPS_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ON_DEMAND],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    first, _, finding = done.stdout.partition("\n")
    assert first == "[2.0, 2.0, 2.0, 2.0]", done.stderr
    assert "kernel 'wrong'" in finding and "program_source:5:12" in finding
