"""CONTRIBUTING.md names files and folders that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FOLDERS = [ROOT / folder for folder in ("", "python", "python/metalops", "python/metalops/include")]
# What a contributor chooses: a folder, and a file with what follows it in a path.
CHOSEN = re.compile(r"\bS\b|[^/]*(\bX\b|_X\b|NAME|GROUP).*")


def _paths():
    quoted = " ".join(re.findall(r"`([^`\n]+)`", TEXT))
    words = re.findall(r"\.?[\w./*-]+", quoted)
    return sorted({word for word in words if "/" in word})


@pytest.mark.parametrize("path", _paths())
def test_what_it_names_is_there(path):
    known = CHOSEN.sub("*", path)
    assert any(list(folder.glob(known)) for folder in FOLDERS)
