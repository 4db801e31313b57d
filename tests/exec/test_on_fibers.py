"""A kernel that runs as a group loop is compiled for fibers, too, when it is asked to run on them."""

import struct

import pytest
import torch
from metalops import _host, msl
from metalops.msl import cache
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host.emit import emit

from .conftest import HEADER

SOURCE = """
constant int shift [[function_constant(0)]];
kernel void add_sum(device int* x, uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
  threadgroup int shared[64];
  shared[t] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[i] = shared[t] + shared[63 - t] + shift;
}
kernel void add_one(device int* x, uint i [[thread_position_in_grid]]) { x[i] += 1; }
"""
TABLES = """
typedef int Form(int);
[[visible]] int twice(int x) { return 2 * x; }
kernel void call(visible_function_table<Form> table [[buffer(0)]], device int* x, uint i [[thread_position_in_grid]]) {
  threadgroup_barrier(mem_flags::mem_none);
  x[i] = table[0](x[i]);
}
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library of SOURCE with shift 5, compiled as anybody's; the cache has nothing else."""
    monkeypatch.setenv("METALOPS_CACHE_DIR", str(tmp_path / "cache"))
    built = _host.Library(msl.compile_source(HEADER + SOURCE, options=msl.Options()))
    return built.specialise({0: struct.pack("i", 5)})


def run(library, engine):
    x = torch.arange(128, dtype=torch.int32)
    library.launch("add_sum", [x], 128, 64, engine=engine)
    return x


def test_a_group_loop_is_compiled_for_fibers_once_and_when_asked(library):
    assert library.kernel_table()[0]["engines"] == ["group", "fiber"]
    i = torch.arange(128, dtype=torch.int32)
    expected = i + (i - i % 64 + 63 - i % 64) + 5
    assert torch.equal(run(library, "auto"), expected)
    assert len(cache.entries()) == 1
    for _ in range(2):
        assert torch.equal(run(library, "fiber"), expected)
        assert len(cache.entries()) == 2
    assert torch.equal(run(library, "group"), expected)


def test_each_library_has_its_own_function_constants_there(library):
    run(library, "fiber")
    other = library.specialise({0: struct.pack("i", 7)})
    assert torch.equal(run(other, "fiber"), run(library, "fiber") + 2)
    assert torch.equal(run(other, "fiber"), run(other, "group"))


def test_kernels_that_do_not_synchronise_are_compiled_for_both_at_once(library):
    x = torch.arange(128, dtype=torch.int32)
    library.launch("add_one", [x], 128, 64, engine="fiber")
    assert torch.equal(x, torch.arange(1, 129, dtype=torch.int32))
    assert len(cache.entries()) == 1


def test_the_environment_asks_before_it_is_compiled(library, monkeypatch):
    monkeypatch.setenv("METALOPS_ENGINE", "fiber")
    built = _host.Library(msl.compile_source(HEADER + SOURCE, options=msl.Options()))
    assert len(cache.entries()) == 2
    run(built.specialise({0: struct.pack("i", 5)}), "fiber")
    assert len(cache.entries()) == 2


def test_kernels_that_call_through_tables_are_compiled_for_both_at_once():
    """The entries of a table belong to one library."""
    without = emit(preprocess(HEADER + SOURCE), fibers=False).text
    assert "msl_thread_0(" not in without and "msl_thread_1(" in without
    assert "msl_thread_0(" in emit(preprocess(HEADER + SOURCE)).text
    assert "msl_thread_0(" in emit(preprocess(HEADER + TABLES), fibers=False).text
