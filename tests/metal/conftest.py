"""The extension that gives the tests of this folder torch's C++ Metal classes."""

import sys
from pathlib import Path

import pytest
import torch

from .common import marker_source

EXTENSION = Path(__file__).parent / "extension"


@pytest.fixture(scope="session")
def metal_tests(shared_folder, once):
    """torch.ops.metal_tests, built once for a whole run."""
    from metalops import build

    def make():
        folder = shared_folder / "metal_tests"
        folder.mkdir()
        markers = folder / "markers.metal"
        markers.write_text("#include <metal_stdlib>\nusing namespace metal;\n" + marker_source())
        sources = [
            str(EXTENSION / "metal_tests.metal"),
            str(markers),
            str(EXTENSION / "metal_tests.mm"),
        ]
        return build.load("metal_tests", sources, build_directory=str(folder))

    torch.ops.load_library(once("metal_tests", make))
    return torch.ops.metal_tests


@pytest.fixture
def flavours(monkeypatch):
    """flavours(unary, binary) pins the flavour ("ilp", "scalar", "strided") of dense kernels for the length of a test."""
    if sys.platform == "darwin":  # torch reads these at every call

        def pin(unary, binary):
            monkeypatch.setenv("PYTORCH_UNARY_FORCE_FLAVOR", unary)
            monkeypatch.setenv("PYTORCH_BINARY_FORCE_FLAVOR", binary)

        yield pin
        return
    from metalops import _host

    yield _host.set_elementwise_flavour
    _host.set_elementwise_flavour("", "")
