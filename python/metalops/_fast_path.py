"""The inference fast path of torch.nn's transformer encoder layers and multi-head attention, on ``mps``.

Their Python code takes it on the devices of a list that is written in the midst of it, and ``mps`` is not there. Here
the list gets one more entry; what else torch asks for before it takes the fast path stays as it is, and so does
``torch.backends.mha.set_fastpath_enabled``. nn.TransformerEncoder's own list, of the devices that have nested tensors,
is left alone: padding masks reach the layers as masks.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import CodeType, FunctionType

from torch.nn.modules import activation, transformer


def install() -> None:
    _allow_mps(transformer.TransformerEncoderLayer.forward)
    _allow_mps(activation._check_arg_device)


def _allow_mps(function: FunctionType) -> None:
    """Adds "mps" to the list of device types in the function's code."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List) and _has_cpu(node)]
    if len(lists) != 1:
        raise RuntimeError(f"metalops does not know this version of {function.__qualname__}")
    lists[0].elts.append(ast.Constant("mps"))
    ast.increment_lineno(ast.fix_missing_locations(tree), first - 1)
    module = compile(tree, function.__code__.co_filename, "exec", dont_inherit=True)
    (code,) = (constant for constant in module.co_consts if isinstance(constant, CodeType))
    function.__code__ = code


def _has_cpu(node: ast.List) -> bool:
    return any(isinstance(x, ast.Constant) and x.value == "cpu" for x in node.elts)
