"""Gives the value parameters of partial specialisations the types of the parameters that they are deduced from.

`template <class T, int N> struct has<rv<T, N>>` matches where the template itself says `template <class T, size_t N>
struct rv`, by Apple's compiler as by clang. C++ forbids that (temp.deduct.type), and g++ takes the primary template,
without an error. Inside of the specialisation N stays an int.

Parameters of functions are left as they are: no compiler deduces them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..analysis.program import (
    TemplateParameter,
    name_node,
    template_parameters,
)
from ..analysis.spaces import plain_name
from ..analysis.types import Type

_CLASSES = ("struct_specifier", "class_specifier", "union_specifier")
_LISTS = "[(template_type) (template_function)] @t"
# Types of the value parameters of the library's templates, as msl's headers declare them.
_OF_LIBRARY = {
    "vec": ((None, "int"),),
    "packed_vec": ((None, "int"),),
    "matrix": ((None, "int", "int"),),
    "simdgroup_matrix": ((None, "int", "int"),),
    "array": ((None, "size_t"),),
}
# In front of the name of a member, and of a pack that is counted.
_NO_VALUE = re.compile(r"(?:::|\.|->|\bsizeof\s*\.\.\.\s*\()\s*$")


def deduced_values(rewritten) -> None:
    """Runs before expressions are copied."""
    _DeducedValues(rewritten).run()


class _DeducedValues:
    def __init__(self, rewritten):
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        # By name: the types of the parameters of each template, None for one that is no value, or whose type is open.
        self._templates: dict[str, list[tuple[str | None, ...]]] = {}
        # By name: parameters and meaning of an alias template.
        self._aliases: dict[str, tuple[list[TemplateParameter], object]] = {}
        self._specialised: list[tuple[object, list, list]] = []  # (declaration, headers, heads)

    def run(self) -> None:
        source = self.source
        if "<" not in source.masked:
            return
        for node in source.find("(template_declaration) @t"):
            if node.parent.type != "template_declaration":
                self._declaration(node)
        for node, headers, heads in self._specialised:
            for header in headers:
                for parameter in template_parameters(header):
                    self._parameter(node, parameter, heads)

    # ---- declarations ----------------------------------------------------------------------------

    def _declaration(self, node) -> None:
        headers, inner = [], node
        while inner.type == "template_declaration":
            headers.append(inner.child_by_field_name("parameters"))
            inner = inner.named_children[-1]
        if not any(self._values(header) for header in headers) and inner.type in (
            "function_definition",
            "field_declaration",
        ):
            return
        if inner.type == "alias_declaration":
            name = self._text(inner.child_by_field_name("name"))
            self._aliases[name] = (
                template_parameters(headers[-1]),
                inner.child_by_field_name("type"),
            )
            return
        specifier = inner if inner.type in _CLASSES else inner.child_by_field_name("type")
        name = None
        if specifier is not None and specifier.type in _CLASSES:
            name = specifier.child_by_field_name("name")
        if name is None and inner.type in ("declaration", "field_declaration"):
            name = _first_name(inner.child_by_field_name("declarator"))
        elif name is None and inner.type == "function_definition":
            name = _first_name(inner.child_by_field_name("declarator"))
        if name is None:
            return
        if name.type in ("type_identifier", "identifier"):
            types = tuple(self._type(p) for p in template_parameters(headers[-1]))
            self._templates.setdefault(self._text(name), []).append(types)
        elif any(map(self._values, headers)):
            heads = [name] if name.type in ("template_type", "template_function") else _scopes(name)
            if heads:
                self._specialised.append((node, headers, heads))

    def _values(self, header) -> list[TemplateParameter]:
        return [
            p for p in template_parameters(header) if not p.is_type and p.identifier is not None
        ]

    def _type(self, parameter: TemplateParameter) -> str | None:
        """Returns the builtin type of a value parameter, as it is written, but for aliases; None for any other."""
        type_node = None if parameter.is_type else parameter.node.child_by_field_name("type")
        if type_node is None:
            return None
        declarator = parameter.node.child_by_field_name("declarator")
        if declarator is not None and declarator.type not in ("identifier", "variadic_declarator"):
            return None  # a pointer
        return self._builtin(self._text(type_node))

    def _builtin(self, text: str) -> str | None:
        for _ in range(8):
            if plain_name(Type("value", None, None, text)) is not None:
                return text
            found = self.source.find("(alias_declaration) @a")
            meant = [a for a in found if self._text(a.child_by_field_name("name")) == text]
            if len(meant) != 1 or meant[0].parent.type == "template_declaration":
                return None
            text = self._text(meant[0].child_by_field_name("type"))
        return None

    # ---- specialisations -------------------------------------------------------------------------

    def _parameter(self, node, parameter: TemplateParameter, heads: list) -> None:
        own = self._type(parameter)
        if own is None or parameter.identifier is None:
            return
        name = self._text(parameter.identifier)
        places, wanted = set(), None
        for head in heads:
            for list_ in {n.id: n for n in (head, *self.source.find(_LISTS, head))}.values():
                for index, argument in self._arguments(list_):
                    if self._pattern(argument) == name:
                        places.add(argument.start_byte)
                        wanted = wanted or self._wanted(list_, index)
        if wanted is None or _plain(wanted) == _plain(own):
            return
        type_node = parameter.node.child_by_field_name("type")
        self.edits.replace(type_node.start_byte, type_node.end_byte, wanted)
        self._uses(node, parameter, places, name, own)

    def _uses(self, node, parameter, places: set[int], name: str, own: str) -> None:
        """Converts the parameter to its own type where it is used, but not where it is deduced."""
        masked = self.source.masked
        for match in re.finditer(rf"\b{name}\b", masked[node.start_byte : node.end_byte]):
            start = node.start_byte + match.start()
            leaf = self.source.leaf_at(start)
            if start in places or start == parameter.identifier.start_byte:
                continue
            if leaf.type in ("identifier", "type_identifier") and not _NO_VALUE.search(
                masked, max(0, start - 40), start
            ):
                self.edits.wrap(leaf.start_byte, leaf.end_byte, f"(({own})", ")")

    def _wanted(self, list_, index: int) -> str | None:
        """Returns the type of the parameter number `index` of the template named before a list of arguments."""
        name = self._text(name_node(list_.child_by_field_name("name")))
        return self._wanted_of(name, index, 0)

    def _wanted_of(self, name: str, index: int, depth: int) -> str | None:
        if name in self._aliases and depth < 8:
            parameters, meant = self._aliases[name]
            if index >= len(parameters) or parameters[index].identifier is None:
                return None
            own = self._text(parameters[index].identifier)
            for list_ in self.source.find(_LISTS, meant):
                for at, argument in self._arguments(list_):
                    if self._pattern(argument) == own:
                        of = self._text(name_node(list_.child_by_field_name("name")))
                        return self._wanted_of(of, at, depth + 1)
            return None
        found = set()
        for types in self._templates.get(name) or _OF_LIBRARY.get(name, ()):
            last = len(types) - 1
            found.add(types[min(index, last)] if types else None)
        return found.pop() if len(found) == 1 else None

    def _arguments(self, list_) -> Iterator[tuple[int, object]]:
        arguments = list_.child_by_field_name("arguments").named_children
        yield from enumerate(a for a in arguments if a.type != "comment")

    def _pattern(self, argument) -> str:
        return self._text(argument).removesuffix("...").strip()

    def _text(self, node) -> str:
        return " ".join(self.source.masked_text(node).split())


def _plain(text: str) -> str | None:
    return plain_name(Type("value", None, None, text))


def _first_name(declarator):
    """Returns the name that a declarator of a variable or of a function declares."""
    while declarator is not None and declarator.type not in (
        "identifier",
        "template_function",
        "qualified_identifier",
    ):
        if declarator.type == "function_declarator":
            inner = declarator.child_by_field_name("declarator")
            return inner if inner.type == "qualified_identifier" else None
        following = declarator.child_by_field_name("declarator")
        if following is None and declarator.type.endswith("_declarator"):
            following = declarator.named_children[-1] if declarator.named_children else None
        declarator = following
    return declarator


def _scopes(name) -> list:
    """Returns the templates before the last `::` of a name."""
    found = []
    while name is not None and name.type == "qualified_identifier":
        scope = name.child_by_field_name("scope")
        if scope is not None and scope.type == "template_type":
            found.append(scope)
        name = name.child_by_field_name("name")
    return found
