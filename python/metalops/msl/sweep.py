"""`python -m metalops sweep`: tries many Metal files, and tells the first stage that fails for each.

Each file is tried in a process of its own with a time limit, so that no file can end the sweep.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context

from . import build, cache
from .cli import add_arguments, open_table, options_of, preprocess_file
from .targets.host.emit import emit

STAGES = ("preprocess", "parse", "emit", "compile", "run")
SUFFIXES = (".metal", ".msl")
_MISSING = re.compile(r"'([^']+)' file not found|^([^\s:]+): No such file or directory")
_REASON_LENGTH = 160


@dataclass
class Outcome:
    """The outcome for one file: the first stage that failed, or None, and why.

    kernels: the number in its library. skipped: the number that this device does not run.
    """

    path: str
    kernels: int = 0
    stage: str | None = None
    reason: str = ""
    seconds: float = 0.0
    skipped: int = 0

    def fail(self, stage: str, reason: str) -> None:
        self.stage, self.reason = stage, " ".join(reason.split())[:_REASON_LENGTH]


def main_sweep(argv: list[str]) -> int:
    """Tries every Metal file under a folder, and prints a table of the first stage that fails for
    each: preprocess, parse, emit, compile, run (the library opens and has all its kernels). Headers
    that are not found are looked for in the folder.
    """
    parser = argparse.ArgumentParser(prog="metalops sweep", description=main_sweep.__doc__)
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument(
        "--suffix",
        action="append",
        default=[],
        help=f"files that end so (default: {' and '.join(SUFFIXES)})",
    )
    parser.add_argument("--stop-at", choices=STAGES, default="run", help="the last stage to try")
    parser.add_argument(
        "--time-limit", type=float, default=300, metavar="SECONDS", help="for one file"
    )
    parser.add_argument("-j", dest="jobs", type=int, default=1, help="files at the same time")
    add_arguments(parser, optimize=0)
    arguments = parser.parse_args(argv)
    if not os.path.isdir(arguments.directory):
        print(f"metalops sweep: no folder at {arguments.directory}", file=sys.stderr)
        return 1
    headers = Headers(arguments.directory)
    paths = [
        path
        for path in metal_files(arguments.directory, tuple(arguments.suffix) or SUFFIXES)
        if arguments.only in path
    ]
    if not paths:
        named = f" whose path contains {arguments.only!r}" if arguments.only else ""
        suffixes = " or ".join(tuple(arguments.suffix) or SUFFIXES)
        print(
            f"metalops sweep: there is no file ending in {suffixes}{named} below {arguments.directory}",
            file=sys.stderr,
        )
        return 1
    outcomes = []
    tried = sweep(
        paths,
        options_of(parser, arguments),
        headers,
        arguments.stop_at,
        arguments.time_limit,
        arguments.jobs,
    )
    for outcome in tried:
        outcomes.append(outcome)
        shown = os.path.relpath(outcome.path, arguments.directory)
        skipped = f" ({outcome.skipped} not for this device)" if outcome.skipped else ""
        print(
            f"{shown:60} {outcome.kernels:5} kernels{skipped}  {outcome.stage or 'ok':10} "
            f"{outcome.seconds:6.2f} s  {outcome.reason}",
            flush=True,
        )
    stages = Counter(o.stage or "ok" for o in outcomes)
    summary = ", ".join(f"{stages[s]} {s}" for s in ("ok", *STAGES) if stages[s])
    print(
        f"{len(outcomes)} files, {sum(o.kernels for o in outcomes)} kernels: "
        f"{summary or 'nothing found'}"
    )
    return 0 if set(stages) <= {"ok"} else 1


def metal_files(directory: str, suffixes: tuple[str, ...] = SUFFIXES) -> list[str]:
    return [path for path in _files(directory) if path.endswith(suffixes)]


def _files(directory: str) -> Iterator[str]:
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        yield from (os.path.join(folder, f) for f in sorted(files))


class Headers:
    """The files of a project by name, to find headers that its build would have found."""

    def __init__(self, directory: str):
        self._directory = os.path.abspath(directory)
        self._by_name: dict[str, list[str]] | None = None

    def folder_of(self, included: str, path: str) -> str | None:
        """Returns the folder below which `included` lies, the one nearest to the file at `path`."""
        if self._by_name is None:
            self._by_name = {}
            for file in _files(self._directory):
                self._by_name.setdefault(os.path.basename(file), []).append(file)
        ending = os.sep + os.path.normpath(included).lstrip("./")
        found = [
            file[: -len(ending)]
            for file in self._by_name.get(os.path.basename(included), ())
            if file.endswith(ending)
        ]
        path = os.path.abspath(path)
        return max(found, key=lambda f: len(os.path.commonpath([f, path])), default=None)


# ---- many files ----------------------------------------------------------------------------------


def sweep(
    paths: list[str],
    options: build.Options,
    headers: Headers,
    last: str = "run",
    time_limit: float = 300,
    jobs: int = 1,
) -> Iterator[Outcome]:
    """Tries the files, `jobs` at a time, and yields outcomes in the order of completion. time_limit: seconds."""
    waiting = list(reversed(paths))
    running: list[_Trial] = []
    try:
        while waiting or running:
            while waiting and len(running) < max(1, jobs):
                running.append(_Trial(waiting.pop(), options, headers, last))
            connection.wait([trial.receiver for trial in running], timeout=0.2)
            for trial in list(running):
                outcome = trial.outcome(time_limit)
                if outcome is not None:
                    running.remove(trial)
                    trial.end()
                    yield outcome
    finally:
        for trial in running:
            trial.end()


class _Trial:
    """One file in a process of its own, which sends the name of each stage as it begins, and the outcome."""

    def __init__(self, path: str, options: build.Options, headers: Headers, last: str):
        processes = get_context("fork")
        self.receiver, sender = processes.Pipe(duplex=False)
        self._process = processes.Process(target=_try, args=(sender, path, options, headers, last))
        self._process.start()
        sender.close()
        self._start = time.monotonic()
        self._so_far = Outcome(path)
        self._stage = STAGES[0]

    def outcome(self, time_limit: float) -> Outcome | None:
        """Returns the outcome for the file; None while it is still being tried."""
        self._so_far.seconds = time.monotonic() - self._start
        try:
            while self.receiver.poll():
                message = self.receiver.recv()
                if isinstance(message, Outcome):
                    return message
                self._stage = message
        except EOFError:
            self._process.join()
            self._so_far.fail(self._stage, f"ended by {_how(self._process.exitcode)}")
            return self._so_far
        if self._so_far.seconds > time_limit:
            self._so_far.fail(self._stage, f"not done after {time_limit:g} s")
            return self._so_far
        return None

    def end(self) -> None:
        if self._process.is_alive():
            self._process.join(timeout=1)
        if self._process.is_alive():
            try:
                os.killpg(self._process.pid, signal.SIGKILL)  # the compiler it started, too
            except ProcessLookupError:
                self._process.kill()
        self._process.join()
        self.receiver.close()


def _how(status: int | None) -> str:
    return signal.Signals(-status).name if status and status < 0 else f"exit status {status}"


def _try(sender, path: str, options: build.Options, headers: Headers, last: str) -> None:
    os.setsid()
    sender.send(sweep_file(path, options, headers, last, sender.send))
    sender.close()


# ---- one file ------------------------------------------------------------------------------------


def sweep_file(
    path: str,
    options: build.Options,
    headers: Headers,
    last: str = "run",
    begin: Callable[[str], None] = lambda stage: None,
) -> Outcome:
    """Runs the stages on one file up to `last`, in this process. begin: called with the name of each stage."""
    start = time.monotonic()
    outcome = Outcome(path)
    stage = STAGES[0]
    try:
        preprocessed = _preprocess(path, options, headers)
        if last != "preprocess":
            stage = "emit"
            begin(stage)
            emitted = emit(preprocessed)
            program = emitted.program
            outcome.skipped = len(program.skipped())
            outcome.kernels = len(program.instances) - outcome.skipped
            if last in ("compile", "run"):
                stage = "compile"
                begin(stage)
                _compile_and_open(emitted, options, last, outcome, begin)
    except SyntaxError as error:
        first = error.diagnostics[0]
        if stage == "compile" and _in_broken_syntax(emitted, first):
            stage = "parse"
        outcome.fail(stage, f"{os.path.basename(first.file)}:{first.line}: {first.message}")
    except RecursionError:
        outcome.fail("parse", "nested too deeply")
    except Exception as error:  # noqa: BLE001
        # A fault of the front end is one file's failure, not the sweep's.
        outcome.fail(stage, f"{type(error).__name__}: {error}")
    outcome.seconds = time.monotonic() - start
    return outcome


def _preprocess(path: str, options: build.Options, headers: Headers):
    """Preprocesses a file, adding the folders of missing headers one by one."""
    while True:
        try:
            return preprocess_file(path, options)
        except SyntaxError as error:
            first = error.diagnostics[0]
            missing = _MISSING.match(first.message)
            folder = missing and headers.folder_of(missing[1] or missing[2], first.file)
            if not folder or folder in options.include_dirs:
                raise
            options = replace(options, include_dirs=(*options.include_dirs, folder))


def _in_broken_syntax(emitted, diagnostic) -> bool:
    """Returns true if the parser failed on the line of an error."""
    for node in emitted.program.source.find("(ERROR) @e"):
        position = emitted.lines.position(node.start_byte)
        last = emitted.lines.position(max(node.start_byte, node.end_byte - 1))
        if position.file == diagnostic.file and position.line <= diagnostic.line <= last.line:
            return True
    return False


def _compile_and_open(
    emitted, options: build.Options, last: str, outcome: Outcome, begin: Callable[[str], None]
) -> None:
    with tempfile.TemporaryDirectory(dir=cache.directory()) as folder:
        library = os.path.join(folder, "kernels.so")
        build.compile_emitted(emitted, library, options)
        if last == "run":
            begin("run")
            try:
                opened = open_table(library)
            except OSError as error:
                outcome.fail("run", str(error))
                return
            if opened != outcome.kernels:
                outcome.fail("run", f"the table has {opened} kernels")
