"""Divergent simdgroup operations in random structured programs, always the same ones, against the model of programs.py.
`python -m tests.fuzz.programs` takes new ones."""

import pytest
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host.emit import emit

from . import programs


@pytest.mark.full
@pytest.mark.sampled(25)
@pytest.mark.parametrize("first", range(0, 100, 4))
def test_random_programs_run_as_the_model_of_a_simdgroup(first):
    assert programs.differences(list(range(first, first + 4))) == []


@pytest.mark.parametrize(
    "count",
    [pytest.param(20, marks=pytest.mark.full), pytest.param(100, marks=pytest.mark.nightly)],
)
def test_random_programs_run_as_group_loops(count):
    made = [programs.program_of(seed) for seed in range(count)]
    engines = emit(preprocess(programs.source_of(made))).engines
    with_barriers = [p.name for p in made if "threadgroup_barrier" in p.text]
    assert sum(engine == "group" for engine, _ in engines.values()) >= 0.95 * count
    assert sum(engines[name][0] == "group" for name in with_barriers) > 0.2 * count
    assert {p.name for p in made if "repeat([&]" in p.text} <= {
        name for name, (engine, _) in engines.items() if engine == "group"
    }


def test_random_programs_diverge_in_every_way():
    text = "".join(programs.program_of(seed).text for seed in range(100))
    constructs = "if (|else {|simd_shuffle(r|simd_broadcast(r|quad_shuffle_xor(r|for (|while (|do {|switch (|default: {| ? | && |break; }|continue; }|return r; }|repeat([&]|auto named|= [=](|= [&](|= [=, &seen](|_0(|either(|uint2(|threadgroup_barrier("
    for construct in [*constructs.split("|"), " || "]:
        assert text.count(construct) > 5, construct
