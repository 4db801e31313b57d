"""Runs the test suites of public projects on the software device: python -m tests.clients [CLIENT...] --in FOLDER

FOLDER has a checkout of each project, under the name that tests/clients/table.py gives it (--list prints the names); clients
without one are left out. Builds and tests run in a copy, in which nothing is changed but what the table says: `python -m metalops build-mac` runs the
project's own build scripts. Prints a row for each client: the commit, what passed and failed, and the reasons for what cannot
pass. The exit status is 1 if a build or a test failed for which the table has no reason.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from .table import CANNOT, CLIENTS, Client

HERE = Path(__file__).parent


@dataclasses.dataclass
class Result:
    """How a suite went. failed: names of tests. known: how many failed for each of the client's reasons. problem: why there
    are no results."""

    commit: str = ""
    passed: int = 0
    skipped: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)
    known: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    problem: str = ""
    seconds: float = 0

    @property
    def good(self) -> bool:
        return not self.failed and not self.problem

    def add_failure(self, name: str, known: dict[str, str]) -> None:
        reason = next((reason for part, reason in known.items() if part in name), None)
        if reason is None:
            self.failed.append(name)
        else:
            self.known[reason] += 1


def read_junit(path: Path, known: dict[str, str], result: Result) -> None:
    """Adds the cases of pytest's report to a result."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            result.add_failure(name, known)
        elif case.find("skipped") is not None:
            result.skipped += 1
        else:
            result.passed += 1


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Differences are printed in front of the case that they belong to.
_GGML_CASE = re.compile(
    r"^.*?\b([A-Z][A-Z0-9_]*)\((.*)\): .*?(OK|FAIL|not supported)(?: \[.*\])?\s*$", re.MULTILINE
)


def cases_of_ggml(printed: str) -> list[tuple[str, str, str]]:
    """Returns operator, arguments and outcome ("OK", "FAIL", "not supported") of each case of test-backend-ops."""
    return _GGML_CASE.findall(_COLOUR.sub("", printed))


def read_ggml(printed: str, known: dict[str, str], result: Result) -> None:
    """Adds the cases of ggml's test-backend-ops to a result."""
    for name, arguments, outcome in cases_of_ggml(printed):
        if outcome == "OK":
            result.passed += 1
        elif outcome == "FAIL":
            result.add_failure(f"{name}({arguments})", known)
        else:
            result.skipped += 1


