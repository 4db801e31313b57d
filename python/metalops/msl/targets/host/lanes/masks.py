"""Masks: which lanes take part where threads diverge, as arrays with a 0 or a 1 for each lane."""

from __future__ import annotations

from dataclasses import dataclass

ALIVE = "msl_alive"  # the lanes that have not returned


@dataclass(frozen=True)
class Loop:
    """A loop that lanes leave one by one. is_single: true if one lane loop runs its whole body."""

    number: int
    is_single: bool

    @property
    def live(self) -> str:
        """The lanes that have not left the loop."""
        return f"msl_live_{self.number}"

    @property
    def turn(self) -> str:
        """The lanes that take part in the rest of an iteration."""
        return f"msl_turn_{self.number}"


@dataclass(frozen=True)
class Masks:
    """The arrays that a lane has to be in to take part in a statement, and the innermost loop that lanes leave."""

    arrays: tuple[str, ...] = ()
    loop: Loop | None = None


# ---- the parts of a lane loop ----------------------------------------------------------------------


@dataclass(frozen=True)
class Statement:
    """A statement, or an expression of which one is made."""

    node: object


@dataclass(frozen=True)
class Enter:
    """The lanes that take part enter a loop."""

    loop: Loop


@dataclass(frozen=True)
class Begin:
    """An iteration begins, for lanes for which the condition holds, if there is one."""

    loop: Loop
    condition: object | None


@dataclass(frozen=True)
class End:
    """An iteration ends: lanes that have not left the loop do the update, and leave where the condition does not hold."""

    loop: Loop
    update: object | None
    condition: object | None


@dataclass(frozen=True)
class Branch:
    """The condition of an if statement with loops inside. number: that of the arrays of both masks."""

    condition: object
    number: int
    has_other: bool

    @property
    def then(self) -> str:
        return f"msl_then_{self.number}"

    @property
    def other(self) -> str:
        return f"msl_else_{self.number}"


def nodes_of(part) -> list:
    """Returns the parts of the source that a part of a lane loop runs."""
    if isinstance(part, Statement):
        return [part.node]
    found = [getattr(part, name, None) for name in ("update", "condition")]
    return [node for node in found if node is not None]
