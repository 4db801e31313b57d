"""python -m metalops new: the package that it writes installs, as a user installs it, into a clean folder, and passes its tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from metalops import __main__, _new

ROOT = Path(__file__).parents[2]
NAME, MODULE = "bright-kernels", "bright_kernels"


def run(command, folder, target=None):
    paths = [str(target), *sys.path] if target else sys.path
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def write_and_install(sources, target):
    _new.write(NAME, sources)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"]
    run([*pip, "--no-index", "--target", target, sources], sources)


@pytest.fixture(scope="module")
def installed(shared_folder, once):
    """(folder of the package's sources, folder where it is installed)"""
    sources, target = shared_folder / NAME, shared_folder / "target"
    once("new_package", lambda: write_and_install(sources, target))
    return sources, target


@pytest.mark.nightly
def test_the_package_passes_its_own_tests_where_its_sources_are(installed):
    sources, target = installed
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    printed = run([*pytest_, "-p", "metalops_pytest", "-W", "error"], sources, target)
    passed = int(re.search(r"(\d+) passed", printed)[1])
    assert passed > 15 and "skipped" not in printed and "failed" not in printed


@pytest.mark.nightly
@pytest.mark.skipif(
    sys.platform == "darwin", reason="a metallib is made only where Xcode is installed"
)
def test_the_kernels_are_installed_beside_the_extension(installed):
    _, target = installed
    assert (target / MODULE / "_kernels.so").is_file()
    assert (target / MODULE / "_kernels.kernels" / "example.so").is_file()
    assert (target / f"{MODULE}-0.1.0.dist-info").is_dir()


def test_the_files_bear_the_name_and_nothing_of_the_template(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert __main__.main(["new", NAME]) == 0
    printed = capsys.readouterr().out
    written = {
        str(path.relative_to(tmp_path / NAME)): path.read_text()
        for path in (tmp_path / NAME).rglob("*")
        if path.is_file()
    }
    assert {".gitignore", ".github/workflows/test.yml", f"src/{MODULE}/__init__.py"} < set(written)
    assert all(f"  {path}\n" in printed for path in written)
    assert not any(_new.NAME_IN_TEMPLATE in path + text for path, text in written.items())
    assert not any("dot_" in path for path in written)
    assert f'name = "{NAME}"' in written["pyproject.toml"]
    assert f"TORCH_LIBRARY({MODULE}, m)" in written["csrc/example.mm"]
    # README.md names files that are there.
    named = re.findall(r"`([\w./]+\.\w+)`", written["README.md"])
    assert len(named) > 5 and set(named) <= set(written)


@pytest.mark.nightly
def test_the_checker_finds_nothing_in_its_kernels(capsys):
    assert __main__.main(["check", str(_new.TEMPLATE / "kernels" / "example.metal")]) == 0
    assert capsys.readouterr().out == ""


def test_the_page_on_ci_has_the_workflow_that_is_written():
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    assert shown == _new.files("example-kernels")[".github/workflows/test.yml"]


def test_the_workflow_is_one():
    yaml = pytest.importorskip("yaml", reason="transformers, of the extra test, brings PyYAML")
    workflow = yaml.safe_load(_new.files(NAME)[".github/workflows/test.yml"])
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        steps = job["steps"]
        assert all(
            re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step
        )
        assert set(re.findall(r"matrix\.(\w+)", str(job))) == set(job["strategy"]["matrix"]), name
        # What is installed is built against what is there.
        runs = [step["run"] for step in steps if "run" in step]
        assert runs.index("pip install --no-build-isolation .") > 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "letter"),
        ("Bright", "lower-case"),
        ("3d", "letter"),
        ("bright--kernels", "single hyphens"),
        ("bright-", "between"),
        ("bright kernels", "hyphens"),
        ("a/b", "letters"),
        ("..", "letter"),
        ("größe", "letter"),
        ("class", "keyword"),
        ("match", "keyword"),
        ("json", "standard library"),
        ("test", "meaning"),
        ("errno", "standard library"),
        ("stdin", "in C"),
        ("aten", "torch.ops.aten is a namespace"),
        ("metalops", "torch.ops.metalops is a namespace"),
        ("torch", "module torch is installed"),
        ("torchgen", "module torchgen is installed"),
        ("metalops-autoload", "module metalops_autoload is installed"),
    ],
)
def test_a_name_that_no_package_can_have_is_refused(name, reason, tmp_path, capsys):
    assert __main__.main(["new", name, str(tmp_path / "folder")]) == 1
    printed = capsys.readouterr().err
    assert f"a package cannot be called {name!r}: " in printed and reason in printed
    assert not (tmp_path / "folder").exists()


def test_a_folder_with_files_stays_as_it_is(tmp_path, capsys):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    assert __main__.main(["new", NAME, str(mine)]) == 1
    assert f"the folder {mine} is not empty" in capsys.readouterr().err
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]
    assert __main__.main(["new", NAME, str(mine / "notes.txt")]) == 1
    assert "is not a folder" in capsys.readouterr().err
    (mine / "empty").mkdir()
    assert __main__.main(["new", NAME, str(mine / "empty")]) == 0


def test_a_folder_that_cannot_be_made_is_said_so(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert __main__.main(["new", NAME, str(tmp_path / "file" / "folder")]) == 1
    assert "metalops new: " in capsys.readouterr().err


def test_the_version_is_printed(capsys):
    import metalops

    assert __main__.main(["--version"]) == 0
    assert capsys.readouterr().out == f"metalops {metalops.__version__}\n"
