"""pytest collects every test file of this tree: no setting, folder name or conftest.py leaves one out in silence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# A plugin that prints the files pytest takes for tests, and does not import them.
PLUGIN = """\
import pytest

class File(pytest.Module):
    def collect(self):
        print(f"collected {self.path}")
        return ()

def pytest_pycollect_makemodule(module_path, parent):
    return File.from_parent(parent, path=module_path)
"""


def files_in(folder):
    return {
        str(path) for path in Path(folder).rglob("test_*.py") if "__pycache__" not in path.parts
    }


def collected_from(folder, tmp_path):
    """The files that pytest collects from a folder, with the options of pyproject.toml."""
    (tmp_path / "print_files.py").write_text(PLUGIN)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-s", "-n", "0", "-p", "print_files"]
        + ["-p", "no:cacheprovider", "-c", TESTS.parent / "pyproject.toml", folder],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    return {line.removeprefix("collected ") for line in lines if line.startswith("collected /")}


@pytest.mark.full
def test_every_test_file_is_collected(tmp_path):
    assert collected_from(TESTS, tmp_path) == files_in(TESTS)


@pytest.mark.full
def test_files_that_are_left_out_are_noticed(tmp_path):
    tests = tmp_path / "tests"
    for folder in ("found", "build", "dist", "ignored"):
        (tests / folder).mkdir(parents=True)
        (tests / folder / "test_file.py").touch()
    (tests / "ignored" / "conftest.py").write_text("collect_ignore_glob = ['test_*']\n")
    assert collected_from(tests, tmp_path) == {str(tests / "found" / "test_file.py")}
    assert len(files_in(tests)) == 4
