"""Every test checks something: none returns before its first check, none has no check at all.

A check is an assert or raise statement, a call of something of pytest, unittest, torch or subprocess that raises where
something is wrong (CHECKS, assert...), or a call of a function of the tests or of metalops.testing that checks in turn.
"""

import ast
from pathlib import Path

import metalops.testing
import pytest

TESTS = Path(__file__).parents[1]
TESTING = Path(metalops.testing.__path__[0])
CHECKS = {"raises", "warns", "fail", "check_call", "check_output", "no_host_copies", "opcheck"}
DIRECT = "a check"


def functions(tree):
    """The functions and classes defined in a syntax tree."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]


class Module:
    """A Python file of the tests: the functions it defines, and the names by which it knows those of others."""

    def __init__(self, text):
        self.tree = ast.parse(text)
        self.functions = functions(self.tree)
        self.known = {"self": "self", **{f.name: f.name for f in self.functions}}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (
                node.level or node.module.split(".")[0] in ("metalops", "tests")
            ):
                self.known |= {a.asname or a.name: a.name for a in node.names}
            if isinstance(node, ast.FunctionDef):  # fixtures
                self.known |= {a.arg: a.arg for a in node.args.args}

    def called(self, node):
        """The names of our functions that a syntax tree calls; DIRECT if it checks something itself."""
        return {name for part in ast.walk(node) if (name := self._called(part))}

    def _called(self, node):
        if isinstance(node, ast.Assert | ast.Raise):
            return DIRECT
        if not isinstance(node, ast.Call):
            return None
        if any(k.arg == "check" and ast.unparse(k.value) == "True" for k in node.keywords):
            return DIRECT  # subprocess.run
        if isinstance(node.func, ast.Name):
            name = node.func.id
            return DIRECT if name in CHECKS else self.known.get(name)
        if not isinstance(node.func, ast.Attribute):
            return None
        name, of = node.func.attr, node.func.value
        if name in CHECKS or name.startswith("assert"):
            return DIRECT
        return name if isinstance(of, ast.Name) and of.id in self.known else None

    def faults(self, checking):
        """(line, message) of each test that can pass without having checked anything."""
        for test in self.functions:
            if not isinstance(test, ast.FunctionDef) or not test.name.startswith("test"):
                continue
            if all(checking.isdisjoint(self.called(statement)) for statement in test.body):
                yield test.lineno, f"{test.name} checks nothing"
            for statement in self._early_returns(test.body, checking):
                yield statement.lineno, f"{test.name} returns before it has checked anything"

    def _early_returns(self, block, checking):
        for statement in block:
            if isinstance(statement, ast.Return):
                yield statement
            if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                # Where no exception is a failure, to be in a handler has checked something.
                must_raise = any(
                    not checking.isdisjoint(self.called(other))
                    for other in getattr(statement, "orelse", ())
                )
                found = () if must_raise else getattr(statement, "handlers", ())
                handlers = (handler.body for handler in found)
                parts = (getattr(statement, p, ()) for p in ("body", "orelse", "finalbody"))
                for part in (*parts, *handlers):
                    yield from self._early_returns(part, checking)
            if not checking.isdisjoint(self.called(statement)):
                return


def checking_functions(modules):
    """DIRECT and the names of all functions, classes and context managers that check, or call one that does."""
    called = [(f.name, module.called(f)) for module in modules for f in module.functions]
    checking = {DIRECT}
    while found := {name for name, names in called if not checking.isdisjoint(names)} - checking:
        checking |= found
    return checking


@pytest.mark.full
def test_every_test_checks_something():
    paths = [*TESTS.rglob("*.py"), *TESTING.rglob("*.py")]
    modules = {path: Module(path.read_text(encoding="utf-8")) for path in paths}
    checking = checking_functions(modules.values())
    found = [
        f"{path}:{line}: {message}"
        for path, module in modules.items()
        if path.name.startswith("test_")
        for line, message in module.faults(checking)
    ]
    assert not found, "\n".join(found)


def test_tests_that_check_nothing_are_found():
    module = Module("""
def agrees(x): assert x
def test_good(): agrees(1)
def test_also_good(x):
    agrees(x)
    if x: return
    assert not x
def test_good_if_it_raises(x):
    try:
        f(x)
    except ValueError:
        return
    else:
        assert False
def test_early(x):
    if x:
        return
    agrees(x)
def test_nothing(x):
    other.agrees(x)
def test_result_is_lost(x):
    torch.equal(x, x)
""")
    assert list(module.faults(checking_functions([module]))) == [
        (17, "test_early returns before it has checked anything"),
        (19, "test_nothing checks nothing"),
        (21, "test_result_is_lost checks nothing"),
    ]
