"""Kernels that a library leaves out are compiled when they are first used, in parts."""

import struct
import zlib

import metalops
import pytest
import torch
from metalops import _host, msl
from metalops.msl import cache, left_out
from metalops.msl.analysis.needed import Needed
from metalops.msl.analysis.program import Program
from metalops.msl.build import Options, compile_path, host_program, preprocess_text
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host.emit import emit

from .conftest import HEADER

SOURCE = """
constant int shift [[function_constant(0)]];
template <typename T>
kernel void add(device T* x, uint i [[thread_position_in_grid]]) { x[i] += T(1); }
template <typename T>
kernel void sum(device T* x, uint i [[thread_position_in_grid]]) {
  const T all = simd_sum(x[i]);
  x[i] = all;
}
kernel void add_shift(device int* x, uint i [[thread_position_in_grid]]) { x[i] += shift; }
#define REGISTER(NAME, T) \\
  template [[host_name(#NAME "_" #T)]] kernel void NAME<T>(device T*, uint);
#define REGISTER_ALL(NAME) REGISTER(NAME, int) REGISTER(NAME, float) REGISTER(NAME, half)
REGISTER_ALL(add)
REGISTER_ALL(sum)
"""
LEFT_OUT = ["add_float", "add_half", "add_shift", "sum_float", "sum_half"]


@pytest.fixture
def built(tmp_path, monkeypatch):
    """The path of a library that leaves out all but two kernels; the cache is empty."""
    monkeypatch.setenv("METALOPS_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "k.metal"
    path.write_text(HEADER + SOURCE)
    output = str(tmp_path / "k.so")
    options = Options(at_first_use=("*_float", "*_half", "add_shift"), language=310)
    compile_path(str(path), output, options)
    return output


def run(library, name, values, dtype):
    x = torch.tensor(values, dtype=dtype)
    library.launch(name, [x], len(values), len(values))
    return x.tolist()


def test_all_are_named_and_each_part_is_compiled_once(built):
    library = _host.Library(built)
    assert sorted(library.names()) == sorted(["add_int", "sum_int", *LEFT_OUT])
    assert [entry["name"] for entry in library.kernel_table()] == ["add_int", "sum_int"]
    assert run(library, "add_int", [1, 2], torch.int32) == [2, 3]
    assert run(library, "sum_int", [1, 2], torch.int32) == [3, 3]
    assert len(cache.entries()) == 0
    for name, values, dtype, entries in (
        ("add_half", [1.5, 2.0], torch.float16, 1),
        ("add_float", [1.5, 2.0], torch.float32, 1),  # of the same part
        ("sum_float", [1.5, 2.0], torch.float32, 2),
        ("sum_half", [1.5, 2.0], torch.float16, 3),  # it synchronises, so it is a part of its own
        ("sum_half", [2.5, 2.0], torch.float16, 3),
    ):
        expected = [v + 1 for v in values] if name.startswith("add") else [sum(values)] * 2
        assert run(library, name, values, dtype) == expected
        assert len(cache.entries()) == entries, name
    assert run(_host.Library(built), "sum_half", [1.0, 2.0], torch.float16) == [3.0, 3.0]
    assert len(cache.entries()) == 3


def test_what_is_missing_is_missing_still(built):
    with pytest.raises(KeyError, match="no kernel 'add_long'"):
        run(_host.Library(built), "add_long", [1], torch.int64)
    with pytest.raises(RuntimeError, match="add_floats, did you mean .*add_float"):
        _ = torch.mps.load_metallib(built).add_floats


def test_a_part_has_the_librarys_function_constants(built):
    with open(built, "rb") as file:
        library = _host.Library.from_bytes(file.read())
    for shift in (3, 5):
        copy = library.specialise({0: struct.pack("i", shift)})
        assert run(copy, "add_shift", [1], torch.int32) == [1 + shift]


def test_shader_libraries_find_them(built):
    library = torch.mps.load_metallib(built)
    x = torch.ones(3, device="mps", dtype=torch.float16)
    library.add_half(x)
    library.sum_half(x)
    assert x.tolist() == [6.0] * 3


def test_a_part_contains_the_source_it_came_from(built):
    library = _host.Library(built)
    text = zlib.decompress(library.source).decode()
    path = msl.compile_left_out(library.source, 310, ["sum_half"])
    assert _host.Library(path).names() == ["sum_half"]
    assert "sum" in text


def test_a_slow_one_is_announced(built, monkeypatch, capfd):
    monkeypatch.setattr(metalops._patience, "_PATIENCE", 0.0)
    run(_host.Library(built), "sum_half", [1.0], torch.float16)
    assert capfd.readouterr().err == "metalops: compiling sum_half ...\n"


def test_parts_are_kernels_of_one_line_or_one_that_synchronises():
    parts = emit(preprocess(HEADER + SOURCE), at_first_use=["add_*", "sum_*"]).left_out
    assert parts["add_int"] == parts["add_float"] == parts["add_half"] != parts["add_shift"]
    assert len({parts[name] for name in parts}) == 5


def test_processes_that_want_the_same_take_turns(built):
    import fcntl
    import glob
    import os

    with cache.turn("0" * 40):
        (path,) = glob.glob(os.path.join(cache.directory(), "*.lock"))
        with open(path, "r+") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(path, "r+") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_kernels_that_differ_in_template_arguments_are_read_once(built):
    left_out._program.cache_clear()
    library = _host.Library(built)
    for name, dtype in (("sum_half", torch.float16), ("sum_float", torch.float32)):
        assert run(library, name, [1.5, 2.0], dtype) == [3.5, 3.5]
    assert left_out._program.cache_info().misses == 1


DIFFERENT = """
struct One { static int of() { return 1; } };
struct Two { static int of() { return 2; } };
template <typename T>
kernel void add(device int* x, uint i [[thread_position_in_grid]]) { x[i] = simd_sum(x[i]) + T::of(); }
template <int N>
kernel void twice(device int* x, uint i [[thread_position_in_grid]]) { x[i] = simd_sum(x[i]) * N; }
template [[host_name("one")]] kernel void add<One>(device int*, uint);
template [[host_name("two")]] kernel void add<Two>(device int*, uint);
template [[host_name("twice")]] kernel void twice<2>(device int*, uint);
template [[host_name("thrice")]] kernel void twice<3>(device int*, uint);
"""


def test_kernels_that_need_different_code_are_read_apart():
    needed = Needed(Program(preprocess(HEADER + DIFFERENT).parsed))
    assert [needed.alike(x) for x in ("one", "two")] == [("one",), ("two",)]
    assert needed.alike("twice") == needed.alike("thrice") == ("twice", "thrice")


@pytest.mark.parametrize("name", ["sum_int", "sum_half", "add_shift", "add_int"])
def test_the_code_is_that_of_a_program_read_for_it_alone(name):
    text = HEADER + SOURCE
    options = Options(kernels=(name,), language=310, sanitize="", engines="auto")
    shared = left_out._program_of(text, options).code((name,))
    needed = Needed(Program(preprocess(text).parsed)).text([name])
    alone = host_program(preprocess_text(needed, None, options), options).code()
    assert [entry for entry in shared.engines] == [name]
    assert _words(shared.text) == _words(alone.text)


def _words(text):
    return [
        line.split() for line in text.splitlines() if line.strip() and not line.startswith("# ")
    ]
