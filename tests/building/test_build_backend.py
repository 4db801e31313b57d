"""The torch that metalops is built with: what the build backend requires, and what the build then records."""

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from email.parser import HeaderParser
from pathlib import Path

import pytest
import torch
from metalops._torch import versions
from metalops._version import VERSION

ROOT = Path(__file__).parents[2]
BACKEND = ROOT / ".build" / "backend.py"
OLDEST, *_, NEWEST = versions.SUPPORTED
PREVIOUS = versions.SUPPORTED[-2]


@pytest.mark.parametrize(
    ("installed", "forced", "platform", "requirement"),
    [
        (None, "", "linux", f"torch=={versions.DEFAULT}"),
        (None, "", "darwin", f"torch=={NEWEST}.*"),
        (f"{PREVIOUS}.1", "", "linux", f"torch=={PREVIOUS}.1"),
        (f"{PREVIOUS}.1", "", "darwin", f"torch=={PREVIOUS}.1"),
        # An index need not have the build that is installed.
        (f"{OLDEST}.0+cpu", "", "linux", f"torch=={OLDEST}.0"),
        (None, f"{PREVIOUS}.1", "linux", f"torch=={PREVIOUS}.1"),
        (None, f"{PREVIOUS}.1+cpu", "linux", f"torch=={PREVIOUS}.1+cpu"),
        (None, PREVIOUS, "linux", f"torch=={PREVIOUS}.*"),
        (f"{OLDEST}.0", NEWEST, "darwin", f"torch=={NEWEST}.*"),
        ("2.1.0", NEWEST, "linux", f"torch=={NEWEST}.*"),
    ],
)
def test_torch_to_build_with(installed, forced, platform, requirement):
    assert versions.to_build_with(installed, forced, platform) == requirement


@pytest.mark.parametrize(
    ("installed", "forced", "named"),
    [
        ("2.1.0", "", "torch 2.1.0 is installed"),
        ("2.100.0+cpu", "", "torch 2.100.0+cpu is installed"),
        (f"{OLDEST}9.0", "", f"torch {OLDEST}9.0 is installed"),
        (f"{NEWEST}.0", "2.1", "METALOPS_TORCH is 2.1,"),
        (None, "3.0.0", "METALOPS_TORCH is 3.0.0,"),
    ],
)
def test_an_unsupported_torch_is_refused_with_the_supported_versions(installed, forced, named):
    with pytest.raises(versions.Unsupported) as error:
        versions.to_build_with(installed, forced)
    assert named in str(error.value)
    assert all(version in str(error.value) for version in versions.SUPPORTED)


@pytest.mark.parametrize("forced", ["", OLDEST, f"{OLDEST}.1", f"{OLDEST}.1+cpu"])
def test_a_build_without_isolation_takes_the_torch_that_it_finds(forced):
    versions.check(f"{OLDEST}.1+cpu", forced)


@pytest.mark.parametrize("forced", [NEWEST, f"{OLDEST}.0", f"{OLDEST}.11", f"{OLDEST}.1+cu130"])
def test_a_build_without_isolation_refuses_to_build_for_another_torch(forced):
    with pytest.raises(versions.Unsupported, match=f"METALOPS_TORCH is {re.escape(forced)}, but"):
        versions.check(f"{OLDEST}.1+cpu", forced)


@pytest.mark.parametrize(
    ("built", "platform", "requirement", "fit", "others"),
    [
        ("2.14.1+cpu", "linux", "torch==2.14.1", ["2.14.1", "2.14.1+cu130"], ["2.14.0", "2.15.1"]),
        ("2.9.1", "darwin", "torch>=2.9,<2.10", ["2.9.0", "2.9.2"], ["2.90.1", "2.10.0"]),
    ],
)
def test_what_a_distribution_requires_is_what_it_imports_with(
    built, platform, requirement, fit, others
):
    assert versions.needed(built, platform) == requirement
    assert all(versions.fits(version, built, platform) for version in fit)
    assert not any(versions.fits(version, built, platform) for version in others)


