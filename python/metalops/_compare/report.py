"""Descriptions of differences between mps and the CPU."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable
from typing import Any

import torch

import metalops

from .._torch.internals import OpOverload, describe_kernels, schema
from .arguments import Place, named

_OURS = re.compile(r"^(?:Sparse)?MPS: registered at \S*csrc/ops/", re.MULTILINE)
_OF_MPS = re.compile(r"^MPS: registered at ", re.MULTILINE)
_LONGEST = 200  # characters of an argument that is no tensor


def described(func: OpOverload, args: tuple, kwargs: dict[str, Any]) -> tuple[str, ...]:
    """Describes the arguments of a call, whose tensors are places of a snapshot."""
    return tuple(
        f"{argument.name}: {_words(value)}" for argument, value in named(schema(func), args, kwargs)
    )


def _words(value: Any) -> str:
    if isinstance(value, Place):
        bits = (" conjugated" if value.is_conj else "") + (" negated" if value.is_neg else "")
        return (
            f"{str(value.dtype)[6:]} {list(value.sizes)}, strides {value.strides}, "
            f"offset {value.storage_offset}, on {value.device}{bits}"
        )
    if isinstance(value, (list, tuple)) and any(isinstance(x, Place) for x in value):
        return "; ".join(map(_words, value))
    text = repr(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def served_by(operator: str, stand_ins: Iterable[str]) -> str:
    """Returns whose kernel runs an operator on mps. stand_ins: those that were recorded while it ran."""
    kernels = describe_kernels(operator)
    if names := sorted(stand_ins):
        served = "stand-ins of the software device" if len(names) > 1 else "a stand-in of the software device"  # fmt: skip
        return f"{served} ({', '.join(names)})"
    if _OURS.search(kernels):
        return "metalops's kernel"
    if _OF_MPS.search(kernels):
        return "PyTorch's kernel for mps"
    return "other operators (it is composite)"


def versions() -> dict[str, str]:
    """Returns the versions that results depend on."""
    found = {"torch": str(torch.__version__), "metalops": metalops.__version__}
    if sys.platform == "darwin":
        found["macOS"] = platform.mac_ver()[0]
        found["device"] = torch.backends.mps.get_name()
    else:
        found["device"] = "software Metal device"
    return found
