"""`python -m tests.machines` runs tests as on other machines: they are what it says they are."""

import json

import metalops
import pytest

from tests.machines.__main__ import QUICK_MACHINES, python

pytestmark = pytest.mark.skipif(
    not metalops._is_software, reason="about libraries and CPUs of the software device"
)

PROBE = """\
import json, os, subprocess, metalops, tempfile, torch
print(json.dumps({
    "instructions": torch.backends.cpu.get_cpu_capability(),
    "threads": torch.get_num_threads(),
    "package": metalops.__file__,
    "folders": [os.getcwd(), tempfile.gettempdir()],
    "activated": subprocess.run(["python", "-c", ""], stderr=subprocess.DEVNULL).returncode == 0,
    "CXX": os.environ["CXX"],
}))
"""


@pytest.mark.full
def test_a_machine_differs_in_everything_at_once():
    result = python(QUICK_MACHINES["unlike"], ["-c", PROBE])
    assert result.returncode == 0, result.stdout
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["instructions"] in ("DEFAULT", "NO AVX", "SVE256")
    assert found["threads"] == 1
    assert all(" " in path for path in (found["package"], *found["folders"]))
    assert not found["activated"]
    assert found["CXX"] == "g++"
