"""Names of a program that are words of the library's headers, or of the front end: functions, variables, parameters,
types and recursion mean what the program declares."""

import ast
from pathlib import Path

import pytest
import torch
from metalops import msl
from metalops.msl.check import check_source
from metalops.msl.check.sources import library_words
from metalops.msl.source.parse import ADDRESS_SPACES, STAGES
from metalops.msl.source.vocabulary import KEYWORDS

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
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


def invented_names():
    """Returns the names that the front end gives to types that have none, with their files."""
    for path in sorted(Path(msl.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Type":
                values = [*node.args[3:4], *(k.value for k in node.keywords if k.arg == "name")]
                found = [v.value for v in values if isinstance(v, ast.Constant) and v.value]
                yield from ((path.name, name) for name in found)


def test_no_program_can_have_the_names_of_types_without_one():
    names = list(invented_names())
    assert {"spaces.py", "types.py", "address_spaces.py"} <= {file for file, _ in names}
    scalars = {"int", "float"}
    taken = [(f, n) for f, n in names if n.isidentifier() and n not in {*scalars, "nullptr"}]
    assert not taken


# The front end called types so once.
_ONCE = ("component", "element", "number", "function")
_USE = """
float third(float x) { return x / 3; }
kernel void k(device float4* out, device float* sum) {
  float4 r;
  r[0] = third(4);
  r.y = third(5);
  for (int i = 2; i < 4; ++i) r[i] = third(4 + i);
  out[0] = r;
  sum[0] = 1 + third(1) + (r[0] - third(1));
  WORD mine = {3};
  sum[1] = r[1] * int(mine);
}
"""


@pytest.mark.parametrize("word", _ONCE)
@pytest.mark.parametrize(
    "declaration",
    ["using WORD = int;", "struct WORD { int x; operator int() const thread { return x; } };"],
    ids=["alias", "class"],
)
def test_types_with_words_of_the_front_end(program, declaration, word):
    text = (declaration + _USE).replace("WORD", word)
    out, sums = torch.zeros(4), torch.zeros(2)
    program(text).launch("k", out, sums, grid=1)
    expected = torch.tensor([4.0, 5, 6, 7]) / 3
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(sums, torch.tensor([1 + 4 / 3, 5.0]))
    assert not check_source(HEADER + text, compiles=False)