def run(*arguments, **environment):
    kept = {key: value for key, value in os.environ.items() if key != "METALOPS_TORCH"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# How pip hides the packages of the environment from an isolated build.
SITECUSTOMIZE = """
import site, sys
sys.path = [path for path in sys.path if path not in site.getsitepackages()]
"""
# Stands for setuptools, which pip installs for the build.
BUILD_META = """
build_editable = build_sdist = build_wheel = None
prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel = None
"""
HOOK = """
import importlib.util, runpy, sys
assert importlib.util.find_spec("torch") is None
print(runpy.run_path(sys.argv[2])["find_installed"]())
print(*runpy.run_path(sys.argv[1])["get_requires_for_build_editable"]())
"""


@pytest.fixture
def run_hook(tmp_path):
    (tmp_path / "setuptools").mkdir()
    (tmp_path / "setuptools" / "__init__.py").touch()
    (tmp_path / "setuptools" / "build_meta.py").write_text(BUILD_META)
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return functools.partial(
        run, "-c", HOOK, BACKEND, versions.__file__, PYTHONPATH=str(tmp_path), PYTHONNOUSERSITE="1"
    )


def test_an_isolated_build_requires_the_torch_of_the_environment_around_it(run_hook):
    result = run_hook()
    installed = importlib.metadata.version("torch")
    expected = f"{installed}\ntorch=={versions.release(installed)}\n"
    assert result.stdout == expected, result.stderr


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("2.1", f"METALOPS_TORCH is 2.1, but metalops supports torch {versions.listed()}."),
        (
            "new",
            "METALOPS_TORCH is 'new', but must be a version of torch such as 2.14 or 2.14.1",
        ),
    ],
)
def test_a_version_that_cannot_be_forced_is_one_sentence(run_hook, value, sentence):
    result = run_hook(METALOPS_TORCH=value)
    assert result.returncode == 1
    assert result.stderr == f"{sentence}\n"


@pytest.mark.full
def test_setup_py_says_in_one_sentence_why_it_cannot_build():
    another = next(v for v in versions.SUPPORTED if v != versions.minor(torch.__version__))
    result = run("setup.py", "--version", METALOPS_TORCH=another)
    assert result.returncode == 1
    assert f"METALOPS_TORCH is {another}, but a build without" in result.stderr
    assert "Traceback" not in result.stderr


METADATA = """
import sys
sys.path.insert(0, ".build")
import backend
backend.prepare_metadata_for_build_wheel(sys.argv[1])
"""


def parts(requirement):
    """The name and the comparisons of a requirement, whose order is free."""
    return set(re.findall(r"[\w.*]+|[<>=]=? *[\w.*]+", requirement))


@pytest.mark.nightly
def test_metadata_of_a_wheel_name_the_torch_that_it_was_built_with(tmp_path):
    result = run("-c", METADATA, tmp_path)
    assert result.returncode == 0, result.stderr
    (path,) = tmp_path.glob("*.dist-info/METADATA")
    metadata = HeaderParser().parsestr(path.read_text(encoding="utf-8"))
    assert metadata["Version"] == f"{VERSION}+torch{versions.minor(torch.__version__)}"
    (requirement,) = (x for x in metadata.get_all("Requires-Dist") if re.match(r"torch\b", x))
    assert parts(requirement) == parts(versions.needed(torch.__version__))


@pytest.mark.full
def test_a_source_distribution_has_the_backend_and_names_no_torch(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in (".build", "python", "csrc", "kernels"):
        built = shutil.ignore_patterns("*.so", "*.kernels", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT / name, tree / name, ignore=built)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    result = subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", tmp_path / "dist", "-k"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert [path.name for path in (tmp_path / "dist").iterdir()] == [f"metalops-{VERSION}.tar.gz"]
    kept = tree / f"metalops-{VERSION}"
    assert (kept / ".build" / "backend.py").exists()
    metadata = HeaderParser().parsestr((kept / "PKG-INFO").read_text(encoding="utf-8"))
    assert metadata["Version"] == VERSION
    # What builds from it may not take its requirements for those of the wheel.
    assert "requires-dist" in metadata.get_all("Dynamic")
