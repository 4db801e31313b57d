"""A build as a graph of commands that ninja runs: only outdated files are made again, with one line for each."""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from setuptools.errors import CompileError

_RULES = """\
ninja_required_version = 1.5

rule step
  command = $words
  description = $what

rule step_with_depfile
  command = $words
  description = $what
  depfile = $out.d
  deps = gcc

"""


def write_if_changed(path: str, text: str) -> None:
    """Writes the file unless it has this text already, so that its time stays and nothing is compiled again for it."""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            if f.read() == text:
                return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


class Graph:
    """Commands, each of which makes one file. Paths are absolute, or relative to the folder in which ninja is started."""

    def __init__(self) -> None:
        self._steps: dict[str, str] = {}

    def __contains__(self, output: str) -> bool:
        return output in self._steps

    def add(
        self,
        output: str,
        inputs: Iterable[str],
        command: Sequence[str],
        what: str,
        *,
        needs: Iterable[str] = (),
        after: Iterable[str] = (),
        depfile: bool = False,
    ) -> None:
        """Adds the step that makes `output` from `inputs`, which the command names itself.

        what: the line that is printed. needs: other files that make the output out of date. after: files that must
        exist first. depfile: true if the command writes `<output>.d`, the list of the files it has read, in make's
        syntax.
        """
        line = f"build {_path(output)}: step{'_with_depfile' if depfile else ''}"
        for sign, paths in (("", inputs), (" |", needs), (" ||", after)):
            names = [_path(path) for path in paths]
            line += f"{sign} {' '.join(names)}" if names else ""
        words = shlex.join(command).replace("$", "$$")
        self._steps[output] = f"{line}\n  words = {words}\n  what = {what.replace('$', '$$')}\n"

    def run(self, folder: str, environment: Mapping[str, str], error: str) -> float:
        """Makes outdated files and returns the CPU seconds of all commands. Raises CompileError(error) if one fails,
        whose messages are printed; ninja's own files are kept in `folder`."""
        if not self._steps:
            return 0.0
        file = os.path.join(folder, "build.ninja")
        write_if_changed(
            file, f"{_RULES}builddir = {_path(folder)}\n\n" + "\n".join(self._steps.values())
        )
        command = ["ninja", "-f", file]
        if environment.get("MAX_JOBS"):
            command += ["-j", environment["MAX_JOBS"]]
        environment = {**environment}
        if environment.pop("PYTHONDONTWRITEBYTECODE", ""):
            # Each kernel file has a process, which would compile all of the front end's modules again.
            environment["PYTHONPYCACHEPREFIX"] = os.path.join(folder, "pycache")
        before = _seconds_of_children()
        try:
            result = subprocess.run(command, env=environment, check=False)
        except FileNotFoundError:
            raise CompileError(
                "metalops: building needs ninja, which is not on the PATH (pip install ninja)."
            ) from None
        if result.returncode != 0:
            raise CompileError(error)
        return _seconds_of_children() - before


def _path(path: str) -> str:
    return re.sub(r"([$ :])", r"$\1", path)


def _seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
