"""Finds words of the language that are used as names, which the parser and C++ compilers would not notice: they do not
see address spaces and stages, and `half` is a class in emitted code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..source.parse import ADDRESS_SPACES, STAGES, Source
from ..source.vocabulary import KEYWORDS
from .program import Program, declared_identifier

# Names that are declared other than by a declarator.
_NAMED = (
    "[(struct_specifier name: (_) @n) (class_specifier name: (_) @n) (union_specifier name: (_) @n)"
    " (enum_specifier name: (_) @n) (enumerator name: (_) @n) (alias_declaration name: (_) @n)"
    " (namespace_definition name: (_) @n) (labeled_statement label: (_) @n)"
    " (type_parameter_declaration (type_identifier) @n)"
    " (optional_type_parameter_declaration name: (_) @n)]"
)
_DECLARED = (
    "[(declaration declarator: (_) @d) (field_declaration declarator: (_) @d)"
    " (parameter_declaration declarator: (_) @d)"
    " (optional_parameter_declaration declarator: (_) @d) (for_range_loop declarator: (_) @d)"
    " (type_definition declarator: (_) @d)]"
)
_VISIBLE = ("half", "bfloat", "ray_data", "object_data")  # the words of Metal that the parser sees
_BEHIND_NAME = re.compile(r"\s*[=;,\[)({:>}]")
_BEFORE = re.compile(r"(?:\w+|->|::|\S)$")
_AFTER = re.compile(r"\w+|->|::|\.\.\.|\S")
# Words before a name that no type begins behind.
_NO_TYPE_BEHIND = frozenset(
    "struct class union enum namespace goto return case typename using . ::".split()
)
_OPERATORS = frozenset("and and_eq bitand bitor or or_eq xor xor_eq not_eq".split())
# Tokens between the parameters of a member function and its address space.
_QUALIFIERS = frozenset(") const volatile noexcept override & &&".split())


def reserved_name(name: str) -> str:
    """Returns the error for a word of the language that is used as a name."""
    return f"{name} is a word of the language; choose another name, such as {name}_"


def erased_names(source: Source) -> Iterator[tuple[int, str]]:
    """Yields the offsets of address spaces and stages that stand where only a name can, with the words."""
    for word in source.words:
        if word.text in (*ADDRESS_SPACES, *STAGES) and not _is_in_place(source, word):
            yield word.start, word.text


def names_of_types(program: Program) -> Iterator[tuple[int, str]]:
    """Yields the offsets of declared names that are words of Metal and that C++ compilers take for names."""
    if any(
        _may_be_declared(program.source, start, start + len(word))
        for word in _VISIBLE
        for start in program.source.words_at.get(word, ())
    ):
        yield from declared_keywords(program)


def _may_be_declared(source: Source, start: int, end: int) -> bool:
    """Returns true if a word is in a place where a name may be declared."""
    if not _BEHIND_NAME.match(source.masked, end):
        return False
    before = source.previous_code(start)
    if before < 0 or source.masked[before] in "{,;}>*&":
        return before >= 0
    word = re.search(r"\w*$", source.masked[max(0, before - 99) : before + 1])[0]
    return word not in ("", "const", "volatile", "return")


def declared_keywords(program: Program) -> Iterator[tuple[int, str]]:
    """Yields the offsets of declared names that are keywords and that the parser sees, with the names."""
    source = program.source
    identifiers = list(source.find(_NAMED))
    for declarator in source.find(_DECLARED):
        identifiers.append(declared_identifier(declarator) or _declared_type(declarator))
    identifiers += [
        f.declarator.child_by_field_name("declarator")
        for f in program.functions
        if f.name in KEYWORDS
    ]
    for identifier in identifiers:
        if identifier is None or source.node_text(identifier) not in KEYWORDS:
            continue
        before = source.masked[max(0, identifier.start_byte - 99) : identifier.start_byte]
        if not re.search(r"\boperator\s*$", before):  # of a conversion
            yield identifier.start_byte, source.node_text(identifier)


def _declared_type(declarator):
    """Returns the name in a declarator of a typedef, or None."""
    while declarator is not None and declarator.type != "type_identifier":
        declarator = declarator.child_by_field_name("declarator")
    return declarator


def _around(source: Source, word) -> tuple[str, str, int]:
    """Returns the tokens before and after a word that the parser sees, and where the latter ends."""
    last = source.previous_code(word.start)
    before = _BEFORE.search(source.masked, max(0, last - 40), last + 1) if last >= 0 else None
    after = _AFTER.search(source.masked, word.end)
    return (
        before.group() if before else ";",
        after.group() if after else "",
        after.end() if after else len(source.masked),
    )


def _is_word(token: str) -> bool:
    return token[:1].isalpha() or token[:1] == "_"


def _is_in_place(source: Source, word) -> bool:
    """Returns true if an address space or a stage stands where one can."""
    before, after, end = _around(source, word)
    if before in _NO_TYPE_BEHIND or after in _OPERATORS:
        return False
    if word.text in STAGES:  # before the type of a function
        return before not in ("(", ",", "=", "<", "*", "->") and (_is_word(after) or after == "::")
    is_behind_type = _is_word(before) or before in (">", ")", "*", "&")
    if _is_word(after) or after == "::":
        return True
    if after in ("*", "&", "..."):
        # A sum such as `a + thread * b` has no type before the word.
        return is_behind_type and not _is_in_sum(source, word)
    if after == "(":
        return is_behind_type and source.masked[end:].lstrip()[:1] in ("*", "&")
    if after in ("{", ";", "=", "->", ":"):
        return before in _QUALIFIERS and not _is_of_a_type(source, word)
    if after in (")", ",", ">"):
        return before in ("*", ")", "const", "volatile") or (
            is_behind_type and after == ")" and _is_in_cast(source, word)
        )
    return False


def _is_in_sum(source: Source, word) -> bool:
    node = source.leaf_at(word.start)
    parent = node.parent
    return node.type == "binary_expression" and (
        parent is not None and parent.type not in ("expression_statement", "condition_clause")
    )


def _is_in_cast(source: Source, word) -> bool:
    node = source.leaf_at(word.start)
    return node.type in ("cast_expression", "type_descriptor", "sizeof_expression")


def _is_of_a_type(source: Source, word) -> bool:
    """Returns true if a pointer's or reference's declarator ends before the word, where its name would be."""
    last = source.previous_code(word.start)
    if source.masked[last] != "&":
        return False
    return not source.masked[:last].rstrip("& \n\t").endswith((")", "const", "volatile"))
