"""The pages of docs: their code runs as printed, with its own assertions."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "count"),
    [("attention.md", 4), ("kernels.md", 7), ("quantised.md", 3), ("tensorops.md", 4)],
)
def test_the_code_of_the_page_runs(page, count):
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == count
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
