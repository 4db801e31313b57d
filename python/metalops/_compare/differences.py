"""The differences that a comparison with the CPU finds."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """problem: what is wrong in words. wrong, elements: numbers of elements. place: of the element that is wrong by most;
    found, expected: there."""

    problem: str
    wrong: int = 0
    elements: int = 0
    place: tuple[int, ...] = ()
    found: Any = None
    expected: Any = None
    rtol: float = 0.0
    atol: float = 0.0


@dataclasses.dataclass(frozen=True)
class Difference:
    """A call whose result on mps is not the CPU's.

    operator: "aten::addmm", with its overload if it has one. module: the name of the module that called it, such as
    "decoder.layers.3.self_attn". backward: whether autograd called it. call: its number in the comparison. arguments:
    each in words. result: which of its results, or the argument that it writes. mismatch: the elements that differ.
    reference: what the CPU computed in. served_by: whose kernel ran. versions: of the programs and the machine. path: the
    file that `python -m metalops replay` runs again, or None.
    """

    operator: str
    module: str
    backward: bool
    call: int
    arguments: tuple[str, ...]
    result: str
    mismatch: Mismatch
    reference: str
    served_by: str
    versions: dict[str, str]
    path: str | None = None

    def __str__(self) -> str:
        direction = "backward pass" if self.backward else "forward pass"
        place = f" in {self.module}" if self.module else ""
        lines = [f"{self.operator}{place} ({direction}, call {self.call}): {self._elements()}"]
        lines += [f"  {argument}" for argument in self.arguments]
        lines.append(f"  computed by {self.served_by}; reference: the CPU in {self.reference}")
        lines.append("  " + ", ".join(f"{k} {v}" for k, v in self.versions.items()))
        if self.path is not None:
            lines.append(f"  again: python -m metalops replay {self.path}")
        return "\n".join(lines)

    def _elements(self) -> str:
        m = self.mismatch
        if not m.elements:
            return f"{self.result} has {m.problem}"
        count = f"{m.wrong} of {m.elements} elements of {self.result} are wrong"
        if m.expected is None:
            return f"{count}, the first at {m.place}: {m.found!r}: {m.problem}"
        tolerance = f" (rtol {m.rtol:.2g}, atol {m.atol:.2g})" if m.rtol or m.atol else ""
        problem = f": {m.problem}" if m.problem else ""
        return f"{count}, most at {m.place}: {m.found!r}, on the CPU {m.expected!r}{tolerance}{problem}"


class DifferenceError(AssertionError):
    """A result on mps is not the CPU's. difference: what is known of it."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference

    def __reduce__(self):
        return type(self), (self.difference,)
