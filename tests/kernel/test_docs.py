"""docs/kernels.md: its code runs as printed, with its own assertions."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


def test_the_code_of_the_page_runs():
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    names = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
