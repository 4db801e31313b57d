"""Each source of csrc/ops and csrc/plans includes what it uses: units of several sources and the precompiled header hide what
is missing until the sources are grouped in another way."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from metalops.build import compilers, paths

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("csrc/ops/**/*.mm", "csrc/plans/**/*.cpp")
    for path in ROOT.glob(pattern)
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux",
    reason="elsewhere the sources are Objective-C++, as tests/macos compiles them",
)


def problems(source, text=None):
    """Returns what the compiler says about a source, or about this text instead."""
    torch = paths.torch_include()
    folders = [ROOT, *paths.include_paths(), torch, f"{torch}/torch/csrc/api/include"]
    command = [
        *compilers.find_cxx().split(),
        *("-std=c++20", "-fsyntax-only", "-w", "-x", "c++", "-DAT_PER_OPERATOR_HEADERS"),
        *(f"-I{folder}" for folder in folders),
        "-" if text else ROOT / source,
    ]
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return result.stderr if result.returncode else ""


@pytest.mark.nightly
@pytest.mark.sampled(156)
@pytest.mark.parametrize("source", SOURCES)
def test_a_source_compiles_alone(source):
    assert problems(source) == ""


@pytest.mark.full
def test_a_missing_include_is_found():
    name = "csrc/plans/quantized/quantized.cpp"
    text = (ROOT / name).read_text()
    assert problems(name, text) == ""
    assert "error" in problems(
        name, text.replace("#include <csrc/plans/quantized/skinny_gemm.h>", "")
    )


def test_no_source_includes_the_headers_of_all_operators():
    """They are 2,400 files, which take a compiler some seconds for each source."""
    everything = re.compile(
        r"^#include <(ATen/ATen|ATen/Functions|ATen/NativeFunctions|ATen/autocast_mode|torch/extension|torch/torch)\.h>",
        re.MULTILINE,
    )
    files = [
        path
        for folder in ("csrc", "python/metalops/include/metalops")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".h", ".cpp", ".mm")
    ]
    assert len(files) > 300
    assert [path for path in files if everything.search(path.read_text("utf-8"))] == []
    assert "-DAT_PER_OPERATOR_HEADERS" in (ROOT / "setup.py").read_text("utf-8")
