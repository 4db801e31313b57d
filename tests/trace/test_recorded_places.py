"""Places in sources that come out of a trace, which are the preprocessor's output on another machine."""

import os
import random
import re
import subprocess
import sys

import pytest
import torch
from metalops import debug
from metalops.msl.source.locations import LineMap, texts_by_file
from metalops.msl.source.preprocess import preprocess

WRONG = """#include <metal_stdlib>
using namespace metal;
#define OFFSET 2

kernel void f(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
              uint i [[thread_position_in_grid]]) {
  // comment
  y[i] = 1 + x[i + 2];
}
"""


def test_words_have_the_places_that_they_had_before_they_were_recorded():
    draw = random.Random(1)
    for _ in range(20):
        words = [f"w{n}" for n in range(40)]
        text = "#define NOTHING\n"
        for word in words:
            text += draw.choice(["\n", " ", "\n\n  ", "\n#if 0\nno\n#endif\n  "])
            text += f"int {word};"
        first = preprocess(text)
        again = preprocess(first.portable_text(), name=first.name)
        places = [
            [
                LineMap(p.text, p.name, dict(p.sources)).position(p.text.index(f"{w};"))
                for w in words
            ]
            for p in (first, again)
        ]
        assert places[0] == places[1]


def test_a_source_without_markers_is_its_own_text():
    for text in ("", "a", "a\n", "\n\nb\n# define x 1\n#pragma once", WRONG):
        assert texts_by_file(text, "name") == {"name": text}
    assert texts_by_file('a\n#line 3 "other"\nb\n# 2 "name"\nc', "name") == {
        "name": "a\nc",
        "other": "\n\nb",
    }
    assert texts_by_file("#line 2000000000\na", "name") == {}


@pytest.mark.nightly
def test_a_sanitizer_names_the_column_when_it_replays(tmp_path):
    path = str(tmp_path / "wrong.trace")
    x = torch.ones(5, device="mps")
    with debug.capture(path):
        torch.mps.compile_shader(WRONG).f(x, torch.empty_like(x), threads=5)
    command = [sys.executable, "-m", "metalops", "replay", path, "--sanitize", "memcheck"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert result.returncode == 1
    found = re.match(
        r"metalops replay: program_source:8:(\d+): heap-buffer-overflow", result.stderr
    )
    assert found, result.stderr
    # Compilers differ in which token of the access they name.
    line = WRONG.splitlines()[7]
    assert line.index("x[") < int(found[1]) <= line.index("]", line.index("x[")) + 1
    assert "Traceback" not in result.stderr
