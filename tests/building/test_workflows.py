"""What runs on other machines (.github/workflows) are scripts of this tree, which run here too."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from metalops._torch import versions

from tests.machines.__main__ import MACHINES

yaml = pytest.importorskip("yaml", reason="transformers, of the extra test, brings PyYAML")

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = [ROOT / ".ci" / name for name in ("run", "style", "package", "versions")]


def jobs():
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert workflow["permissions"] == {"contents": "read"}
        yield from workflow["jobs"].items()


def test_every_step_is_an_action_of_github_or_a_script_of_this_tree():
    scripts = set()
    for _, job in jobs():
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])
            else:
                scripts.add(step["run"].split()[0])
    assert scripts == {".ci/run", ".ci/package", ".ci/versions"}
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts)


def test_every_kind_of_machine_is_there_for_the_tests_and_for_the_package():
    about = dict(jobs())
    tested = {(x["os"], x["compiler"]) for x in about["tests"]["strategy"]["matrix"]["include"]}
    macs = {"macos-14", "macos-15", "macos-26"}
    linux = {("ubuntu-24.04", "g++"), ("ubuntu-24.04", "clang"), ("ubuntu-24.04-arm", "g++")}
    assert tested == linux | {(mac, "clang") for mac in macs}
    assert set(about["package"]["strategy"]["matrix"]["os"]) == {os for os, _ in tested}


@pytest.mark.parametrize("job", ["versions", "package"])
def test_every_supported_torch_is_there(job):
    assert dict(jobs())[job]["strategy"]["matrix"]["torch"] == list(versions.SUPPORTED)


def test_every_night_tests_run_as_on_all_machines_that_are_not_those_of_the_other_jobs():
    nightly = set(dict(jobs())["machines"]["strategy"]["matrix"]["machine"])
    assert nightly | {"g++", "clang", "user"} == set(MACHINES)


def test_what_a_matrix_gives_is_what_a_job_takes():
    for name, job in jobs():
        matrix = job["strategy"]["matrix"]
        given = set(matrix.get("include", [matrix])[0])
        taken = set(re.findall(r"matrix\.(\w+)", str(job)))
        assert taken == given, name


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_run_in_the_bash_of_macos_too(script):
    text = script.read_text(encoding="utf-8")
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    # 3.2 knows none of these, and takes an empty array for an unset variable.
    assert not re.search(r"declare -A|mapfile|readarray|\$\{\w+(,,|\^\^|@[A-Z])\}", text)
    arrays = set(re.findall(r"\b(\w+)=\(\)", text))
    unguarded = [name for name in arrays if re.search(rf'(?<!\+)"\${{{name}\[@\]}}"', text)]
    assert unguarded == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_shellcheck_finds_nothing_in_scripts(script):
    result = subprocess.run(
        ["shellcheck", "--exclude=SC1091", script], capture_output=True, text=True, check=False
    )
    assert result.stdout == ""


# An interpreter whose environments install anything but torch 2.14, and where tests fail with 2.15.
INTERPRETER = """\
#!/usr/bin/env bash
if [[ $1 != -m ]]; then exec python3 "$@"; fi
mkdir -p "$3/bin"
echo "PATH=$3/bin:\\$PATH" >"$3/bin/activate"
cat >"$3/bin/pip" <<'END'
#!/usr/bin/env bash
echo "$METALOPS_TORCH" >"${0%pip}torch"
[[ $METALOPS_TORCH != 2.14 ]]
END
cat >"$3/bin/python" <<'END'
#!/usr/bin/env bash
torch=$(cat "${0%python}torch")
case "$*" in
  *torch.__version__*) echo "$torch.3+cpu" ;;
  *coverage*) printf 'aten::one\\naten::two\\n' ;;
  *'tests -m quick') echo "== 30 passed, 4 skipped in 2.0s ==" ;;
  *pytest*) echo "1 failed, 5 passed, 2 errors in 1.0s"; [[ $torch != 2.15 ]] ;;
esac
END
chmod +x "$3/bin/pip" "$3/bin/python"
"""


def test_a_torch_that_fails_does_not_keep_others_from_being_tried(tmp_path):
    script, interpreter = tmp_path / ".ci" / "versions", tmp_path / "interpreter"
    script.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "versions", script)
    interpreter.write_text(INTERPRETER)
    interpreter.chmod(0o755)
    result = subprocess.run(
        [script, "2.13", "2.14", "2.15", "--", "tests/ops"],
        env={**os.environ, "PYTHON": str(interpreter)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    _, *rows = (line.split() for line in result.stdout.splitlines())
    assert [row[:2] + row[3:] for row in rows] == [
        ["2.13", "2.13.3+cpu", "ok", "30/0/4", "5/3/0", "2"],
        ["2.14", "-", "-", "-", "-", "-"],
        ["2.15", "2.15.3+cpu", "ok", "30/0/4", "5/3/0", "2"],
    ]
    logs = tmp_path / "build" / "versions"
    assert result.stderr.splitlines() == [
        f"torch 2.14: build failed: {logs}/2.14/build.txt",
        f"torch 2.15: python -m pytest tests/ops failed: {logs}/2.15/tests.txt",
    ]
