"""Runs tests in forks of a process that has torch loaded already; started by __main__.py.

Reads requests from standard input, one JSON object a line: {"arguments": pytest's, "seconds": the time limit,
"environment": variables}. Answers each with a line: {"result": "passed", "no tests", "failed", "crashed", "too slow" or
"error" if the tests could not be run, "detail": text}.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time

# Loaded before the first fork, so that no test process has to. Not metalops: a process does not share its device with
# its forks, on a Mac neither.
import numpy  # noqa: F401
import pytest
import torch  # noqa: F401


def _child(arguments: list[str], environment: dict[str, str], output: int) -> None:
    os.environ.update(environment)
    os.setpgid(0, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os._exit(int(pytest.main(arguments)))


def _wait(process: int, seconds: float) -> int | None:
    """The status, or None after ending the process because it takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.05)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def run(arguments: list[str], seconds: float, environment: dict[str, str]) -> dict[str, str]:
    with tempfile.TemporaryFile() as output:
        process = os.fork()
        if process == 0:
            _child(arguments, environment, output.fileno())
        status = _wait(process, seconds)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if status is None:
        return {"result": "too slow", "detail": f"ended after {seconds:.0f} s"}
    if os.WIFSIGNALED(status):
        return {"result": "crashed", "detail": signal.Signals(os.WTERMSIG(status)).name}
    code = os.WEXITSTATUS(status)
    if code == pytest.ExitCode.OK:
        return {"result": "passed", "detail": ""}
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        return {"result": "no tests", "detail": ""}
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    if code != pytest.ExitCode.TESTS_FAILED or failed is None:  # no kernel can do that
        return {"result": "error", "detail": text[-2000:]}
    return {"result": "failed", "detail": failed[1]}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(run(**request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
