"""Compiling and running small Metal programs on CPU tensors, without torch's classes in between."""

import dataclasses
import shutil
import sys

import pytest
from metalops import msl

if sys.platform == "darwin":
    collect_ignore_glob = ["test_*.py"]  # kernels are compiled by Apple's compiler there

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


class Program:
    """A compiled source. launch: positional buffers, in the order of their indices."""

    def __init__(self, source: str):
        from metalops import _host

        options = dataclasses.replace(msl.runtime_options(), engines="all")
        self.library = _host.Library(msl.compile_source(source, options=options))

    def launch(self, name, *buffers, grid, group=None, engine="auto", threadgroup_bytes=None):
        self.library.launch(
            name, list(buffers), grid, group or grid, threadgroup_bytes or {}, engine, 1
        )

    def table(self):
        return {entry["name"]: entry for entry in self.library.kernel_table()}

    def specialise(self, values):
        program = Program.__new__(Program)
        program.library = self.library.specialise(values)
        return program


@pytest.fixture(params=["g++", "clang++"])
def compiler(request, monkeypatch):
    """The name of each compiler that is installed, which kernels are compiled with: half is a class under some of them."""
    from metalops.msl.source import compiler

    names = [request.param]
    if request.param == "clang++":
        names += [n[0] for n in compiler._candidates() if n[0].startswith("clang++-")]
    name = next((n for n in names if shutil.which(n)), None)
    if name is None:
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setenv("CXX", name)
    return name


@pytest.fixture
def program():
    """Compiles Metal source; metal_stdlib and `using namespace metal` come before it."""
    return lambda source: Program(HEADER + source)


@pytest.fixture
def bare_program():
    """Compiles Metal source as it stands."""
    return Program
