"""Environment variables: the table is complete, one that is empty is as one that is not set, and a wrong one is one error."""

import os
import re
import subprocess
import sys

import pytest
from metalops import _environment

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_every_variable_that_the_sources_read_is_in_the_table():
    found = set()
    for part in ("python", "csrc"):
        for folder, _, names in os.walk(os.path.join(ROOT, part)):
            for name in names:
                if name.endswith((".py", ".cpp", ".h", ".mm")):
                    with open(os.path.join(folder, name), encoding="utf-8") as f:
                        text = f.read()
                    found.update(
                        re.findall(r"(?:environ[\w.]*[(\[]|getenv\()\s*\"(METALOPS_\w+)\"", text)
                    )
    assert found
    assert found <= set(_environment.VARIABLES) | _environment.INTERNAL


def _misspelt(name):
    """Ways in which a hand misses: a letter that is missing, doubled or another one, two exchanged, cases, and underscores."""
    for i in range(len("METALOPS_"), len(name)):
        yield name[:i] + name[i + 1 :]
        yield name[: i + 1] + name[i:]
        yield name[:i] + ("X" if name[i] != "X" else "Y") + name[i + 1 :]
        if i + 1 < len(name) and name[i] != name[i + 1]:
            yield name[:i] + name[i + 1] + name[i] + name[i + 2 :]
    yield name.lower()
    yield name.replace("METALOPS_", "METAL_OPS_")
    yield name.replace("METALOPS_", "METALOP_")


def test_a_misspelt_variable_is_named_with_the_one_that_is_meant():
    ours = [name for name in _environment.VARIABLES if name.startswith("METALOPS_")]
    wrong = {other: name for name in ours for other in _misspelt(name) if other not in ours}
    assert len(wrong) > 500
    for other, name in wrong.items():
        (sentence,) = _environment.unknown([other, name, "PATH", "PYTORCH_MPS_FAST_MATH"])
        assert sentence.startswith(f"{other} is set, but metalops reads no variable of this name")
        assert sentence.endswith(f"; do you mean {name}?"), sentence


def test_variables_that_are_like_no_other_are_named_without_a_guess():
    (sentence,) = _environment.unknown(["METALOPS_COLOUR"])
    assert sentence.endswith("reads no variable of this name")


def test_those_that_metalops_sets_itself_are_known():
    from metalops import _sanitize
    from metalops.build.mac import command

    of_builds = set(command.environment("folder", "arm64")) - set(command.environment("folder", ""))
    assert of_builds == {"METALOPS_BUILD_MAC_MACHINE"}
    assert {_sanitize._RESTARTED, "METALOPS_BUILD_MAC", *of_builds} == _environment.INTERNAL
    assert _environment.unknown([*_environment.VARIABLES, *_environment.INTERNAL]) == []


def test_all_of_python_asks_in_one_place():
    asked = re.compile(r"environ(?:\.get\(|\[)\s*[\"']METALOPS_\w+[\"']\]?(?! =)")
    # Entry points of torch and pytest may not import the package, nor do the stand-ins of a Mac's tools; selftest puts
    # back what it has set.
    others = {"metalops_autoload.py", "metalops_pytest.py", "selftest/models.py", "_environment.py"}
    others |= {f"build/mac/{name}.py" for name in ("compiler", "identity", "tools")}
    for folder, _, names in os.walk(os.path.join(ROOT, "python")):
        for path in (os.path.join(folder, name) for name in names if name.endswith(".py")):
            if not path.endswith(tuple(others)):
                with open(path, encoding="utf-8") as f:
                    assert not asked.findall(f.read()), path


OURS = [name for name in _environment.VARIABLES if name.startswith("METALOPS_")]


@pytest.mark.parametrize("name", OURS)
def test_an_empty_variable_is_as_one_that_is_not_set(name, monkeypatch):
    for text in ("", " "):
        monkeypatch.setenv(name, text)
        assert _environment.value(name) == ""
    monkeypatch.delenv(name)
    assert _environment.value(name) == ""
    _environment.check()


PATHS = ("METALOPS_CACHE_DIR", "METALOPS_SETTINGS")


@pytest.mark.parametrize("name", [name for name in OURS if name not in PATHS])
def test_what_a_variable_may_say(name, monkeypatch):
    is_one, words = _environment._VALUES[name]
    default = _environment.VARIABLES[name][0]
    assert is_one(default) or default in ("chosen", "none", "random", "the settings file's")
    for wrong in ("nonsense", "-1", "1e400", "auto,auto", "\N{PILE OF POO}"):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(
            ValueError, match=re.escape(f"{name} is {wrong!r}, but must be {words}")
        ):
            _environment.check()


def _python(*arguments, **variables):
    environment = {k: v for k, v in os.environ.items() if k not in OURS} | variables
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False
    )


_PROGRAM = """
import torch, metalops
from metalops import _sanitize
from metalops.msl import cache
from metalops.msl.source import languages
from metalops.msl.targets.host import tensors
from metalops.ops._cuda.kernel_file import has_tensors
x = torch.zeros(1, 1, 2, 4, device="mps")
print(torch._fused_sdp_choice(x, x, x), metalops.ops.softcap(x + 1, 2.0).sum().item())
print(_sanitize.wanted(), cache.size_limit(), languages.current(), tensors.layout(), has_tensors())
print(torch._int_mm(*[torch.ones(32, 32, dtype=torch.int8, device="mps")] * 2).sum().item())
print(metalops._host.set_sanitizer_halt(True))
"""


@pytest.mark.nightly
def test_a_process_with_all_of_them_empty_is_as_one_with_none(tmp_path):
    home = {"HOME": str(tmp_path)}
    _python("-c", _PROGRAM, **home)  # compiles the kernels that it uses, and may say so
    unset = _python("-c", _PROGRAM, **home)
    empty = _python("-c", _PROGRAM, **dict.fromkeys(OURS, ""), **home)
    assert (unset.returncode, unset.stderr) == (0, "")
    assert (empty.returncode, empty.stderr, empty.stdout) == (0, "", unset.stdout)


@pytest.mark.parametrize(
    "variables",
    [
        {"METALOPS_ATTENTION": "ours"},
        {"METALOPS_SANITIZE": "address", "METALOPS_SANITIZE_HALT": "maybe"},
        {"METALOPS_METAL_VERSION": "7"},
    ],
)
def test_a_wrong_variable_is_one_error(variables):
    name = list(variables)[-1]
    result = _python("-c", "import metalops", **variables)
    assert len(re.findall(r"(?m)^\w+Error", result.stderr)) == result.stderr.count("Traceback") == 1
    assert f"\nValueError: {name} is {variables[name]!r}, but must be " in result.stderr
    result = _python("-m", "metalops", "check", "--rules", **variables)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"metalops: {name} is {variables[name]!r}, but must be ")
    assert result.stderr.count("\n") == 1
