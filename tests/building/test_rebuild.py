"""What a build makes again, and what it prints."""

import ctypes
import os
import re
import subprocess
import sys

import pytest
from metalops.build import metal_sources, ninja, units
from metalops.msl.source.paths import files_for
from setuptools.errors import CompileError

KERNEL = """\
#include <metal_stdlib>
#include "{header}.h"
using namespace metal;
kernel void fill(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {{ x[i] = VALUE; }}
"""


@pytest.fixture
def project(tmp_path):
    """Two kernel files, each with a header of its own, and a function that builds them and tells which were compiled."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.metal").write_text(KERNEL.format(header=name))
        (tmp_path / f"{name}.h").write_text(
            '#include "nested.h"\n' if name == "two" else "#define VALUE 1\n"
        )
    (tmp_path / "nested.h").write_text("#define VALUE 2\n")

    def build():
        times = {path: os.stat(path).st_mtime_ns for path in build.outputs}
        sources = [str(tmp_path / f"{name}.metal") for name in ("one", "two")]
        build.outputs = metal_sources.build_libraries(
            sources, [], str(tmp_path / "out"), str(tmp_path / "build")
        )
        return {
            metal_sources.family(path)
            for path in build.outputs
            if times.get(path) != os.stat(path).st_mtime_ns
        }

    build.outputs = []
    return tmp_path, build


@pytest.mark.parametrize("forbidden", [False, True])
def test_python_is_compiled_once_for_all_steps(tmp_path, forbidden):
    """Where nothing may be written beside the sources, it is written beside what is built."""
    output = tmp_path / "output"
    code = f"import sys; open({str(output)!r}, 'w').write(f'{{sys.dont_write_bytecode}} {{sys.pycache_prefix}}')"
    graph = ninja.Graph()
    graph.add(str(output), [], [sys.executable, "-c", code], "python")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1" if forbidden else ""}
    environment.pop("PYTHONPYCACHEPREFIX", None)
    graph.run(str(tmp_path), environment, "it failed")
    assert output.read_text() == f"False {tmp_path / 'pycache' if forbidden else None}"


def touch(path):
    path.write_text(path.read_text() + "\n")


@pytest.mark.full
@pytest.mark.skipif(metal_sources.library_suffix() is None, reason="no Metal compiler is installed")
def test_only_what_changed_is_compiled_again(project):
    folder, build = project
    assert build() == {"one", "two"}
    assert build() == set()
    touch(folder / "one.metal")
    assert build() == {"one"}
    touch(folder / "one.h")
    assert build() == {"one"}
    touch(folder / "nested.h")
    assert build() == {"two"}


@pytest.mark.full
@pytest.mark.skipif(metal_sources.library_suffix() is None, reason="no Metal compiler is installed")
def test_a_kernel_that_does_not_compile_is_reported_with_its_line(project, capfd):
    folder, build = project
    (folder / "one.h").write_text("#define VALUE undeclared_name\n")
    with pytest.raises(CompileError, match="Metal kernels do not compile"):
        build()
    printed = "".join(capfd.readouterr())
    assert f"{folder}/one.metal:4:" in printed
    assert "undeclared_name" in printed
    assert "Traceback" not in printed


SETUP = """\
from metalops.build import BuildExtension
from setuptools import Extension, setup

extensions = [
    Extension("one", ["one.cpp", "used.cpp"], include_dirs=["include"]),
    Extension("two", ["two.cpp"], include_dirs=["include"]),
]
for extension in extensions:
    extension.precompiled_header = "all.h"
setup(
    name="project",
    ext_modules=extensions,
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
    script_args=["build_ext", "--build-lib", "lib", "--build-temp", "temp"],
)
"""


@pytest.fixture
def extensions(tmp_path):
    """The folder of two extensions, of which one uses the precompiled header, and a function that builds them and
    returns what is printed."""
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "heavy.h").write_text(
        "#pragma once\ninline int heavy() { return 1; }\n"
    )
    (tmp_path / "include" / "own.h").write_text("#include <heavy.h>\n")
    (tmp_path / "all.h").write_text("#include <heavy.h>\n")
    (tmp_path / "used.cpp").write_text("#include <own.h>\nint used() { return heavy(); }\n")
    (tmp_path / "one.cpp").write_text("int one() { return 1; }\n")
    (tmp_path / "two.cpp").write_text("int two() { return 2; }\n")

    def build():
        result = subprocess.run(
            [sys.executable, "-c", SETUP],
            cwd=tmp_path,
            env={**os.environ, "TORCH_NO_COMPILER_WRAPPER": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert "warning" not in result.stdout + result.stderr
        return re.findall(r"^\[\d+/\d+\] (.*)$", result.stdout, re.MULTILINE), result.stdout

    return tmp_path, build


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "darwin", reason="headers are precompiled on Linux only")
def test_a_build_prints_one_line_a_file_and_makes_only_what_changed(extensions):
    folder, build = extensions
    lines, printed = build()
    objects = {"c++ one.cpp", "c++ used.cpp", "c++ two.cpp", "c++ all.h"}
    assert {*lines} == objects | {"link one", "link two"} and len(lines) == 6
    assert re.search(r"^metalops: the compilers took \d+ s of CPU time$", printed, re.MULTILINE)
    assert build()[0] == []
    (folder / "two.cpp").write_text("int two() { return 3; }\n")
    assert build()[0] == ["c++ two.cpp", "link two"]
    (folder / "include" / "heavy.h").write_text("#pragma once\ninline int heavy() { return 2; }\n")
    assert build()[0] == ["c++ all.h", "c++ used.cpp", "link one"]


UNNAMED = """\
#include <own.h>
#include "beside.h"

