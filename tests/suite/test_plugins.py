"""The suite runs where other plugins of pytest are installed: their warnings stop nothing, and their names are theirs."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# Fixtures of pytest-asyncio, -benchmark, -cov, -mock, -randomly, -socket, -subprocess, -httpserver, -snapshot, syrupy,
# freezegun, faker, requests-mock and anyio. pytest-benchmark takes any test with an argument of that name for one of its own.
OF_PLUGINS = {
    *("anyio_backend", "anyio_backend_name", "anyio_backend_options", "event_loop", "event_loop_policy"),
    *("benchmark", "benchmark_weave", "cov", "no_cover", "faker", "freezer", "httpserver", "requests_mock"),
    *("mocker", "class_mocker", "module_mocker", "package_mocker", "session_mocker"),
    *("socket_enabled", "socket_disabled", "fp", "fake_process", "snapshot"),
    *("unused_tcp_port", "unused_tcp_port_factory", "unused_udp_port", "unused_udp_port_factory"),
}  # fmt: skip

# Warns wherever a plugin can, as pytest-benchmark, pytest-cov and pytest-asyncio do.
PLUGIN = """\
import pytest, warnings

class OtherWarning(pytest.PytestWarning):
    pass

def pytest_configure():
    warnings.warn(OtherWarning("configured"))

def pytest_collection_modifyitems():
    warnings.warn(pytest.PytestDeprecationWarning("collected"))

def pytest_runtest_setup():
    warnings.warn(OtherWarning("set up"))

def pytest_sessionfinish():
    warnings.warn(OtherWarning("finished"))

def pytest_unconfigure():
    warnings.warn(OtherWarning("ended"))
"""


def run(text, folder, *options):
    (folder / "pytest_other.py").write_text(PLUGIN)
    test = folder / "test_little.py"
    test.write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider"]
        + ["-c", TESTS.parent / "pyproject.toml", test],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("processes", [0, 1])
def test_warnings_of_other_plugins_stop_nothing(processes, tmp_path):
    options = "-p", "pytest_other", "-n", str(processes)
    result = run("def test_nothing(): pass\n", tmp_path, *options)
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout and "INTERNALERROR" not in result.stdout


@pytest.mark.full
def test_what_pytest_itself_warns_of_is_an_error(tmp_path):
    text = "import pytest\n@pytest.mark.no_such_mark\ndef test_marked(): pass\n"
    result = run(text, tmp_path, "-n", "0")
    assert result.returncode != 0
    assert "PytestUnknownMarkWarning" in result.stdout


@pytest.mark.full
def test_no_test_has_an_argument_that_plugins_take_for_their_own():
    found = []
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            is_fixture = any("fixture" in ast.unparse(one) for one in node.decorator_list)
            if node.name.startswith("test") or is_fixture:
                names = {node.name, *(one.arg for one in node.args.args)}
                found += [(path.name, node.name, name) for name in names & OF_PLUGINS]
    assert found == []
