"""Which mutants are found in a source, and that the tests of a family notice one and pass over another."""

import os
import subprocess
import sys

import pytest
from metalops.msl.source.preprocess import preprocess

from tests.ops.families import kernel_file

from .__main__ import ROOT, _families, equivalents
from .mutants import find, with_switch

SOURCE = """
#include <metal_stdlib>
using namespace metal;
struct Parameters { uint count; float limit; };
inline float clipped(float x, float limit) { return min(x, limit); }
kernel void sum(device float* out, constant float* in, constant Parameters& p,
                uint i [[thread_position_in_grid]], uint lane [[thread_index_in_threadgroup]]) {
  threadgroup float partial[32];
  partial[lane] = i < p.count ? clipped(in[i], p.limit) : 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint half_width = 16; half_width > 0; half_width /= 2) {
    if (lane < half_width) { partial[lane] += partial[lane + half_width]; }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (lane != 0 || p.limit < 0.0f) { return; }
  out[min(i / 32, p.count)] = partial[0];
}
"""


def _found(source, thorough=False):
    preprocessed = preprocess(source)
    mutants = find(preprocessed, lambda file: file if file == "program_source" else None, thorough)
    return preprocessed, mutants


def test_barriers_and_bound_checks_of_indices():
    _, mutants = _found(SOURCE)
    assert [(m.line, m.kind, m.original, m.replacement) for m in mutants] == [
        (9, "bound check", "i < p.count", "true"),
        (9, "bound check", "i < p.count", "false"),
        (10, "barrier", "threadgroup_barrier(mem_flags::mem_threadgroup)", "(void)0"),
        (12, "bound check", "lane < half_width", "true"),
        (12, "bound check", "lane < half_width", "false"),
        (13, "barrier", "simdgroup_barrier(mem_flags::mem_threadgroup)", "(void)0"),
        (16, "bound check", "min(i / 32, p.count)", "(i / 32)"),
        (16, "bound check", "min(i / 32, p.count)", "(p.count)"),
    ]


def test_thorough_mutants_are_of_every_kind():
    _, mutants = _found(SOURCE, thorough=True)
    kinds = {"bound check", "barrier", "comparison", "operator", "limit", "number", "arguments"}
    assert {m.kind for m in mutants} == kinds
    changes = {(m.original, m.replacement) for m in mutants}
    for change in [
        ("lane != 0", "true"),
        ("<", "<="),
        ("+", "-"),
        ("||", "&&"),
        ("min", "max"),
        ("0", "(0 + 1)"),
        ("(x, limit)", "(limit, x)"),
    ]:
        assert change in changes


def test_a_mutant_differs_from_the_source_in_one_place_and_keeps_its_lines():
    preprocessed, mutants = _found(SOURCE.replace("i < p.count ?", "i <\n p.count ?"))
    text = mutants[0].apply(preprocessed.text)
    assert text.replace("true\n", "i <\n p.count") == preprocessed.text
    assert text.count("\n") == preprocessed.text.count("\n")


def test_a_switch_chooses_between_all_mutants():
    limit = "min(max(int(i), 0), int(p.count))"
    preprocessed, mutants = _found(SOURCE.replace("min(i / 32, p.count)", limit))
    text = with_switch(preprocessed.text, dict(enumerate(mutants)))
    assert text.count("\n") == preprocessed.text.count("\n")
    wanted = {
        m.original: [n for n, k in enumerate(mutants) if k.original == m.original] for m in mutants
    }
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup)"
    assert f"if (mutant != {wanted[barrier][0]}) {barrier};" in text
    always, never = wanted["i < p.count"]
    assert (
        f"(mutant == {never} ? false : (mutant == {always} ? true : i < p.count)) ? clipped" in text
    )
    first, second = wanted["max(int(i), 0)"]
    inner = f"(mutant == {second} ? (0) : (mutant == {first} ? (int(i)) : max(int(i), 0)))"
    first, second = wanted[limit]
    assert (
        f"out[(mutant == {second} ? (int(p.count)) : "
        f"(mutant == {first} ? (max(int(i), 0)) : min({inner}, int(p.count))))]" in text
    )


def test_what_is_no_expression_cannot_be_switched():
    source = SOURCE.replace(
        "if (lane < half_width) {", "if (lane > 3) simdgroup_barrier(mem_flags::mem_none); {"
    )
    _, mutants = _found(source, thorough=True)
    apart = {(m.kind, m.original) for m in mutants if not m.is_whole}
    assert ("barrier", "simdgroup_barrier(mem_flags::mem_none)") in apart
    assert {kind for kind, _ in apart} == {"barrier", "operator", "arguments"}


def test_what_macros_make_is_found_too():
    source = "#define SYNC threadgroup_barrier(mem_flags::mem_none)\n" + SOURCE
    _, mutants = _found(source.replace("simdgroup_barrier(mem_flags::mem_threadgroup)", "SYNC"))
    (mutant,) = (m for m in mutants if m.line == 14)
    assert mutant.kind == "barrier"


@pytest.mark.nightly
def test_equivalent_mutants_are_in_the_kernels():
    mutants = [mutant for family in _families([]) for mutant in family.mutants(thorough=False)]
    for equivalent in equivalents():
        assert any(map(equivalent.is_of, mutants)), equivalent


def _run(*arguments):
    command = [sys.executable, "-m", "tests.mutation", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "family, text, count",
    [("elementwise", "index >= layout.count", 2), ("hash_tensor", "threadgroup_barrier(", 1)],
)
def test_the_tests_notice_what_is_deleted(family, text, count):
    path = kernel_file(family)
    file = os.path.relpath(path, ROOT)
    lines = path.read_text(encoding="utf-8").splitlines()
    line = next(i for i, code in enumerate(lines, 1) if text in code)
    result = _run(family, "--at", f"{file}:{line}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == f"{count} killed"


@pytest.mark.nightly
def test_a_family_that_is_not_there():
    result = _run("nothing")
    assert result.returncode == 1
    assert "no nothing.metal in kernels" in result.stderr
