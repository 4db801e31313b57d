"""Subscripts with several indices, which C++ has only from C++23 on and Metal 3 lacks."""

from __future__ import annotations

import re

# Text that a scan skips: comments, literals, and template arguments, whose commas separate no indices.
_SKIPPED = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?<=\w)<[\w\s:,*&<>]*>(?=\s*(?:[({]|::))""",
    re.DOTALL,
)
_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"\s+")
_CLOSING = {")": "(", "]": "[", "}": "{"}
# Words before a bracket that begins a lambda or a structured binding.
_NO_OPERANDS = frozenset({"auto", "return"})


def as_calls(text: str) -> str:
    """Returns Metal code with every subscript of several indices, ``a[i, j]``, written as a call, ``a(i, j)``.

    Each character is replaced by one, so that compile errors keep their columns. Subscripts of one index, attributes,
    comments and literals stay as they are. Code whose brackets do not match is left to the compiler.
    """
    result = list(text)
    # Each open bracket: the character, its position, true if it is a subscript, true if commas separate its content.
    stack: list[list] = []
    before = ""  # the word or character before the current position
    position = 0
    while position < len(text):
        skipped = _SPACE.match(text, position) or _SKIPPED.match(text, position)
        if skipped:
            if skipped[0][0] == "<":
                before = ">"
            position = skipped.end()
            continue
        word = _WORD.match(text, position)
        if word:
            before = word[0]
            position = word.end()
            continue
        character = text[position]
        if character in "([{":
            operand = before in (")", "]") or (
                _WORD.fullmatch(before) and before not in _NO_OPERANDS
            )
            attribute = text.startswith("[[", position)
            stack.append([character, position, bool(operand) and not attribute, False])
        elif character in _CLOSING:
            if not stack or stack[-1][0] != _CLOSING[character]:
                return text
            _, opened, is_subscript, has_commas = stack.pop()
            if character == "]" and is_subscript and has_commas:
                result[opened], result[position] = "(", ")"
        elif character == "," and stack:
            stack[-1][3] = True
        before = character
        position += 1
    return "".join(result)
