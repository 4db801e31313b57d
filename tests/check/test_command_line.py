"""`python -m metalops check`."""

import os
import subprocess
import sys

import pytest
from metalops.msl.check import RULES, apple, check_file, check_source
from metalops.msl.check.cli import main

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
GOOD = HEADER + "kernel void k(device float* out) { out[0] = 1; }\n"
BAD = HEADER + "kernel void k(device float* out) {\n  double x = 1;\n  out[0] = x;\n}\n"
SUSPECT = HEADER + (
    "kernel void k(constant uint& n, uint i [[thread_position_in_grid]]) {\n"
    "  if (i < n) threadgroup_barrier(mem_flags::mem_device);\n}\n"
)


@pytest.fixture
def file(tmp_path):
    def write(text, name="k.metal"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


def test_a_clean_file_prints_nothing_and_succeeds(file, capsys):
    assert main([file(GOOD)]) == 0
    assert capsys.readouterr() == ("", "")


def test_an_error_is_one_line_with_place_rule_section_and_remedy(file, capsys):
    path = file(BAD)
    assert main([path]) == 1
    assert capsys.readouterr().out == (
        f"{path}:4:3: error [double]: double does not exist; use float (MSL 2.1)\n"
    )


def test_a_warning_fails_only_a_strict_check(file, capsys):
    path = file(SUSPECT)
    assert main([path]) == 0
    assert capsys.readouterr().out.startswith(f"{path}:4:14: warning [maybe-divergent-barrier]: ")
    assert main([path, "--strict"]) == 1


@pytest.mark.full
def test_the_language_version_decides_about_lambdas_and_cpp17(file, capsys):
    lambdas = file(
        HEADER
        + "kernel void k(device float* o) { auto f = [](float x) { return x; }; o[0] = f(1); }"
    )
    structured = file(
        HEADER + "struct P { int a, b; };\nvoid f(P p) { auto [a, b] = p; }", "s.metal"
    )
    assert main([lambdas]) == main([lambdas, "--language", "3.1"]) == 1
    assert main([lambdas, "--language", "3.2"]) == main([lambdas, "--language", "4"]) == 0
    assert main([structured, "--language", "3.2"]) == 1
    assert main([structured, "--language", "4"]) == 0


@pytest.mark.full
def test_vectors_of_8_and_16_elements_are_of_metal_4(file):
    wide = file(HEADER + "kernel void k(device vec<half, 8>* o) { o[0] = vec<half, 8>(1); }")
    odd = file(HEADER + "kernel void k(device vec<half, 5>* o) {}", "odd.metal")
    assert [f.rule for f in check_file(wide, language=320)] == ["vector-size"] * 2
    assert check_file(wide, language=400) == []
    assert [f.rule for f in check_file(odd, language=410)] == ["vector-size"]


def test_the_source_sees_the_language_version(file):
    path = file("#if __METAL_VERSION__ < 320\nvoid f(float* x);\n#endif\n")
    assert [f.rule for f in check_file(path)] == ["missing-address-space"]
    assert check_file(path, language=320) == []


def test_folders_are_searched_for_metal_files_and_headers_with_metal_code(file, tmp_path, capsys):
    file(BAD, "a/one.metal")
    file("#pragma once\n" + BAD.replace("void k", "void k2"), "a/b/two.h")
    file("#include <vector>\ninline double host(double x) { return x; }\n", "a/host.h")
    file(BAD, "a/.hidden/three.metal")
    assert main([str(tmp_path)]) == 1
    places = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert places == [str(tmp_path / "a/b/two.h"), str(tmp_path / "a/one.metal")]


def test_the_users_headers_are_checked_where_they_are_included_and_reported_once(file, capsys):
    header = file("#pragma once\ninline double twice(double x) { return 2 * x; }\n", "twice.h")
    for name in ("a.metal", "b.metal"):
        file(HEADER + '#include "twice.h"\n', name)
    assert main([os.path.dirname(header)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" error")[0] for line in lines] == [f"{header}:2:8:", f"{header}:2:21:"]


def test_other_peoples_headers_are_checked_only_where_they_are_named(file, tmp_path):
    header = file(
        "#pragma once\ninline double twice(float x) { return 2 * x; }\n", "sdk/c10/metal/twice.h"
    )
    path = file(HEADER + "#include <c10/metal/twice.h>\n")
    arguments = ["-I", str(tmp_path / "sdk")]
    assert main([path, *arguments]) == 0
    assert main([path, header, *arguments]) == 1


def test_what_a_macro_makes_is_reported_where_the_macro_is_used(file):
    path = file(
        HEADER
        + "#define REAL double\nkernel void k(device float* o) {\n  REAL x = 1;\n  o[0] = x;\n}\n"
    )
    assert [(f.rule, f.line, f.column) for f in check_file(path)] == [("double", 5, 3)]


def test_defines_and_include_folders_reach_the_preprocessor(file, tmp_path):
    file("#define TYPE float\n", "include/type.h")
    path = file(
        "#ifdef USE\n#include <type.h>\n#endif\n"
        "kernel void k(device TYPE* o, TYPE x) { o[0] = x; }\n"
    )
    found = check_file(path, defines=["USE"], include_dirs=[tmp_path / "include"])
    assert [(f.rule, f.line) for f in found] == [("kernel-argument", 4)]


def test_an_include_that_is_missing_is_an_error_at_its_line(file, capsys):
    path = file('#include "nowhere.h"\n')
    assert main([path]) == 1
    assert capsys.readouterr().out.startswith(f"{path}:1:")


def test_a_path_that_is_missing_ends_with_one_sentence(capsys):
    assert main(["/nowhere/k.metal"]) == 2
    assert capsys.readouterr().err == "metalops check: no file or folder at /nowhere/k.metal\n"


def test_the_rules_are_listed_with_their_sections(capsys):
    assert main(["--rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == set(RULES)
    assert all(line.split()[1][0].isdigit() for line in lines)


def test_a_source_text_is_called_program_source():
    found = check_source(BAD)
    assert [(f.file, f.line, f.column) for f in found] == [("program_source", 4, 3)]


def test_a_source_that_cannot_be_parsed_is_no_reason_to_stop():
    broken = (
        HEADER
        + "template <typename T> struct { ((;\nkernel void k(device float* o) { double x; }\n"
    )
    assert isinstance(check_source(broken), list)


@pytest.mark.full
def test_the_command_is_one_of_metalops(file):
    result = subprocess.run(
        [sys.executable, "-m", "metalops", "check", file(BAD)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (1, "")
    assert "error [double]" in result.stdout


def test_what_apples_compiler_says_is_reported_where_it_is_installed(
    file, tmp_path, monkeypatch, capsys
):
    path = file(GOOD)
    xcrun = tmp_path / "bin" / "xcrun"
    xcrun.parent.mkdir()
    xcrun.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n'
        f'case "$*" in *--version*) exit 0;; esac\necho "{path}:3:8: error: no" >&2\nexit 1\n'
    )
    xcrun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{xcrun.parent}:{os.environ['PATH']}")
    apple.is_installed.cache_clear()
    try:
        assert main([path, "--language", "3.2", "-D", "N=1"]) == 1
    finally:
        apple.is_installed.cache_clear()
    assert capsys.readouterr().out == f"{path}:3:8: error [apple]: no\n"
    called = (tmp_path / "calls").read_text().splitlines()[-1]
    assert "-std=metal3.2 -fsyntax-only" in called
    assert called.endswith(f"-DN=1 {path}")
