"""Queries of syntax trees, in tree-sitter's language for them.

tree-sitter takes 10 ms to read a query, however small: it analyses the whole grammar of C++. So a query is given to it
only where it has to be. A query that asks for nodes of some types, whatever is in them, is answered from a table of all
nodes by type, and so is one whose types do not occur.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterator

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|;[^\n]*|[()\[\]]|@?[\w.]+|\S')
_PLAIN = re.compile(r"\((\w+)\)\s*@(\w+)|\[((?:\s*\(\w+\))+)\s*\]\s*@(\w+)")


class Queries:
    """Answers queries of a tree."""

    def __init__(self, language, root):
        self._language, self._root = language, root

    def captures(self, query: str, node=None) -> dict[str, list]:
        """Returns the nodes captured in a node, by default the root, by capture name; those of one
        name are in no particular order."""
        types = _types_at_the_top(self._language, query)
        if types is not None and not self._root.has_error:  # else there are nodes without a type
            if self._by_type.keys().isdisjoint(types):
                return {}
            plain = _plain(query)
            if plain and (node is None or node.id in self._numbers):
                return self._find(plain, node)
        return _cursor(self._language, query).captures(node or self._root)

    def _find(self, plain: dict[str, str], node) -> dict[str, list]:
        begin, end = 0, len(self._nodes)
        if node is not None:
            begin = self._numbers[node.id]
            end = bisect.bisect_left(self._starts, node.end_byte, begin + 1)
        numbers: list[int] = []
        for type in plain:
            listed = self._by_type.get(type, [])
            numbers += listed[bisect.bisect_left(listed, begin) : bisect.bisect_left(listed, end)]
        found: dict[str, list] = {}
        for n in (self._nodes[number] for number in sorted(numbers)):
            found.setdefault(plain[n.type], []).append(n)
        return found

    @functools.cached_property
    def _nodes(self) -> list:
        """All named nodes, each after those that it is in."""
        found, left = [], [self._root]
        while left:
            node = left.pop()
            found.append(node)
            left += reversed(node.named_children)
        return found

    @functools.cached_property
    def _numbers(self) -> dict[int, int]:
        return {node.id: number for number, node in enumerate(self._nodes)}

    @functools.cached_property
    def _starts(self) -> list[int]:
        return [node.start_byte for node in self._nodes]

    @functools.cached_property
    def _by_type(self) -> dict[str, list[int]]:
        """The numbers of the nodes of each type."""
        found: dict[str, list[int]] = {}
        for number, node in enumerate(self._nodes):
            found.setdefault(node.type, []).append(number)
        return found


@functools.cache
def _query(language, text: str):
    import tree_sitter

    return tree_sitter.Query(language, text)


def _cursor(language, text: str):
    import tree_sitter

    return tree_sitter.QueryCursor(_query(language, text))


@functools.cache
def _plain(query: str) -> dict[str, str] | None:
    """Returns the captures' names by the types of nodes, for a query that asks for nothing else."""
    if _PLAIN.sub("", query).strip():
        return None
    found: dict[str, str] = {}
    for one, name, several, common in _PLAIN.findall(query):
        for type in [one] if one else re.findall(r"\w+", several):
            if type in found:
                return None
            found[type] = name or common
    return found


@functools.cache
def _types_at_the_top(language, query: str) -> frozenset[str] | None:
    """Returns the types of which a node of each match has one; None if that may be any."""
    types = frozenset(_words_at_the_top(query))
    is_known = all(_is_visible(language, type) for type in types)
    return types if types and is_known else None


def _words_at_the_top(query: str) -> Iterator[str]:
    depth, is_first = 0, False
    for token in _TOKEN.findall(query):
        if is_first:
            yield token
        is_first = token == "(" and depth == 0
        depth += {"(": 1, ")": -1}.get(token, 0)


def _is_visible(language, type: str) -> bool:
    """Returns true for the type of a node; false for a wildcard, an error, or a name for several types."""
    number = language.id_for_node_kind(type, True)
    return bool(number) and type not in ("_", "ERROR") and language.node_kind_is_visible(number)
