"""Entry point pytest11: the pytest plugin of metalops.

- ``@pytest.mark.mps``: the test is skipped where there is no mps device.
- ``@pytest.mark.sanitized("address")`` or ``("thread")``: on the software device the test runs in a process of its own whose kernels
  are under that sanitizer. ``--metalops-sanitize=MODE`` puts the whole run under it.
- ``--metalops-standins=report`` lists the operators that a CPU kernel served in place of an MPS one; ``error`` fails the tests in
  which that happens, but for operators that ``@pytest.mark.standins("aten::sort", ...)`` names.
- ``--metalops`` brings the device up before any conftest.py or test module is imported.

Not part of the package, because pytest imports this module in every run, and importing anything of metalops brings the device up.
Without its options it acts only in runs whose tests import metalops.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

import pytest

_MODES = ("address", "thread")
_PROPERTY = "metalops_standins"
_MARKERS = (
    "mps: needs an mps device; skipped where there is none (metalops)",
    "sanitized(mode='address'): runs under the sanitizer 'address' or 'thread' of the software device (metalops)",
    "standins(*operators): may use stand-ins for these operators, or for any if none is named (metalops)",
)


def pytest_addoption(parser):
    group = parser.getgroup("metalops")
    group.addoption(
        "--metalops",
        action="store_true",
        help="bring up the mps device before any conftest.py or test module is imported",
    )
    group.addoption(
        "--metalops-sanitize",
        metavar="MODE",
        choices=_MODES,
        help="run all kernels under a sanitizer of the software device: address or thread",
    )
    group.addoption(
        "--metalops-standins",
        metavar="ACTION",
        choices=("report", "error"),
        help="operators that a CPU kernel serves in place of an MPS one: report them at the end, or fail the tests that use them",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    options = early_config.known_args_namespace
    if not (options.metalops or options.metalops_sanitize or options.metalops_standins):
        return
    if options.metalops_sanitize:
        os.environ.update(METALOPS_SANITIZE=options.metalops_sanitize)
    try:
        import metalops  # noqa: F401  (starts the interpreter anew if it lacks the sanitizer's runtime)
    except (ImportError, RuntimeError, ValueError) as error:
        raise pytest.UsageError(f"metalops: {error}") from error


def pytest_configure(config):
    for line in _MARKERS:
        config.addinivalue_line("markers", line)
    if config.getoption("metalops_standins"):
        config.pluginmanager.register(_StandIns(), "metalops_standins")


def pytest_collection_modifyitems(config, items):
    metalops = sys.modules.get("metalops")
    if metalops is None:
        return  # these tests are not about it, and their marks may have another meaning
    import torch

    has_device = torch.backends.mps.is_available()
    action = config.getoption("metalops_standins")
    for item in items:
        if not has_device:
            if item.get_closest_marker("mps"):
                reason = getattr(metalops, "_problem", None) or "torch.backends.mps says so"
                item.add_marker(pytest.mark.skip(reason=f"no mps device: {reason}"))
            continue
        if action:
            item.runtest = functools.partial(_run_and_count, item, item.runtest, action == "error")
        mark = item.get_closest_marker("sanitized")
        if mark is not None:
            mode = mark.kwargs.get("mode", mark.args[0] if mark.args else "address")
            if mode not in _MODES:
                raise pytest.UsageError(
                    f"{item.nodeid}: sanitized is 'address' or 'thread', not {mode!r}"
                )
            item.runtest = functools.partial(_run_sanitized, item, item.runtest, mode)


def _run_and_count(item, run, fail):
    from metalops import debug

    with debug.standins() as counts:
        run()
    if not counts:
        return
    item.user_properties.append((_PROPERTY, dict(counts)))
    mark = item.get_closest_marker("standins")
    allowed = () if mark is None else mark.args or counts
    others = [f"{name} ({count})" for name, count in counts.items() if not _is_in(name, allowed)]
    if fail and others:
        pytest.fail(
            f"CPU kernels ran in place of MPS kernels: {', '.join(others)}. @pytest.mark.standins(...) allows them.",
            pytrace=False,
        )


def _is_in(overload, allowed):
    """allowed: overloads ("aten::sort.stable") or operators ("aten::sort")."""
    return overload in allowed or overload.partition(".")[0] in allowed


def _run_sanitized(item, run, mode):
    import metalops
    from metalops.msl.targets.host import sanitizers

    if not metalops._is_software:
        pytest.skip("sanitizers are those of the software device; this machine has an Apple GPU")
    present = sanitizers.loaded()
    if present == mode:
        run()
        return
    if present:
        pytest.skip(f"this run is under the sanitizer {present}, the test is for {mode}")
    with tempfile.TemporaryDirectory(prefix="metalops") as folder:
        report = os.path.join(folder, "report.xml")
        result = subprocess.run(
            _command(item, mode, report, folder),
            cwd=item.config.invocation_params.dir,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        case = ElementTree.parse(report).find(".//testcase") if os.path.exists(report) else None
    skipped = None if case is None else case.find("skipped")
    if skipped is not None:
        pytest.skip(skipped.get("message", ""))
    if case is None or result.returncode:
        pytest.fail(
            f"under the sanitizer {mode}, with status {result.returncode}:\n{result.stdout}",
            pytrace=False,
        )


def _command(item, mode, report, cache):
    """Returns the command that runs this test alone, whatever this run was asked to select."""
    config = item.config
    command = [sys.executable, "-m", "pytest", "-q", "-p", "metalops_pytest"]
    command += [
        f"--metalops-sanitize={mode}",
        f"--junitxml={report}",
        f"--rootdir={config.rootpath}",
    ]
    command += ["-m", "", "-k", "", "-o", f"cache_dir={cache}"]
    command += [f"--import-mode={config.getoption('importmode')}"]
    if config.inipath is not None:
        command += ["-c", str(config.inipath)]
    if config.pluginmanager.hasplugin("xdist"):
        command += ["-n", "0"]
    return [*command, os.path.join(config.rootpath, item.nodeid)]


class _StandIns:
    """Collects what the tests reported, also those of other processes of pytest-xdist."""

    def __init__(self):
        self.calls: dict[str, int] = {}
        self.tests: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report):
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == _PROPERTY:
                for operator, count in value.items():
                    self.calls[operator] = self.calls.get(operator, 0) + count
                    self.tests.setdefault(operator, []).append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("stand-ins: CPU kernels in place of MPS kernels")
        if not self.calls:
            terminalreporter.write_line("none")
        width = max(map(len, self.calls), default=0)
        for operator in sorted(self.calls, key=lambda name: (-self.calls[name], name)):
            calls, tests = self.calls[operator], self.tests[operator]
            terminalreporter.write_line(
                f"{operator:{width}}  {calls} {'call' if calls == 1 else 'calls'}, "
                f"{len(tests)} {'test' if len(tests) == 1 else 'tests'}: {tests[0]}"
            )
