"""The preprocessing step: macros of Metal's headers, feature tests, line markers."""

import pytest
from metalops import msl
from metalops.msl.source import compiler
from metalops.msl.source.locations import column_in_line, marker_of
from metalops.msl.source.preprocess import preprocess


def last_line(source, **options):
    return preprocess(source, **options).text.rstrip().split("\n")[-1].strip()


@pytest.fixture(params=["g++", "clang++-19"])
def host(request, monkeypatch):
    if not isinstance(compiler._probe([request.param]), compiler.Compiler):
        pytest.skip(f"{request.param} is not here")
    monkeypatch.setenv("CXX", request.param)


def test_language_macros(host):
    assert last_line("__METAL__ __METAL_VERSION__ __METAL_MACOS__") == "1 400 1"
    assert (
        last_line(
            "#if defined(linux) || defined(__linux__) || defined(__x86_64__)\nbad\n#else\ngood\n#endif"
        )
        == "good"
    )


def test_feature_tests(host):
    source = "#if __has_feature(nothing) || __has_extension(nothing) || __has_builtin(nothing)\nbad\n#else\ngood\n#endif"
    assert last_line(source) == "good"
    assert last_line("#if __has_include(<metal_stdlib>)\ngood\n#endif") == "good"


@pytest.mark.parametrize(
    "header", ["metal_stdlib", "metal_atomic", "metal_simdgroup_matrix", "simd/simd.h", "stdint.h"]
)
def test_headers_are_there(host, header):
    assert last_line(f"#include <{header}>\nFLT_MAX CHAR_BIT") == "3.402823466e+38f 8"


def test_the_standard_library_is_there_without_an_include(host):
    assert (
        last_line("METAL_FUNC FLT_MAX")
        == "inline __attribute__((__always_inline__)) 3.402823466e+38f"
    )
    assert last_line(
        "#ifndef METAL_FUNC\n#define METAL_FUNC static\n#endif\nMETAL_FUNC"
    ).startswith("inline")
    assert last_line("#define MAXFLOAT 1.0f\nMAXFLOAT") == "1.0f"


def test_sources_may_begin_with_a_byte_order_mark(host):
    assert msl.kernel_table("\ufeffkernel void k(device float* o) {}\n")[0].name == "k"


def test_line_ends_of_windows(host):
    source = "#define ONE 1\r\nkernel void k(device float* o) {\\\r\n o[0] = ONE;\r\n}\r\n"
    assert msl.kernel_table(source)[0].name == "k"


def test_dependencies_are_the_users_and_torchs_files(tmp_path):
    (tmp_path / "größe.h").write_text("#define SIZE 4\n")
    (tmp_path / "empty.h").write_text("")
    path = tmp_path / "a.metal"
    path.write_text(
        '#include <metal_stdlib>\n#include "größe.h"\n#include "empty.h"\n#include <c10/metal/common.h>\n'
    )
    found = preprocess(path=str(path)).dependencies
    of_torch = [f.split("/include/")[-1] for f in found[3:]]
    assert [f.split("/")[-1] for f in found[:3]] == ["a.metal", "größe.h", "empty.h"]
    assert of_torch[0] == "c10/metal/common.h" and all(f.startswith("c10/") for f in of_torch)


def test_line_markers():
    assert marker_of('# 12 "a b.h" 2') == (12, "a b.h")
    assert marker_of('#line 3 "x"') == (3, "x")
    assert marker_of('# 1 "gr\\303\\266\\303\\237e.h"') == (1, "größe.h")
    assert marker_of("#line 7") == (7, None)
    assert marker_of("#pragma once") is None


@pytest.mark.parametrize(
    "preprocessed, needle, original, found",
    [
        ("a + b;", "b", "a   +   b;", "b"),
        ("a + ((x) * 2) + b;", "b", "a + TWICE(x) + b;", "b;"),
        ("a + ((x) * 2) + b;", "x", "a + TWICE(x) + b;", "TWICE"),
        (" y = z;", "z", "/* c */ y = z; // z", "z"),
        ("f(1, 2);", "2", "f(ONE, TWO);", "ONE"),
    ],
)
def test_columns(preprocessed, needle, original, found):
    column = column_in_line(preprocessed, preprocessed.index(needle), original)
    assert original[column:].startswith(found)
