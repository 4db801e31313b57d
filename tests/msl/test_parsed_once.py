"""A source is parsed once, however many readers it has: of a kernel file that takes 20 to 40 ms, a tenth of the front end's time."""

import metalops
import pytest
import torch
from metalops import msl
from metalops.msl import check
from metalops.msl.source import parse

from ..metal.common import software_device_only

# Words that make compile_shader look for declarations; each test has another NUMBER.
SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant float factor [[function_constant(0)]];
kernel void scaled(device float* out, threadgroup float* memory [[threadgroup(0)]], uint i [[thread_position_in_grid]],
                   uint t [[thread_position_in_threadgroup]]) {
  memory[t] = out[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = memory[t ^ 1] * factor + NUMBER;
}
"""


@pytest.fixture
def parses(monkeypatch, tmp_path):
    """The texts that the parser is given; nothing comes from the cache on disk."""
    texts = []
    original = parse.Source.__init__

    def counted(self, text):
        texts.append(text)
        original(self, text)

    monkeypatch.setattr(parse.Source, "__init__", counted)
    monkeypatch.setenv("METALOPS_CACHE_DIR", str(tmp_path))
    return texts


@software_device_only
@pytest.mark.full
def test_compile_shader(parses):
    shader = metalops.compile_shader(
        SOURCE.replace("NUMBER", "0.5f"), {"factor": 2.0}, threadgroup_memory={0: 128}
    )
    x = torch.arange(32.0, device="mps")
    shader.scaled(x, threads=32, group_size=32)
    assert x[:2].tolist() == [2.5, 0.5]
    assert len(parses) == 1


@pytest.mark.full
def test_compile_source(parses):
    msl.compile_source(SOURCE.replace("NUMBER", "0.25f"))
    assert len(parses) == 1


def test_check(parses):
    assert check.check_source(SOURCE.replace("NUMBER", "0.75f")) == []
    assert len(parses) == 1
