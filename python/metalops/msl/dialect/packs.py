"""Expansions of packs whose number of elements is known, written out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

_QUERY = "[(parameter_pack_expansion) (fold_expression) (sizeof_expression)] @e"
_OF_NOTHING = {"&&": "true", "||": "false", ",": "void()"}


class Packs:
    """packs: what stands for each element, by the names of packs of types and of parameters. renamed: what is done with
    text beside these names."""

    def __init__(self, source, packs: dict[str, list[str]], renamed: Callable[[str], str]):
        self.source = source
        self.packs = packs
        self._renamed = renamed

    def named_in(self, text: str) -> list[str]:
        return [p for p in self.packs if re.search(rf"\b{re.escape(p)}\b", text)]

    def expanded(
        self, node, done: Iterable[tuple[int, int]] = ()
    ) -> Iterator[tuple[int, int, str]]:
        """Yields the edits (start, end, text) that write out the expansions in a node. done: the extents of other edits, in
        which nothing is left to do."""
        ends: list[tuple[int, int]] = [*done]
        for found in self.source.find(_QUERY, node):
            if any(start <= found.start_byte < end for start, end in ends):
                continue
            edit = self._expansion(found)
            if edit is not None:
                ends.append(edit[:2])
                yield edit

    def _expansion(self, node) -> tuple[int, int, str] | None:
        text = self.source.text[node.start_byte : node.end_byte]
        named = self.named_in(text)
        if not named:
            return None
        if node.type == "sizeof_expression":
            count = str(len(self.packs[named[0]]))
            return (node.start_byte, node.end_byte, count) if "..." in text else None
        if node.type == "fold_expression":
            return node.start_byte, node.end_byte, self._folded(node)
        elements = self.elements(text[: text.rindex("...")].rstrip())
        start, end = node.start_byte, node.end_byte
        if not elements:  # with the comma before it, or behind it
            start, end = self.with_comma(start, end)
        return start, end, ", ".join(elements)

    def with_comma(self, start: int, end: int) -> tuple[int, int]:
        """Returns an extent with the comma before it, or behind it."""
        before, behind = self.source.previous_code(start), self.source.next_code(end)
        if self.source.masked[before] == ",":
            return before, end
        return (start, behind + 1) if self.source.masked[behind] == "," else (start, end)

    def elements(self, pattern: str) -> list[str]:
        """Returns a pattern for each element of the packs that it names."""
        named = self.named_in(pattern)
        found = []
        for index in range(max(len(self.packs[p]) for p in named)):
            text = pattern
            for name in named:
                text = re.sub(
                    rf"\b{re.escape(name)}\b", lambda _, n=name, i=index: self.packs[n][i], text
                )
            found.append(self._renamed(text))
        return found

    def _folded(self, node) -> str:
        text = self.source.text[node.start_byte + 1 : node.end_byte - 1]
        before, _, behind = text.partition("...")
        symbol = next(
            c.type
            for c in node.children
            if not c.is_named and c.type not in "().,..." or c.type == ","
        )
        sides = [
            before.strip().removesuffix(symbol).strip(),
            behind.strip().removeprefix(symbol).strip(),
        ]
        operands = [
            self.elements(side) if self.named_in(side) else [self._renamed(side)]
            for side in sides
            if side
        ]
        values = [value for of_side in operands for value in of_side]
        if not values:
            return _OF_NOTHING.get(symbol, "()")
        # `(... + x)` and `(0 + ... + x)` begin at the left.
        if not before.strip() or (sides[1] and not self.named_in(sides[0])):
            folded = values[0]
            for value in values[1:]:
                folded = f"({folded} {symbol} {value})"
        else:
            folded = values[-1]
            for value in reversed(values[:-1]):
                folded = f"({value} {symbol} {folded})"
        return f"({folded})"
