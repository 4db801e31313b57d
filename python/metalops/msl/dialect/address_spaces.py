"""Erases address spaces.

`device`, `thread` and `threadgroup` are blanked; `constant` becomes `const` unless its type is const already, on
methods, too. Columns are kept.
"""

from __future__ import annotations

import re

from ..analysis.program import Program, name_of
from .edits import Edits


class AddressSpaces:
    def __init__(self, program: Program, edits: Edits):
        self.program = program
        self.source = program.source
        self.edits = edits

    def run(self) -> None:
        constructors = self._constructor_qualifiers()
        for word in self.source.words:
            erased = word.text != "constant" or word.start in constructors or self._is_doubled(word)
            if erased:
                self.edits.blank(word.start, word.end)
            else:
                self.edits.replace(word.start, word.end, "const   ")

    def _constructor_qualifiers(self) -> set[int]:
        """Returns the offsets of `constant` after a constructor, which cannot be const."""
        found = set()
        for function in self.program.functions:
            if not function.in_class:
                continue
            scope = function.path[-1].removeprefix("class ").split("<")[0].strip()
            name = name_of(function.declarator)
            if name.type in ("identifier", "template_function") and function.name == scope:
                parameters = function.declarator.child_by_field_name("parameters")
                limit = function.body or function.node.next_sibling
                end = limit.start_byte if limit else function.node.end_byte
                found.update(w.start for w in self.source.words_in(parameters.end_byte, end))
        return found

    def _is_doubled(self, word) -> bool:
        """Returns true if another word at the same level makes the type const that `constant` qualifies."""
        text, masked = self.source.text, self.source.masked
        start = _specifiers_before(masked, word.start)
        if re.search(r"\b(?:const|constant)\b", _without_brackets(text[start : word.start])):
            return True
        end = _specifiers_after(masked, word.end)
        return bool(re.search(r"\bconst\b", _without_brackets(text[word.end : end])))


def _without_brackets(text: str) -> str:
    pattern = re.compile(r"<[^<>]*>|\[\[.*?\]\]|\([^()]*\)", re.DOTALL)
    while (shorter := pattern.sub("", text)) != text:
        text = shorter
    return text


def _specifiers_before(text: str, position: int) -> int:
    """Returns the start of the declaration specifiers that end at `position`."""
    depth = 0
    while position > 0:
        c = text[position - 1]
        if c == ">":
            depth += 1
        elif c == "<" and depth > 0:
            depth -= 1
        elif c in ";{}" or (depth == 0 and c in "<(),*&=[]#+-/|?!"):
            break
        position -= 1
    return position


def _specifiers_after(text: str, position: int) -> int:
    """Returns the end of the declaration specifiers that begin at `position`."""
    depth = 0
    while position < len(text):
        c = text[position]
        if c == "<":
            depth += 1
        elif c == ">" and depth > 0:
            depth -= 1
        elif c in ";{}" or (depth == 0 and c in ">(),*&=[]#"):
            break
        position += 1
    return position
