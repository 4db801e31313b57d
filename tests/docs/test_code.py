"""The code of README.md, CONTRIBUTING.md and the site runs as it is printed, with its own assertions."""

import os

import pytest
import torch
from metalops import _is_software
from metalops.cuda import nvrtc
from metalops.msl.check import check_source

from tests.cuda.recorded import recorder

from .pages import PAGES, PROGRAMS, blocks, run

__all__ = ["recorder"]

ON_CUDA = "docs/cuda.md"
# They take more than two seconds: build extensions, run programs under sanitizers or in several processes, import
# transformers, or compile many kernels.
LONG = {
    "docs/ci.md",
    "docs/distributed.md",
    "docs/gguf.md",
    "docs/linear_algebra.md",
    "docs/mac_extensions.md",
    "docs/operator.md",
    "docs/operators_in_depth.md",
    "docs/quantised.md",
    "docs/sanitizers.md",
    "docs/traces.md",
    "docs/wrong_results.md",
}
# What the page on the checker lets it find.
WRONG = {"scale.metal"}


WITH_CODE = [
    pytest.param(page, marks=[pytest.mark.nightly] if page in LONG else [])
    for page in PAGES
    if blocks(page) and page != ON_CUDA
]


@pytest.fixture(autouse=True)
def _programs_of_another_environment_come_first(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("another")
    for name in PROGRAMS:
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_of_the_page_runs(page, tmp_path, monkeypatch):
    if page == "docs/sanitizers.md" and not _is_software:
        pytest.skip("sanitizers are those of the software device")
    monkeypatch.chdir(tmp_path)
    run(page, tmp_path)


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
def test_the_code_of_the_page_on_cuda_compiles_and_launches(tmp_path, request):
    if torch.cuda.is_available():
        run(ON_CUDA, tmp_path)
        return
    launches = request.getfixturevalue("recorder").launches
    run(ON_CUDA, tmp_path, replaced={'device="cuda"': 'device="cpu"'})
    assert len(launches) == 1


@pytest.mark.full
def test_the_metal_sources_of_the_pages_are_right():
    sources = [
        _with_files(block.text, page)
        for page in PAGES
        for block in blocks(page)
        if block.language == "metal" and block.file not in WRONG
    ]
    assert sources
    assert [f for source in sources for f in check_source(source)] == []


def _with_files(text, page):
    """What a source of a page includes from another file of the page stands in its place."""
    for block in blocks(page):
        if block.file is not None:
            text = text.replace(
                f'#include "{block.file}"\n', block.text.replace("#pragma once", "")
            )
    return text
