"""The Metal text of a functor: for each dtype of its inputs one source with the forward and the backward kernels.

The choice of kernels must agree with csrc/python/functor.cpp: those that torch's exec_unary_kernel, exec_binary_kernel
and exec_ternary_kernel look for, registered with torch's own macros, where these support the operator's numbers of
inputs, results and scalars; else three of metalops's own, launched by <metalops/elementwise_launch.h>. For CUDA tensors
there are others, launched by cuda_launch.py, which take four elements at a time, and, in sources of their own, those
for transposed operands.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...build.paths import include_paths
from ...msl.flatten import flatten_text
from ..compile import generated_text, user_text
from ..identifiers import mentioned
from . import crossed_tiles
from .definition import COMPLEX_TYPES, FLOAT_TYPES, INTEGER_TYPES, Definition, Parameter
from .places import PLACES

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[^\n]*", re.MULTILINE)
_SCALAR_TYPES = {bool: "bool", int: "long", float: "float"}
# Four contiguous elements, which a GPU loads and stores at once.
_FOUR = """template <typename T>
struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) metalops_four {
  T values[4];
};
"""
_CROSSED = "#include <metalops/crossed_tiles.h>"
_ARITIES = {1: "UNARY", 2: "BINARY", 3: "TERNARY"}


@dataclass(frozen=True)
class Operator:
    """One of the two operators, for one dtype of its inputs.

    element, compute, result: the Metal types of an input's elements, of the variables that the expressions see and of
    the results. lines: the expressions, each between lines of its own that number it for the compiler. has_mask: true
    if the bits of the last scalar say which results are wanted, as in <metalops/backward.h>.
    """

    name: str
    element: str
    compute: str
    result: str
    inputs: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    before: str
    lines: tuple[str, ...]
    has_mask: bool = False

    @property
    def uses_torch(self) -> bool:
        scalars = 1 if len(self.inputs) < 3 else 0
        return len(self.lines) == 1 and len(self.inputs) <= 3 and len(self.parameters) <= scalars


def needed_by_gradient(definition: Definition) -> frozenset[str]:
    """Returns the inputs and parameters that the expressions of the gradient depend on; with torch_grad, which takes
    them, all."""
    everything = frozenset(definition.inputs) | {p.name for p in definition.parameters}
    if definition.torch_grad is not None:
        return everything
    names = mentioned(" ".join(definition.grad or ()))
    if names & set(definition.outputs):
        # The results are recomputed.
        forward = (
            everything if definition.is_struct else mentioned(" ".join(definition.expressions))
        )
        names |= forward
    return names & everything


def source(
    definition: Definition,
    element: str,
    for_mps: bool = True,
    crossed: crossed_tiles.Kernel | None = None,
    is_backward: bool = False,
) -> str:
    """Returns the Metal source for inputs whose elements are of the type `element`. It includes nothing but Metal's
    headers. for_mps: true to write the kernels that torch's classes look for, if there are any. crossed: one kernel
    alone, for transposed CUDA tensors; is_backward: that of the gradients."""
    d = definition
    texts = [d.header, *d.expressions[: d.is_struct]]
    includes = [x.strip() for text in texts for x in _INCLUDE.findall(text)]
    if "c10" in mentioned(" ".join([d.header, *d.expressions, *(d.grad or ())])):
        includes.append("#include <c10/metal/special_math.h>")  # too large to be included always
    if crossed:
        includes.append(_CROSSED)
    parts = [_prelude(tuple(includes))]
    for label, text in zip((f"{d.name}.header", f"{d.name}.functor"), texts, strict=False):
        if text.strip():
            parts.append(user_text(label, _INCLUDE.sub("", text)))
    if crossed:
        operator = (_backward if is_backward else _forward)(d, element)
        parts.append(generated_text(d.name, _crossed_operator(operator, crossed)))
        return "".join(parts)
    operators = [_forward(d, element)]
    if d.grad is not None and element not in INTEGER_TYPES:
        operators.append(_backward(d, element))
    texts = [
        _torch_operator(o) if for_mps and o.uses_torch else _own_operator(o, for_mps)
        for o in operators
    ]
    parts.append(generated_text(d.name, "\n".join([*([] if for_mps else [_FOUR]), *texts])))
    return "".join(parts)


def source_for_cuda(
    text: str, operator: Operator, crossed: crossed_tiles.Kernel | None = None
) -> str:
    """Returns the Metal source of an operator whose expressions call functions of a text. crossed: as for source."""
    if crossed:
        text += flatten_text(_CROSSED, include_paths()) + "\n"
        return text + generated_text(operator.name, _crossed_operator(operator, crossed))
    return text + generated_text(operator.name, "\n".join([_FOUR, _own_operator(operator, False)]))


@functools.cache
def _prelude(includes: tuple[str, ...]) -> str:
    lines = [
        "#include <c10/metal/indexing.h>",
        "#include <metalops/registration.h>",
        *includes,
        "#include <metal_stdlib>",
        "using namespace metal;",
    ]
    return flatten_text("\n".join(lines), include_paths()) + "\n"


def _forward(d: Definition, element: str) -> Operator:
    compute = _compute_type(d, element)
    result = _result_type(d, element)
    before = ""
    if d.is_struct:
        values = _struct_values(d)
        if len(d.outputs) > 1:
            before = f"    const auto metalops_values = {_struct_call(d)};\n"
        lines = tuple(f"{value};\n" for value in values)
    else:
        lines = _numbered(d.name, "expression", d.expressions)
    return Operator(
        f"metalops_{d.name}", element, compute, result, d.inputs, d.parameters, before, lines
    )


def _backward(d: Definition, element: str) -> Operator:
    needed = needed_by_gradient(d)
    inputs = (*d.gradient_names, *(x for x in d.inputs if x in needed))
    parameters = tuple(p for p in d.parameters if p.name in needed)
    before = ""
    if mentioned(" ".join(d.grad)) & set(d.outputs):
        if d.is_struct:
            before = f"    const auto metalops_values = {_struct_call(d)};\n"
            values = _struct_values(d) if len(d.outputs) > 1 else ["metalops_values"]
            lines = [f"{value};\n" for value in values]
        else:
            lines = _numbered(d.name, "expression", d.expressions)
        for output, line in zip(d.outputs, lines, strict=True):
            before += f"    const auto {output} =\n{line}"
    lines = tuple(
        line for i, text in enumerate(d.grad) for line in _numbered(d.name, f"grad[{i}]", [text])
    )
    compute = _compute_type(d, element)
    return Operator(
        f"metalops_{d.name}_backward",
        element,
        compute,
        element,
        inputs,
        parameters,
        before,
        lines,
        has_mask=len(lines) > 1,
    )


def _numbered(name: str, label: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Returns the expressions, each with the semicolon that ends it: an incomplete expression fails there."""
    labels = [label] if len(texts) == 1 else [f"{label}[{i}]" for i in range(len(texts))]
    return tuple(
        user_text(f"{name}.{one}", f"{text}\n;") + generated_text(name, "")
        for one, text in zip(labels, texts, strict=True)
    )


