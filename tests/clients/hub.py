"""A plugin of pytest: `kernels.get_kernel("kernels-community/relu", version=1)`, with which kernels of the Hugging Face Hub
begin their tests, imports the package `relu` that was built here instead of downloading one."""

import importlib
import sys
import types


def get_kernel(repository: str, *_, **__) -> types.ModuleType:
    return importlib.import_module(repository.rpartition("/")[2].replace("-", "_"))


sys.modules["kernels"] = types.ModuleType("kernels", __doc__)
sys.modules["kernels"].get_kernel = get_kernel
