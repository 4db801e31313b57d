"""The input of every group of rules: one preprocessed Metal source with its tree, and the findings so far."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..analysis.calls import CallGraph
from ..analysis.program import Program
from ..source.locations import LineMap
from ..source.parse import Source
from .rules import Rule


@dataclass(frozen=True)
class Finding:
    """One violation of a rule at one position; line and column count from 1. is_error: false for a suspicion."""

    file: str
    line: int
    column: int
    rule: str
    sentence: str
    is_error: bool = True

    def __str__(self) -> str:
        severity = "error" if self.is_error else "warning"
        return f"{self.file}:{self.line}:{self.column}: {severity} [{self.rule}]: {self.sentence}"


def let_pass(message: str, offset: int) -> None:
    """Takes what Metal forbids where a program is read for the rules: compiled.py reports it."""


@dataclass
class Checked:
    """A program under check. language: __METAL_VERSION__, 310 for Metal 3.1. is_checked: returns true if findings in a
    file are wanted."""

    source: Source
    program: Program
    lines: LineMap
    language: int
    is_checked: Callable[[str], bool]
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self):
        self._files: dict[str, bool] = {}

    @functools.cached_property
    def calls(self) -> CallGraph:
        """The call graph of the program, with the meanings of names in its functions."""
        return CallGraph(self.program)

    def wants(self, offset: int) -> bool:
        """Returns true if findings at an offset of the preprocessed text are wanted."""
        file, _ = self.lines.place(offset)
        if file not in self._files:
            self._files[file] = self.is_checked(file)
        return self._files[file]

    def report(self, rule: Rule, place, sentence: str) -> None:
        """Adds a finding at a node or an offset."""
        offset = place if isinstance(place, int) else place.start_byte
        if not self.wants(offset):
            return
        at = self.lines.position(offset)
        text = f"{sentence} (MSL {rule.section})"
        self.findings.append(
            Finding(at.file, at.line, at.column, rule.name, text, not rule.is_suspicion)
        )

    def text(self, node) -> str:
        """Returns a node's text on one line, as the user wrote it."""
        return " ".join(self.source.node_text(node).split())


def descendants(node) -> Iterator:
    """Yields the node and everything below it, in order of position; nothing inside of nodes that failed to parse."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current.type == "ERROR":
            continue
        yield current
        waiting.extend(reversed(current.children))


def ancestor(node, *kinds: str):
    """Returns the nearest ancestor of one of these types, or None."""
    node = node.parent
    while node is not None and node.type not in kinds:
        node = node.parent
    return node
