"""A source is parsed once, however many readers it has: of a kernel file that takes 20 to 40 ms, a tenth of the front end's time.
And the whole text is searched as often for one kernel as for many."""

import re
import sys

import metalops
import pytest
import torch
from metalops import msl
from metalops.msl import check
from metalops.msl.build import Options, preprocess_text
from metalops.msl.source import parse
from metalops.msl.targets.host.emit import emit

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


KERNELS = """
template <typename T> kernel void scaled{0}(device T* out, constant T* in, constant Factor& factor,
                                            uint i [[thread_position_in_grid]]) {{
  out[i] = scale(in, i, factor.value);
}}
template [[host_name("scaled{0}_float")]] kernel decltype(scaled{0}<float>) scaled{0}<float>;
kernel void swapped{0}(device float* out, constant Factor& factor, threadgroup float* memory [[threadgroup(0)]],
                       uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {{
  memory[t] = out[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = memory[t ^ 1] * factor.value;
}}
"""
DECLARED = """
#include <metal_stdlib>
using namespace metal;
struct Factor { float value; };
template <typename T> T scale(constant T* in, uint i, T factor) { return in[i] * factor; }
"""


class _Counted:
    """A pattern that counts the searches of whole texts."""

    def __init__(self, pattern, length, counts):
        self.pattern, self.length, self.counts = pattern, length, counts

    def __getattr__(self, name):
        method = getattr(self.pattern, name)
        if name not in ("search", "findall", "finditer"):
            return method

        def call(text, *position):  # with a position it goes on from where another one ended
            if len(text) >= self.length and not position:
                self.counts.append(self.pattern.pattern)
            return method(text, *position)

        return call


def _whole_searches(monkeypatch, kernels):
    """The patterns that are searched for in a whole source of some kernels, each as often as that happens."""
    text = DECLARED + "".join(map(KERNELS.format, range(kernels)))
    preprocessed = preprocess_text(text, None, Options(language=310))
    counts = []
    with monkeypatch.context() as patched:
        for name, module in list(sys.modules.items()):
            if name.startswith("metalops.msl"):
                for key, value in list(vars(module).items()):
                    if isinstance(value, re.Pattern):
                        patched.setattr(module, key, _Counted(value, len(text) // 2, counts))
        emit(preprocessed)
    return sorted(counts)


def test_the_whole_text_is_searched_as_often_for_many_kernels(monkeypatch):
    once = _whole_searches(monkeypatch, 3)
    assert once and _whole_searches(monkeypatch, 9) == once


def test_a_program_may_import_the_parser_anew(monkeypatch):
    """As tests with pytester do, which forgets modules that were imported meanwhile."""
    emit(preprocess_text(DECLARED + KERNELS.format(0), None, Options(language=310)))
    with monkeypatch.context() as forgotten:
        for name in [name for name in sys.modules if name.split(".")[0].startswith("tree_sitter")]:
            forgotten.delitem(sys.modules, name)
        assert emit(preprocess_text(DECLARED + KERNELS.format(1), None, Options(language=310)))
