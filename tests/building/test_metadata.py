"""The metadata of the package, as an index of packages reads it."""

import re
import subprocess
import sys
from email.parser import HeaderParser
from pathlib import Path

import metalops
import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.full  # setup.py imports torch

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    """PKG-INFO of the tree, without building any of it."""
    folder = tmp_path_factory.mktemp("metadata")
    result = subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (path,) = folder.glob("*/PKG-INFO")
    return HeaderParser().parsestr(path.read_text(encoding="utf-8"))


def test_the_version_stands_in_one_place(metadata):
    version = metalops.__version__
    assert metadata["Version"].partition("+")[0] == version
    text = {
        str(path.relative_to(ROOT))
        for path in [ROOT / "pyproject.toml", *(ROOT / "python").rglob("*.py")]
        if f'"{version}"' in path.read_text(encoding="utf-8")
    }
    assert text == {"python/metalops/_version.py"}
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_licence_and_description_are_told(metadata):
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["License-File"] == "LICENSE"
    assert (ROOT / "LICENSE").read_text().startswith("BSD 3-Clause License")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# metalops")
    assert not any(line.startswith("License ::") for line in metadata.get_all("Classifier"))


def test_every_extra_is_in_the_metadata(metadata):
    (extras,) = re.findall(r"\[project.optional-dependencies\]\n(.*?)\n\n", PROJECT, re.DOTALL)
    assert sorted(metadata.get_all("Provides-Extra")) == sorted(
        re.findall(r"^(\w+) = ", extras, re.M)
    )
    assert any("sphinx" in line for line in metadata.get_all("Requires-Dist"))
