"""Overloads and specialisations that differ by address space mean what they mean in Metal."""

import pytest
import torch
from metalops import msl
from metalops.msl.source import compiler
from tests.msl.spaces_gallery import CASES, SOURCE, VALUES


def _results(library, count):
    results = torch.zeros(count, dtype=torch.int32)
    buffers = [results, torch.zeros(64), torch.ones(1), torch.zeros(64)]
    library.launch("run", buffers, 1, 1, {}, "auto", 1)
    return results.tolist()


def test_the_gallery_gives_the_values_of_metal(bare_program):
    found = _results(bare_program(SOURCE).library, len(VALUES))
    assert {use: value for (use, value) in VALUES} == {
        use: value for (use, _), value in zip(VALUES, found, strict=True)
    }
