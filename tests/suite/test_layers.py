"""No import and no include runs upwards: a layer uses itself, what stands below it, and what the tests here name."""

import ast
import re
from pathlib import Path

import metalops
import pytest

ROOT = Path(__file__).parents[2]
MSL = Path(metalops.__file__).parent / "msl"
# Metal text goes up these floors: it is read, understood, put into standard C++, and emitted for a target.
FLOORS = ("source", "analysis", "dialect", "targets")
# Modules beside the floors that all of them may use.
BELOW = {"cache"}


def _imported(path):
    """The modules of metalops.msl that a file of it imports, wherever in it, by their paths from there."""
    package = ("msl", *path.relative_to(MSL).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - (node.level - 1)]
            if not base:
                continue  # of metalops, outside of msl
            module = (*base, *(node.module or "").split("."))
            names = [module] if node.module else [(*base, alias.name) for alias in node.names]
            yield from (name[1:] for name in names)


@pytest.mark.parametrize("floor", FLOORS)
def test_the_front_end_imports_nothing_from_the_floors_above(floor):
    below = {*FLOORS[: FLOORS.index(floor) + 1], *BELOW}
    upwards = [
        f"{path.relative_to(MSL)}: {'.'.join(module)}"
        for path in (MSL / floor).rglob("*.py")
        for module in _imported(path)
        if module and module[0] not in below
    ]
    assert upwards == []


def test_imports_of_all_kinds_are_seen():
    modules = {module[0] for floor in FLOORS for p in (MSL / floor).rglob("*.py") for module in _imported(p)}  # fmt: skip
    assert {*FLOORS, *BELOW} <= modules


@pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the sources are not here")
def test_the_engines_are_used_through_their_public_headers():
    """csrc/host/exec/exec.h says which these are."""
    exec_h = (ROOT / "csrc/host/exec/exec.h").read_text(encoding="utf-8")
    public = {"exec/exec.h", *re.findall(r"^//   <(exec/[\w/]+\.h)>", exec_h, re.MULTILINE)}
    used = {
        name: path
        for path in (ROOT / "csrc/host").rglob("*.*")
        if (ROOT / "csrc/host/exec") not in path.parents and path.suffix in (".h", ".cpp")
        for name in re.findall(r"#include <(exec/[^>]+)>", path.read_text(encoding="utf-8"))
    }
    assert used.keys() == public
