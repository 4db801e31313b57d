"""Names of the library's own functions are the program's: a function template of such a name is called, whatever the types of
its arguments are. (C++ also looks up functions in the namespaces of these types and of their base classes.)"""

import pathlib
import re

import pytest
import torch
from metalops.msl.check import check_source
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


# In the form in which MLX's kernels, and others that began as theirs, have them. The library must not.
IN_NAMESPACE_METAL = """
namespace metal {
template <typename T> struct is_empty : metal::bool_constant<__is_empty(T)> {};
template <typename T> constexpr constant bool is_empty_v = is_empty<T>::value;
template <typename... Ts> struct make_void { typedef void type; };
template <typename... Ts> using void_t = typename make_void<Ts...>::type;
template <class T> struct is_static : metal::bool_constant<is_empty<remove_cv_t<T>>::value> {};
template <typename T> struct pointer_element {};
template <typename T> struct pointer_element<device T*> { using type = remove_cv_t<T>; };
template <typename T> struct pointer_element<threadgroup T*> { using type = remove_cv_t<T>; };
template <typename T> using pointer_element_t = typename pointer_element<remove_cv_t<T>>::type;
template <typename T> inline T&& forward(thread T& x) { return static_cast<T&&>(x); }
}
struct nothing {};
template <typename T, typename = void> struct is_bytes : metal::false_type {};
template <typename T> struct is_bytes<T, metal::void_t<decltype(T::bytes)>> : metal::true_type {};
struct has_bytes { static constant constexpr int bytes = 4; };
kernel void k(device int* out [[buffer(0)]]) {
  out[0] = metal::is_empty_v<nothing>;
  out[1] = metal::is_static<int>::value;
  out[2] = sizeof(metal::pointer_element_t<device short*>);
  out[3] = is_bytes<has_bytes>::value && !is_bytes<nothing>::value;
}
"""


def test_traits_that_public_kernels_define_in_namespace_metal_are_theirs(program):
    out = torch.zeros(4, dtype=torch.int32)
    program(IN_NAMESPACE_METAL).launch("k", out, grid=1)
    assert out.tolist() == [1, 0, 2, 1]
    assert not check_source(
        "#include <metal_stdlib>\nusing namespace metal;\n" + IN_NAMESPACE_METAL
    )
