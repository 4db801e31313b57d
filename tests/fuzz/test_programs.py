"""Divergent simdgroup operations in random structured programs, always the same ones, against the model of programs.py.
`python -m tests.fuzz.programs` takes new ones."""

import pytest

from . import programs


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random_programs_run_as_the_model_of_a_simdgroup(first):
    assert programs.differences(list(range(first, first + 20))) == []


def test_random_programs_diverge_in_every_way():
    text = "".join(programs.program_of(seed).text for seed in range(100))
    constructs = "if (|else {|for (|while (|do {|switch (|default: {| ? | && |break; }|continue; }|return r; }|repeat([&]|_0(|either(|uint2("
    for construct in [*constructs.split("|"), " || "]:
        assert text.count(construct) > 5, construct
