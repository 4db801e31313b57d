"""An operator lives in four files, of which three lie in a folder of its subject S: kernels/S/X.metal, csrc/ops/S/X.mm,
python/metalops/ops/X.py and tests/ops/S/test_X.py."""

import inspect
import re
from pathlib import Path

import metalops
import pytest
import torch
from metalops.ops._define.pointwise import declared

from .families import gather, subject_of

ROOT = Path(__file__).parents[2]
ALL = gather("BENCHMARKS")
SOURCES = {".py", ".md", ".toml", ".h", ".cpp", ".mm", ".metal", ".txt", ""}
FOLDERS = ("benchmarks", "csrc", "docs", "kernels", "python", "tests", ".ci")
GENERATED = {"_stock_overloads.py", "operators.md"}
# Kernels, as (family, name), that are named otherwise than after their family, and why.
NAMED_OTHERWISE: dict[tuple[str, str], str] = {}


def _files():
    """Every source file of the tree, with its text."""
    for path in [*ROOT.glob("*"), *(x for folder in FOLDERS for x in (ROOT / folder).rglob("*"))]:
        if path.suffix in SOURCES and path.is_file() and path.name not in GENERATED:
            if "__pycache__" not in path.parts:
                yield path, path.read_text(encoding="utf-8", errors="replace")


def _families(folder, pattern):
    """By the path from a folder: "linalg/eigh"."""
    paths = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob(pattern)]
    return {str(path.with_name(path.stem.removeprefix("test_"))) for path in paths}


def _family(name):
    return Path(inspect.getfile(declared[name].function)).stem


@pytest.mark.full
def test_nothing_lists_the_operators_a_second_time():
    """Where a new operator would have to be named too, most others are; examples name a few."""
    for path, text in _files():
        words = {word.removesuffix("_") for word in re.findall(r"\w+", text)}
        foreign = [
            name for name in declared if path.stem not in (_family(name), f"test_{_family(name)}")
        ]
        named = [name for name in foreign if name in words]
        assert len(named) <= 0.75 * len(foreign), f"{path} names {', '.join(named)}"


@pytest.mark.parametrize("name", declared)
def test_an_operator_has_its_four_files_and_is_tested_and_timed(name):
    family = _family(name)
    subject = subject_of(family)
    assert (ROOT / f"kernels/{subject}/{family}.metal").exists()
    for path in (
        f"csrc/ops/{subject}/{family}.mm",
        f"python/metalops/ops/{family}.py",
        f"tests/ops/{subject}/test_{family}.py",
    ):
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8")), path
    assert name in [operator.name for operator in gather("POINTWISE")]
    assert name in [benchmark.name for benchmark in ALL]
    assert name in metalops.ops.__all__


def test_every_family_has_a_test_file():
    """In the folder of the same subject. Kernels have a host file, or a launch plan that other host files run."""
    families, of_kernels = _families("csrc/ops", "*.mm"), _families("kernels", "*.metal")
    assert (families | of_kernels) - _families("tests/ops", "test_*.py") == set()
    assert of_kernels - families - _families("csrc/plans", "*.cpp") == set()


def test_a_header_of_kernels_has_a_name_of_its_own():
    """By which <metalops> finds it, whatever its subject."""
    names = [path.name for path in (ROOT / "kernels").rglob("*.h")]
    assert len(names) == len(set(names))


def test_files_of_kernels_and_operators_include_each_other_by_their_paths_from_the_root():
    """Headers of kernels/ and csrc/ops may have the same name; a path says which is meant, wherever it stands."""
    for folder in ("kernels", "csrc"):
        for path in (ROOT / folder).rglob("*.*"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r'^\s*#\s*include\s+"', text, re.MULTILINE), path


def test_kernel_templates_are_instantiated_by_register_kernel():
    """In one way: whoever looks for the host's name of a kernel finds it there, and no parameter is said twice."""
    for path in (ROOT / "kernels").rglob("*.metal"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\bhost_name\b", text), path


def test_the_name_of_a_kernel_begins_with_that_of_its_family():
    """So traces, profiles and error messages tell in which file it is."""
    declaration = re.compile(r"\bkernel\s+void\s+(\w+)\s*\(")
    kernels = {
        (path.stem, name)
        for path in (ROOT / "kernels").rglob("*.metal")
        for name in declaration.findall(path.read_text(encoding="utf-8"))
    }
    others = {
        (family, name)
        for family, name in kernels
        if name != family and not name.startswith(f"{family}_")
    }
    assert others == set(NAMED_OTHERWISE)


@pytest.mark.parametrize("measured", ALL, ids=lambda measured: measured.name)
def test_a_benchmark_calls_both_sides_with_the_same_result(measured):
    shape = (4, 64)
    inputs = [
        torch.empty(shape).uniform_(measured.low, measured.high) for _ in range(measured.inputs)
    ]
    out_shape = (4, 32) if measured.halves else shape
    theirs = measured.theirs(*inputs, torch.zeros(out_shape))
    ours = measured.ours(*(x.to("mps") for x in inputs), torch.zeros(out_shape, device="mps"))
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert (ours.shape, ours.dtype, ours.device.type) == (theirs.shape, theirs.dtype, "mps")