def _struct_call(d: Definition) -> str:
    arguments = [*d.inputs, *(p.name for p in d.parameters)]
    return f"{d.name}_functor()({', '.join(arguments)})"


def _struct_values(d: Definition) -> list[str]:
    if len(d.outputs) == 1:
        return [_struct_call(d)]
    return [f"metalops_values[{i}]" for i in range(len(d.outputs))]


def _compute_type(d: Definition, element: str) -> str:
    if element in COMPLEX_TYPES:
        return "float2"
    return "float" if element in FLOAT_TYPES or d.integers == "float" else element


def _result_type(d: Definition, element: str) -> str:
    if d.result == "bool":
        return "bool"
    if d.result == "real" and element in COMPLEX_TYPES:
        return {"float2": "float", "half2": "half"}[element]
    return "float" if element in INTEGER_TYPES and d.integers == "float" else element


def _variables(o: Operator) -> str:
    """Declares the inputs by the names that the expressions use."""
    return "".join(
        f"    const {o.compute} {name} = c10::metal::cast_to<{o.compute}>(metalops_in{i});\n"
        for i, name in enumerate(o.inputs)
    )


def _torch_operator(o: Operator) -> str:
    arguments = [f"const metalops_T metalops_in{i}" for i in range(len(o.inputs))]
    arguments += [f"const {_SCALAR_TYPES[p.kind]} {p.name}" for p in o.parameters]
    functor = (
        f"struct {o.name}_functor {{\n"
        f"  template <typename metalops_T>\n"
        f"  inline {o.result} operator()({', '.join(arguments)}) {{\n"
        f"{_variables(o)}{o.before}"
        f"    const auto metalops_result =\n{o.lines[0]}"
        f"    return c10::metal::cast_to<{o.result}>(metalops_result);\n"
        f"  }}\n"
        f"}};\n"
    )
    arity = _ARITIES[len(o.inputs)]
    if o.parameters:
        scalar = _SCALAR_TYPES[o.parameters[0].kind]
        return f"{functor}REGISTER_{arity}_ALPHA_OP({o.name}, {o.element}, {scalar}, {o.result});\n"
    # Half precision is read in float if the operands' dtypes differ.
    opmath = "OPMATH_" if len(o.inputs) > 1 and o.compute != o.element else ""
    return f"{functor}REGISTER_{opmath}{arity}_OP({o.name}, {o.element}, {o.result});\n"


