"""The inference fast path of torch.nn's transformer encoder layers and multi-head attention, on ``mps``.

Their Python code takes it on the devices of a hard-coded list, in which ``mps`` is missing. Here the list gets one more
entry; torch's other conditions for the fast path stay as they are, and so does
``torch.backends.mha.set_fastpath_enabled``. nn.TransformerEncoder's own list, of the devices with nested tensors, is
left alone: padding masks reach the layers as masks.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Sequence
from types import CodeType, FunctionType

from torch.nn.modules import transformer

from .internals import attention_device_check

_FUNCTIONS = (transformer.TransformerEncoderLayer.forward, attention_device_check)
_STOCK_CODE = [function.__code__ for function in _FUNCTIONS]


def _use(codes: Sequence[CodeType]) -> None:
    for function, code in zip(_FUNCTIONS, codes, strict=True):
        function.__code__ = code


class FastPath:
    """The result of enable_transformer_fast_path, which restores the previous code."""

    def __init__(self, before: Sequence[CodeType]):
        self._before = before

    def disable(self) -> None:
        """Puts torch's own code back. Calling it again changes nothing."""
        _use(_STOCK_CODE)

    def __enter__(self) -> FastPath:
        return self

    def __exit__(self, *exception) -> None:
        _use(self._before)


def enable_transformer_fast_path() -> FastPath:
    """Lets nn.TransformerEncoderLayer and nn.MultiheadAttention take torch's inference fast path on ``mps``.

    The fast path is one operator for a whole encoder layer or attention in evaluation mode without gradients, which
    runs torch's own Metal kernels where it has them and those of metalops elsewhere; results differ from the slow
    path's by rounding. It is off unless this function is called, because it has not been timed on an Apple GPU. It
    holds for the whole process: the code of ``nn.TransformerEncoderLayer.forward`` and of the device check of
    ``nn.MultiheadAttention`` is replaced by the same code with ``mps`` among its devices. Models that torch.compile has
    compiled before keep the path that they have.

    ``mps`` has no nested tensors, so padding masks reach the layers as masks whatever ``enable_nested_tensor`` says,
    and results at padded positions are those of the slow path, not zero. A mask of floating point is added to the
    scores, as on the slow path.

    Calling it again changes nothing. Raises RuntimeError if torch.nn's code is not what this version of metalops knows.

        >>> import metalops
        >>> with metalops.enable_transformer_fast_path():
        ...     pass  # layers take the fast path here
        >>> fast_path = metalops.enable_transformer_fast_path()  # and from here on ...
        >>> fast_path.disable()  # ... to here
    """
    before = [function.__code__ for function in _FUNCTIONS]
    _use(_codes_with_mps())
    return FastPath(before)


@functools.cache
def _codes_with_mps() -> list[CodeType]:
    return [_with_mps(*pair) for pair in zip(_FUNCTIONS, _STOCK_CODE, strict=True)]


def _with_mps(function: FunctionType, code: CodeType) -> CodeType:
    """Returns the function's stock code with "mps" in its list of device types."""
    lines, first = inspect.getsourcelines(code)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List) and _has_cpu(node)]
    if len(lists) != 1:
        raise RuntimeError(f"metalops does not know this version of {function.__qualname__}")
    lists[0].elts.append(ast.Constant("mps"))
    ast.increment_lineno(ast.fix_missing_locations(tree), first - 1)
    module = compile(tree, code.co_filename, "exec", dont_inherit=True)
    (code,) = (constant for constant in module.co_consts if isinstance(constant, CodeType))
    return code


def _has_cpu(node: ast.List) -> bool:
    return any(isinstance(x, ast.Constant) and x.value == "cpu" for x in node.elts)
