"""The table of environment variables is complete."""

import os
import re

from metalops import _environment

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_every_variable_that_the_sources_read_is_in_the_table():
    found = set()
    for part in ("python", "csrc"):
        for folder, _, names in os.walk(os.path.join(ROOT, part)):
            for name in names:
                if name.endswith((".py", ".cpp", ".h", ".mm")):
                    with open(os.path.join(folder, name), encoding="utf-8") as f:
                        text = f.read()
                    found.update(
                        re.findall(r"(?:environ[\w.]*[(\[]|getenv\()\s*\"(METALOPS_\w+)\"", text)
                    )
    assert found
    assert found <= set(_environment.VARIABLES)


def _misspelt(name):
    """Ways in which a hand misses: a letter that is missing, doubled or another one, two exchanged, cases, and underscores."""
    for i in range(len("METALOPS_"), len(name)):
        yield name[:i] + name[i + 1 :]
        yield name[: i + 1] + name[i:]
        yield name[:i] + ("X" if name[i] != "X" else "Y") + name[i + 1 :]
        if i + 1 < len(name) and name[i] != name[i + 1]:
            yield name[:i] + name[i + 1] + name[i] + name[i + 2 :]
    yield name.lower()
    yield name.replace("METALOPS_", "METAL_OPS_")
    yield name.replace("METALOPS_", "METALOP_")


def test_a_misspelt_variable_is_named_with_the_one_that_is_meant():
    ours = [name for name in _environment.VARIABLES if name.startswith("METALOPS_")]
    wrong = {other: name for name in ours for other in _misspelt(name) if other not in ours}
    assert len(wrong) > 500
    for other, name in wrong.items():
        (sentence,) = _environment.unknown([other, name, "PATH", "PYTORCH_MPS_FAST_MATH"])
        assert sentence.startswith(f"{other} is set, but metalops reads no variable of this name")
        assert sentence.endswith(f"; do you mean {name}?"), sentence


def test_variables_that_are_like_no_other_are_named_without_a_guess():
    (sentence,) = _environment.unknown(["METALOPS_COLOUR"])
    assert sentence.endswith("reads no variable of this name")


def test_those_that_metalops_sets_itself_are_known():
    from metalops import _sanitize

    assert {_sanitize._RESTARTED} == _environment.INTERNAL
    assert _environment.unknown([*_environment.VARIABLES, *_environment.INTERNAL]) == []
