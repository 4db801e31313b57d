"""What torch remembers of an operator, when another one takes its name."""

from __future__ import annotations

import hashlib
import re
import sys

import torch
import torch.compiler.config
from torch._subclasses.fake_tensor import FakeTensorMode


def is_operator(name: str) -> bool:
    """Whether there is an operator of that name, "namespace::name"."""
    return bool(torch._C._jit_get_schemas_for_operator(name))


def refresh_operator(name: str) -> None:
    """Makes the objects under torch.ops stand for the operator that has the name now, if any does.

    They stay the same objects: graphs, torch's dispatcher and its modes hold references to them.
    """
    namespace, base = name.split("::")
    namespace = getattr(torch.ops, namespace)
    packet = vars(namespace).get(base)
    if packet is None:  # nobody has asked for it
        return
    if not is_operator(name):
        delattr(namespace, base)
        namespace._dir.remove(base)
        return
    torch._ops._refresh_packet(packet)
    for overload in packet._dir:
        overload_name = "" if overload == "default" else overload
        op, op_dk, tags = torch._C._get_operation_overload(name, overload_name)
        schema = torch._C._get_schema(name, overload_name)
        getattr(packet, overload).__init__(packet, op, op_dk, schema, tags)


_unusual: dict[str, tuple[str, str]] = {}
_OUR_TAG = re.compile(r" metalops:\w+$")


def note_results(name: str, integers: str, result: str) -> None:
    """Tells the caches of torch.compile what an operator returns.

    They know a graph by its operators' names, and would take a compiled one for another whose results have other dtypes,
    also from an earlier process. integers, result: as metalops.functor takes them.
    """
    if (integers, result) == ("float", "promote"):
        _unusual.pop(name, None)
    else:
        _unusual[name] = (integers, result)
    config = torch.compiler.config
    tag = _OUR_TAG.sub("", config.cache_key_tag)
    if _unusual:
        text = repr(sorted(_unusual.items()))
        tag += f" metalops:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if tag != config.cache_key_tag:
        config.cache_key_tag = tag


def forget_compiled() -> None:
    """Has torch.compile compile everything again at its next call, and fake results computed again."""
    FakeTensorMode.cache_clear()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
