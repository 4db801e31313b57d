"""The example in README.md works as it is printed there, and its table of environment variables is complete."""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def readme():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        return f.read()


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