namespace {{

int value() {{ return heavy() + {value}; }}
const bool registered = add(&value);

}}  // namespace
"""
NAMED = """\
// The list.
#include "beside.h"
#include <vector>

static std::vector<int (*)()> values;
bool add(int (*function)()) { values.push_back(function); return true; }
int sum() {
  int result = 0;
  for (auto* value : values) result += value();
  return result;
}
"""
SETUP_OF_A_UNIT = """\
import sys
from metalops.build import BuildExtension
from setuptools import Extension, setup

sources = ["list.cpp", "one.cpp", "two.cpp", "alone.cpp"]
extension = Extension("unit", sources, include_dirs=["include"])
extension.units = [["list.cpp", "one.cpp", "two.cpp"]]
setup(
    name="project",
    ext_modules=[extension],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
    script_args=["build_ext", "--build-lib", "lib", "--build-temp", "temp"],
)
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "darwin", reason="sources are compiled together on Linux only")
def test_sources_of_a_unit_are_compiled_together_and_may_use_the_same_names(tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "own.h").write_text("#pragma once\ninline int heavy() { return 1; }\n")
    (tmp_path / "beside.h").write_text("#pragma once\nbool add(int (*)());\n")
    (tmp_path / "list.cpp").write_text(NAMED)
    (tmp_path / "one.cpp").write_text(UNNAMED.format(value=10))
    (tmp_path / "two.cpp").write_text(UNNAMED.format(value=100))
    (tmp_path / "alone.cpp").write_text(
        'int sum();\nextern "C" int of_unit() { return sum(); }\nextern "C" void PyInit_unit() {}\n'
    )

    def build():
        result = subprocess.run(
            [sys.executable, "-c", SETUP_OF_A_UNIT],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return re.findall(r"^\[\d+/\d+\] (.*)$", result.stdout, re.MULTILINE), result.stdout

    unit = "c++ list.cpp, one.cpp, two.cpp"
    assert sorted(build()[0]) == ["c++ alone.cpp", unit, "link unit"]
    assert ctypes.CDLL(str(tmp_path / "lib" / "unit.so")).of_unit() == 112
    assert build()[0] == []
    (tmp_path / "two.cpp").write_text(UNNAMED.format(value="undeclared_name"))
    lines, printed = build()
    assert lines == [unit]
    assert re.search(r"^\S*/two.cpp:6:\d+: error: .undeclared_name.", printed, re.MULTILINE)


def test_a_unit_of_sources_that_the_extension_lacks_is_an_error(tmp_path):
    with pytest.raises(CompileError, match=r"missing\.cpp is in a unit"):
        units.write_units(["one.cpp"], [["missing.cpp"]], str(tmp_path))


def test_a_step_is_repeated_when_its_command_changes(tmp_path):
    output, source = str(tmp_path / "a b$c"), tmp_path / "source"
    source.write_text("")

    def run(text):
        graph = ninja.Graph()
        command = ["sh", "-c", 'printf "%s" "$1" > "$2"', "sh", text, output]
        graph.add(output, [str(source)], command, "step $")
        graph.run(str(tmp_path / "build"), os.environ, "failed")
        with open(output) as f:
            return f.read()

    assert run("it's $5") == "it's $5"
    assert run("another") == "another"


def test_a_failed_step_is_an_error(tmp_path):
    graph = ninja.Graph()
    graph.add(str(tmp_path / "x"), [], ["false"], "step")
    with pytest.raises(CompileError, match="it failed"):
        graph.run(str(tmp_path / "build"), os.environ, "it failed")


def test_kernels_depend_on_the_files_of_their_own_target():
    root = os.path.dirname(metal_sources.__file__).removesuffix("build") + "msl"
    host, cuda = ({os.path.relpath(f, root) for f in files_for(t)} for t in ("host", "cuda"))
    assert "include/msl/simd.h" in host & cuda
    assert {f.split("/")[0] for f in host - cuda} == {"include", "targets"}
    assert all("/host/" in f for f in host - cuda) and all("/cuda/" in f for f in cuda - host)
    assert "include/msl/cuda/site.h" in cuda and "targets/host/emit.py" in host
