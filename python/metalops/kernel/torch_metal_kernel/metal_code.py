"""The Metal side of a TorchMetalKernel: checks the user's code and generates the kernel's text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from ...msl.analysis.restrictions import MAX_BUFFERS
from ..compile import generated_text, user_text
from ..dtypes import METAL_TYPES, metal_type
from ..identifiers import check_distinct, check_identifier, check_text
from .metal_parameter import MetalParameter
from .subscripts import as_calls
from .tensor_view import TENSOR_VIEW

# The type in which a scalar is passed, and its type in the kernel's body.
_SCALARS = {int: ("long", "int"), float: ("float", "float"), bool: ("long", "bool")}
_TENSOR_HEADERS = re.compile(
    r"(?m)^[ \t]*#[ \t]*(?:include|import)[ \t]*<(?:metal_tensor|MetalPerformancePrimitives/\w+\.h)>"
)


class Operand(NamedTuple):
    """An input or a result: a tensor of some rank and dtype, or with a rank of None a scalar, int, float or bool. texture:
    the type of the parameter, for a tensor that the kernel takes as a texture."""

    dtype: torch.dtype | type
    rank: int | None
    texture: str = ""


class MetalCode(NamedTuple):
    """The constructor's arguments, apart from torch_defn."""

    name: str
    input_names: tuple[str, ...]
    result_names: tuple[str, ...]
    src: str
    metal_params: tuple[MetalParameter, ...]
    helper_src: str | None
    template_dtypes: tuple[tuple[str, str], ...]
    textures: tuple[tuple[str, str], ...] = ()

    @property
    def owner(self) -> str:
        """The subject of errors."""
        return f"TorchMetalKernel {self.name!r}"

    @property
    def function(self) -> str:
        """The name of the kernel function, which must differ from a function that `src` calls."""
        return f"metalops_{self.name}"

    @property
    def has_room_for_extents(self) -> bool:
        """True if a buffer is left for the tensors' sizes, which are constants in the text otherwise."""
        return len(self.input_names) + len(self.result_names) < MAX_BUFFERS

    def text(
        self, inputs: Sequence[Operand], results: Sequence[Operand], extents: Sequence[int] | None
    ) -> str:
        """Returns the Metal source for inputs and results of these types. extents: those of all tensors, or None if
        they are a buffer of the kernel."""
        names = (*self.input_names, *self.result_names)
        operands = (*inputs, *results)
        parameters, locals_ = [], []
        first = 0  # offset of this tensor's extents
        index = -1
        for name, operand in zip(names, operands, strict=True):
            if operand.texture:
                parameters.append(f"{operand.texture} {name}")  # numbered by Metal, in order
                continue
            index += 1
            if operand.rank is None:
                arrives_as, is_a = _SCALARS[operand.dtype]
                parameters.append(f"constant {arrives_as}& metalops_{name} [[buffer({index})]]")
                locals_.append(f"const {is_a} {name} = static_cast<{is_a}>(metalops_{name});")
                continue
            element = self._metal_type(name, operand)
            parameters.append(f"device {element}* metalops_{name} [[buffer({index})]]")
            if operand.rank == 0 and not self._uses_as_tensor(name):
                locals_.append(f"device {element}& {name} = *metalops_{name};")
            else:
                kind = _view if not self._takes_tensors or operand.rank == 0 else _tensor
                locals_.append(kind(name, element, operand.rank, first))
                first += operand.rank
        # A struct rather than a pointer: compilers may load it once for all threads, whatever these write.
        text = "#include <metal_tensor>\n" if self._takes_tensors else ""
        text += f"{TENSOR_VIEW}struct metalops_sizes {{ long at[{max(first, 1)}]; }};\n"
        if extents is None:
            parameters.append(f"constant metalops_sizes& metalops_extents [[buffer({index + 1})]]")
        else:
            values = ", ".join(map(str, extents))
            text += f"constant metalops_sizes metalops_extents = {{{{{values}}}}};\n"
        types = dict(zip(self.input_names, inputs, strict=True))
        for placeholder, name in {p: name for name, p in self.template_dtypes}.items():
            text += f"using {placeholder} = {self._metal_type(name, types[name])};\n"
        subscripts = (lambda code: code) if self._takes_tensors else as_calls
        if self.helper_src is not None:
            text += user_text(f"{self.name}.helper_src", subscripts(self.helper_src))
        parameters += map(str, self.metal_params)
        head = f"kernel void {self.function}({', '.join(parameters)}) {{\n" + "\n".join(locals_)
        return (
            text
            + generated_text(self.name, head)
            + user_text(f"{self.name}.src", subscripts(self.src))
            + generated_text(self.name, "}")
        )

    @property
    def _takes_tensors(self) -> bool:
        """True if tensors are those of Metal 4: if the helpers include its header."""
        return _TENSOR_HEADERS.search(self.helper_src or "") is not None

    def _uses_as_tensor(self, name: str) -> bool:
        return re.search(rf"(?<![\w.]){name}\s*[\[.]", self.src) is not None

    def _metal_type(self, name: str, operand: Operand) -> str:
        if operand.rank is None:
            return _SCALARS[operand.dtype][1]
        role = f"input {name!r}" if name in self.input_names else f"result {name!r}"
        return metal_type(self.owner, role, operand.dtype)

    def check_templates(self, types: Sequence[torch.dtype | type]) -> None:
        """Raises ValueError if a name in template_dtypes stands for two types. types: of each input, int, float or bool
        for a scalar."""
        given = dict(zip(self.input_names, types, strict=True))
        first: dict[str, str] = {}
        for name, placeholder in self.template_dtypes:
            other = first.setdefault(placeholder, name)
            if _in_metal(given[name]) != _in_metal(given[other]):
                raise ValueError(
                    f"{self.owner}: template_dtypes makes {placeholder!r} the type of several inputs, but {name!r} is "
                    f"{_described(given[name])} and {other!r} is {_described(given[other])}"
                )


