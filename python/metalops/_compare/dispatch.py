"""The dispatch mode of compare(), profile() and memory(): it is given every call below autograd and autocast."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._torch.internals import DispatchMode, OpOverload, run_uncompiled
from .call import Operator, operator_of


class OperatorMode(DispatchMode):
    """Gives `call` of a subclass the operators that a program comes to: not composite ones, and of tensors whose class has
    operators of its own, for example jagged ones, those that the class calls."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if any(_dispatches(kind) for kind in types):
            return NotImplemented  # its own operators come here
        operator = operator_of(func)
        if operator.is_composite:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self.call(operator, args, kwargs)

    def call(self, operator: Operator, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Calls an operator, and returns its result."""
        raise NotImplementedError


# Where the operators of functions of torch.compile come here, in the scope of the compiler.
run_uncompiled(OperatorMode.__torch_dispatch__)


def _dispatches(kind: type) -> bool:
    return kind is not Tensor and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
