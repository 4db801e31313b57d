"""A syntax tree of preprocessed Metal source, with exact ranges.

tree-sitter-cpp parses a copy of the text in which everything that is Metal and not C++ (attributes, address space
words, `kernel`) is blanked out, and the suffix h of literals replaced, length for length. These parts are kept here by
offset. Offsets are those of the latin-1 decoded text, which are also the byte offsets that tree-sitter works with.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from .queries import Queries, tree_sitter

ADDRESS_SPACES = ("device", "constant", "thread", "threadgroup", "threadgroup_imageblock")
STAGES = ("kernel", "vertex", "fragment")

_TOKENS = re.compile(
    r"""(?P<directive>^[ \t]*\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|(?<![\w])'(?:\\.|[^'\\\n])*')
      | (?P<attributes>\[\[)
      | (?P<restrict>(?<=&)\s*__restrict(?:__)?\b)
      | (?P<number>(?<![\w.])
          (?:0[xX][\da-fA-F.]+(?:[pP][+-]?\d+)?|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
          (?P<suffix>\w*))
      | (?P<word>\b(?:device|constant|thread|threadgroup|threadgroup_imageblock
                    |kernel|vertex|fragment
                    |__attribute__|__asm__|__asm|asm|ray_data|object_data|coherent)\b)""",
    re.M | re.X,
)
_CONVERSION = re.compile(
    r"(?<![\w:])(?<!unsigned )(?<!signed )(?<!long )(?:long|short|unsigned|signed)(?=\((?![*&]))"
)
_POINTERS = re.compile(r"\*(?=\s*\.\.\.\s*\w)")
# `typename` before an argument such as T::type{...}.
_TYPENAME = re.compile(
    r"(?<=[(,\s])typename\s+(?=(?:\w+\s*(?:<[^<>(){};]*>)?\s*::\s*)+(?:template\s+)?\w+\s*(?:<[^<>(){};]*>)?\s*(?:\{|\((?![*&])))"
)
_WORD = re.compile(r"\w+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_FLOATING = re.compile(r"(?![0][xX])[\d.]*(?:\.|[eE])|0[xX].*[pP.]")


class Attribute(NamedTuple):
    """One attribute of a ``[[...]]`` list; arguments: the text between its parentheses, or None."""

    name: str
    arguments: str | None
    start: int


class AttributeList(NamedTuple):
    start: int
    end: int
    attributes: tuple[Attribute, ...]


class Word(NamedTuple):
    """An address space or stage word."""

    start: int
    end: int
    text: str


class Literal(NamedTuple):
    """A floating literal and its suffix: '', 'f', 'h' or 'bf'."""

    start: int
    end: int
    digits: str
    suffix: str


@functools.cache
def _language():
    import tree_sitter_cpp

    return tree_sitter().Language(tree_sitter_cpp.language())


class Source:
    """Preprocessed text, its tree, and the parts that Metal adds to C++."""

    def __init__(self, text: str):
        self.text = text
        self.attribute_lists: list[AttributeList] = []
        self.words: list[Word] = []
        self.literals: list[Literal] = []
        self.masked = self._mask()
        # The grammar parses `long(x)` as a declaration; under a name of the same length it is a call.
        parsed = _CONVERSION.sub(lambda match: "_" * len(match.group()), self.masked)
        # It has packs of references, and none of pointers: such a node's text tells what it is.
        parsed = _POINTERS.sub("&", parsed)
        # A statement that is a call with such an argument it takes for a declaration; as part of a name it does not.
        parsed = _TYPENAME.sub(
            lambda match: match.group().rstrip().ljust(len(match.group()), "_"), parsed
        )
        self.tree = tree_sitter().Parser(_language()).parse(parsed.encode("latin-1"))
        self.root = self.tree.root_node
        self._queries = Queries(_language(), self.root)
        self._attribute_starts = [a.start for a in self.attribute_lists]
        self._word_starts = [w.start for w in self.words]

    # ---- blanked parts, by range -----------------------------------------------------------------

    def attributes_in(self, start: int, end: int) -> list[Attribute]:
        found = []
        for i in range(
            bisect.bisect_left(self._attribute_starts, start), len(self.attribute_lists)
        ):
            item = self.attribute_lists[i]
            if item.start >= end:
                break
            found.extend(item.attributes)
        return found

    def words_in(self, start: int, end: int) -> list[Word]:
        low = bisect.bisect_left(self._word_starts, start)
        return self.words[low : bisect.bisect_left(self._word_starts, end)]

    @functools.cached_property
    def words_at(self) -> dict[str, list[int]]:
        """The offsets of all words and numbers that the parser sees, by their text: where `\\b` and the word would be found,
        which takes long in a text of many headers."""
        found: dict[str, list[int]] = {}
        for match in _WORD.finditer(self.masked):
            found.setdefault(match.group(), []).append(match.start())
        return found

    @functools.cached_property
    def identifiers(self) -> frozenset[str]:
        """All words that the parser sees."""
        return frozenset(_IDENTIFIER.findall(" ".join(self.words_at)))

    # ---- nodes -----------------------------------------------------------------------------------

    def node_text(self, node) -> str:
        return self.text[node.start_byte : node.end_byte]

    def masked_text(self, node) -> str:
        return self.masked[node.start_byte : node.end_byte]

    def leaf_at(self, offset: int):
        return self.root.descendant_for_byte_range(offset, offset + 1)

    def find(self, query: str, node=None) -> Iterator:
        """Returns the nodes captured by a tree-sitter query, in order of position."""
        nodes = [n for group in self.captures(query, node).values() for n in group]
        return iter(sorted(nodes, key=lambda n: n.start_byte))

    def captures(self, query: str, node=None) -> dict[str, list]:
        """Returns the nodes captured by a tree-sitter query, by capture name."""
        return self._queries.captures(query, node)

    def next_code(self, offset: int) -> int:
        """Returns the offset of the first character at or after `offset` that the parser sees."""
        match = re.compile(r"\S").search(self.masked, offset)
        return match.start() if match else len(self.masked)

    def previous_code(self, offset: int) -> int:
        """Returns the offset of the last character before `offset` that the parser sees, or -1."""
        offset -= 1
        while offset >= 0 and self.masked[offset].isspace():
            offset -= 1
        return offset

    # ---- masking ---------------------------------------------------------------------------------

    def _mask(self) -> str:
        text = self.text
        pieces: list[str] = []
        position = 0

        def blank(start: int, end: int, by: str = " ") -> None:
            nonlocal position
            pieces.append(text[position:start])
            pieces.append(re.sub(r"[^\n]", by, text[start:end]))
            position = end

        scan = 0
        while match := _TOKENS.search(text, scan):
            start, end = match.span()
            scan = end
            kind = match.lastgroup if match.lastgroup != "suffix" else "number"
            if kind in ("directive", "restrict"):  # the grammar has no restricted references
                blank(start, end)
            elif kind == "attributes":
                end = _closing(text, start)
                if end is None:
                    continue
                self.attribute_lists.append(
                    AttributeList(start, end, tuple(_attributes(text, start + 2, end - 2)))
                )
                blank(start, end)
                scan = end
            elif kind == "number":
                suffix = match.group("suffix")
                digits = text[start : match.start("suffix")]
                if not digits.lower().startswith("0x") and suffix in ("h", "H", "bf", "BF"):
                    self.literals.append(Literal(start, end, digits, suffix.lower()))
                    if suffix in "hH":  # which is no suffix to the parser
                        blank(match.start("suffix"), end, "f")
                elif _FLOATING.match(digits) and suffix.lower() in ("", "f"):
                    self.literals.append(Literal(start, end, digits, suffix.lower()))
            elif kind == "word":
                word = match.group()
                if word in ("__attribute__", "__asm__", "__asm", "asm"):
                    paren = re.compile(r"\s*(?:volatile)?\s*\(").match(text, end)
                    close = _closing(text, paren.end() - 1) if paren else None
                    if close is not None:
                        blank(start, close)
                        scan = close
                    continue
                if word == "coherent":
                    match = re.compile(
                        r"\s*(?:\(\s*(?:device|system|threadgroup)\s*\))?(?=\s+[A-Za-z_])"
                    ).match(text, end)
                    if match is None:
                        continue
                    end = scan = match.end()
                elif word in ("ray_data", "object_data") and not re.compile(
                    r"\s+[A-Za-z_][\w:<>, ]*\s*[&*]"
                ).match(text, end):
                    continue
                self.words.append(Word(start, end, word))
                blank(start, end)
        pieces.append(text[position:])
        return "".join(pieces)


_BRACKETS = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[()\[\]{}]')
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def _closing(text: str, start: int) -> int | None:
    """Returns the offset past the bracket that closes the one at `start`, or None."""
    stack: list[str] = []
    for match in _BRACKETS.finditer(text, start):
        bracket = match.group()
        if bracket in _PAIRS:
            stack.append(_PAIRS[bracket])
        elif bracket[0] in "\"'":
            continue
        else:
            if not stack or stack.pop() != bracket:
                return None
            if not stack:
                return match.end()
    return None


def blanked(text: str, ranges: list[tuple[int, int]]) -> str:
    """Returns the text with ranges blanked, except line breaks and line markers."""
    pieces = []
    done = 0
    for start, end in sorted(ranges):
        start = max(start, done)
        if end <= start:
            continue
        lines = text[start:end].split("\n")
        first = start == 0 or text[start - 1] == "\n"
        for number, line in enumerate(lines):
            if not (line.startswith("#") and (number > 0 or first)):
                lines[number] = " " * len(line)
        pieces += [text[done:start], "\n".join(lines)]
        done = end
    return "".join([*pieces, text[done:]])


closing_bracket = _closing

_BRACKET_IN_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])*\'|[()\[\]{}]')


def unbalanced_bracket(text: str) -> tuple[str, int] | None:
    """Returns the error for the first bracket without a partner, and its offset; None if all are balanced."""
    opened: list[int] = []
    for match in _BRACKET_IN_CODE.finditer(text):
        bracket = match.group()
        if bracket in _PAIRS:
            opened.append(match.start())
        elif bracket[0] in "\"'":
            continue
        elif not opened:
            return f"'{bracket}' closes nothing", match.start()
        elif (expected := _PAIRS[text[opened.pop()]]) != bracket:
            return f"expected '{expected}' before '{bracket}'", match.start()
    return (f"'{text[opened[-1]]}' is never closed", opened[-1]) if opened else None


def split_arguments(text: str) -> list[str]:
    """Splits at commas outside of brackets, including the angle brackets of templates."""
    parts: list[str] = []
    depth = 0
    start = 0
    for match in re.finditer(r'"(?:\\.|[^"\\])*"|[()\[\]{}<>,]', text):
        c = match.group()
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    if text[start:].strip():
        parts.append(text[start:].strip())
    return parts


_ATTRIBUTE = re.compile(r"\s*,?\s*((?:\w+\s*::\s*)*)(\w+)\s*")


def _attributes(text: str, start: int, end: int) -> Iterator[Attribute]:
    position = start
    while match := _ATTRIBUTE.match(text, position, end):
        position = match.end()
        arguments = None
        if position < end and text[position] == "(":
            close = _closing(text, position)
            if close is None or close > end:
                return
            arguments = text[position + 1 : close - 1].strip()
            position = close
        yield Attribute(match.group(2), arguments, match.start(2))


_PLAIN_LITERALS = re.compile(r'\s*(?:"[^"\\\n]*"\s*)+')  # without escapes


def string_value(literals: str) -> str | None:
    """Returns the value of adjacent string literals, or None for any other text."""
    if _PLAIN_LITERALS.fullmatch(literals):
        return "".join(literals.split('"')[1::2])
    import ast

    try:
        value = ast.literal_eval(f"({literals})")
    except (SyntaxError, ValueError):
        return None
    return value if isinstance(value, str) else None
