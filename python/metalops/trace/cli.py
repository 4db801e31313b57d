"""`python -m metalops replay`: runs the launches of a trace, or a call that differed from the CPU, again."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

from .._compare import file
from ..debug import SanitizerError
from .format import Trace, TraceError, load
from .replay import DEVICES, Device, Row, copy_rate, replay

# The sanitizers of the software device in place of compute-sanitizer's tools.
_HOST_SANITIZERS = {"memcheck": "address", "racecheck": "thread"}


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0; 1 if a result is not the recorded one or a sanitizer found something; 2 if nothing
    ran."""
    parser = argparse.ArgumentParser(
        prog="python -m metalops replay",
        description="Runs the launches of a trace (metalops.debug.capture) again, or the call that differs from the "
        "CPU (metalops.debug.compare).",
    )
    parser.add_argument("trace", help="the file")
    parser.add_argument("--device", choices=sorted(DEVICES), default="host")
    parser.add_argument(
        "--check", action="store_true", help="compare with the results that were recorded"
    )
    parser.add_argument(
        "--time", action="store_true", help="time each launch, beside a copy of memory"
    )
    parser.add_argument(
        "--sanitize", choices=sorted(_HOST_SANITIZERS), help="run under this sanitizer"
    )
    options = parser.parse_args(arguments)
    try:
        if file.is_comparison(options.trace):
            return _compared(options)
    except OSError as error:
        print(f"metalops replay: {error}", file=sys.stderr)
        return 2
    if options.sanitize is not None:
        return _sanitized(options)
    try:
        trace = load(options.trace)
        device = DEVICES[options.device]()
    except (TraceError, OSError, RuntimeError) as error:
        print(f"metalops replay: {error}", file=sys.stderr)
        return 2
    if not trace.launches:
        print(f"metalops replay: {options.trace} has no launches", file=sys.stderr)
        return 2
    made_by = ", ".join(f"{k} {v}" for k, v in trace.made_by.items())
    print(f"{len(trace.launches)} launches, recorded with {made_by}")
    try:
        return _replayed(trace, device, options)
    except SanitizerError as error:
        print(f"metalops replay: {error}", file=sys.stderr)
        return 1
    except (TraceError, RuntimeError) as error:
        print(f"metalops replay: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2


def _compared(options: argparse.Namespace) -> int:
    """Runs the call of a comparison again."""
    from .._compare import replay

    if options.device != "host" or options.time or options.sanitize is not None:
        print(
            f"metalops replay: {options.trace} is a comparison with the CPU, which takes no --device, --time or --sanitize",
            file=sys.stderr,
        )
        return 2
    return replay.main(options.trace)


def _replayed(trace: Trace, device: Device, options: argparse.Namespace) -> int:
    rate = None
    if options.time:
        rate = copy_rate(device)
        print(f"a copy of memory: {rate / 1e9:.0f} GB/s read and written")
    failed = 0
    for number, row in enumerate(replay(trace, device, check=options.check, timed=options.time)):
        print(_line(number, row, rate))
        for problem in row.problems or ():
            print(f"      {problem}")
        failed += bool(row.problems)
    if options.check:
        print(f"{failed} launches differ" if failed else "all results are as recorded")
    return 1 if failed else 0


def _line(number: int, row: Row, rate: float | None) -> str:
    launch = row.launch
    line = f"{number:4}  {launch.kernel}  {_sizes(launch.grid)} threads in groups of {_sizes(launch.group)}"
    if row.seconds is not None:
        line += f"  {row.seconds * 1e6:.1f} us  {row.bytes} bytes  {row.rate / 1e9:.1f} GB/s"
        line += f" ({row.rate / rate:.0%} of a copy)"
    if row.problems is not None:
        line += "  differs" if row.problems else "  as recorded"
    return line


def _sizes(sizes: tuple[int, int, int]) -> str:
    used = list(sizes)
    while len(used) > 1 and used[-1] == 1:
        used.pop()
    return " x ".join(map(str, used))


def _sanitized(options: argparse.Namespace) -> int:
    """Replays without --sanitize, in a process that has the sanitizer."""
    again = [sys.executable, "-m", "metalops", "replay", options.trace, "--device", options.device]
    again += ["--check"] if options.check else []
    if options.device == "host":
        environment = {**os.environ, "METALOPS_SANITIZE": _HOST_SANITIZERS[options.sanitize]}
        return subprocess.run(again, env=environment).returncode
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        print("metalops replay: compute-sanitizer is not in the path", file=sys.stderr)
        return 2
    # Separate allocations, so that memory beyond one belongs to none.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [tool, "--tool", options.sanitize, "--error-exitcode", "1", *again]
    return subprocess.run(command, env=environment).returncode
