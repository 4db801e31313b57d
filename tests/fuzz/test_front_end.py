"""The front end on random texts, always the same ones: a library or a SyntaxError at a place in the text. `python -m tests.fuzz`
takes new ones."""

import pytest

from . import corpus, front_end
from .__main__ import smaller, text_of

# Made smaller from what random texts have found.
FOUND = {
    "a body that is not closed": "kernel void k(){",
    "a bracket that is not closed": "kernel void k(device float* o) { o[0] = max(1, 2; }",
    "brackets of two kinds": "kernel void k(device float* o) { o[(0] = 1); }",
    "a brace too many": "kernel void k(device float* o) { o[0] = 1; } }",
    "a parameter with an attribute without a name": "kernel void k(out, i [[g]], g [[]]) {}",
    "a parameter of an attribute that is a type": "kernel void full(val, idx [[float]]) {}",
    "nothing after the last token": "~",
    "a namespace without a name and body": "namespace",
    "a constant that is none": "void k([[]]) { (is_function_constant_defined(factor)); }",
    "a member of a threadgroup variable": "kernel void k(device float* o) { threadgroup int t; o[0] = t data[0]; }",
    "a kernel that is a conversion": "<typename T>()operator x kernel(){",
    "a directive that is not closed": "#if 1\nkernel void k() {}",
    "an alias of no namespace": "namespace metalops=.y;(",
    "a declaration that declares nothing": "struct{threadgroupthreadgroup{return;<}four;",
    "a function without a type": "f(float x) { return simd_sum(x); } kernel void k(device float* o) { o[0] = f(o[1]); }",
    "two words run together": "kernel void k(devicevertex float* out) {}",
}


@pytest.mark.parametrize("what", FOUND)
def test_texts_that_once_went_wrong(what):
    front_end.check(FOUND[what], with_compiler=True)
    front_end.check_checker(FOUND[what], with_compiler=True)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, 100, 10))
def test_random_texts(first):
    for seed in range(first, first + 10):
        name, text, is_small = text_of(seed)
        with_compiler = is_small and seed % 10 == 0
        try:
            front_end.check(text, with_compiler)
            front_end.check_checker(text, with_compiler)
        except front_end.Fault as fault:
            shown = smaller(text, with_compiler)
            pytest.fail(f"seed {seed}, from {name}: {fault}\n{shown}", pytrace=False)


@pytest.mark.full
def test_the_corpus_holds_all_kinds_of_sources():
    assert len(corpus.small_sources()) > 300
    names = [source.name for source in corpus.large_sources()]
    assert {"activation.metal", "strided.h", "metal_tests.metal", "reduction_utils.h"} <= set(names)


def test_tokens_are_the_whole_text():
    for source in (*corpus.small_sources()[:50], *corpus.large_sources()):
        assert "".join(corpus.tokens(source.text)) == source.text


@pytest.mark.parametrize(
    "line, column, wrong",
    [(1, 1, ""), (2, 6, ""), (3, 1, "line 3 of 2"), (0, 1, "line 0"), (2, 7, "column 7")],
)
def test_a_place_outside_the_text_is_a_fault(line, column, wrong):
    if not wrong:
        front_end._check_place("program_source", line, column, "int a;\nint b")
        return
    with pytest.raises(front_end.Fault, match=wrong):
        front_end._check_place("program_source", line, column, "int a;\nint b")
