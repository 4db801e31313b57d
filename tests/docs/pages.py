"""The pages of the project and their code, in the order in which a reader comes to it.

The blocks of a page share a folder and, if they are Python, their names:

- ``python`` runs;
- ``sh`` runs, line by line, and must succeed;
- ``console`` has commands behind ``$`` and what they print: its lines, in this order; ``...`` stands for any others;
- a block of any language behind a paragraph that begins with "`NAME`:" or "`NAME`, ...:", NAME with a suffix, is this file;
- ``text`` is no code, and neither is ``yaml``, which `tests/building/test_new.py` compares with a file that is written.

Where a command would install something or run the whole suite, what it names is looked up instead: see ``CHECKED``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
)
_BLOCK = re.compile(
    r"(?:^`(?P<file>[\w/]+\.\w+)`[:,](?:[^\n]+\n)+\n)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Block:
    language: str
    text: str
    file: str | None


def blocks(page: str) -> list[Block]:
    """Those of a page that are no directives of Sphinx."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [Block(m["language"], m["text"], m["file"]) for m in _BLOCK.finditer(text)]
    return [block for block in found if not block.language.startswith("{")]


def run(page: str, folder: Path, replaced: dict[str, str] | None = None) -> None:
    """Runs a page's code in an empty folder. replaced: texts of its Python code and what stands for them here."""
    _write_commands(folder / COMMANDS)
    names: dict[str, object] = {"__name__": page}
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            code = block.text
            for text, other in (replaced or {}).items():
                assert text in code, f"{page} no longer says {text}"
                code = code.replace(text, other)
            exec(compile(code, page, "exec"), names)
        elif block.language == "sh":
            for line in block.text.splitlines():
                for command in line.split(" && "):
                    _run_or_check(command, folder)
        elif block.language == "console":
            _compare(block.text, folder)
        else:
            assert block.language in ("text", "yaml"), f"{page} has a block of {block.language!r}"


# Where the programs of this environment are found first, which need not be the ones on PATH.
COMMANDS = "commands"
PROGRAMS = {"python": "", "torchrun": "-m torch.distributed.run"}


def _write_commands(folder: Path) -> None:
    folder.mkdir()
    for name, arguments in PROGRAMS.items():
        text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n'
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)


def _process(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(folder / COMMANDS), os.environ["PATH"]]),
            "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _without_columns(line: str) -> str:
    """Compilers differ in which token of an access they name."""
    return re.sub(r"^(.*program_source:\d+):\d+", r"\1", line)


def _compare(text: str, folder: Path) -> None:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *expected = part.splitlines()
        output = _process(command, folder).stdout
        printed = map(_without_columns, output.splitlines())
        for line in expected:
            assert line == "..." or _without_columns(line) in printed, (
                f"{command} printed\n{output}\nwithout\n{line}"
            )


def _run_or_check(command: str, folder: Path) -> None:
    for pattern, check in CHECKED.items():
        found = re.match(pattern, command)
        here = [(folder / path).exists() for path in _paths(command)]
        if found and not (here and all(here)):
            check(found)
            return
    result = _process(command, folder)
    assert result.returncode == 0, f"{command}:\n{result.stdout}"


def _paths(command: str) -> list[str]:
    """The words that look like files or folders of the tree."""
    return [
        x for x in shlex.split(command) if re.fullmatch(r"(tests|docs)(/[\w/.]*)?|[\w/]+\.py", x)
    ]


def _paths_are_there(found: re.Match) -> None:
    missing = [path for path in _paths(found.string) if not (ROOT / path).exists()]
    assert not missing, f"{found.string}: there is no {', '.join(missing)}"


def _extras_are_there(found: re.Match) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    missing = set(found["extras"].split(",")) - set(re.findall(r"^(\w+) = \[", project, re.M))
    assert not missing, f"{found.string}: there is no {', '.join(missing)}"


def _is_in(path: str):
    def check(found: re.Match) -> None:
        assert found[0] in (ROOT / path).read_text(encoding="utf-8"), f"{path} lacks {found[0]}"

    return check


# What takes too long here: the beginning of a command, and what is looked up instead.
CHECKED = {
    r'pip install (?:-e )?"\.\[(?P<extras>[\w,]+)\]"': _extras_are_there,
    r"(?:\w+=\w+ )*python -m pytest ": _paths_are_there,
    r"python setup.py build_ext --inplace$": _paths_are_there,
    r"python -m tests\.machines ": _paths_are_there,
    r"python -m sphinx -W docs build/site$": _is_in("tests/docs/test_site.py"),
    r"python -m metalops demo$": _is_in(".ci/run"),
    r"python -m metalops selftest$": _is_in("tests/building/test_selftest.py"),
}