def _own_operator(o: Operator, for_mps: bool) -> str:
    variants = ["dense", "rows", "strided"]
    if not for_mps:
        variants = ["four", "fourrows", "fourstrided"]
    kernels = [_own_kernel(o, variant) for variant in variants]
    return _values(o) + "".join(kernels)


def _values(o: Operator) -> str:
    """Returns the function that computes the results of one position."""
    outputs = range(len(o.lines))
    inputs = range(len(o.inputs))
    arguments = [f"const {o.element} metalops_in{i}" for i in inputs]
    arguments += [f"const {_SCALAR_TYPES[p.kind]} {p.name}" for p in o.parameters]
    arguments += [f"thread {o.result}& metalops_out{i}" for i in outputs]
    results = "".join(
        f"    const auto metalops_result{i} =\n{line}"
        f"    metalops_out{i} = c10::metal::cast_to<{o.result}>(metalops_result{i});\n"
        for i, line in enumerate(o.lines)
    )
    return f"inline void {o.name}_values({', '.join(arguments)}) {{\n{_variables(o)}{o.before}{results}}}\n"


def _crossed_operator(o: Operator, kernel: crossed_tiles.Kernel) -> str:
    """Returns a kernel of <metalops/crossed_tiles.h>. It writes all gradients, wanted or not."""
    outputs, operands = range(len(o.lines)), len(o.lines) + len(o.inputs)
    inputs = range(len(o.lines), operands)
    side, own = kernel.side, kernel.packs[0]
    buffers = [f"device {o.result}* metalops_p{n}" for n in outputs]
    buffers += [f"constant {o.element}* metalops_p{n}" for n in inputs]
    buffers += [f"constant {_SCALAR_TYPES[p.kind]}& {p.name}" for p in o.parameters]
    buffers += ["constant long& metalops_wanted"] * o.has_mask
    buffers.append(f"constant ::metalops::CrossedLayout<{operands}>& metalops_layout")
    parameters = [f"{buffer} [[buffer({i})]]" for i, buffer in enumerate(buffers)]
    parameters.append("uint metalops_group [[threadgroup_position_in_grid]]")
    parameters.append("uint metalops_thread [[thread_index_in_threadgroup]]")
    values = [f"metalops_v{n}[metalops_k]" for n in inputs]
    values += [*(p.name for p in o.parameters), *(f"metalops_result{n}" for n in outputs)]

    def call(function: str, type: str, *arguments: object) -> str:
        first = f"{type}, {side}, {own}"
        return f"::metalops::crossed_{function}<{', '.join(map(str, (first, *arguments)))}>"

    lines = [
        f"threadgroup {o.element} metalops_memory[{side * (side + 1)}];",
        f"const auto metalops_place = ::metalops::crossed_place<{side}>(metalops_group, metalops_thread, metalops_layout);",
    ]
    # All loads are issued before the first is waited for.
    for n in inputs:
        load = call("load", o.element, kernel.packs[n], str(kernel.crosses[n]).lower())
        lines.append(
            f"auto metalops_v{n} = {load}(metalops_p{n}, {n}, metalops_place, metalops_layout);"
        )
    for n in inputs:
        if kernel.crosses[n]:
            exchange = call("exchange", o.element, kernel.packs[n])
            lines.append(
                f"metalops_v{n} = {exchange}(metalops_v{n}, metalops_memory, metalops_thread);"
            )
    lines += [
        *(f"::metalops::CrossedTile<{o.result}> metalops_v{n};" for n in outputs),
        f"for (uint metalops_k = 0; metalops_k < {crossed_tiles.ELEMENTS}; ++metalops_k) {{",
        *(f"{o.result} metalops_result{n};" for n in outputs),
        f"{o.name}_values({', '.join(values)});",
        *(f"metalops_v{n}[metalops_k] = metalops_result{n};" for n in outputs),
        "}",
        *(
            f"{call('store', o.result)}(metalops_v{n}, metalops_p{n}, {n}, metalops_place, metalops_layout);"
            for n in outputs
        ),
    ]
    body = "".join(f"  {line}\n" for line in lines)
    return f"{_values(o)}kernel void {o.name}_crossed_{o.element}({', '.join(parameters)}) {{\n{body}}}\n"


