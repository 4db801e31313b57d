"""Kernel files on CUDA tensors: the kernels of X.metal in kernels/, compiled one by one."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from glob import glob

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


def multiprocessors(tensor: Tensor) -> int:
    """Returns the number of multiprocessors of the tensor's GPU."""
    return _multiprocessors(tensor.get_device())


# Every call of an operator asks: torch takes longer to answer than a plan takes.
@functools.cache
def _multiprocessors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def has_warpgroups(tensor: Tensor) -> bool:
    """Returns true if kernels for the tensor's GPU, which use tensors, are compiled for wgmma."""
    return has_tensors() and _is_for_warpgroups(tensor.get_device())


@functools.cache
def _is_for_warpgroups(index: int) -> bool:
    from ...cuda import device

    return device.architecture(index) == "sm_90a"


def errors_of(tensor: Tensor) -> int:
    """Returns the buffer in which kernels on the tensor's GPU report errors, which a later launch raises."""
    from ...cuda import errors

    return errors.buffer_address(tensor.get_device())
