"""How the modules of the package depend on each other, and what importing the package gives."""

import ast
import subprocess
import sys
from pathlib import Path

import metalops
import pytest

PACKAGE = Path(metalops.__file__).parent


def _name(path):
    parts = ("metalops", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path, modules):
    """The package's modules that a file imports, wherever in the file it does."""
    package = _name(path) if path.name == "__init__.py" else _name(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(parents if node.level else []), *filter(None, [node.module])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield whole if whole in modules else base


def test_no_two_modules_import_each_other():
    """metalops itself aside: modules ask it what the device is."""
    modules = {_name(path): path for path in PACKAGE.rglob("*.py")}
    imports = {name: set(_imported(path, modules)) for name, path in modules.items()}
    circles = [
        (one, other)
        for one, others in imports.items()
        for other in others
        if one < other and "metalops" not in (one, other) and one in imports.get(other, ())
    ]
    assert circles == []


_PUBLIC = """
import importlib, pkgutil, sys
import metalops
from metalops import integrations

for package in (metalops, integrations):
    names = [m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")]
    later = [n for n in names if f"{package.__name__}.{n}" not in sys.modules]
    print(len(names), len(later))
    assert set(names) <= set(dir(package)), names
    for name in names:
        assert getattr(package, name) is sys.modules[f"{package.__name__}.{name}"], name
    try:
        package.nonsense
    except AttributeError as error:
        assert str(error) == f"module {package.__name__!r} has no attribute 'nonsense'"
"""


def _printed(program):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.full
def test_every_public_module_is_an_attribute_that_is_imported_when_it_is_used():
    of_package, of_integrations = _printed(_PUBLIC).splitlines()
    # But for debug, fixes, ops and integrations, which the program imports.
    assert of_package == "14 10"
    assert of_integrations == "3 3"


_COLLECTIONS = """
import gc, torch

collections = []
gc.callbacks.append(lambda phase, about: collections.append(about["generation"]))
{before}
import metalops
print(collections, gc.isenabled())
"""


@pytest.mark.full
@pytest.mark.parametrize(("before", "enabled"), [("gc.enable()", True), ("gc.disable()", False)])
@pytest.mark.sampled(2)
def test_garbage_is_not_collected_while_the_package_is_imported(before, enabled, monkeypatch):
    """A collection takes longer than the import, because torch has very many objects."""
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    collections, is_enabled = _printed(_COLLECTIONS.format(before=before)).split("] ")
    assert "2" not in collections and is_enabled == f"{enabled}\n"


_AGAIN = """
import importlib, sys
import torch, metalops

before = torch.__version__, torch.nn.functional.scaled_dot_product_attention
for _ in range(2):
    assert importlib.reload(metalops) is metalops
del sys.modules["metalops"]
import metalops as other
assert other is not metalops and other.ops is metalops.ops
x = torch.ones(1, 1, 2, 4, device="mps", requires_grad=True)
torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()
print(other.ops.softcap(x.grad, 1.0).shape)
"""


@pytest.mark.nightly
def test_the_package_may_be_reloaded_and_imported_again():
    assert _printed(_AGAIN) == "torch.Size([1, 1, 2, 4])\n"
