"""Kernel files on CUDA tensors: the kernels of X.metal in kernels/, compiled one by one, the parameter structs of X.h,
and the launch functions of <metalops/launch.h>."""

from __future__ import annotations

import ctypes
import enum
import functools
import os
import re
import struct
from collections.abc import Sequence
from glob import glob
from types import SimpleNamespace

import torch
from torch import Tensor

from ... import _environment

_PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))

# Metal's names of the dtypes that kernels are compiled for.
TYPES = {
    torch.float32: "float",
    torch.float16: "half",
    torch.bfloat16: "bfloat",
    torch.int8: "char",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
}
MOST_THREADS = 2**32 - 1  # of a grid, in each dimension

# An argument of a kernel. 0 stands for an absent tensor.
Argument = Tensor | bytes | int


def root() -> str:
    """Returns the folder that holds kernels/, whose files include each other by their paths from there: that of the
    source tree, or the package, into which setup.py copies kernels/ on installation."""
    if os.path.isdir(os.path.join(_PACKAGE, "kernels")):
        return _PACKAGE
    return os.path.dirname(os.path.dirname(_PACKAGE))


def path_of(name: str) -> str:
    """Returns the path of a kernel file or header, which lies in the folder of its subject. name: with its ending."""
    found = glob(os.path.join("kernels", "**", name), root_dir=root(), recursive=True)
    if len(found) != 1:
        raise FileNotFoundError(f"there are {len(found)} files {name} in {root()}/kernels")
    return os.path.join(root(), found[0])


def text_of(file: str) -> str:
    """Returns a kernel file with all that it includes. file: its name without its ending."""
    from ...build.paths import include_paths
    from ...msl.flatten import flatten

    return flatten(path_of(f"{file}.metal"), [root(), *include_paths()])


# ---- parameters ------------------------------------------------------------------------------------

_NUMBERS = {
    "bool": ctypes.c_bool,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
}
_COMMENT = re.compile(r"//[^\n]*")
_OF_KERNELS = re.compile(r"#ifdef __METAL__.*", re.DOTALL)
_INCLUDED = re.compile(r"#include <kernels/(?:\w+/)*(\w+)\.h>")
_TYPE = re.compile(
    r"enum class (?P<enum>\w+) : int32_t \{(?P<values>[^}]*)\};|struct (?P<struct>\w+) \{(?P<fields>[^}]*)\};"
)
_FIELD = re.compile(r"(\w+) (\w+)(?:\[(\d+)\])?;")
_VALUE = re.compile(r"(\w+)(?: = (-?\d+))?,?")


@functools.cache
def header(file: str) -> SimpleNamespace:
    """Returns the types of the header <file>.h of kernels/, and of those that it includes from there: structs with
    ctypes's layout, which is that of C++, and enumerations. Parts for kernels only are left out."""
    with open(path_of(f"{file}.h"), encoding="utf-8") as stream:
        text = _OF_KERNELS.sub("", _COMMENT.sub("", stream.read()))
    types: dict[str, type] = {}
    for included in _INCLUDED.findall(text):
        types |= vars(header(included))

    def stored_as(kind: str) -> type:
        found = _NUMBERS.get(kind) or types[kind]
        return ctypes.c_int32 if issubclass(found, enum.IntEnum) else found

    for found in _TYPE.finditer(text):
        if found["enum"]:
            name, values = found["enum"], {}
            for called, number in _VALUE.findall(found["values"]):
                values[called] = int(number) if number else max(values.values(), default=-1) + 1
            types[name] = enum.IntEnum(name, values)
        else:
            name = found["struct"]
            fields = [
                (called, stored_as(kind) * int(count) if count else stored_as(kind))
                for kind, called, count in _FIELD.findall(found["fields"])
            ]
            types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return SimpleNamespace(**types)


# ---- launches --------------------------------------------------------------------------------------


def has_tensors() -> bool:
    """Returns true if kernels use the GEMM of Metal 4's tensors, by METALOPS_MATMUL and the Metal version."""
    from ...msl.source import languages

    chosen = _environment.value("METALOPS_MATMUL")
    return chosen == "tensor" or (not chosen and languages.current() >= languages.LANGUAGES["4.0"])


@functools.cache
def _library(file: str, kernel: str, tensors: bool):
    from ...cuda.library import Library
    from ...msl.source import languages
    from ...msl.targets.host.tensors import OF_TENSOR_CORES

    return Library(
        text_of(file),
        file,
        kernels=[kernel],
        language=languages.LANGUAGES["4.0"] if tensors else languages.FLOOR,
        cooperative_layout=OF_TENSOR_CORES,
    )


def launch(
    file: str,
    kernel: str,
    tensors: bool,
    arguments: Sequence[Argument],
    grid: Sequence[int],
    group: Sequence[int] | None,
) -> None:
    """Launches a kernel of <file>.metal. tensors: the GEMMs of the file use tensors. group: of a threadgroup, by
    default a usual one."""
    from ...cuda.function import USUAL_GROUP, group_within

    grid = tuple(grid)
    group = group_within(grid, USUAL_GROUP) if group is None else tuple(group)
    _library(file, kernel, tensors).launch(kernel, arguments, grid, group)


class KernelFile:
    """The kernels of <file>.metal. has_products: true if the GEMMs of the file use tensors if has_tensors() says so."""

    def __init__(self, file: str, has_products: bool = False):
        self._file = file
        self._has_products = has_products

    def threadgroups(self, kernel: str, groups: int, size: int, *arguments: Argument) -> None:
        """Launches `groups` threadgroups of `size` threads, together at most MOST_THREADS."""
        if groups > 0:
            self._launch(kernel, (groups * size,), (size,), arguments)

    def simdgroups(self, kernel: str, count: int, *arguments: Argument) -> None:
        """Launches at least `count` simdgroups, eight in a threadgroup, or fewer if parts of a GPU would be idle
        otherwise."""
        if count == 0:
            return
        together = min(max(count // 1024, 1), 8)
        columns = min(-(-count // together) * together, 2**25)
        grid = columns * 32, -(-count // columns)
        self._launch(kernel, grid, (together * 32, 1), arguments)

    def grid(self, kernel: str, grid: Sequence[int], *arguments: Argument) -> None:
        """Launches a thread for each position of a grid of up to three dimensions."""
        from ...cuda.function import USUAL_GROUP, group_within

        if 0 not in grid:
            self._launch(kernel, tuple(grid), group_within(grid, USUAL_GROUP), arguments)

    def _launch(self, kernel, grid, group, arguments) -> None:
        library = _library(self._file, kernel, self._has_products and has_tensors())
        library.launch(kernel, [_value(x) for x in arguments], grid, group)


def number(kind: str, value: float | bool) -> bytes:
    """Returns a scalar as a kernel's argument; kind: a format of the struct module."""
    return struct.pack(kind, value)


def multiprocessors(tensor: Tensor) -> int:
    """Returns the number of multiprocessors of the tensor's GPU."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count


def errors_of(tensor: Tensor) -> int:
    """Returns the buffer in which kernels on the tensor's GPU report errors, which a later launch raises."""
    from ...cuda import errors

    return errors.buffer_address(tensor.get_device())


def _value(argument: Argument | ctypes.Structure) -> Argument:
    return bytes(argument) if isinstance(argument, ctypes.Structure) else argument
