"""`python -m metalops doctor`: which of the faults that users reported this machine has, and what cures them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Iterable

import torch

from .. import _is_software, fixes
from ..fixes import FAULTS, Fault

# state -> its meaning
STATES = {
    "present": "stock is wrong here, and metalops has no cure",
    "opt-in": "stock is wrong here, and a fix that is off cures it",
    "cured": "stock is wrong here or would be, and metalops is used in its place",
    "absent": "stock is right here",
    "reported": "not probed; by what users reported, this version of torch has it",
    "not reported": "not probed; nobody reported it for this version of torch",
}

_TIME_LIMIT = 60  # of a probe that runs in a process of its own, in seconds


@dataclasses.dataclass(frozen=True)
class Finding:
    """The state of a fault, one of STATES, and what to call."""

    name: str
    state: str
    call: str


def examine(names: Iterable[str] | None = None, plant: Iterable[str] = ()) -> list[Finding]:
    """Probes faults, by default all. plant: of which the software device is given the faults that are found then.

    The fixes that are on are so afterwards; each is off while its fault is looked for.
    """
    planted = tuple(plant)
    chosen = list(FAULTS) if names is None else list(names)
    with _Child() as child:
        return [_examined(FAULTS[name], planted, child) for name in chosen]


def _examined(fault: Fault, planted: tuple[str, ...], child: _Child) -> Finding:
    from .probes import PROBES

    if fault.name not in PROBES:
        state = "reported" if _is_of_version(fault.torch, torch.__version__) else "not reported"
        return Finding(fault.name, state, _call(fault) if state == "reported" else "")
    plant = fault.name if fault.name in planted else ""
    if not fault.fix:
        return Finding(fault.name, "present" if _seen(fault, child, plant) else "absent", "")
    before = next(fix for fix in fixes.status() if fix.name == fault.fix)
    fixes.disable_fixes(fault.fix)
    try:
        return _with_fix(fault, child, plant, before.on)
    finally:
        if before.on:
            fixes._turn_on([fault.fix], before.why)


def _with_fix(fault: Fault, child: _Child, plant: str, was_on: bool) -> Finding:
    if not _seen(fault, child, plant):
        return Finding(fault.name, "absent", "")
    if _seen(fault, child, plant, fault.fix):
        return Finding(fault.name, "present", "")
    return Finding(fault.name, "cured" if was_on else "opt-in", "" if was_on else _call(fault))


def _call(fault: Fault) -> str:
    return f"metalops.enable_fixes({fault.fix!r})" if fault.fix else ""


def _seen(fault: Fault, child: _Child, plant: str, fix: str = "") -> bool:
    """Returns true if the fault is there, with a fix or without, which is planted or not."""
    seen = child.seen if fault.ends else seen_here
    return seen(fault.name, plant, fix)


class _Child:
    """A process for the probes of faults that end theirs. It starts with the first probe, since it imports torch again,
    and serves until a probe sees its fault, which may have damaged the memory."""

    _SERVE = "from metalops._doctor import serve; serve()"

    def __init__(self):
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_) -> None:
        self._end()

    def seen(self, name: str, plant: str, fix: str) -> bool:
        """Returns true if the process sees the fault, ends, fails, or takes too long."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", self._SERVE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        timer = threading.Timer(_TIME_LIMIT, self._process.kill)
        timer.start()
        try:
            print(json.dumps([name, plant, fix]), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if answer == _ABSENT:
            return False
        self._end()
        return True

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


_ABSENT = "absent\n"


def serve() -> None:
    """Answers the requests for probes that a _Child writes to this process's standard input."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what a probe prints is no answer
    for line in sys.stdin:
        answer = "present\n" if seen_here(*json.loads(line)) else _ABSENT
        os.write(answers, answer.encode())


def seen_here(name: str, plant: str = "", fix: str = "") -> bool:
    """Runs the probe of a fault in this process. The fix is turned on after the fault was planted."""
    import contextlib

    from .probes import PROBES

    with contextlib.ExitStack() as stack:
        if plant:
            from ..testing import faults

            stack.enter_context(faults.planted(plant))
        if fix:
            stack.enter_context(fixes.enable_fixes(fix))
        return PROBES[name]()


def _is_of_version(versions: str, version: str) -> bool:
    """Returns true if a version such as "2.13.0" is one of "2.12, 2.13", "2.13 to 2.15" or "up to 2.11"."""

    def key(text: str) -> tuple[int, ...]:
        return tuple(int(number) for number in re.findall(r"\d+", text)[:2])

    if versions.startswith("up to "):
        return key(version) <= key(versions)
    first, to, last = versions.partition(" to ")
    if to:
        return key(first) <= key(version) <= key(last)
    return key(version) in [key(one) for one in versions.split(",")]


def machine() -> dict[str, str]:
    """Returns the versions and the name of the machine that faults depend on."""
    from .. import _version

    if _is_software:
        system, device = f"Linux {platform.machine()}", "the software device"
    else:
        chip = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            check=False,
        )
        system, device = f"macOS {platform.mac_ver()[0]}", chip.stdout.strip()
    return {
        "torch": torch.__version__,
        "metalops": _version.VERSION,
        "system": system,
        "device": device,
    }


def _issues(fault: Fault) -> str:
    return ", ".join(map(str, (fault.issue, *fault.again)))


def _text(findings: list[Finding]) -> str:
    width = max(len(finding.name) for finding in findings)
    lines = [", ".join(f"{name} {value}" for name, value in machine().items())]
    for state, meaning in STATES.items():
        some = [finding for finding in findings if finding.state == state]
        if some:
            lines += ["", f"{state}: {meaning}"]
        for finding in some:
            fault = FAULTS[finding.name]
            operators = ", ".join(fault.operators)
            lines += [
                f"  {finding.name:{width}}  {operators}: {fault.fault}",
                f"  {'':{width}}  if: {fault.condition} (pytorch issue {_issues(fault)}; torch {fault.torch}; {fault.systems})",
            ]
            if finding.call:
                lines.append(f"  {'':{width}}  call {finding.call}")
    return "\n".join(lines)


def table() -> str:
    """Returns the faults as a table in Markdown."""
    rows = [
        "| operators | what happens | when | torch, machines | issue | cure |",
        "|---|---|---|---|---|---|",
    ]
    for fault in FAULTS.values():
        operators = ", ".join(f"`{name}`" for name in fault.operators)
        cure = f"`{fault.fix}`" if fault.fix else "none"
        rows.append(
            f"| {operators} | {fault.fault} | {fault.condition} | {fault.torch}; {fault.systems} | {_issues(fault)} | {cure} |"
        )
    return "\n".join(rows)


def _advised(findings: list[Finding]) -> list[str]:
    """Returns the fixes that cure what was found, and those that are on."""
    needed = {FAULTS[x.name].fix for x in findings if x.state in ("opt-in", "cured")}
    on = {fix.name for fix in fixes.status() if fix.on}
    return [name for name in fixes.FIXES if name in needed | on]


def main(arguments: list[str]) -> int:
    """Returns 1 if there is a fault that nothing cures now."""
    parser = argparse.ArgumentParser(prog="metalops doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="what was found as JSON")
    parser.add_argument(
        "--faults", action="store_true", help="the table of faults; nothing is probed"
    )
    parser.add_argument(
        "--apply",
        action="store_true",
        help="write the fixes that are needed to the settings file, which `import metalops` reads",
    )
    parser.add_argument(
        "--plant",
        action="append",
        default=[],
        metavar="FAULT",
        choices=list(FAULTS),
        help="give the software device a fault, to see that it is found",
    )
    options = parser.parse_args(arguments)
    if options.faults:
        print(table())
        return 0
    findings = examine(plant=options.plant)
    if options.json:
        found = [{**dataclasses.asdict(FAULTS[x.name]), **dataclasses.asdict(x)} for x in findings]
        print(json.dumps({"machine": machine(), "faults": found}, indent=1))
    else:
        print(_text(findings))
    if options.apply:
        from ..fixes import settings

        names = _advised(findings)
        file = settings.write(names)
        chosen = ", ".join(names) or "no fixes"
        print(f"\n{file}: {chosen}", file=sys.stderr if options.json else sys.stdout)
    return int(any(finding.state in ("present", "opt-in") for finding in findings))
