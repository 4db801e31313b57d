"""How hard the compiler tries for which kernel of an elementwise operator."""

import platform
import re

import pytest
import torch
from metalops import _host, msl
from metalops.msl.source import compiler
from metalops.msl.targets.host import flavours

UNARY = [
    f"f_{flavour}"
    for flavour in (
        "dense_float_float",
        "dense_scalar_float_float",
        "strided_float_float",
        "dense_castout_float",
        "dense_castout_ilp_float",
        "strided_castout_float",
    )
]
BINARY = [
    f"f_{flavour}_half_half"
    for flavour in (
        "dense",
        "dense_ilp4",
        "dense_scalar",
        "dense_scalar_lhs",
        "dense_cast",
        "dense_broadcast_rhs_cast",
        "strided",
        "strided_cast",
    )
]


def test_flavours_of_several_elements_a_thread_are_left_alone():
    assert flavours.left_alone(UNARY) == {"f_dense_float_float", "f_dense_castout_ilp_float"}
    assert flavours.left_alone(BINARY) == {"f_dense_ilp4_half_half"}


def test_they_are_not_where_nothing_else_serves():
    assert flavours.left_alone(["f_dense_float_float", "f_dense_ilp4_half_half", "fill"]) == set()


def test_dense_operands_of_one_floating_dtype_are_not_rare():
    assert [name for name in BINARY if not flavours.is_rare(name)] == [
        "f_dense_half_half",
        "f_dense_ilp4_half_half",
        "f_dense_scalar_half_half",
    ]
    assert flavours.is_rare("f_dense_scalar_float_long")
    assert not flavours.is_rare("masked_softmax_rows_float")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="about x86-64's instruction sets")
@pytest.mark.parametrize("name", ["g++", "clang++", "clang++-19"])
def test_a_portable_library_asks_for_avx2_alone_and_brings_loops_for_avx_512(
    tmp_path, monkeypatch, name
):
    if not isinstance(compiler._probe([name]), compiler.Compiler):
        pytest.skip(f"{name} builds no kernels here")
    monkeypatch.setenv("CXX", name)
    source = tmp_path / "twice.metal"
    source.write_text(
        "kernel void twice(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] *= 2; }\n"
    )
    path = msl.compile_file(source, tmp_path / "twice.so", arch="portable")
    with open(path, "rb") as f:
        text = f.read()
    assert (b"arch_x86_64_v4" if name == "g++" else b"_wide") in text
    assert re.search(rb"\S+ [\d.]+ -O3 portable", text)
    assert str(tmp_path).encode() not in text
    library = _host.Library(path)
    assert library.cpu_features == "AVX, AVX2, FMA, F16C, BMI2"
    x = torch.arange(100.0)
    library.launch("twice", [x], 100, 64)
    assert x.equal(torch.arange(100.0) * 2)


def test_a_library_names_files_without_the_folders_they_were_found_in(tmp_path):
    (tmp_path / "include" / "own").mkdir(parents=True)
    (tmp_path / "include" / "own" / "wait.h").write_text(
        "inline void wait() { threadgroup_barrier(metal::mem_flags::mem_none); }\n"
        "constant char* place = __FILE__;\n"
    )
    source = tmp_path / "waiting.metal"
    source.write_text(
        "#include <metal_stdlib>\n#include <own/wait.h>\n"
        "kernel void waiting(device char* x [[buffer(0)]], device char* y [[buffer(1)]]) {\n"
        "  metal::threadgroup_barrier(metal::mem_flags::mem_none);\n"
        "  wait();\n"
        "  for (int i = 0; place[i]; ++i) x[i] = place[i];\n"
        "  for (int i = 0; __FILE__[i]; ++i) y[i] = __FILE__[i]; }\n"
    )
    path = msl.compile_file(
        source, tmp_path / "waiting.so", include_dirs=[tmp_path / "include"], optimize=1
    )
    with open(path, "rb") as f:
        assert str(tmp_path).encode() not in f.read()
    names = torch.zeros(2, 4096, dtype=torch.int8)
    _host.Library(path).launch("waiting", [names[0], names[1]], 1, 1)
    found = [bytes(name.tolist()).rstrip(b"\0") for name in names]
    assert found == [b"own/wait.h", b"waiting.metal"]
