"""Names of the library's own functions are the program's: a function template of such a name is called, whatever the types of
its arguments are. (C++ also looks up functions in the namespaces of these types and of their base classes.)"""

import pathlib
import re

import pytest
from metalops.msl.source import compiler

HEADERS = pathlib.Path(compiler.__file__).parent.parent / "include" / "msl"
# Parameters of a kernel or declarations, by the type that they are of.
OBJECTS = {
    "float4": "float4 {};",
    "uchar3": "uchar3 {};",
    "packed_half3": "packed_half3 {};",
    "float8": "vec<float, 8> {};",
    "float2x3": "float2x3 {};",
    "half": "half {};",
    "bfloat": "bfloat {};",
    "simdgroup_float8x8": "simdgroup_float8x8 {};",
    "array": "array<int, 2> {};",
    "simd_vote": "simd_vote {};",
    "texture": "texture2d<float, access::read_write> {} [[texture(0)]]",
    "cube": "texturecube_array<half> {} [[texture(1)]]",
    "depth": "depth2d<float> {} [[texture(2)]]",
    "buffer": "texture_buffer<uint, access::read> {} [[texture(3)]]",
    "sampler": "sampler {} [[sampler(0)]]",
    "tensor": "tensor<device float, dextents<int, 2>> {} [[buffer(1)]]",
}
KEYWORDS = {"alignas", "decltype", "operator"}
_OF_THE_LIBRARY = (
    r"(?ms)^namespace (?:msl::)?msl_impl \{$(.*?)^\}  // namespace (?:msl::)?msl_impl$"
)


def library_functions():
    """Names of functions in msl_impl, of the headers that the host uses, that Metal does not have."""
    found, outside = set(), ""
    for path in sorted(HEADERS.rglob("*.h")):
        if "cuda" in path.parts:
            continue
        text = path.read_text()
        begin = 0
        for region in re.finditer(_OF_THE_LIBRARY, text):
            found.update(
                re.findall(r"(?m)^(?:[a-z_A-Z][\w:<>,&* ]* [&*]*)?(\w+)\(", region.group(1))
            )
            outside += text[begin : region.start()]
            begin = region.end()
        outside += text[begin:]
    public = set(re.findall(r"(?<![:.\w>])\w+", re.sub(r"//.*", "", outside)))
    return sorted(
        n for n in found - public - KEYWORDS if n[0].islower() and not n.startswith("msl_")
    )


@pytest.mark.full
def test_functions_of_the_programs_are_called(program):
    names = library_functions()
    assert {"bit_cast", "divide", "together", "texel_of"} & set(names) and len(names) > 100
    functions = "".join(
        f"template <typename A> int {n}(const thread A&) {{ return 1; }}\n"
        f"template <typename A, typename B> int {n}(const thread A&, const thread B&) {{ return 1; }}\n"
        f"template <typename A, typename B> int {n}(const thread A&, const thread B&, int) {{ return 1; }}\n"
        for n in names
    )
    kernels = []
    for n, declared in enumerate(OBJECTS.values()):
        is_parameter = "[[" in declared
        given = "x" if is_parameter else "y"
        parameter = f", {declared.format('x')}" if is_parameter else ""
        local = "" if is_parameter else declared.format("y")
        calls = "\n".join(
            f"{c}({given}); {c}({given}, {given}); {c}({given}, 1, 2);" for c in names
        )
        kernels.append(f"kernel void k{n}(device int* out{parameter}) {{ {local} {calls} }}\n")
    program("#include <metal_tensor>\n" + functions + "".join(kernels))
