"""The Metal text around the body of a metal_kernel: helpers, template, parameters, instantiation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import torch

from ...msl.vocabulary import THREAD_ATTRIBUTES
from ..compile import generated_text, user_text
from ..dtypes import METAL_TYPES
from ..identifiers import mentioned

# What a kernel can ask about an input of at least one dimension, by the ending of the name.
METADATA = {
    "shape": "const constant int*",
    "strides": "const constant int64_t*",
    "ndim": "const constant int&",
}

# Inputs with fewer elements lie in the constant address space.
SMALL = 8

# The files of helpers, in the order in which they build on each other, with the names that call for them.
_HELPERS = {
    "complex.metal": {"complex64_t"},
    "indexing.metal": {
        "elem_to_loc",
        "elem_to_loc_1",
        "elem_to_loc_2",
        "elem_to_loc_3",
        "elem_to_loc_2_nd",
        "elem_to_loc_3_nd",
        "LoopedElemToLoc",
    },
    "arithmetic.metal": {"ceildiv", "log1p"},
    "limits.metal": {"Limits"},
    "simdgroup.metal": {"simd_shuffle_down"},
}
_ALIASES = {"bfloat16_t": "bfloat", "float16_t": "half"}


# torch.mps.compile_shader has no option for the math mode, which a pragma chooses from Metal 3.2 on; below, safe, torch's
# default, then holds for all, which the other two modes allow. The macro that goes with the fast mode promises that there
# are no infinities and NaN, which the relaxed mode honours: it is that of the kernel's mode, not of the environment's.
_FAST_MATH = "#ifndef __FAST_MATH__\n#define __FAST_MATH__ 1\n#endif\n"
_NO_FAST_MATH = "#undef __FAST_MATH__\n"


@dataclass(frozen=True)
class Definition:
    """What a metal_kernel is made of; ``inputs`` are read, ``inouts`` read and written, both in the call's order."""

    name: str
    inputs: tuple[str, ...]
    inouts: frozenset[str]
    outputs: tuple[str, ...]
    header: str
    source: str
    ensure_row_contiguous: bool
    atomic_outputs: bool
    math_mode: str

    @property
    def owner(self) -> str:
        """How errors call the kernel."""
        return f"metal_kernel {self.name!r}"

    @property
    def function(self) -> str:
        """The name of the function in Metal."""
        return f"custom_kernel_{self.name}"


@dataclass(frozen=True)
class Input:
    """What the text depends on: small: fewer elements than SMALL; scalar: no dimensions."""

    dtype: torch.dtype
    small: bool
    scalar: bool


def element_type(dtype: torch.dtype) -> str:
    """The type of a tensor's elements; complex numbers have complex arithmetic, as in MLX."""
    return "complex64_t" if dtype == torch.complex64 else METAL_TYPES[dtype]


def metadata(definition: Definition, words: frozenset[str], scalars: tuple[bool, ...]):
    """The pairs (input position, ending) that become parameters. scalars: which inputs have no dimensions."""
    own = {*definition.inputs, *definition.outputs}
    return [
        (position, ending)
        for position, (name, scalar) in enumerate(zip(definition.inputs, scalars, strict=True))
        for ending in METADATA
        if not scalar and f"{name}_{ending}" in words and f"{name}_{ending}" not in own
    ]


def generate(
    definition: Definition,
    words: frozenset[str],
    inputs: tuple[Input, ...],
    output_dtypes: tuple[torch.dtype, ...],
    template: tuple[tuple[str, bool | int | torch.dtype], ...],
) -> str:
    """The whole text of a kernel. Buffers: inputs, outputs, metadata. words: the names that its source mentions."""
    buffers = [
        _input_parameter(definition, name, described)
        for name, described in zip(definition.inputs, inputs, strict=True)
    ]
    for name, dtype in zip(definition.outputs, output_dtypes, strict=True):
        element = element_type(dtype)
        if definition.atomic_outputs:
            element = f"atomic<{element}>"
        buffers.append(f"device {element}* {name}")
    scalars = tuple(described.scalar for described in inputs)
    for position, ending in metadata(definition, words, scalars):
        buffers.append(f"{METADATA[ending]} {definition.inputs[position]}_{ending}")
    parameters = [f"{text} [[buffer({index})]]" for index, text in enumerate(buffers)]
    parameters += [
        f"{attribute.type} {name} [[{name}]]"
        for name, attribute in THREAD_ATTRIBUTES.items()
        if name in words
    ]
    function = definition.function
    signature = f"[[kernel]] void {function}(\n    " + ",\n    ".join(parameters) + ") {"
    end = "}"
    if template:
        kinds = ", ".join(f"{_template_kind(value)} {name}" for name, value in template)
        values = ", ".join(_template_value(value) for _, value in template)
        signature = f"template <{kinds}>\n{signature}"
        instance = f"{function}<{values}>"
        end += f'\ntemplate [[host_name("{function}")]] [[kernel]] decltype({instance}) {instance};'
    called_for = words | mentioned(definition.header) | mentioned(f"{signature} {end}")
    parts = [_preamble(definition.math_mode, called_for)]
    if definition.header.strip():
        parts.append(user_text(f"{definition.name}.header", definition.header))
    parts += [
        generated_text(definition.name, signature),
        user_text(f"{definition.name}.source", definition.source),
        generated_text(definition.name, end),
    ]
    return "".join(parts)


def _input_parameter(definition: Definition, name: str, described: Input) -> str:
    element = element_type(described.dtype)
    if name in definition.inouts:
        return f"device {element}* {name}"
    space = "constant" if described.small else "device"
    return f"const {space} {element}{'&' if described.scalar else '*'} {name}"


def _template_kind(value: bool | int | torch.dtype) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else "typename"


def _template_value(value: bool | int | torch.dtype) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, torch.dtype):
        return element_type(value)
    # -2147483648 is the negation of a number that is no int.
    return str(value) if value > -(2**31) else "-2147483647 - 1"


def _preamble(math_mode: str, words: frozenset[str]) -> str:
    parts = [
        _FAST_MATH if math_mode == "fast" else _NO_FAST_MATH,
        "#include <metal_stdlib>\nusing namespace metal;\n",
        f"#if __METAL_VERSION__ >= 320\n#pragma METAL fp math_mode({math_mode})\n#endif\n",
    ]
    parts += [f"typedef {kind} {name};\n" for name, kind in _ALIASES.items() if name in words]
    parts += [_helper(file) for file, names in _HELPERS.items() if names & words]
    return "".join(parts)


@cache
def _helper(file: str) -> str:
    text = (resources.files(__package__) / "include" / file).read_text()
    return text.rstrip() + "\n"
