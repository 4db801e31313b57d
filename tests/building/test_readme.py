"""The example in README.md works as it is printed there, and its table of environment variables is complete."""

import os
import re
import subprocess
import sys

import pytest
from metalops import _environment

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def readme():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        return f.read()


@pytest.mark.slow
def test_the_new_operator_of_the_readme_works_as_printed(tmp_path):
    blocks = re.findall(
        r"^`([\w.]+)`:[^\n]*\n(?:[^\n]+\n)*\n```\w+\n(.*?)^```$", readme(), re.DOTALL | re.MULTILINE
    )
    assert [name for name, _ in blocks] == ["lisht.metal", "lisht.mm", "lisht.py", "test_lisht.py"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_lisht.py"],
        cwd=tmp_path,
        env={**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 passed" in result.stdout


def test_the_table_of_environment_variables_is_the_one_that_info_uses():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", readme(), re.MULTILINE)
    table = {name: (default, meaning) for name, default, meaning in rows}
    assert table == _environment.VARIABLES


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
