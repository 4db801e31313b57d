"""Runs the call of a file again, on this machine's mps and on its CPU: a part of `python -m metalops replay`."""

from __future__ import annotations

import dataclasses
import os
import sys

import torch

from .._torch.internals import OpOverload, pytree
from . import call, file
from .differences import Difference
from .report import described, served_by, versions

# Operators of other packages may do anything, and from_file writes files.
_NAMESPACES = {"aten", "metalops"}
_REFUSED = {"from_file"}


def main(path: str | os.PathLike) -> int:
    """Returns the exit status: 0 if the results agree, 1 if they differ, 2 if nothing ran."""
    try:
        loaded = file.load(path)
        operator = call.operator_of(_overload(loaded.call.operator))
    except (file.ComparisonFileError, OSError) as error:
        print(f"metalops replay: {error}", file=sys.stderr)
        return 2
    print(f"recorded:\n{loaded.text}\n")
    if loaded.is_generated:
        print("The contents were too large to be kept; these are other numbers of their kind.\n")
    try:
        found = again(operator, loaded)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        print(f"metalops replay: {operator.name} raises {error}", file=sys.stderr)
        return 2
    here = ", ".join(f"{k} {v}" for k, v in versions().items())
    print(f"here, with {here}:")
    print(found if found is not None else f"{operator.name}: agrees with the CPU")
    return 0 if found is None else 1


def _overload(name: str) -> OpOverload:
    namespace, _, rest = name.partition("::")
    short, _, overload = rest.partition(".")
    packet = None
    if namespace in _NAMESPACES and short not in _REFUSED:
        packet = getattr(getattr(torch.ops, namespace), short, None)
    found = getattr(packet, overload or "default", None)
    if not isinstance(found, OpOverload):
        raise file.ComparisonFileError(f"there is no operator {name[:100]!r} that can be run again")
    return found


def again(operator: call.Operator, loaded: file.Loaded) -> Difference | None:
    """Returns the difference that a call has here, or None. Raises what the operator raises."""
    args, kwargs = loaded.call.arguments.on_devices()
    if loaded.call.state is not None:
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Generator)]
        if given:
            given[0].set_state(loaded.call.state)
        else:
            torch.mps.set_rng_state(loaded.call.state)
    outcome = call.make(operator, tuple(args), kwargs, gradient=loaded.is_gradient)
    if outcome.error is not None:
        raise outcome.error
    if outcome.finding is None:
        return None
    return Difference(
        operator.name,
        "",
        loaded.is_gradient,
        1,
        described(operator.overload, *outcome.before.tree),
        **dataclasses.asdict(outcome.finding) | {"mismatch": outcome.finding.mismatch},
        served_by=served_by(operator.name, outcome.stand_ins),
        versions=versions(),
    )
