"""`python -m tests.clients` tells what other projects' suites did: a made-up project, and output of ggml's own program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients import __main__ as clients
from tests.clients.table import CLIENTS, Client

SUITE = """
import pytest
def test_good(): pass
def test_wrong(): assert False
def test_on_macs_only(): assert False
@pytest.mark.skip
def test_left_out(): pass
"""
PYTEST = "{python} -m pytest -q -p no:cacheprovider test_it.py"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """run(client): the exit status and the output of `python -m tests.clients project`, whose checkout is in tmp_path."""
    checkout = tmp_path / "checkouts" / "project"
    checkout.mkdir(parents=True)
    (checkout / "test_it.py").write_text(SUITE)

    def call(client):
        monkeypatch.setitem(CLIENTS, "project", client)
        words = ["project", "--in", str(checkout.parent), "--logs", str(tmp_path / "logs")]
        return clients.main(words), capsys.readouterr().out

    return call


@pytest.mark.full
def test_failures_count_unless_the_table_has_a_reason(run, tmp_path):
    known = {"on_macs_only": "it needs a Mac"}
    status, printed = run(Client("project", (PYTEST,), known=known))
    assert status == 1
    assert "| project | no commit | 1 passed, 1 failed, 1 skipped |" in printed
    assert "1: it needs a Mac |" in printed
    assert "project: test_it.test_wrong" in printed
    status, printed = run(Client("project", (PYTEST,), known={**known, "wrong": "so"}))
    assert status == 0
    assert "| 1 passed, 1 skipped |" in printed
    assert [path.name for path in (tmp_path / "checkouts" / "project").iterdir()] == ["test_it.py"]


def test_a_build_that_fails(run, tmp_path):
    status, printed = run(Client("project", (PYTEST,), ("{python} -c 'exit(\"no compiler\")'",)))
    assert status == 1
    assert "the build failed" in printed
    assert "no compiler" in (tmp_path / "logs" / "project.log").read_text()


def test_submodules_have_checkouts_of_their_own(run, tmp_path):
    client = Client(
        "project",
        (),
        ("{python} third/party/it.py",),
        submodules={"third/party": "other"},
        changes=(("third/party/it.py", "old", "new"),),
    )
    status, printed = run(client)
    assert status == 1
    assert "no checkout of other" in printed
    (tmp_path / "checkouts" / "other").mkdir()
    (tmp_path / "checkouts" / "other" / "it.py").write_text("print('the old text')")
    run(client)
    assert "the new text" in (tmp_path / "logs" / "project.log").read_text()


@pytest.mark.full
def test_main_arguments_are_given_and_results_count(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "def test_dtype(dtype, name): return name != 'BF16'\ndef test_other(): return True\n"
    )
    folder = str(Path(clients.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "main_arguments", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 3 passed" in done.stdout


def test_a_client_whose_checkout_is_missing(run):
    status, printed = run(Client("absent", (PYTEST,)))
    assert status == 1
    assert "| project | no checkout of absent |" in printed


def test_a_project_without_tests(run):
    status, printed = run(Client("project", ("{python} -c pass",)))
    assert status == 1
    assert "no test ran" in printed


def test_a_command_that_takes_too_long(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    work = clients.Work(tmp_path, tmp_path, limit=0.05)
    result = work.run("project", Client("project", ("{python} -c 'input()' < /dev/zero",)))
    assert isinstance(result, clients.Result)
    monkeypatch.setattr(clients.subprocess, "run", _never_ends)
    result = work.run("project", Client("project", (PYTEST,)))
    assert result.problem == "took more than 0 s"


def _never_ends(command, **options):
    if "timeout" in options:
        raise subprocess.TimeoutExpired(command, options["timeout"])
    return subprocess.CompletedProcess(command, 0, stdout="")


GGML = """\
Backend 1/2: MTL0
  ADD(type=f32,ne=[1,1,8,1],nr=[1,1,1,1],nf=1): \x1b[1;32mOK\x1b[0m
[ADD] ERR = 0.5 > 0.0000001   ADD(type=f16,ne=[1,1,8,1],nr=[1,1,1,1],nf=1): \x1b[1;31mFAIL\x1b[0m
  MUL_MAT(type_a=tq1_0,type_b=f32,m=1): not supported [MTL0]
"""


def test_the_output_of_ggmls_test():
    assert [(name, outcome) for name, _, outcome in clients.cases_of_ggml(GGML)] == [
        ("ADD", "OK"),
        ("ADD", "FAIL"),
        ("MUL_MAT", "not supported"),
    ]
    assert "| ADD | 1 | 1 | 0 |\n| MUL_MAT | 0 | 0 | 1 |" in clients.table_of_ggml(GGML)
