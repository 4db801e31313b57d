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
