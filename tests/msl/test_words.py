"""Names of a program that are words of the library's headers: functions, variables, parameters and recursion mean what
the program declares."""

import pytest
import torch
from metalops.msl.check.sources import library_words
from metalops.msl.source.parse import ADDRESS_SPACES, STAGES
from metalops.msl.source.vocabulary import KEYWORDS

# Types and functions that are global in Metal, too, or reserved names.
_RESERVED = ("msl", "MSL", "METALOPS", "_")


def words():
    found = sorted(library_words(r"(?<![\w#])[A-Za-z_]\w*"))
    reserved = {*KEYWORDS, *ADDRESS_SPACES, *STAGES}
    return [w for w in found if w not in reserved and not w.startswith(_RESERVED)]


def chunks():
    found = words()
    return [found[i : i + 500] for i in range(0, len(found), 500)]


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(len(chunks())))
def test_functions_with_the_names_of_words_in_headers(program, chunk):
    names = chunks()[chunk]
    lines = ["namespace mine {"]
    for number, word in enumerate(names):
        lines.append(
            f"int {word}(int x_, int n_) {{ if (n_ > 0) return {word}(x_, n_ - 1) + 1; return x_ + {number}; }}"
        )
    lines += ["}", "kernel void k(device int* out, constant int& n_) {", "int sum_ = 0;"]
    lines += [f"sum_ += mine::{word}(0, n_);" for word in names]
    lines += ["out[0] = sum_;", "}"]
    out = torch.zeros(1, dtype=torch.int32)
    program("\n".join(lines)).launch("k", out, torch.tensor([2], dtype=torch.int32), grid=1)
    assert out.item() == sum(range(len(names))) + 2 * len(names)  # fmt: skip
