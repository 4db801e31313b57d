"""Tests for a GPU call those of tests/ops with other devices. None of them runs where there is no GPU: that arguments fit
is seen here.
"""

import ast
import importlib
import inspect
import pathlib

import pytest

FILES = sorted(pathlib.Path(__file__).parents[1].joinpath("cuda").glob("test_*_launch.py"))


def called_tests(tree):
    """(module, function, call) for each call of a function of a module that was imported from tests.ops."""
    modules = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.ops")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            base = ast.unparse(node.func.value)
            if base in modules:
                yield modules[base], node.func.attr, node


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_arguments_fit(file):
    calls = list(called_tests(ast.parse(file.read_text(encoding="utf-8"))))
    assert calls
    for module, name, call in calls:
        if any(isinstance(x, ast.Starred) for x in call.args) or None in [
            keyword.arg for keyword in call.keywords
        ]:
            continue  # how many there are is known when it runs
        function = getattr(importlib.import_module(module), name)
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        try:
            inspect.signature(function).bind(*call.args, **keywords)
        except TypeError as error:
            pytest.fail(f"{file.name}:{call.lineno}: {ast.unparse(call)}: {error}")
