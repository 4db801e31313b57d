"""What an installation compiles of our kernels for the software device: kernels/at_first_use.txt names the others."""

import fnmatch
import os
import pathlib
import re

import metalops
import pytest
from metalops.build import metal_sources
from metalops.build.ninja import Graph
from setuptools.errors import CompileError

ROOT = pathlib.Path(__file__).parents[2]
LIST = ROOT / "kernels" / "at_first_use.txt"
KERNEL = "kernel void f(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 0; }\n"

pytestmark = pytest.mark.skipif(
    not metalops._is_software, reason="about libraries of the software device"
)


# What is compiled ahead, by library. Each kernel here costs every installation a tenth of a second to three seconds, so the numbers
# may shrink, and grow only for kernels that most programs need; `python -m pytest -k ahead` prints the table that it finds.
AHEAD = pathlib.Path(__file__).with_name("ahead.txt")


def _ahead():
    from metalops import _host

    patterns = metal_sources.read_at_first_use(str(LIST))
    found = {}
    for path in sorted(pathlib.Path(metalops.__file__).parent.glob("_C.kernels/*.so")):
        family = path.name.split(".")[0]
        later = [*patterns["*"], *patterns.get(family, ())]
        names = _host.Library(str(path)).names()
        count = sum(not any(fnmatch.fnmatchcase(n, p) for p in later) for n in names)
        if count:
            found[path.name.removesuffix(".so")] = count
    return found


@pytest.mark.skipif(not LIST.is_file(), reason="the sources are not here")
def test_few_kernels_are_compiled_ahead():
    found = _ahead()
    print("".join(f"{name} {count}\n" for name, count in found.items()))
    assert found == {
        name: int(count) for name, count in re.findall(r"(\S+) (\d+)\n", AHEAD.read_text())
    }


@pytest.mark.skipif(not LIST.is_file(), reason="the sources are not here")
def test_every_family_that_is_listed_exists():
    families = {path.stem for path in (ROOT / "kernels").rglob("*.metal")}
    assert metal_sources.read_at_first_use(str(LIST)).keys() - {"*"} <= families


@pytest.mark.parametrize("line", ["family", "family:", "family *", "a: *\na: b"])
def test_a_line_that_is_none_is_an_error(tmp_path, line):
    path = tmp_path / "list.txt"
    path.write_text(f"# comment\n{line}\n")
    with pytest.raises(CompileError, match=r"list\.txt:\d must be a family's only line"):
        metal_sources.read_at_first_use(str(path))


@pytest.mark.parametrize(("build_all", "expected"), [("0", ["f", "g*"]), ("1", [])])
def test_everything_is_compiled_on_request(tmp_path, monkeypatch, build_all, expected):
    monkeypatch.setenv("METALOPS_BUILD_ALL", build_all)
    source = tmp_path / "x.metal"
    source.write_text(KERNEL)
    graph = Graph()
    metal_sources.add_libraries(graph, [str(source)], [], str(tmp_path), {"*": ["f"], "x": ["g*"]})
    (step,) = graph._steps.values()
    assert re.findall(r"--at-first-use=([^\s']+)", step) == expected


def test_a_family_that_does_not_exist_is_an_error(tmp_path):
    source = os.path.join(tmp_path, "x.metal")
    pathlib.Path(source).write_text(KERNEL)
    with pytest.raises(CompileError, match=r"no kernel file y\.metal"):
        metal_sources.add_libraries(Graph(), [source], [], str(tmp_path), {"y": ["*"]})
