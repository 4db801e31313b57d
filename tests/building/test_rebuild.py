"""Which kernel libraries a build compiles again."""

import os

import pytest
from metalops.build import kernels
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
        build.outputs = kernels.build_libraries(
            sources, [], str(tmp_path / "out"), str(tmp_path / "build")
        )
        return {
            kernels.family(path)
            for path in build.outputs
            if times.get(path) != os.stat(path).st_mtime_ns
        }

    build.outputs = []
    return tmp_path, build


def touch(path):
    path.write_text(path.read_text() + "\n")


@pytest.mark.slow
@pytest.mark.skipif(kernels.library_suffix() is None, reason="no Metal compiler is installed")
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


@pytest.mark.skipif(kernels.library_suffix() is None, reason="no Metal compiler is installed")
def test_a_kernel_that_does_not_compile_is_reported_with_its_line(project, capfd):
    folder, build = project
    (folder / "one.h").write_text("#define VALUE undeclared_name\n")
    with pytest.raises(CompileError, match="Metal kernels do not compile"):
        build()
    printed = "".join(capfd.readouterr())
    assert f"{folder}/one.metal:4:" in printed
    assert "undeclared_name" in printed
    assert "Traceback" not in printed
