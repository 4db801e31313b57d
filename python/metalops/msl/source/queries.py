"""Queries of syntax trees, in tree-sitter's language for them.

tree-sitter takes 10 ms to read a query, however small: it analyses the whole grammar of C++. So a query is given to it
only where it has to be. A query that asks for nodes of some types, whatever is in them, or for nodes with a child of some type,
is answered from a table of all nodes by type, and so is one whose types do not occur.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|;[^\n]*|[()\[\]]|@?[\w.]+|\S')
_ONE_CHILD = re.compile(
    r'\((?P<outer>\w+) (?:(?P<field>\w+): )?(?:\((?P<type>\w+)\)|"(?P<token>[^"\\]+)")(?: @(?P<of_child>\w+))?\)'
    r"(?: @(?P<of_node>\w+))?"
)
_PLAIN = re.compile(r"\((\w+)\)\s*@(\w+)|\[((?:\s*\(\w+\))+)\s*\]\s*@(\w+)")


class Queries:
    """Answers queries of a tree."""

    def __init__(self, language, root):
        self._language, self._root = language, root

    def captures(self, query: str, node=None) -> dict[str, list]:
        """Returns the nodes captured in a node, by default the root, by capture name; those of one
        name are in no particular order."""
        types = _types_at_the_top(self._language, query)
        if types is not None and self._is_complete:
            if self._by_type.keys().isdisjoint(types):
                return {}
            plain, with_child = _plain(query), _with_child(self._language, query)
            if (plain or with_child) and (node is None or node.id in self._numbers):
                return self._find(plain, node) if plain else self._find_child(with_child, node)
        return _cursor(self._language, query).captures(node or self._root)

    @functools.cached_property
    def _is_complete(self) -> bool:
        """True if nodes are what the text has. A query finds some of the nodes that the parser adds for what it misses, and
        others it does not."""
        return not self._root.has_error or not any(node.is_missing for node in self._nodes)

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
        if len(plain) > 1:
            numbers.sort()
        for number in numbers:
            n = self._nodes[number]
            found.setdefault(plain[n.type], []).append(n)
        return found

    def _find_child(self, query: _WithChild, node) -> dict[str, list]:
        found = []
        for outer in self._find({query.outer: "n"}, node).get("n", ()):
            inner = [c for c in query.children(outer) if query.is_meant(c)]
            if inner:
                found += inner if query.captures_child else [outer]
        return {query.name: found} if found else {}

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
        return dict(zip([node.id for node in self._nodes], itertools.count()))  # noqa: B905

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
def tree_sitter():
    """Returns the module of this name. A program may forget it and import another one, as tests with pytester do, whose
    classes do not take objects of these."""
    import tree_sitter as module

    return module


@functools.cache
def _query(language, text: str):
    return tree_sitter().Query(language, text)


def _cursor(language, text: str):
    return tree_sitter().QueryCursor(_query(language, text))


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


@dataclass(frozen=True)
class _WithChild:
    """A query for nodes of a type that have a child. field: that of the child, or ""; inner: its type, or "_" for any named
    child; captures_child: true if the child is captured and not the node."""

    outer: str
    field: str
    inner: str
    is_named: bool
    captures_child: bool
    name: str

    def children(self, node) -> list:
        return node.children_by_field_name(self.field) if self.field else node.children

    def is_meant(self, child) -> bool:
        is_type = child.type == self.inner or (self.inner == "_" and child.type != "ERROR")
        return child.is_named == self.is_named and is_type


@functools.cache
def _with_child(language, query: str) -> _WithChild | None:
    found = _ONE_CHILD.fullmatch(query.strip())
    if found is None or bool(found["of_child"]) == bool(found["of_node"]):
        return None
    is_named = found["type"] is not None
    inner = found["type"] or found["token"]
    if is_named and inner != "_" and not _is_visible(language, inner):
        return None
    name = found["of_child"] or found["of_node"]
    of_child = found["of_child"] is not None
    return _WithChild(found["outer"], found["field"] or "", inner, is_named, of_child, name)


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
