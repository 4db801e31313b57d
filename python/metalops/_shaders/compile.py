"""metalops.compile_shader, for each device."""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping

import torch

from .. import msl
from ..msl.source import languages
from .declared import Declared, of_source, preprocessed
from .definitions import define
from .textured import TexturedKernel
from .values import Value

# A source without these words declares nothing to give values to.
_WORDS = re.compile(r"\b(?:function_constant|threadgroup)\b")
_HANDLES = re.compile("tensor|texture|depth|sampler")


class Shader:
    """The kernels of a Metal source, as attributes: objects like those of torch.mps.compile_shader."""

    def __init__(
        self,
        declared: Declared,
        values: Mapping[int, bytes],
        sizes: Mapping[int, int],
        names: Callable[[], list[str]],
        kernel: Callable[[str], object],
    ):
        self._declared = declared
        self._values = values
        self._sizes = sizes
        self._names = names
        self._kernel = kernel

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        self._declared.check_complete(name, self._values, self._sizes)
        kernel = self.__dict__[name] = self._kernel(name)
        return kernel

    def __dir__(self) -> list[str]:
        return self._names()


def compile_shader(
    source: str,
    constants: Mapping[int | str, Value] | None = None,
    threadgroup_memory: Mapping[int, int] | None = None,
    language: str | None = None,
):
    """Compiles Metal source; its kernels are the attributes of the result, as those of torch.mps.compile_shader.

    For mps tensors; where there is no mps device, for CUDA tensors, as metalops.cuda.compile_shader.

    Args:
        source: whole kernels in Metal. A parameter that is a tensor by a handle (Metal 4), as tensor<device half,
            dextents<int, 2>>, takes a torch tensor, with its extents listed innermost first. A texture takes what
            metalops.texture makes, a sampler what metalops.sampler makes.
        constants: values of function constants, by name or index. A bool, an int or a float for a scalar of such a
            type, a sequence of them for a vector, or the bytes of the constant. A kernel needs values of the constants
            that it reaches, except those that the source tests with is_function_constant_defined.
        threadgroup_memory: how many bytes each [[threadgroup(index)]] argument of the kernels has, by index; together at
            most 32 KiB with what a kernel declares itself.
        language: the Metal version, "3.1", "3.2", "4.0" or "4.1"; by default METALOPS_METAL_VERSION, else
            PYTORCH_MPS_METAL_VERSION, else 4.0. On a Mac the version is that of its system, and no other is accepted.

    Raises:
        SyntaxError: the source is not valid Metal; with the line and column.
        NotImplementedError: at the attribute of a kernel: on a Mac it takes tensors by handles, which torch does not
            pass there.
        ValueError: the source has no such constant or no such threadgroup argument; a value does not fit; too many
            bytes; an unknown language. At the attribute of a kernel: a value or a size that it needs is missing.
        TypeError: a value of another type than its constant.
    """
    if not isinstance(source, str):
        raise TypeError(
            f"compile_shader(): argument 'source' must be str, not {type(source).__name__}"
        )
    if not torch.backends.mps.is_available():
        from .. import cuda

        return cuda.compile_shader(source, constants, threadgroup_memory, language)
    is_mac = sys.platform == "darwin"
    number = languages.current() if language is None else languages.number_of(language)
    if is_mac:
        number = _language_of_mac(language)
    options = msl.runtime_options(number)
    declared = Declared()
    # Arguments that are tensors, textures or samplers are rejected only on a Mac.
    if (
        constants
        or threadgroup_memory
        or _WORDS.search(source)
        or (is_mac and _HANDLES.search(source))
    ):
        declared = of_source(source, options)
    values = declared.values(constants)
    sizes = declared.check_memory(threadgroup_memory)
    if is_mac:
        return by_definition(source, declared, values, sizes)
    return _on_software_device(source, declared, values, sizes, options)


def by_definition(
    source: str, declared: Declared, values: Mapping[int, bytes], sizes: Mapping[int, int]
) -> Shader:
    """Compiles with constants and memory written into the text: for torch's own Metal runtime, which cannot be given
    them otherwise."""
    text = define(source, declared, values, sizes)
    library = torch.mps.compile_shader(text)
    textured = functools.cache(lambda: _textured_library(text))

    def kernel(name: str):
        for argument in declared.handles.get(name, ()):
            raise NotImplementedError(
                f"kernel {name!r}: argument {argument!r} is a tensor, which torch cannot pass to a kernel on a Mac; pass a pointer, "
                "and make the tensor of it in the kernel (tensor_inline)"
            )
        arguments = declared.textures_of(name, values)
        if not arguments:
            return getattr(library, name)
        for argument in arguments:
            if argument.index < 0:
                raise NotImplementedError(
                    f"kernel {name!r}: the index of argument {argument.name!r} must be written as a number on a Mac"
                )
        return TexturedKernel(textured()(name), name, arguments)

    return Shader(declared, values, sizes, lambda: dir(library), kernel)


def _textured_library(text: str) -> Callable[[str], object]:
    """Returns what makes the launchers of kernels with textures and samplers, by name."""
    from .. import _C

    library = _C.ShaderLibrary(text)
    return lambda name: _C.TexturedKernel(library, name)


def _on_software_device(
    source: str,
    declared: Declared,
    values: Mapping[int, bytes],
    sizes: Mapping[int, int],
    options: msl.Options,
) -> Shader:
    from .. import _host

    path = msl.compile_source(source, options=options, read=lambda: preprocessed(source, options))
    library = _host.Library(os.fspath(path))
    if values:
        library = library.specialise(values)
    return Shader(
        declared,
        values,
        sizes,
        library.names,
        lambda name: _host.kernel_function(library, name, sizes),
    )


def _language_of_mac(asked: str | None) -> int:
    """Returns the Metal version that torch compiles with on this Mac. Raises ValueError if another version was asked
    for."""
    system = int(platform.mac_ver()[0].split(".")[0] or 0)
    number = languages.LANGUAGES["4.0" if system >= 26 else "3.2" if system >= 15 else "3.1"]
    if asked is not None and languages.number_of(asked) != number:
        raise ValueError(
            f"language is {asked!r}, but torch compiles in Metal {languages.name_of(number)} on this Mac"
        )
    return number
