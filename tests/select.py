"""Prints the tests for the files that changed: python -m pytest $(python -m tests.select [COMMIT])

The files are those that differ from COMMIT (default: HEAD), new ones included. A file of a family selects the family's tests,
a header those of the families that include it, also through other headers, and any other file the tests of the first of the
PLACES that it lies in. With --list FILE... the files are named instead. Nothing is printed if no test is known to concern them.
"""

from __future__ import annotations

import argparse
import functools
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Where a file lies, and the tests that its changes concern.
PLACES = {
    "tests/machines/": ("tests/suite/test_machines.py",),
    "tests/clients/": ("tests/suite/test_clients.py",),
    "tests/": (),  # test files select themselves, helpers the folder of tests that they lie in
    "csrc/host/device/": ("tests/device", "tests/others"),
    "csrc/host/metal/texture": ("tests/textures",),
    "csrc/host/metal/": ("tests/metal",),
    "csrc/host/exec/sanitize/": ("tests/sanitize",),
    "csrc/host/objc/": ("tests/objc",),
    "csrc/validation/": ("tests/objc",),
    "python/metalops/include/apple/": ("tests/objc", "tests/building/test_objective_c.py"),
    "csrc/host/": ("tests/exec", "tests/metal"),
    "csrc/macos/": ("tests/macos",),
    "csrc/distributed/": ("tests/distributed",),
    "csrc/python/": ("tests/metal", "tests/building/test_problems.py"),
    "csrc/ops/": ("tests/ops",),
    "csrc/plans/": ("tests/ops/common", "tests/ops"),
    "python/metalops/_new/": ("tests/building/test_new.py",),
    "python/metalops/_compare/": ("tests/compare",),
    "python/metalops/_observe/": ("tests/observe",),
    "python/metalops/_doctor/": ("tests/doctor",),
    "python/metalops/fixes/": ("tests/doctor", "tests/ops/common/test_fixes.py"),
    "python/metalops/_cli/": ("tests/building", "tests/ops/test_coverage.py"),
    "python/metalops/_torch/checkpoint.py": ("tests/device/test_checkpoint.py",),
    "python/metalops/_torch/distributed": ("tests/distributed",),
    "python/metalops/_torch/flex_attention.py": ("tests/ops/attention/test_flex_attention.py",),
    "python/metalops/_torch/nested_attention.py": ("tests/ops/attention/test_nested_attention.py",),
    "python/metalops/_torch/sharding": ("tests/distributed",),
    "python/metalops/_torch/sync_batch_norm.py": ("tests/distributed",),
    "python/metalops/_torch/versions.py": ("tests/building",),
    "python/metalops/_torch/": ("tests/metal", "tests/nn", "tests/suite/test_torch_internals.py"),
    "python/metalops/_textures/": (
        "tests/textures",
        "tests/cuda/test_textures.py",
        "tests/macos/test_textures.py",
    ),
    "python/metalops/_shaders/": ("tests/metal", "tests/exec"),
    "python/metalops/build/": ("tests/building",),
    "python/metalops/cuda/": ("tests/cuda",),
    "python/metalops/ops/_cuda/": ("tests/cuda",),
    "python/metalops/include/": ("tests/ops", "tests/macos"),
    "python/metalops/integrations/": ("tests/integrations",),
    "python/metalops/kernel/": ("tests/kernel",),
    "python/metalops/msl/check/": ("tests/check",),
    "python/metalops/msl/targets/cuda/": ("tests/cuda",),
    "python/metalops/msl/include/msl/sampler.h": ("tests/textures",),
    "python/metalops/msl/include/msl/tex": ("tests/textures",),
    "python/metalops/msl/": ("tests/msl", "tests/exec", "tests/tensorops", "tests/fuzz"),
    "python/metalops/nn/": ("tests/nn",),
    "python/metalops/ops/": ("tests/ops",),
    "python/metalops/selftest/": ("tests/building/test_selftest.py",),
    "python/metalops/testing/": ("tests/ops/test_comparison.py", "tests/ops/test_operators.py"),
    "python/metalops/trace/": ("tests/trace",),
    "python/metalops_pytest.py": ("tests/building/test_pytest_plugin.py",),
    "python/metalops/": ("tests/building/test_imports.py", "tests/metal"),
    "docs/": ("tests/docs",),
    "README.md": ("tests/docs", "tests/ops/test_coverage.py"),
    "CONTRIBUTING.md": ("tests/building/test_contributing.py",),
    ".build/": ("tests/building/test_build_backend.py", "tests/building/test_metadata.py"),
    ".ci/": ("tests/building/test_workflows.py",),
    ".github/": ("tests/building/test_workflows.py",),
    "pyproject.toml": ("tests/building/test_build_backend.py", "tests/building/test_metadata.py"),
    "setup.py": ("tests/building",),
}
# Beside the tests of a family: of every one, and of those whose kernels lie in a folder.
OF_ALL_FAMILIES = "tests/ops/test_families.py"
OF_KERNELS = {
    "kernels/attention/": ("tests/cuda/test_attention.py",),
    "kernels/quantized/": ("tests/cuda/test_one_row.py",),
}
_INCLUDE = re.compile(r"^\s*#\s*include\s+<((?:kernels|csrc)/[^>]+)>", re.MULTILINE)


