"""What the test files of this folder and those in it say of their families' operators, gathered for tests and
benchmarks of all of them.

A file test_X.py may have POINTWISE, how to try the operators of ``metalops.ops`` of its family (metalops.testing.Operator);
OTHERS, the names of those that are not pointwise, which it tries itself;
LINALG, how to try its operators on matrices (linalg.operators.MatrixOperator);
OPINFOS, the names of its ATen operators in torch's op_db; OPINFO_SAMPLES, those that have no entry there
(aten.OpInfoSamples); and BENCHMARKS, how to time its operators (benchmark.Benchmark).
"""

from __future__ import annotations

import functools
import re
from importlib import import_module
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_FILES = sorted(_HERE.rglob("test_*.py"))


def kernel_file(family: str) -> Path:
    """The kernel file of a family, in the folder of its subject; it need not exist."""
    return next((_ROOT / "kernels").rglob(f"{family}.metal"), _ROOT / f"kernels/{family}.metal")


def subject_of(family: str) -> str:
    """The folder in which all files of a family lie: "linalg" of kernels/linalg, csrc/ops/linalg and tests/ops/linalg."""
    return next((_ROOT / "csrc/ops").rglob(f"{family}.mm")).parent.name


@functools.cache
def gather(name: str) -> tuple[Any, ...]:
    """The items of all files' tuples of this name, in the order of the files."""
    declares = re.compile(rf"^{name} = ", re.MULTILINE)
    files = [path for path in _FILES if declares.search(path.read_text(encoding="utf-8"))]
    names = (".".join(path.relative_to(_HERE).with_suffix("").parts) for path in files)
    modules = (import_module(f".{name}", __package__) for name in names)
    return tuple(item for module in modules for item in getattr(module, name))
