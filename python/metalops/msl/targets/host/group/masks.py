"""The masks of the threads that are active at the point of the group form that is being emitted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ....analysis.cuts import NotCut
from ....analysis.variables import Kind
from ....dialect import names
from ....dialect.edits import Mapped


class Masks:
    """Predication: which mask is active, and how threads leave it.

    The masks are those of the function or closure that is being emitted, the outermost first: threads leave it, or a
    statement in it, by being removed from them. `msl_mask`, which the caller passes, is not one of them.
    result: Kind.THREAD if the function or closure returns a value, else None. type: of the masks that are declared.
    """

    def __init__(self, result: Kind | None, leave: str):
        """leave: the statement that returns from the function."""
        self.result = result
        self._leave_function = leave
        self._masks: list[str] = []
        self._targets: list[tuple[str, int, int]] = []  # targets of break and continue
        self._conditions: list = []
        self._having: dict[int, str] = {}  # masks, by the offset of a variable's identifier
        self.type = f"{names.SUPPORT}::Mask"

    @property
    def active(self) -> str:
        return self._masks[-1] if self._masks else "msl_mask"

    @property
    def enclosing(self) -> str:
        """The mask around the active one, or `msl_mask`."""
        return self._masks[-2] if len(self._masks) > 1 else "msl_mask"

    @property
    def depth(self) -> int:
        """The number of masks from which threads can be removed."""
        return len(self._masks)

    @property
    def is_of_simdgroup(self) -> bool:
        """True in a loop that a simdgroup runs by itself."""
        return self.type != f"{names.SUPPORT}::Mask"

    @property
    def conditions(self) -> tuple:
        """The conditions by which threads have diverged."""
        return tuple(self._conditions)

    def declare(self, identifier, name: str, out: Mapped) -> None:
        """Emits a mask of the threads that have a variable, those that are active now. name: of the mask."""
        if self.depth == 0:  # all that run the function
            return
        out.add(f"const {names.SUPPORT}::Mask {name}(msl_g, {self.active});\n")
        self._having[identifier.start_byte] = name

    def having(self, identifier) -> str:
        """Returns the mask of the threads that have a variable or parameter."""
        return self._having.get(identifier.start_byte, "msl_mask")

    @contextlib.contextmanager
    def under(self, mask: str) -> Iterator[None]:
        """Makes a mask the active one for what is emitted inside."""
        self._masks.append(mask)
        yield
        self._masks.pop()

    @contextlib.contextmanager
    def diverged(self, condition) -> Iterator[None]:
        """Records that threads diverge by a condition in what is emitted inside."""
        self._conditions.append(condition)
        yield
        self._conditions.pop()

    @contextlib.contextmanager
    def uniform_target(self, is_loop: bool) -> Iterator[None]:
        """Makes a statement that all threads leave together the target of break, and of continue if it is a loop."""
        self._targets.append(("uniform", self.depth, self.depth if is_loop else -1))
        yield
        self._targets.pop()

    @contextlib.contextmanager
    def varying_target(self, outermost: int, iteration: int = -1) -> Iterator[None]:
        """Makes a statement that threads leave one by one the target of break, which removes them from the masks from
        `outermost` on, and of continue, from `iteration` on, if it is a loop."""
        self._targets.append(("varying", outermost, iteration))
        yield
        self._targets.pop()

    @contextlib.contextmanager
    def closure(self, has_result: bool) -> Iterator[None]:
        """Starts the body of a closure, in which threads return to the closure's caller."""
        before = self.result, self._leave_function, self._masks, self._targets, self._conditions
        self.result = Kind.THREAD if has_result else None
        self._leave_function = "return msl_result;\n" if has_result else "return {};\n"
        self._masks, self._targets, self._conditions = [], [], []
        yield
        self.result, self._leave_function, self._masks, self._targets, self._conditions = before

    @contextlib.contextmanager
    def simdgroup(self) -> Iterator[None]:
        """Starts a loop that a simdgroup runs by itself, with `msl_mask` for its lanes."""
        before = self._masks, self._targets, self.type
        self._masks, self._targets, self.type = [], [], f"{names.SUPPORT}::LaneMask"
        try:
            yield
        finally:
            self._masks, self._targets, self.type = before

    def end(self, out: Mapped) -> None:
        """Emits the return of all threads, at the end of the function or closure."""
        out.add(self._leave_function)

    def leave(self, out: Mapped) -> None:
        """Emits the return of the active threads."""
        if len(self._masks) <= 1:  # all that are left
            self.end(out)
            return
        self._remove_active(0, out)

    def leave_target(self, kind: str, out: Mapped) -> None:
        """Emits a break_statement or a continue_statement."""
        is_continue = kind == "continue_statement"
        targets = [t for t in self._targets if not is_continue or t[2] >= 0]
        how, outermost, iteration = targets[-1]
        if how == "uniform":
            if self.depth != outermost:
                raise NotCut("threads diverge before they leave a loop")
            out.add("continue;\n" if is_continue else "break;\n")
        else:
            self._remove_active(iteration if is_continue else outermost, out)

    def _remove_active(self, outermost: int, out: Mapped) -> None:
        """Removes the active threads from the masks from `outermost` on."""
        mask = self._masks[-1]
        for other in self._masks[outermost:-1]:
            out.add(f"{other}.remove({mask}); ")
        out.add(f"{mask}.clear();\n")
