"""Values of function constants, as text for the compiler: see include/msl/cuda/function_constants.h."""

from __future__ import annotations

from collections.abc import Mapping


def definitions(constants: Mapping[int, bytes]) -> str:
    """Returns the expansion of the macro MSL_FUNCTION_CONSTANTS."""
    return " ".join(
        f"template <> struct function_constant<{index}> {{ static constexpr bool is_defined = true; "
        "template <class T> static constexpr T get() { "
        f"return constant_of<T>(constant_bytes<{len(value)}>{{{', '.join(map(str, value))}}}); }} }};"
        for index, value in constants.items()
    )
