"""The guide to the C++ headers lists those that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_header_is_in_the_guide():
    page = (ROOT / "docs" / "operators_in_depth.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `<metalops/(\w+\.h)>` \|", page, re.M)
    there = {path.name for path in (ROOT / "python/metalops/include/metalops").glob("*.h")}
    assert len(listed) == len(set(listed)) and set(listed) == there


def test_every_launch_function_is_in_the_guide():
    page = (ROOT / "docs" / "operators_in_depth.md").read_text(encoding="utf-8")
    header = (ROOT / "python/metalops/include/metalops/launch.h").read_text(encoding="utf-8")
    functions = re.findall(r"inline void (launch_\w+)\(", header)
    assert len(functions) > 5
    assert [name for name in functions if f"| `{name}(" not in page] == []
