"""`python -m metalops new NAME`: writes a package with Metal operators of its own, to start from.

The package is a copy of `template/`, which works as it is and is called metal_example, with another name in its files.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import keyword
import os
import re
import sys
from pathlib import Path

TEMPLATE = Path(__file__).parent / "template"
NAME_IN_TEMPLATE = "metal_example"
# Names that are reserved beside those of installed modules: C headers may define them as macros, and the name is an
# operator namespace in C++.
_TAKEN = {"test", "tests", "build", "dist", "errno", "stdin", "stdout", "stderr", "linux", "unix"}


def problem_with(name: str) -> str | None:
    """Returns why a package cannot have this name, in a sentence, or None. It is the name of the distribution; with
    underscores for hyphens it is that of the module and the namespace of its operators."""
    if not re.fullmatch(r"[a-z]([a-z0-9]|[-_](?=[a-z0-9]))*", name):
        return (
            "the name begins with a letter and consists of lower-case letters, digits, and single hyphens or underscores "
            "between them"
        )
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or keyword.issoftkeyword(module):
        return f"{module} is a keyword of Python"
    if module in sys.stdlib_module_names:
        return f"{module} is a module of Python's standard library"
    if module in _TAKEN:
        return f"{module} has another meaning in Python packages or in C"
    if module in _namespaces():
        return f"torch.ops.{module} is a namespace of operators already"
    if _is_installed(module):
        return f"a module {module} is installed already"
    return None


def _namespaces() -> set[str]:
    from .._torch.internals import operator_names

    return {name.partition("::")[0] for name in operator_names()}


def _is_installed(module: str) -> bool:
    """Returns true if a module is installed. A folder without __init__.py does not count, since the current folder may
    hold one by chance, unless a distribution provides it."""
    if module in importlib.metadata.packages_distributions():
        return True
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def files(name: str) -> dict[str, str]:
    """Returns the files of a package of this name: path within its folder, to text."""
    module = name.replace("-", "_")
    written = {}
    for path in sorted(TEMPLATE.rglob("*")):
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        inside = str(path.relative_to(TEMPLATE)).replace("dot_", ".").replace(os.sep, "/")
        text = path.read_text(encoding="utf-8")
        if inside == "pyproject.toml":
            text = text.replace(f'name = "{NAME_IN_TEMPLATE}"', f'name = "{name}"')
        elif inside == "README.md":
            text = text.replace(f"# {NAME_IN_TEMPLATE}\n", f"# {name}\n", 1)
        written[inside.replace(NAME_IN_TEMPLATE, module)] = text.replace(NAME_IN_TEMPLATE, module)
    return written


def write(name: str, folder: str | os.PathLike) -> list[str]:
    """Writes the package into a folder that is empty or does not exist; returns the paths of its files within it.

    Raises ValueError for a name that no package can have, FileExistsError for a folder with files, and other OSErrors.
    """
    problem = problem_with(name)
    if problem is not None:
        raise ValueError(f"a package cannot be called {name!r}: {problem}")
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise FileExistsError(f"{root} is not a folder")
    if root.is_dir() and any(root.iterdir()):
        raise FileExistsError(f"the folder {root} is not empty")
    texts = files(name)
    for inside, text in texts.items():
        path = root / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    return list(texts)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m metalops new",
        description="Writes a Python package with Metal operators of its own: kernels, host code, Python functions, tests, and a "
        "workflow for GitHub. It installs and passes its tests as it is written; change it from there.",
    )
    parser.add_argument(
        "name", help="of the distribution; the module has underscores for its hyphens"
    )
    parser.add_argument(
        "folder", nargs="?", help="empty or not there yet (default: NAME in the current folder)"
    )
    options = parser.parse_args(arguments)
    folder = options.name if options.folder is None else options.folder
    try:
        written = write(options.name, folder)
    except (ValueError, OSError) as error:
        print(f"metalops new: {error}", file=sys.stderr)
        return 1
    print(f"{folder}:")
    for inside in written:
        print(f"  {inside}")
    print("\nTo build it and to run its tests:")
    print(f"  cd {folder}")
    print("  pip install --no-build-isolation .")
    print("  python -m pytest")
    return 0
