"""`python -m metalops selftest`: compares what the package computes on the mps device with torch on the CPU, in less than two
minutes, and writes one text file: versions, the GPU's family, what was compared, and of each failure the inputs.

The file is for an issue. Nothing is sent anywhere.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

import torch

from .._cli.info import describe, library_lines
from . import fixes, gpu_family, interfaces, models, operators
from .check import Check

FILE = "metalops_selftest.txt"
SECONDS = 110.0


def parts() -> dict[str, Callable[[], Iterator[Check]]]:
    """Returns the comparisons, by the name of the part."""
    return {
        "operators of metalops.ops": operators.pointwise,
        "gradients of metalops.ops": operators.gradients,
        "ATen operators": operators.aten,
        "operators of the fixes": fixes.checks,
        "attention": models.attention,
        "products": models.products,
        "quantised weights": models.quantised,
        "kernels from Python": interfaces.checks,
    }


class Report:
    """The file, written line by line as checks run: if a kernel ends the process, the last line says which."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def line(self, text: str = "", *, show: bool = False) -> None:
        # User names stay private.
        text = text.replace(os.path.expanduser("~"), "~")
        self._file.write(text + "\n")
        self._file.flush()
        if show:
            print(text, flush=True)


def _head(report: Report) -> None:
    report.line(time.strftime("metalops selftest, %Y-%m-%d"))
    system = f"macOS {platform.mac_ver()[0]}" if sys.platform == "darwin" else platform.platform()
    report.line(f"{'system':18}{system}, {platform.machine()}, Python {platform.python_version()}")
    for name in gpu_family.names():
        report.line(f"{'GPU family':18}{name}")
    for title, lines in describe(libraries=False):
        for line in lines:
            report.line(f"{title:18}{line}")
            title = ""
    report.line()


def run(
    report: Report, chosen: Iterable[str] | None = None, seconds: float = SECONDS
) -> tuple[int, int, int]:
    """Runs the parts; returns the number of checks, of failures, and of checks skipped for lack of time."""
    start = time.monotonic()
    done = failed = left = 0
    for part, checks in parts().items():
        if chosen is not None and part not in chosen:
            continue
        failed_before, done_before, began = failed, done, time.monotonic()
        for check in checks():
            if time.monotonic() - start > seconds:
                left += 1
                continue
            report.line(f"{part}: {check.name}")
            try:
                check.run()
                torch.mps.synchronize()
            except Exception:
                failed += 1
                report.line("".join(["FAILED ", check.name, "\n", traceback.format_exc()]))
            done += 1
        took = time.monotonic() - began
        wrong = failed - failed_before
        verdict = (
            f"{wrong} of {done - done_before} FAILED" if wrong else f"{done - done_before} right"
        )
        report.line(f"{part}: {verdict}, {took:.1f} s", show=True)
    return done, failed, left


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m metalops selftest", description=__doc__.split(": ", 1)[1]
    )
    parser.add_argument("--output", metavar="FILE", default=FILE, help=f"default: {FILE}")
    parser.add_argument(
        "--part", action="append", choices=list(parts()), help="only this one; may be given again"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="after which no check is begun"
    )
    options = parser.parse_args(arguments)
    with open(options.output, "w", encoding="utf-8") as file:
        report = Report(file)
        _head(report)
        done, failed, left = run(report, options.part, options.seconds)
        summary = f"{failed} of {done} checks failed" if failed else f"all {done} checks are right"
        if left:
            summary += f"; there was no time for {left}"
        report.line(summary, show=True)
        report.line("\nThe kernel libraries that were used:")
        for line in library_lines(opened=True):
            report.line(line)
    print(f"wrote {options.output}")
    if failed:
        print("Please attach it to an issue; what failed is behind the lines with FAILED.")
    return 1 if failed or not done else 0
