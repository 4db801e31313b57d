"""The Metal text around the body of a metal_kernel: helpers, template, parameters, instantiation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import torch

from ...msl.source.vocabulary import THREAD_ATTRIBUTES
from ..compile import generated_text, user_text
from ..dtypes import METAL_TYPES
from ..identifiers import mentioned

# Metadata that a kernel can use of an input of at least one dimension, by the ending of the name.
METADATA = {
    "shape": "const constant int*",
    "strides": "const constant int64_t*",
    "ndim": "const constant int&",
}
# Metadata of outputs, too: a tensor of Metal 4, made of the extents and strides that are passed.
TENSOR = "tensor"
_TENSOR_PARAMETER = "const constant int64_t*"

# Inputs with fewer elements are in the constant address space.
SMALL = 8

# The files of helpers, in the order in which they build on each other, with the names that require them.
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


# torch.mps.compile_shader has no option for the math mode, which a pragma chooses from Metal 3.2 on; before, torch's
# default, safe, holds for all, which the other two modes allow. The macro of the fast mode promises that there are no
# infinities and NaN, which the relaxed mode honours: it follows the kernel's mode, not the environment's.
_FAST_MATH = "#ifndef __FAST_MATH__\n#define __FAST_MATH__ 1\n#endif\n"
_NO_FAST_MATH = "#undef __FAST_MATH__\n"


@dataclass(frozen=True)
class Definition:
    """The definition of a metal_kernel; ``inputs`` are read, ``inouts`` read and written, both in the call's order."""

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
        """The kernel's name in errors."""
        return f"metal_kernel {self.name!r}"

    @property
    def function(self) -> str:
        """The name of the function in Metal."""
        return f"custom_kernel_{self.name}"


@dataclass(frozen=True)
class Input:
    """The properties of an input that the text depends on. small: fewer elements than SMALL; rank: the number of
    dimensions. handle: the type of a texture or sampler, which has no dtype; empty for a tensor or scalar."""

    dtype: torch.dtype | None
    small: bool
    rank: int
    handle: str = ""


@dataclass(frozen=True)
class Output:
    """The properties of an output that the text depends on. rank: the number of dimensions, 0 for a texture. handle: the
    type of a texture; empty for a tensor."""

    dtype: torch.dtype
    rank: int
    handle: str = ""


def element_type(dtype: torch.dtype) -> str:
    """Returns the type of a tensor's elements; complex numbers have complex arithmetic, as in MLX."""
    return "complex64_t" if dtype == torch.complex64 else METAL_TYPES[dtype]


def metadata(
    definition: Definition, words: frozenset[str], ranks: Sequence[int]
) -> list[tuple[int, str]]:
    """Returns the pairs (position, ending) that become parameters. ranks: of the inputs, then the outputs, as positions
    count."""
    names = [*definition.inputs, *definition.outputs]
    found = []
    for position, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        is_output = position >= len(definition.inputs)
        endings = [] if is_output else [*METADATA]
        if not (is_output and definition.atomic_outputs):
            endings.append(TENSOR)
        found += [
            (position, ending)
            for ending in endings
            if rank and f"{name}_{ending}" in words and f"{name}_{ending}" not in names
        ]
    return found


def generate(
    definition: Definition,
    words: frozenset[str],
    inputs: tuple[Input, ...],
    outputs: Sequence[Output],
    template: tuple[tuple[str, bool | int | torch.dtype], ...],
) -> str:
    """Returns the whole text of a kernel. Buffers: inputs, outputs, metadata. words: the names that its source
    mentions."""
    ranks = [described.rank for described in (*inputs, *outputs)]
    asked = metadata(definition, words, ranks)
    tensors = [position for position, ending in asked if ending == TENSOR]
    buffers = [
        _input_parameter(definition, name, described, position in tensors)
        for position, (name, described) in enumerate(zip(definition.inputs, inputs, strict=True))
        if not described.handle
    ]
    for name, described in zip(definition.outputs, outputs, strict=True):
        if described.handle:
            continue
        element = element_type(described.dtype)
        if definition.atomic_outputs:
            element = f"atomic<{element}>"
        buffers.append(f"device {element}* {name}")
    names = [*definition.inputs, *definition.outputs]
    for position, ending in asked:
        if ending == TENSOR:
            buffers.append(f"{_TENSOR_PARAMETER} {_layout(names[position])}")
        else:
            buffers.append(f"{METADATA[ending]} {names[position]}_{ending}")
    parameters = [f"{text} [[buffer({index})]]" for index, text in enumerate(buffers)]
    parameters += [  # numbered by Metal, in order
        f"{described.handle} {name}"
        for name, described in zip(names, (*inputs, *outputs), strict=True)
        if described.handle
    ]
    parameters += [
        f"{attribute.type} {name} [[{name}]]"
        for name, attribute in THREAD_ATTRIBUTES.items()
        if name in words
    ]
    function = definition.function
    signature = f"[[kernel]] void {function}(\n    " + ",\n    ".join(parameters) + ") {"
    dtypes = [described.dtype for described in (*inputs, *outputs)]
    signature += "".join(
        _tensor(names[position], dtypes[position], ranks[position]) for position in tensors
    )
    end = "}"
    if template:
        kinds = ", ".join(f"{_template_kind(value)} {name}" for name, value in template)
        values = ", ".join(_template_value(value) for _, value in template)
        signature = f"template <{kinds}>\n{signature}"
        instance = f"{function}<{values}>"
        end += f'\ntemplate [[host_name("{function}")]] [[kernel]] decltype({instance}) {instance};'
    called_for = words | mentioned(definition.header) | mentioned(f"{signature} {end}")
    parts = [_preamble(definition.math_mode, called_for)]
    if tensors:
        parts.append("#include <metal_tensor>\n")
    if definition.header.strip():
        parts.append(user_text(f"{definition.name}.header", definition.header))
    parts += [
        generated_text(definition.name, signature),
        user_text(f"{definition.name}.source", definition.source),
        generated_text(definition.name, end),
    ]
    return "".join(parts)


def _input_parameter(definition: Definition, name: str, described: Input, has_tensor: bool) -> str:
    element = element_type(described.dtype)
    if name in definition.inouts:
        return f"device {element}* {name}"
    # Tile GEMM takes no constant tensors.
    space = "constant" if described.small and not has_tensor else "device"
    return f"const {space} {element}{'*' if described.rank else '&'} {name}"


def _layout(name: str) -> str:
    return f"metalops_{name}_layout"


def _tensor(name: str, dtype: torch.dtype, rank: int) -> str:
    """Returns the declaration of a tensor of Metal 4, whose dimensions are listed innermost first."""
    element = f"device {element_type(dtype)}"
    numbers = [f"int({_layout(name)}[{i}])" for i in range(2 * rank)]
    extents = f"metal::dextents<int, {rank}>"
    # Its elements are not const, which tile GEMM may not accept.
    return (
        f"\nconst metal::tensor<{element}, {extents}, metal::tensor_inline> {name}_{TENSOR}(({element}*){name}, "
        f"{extents}({', '.join(numbers[:rank])}), metal::array<int, {rank}>({{{', '.join(numbers[rank:])}}}));"
    )


def _template_kind(value: bool | int | torch.dtype) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else "typename"


def _template_value(value: bool | int | torch.dtype) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, torch.dtype):
        return element_type(value)
    # -2147483648 is the negation of a literal that is no int.
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
