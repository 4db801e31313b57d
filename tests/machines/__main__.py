"""Runs the tests as on other machines: python -m tests.machines [NAME...] [--quick] [-- TESTS AND OPTIONS OF PYTEST]

Each of MACHINES (default: all) is this one with something made different that tests must not depend on: which instructions
MKL, oneDNN and torch use, how many threads, which compiler builds kernels and for which CPU, what is on PATH, which folder
the tree is in, who runs it. By default each runs the full tier of all tests or, where the difference is that of a
compiler or an emulator, of its own selection. --quick: instead, QUICK alone, on few machines that differ in everything at
once. A table tells what passed; the exit status is 1 if anything failed, or if a machine of that name cannot be had here.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

COMPILED = ["tests/exec", "tests/msl", "tests/metal", "tests/kernel"]
# Little that starts no programs of its own: under an emulator they would run on this machine.
EMULATED = [
    "tests/exec/test_math.py",
    "tests/ops/matmul/test_mm_dtype.py",
    "tests/ops/pointwise/test_gated.py",
]
QUICK = [
    "--all",
    *("tests/ops/matmul/test_mm_dtype.py", "tests/ops/matmul/test_scaled_mm.py", "tests/ops/attention/test_attention.py"),
    *("tests/device/test_op_db.py", "tests/docs/test_code.py", "tests/msl/test_flavours.py"),
    *("-k", "same_dtype or wrong_arguments or beyond_the_keys and 31 or tensordot or inner or conv2d"
      " or start.md or traces.md or names_files"),
]  # fmt: skip

Environment = dict[str, str]
# Of the name of an instruction set to g++ and clang: that of the newest CPU that has no more.
CPUS = {"x86-64-v2": "Nehalem", "x86-64-v3": "Haswell"}


class NotHere(Exception):
    """Why there can be no such machine on this one."""


@dataclasses.dataclass(frozen=True)
class Run:
    """How Python is started. folder: where the tree is. user: whose process it is."""

    environment: Environment
    command: tuple[str, ...] = (sys.executable,)
    folder: Path = ROOT
    user: str | None = None


@dataclasses.dataclass(frozen=True)
class Machine:
    """differs: takes a Run and an empty folder and returns the Run with the difference, or raises NotHere."""

    says: str
    differs: Callable[[Run, Path], Run]
    tests: tuple[str, ...] = ("tests",)


def _set(**variables: str) -> Callable[[Run, Path], Run]:
    def differs(run: Run, folder: Path) -> Run:
        return dataclasses.replace(run, environment={**run.environment, **variables})

    return differs


def _instructions(torch: str, onednn: str, mkl: str, lacking: str) -> Callable[[Run, Path], Run]:
    """For programs that look what the CPU has, and that heed variables. lacking: for glibc, whose functions do too."""
    tunables = ",".join(f"-{name},-{name}_Usable" for name in lacking.split())
    return _set(
        ATEN_CPU_CAPABILITY=torch,
        ONEDNN_MAX_CPU_ISA=onednn,
        MKL_ENABLE_INSTRUCTIONS=mkl,
        GLIBC_TUNABLES=f"glibc.cpu.hwcaps={tunables}",
        METALOPS_INSTRUCTIONS="baseline",
    )


def _compiler(name: str) -> Callable[[Run, Path], Run]:
    def differs(run: Run, folder: Path) -> Run:
        if shutil.which(name) is None:
            raise NotHere(f"{name} is not installed")
        return _set(CXX=name)(run, folder)

    return differs


def _compiled_for(architecture: str) -> Callable[[Run, Path], Run]:
    """Kernels that are compiled here are for another CPU: the last -march counts."""

    def differs(run: Run, folder: Path) -> Run:
        if platform.machine() != "x86_64":
            raise NotHere("needs x86-64")
        path = folder / "g++"
        path.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@" -march={architecture}\n')
        path.chmod(0o755)
        return _set(CXX=str(path))(run, folder)

    return differs


def _emulated(architecture: str) -> Callable[[Run, Path], Run]:
    def differs(run: Run, folder: Path) -> Run:
        emulator = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
        if emulator is None:
            raise NotHere("qemu-x86_64 is not installed")
        run = _compiled_for(architecture)(run, folder)
        command = (emulator, "-cpu", CPUS[architecture], *run.command)
        return dataclasses.replace(run, command=command)

    return differs


def _unactivated(run: Run, folder: Path) -> Run:
    """Python by its absolute path, a PATH on which its environment is not, and only what a login sets besides."""
    others = folder / "programs"
    others.mkdir()
    for name in ("python", "python3", "pytest", "torchrun", "ninja"):
        (others / name).write_text(f"#!/bin/sh\necho {name} of another environment >&2; exit 1\n")
        (others / name).chmod(0o755)
    kept = re.compile(
        "HOME|CXX|TMPDIR|PYTHONPATH|(METALOPS_CACHE|TORCH_EXTENSIONS)_DIR|(ATEN|GLIBC|MKL|OMP|ONEDNN)_.*"
    )
    environment = {k: v for k, v in run.environment.items() if kept.fullmatch(k)}
    environment["PATH"] = os.pathsep.join([str(others), "/usr/local/bin", "/usr/bin", "/bin"])
    return dataclasses.replace(run, environment=environment)


def _with_spaces(run: Run, folder: Path) -> Run:
    """The tree, the package and temporary files in folders whose names have spaces and a quote."""
    tree, packages, temporary = (
        folder / n for n in ("the user's tree", "the packages", "a folder")
    )
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "_C.kernels")
    hidden = (".build", ".ci", ".github")
    for name in (*hidden, "benchmarks", "csrc", "docs", "kernels", "python", "tests"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, tree)
    package = Path(importlib.util.find_spec("metalops").origin).parent
    shutil.copytree(package, packages / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(package.parent / "metalops_autoload.py", packages)
    temporary.mkdir()
    paths = [str(packages), *filter(None, [run.environment.get("PYTHONPATH")])]
    run = _set(
        PYTHONPATH=os.pathsep.join(paths),
        TMPDIR=str(temporary),
        METALOPS_CACHE_DIR=str(temporary / "cache"),
        TORCH_EXTENSIONS_DIR=str(temporary / "extensions"),
    )(run, folder)
    return dataclasses.replace(run, folder=tree)


def _another_user(run: Run, folder: Path) -> Run:
    """Who may read the tree, and write nothing but what is in a folder of its own."""
    if os.geteuid() != 0:
        raise NotHere("only root can start a process of another user")
    entry = pwd.getpwnam("nobody")
    home = folder / "home"
    home.mkdir()
    os.chown(home, entry.pw_uid, entry.pw_gid)
    run = _set(
        HOME=str(home),
        TMPDIR=str(home),
        METALOPS_CACHE_DIR=str(home / "cache"),
        TORCH_EXTENSIONS_DIR=str(home / "extensions"),
    )(run, folder)
    run = dataclasses.replace(run, user="nobody")
    for path in (sys.executable, ROOT / "pyproject.toml"):
        if start(run, ["test", "-r", str(path)]).returncode != 0:
            raise NotHere(f"nobody cannot read {path}")
    return run


def _all_of(*parts: Callable[[Run, Path], Run]) -> Callable[[Run, Path], Run]:
    def differs(run: Run, folder: Path) -> Run:
        for index, part in enumerate(parts):
            own = folder / str(index)
            own.mkdir()
            run = part(run, own)
        return run

    return differs


LEAST = _instructions("default", "SSE41", "SSE4_2", lacking="AVX AVX2 FMA AVX512F AVX512DQ")
MACHINES: Mapping[str, Machine] = {
    "least": Machine(
        "libraries use the fewest instructions, in one thread",
        _all_of(LEAST, _set(OMP_NUM_THREADS="1")),
    ),
    "avx2": Machine(
        "libraries use AVX2 and no more, in two threads",
        _all_of(
            _instructions("avx2", "AVX2", "AVX2", lacking="AVX512F AVX512DQ"),
            _set(OMP_NUM_THREADS="2"),
        ),
    ),
    "threads": Machine("four threads, on however many CPUs", _set(OMP_NUM_THREADS="4")),
    "g++": Machine("g++ compiles kernels", _compiler("g++"), tuple(COMPILED)),
    "clang": Machine("clang compiles kernels", _compiler("clang++-19"), tuple(COMPILED)),
    "x86-64-v2": Machine(
        "kernels are compiled for a CPU without AVX", _compiled_for("x86-64-v2"), tuple(COMPILED)
    ),
    "x86-64-v3": Machine(
        "kernels are compiled for a CPU without AVX-512", _compiled_for("x86-64-v3"), tuple(COMPILED)
    ),
    "emulated": Machine(
        "qemu runs Python, on a CPU without AVX", _emulated("x86-64-v2"), tuple(EMULATED)
    ),
    "unactivated": Machine("python by its path, others on PATH", _unactivated),
    "spaces": Machine("the tree and temporary files in folders with spaces", _with_spaces),
    "user": Machine("another user, who cannot write the tree", _another_user),
}  # fmt: skip

# For --quick: that they fail is reason to look which of MACHINES does.
QUICK_MACHINES: Mapping[str, Machine] = {
    "unlike": Machine(
        "least and g++, unactivated, in folders with spaces",
        _all_of(LEAST, _set(OMP_NUM_THREADS="1"), _compiler("g++"), _with_spaces, _unactivated),
    ),
    "four": Machine(
        "clang, four threads", _all_of(_compiler("clang++-19"), _set(OMP_NUM_THREADS="4"))
    ),
}


def start(run: Run, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command as `run` says, and prints and returns what it prints."""
    identity = {}
    if run.user is not None:
        entry = pwd.getpwnam(run.user)
        identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    printed = []
    with subprocess.Popen(
        command,
        cwd=run.folder,
        env={**run.environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **identity,
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            printed.append(line)
    return subprocess.CompletedProcess(command, process.returncode, "".join(printed))


def python(machine: Machine, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs Python there. Raises NotHere."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        run = machine.differs(Run(dict(os.environ)), Path(name))
        return start(run, [*run.command, *arguments])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.machines")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MACHINES))
    parser.add_argument("--quick", action="store_true")
    own, tests = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, tests = own[:at], own[at + 1 :]
    arguments = parser.parse_args(own)
    machines = QUICK_MACHINES if arguments.quick else MACHINES
    unknown = [name for name in arguments.names if name not in machines]
    if unknown:
        parser.error(f"there is no machine {unknown[0]!r}; there are {', '.join(machines)}")
    lines, failed = [], False
    for name in arguments.names or machines:
        machine = machines[name]
        selected = tests or (QUICK if arguments.quick else machine.tests)
        began = time.monotonic()
        print(f"---- {name}: {machine.says}", flush=True)
        try:
            result = python(machine, ["-m", "pytest", "-q", "-p", "no:cacheprovider", *selected])
        except NotHere as reason:
            lines.append((name, machine.says, f"not here: {reason}"))
            failed = failed or name in arguments.names
            continue
        found = re.findall(
            r"^=* ?(\d+ (?:passed|failed|skipped|error).*?) in ", result.stdout, re.M
        )
        summary = found[-1] if found else f"exit status {result.returncode}"
        if result.returncode != 0:
            failed = True
        lines.append((name, machine.says, f"{summary}, {time.monotonic() - began:.0f} s"))
    for name, says, summary in lines:
        print(f"{name:12} {says:52} {summary}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
