"""The comparison while it runs: it is given every call below autograd and autocast."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import warnings
from collections import Counter
from typing import Any

import torch
from torch import nn

from .. import _outputs
from .._locks import recursive_lock
from . import file
from .arguments import size, tensors_of
from .call import Operator, Outcome, is_on_mps, make
from .differences import Difference, DifferenceError
from .dispatch import OperatorMode
from .modules import ModuleNames
from .report import described, served_by, versions

# Copies of the arguments, the same in float64 twice as large, results, and the same of them.
_COPIES = 6


class Comparison(contextlib.ContextDecorator):
    """A comparison with the CPU: a context manager and a decorator. metalops.debug.compare() makes it.

    differences: found so far. calls, compared: the numbers of calls of operators on mps tensors, and of those that were
    compared; with compiled, of buffers of compiled kernels, too. differing_operators: the number of differences that are of
    operators, not of compiled kernels. checked: random operators of whose results properties were checked, with the numbers of calls. skipped: by
    reason, the operators that were not compared, with the numbers of calls.
    """

    def __init__(
        self,
        share: float,
        halt: bool,
        path: str | os.PathLike | None,
        model: nn.Module | None,
        compiled: bool,
        most_bytes: int,
        seed: int,
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"compare: share must be in (0, 1], got {share!r}")
        if most_bytes < 1:
            raise ValueError(f"compare: most_bytes must be positive, got {most_bytes!r}")
        if path is not None:
            _outputs.check_file(path)
        self.differences: list[Difference] = []
        self.calls = self.compared = self.differing_operators = 0
        self.checked: Counter[str] = Counter()
        self.skipped: dict[str, Counter[str]] = {}
        self._share, self._halt, self._most_bytes = share, halt, most_bytes
        self._path = None if path is None else os.fspath(path)
        self._chance = random.Random(seed)
        self._names = ModuleNames(model)
        self._compiled = compiled
        self._depth = 0
        self._stack = contextlib.ExitStack()
        self._lock = recursive_lock()

    def __enter__(self) -> Comparison:
        self._depth += 1
        if self._depth > 1:
            return self  # a decorated function that calls itself
        with contextlib.ExitStack() as stack:
            self._names.install()
            stack.callback(self._names.remove)
            stack.enter_context(warnings.catch_warnings())
            # Modules of torch.compile warn that our hooks see them and the modules in them.
            warnings.filterwarnings(
                "ignore", r"Using `torch\.compile\(module\)` when there are glo"
            )
            if self._compiled:
                from .compiled import kernels_compared

                stack.enter_context(kernels_compared(self))
            stack.enter_context((_ModeOfCompiled if self._compiled else _Mode)(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._stack.__exit__(*error)

    def report(self) -> str:
        """Returns as text the differences, and the operators that were not compared."""
        lines = [
            f"{self.calls} calls of operators on mps, {self.compared} compared with the CPU, "
            f"{len(self.differences)} differences"
        ]
        if self.checked:
            lines.append(f"random, properties checked: {_listed(self.checked)}")
        for reason, operators in self.skipped.items():
            lines.append(f"not compared, {reason}: {_listed(operators)}")
        return "\n".join([*lines, *map(str, self.differences)])

    def call(self, operator: Operator, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Calls an operator for a program, and compares its results if it is one to compare."""
        overload = operator.overload
        if operator.is_silent or not is_on_mps((args, kwargs)):
            return overload(*args, **kwargs)
        with self._lock:
            self.calls += 1
            number = self.calls
            is_chosen = self._chance.random() < self._share
        reason = self._reason_to_skip(operator, (args, kwargs)) if is_chosen else None
        if reason is not None:
            self.skip(reason, operator.name)
        if not is_chosen or reason is not None:
            return overload(*args, **kwargs)
        module, is_backward = self._names.current()
        outcome = make(operator, args, kwargs, gradient=is_backward)
        self._note(operator, outcome, module, is_backward, number)
        return outcome.result

    def module(self) -> tuple[str, bool]:
        """Returns the name of the module that runs in this thread, and whether the backward pass does."""
        return self._names.current()

    def skip(self, reason: str, name: str) -> None:
        """Notes that a call was not compared."""
        with self._lock:
            self.skipped.setdefault(reason, Counter())[name] += 1

    def _reason_to_skip(self, operator: Operator, tree: Any) -> str | None:
        if operator.has_effects:
            return "because they do more than to compute"
        if not operator.is_comparable:
            return "because they are random"
        if any(x.layout != torch.strided or x.is_quantized for x in tensors_of(tree)):
            return "because their tensors are sparse"
        if not self.fits(size(tree)):
            return f"because they need more than {self._most_bytes} bytes"
        return None

    def fits(self, size: int) -> bool:
        """Returns true if arguments of so many bytes are small enough to be compared."""
        return _COPIES * size <= self._most_bytes

    def _note(
        self, operator: Operator, outcome: Outcome, module: str, is_backward: bool, number: int
    ) -> None:
        if outcome.error is not None:
            self.skip("because the CPU has no kernel", operator.name)
            return
        with self._lock:
            self.compared += 1
            if operator.is_random:
                self.checked[operator.name] += 1
        if outcome.finding is None:
            return
        difference = Difference(
            operator.name,
            module,
            is_backward,
            number,
            described(operator.overload, *outcome.before.tree),
            outcome.finding.result,
            outcome.finding.mismatch,
            outcome.finding.reference,
            served_by(operator.name, outcome.stand_ins),
            versions(),
        )
        with self._lock:
            self.differing_operators += 1
        self.found(difference, file.Call(operator.name, outcome.before, outcome.state))

    def found(self, difference: Difference, call: file.Call | None = None) -> None:
        """Notes a difference, and raises DifferenceError unless they are collected. The first one is written to a file."""
        with self._lock:
            if self._path is not None and not self.differences and call is not None:
                difference = dataclasses.replace(difference, path=self._path)
                file.save(self._path, difference, call)
            self.differences.append(difference)
        if self._halt:
            raise DifferenceError(difference)


class _Mode(OperatorMode):
    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self._comparison = comparison

    def call(self, operator: Operator, args: tuple, kwargs: dict[str, Any]) -> Any:
        return self._comparison.call(operator, args, kwargs)


class _ModeOfCompiled(_Mode, through_compiled=True):
    pass


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
