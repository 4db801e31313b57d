"""What the test files of this folder say of their families' operators, gathered for tests and benchmarks of all of them.

A file test_X.py may have POINTWISE, how to try the operators of ``metalops.ops`` of its family (metalops.testing.Operator);
OTHERS, the names of those that are not pointwise, which it tries itself;
OPINFOS, the names of its ATen operators in torch's op_db; OPINFO_SAMPLES, those that have no entry there
(aten.OpInfoSamples); and BENCHMARKS, how to time its operators (benchmark.Benchmark).
"""

from __future__ import annotations

import functools
import re
from importlib import import_module
from pathlib import Path
from typing import Any

_FILES = sorted(Path(__file__).parent.glob("test_*.py"))


@functools.cache
def gather(name: str) -> tuple[Any, ...]:
    """The items of all files' tuples of this name, in the order of the files."""
    declares = re.compile(rf"^{name} = ", re.MULTILINE)
    files = [path for path in _FILES if declares.search(path.read_text(encoding="utf-8"))]
    modules = (import_module(f".{path.stem}", __package__) for path in files)
    return tuple(item for module in modules for item in getattr(module, name))