def _own_kernel(o: Operator, variant: str) -> str:
    outputs, operands = range(len(o.lines)), range(len(o.lines) + len(o.inputs))
    inputs = operands[len(outputs) :]
    result, element = o.result, o.element
    if variant in ("four", "fourrows"):
        result, element = f"metalops_four<{result}>", f"metalops_four<{element}>"
    buffers = [f"device {result}* metalops_p{n}" for n in outputs]
    buffers += [f"constant {element}* metalops_p{n}" for n in inputs]
    buffers += [f"constant {_SCALAR_TYPES[p.kind]}& {p.name}" for p in o.parameters]
    buffers += ["constant long& metalops_wanted"] * o.has_mask
    if variant in ("rows", "fourrows"):
        buffers.append("constant long* metalops_rows")
    elif variant in ("strided", "fourstrided"):
        buffers += [
            "constant long* metalops_sizes",
            "constant long* metalops_strides",  # in bytes
            "constant uint& metalops_ndim",
        ]
    parameters = [f"{buffer} [[buffer({i})]]" for i, buffer in enumerate(buffers)]
    thread = "uint" if variant in ("dense", "four") else "uint2"
    parameters.append(f"{thread} metalops_position [[thread_position_in_grid]]")
    before, reads, writes, after = PLACES[variant](result, element, outputs, inputs)
    results = [f"metalops_result{n}" for n in outputs]
    values = [*reads, *(p.name for p in o.parameters), *results]
    body = [*before, *(f"{o.result} {name};" for name in results)]
    body.append(f"{o.name}_values({', '.join(values)});")
    if o.has_mask:
        wanted = [f"metalops_wanted & {1 << n} ? {result} : " for n, result in enumerate(results)]
        body.append(f"const {o.result} metalops_first = {''.join(wanted[:-1])}{results[-1]};")
        results = [f"{choice}metalops_first" for choice in wanted]
    body += [f"{write} = {result};" for write, result in zip(writes, results, strict=True)]
    lines = "".join(f"  {line}\n" for line in [*body, *after])
    return f"kernel void {o.name}_{variant}_{o.element}({', '.join(parameters)}) {{\n{lines}}}\n"
