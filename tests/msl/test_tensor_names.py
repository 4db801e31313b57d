"""A program has Metal 4's tensors if it includes their header and uses a name of it: torch's own headers include it, too."""

import pathlib
import re

import pytest
from metalops.msl.analysis.program import Program
from metalops.msl.source import compiler
from metalops.msl.source.parse import Source
from metalops.msl.source.preprocess import preprocess

HEADERS = pathlib.Path(compiler.__file__).parent.parent / "include" / "msl"
KERNEL = "kernel void k(device float* x, uint i [[thread_position_in_grid]]) {{ {}x[i] += 1; }}"


def has_tensors(source):
    return Program(Source(preprocess(source, language=400).text)).has_tensors


def declared_names():
    """The names that the header gives programs, in namespaces metal and mpp."""
    headers = "cooperative_tensor execution extents numeric_format tensor".split()
    paths = [HEADERS / f"{name}.h" for name in headers] + [*HEADERS.glob("tensor_ops/*.h")]
    found = {"mpp"}
    for path in paths:
        text = path.read_text()
        for body in re.findall(r"(?ms)^namespace msl::metal \{$(.*?)^\}  // namespace", text):
            found |= set(re.findall(r"(?m)^(?:struct|class|using|enum class) (\w+)", body))
            found |= set(re.findall(r"(?m)^(?:inline )?constexpr \w+ (\w+) =", body))
    return sorted(found)


def test_there_are_names():
    assert {"tensor", "dextents", "execution_simdgroups", "int4b_format"} <= {*declared_names()}


@pytest.mark.parametrize(
    "header", ["metal_tensor", "MetalPerformancePrimitives/MetalPerformancePrimitives.h"]
)
def test_including_the_header_is_not_using_it(header):
    include = f"#include <metal_stdlib>\n#include <{header}>\nusing namespace metal;\n"
    assert not has_tensors(include + KERNEL.format("/* a tensor */ "))
    assert has_tensors(include + KERNEL.format("dextents<int, 1> e(1); "))


@pytest.mark.parametrize("name", declared_names())
def test_each_name_of_the_header_is_a_use(name):
    assert has_tensors(f"#include <metal_tensor>\nusing metal::{name};\n" + KERNEL.format(""))
    assert not has_tensors(f"int {name}_;\n" + KERNEL.format(""))


def test_torch_headers_bring_no_tensors():
    headers = "atomic common error indexing random reduction_utils special_math utils".split()
    includes = "".join(f"#include <c10/metal/{name}.h>\n" for name in headers)
    assert not has_tensors(includes + KERNEL.format(""))
