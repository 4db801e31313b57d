"""On a Mac the tests of the inside of the software device are skipped, with their reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# metalops as it is where torch has a Metal backend of its own.
AS_ON_A_MAC = """\
import sys
import metalops._host
metalops._is_software = False
del metalops._host
sys.modules["metalops._host"] = None
"""


@pytest.mark.full
def test_tests_of_the_software_device_are_skipped_where_there_is_none(tmp_path):
    (tmp_path / "as_on_a_mac.py").write_text(AS_ON_A_MAC)
    files = [TESTS / name for name in ("exec/test_launches.py", "trace/test_trace.py")]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-n", "0", "-p", "as_on_a_mac", *files],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 skipped" in result.stdout, result.stdout + result.stderr
    assert result.stdout.count("about the software device; this machine has an Apple GPU") == 1
