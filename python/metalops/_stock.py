"""Which operator overloads stock PyTorch implements on MPS.

That is read from the native_functions.yaml of the installed torch, line by line for the few keys
that matter: a YAML parser would take seconds at every import.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

# Registered by hand in PyTorch's ATen/mps/MPSFallback.mm: a Mac runs them on the CPU.
FORCED_CPU_FALLBACK = frozenset(
    {"aten::embedding_renorm_", "aten::linalg_svd", "aten::linalg_svd.U"}
)

_FUNCTION = re.compile(r"- func: ([\w.]+)\(")
_ENTRY = re.compile(r"    ([\w, ]+): *(\w+)")
_DELEGATE = re.compile(r"  structured_delegate: *([\w.]+)")


def native_functions_file() -> Path:
    spec = importlib.util.find_spec("torchgen")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            "metalops needs the torchgen package that comes with torch, and it is not installed."
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    return root / "packaged" / "ATen" / "native" / "native_functions.yaml"


def overloads(text: str) -> list[str]:
    """Names of all overloads in the text of native_functions.yaml, in its order."""
    return ["aten::" + name for name in re.findall(r"^- func: ([\w.]+)\(", text, re.MULTILINE)]


def delegates(text: str) -> dict[str, str]:
    """Overloads that torch generates from the kernel of another one, and that one."""
    found = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("- func:"):
            match = _FUNCTION.match(line)
            name = match.group(1) if match else ""
        elif match := _DELEGATE.match(line):
            found["aten::" + name] = "aten::" + match.group(1)
    return found


def parse(text: str) -> frozenset[str]:
    """Names ("aten::sin.out") of the overloads with a dense MPS kernel, generated ones included."""
    with_entry: set[str] = set()
    name = ""
    for line in text.splitlines():
        if line.startswith("- func:"):
            match = _FUNCTION.match(line)
            name = match.group(1) if match else ""
        elif "MPS" in line:
            match = _ENTRY.match(line)
            if match and "MPS" in (key.strip() for key in match.group(1).split(",")):
                with_entry.add("aten::" + name)
    with_entry.update(name for name, other in delegates(text).items() if other in with_entry)
    return frozenset(with_entry)


@functools.cache
def stock_overloads() -> frozenset[str]:
    """Every overload that stock PyTorch registers on the MPS key, forced fallbacks included."""
    return parse(native_functions_file().read_text(encoding="utf-8")) | FORCED_CPU_FALLBACK
