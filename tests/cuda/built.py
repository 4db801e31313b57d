"""Stands in for a GPU: the kernels that are built with the package run on the software device, on tensors of the CPU."""

import ctypes
import functools
import os

import metalops
import torch
from metalops.cuda.errors import _Messages
from metalops.ops._cuda import kernel_file

KERNELS = os.path.join(os.path.dirname(metalops.__file__), "_C.kernels")

launched = []
errors = torch.zeros(ctypes.sizeof(_Messages), dtype=torch.uint8)


class BuiltLibrary:
    """Takes the place of what NVRTC compiles: the kernels of a file that are built with the package."""

    def __init__(self, name):
        from metalops import _host

        self._library = _host.Library(os.path.join(KERNELS, name))

    def launch(self, name, arguments, grid, group):
        launched.append(name)
        arguments = [None if isinstance(x, int) else x for x in arguments]
        self._library.launch(name, arguments, list(grid), list(group))
        messages = _Messages.from_address(errors.data_ptr())
        if messages.count > 0:
            messages.count = 0
            raise RuntimeError(messages.msg[0].message.decode())


@functools.cache
def library(file, kernel, tensors):
    return BuiltLibrary(f"{file}.tensors.so" if tensors else f"{file}.so")


def use_built_kernels(monkeypatch):
    monkeypatch.setattr(kernel_file, "_library", library)
    monkeypatch.setattr(kernel_file, "errors_of", lambda x: errors)
    monkeypatch.setattr(kernel_file, "multiprocessors", lambda x: 132)
    monkeypatch.setattr(kernel_file, "has_warpgroups", lambda x: False)
    launched.clear()