@functools.cache
def _including() -> dict[str, set[str]]:
    """Returns the files that include a header, by the header's path."""
    result: dict[str, set[str]] = {}
    for folder in ("kernels", "csrc"):
        for path in (ROOT / folder).rglob("*.*"):
            name = path.relative_to(ROOT).as_posix()
            for header in _INCLUDE.findall(path.read_text(encoding="utf-8")):
                result.setdefault(header, set()).add(name)
    return result


def _dependents(file: str) -> set[str]:
    """Returns a file and all that include it, also through other headers."""
    found, waiting = {file}, [file]
    while waiting:
        for other in _including().get(waiting.pop(), set()) - found:
            found.add(other)
            waiting.append(other)
    return found


@functools.cache
def _families() -> frozenset[str]:
    places = ("csrc/ops", "*.mm"), ("kernels", "*.metal")
    return frozenset(path.stem for folder, name in places for path in (ROOT / folder).rglob(name))


@functools.cache
def _tests_of(name: str) -> list[str]:
    """Returns the test files of a family, header or module: test_X.py, and test_X_*.py but for those of other families."""
    families = _families()
    return [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests/ops").rglob(f"test_{name}*.py")
        if (tested := path.stem.removeprefix("test_")) == name
        or (tested.startswith(f"{name}_") and name in families and tested not in families)
    ]


def select(files: Iterable[str]) -> list[str]:
    chosen: set[str] = set()
    for file in files:
        if re.fullmatch(r"tests/(?:.*/)?test_\w+\.py", file):
            chosen |= {file} if (ROOT / file).exists() else set()
            continue
        is_of_family = re.match(r"kernels/|csrc/ops/|python/metalops/ops/[a-z]\w*\.py$", file)
        names = {Path(name).stem for name in _dependents(file)} if is_of_family else set()
        of_families = [test for name in names for test in _tests_of(name)]
        if of_families:
            chosen |= {*of_families, OF_ALL_FAMILIES}
            chosen.update(
                *(tests for folder, tests in OF_KERNELS.items() if file.startswith(folder))
            )
        elif place := next((place for place in PLACES if file.startswith(place)), None):
            chosen.update(PLACES[place] or [_folder_of(file)])
    # A folder has its files.
    return sorted(t for t in chosen if not any(t.startswith(f"{other}/") for other in chosen))


def _folder_of(helper: str) -> str:
    """Returns the folder of tests that a file of tests/ which is no test file serves."""
    folder = Path(helper).parent
    while not list((ROOT / folder).glob("test_*.py")) and folder != Path("tests"):
        folder = folder.parent
    return folder.as_posix()


def changed(commit: str) -> list[str]:
    def lines(*command: str) -> list[str]:
        return subprocess.check_output(["git", *command], cwd=ROOT, text=True).splitlines()

    return lines("diff", "--name-only", commit) + lines("ls-files", "--others", "--exclude-standard")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.select",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("--list", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    print(*select(arguments.list or changed(arguments.commit)))


if __name__ == "__main__":
    main()
