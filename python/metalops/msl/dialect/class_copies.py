"""Copies of class templates that are used for pointers to several address spaces, and whose meaning depends on them.

`template <typename P> struct s` gets a specialisation for each combination of spaces that uses of it name, such as
`template <typename P> struct s<device P*>`, which are then told apart as those that the program has itself
(specialisations.py), and is left for what is no pointer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..analysis.program import (
    ClassScope,
    Function,
    parameter_ranges,
    template_name,
    template_parameters,
)
from ..analysis.spaces import Spaces
from ..analysis.types import DATA_SPACES, NO_POINTER, NOTHING
from .insertion import Insertion
from .specialisations import deduced_uses, uses

_IDENTIFIERS = "[(identifier) (type_identifier) (namespace_identifier)] @n"


class ClassCopies:
    """number: which makes names unique. kind_of: returns the address space that a template argument points to, None if
    it is no pointer, or "unknown". copies_around: returns the copies of the template around a node, or []."""

    def __init__(self, spaces: Spaces, number: int, kind_of, copies_around):
        self.spaces = spaces
        self.source = spaces.source
        self.program = spaces.program
        self.number = number
        self._kind_of = kind_of
        self._copies_around = copies_around

    def around(self, node) -> ClassScope | None:
        """Returns the class template of whose definition, or of the definition of whose member, a node is part."""
        inside = [
            scope
            for scope in self.program.classes
            if scope.node.start_byte <= node.start_byte < scope.end and scope.template_headers
        ]
        if inside:
            return inside[-1]
        function = self.spaces.calls.function_around(node)
        owner = function and self.spaces.calls.lookup.owner(function)
        return next((s for s in self.program.classes if s.name == owner), None)

    def of(self, scope: ClassScope) -> list[Insertion]:
        """Returns the copies of a class template, or first of a template in which it is used. Empty if it cannot be
        copied."""
        parameters = self._parameters(scope)
        if not parameters or not self._can_be_copied(scope):
            return []
        combinations: dict[tuple, None] = {}
        longer = []
        for use in self._uses(scope):
            kinds = self._kinds(use, scope)
            if kinds is None:
                return []
            if "unknown" in kinds:
                is_inside = scope.node.start_byte <= use.start_byte < scope.end
                if is_inside or self._is_of_member(use, scope):
                    continue  # a use by the class itself
                if self.spaces.types.is_unused_alias(use):
                    continue
                return self._copies_around(use)
            combinations.setdefault(kinds)
            longer += self._defaults(use, scope, kinds)
        given = [c for c in combinations if any(c)]
        if not given:
            return []
        open_ = {name for c in given for name, kind in zip(parameters, c, strict=True) if kind}
        members = [f for f in self._members(scope) if not self._is_inside(f, scope)]
        if any(len(f.template_headers) != 1 for f in members):
            return []
        if any(len(self.names_in(f)) != len(parameters) for f in members):
            return []
        prefix = NOTHING if len(given) == len(combinations) else NO_POINTER
        longer += self._named(scope.node, open_, prefix)
        for function in members:
            own = zip(parameters, self.names_in(function), strict=True)
            longer += self._named(function.node, {n for p, n in own if p in open_}, prefix)
        for index, combination in enumerate(given):
            kinds = dict(zip(parameters, combination, strict=True))
            copy = _Copy(self, scope, kinds, f"msl_{self.number}_{index}_")
            longer.append(Insertion(scope.end, f" {copy.of_class()}"))
            for function in members:
                longer.append(Insertion(function.node.end_byte, f" {copy.of_member(function)}"))
        return sorted(longer, key=lambda i: i.offset)

    # ---- which classes and uses ------------------------------------------------------------------

    def _parameters(self, scope: ClassScope) -> list[str]:
        """Returns the names of the parameters of a class template; none if one has no name or is a pack."""
        if len(scope.template_headers) != 1:
            return []
        found = []
        for parameter in template_parameters(scope.template_headers[0]):
            if parameter.identifier is None or parameter.node.type.startswith("variadic"):
                return []
            found.append(self.source.masked_text(parameter.identifier))
        return [] if any(name.startswith(NO_POINTER) for name in found) else found

    def _can_be_copied(self, scope: ClassScope) -> bool:
        """Returns true for the only class of a name, which has no specialisations and is no member of a template."""
        others = [s for s in self.program.classes if s.name.split("<")[0].strip() == scope.name]
        is_member = any(part.startswith("class ") for part in scope.path)
        if len(others) > 1 or is_member or "<" in scope.name:
            return False
        return not any(deduced_uses(self.program, scope.name))

    def _uses(self, scope: ClassScope) -> Iterator:
        for node in uses(self.source):
            if self.source.masked_text(template_name(node)) == scope.name:
                yield node

    def _kinds(self, use, scope: ClassScope) -> tuple | None:
        """Returns what a use gives each parameter; None if it leaves one to a default that may be a pointer."""
        arguments = use.child_by_field_name("arguments").named_children
        found = [*map(self._kind_of, arguments)]
        for default in self._left_out(use, scope):
            kind = self.kind_of_default(default)
            if kind == "unknown":
                return None
            found.append(kind)
        return tuple(found)

    def kind_of_default(self, default: str) -> str | None:
        """Returns what kind_of() does for the default of a template parameter."""
        pointer = re.fullmatch(r"(?:const\s+)?(\w+)\s[\w\s]*\*(?:\s*const)?", default)
        if pointer is not None and pointer[1] in DATA_SPACES:
            return pointer[1]
        words = re.findall(r"\w+", default)
        if any(map(self.spaces.types.is_template_parameter, words)):
            return "unknown"
        alias = self.spaces.types.aliases.get(default)
        if alias is not None and alias.kind == "pointer":
            return alias.target.space or "thread"
        return None if re.fullmatch(r"[\w\s]*", default) else "unknown"

    def _left_out(self, use, scope: ClassScope) -> list[str]:
        """Returns the defaults of the parameters for which a use has no arguments."""
        count = len(use.child_by_field_name("arguments").named_children)
        ranges = [*parameter_ranges(scope.template_headers[0])][count:]
        return [self.source.text[start:end].partition("=")[2].strip() for _, start, end in ranges]

    def _defaults(self, use, scope: ClassScope, kinds: tuple) -> Iterator[Insertion]:
        """Yields the arguments that a use leaves to defaults, if one of them is a pointer."""
        defaults = self._left_out(use, scope)
        count = len(kinds) - len(defaults)
        if any(kinds[count:]):
            end = use.child_by_field_name("arguments").end_byte - 1
            yield Insertion(end, f"{', ' if count else ''}{', '.join(defaults)}")

    def _members(self, scope: ClassScope) -> list[Function]:
        owner = self.spaces.calls.lookup.owner
        return [f for f in self.program.functions if owner(f) == scope.name]

    @staticmethod
    def _is_inside(function: Function, scope: ClassScope) -> bool:
        return scope.node.start_byte <= function.node.start_byte < scope.end

    def _is_of_member(self, use, scope: ClassScope) -> bool:
        return any(
            f.node.start_byte <= use.start_byte < f.node.end_byte for f in self._members(scope)
        )

    def names_in(self, function: Function) -> list[str]:
        """Returns what the definition of a member outside of the class calls the parameters."""
        header = template_parameters(function.template_headers[0])
        return [self.source.masked_text(p.identifier) for p in header if p.identifier is not None]

    def _named(self, node, names: set[str], prefix: str) -> Iterator[Insertion]:
        for identifier in self.source.find(_IDENTIFIERS, node):
            if self.source.masked_text(identifier) in names:
                yield Insertion(identifier.start_byte, prefix)


class _Copy:
    """One copy of a class template. kinds: the address space that each of its parameters points to, None for no pointer.
    prefix: of the names in it."""

    def __init__(
        self, copies: ClassCopies, scope: ClassScope, kinds: dict[str, str | None], prefix: str
    ):
        self.copies = copies
        self.source = copies.source
        self.scope = scope
        self.kinds = kinds
        self.prefix = prefix

    def of_class(self) -> str:
        specifier = self.scope.specifier
        name = specifier.child_by_field_name("name")
        begin = specifier.child_by_field_name("body").start_byte + 1
        names = {n for n, kind in self.kinds.items() if kind}
        aliases = " ".join(f"using {self._alias(n)} = {self._pointer(n)};" for n in names)
        edits = [
            self._header(self.scope.template_headers[0], [*self.kinds]),
            (name.end_byte, name.end_byte, self._arguments([*self.kinds])),
            (begin, begin, f" public: {aliases} {self._access()}"),
            *self._renamed(specifier, [*self.kinds], begin),
        ]
        return self._edited(self.scope.node.start_byte, self.scope.end, edits)

    def of_member(self, function: Function) -> str:
        """Returns the definition of a member outside of the class."""
        names = self.copies.names_in(function)
        scope = next(
            node
            for node in self.source.find("(template_type) @t", function.node)
            if self.source.masked_text(node.child_by_field_name("name")) == self.scope.name
        )
        edits = [
            self._header(function.template_headers[0], names),
            (scope.start_byte, scope.end_byte, f"{self.scope.name}{self._arguments(names)}"),
            *self._renamed(function.node, names, scope.end_byte),
        ]
        return self._edited(function.node.start_byte, function.node.end_byte, edits)

    def _access(self) -> str:
        return "private: " if self.source.masked_text(self.scope.specifier)[:5] == "class" else ""

    def _alias(self, name: str) -> str:
        return f"{self.prefix}type_{name}"

    def _pointer(self, name: str, written: str | None = None) -> str:
        kind = self.kinds[name]
        return f"{kind} {self.prefix}{written or name}*" if kind else written or name

    def _arguments(self, names: list[str]) -> str:
        """names: those of the parameters where they are written, in the order of the class's."""
        pairs = zip(self.kinds, names, strict=True)
        return f"<{', '.join(self._pointer(own, name) for own, name in pairs)}>"

    def _header(self, header, names: list[str]) -> tuple[int, int, str]:
        written = []
        for own, name, (node, start, end) in zip(
            self.kinds, names, parameter_ranges(header), strict=True
        ):
            default = node.child_by_field_name("default_type") or node.child_by_field_name(
                "default_value"
            )
            end = end if default is None else default.start_byte
            text = self.source.text[start:end].rstrip().removesuffix("=").strip()
            written.append(f"typename {self.prefix}{name}" if self.kinds[own] else text)
        return header.start_byte, header.end_byte, f"<{', '.join(written)}>"

    def _renamed(self, node, names: list[str], begin: int) -> Iterator[tuple[int, int, str]]:
        """Yields the edits that rename the parameters: to an alias of the class from an offset on."""
        own = dict(zip(names, self.kinds, strict=True))
        for identifier in self.source.find(_IDENTIFIERS, node):
            name = self.source.masked_text(identifier)
            if name in own and self.kinds[own[name]]:
                is_known = identifier.start_byte >= begin
                text = self._alias(own[name]) if is_known else self._pointer(own[name], name)
                yield identifier.start_byte, identifier.end_byte, text

    def _edited(self, start: int, end: int, edits: list[tuple[int, int, str]]) -> str:
        pieces, position = [], start
        for first, last, text in sorted(edits):
            if first < position:
                continue  # inside of what is replaced
            pieces += [self.source.text[position:first], text]
            position = last
        text = "".join([*pieces, self.source.text[position:end]])
        lines = re.sub(r"(?m)^[ \t]*#.*$", "", text).split("\n")
        return " ".join(line.strip() for line in lines)
