"""Kernels for these tests are Metal source in the test files, compiled once for the session."""

import dataclasses
import os
import shutil

import pytest
import torch
from metalops import msl
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host import sanitizers
from metalops.msl.targets.host.emit import emit

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"

_libraries = {}


def build(source, optimize=3):
    """The kernel library of a Metal source (without its first two lines), for all engines. optimize: less for very many kernels, of which a
    compiler would make loops over the threads of a group for as many seconds as there are of them."""
    from metalops import _host

    key = source, optimize, os.environ.get("CXX")
    if key not in _libraries:
        options = dataclasses.replace(msl.runtime_options(), optimize=optimize, engines="all")
        library = msl.compile_source(HEADER + source, options=options)
        _libraries[key] = _host.Library(str(library))
    return _libraries[key]


def engines_of(library, name):
    """The engines that take a kernel."""
    return next(entry["engines"] for entry in library.kernel_table() if entry["name"] == name)


# What stands in a kernel whose body is to be a loop over the grid, or over the threads of a group.
MEETING = {"loop": "", "group": "threadgroup_barrier(mem_flags::mem_none);"}


@pytest.fixture(params=["g++", "clang++-19"])
def each_compiler(request, monkeypatch):
    """Kernels are compiled by each compiler that there is."""
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setenv("CXX", request.param)


def assert_left_to_fibers(source, reason):
    """Asserts that the kernel k of a source runs on fibers, and that this is what is said of why."""
    engine, why = emit(preprocess(HEADER + source)).engines["k"]
    assert engine == "fiber" and reason in why
    assert build(source).kernel_table()[0]["engines"] == ["fiber"]


# Most of the time of libraries of many group loops is that of the compiler's optimisations.
each_optimization = pytest.mark.parametrize(
    "optimize", [1, pytest.param(3, marks=pytest.mark.nightly)]
)


def assert_as_fibers(source, name, launches, optimize=3):
    """Asserts that a kernel k(uint* in, uint* out) does as a group loop what it does on fibers. launches: (threads, group)."""
    for threads, group in launches:
        x = torch.randint(
            0, 64, (threads,), dtype=torch.int32, generator=torch.manual_seed(threads)
        )
        results = []
        for engine in ("group", "fiber"):
            out = torch.full((threads,), -1, dtype=torch.int32)
            build(source, optimize).launch(name, [x, out], threads, group, engine=engine)
            results.append(out)
        assert torch.equal(*results), (threads, group)


@pytest.fixture(params=["loop", "fiber"])
def engine(request):
    """The engines that can run a kernel that does not synchronise."""
    return request.param


@pytest.fixture
def several_threads():
    """torch's thread pool with four CPU threads, whatever the machine has.

    A function that asserts that the last launch has used all of them.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield assert_several_ran
    torch.set_num_threads(before)


def assert_several_ran(threads=4):
    from metalops import _host

    # Sanitized launches run on one.
    assert _host.threads_of_last_launch() == (1 if sanitizers.loaded() else threads)
