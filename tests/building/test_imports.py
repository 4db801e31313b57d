"""How the modules of the package depend on each other."""

import ast
from pathlib import Path

import metalops

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
