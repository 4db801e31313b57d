"""The versions of the Metal language: their names, the default, and what the compiler predefines at each."""

from __future__ import annotations

import argparse

from ... import _environment

# The value of __METAL_VERSION__ by the name that compilers are given (-std=metal3.1).
LANGUAGES = {"3.1": 310, "3.2": 320, "4.0": 400, "4.1": 410}

DEFAULT = LANGUAGES["4.0"]  # what torch compiles with on macOS 26
FLOOR = LANGUAGES["3.1"]  # language of macOS 14, for which kernel files are built

VARIABLE = "METALOPS_METAL_VERSION"
# Newer versions of torch read this variable, and know these names.
TORCH_VARIABLE = "PYTORCH_MPS_METAL_VERSION"
_TORCH_NAMES = ("3.1", "3.2", "4.0")

# Feature macros, by the first version that has them. Apple's compiler predefines them by the version alone, whatever is
# included and whatever the GPU can do.
_FEATURES = {
    400: """
        __HAVE_TENSOR__ __HAVE_TENSOR_VECTOR_ACCESSOR__ __HAVE_INT4B_FORMAT_TYPE__
        __HAVE_PACKED_NUMERIC__ __HAVE_PACKED_NUMERIC_TYPE__ __HAVE_EXECUTION_UNIT__
    """,
    410: """
        __HAVE_TENSOR_MULTIPLANE__ __HAVE_TENSOR_GET_STRIDE_BYTES__ __HAVE_INT2B_FORMAT_TYPE__
        __HAVE_INT8B_FORMAT_TYPE__ __HAVE_METAL_FP4_E2M1_FORMAT_TYPE__
        __HAVE_METAL_FP8_E4M3_FORMAT_TYPE__ __HAVE_METAL_FP8_E5M2_FORMAT_TYPE__
        __HAVE_METAL_FP8_UE8M0_FORMAT_TYPE__ __HAVE_PACKED_NUMERIC_TYPE_PACK_UNPACK__
    """,
}

# Names of the standard library by the version that introduced them, limited to those that no program has a reason to
# declare itself.
_NAMES = {
    400: """
        convolution2d_descriptor cooperative_tensor dextents execution_simdgroup execution_simdgroups
        execution_thread execution_threads int4b_format matmul2d_descriptor packed_numeric_type
        tensor_handle tensor_inline tensor_offset uint4b_format
    """,
    410: """
        int2b_format metal_fp4_e2m1_format metal_fp8_e4m3_format metal_fp8_e5m2_format
        metal_fp8_ue8m0_format tensor_blockwise tensor_plane_scales uint2b_format
    """,
}

# C++14 up to Metal 3.2, then C++17, with clang's feature-test macros of each.
_CPP14 = {
    "__cplusplus": "201402L",
    "__cpp_alias_templates": "200704L",
    "__cpp_constexpr": "201304L",
    "__cpp_decltype_auto": "201304L",
    "__cpp_static_assert": "200410L",
    "__cpp_variable_templates": "201304L",
    "__cpp_variadic_templates": "200704L",
}
_CPP17 = _CPP14 | {
    "__cplusplus": "201703L",
    "__cpp_aggregate_bases": "201603L",
    "__cpp_constexpr": "201603L",
    "__cpp_deduction_guides": "201703L",
    "__cpp_fold_expressions": "201603L",
    "__cpp_if_constexpr": "201606L",
    "__cpp_inline_variables": "201606L",
    "__cpp_nontype_template_args": "201411L",
    "__cpp_static_assert": "201411L",
    "__cpp_structured_bindings": "201606L",
}


def number_of(name: object, what: str = "language") -> int:
    """Returns the value of __METAL_VERSION__ in the language of a name; "4" is "4.0". what: what has that name, for the
    error. Raises ValueError for unknown languages, TypeError unless it is a str."""
    return _number_of(name, what, LANGUAGES)


def name_of(number: int) -> str:
    """Returns the name of the language with a value of __METAL_VERSION__."""
    return next(name for name, known in LANGUAGES.items() if known == number)


def current() -> int:
    """Returns the language, as the value of __METAL_VERSION__, of sources that do not name one: METALOPS_METAL_VERSION,
    else PYTORCH_MPS_METAL_VERSION, else 4.0. Raises ValueError."""
    for variable, names in ((VARIABLE, tuple(LANGUAGES)), (TORCH_VARIABLE, _TORCH_NAMES)):
        name = _environment.value(variable)
        if name:
            return _number_of(name, variable, names)
    return DEFAULT


def argument(name: str) -> int:
    """Parses a language like number_of, as the type of a command line argument."""
    try:
        return number_of(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def standard(number: int) -> str:
    """Returns the flag that selects a language for Apple's compiler."""
    return f"-std=metal{name_of(number)}"


def predefined(number: int) -> dict[str, str]:
    """Returns the macros that a language predefines, with their values."""
    macros = {"__METAL__": "1", "__METAL_VERSION__": str(number)}
    macros |= _CPP17 if number >= 400 else _CPP14
    for first, features in _FEATURES.items():
        if number >= first:
            macros |= dict.fromkeys(features.split(), "1")
    return macros


def newer_names(number: int) -> dict[str, int]:
    """Returns the names that a language lacks and later ones have, with the first one that has them."""
    return {
        name: first for first, names in _NAMES.items() if first > number for name in names.split()
    }


def _number_of(name: object, what: str, names) -> int:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str such as '4.0', but is {name!r}")
    known = name if "." in name else f"{name}.0"
    if known not in names:
        *others, last = names
        raise ValueError(f"{what} is {name!r}, but must be {', '.join(others)} or {last}")
    return LANGUAGES[known]
