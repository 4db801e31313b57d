"""The library of checks for Macs, with the software device in place of Metal (gallery/mac_checks.mm)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .common import names_in

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has Metal itself"),
]


@pytest.mark.nightly
def test_methods_of_metal_check_before_they_act(gallery):
    command = [sys.executable, Path(__file__).parent / "run_mac_checks.py"]
    names = names_in("mac_checks")
    done = subprocess.run(
        [*command, gallery("mac_checks")._name, *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(names, "")
