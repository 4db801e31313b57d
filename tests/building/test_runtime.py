"""What an extension compiles of metalops itself."""

import re
from pathlib import Path

import pytest
from metalops.build import paths, runtime


@pytest.fixture
def parts(tmp_path):
    """Which of metalops's files an extension with a stub of this text compiles."""

    def compiled(text, has_kernels=True):
        stub = tmp_path / "stub.mm"
        stub.write_text(text)
        include_dirs = [str(tmp_path / "include"), *paths.include_paths()]
        folder = str(tmp_path / "build")
        return [
            name
            for path in runtime.write_runtime([str(stub)], has_kernels, include_dirs, folder)
            for name in re.findall(r"#include <metalops/(\w+)\.cpp>", Path(path).read_text())
        ]

    return compiled


# What every extension with kernels compiles: the registry of its kernels and how these are launched.
LIBRARY = ["library", "tiles_launch"]


def test_kernels_are_registered_whatever_the_stub_includes(parts):
    assert parts("") == LIBRARY


def test_an_extension_without_kernels_compiles_what_it_includes(parts):
    assert parts("#include <torch/csrc/stable/library.h>\n", has_kernels=False) == []
    included = "#include <metalops/elementwise_launch.h>\n"
    assert "elementwise_launch" in parts(included, has_kernels=False)


def test_what_a_header_needs_is_compiled_and_nothing_else(parts):
    assert parts("#include <metalops/elementwise_launch.h>\n") == [
        "elementwise_launch",
        *LIBRARY,
    ]
    needed = sorted(["autograd", "functionalize", "pointwise", *LIBRARY])
    assert parts("  #  import <metalops/pointwise.h>\n") == needed
    assert parts("// #include <metalops/pointwise.h>\n") == LIBRARY


def test_headers_of_the_extension_are_looked_through(parts, tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "one.h").write_text('#include "two.h"\n')
    (tmp_path / "include" / "two.h").write_text(
        '#include "one.h"\n#include <metalops/functionalize.h>\n'
    )
    assert parts("#include <one.h>\n") == ["functionalize", *LIBRARY]
