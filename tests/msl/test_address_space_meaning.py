"""Overloads and specialisations that differ by address space mean what they mean in Metal."""

import shutil

import pytest
import torch
from metalops import msl
from metalops.msl.check import check_source, opencl

from .spaces_gallery import SOURCE, VALUES
from .spaces_programs import program_of

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
COMPILERS = ["g++", "clang++-19", "clang++"]


def assert_values(library):
    results = torch.zeros(len(VALUES), dtype=torch.int32)
    buffers = [results, torch.zeros(64), torch.ones(1), torch.zeros(64)]
    library.launch("run", buffers, 1, 1, {}, "auto", 1)
    assert {use: value for use, value in VALUES} == {
        use: value for (use, _), value in zip(VALUES, results.tolist(), strict=True)
    }


@pytest.mark.full
@pytest.mark.parametrize("name", COMPILERS)
def test_the_gallery_gives_the_values_of_metal(bare_program, monkeypatch, name):
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("CXX", name)
    assert_values(bare_program(SOURCE).library)


@pytest.mark.full
def test_the_checker_finds_nothing_in_the_gallery():
    assert check_source(SOURCE, language=320) == []


@pytest.mark.full
@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(64))
def test_random_programs_mean_what_a_model_of_metal_says(bare_program, seed):
    source, calls = program_of(seed)
    assert calls > 10
    library = bare_program(source).library
    out = torch.zeros(1, dtype=torch.uint8)
    library.launch("k", [out, *(torch.zeros(8) for _ in range(6))], 1, 1, {}, "auto", 1)


@pytest.mark.full
@pytest.mark.skipif(opencl.find() is None, reason="needs clang 15 or newer")
@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", range(64))
def test_clang_agrees_with_the_model(seed):
    """Whose OpenCL mode has overloads by address space, too."""
    assert check_source(program_of(seed)[0]) == []
