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


@pytest.mark.skipif(not LIST.is_file(), reason="the sources are not here")
def test_every_pattern_names_kernels():
    from metalops import _host

    folder = pathlib.Path(metalops.__file__).parent / "_C.kernels"
    names = {path.stem: _host.Library(str(path)).names() for path in folder.glob("*.so")}
    for library, patterns in metal_sources.read_at_first_use(str(LIST)).items():
        there = names[library] if library != "*" else [n for some in names.values() for n in some]
        for pattern in patterns:
            assert fnmatch.filter(there, pattern), (library, pattern)


@pytest.mark.skipif(not LIST.is_file(), reason="the sources are not here")
def test_every_family_that_is_listed_exists():
    families = {path.stem for path in (ROOT / "kernels").rglob("*.metal")}
    listed = metal_sources.read_at_first_use(str(LIST)).keys() - {"*"}
    assert {library.removesuffix(".tensors") for library in listed} <= families


@pytest.mark.parametrize("line", ["family", "family:", "family *", "a: *\na: b"])
def test_a_line_that_is_none_is_an_error(tmp_path, line):
    path = tmp_path / "list.txt"
    path.write_text(f"# comment\n{line}\n")
    with pytest.raises(CompileError, match=r"list\.txt:\d must be a library's only line"):
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
    with pytest.raises(CompileError, match="no kernel library y"):
        metal_sources.add_libraries(Graph(), [source], [], str(tmp_path), {"y": ["*"]})