def table_of_ggml(printed: str) -> str:
    """Returns a Markdown table: by operator, how many cases passed, failed, and are not supported."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, _, outcome in cases_of_ggml(printed):
        counts[name][outcome] += 1
    rows = [
        f"| {name} | {count['OK']} | {count['FAIL']} | {count['not supported']} |"
        for name, count in sorted(counts.items())
    ]
    return "\n".join(["| operator | passed | failed | not supported |", "|---|---|---|---|", *rows])


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


class Work:
    """Runs clients in copies of their checkouts. logs: where the output of their commands goes."""

    def __init__(self, checkouts: Path, logs: Path, limit: float) -> None:
        self.checkouts, self.logs, self.limit = checkouts.resolve(), logs, limit

    def missing(self, client: Client) -> list[str]:
        names = (client.checkout, *client.needs, *client.submodules.values())
        return [name for name in names if not (self.checkouts / name).is_dir()]

    def _command(self, text: str, copy: Path) -> list[str]:
        words = shlex.split(text)
        places = {"python": sys.executable, "copy": str(copy), "clients": str(HERE)}
        places |= {path.name: str(path) for path in self.checkouts.iterdir()}
        return [re.sub(r"\{([\w-]+)\}", lambda m: places[m[1]], word) for word in words]

    def _run(self, command: list[str], client: Client, copy: Path, log: Path) -> int:
        folders = [str(copy / folder) for folder in client.path]
        path = os.pathsep.join(filter(None, [*folders, str(HERE), os.environ.get("PYTHONPATH")]))
        with open(log, "a") as stream:
            print("$", shlex.join(command), file=stream, flush=True)
            return subprocess.run(
                command,
                cwd=copy,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=self.limit,
                check=False,
            ).returncode

    def run(self, name: str, client: Client) -> Result:
        """Builds and tests a client."""
        checkout = self.checkouts / client.checkout
        result = Result(commit_of(checkout))
        log = self.logs / f"{name}.log"
        log.write_text("")
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"{name}-") as temporary:
            copy = Path(temporary) / name
            ignored = shutil.ignore_patterns(".git")
            shutil.copytree(checkout / client.copied, copy, symlinks=True, ignore=ignored)
            for folder, name_of_checkout in client.submodules.items():
                place = copy / folder
                source = self.checkouts / name_of_checkout
                shutil.copytree(source, place, symlinks=True, ignore=ignored, dirs_exist_ok=True)
            for file, text, replacement in client.changes:
                path = copy / client.folder / file
                path.write_text(path.read_text().replace(text, replacement))
            try:
                self._build_and_test(client, copy / client.folder, log, result)
            except subprocess.TimeoutExpired:
                result.problem = f"took more than {self.limit:.0f} s"
        result.seconds = time.monotonic() - began
        return result

    def _build_and_test(self, client: Client, copy: Path, log: Path, result: Result) -> None:
        for text in client.build:
            if self._run(self._command(text, copy), client, copy, log):
                result.problem = f"the build failed: {log}"
                return
        for text in client.tests:
            report = copy / "report.xml"
            command = self._command(text, copy)
            if client.report == "pytest":
                command.append(f"--junitxml={report}")
            self._run(command, client, copy, log)
            if client.report == "ggml":
                read_ggml(log.read_text(errors="replace"), client.known, result)
            elif report.exists():
                read_junit(report, client.known, result)
        if not (result.passed or result.failed or result.skipped):
            result.problem = f"no test ran: {log}"


def row(name: str, result: Result) -> str:
    """Returns a client's row of the table."""
    changes = "; ".join(f"{new} for {old} in {file}" for file, old, new in CLIENTS[name].changes)
    outcome = result.problem or f"{result.passed} passed"
    if result.failed:
        outcome += f", {len(result.failed)} failed"
    if result.skipped:
        outcome += f", {result.skipped} skipped"
    reasons = "; ".join(f"{count}: {reason}" for reason, count in result.known.items())
    return (
        f"| {name} | {result.commit} | {outcome} | {changes} | {result.seconds:.0f} s | {reasons} |"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="(default: all)")
    parser.add_argument("--in", dest="checkouts", type=Path, help="the folder of the checkouts")
    parser.add_argument("--logs", type=Path, help="a folder for the output (default: a new one)")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for each command")
    parser.add_argument("--list", action="store_true", help="print the clients and their checkouts")
    options = parser.parse_args(arguments)
    if options.list:
        for name, client in CLIENTS.items():
            names = (client.checkout, *client.needs, *client.submodules.values())
            print(f"{name}: {', '.join(names)}")
        for name, reason in CANNOT.items():
            print(f"{name}: cannot run: {reason}")
        return 0
    unknown = [name for name in options.clients if name not in CLIENTS]
    if unknown or options.checkouts is None or not options.checkouts.is_dir():
        parser.error(f"unknown client: {unknown[0]}" if unknown else "--in has to name a folder")
    logs = options.logs or Path(tempfile.mkdtemp(prefix="metalops-clients-"))
    logs.mkdir(parents=True, exist_ok=True)
    work = Work(options.checkouts, logs.resolve(), options.limit)
    print(
        "| client | commit | result | changed | time | known |\n|---|---|---|---|---|---|",
        flush=True,
    )
    good = True
    failures = []
    for name in options.clients or CLIENTS:
        missing = work.missing(CLIENTS[name])
        if missing:
            print(f"| {name} | no checkout of {', '.join(missing)} | | | | |", flush=True)
            good = good and not options.clients
            continue
        result = work.run(name, CLIENTS[name])
        print(row(name, result), flush=True)
        good = good and result.good
        failures += [f"{name}: {test}" for test in result.failed]
        if CLIENTS[name].report == "ggml":
            print("\n" + table_of_ggml((logs / f"{name}.log").read_text(errors="replace")) + "\n")
    print("\n".join(failures))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
