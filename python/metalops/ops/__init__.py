"""The operators of metalops as Python functions: one module per family, all of them importable from here.

They run on ``mps`` tensors and are ordinary PyTorch operators too (``torch.ops.metalops.gelu_new``), with autograd and
fake kernels, so torch.compile and torch.export take them.
"""

import pkgutil
from importlib import import_module

from ._define.pointwise import declared

__all__ = []
for _module in pkgutil.iter_modules(__path__):
    # A module's OPERATORS are its operators that are not pointwise.
    for _function in getattr(import_module(f".{_module.name}", __name__), "OPERATORS", ()):
        globals()[_function.__name__] = _function
        __all__.append(_function.__name__)

for _name, _operator in declared.items():
    for _function in (_operator.function, _operator.inplace):
        if _function is not None:
            globals()[_function.__name__] = _function
            __all__.append(_function.__name__)
