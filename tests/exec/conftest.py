"""Kernels for these tests are Metal source in the test files, compiled once for the session."""

import pytest
import torch
from metalops import _host, msl

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"

_libraries = {}


def build(source):
    """The kernel library of a Metal source (without its first two lines)."""
    if source not in _libraries:
        _libraries[source] = _host.Library(str(msl.compile_source(HEADER + source)))
    return _libraries[source]


@pytest.fixture(params=["loop", "fiber"])
def engine(request):
    """The engines that can run a kernel that does not synchronise."""
    return request.param


@pytest.fixture
def two_threads():
    """torch's thread pool with two CPU threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