def _view(name: str, element: str, rank: int, first: int) -> str:
    return (
        f"const metalops::tensor_view<{element}, {rank}> "
        f"{name}(metalops_{name}, metalops_extents.at + {first});"
    )


def _tensor(name: str, element: str, rank: int, first: int) -> str:
    extents = f"metal::dextents<int, {rank}>"
    sizes = ", ".join(f"int(metalops_extents.at[{first + i}])" for i in range(rank))
    return (
        f"const metal::tensor<device {element}, {extents}, metal::tensor_inline> "
        f"{name}(metalops_{name}, {extents}({sizes}));"
    )


def _in_metal(kind: torch.dtype | type) -> str:
    """Returns the Metal type of such elements or scalars; for dtypes that Metal lacks, which references may take, their
    name."""
    return _SCALARS[kind][1] if kind in _SCALARS else METAL_TYPES.get(kind, str(kind))


def _described(kind: torch.dtype | type) -> str:
    return f"{_in_metal(kind)} ({kind if isinstance(kind, torch.dtype) else kind.__name__})"


def checked_code(
    name: str,
    input_names: Sequence[str],
    result_names: Sequence[str],
    src: str,
    metal_params: Sequence[MetalParameter] | None,
    helper_src: str | None,
    template_dtypes: Mapping[str, str] | None,
    textures: Mapping[str, str] | None,
) -> MetalCode:
    """Returns the constructor's arguments, checked. Raises TypeError or ValueError."""
    if isinstance(name, str) and not name.strip():
        raise ValueError(f"TorchMetalKernel: name must not be empty, but got {name!r}")
    check_identifier("TorchMetalKernel", "name", name)
    owner = f"TorchMetalKernel {name!r}"
    inputs = _names(owner, "input", input_names)
    results = _names(owner, "result", result_names)
    if not results:
        raise ValueError(f"{owner}: result_names must name at least one result")
    check_text(owner, "src", src)
    if helper_src is not None:
        check_text(owner, "helper_src", helper_src)
    parameters = _parameters(owner, metal_params)
    templates = _templates(owner, inputs, template_dtypes)
    check_distinct(
        owner,
        [
            ("input_names", inputs),
            ("result_names", results),
            ("metal_params", [parameter.name for parameter in parameters]),
            # Several inputs may share one name for their type.
            ("template_dtypes", dict.fromkeys(placeholder for _, placeholder in templates)),
        ],
    )
    count = len(inputs) + len(results) + len(parameters)
    if count > MAX_BUFFERS:
        raise ValueError(
            f"{owner}: {len(inputs)} inputs, {len(results)} results and {len(parameters)} metal_params are {count} "
            f"together, but a kernel can have at most {MAX_BUFFERS}"
        )
    of_textures = _textures(owner, (*inputs, *results), textures)
    return MetalCode(name, inputs, results, src, parameters, helper_src, templates, of_textures)


def _names(owner: str, role: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f"{owner}: {role}_names must be a list of strings, but got {names!r}")
    return tuple(check_identifier(owner, f"{role} name", name) for name in names)


def _parameters(owner: str, metal_params: object) -> tuple[MetalParameter, ...]:
    if metal_params is None:
        return ()
    if not isinstance(metal_params, Sequence):
        raise TypeError(
            f"{owner}: metal_params must be a list of MetalParameter, but got {metal_params!r}"
        )
    for parameter in metal_params:
        if not isinstance(parameter, MetalParameter):
            raise TypeError(
                f"{owner}: metal_params must be a list of MetalParameter, but it has {parameter!r}"
            )
    return tuple(metal_params)


def _textures(owner: str, names: Sequence[str], textures: object) -> tuple[tuple[str, str], ...]:
    if textures is None:
        return ()
    if not isinstance(textures, Mapping):
        raise TypeError(
            f"{owner}: textures must be a dict of names and pixel formats, but got {textures!r}"
        )
    for name, text in textures.items():
        if name not in names:
            raise ValueError(
                f"{owner}: textures has {name!r}, but the inputs and results are {', '.join(names)}"
            )
        check_text(owner, f"the format of {name!r} in textures", text)
    return tuple(textures.items())


def _templates(
    owner: str, inputs: Sequence[str], template_dtypes: object
) -> tuple[tuple[str, str], ...]:
    if template_dtypes is None:
        return ()
    if not isinstance(template_dtypes, Mapping):
        raise TypeError(
            f"{owner}: template_dtypes must be a dict of input names and names for their types, "
            f"but got {template_dtypes!r}"
        )
    for name, placeholder in template_dtypes.items():
        if name not in inputs:
            raise ValueError(
                f"{owner}: template_dtypes has {name!r}, but the inputs are {', '.join(inputs) or 'none'}"
            )
        check_identifier(
            owner, f"the name for the type of {name!r} in template_dtypes", placeholder
        )
    return tuple(template_dtypes.items())
