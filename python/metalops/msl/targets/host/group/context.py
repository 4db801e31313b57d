"""The function whose group form is emitted, and the program around it: all parts of the emission share them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from ....analysis.calls import CallGraph
from ....analysis.effects import Effects
from ....analysis.last_values import ShuffledVariables
from ....analysis.program import Function, Kernel, parameters_of
from ....analysis.uniformity import Body
from ....analysis.variables import Kind
from ....dialect.edits import Edits
from ....source.parse import Source
from .synchronisation import Synchronisation


@dataclass(frozen=True)
class Again:
    """An argument that each loop of the callee rematerialises. text: an expression, in terms of `msl_t`. attribute: of
    the kernel's parameter that it is; None for a component of one."""

    text: str
    attribute: str | None


@dataclass
class FunctionContext:
    """A function, for given kinds of its parameters, with its uniformity analysis.

    kinds: of the parameters. again: for each parameter that loops rematerialise its value, for others None. body: the
    uniformity analysis. members: the names of the object's members, in a member function. shuffled: the shuffles that
    may take last values.
    """

    source: Source
    edits: Edits
    call_graph: CallGraph
    effects: Effects
    sync: Synchronisation
    function: Function
    kernel: Kernel | None
    parameters: list[tuple]
    kinds: tuple[Kind, ...]
    again: tuple[Again | None, ...]
    has_object: bool
    members: frozenset[str]
    body: Body
    shuffled: ShuffledVariables
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def of(cls, groups, function: Function, kinds, again, kernel: Kernel | None) -> FunctionContext:
        """Analyses a function of the program of `groups` (GroupLoops)."""
        effects, sync = groups.effects, groups.sync
        has_object = function.in_class and not effects.is_static(function)
        members = effects.members_of(function) if has_object else frozenset()
        parameters = parameters_of(groups.source, function)
        defaults = len(parameters) - len(kinds)
        kinds = (*kinds, *[Kind.GROUP] * defaults)
        again = (*again, *[None] * defaults)
        body = Body(
            groups.source,
            function.body,
            groups.calls.scopes(function.node),
            [(node, kind) for (node, _, _), kind in zip(parameters, kinds, strict=True)],
            sync.meets,
            effects.writes,
            effects.is_pure,
            members,
        )
        return cls(
            groups.source,
            groups.edits,
            groups.calls,
            effects,
            sync,
            function,
            kernel,
            parameters,
            kinds,
            again,
            has_object,
            members,
            body,
            groups.last_values.of(function),
        )

    def new(self, what: str) -> str:
        """Returns a name that nothing else in the group form has."""
        return f"msl_{what}_{next(self._numbers)}"
