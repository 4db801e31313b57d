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
from .class_deduction import ClassDeduction
from .insertion import Insertion
from .pack_classes import PackClasses, has_pack
from .specialisations import uses

_LIMIT = 64  # combinations of address spaces of a class
_PARAMETER, _ANY_POINTER = "parameter", "any pointer"
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
        self._deduction = ClassDeduction(spaces, copies_around)
        self._packs = PackClasses(spaces, copies_around)

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
        """Returns the copies of a class template and of its specialisations, or first of a template in which it is used.
        Empty if it cannot be copied."""
        written = self._packs.of(self._scopes_of(scope))
        if written is not None:
            return written
        family = self._family(scope)
        if not family:
            return []
        primary = self._scopes_of(scope)[0]
        written = self._deduction.of(primary)
        if written is not None:
            return written
        combinations: dict[tuple, None] = {}
        inside, longer = [], []
        for use in self._uses(primary):
            if any(use.start_byte == f.head.start_byte for f in family):
                continue
            kinds = self._kinds(use, primary)
            if kinds is None:
                return []
            if "unknown" in kinds:
                of_class = [f for f in family if self._is_inside_of(use, f, primary)]
                if of_class:
                    inside += [(f, use) for f in of_class]
                elif not self.spaces.types.is_unused_alias(use):
                    return self._copies_around(use)
                continue
            combinations.setdefault(kinds)
            longer += self._defaults(use, primary, kinds)
        self._add_inner(combinations, inside, {len(member.pattern) for member in family})
        copies = self._copies_of(family, combinations)
        if copies is None:
            return []
        return sorted([*longer, *copies], key=lambda i: i.offset)

    def _is_inside_of(self, use, member: _Member, primary: ClassScope) -> bool:
        if self._is_inside(use, member.scope):
            return True
        return member.scope is primary and self._is_of_member(use, primary)

    def _add_inner(self, combinations: dict[tuple, None], inside: list, counts: set[int]) -> None:
        """Adds what a class gives itself. counts: how many template arguments it takes."""
        waiting = [*combinations]
        while waiting and len(combinations) < _LIMIT:
            combination = waiting.pop()
            for member, use in inside:
                own = member.given(combination)
                if own is None:
                    continue
                arguments = use.child_by_field_name("arguments").named_children
                texts = [self.source.masked_text(a).strip() for a in arguments]
                kinds = [
                    own[t] if t in own else self._kind_of(a)
                    for t, a in zip(texts, arguments, strict=True)
                ]
                found = tuple(kinds)
                is_whole = len(found) in counts and "unknown" not in found
                if is_whole and found not in combinations:
                    combinations[found] = None
                    waiting.append(found)

    def _copies_of(self, family: list[_Member], combinations: dict[tuple, None]):
        """Returns the copies of the templates of a family; None if they cannot be made."""
        existing = {member.key for member in family}
        has_packs = any(map(has_pack, self._scopes_of(family[0].scope)))
        has_no_pointers = not any(map(any, combinations))
        longer: list[Insertion] = []
        for order, member in enumerate(family):
            opened: dict[tuple, dict[str, str | None]] = {}
            is_left = False
            for combination in combinations:
                kinds = member.given(combination)
                if kinds is None:
                    continue
                if not any(kinds.values()):
                    is_left = True
                elif (key := member.key_of(kinds)) not in existing:
                    opened[key] = kinds
            types = {name for name in member.names if name in member.types}
            is_left_alone = any(name.startswith(NO_POINTER) for name in member.names)
            # A class that gets no pointers gives others none.
            if not opened and (is_left_alone or not (has_packs or has_no_pointers)):
                continue
            functions = self._functions_of(member, family)
            if functions is None:
                return None
            prefix = NO_POINTER if is_left else NOTHING
            if is_left_alone:
                if is_left and any(name.startswith(NOTHING) for name in member.names):
                    return None
                prefix = ""
            if prefix:
                longer += self._named(member.scope.node, types, prefix)
            for function in functions if prefix else ():
                own = zip(member.names, self.names_in(function), strict=True)
                longer += self._named(function.node, {n for p, n in own if p in types}, prefix)
            for index, kinds in enumerate(opened.values()):
                copy = _Copy(self, member, kinds, f"msl_{self.number}_{order}_{index}_")
                longer.append(Insertion(member.scope.end, f" {copy.of_class()}"))
                for function in functions:
                    longer.append(Insertion(function.node.end_byte, f" {copy.of_member(function)}"))
        return longer

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
        return found

    def _family(self, scope: ClassScope) -> list[_Member]:
        """Returns a class template and its specialisations, the template first; none if they cannot be copied."""
        scopes = self._scopes_of(scope)
        primary = [s for s in scopes if "<" not in s.name]
        has_packs = any(map(has_pack, scopes))  # of which the template may be declared only
        if len(primary) != (1 if primary or not has_packs else 0):
            return []
        if any(s.path != scope.path for s in scopes):
            return []
        if any(part.startswith("class ") for part in scope.path):
            return []
        if not has_packs and not self._parameters(primary[0]):
            return []
        found = [self._member(s) for s in scopes if not has_pack(s)]
        return [] if None in found else [f for f in found if f is not None]

    def _scopes_of(self, scope: ClassScope) -> list[ClassScope]:
        """Returns a class template and its specialisations, the template first if it is defined."""
        name = scope.name.split("<")[0].strip()
        scopes = [s for s in self.program.classes if s.name.split("<")[0].strip() == name]
        return sorted(scopes, key=lambda s: "<" in s.name)

    def _member(self, scope: ClassScope) -> _Member | None:
        """Returns a class of a family; None if it is not known what it is for."""
        if len(scope.template_headers) != 1:
            return None
        header = template_parameters(scope.template_headers[0])
        if any(p.identifier is None or p.node.type.startswith("variadic") for p in header):
            return None
        names = [self.source.masked_text(p.identifier) for p in header]
        types = {n for n, p in zip(names, header, strict=True) if p.is_type}
        head = scope.specifier.child_by_field_name("name")
        if head.type != "template_type":
            pattern: list[tuple] = [(_PARAMETER, name) for name in names]
            return _Member(scope, head, names, types, pattern)
        pattern = []
        for argument in head.child_by_field_name("arguments").named_children:
            text = self.source.masked_text(argument).strip()
            if text in names:
                pattern.append((_PARAMETER, text))
                continue
            kind = self._kind_of(argument)
            type_ = self.spaces.described(argument) if argument.type == "type_descriptor" else None
            if kind is None and type_ is not None and type_.kind == "value" and "<" in type_.name:
                kind = None
            elif kind == "unknown":
                return None
            is_any = kind is not None and type_ is not None and type_.kind == "pointer"
            is_any = is_any and type_.target.name in names and not type_.target.is_const
            pattern.append((_ANY_POINTER if is_any else text, kind))
        return _Member(scope, head, names, types, pattern)

    def _functions_of(self, member: _Member, family: list[_Member]) -> list[Function] | None:
        """Returns the definitions of members of a class outside of it; None if they cannot be copied."""
        found = []
        for function in self._members(member.scope):
            if any(self._is_inside(function.node, s) for s in self._scopes_of(member.scope)):
                continue
            if len(function.template_headers) != 1:
                return None
            scope = next((n for n in self._scopes_in(function, family)), None)
            names = self.names_in(function)
            if scope is None or not names:
                return None
            arguments = scope.child_by_field_name("arguments").named_children
            texts = [self.source.masked_text(a).strip() for a in arguments]
            is_primary = texts == names
            if not is_primary and len(family) > 1 and any("<" in f.scope.name for f in family):
                own = [f for f in family if f.texts(self.source, names) == texts]
                if len(own) != 1:
                    return None
                if own[0] is member:
                    found.append(function)
            elif member is family[0] and "<" not in member.scope.name:
                if len(names) != len(member.names):
                    return None
                found.append(function)
        return found

    def _scopes_in(self, function: Function, family: list[_Member]) -> Iterator:
        name = family[0].scope.name.split("<")[0].strip()
        for node in self.source.find("(template_type) @t", function.declarator):
            if self.source.masked_text(node.child_by_field_name("name")) == name:
                yield node

    def _uses(self, scope: ClassScope) -> Iterator:
        name = scope.name.split("<")[0].strip()
        left = [s for s in self._scopes_of(scope) if has_pack(s)]
        for node in uses(self.source):
            if self.source.masked_text(template_name(node)) == name and not any(
                self._is_inside(node, s) for s in left
            ):
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
        if has_pack(scope):
            return []
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
        name = scope.name.split("<")[0].strip()
        return [f for f in self.program.functions if owner(f) == name]

    @staticmethod
    def _is_inside(node, scope: ClassScope) -> bool:
        return scope.node.start_byte <= node.start_byte < scope.end

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


class _Member:
    """A class template or one of its specialisations. head: the node of its name. names: its parameters, of which `types`
    are types. pattern: what it has for each parameter of the template: (_PARAMETER, its own parameter), (_ANY_POINTER, an
    address space), or (text, the address space that it points to, or None)."""

    def __init__(self, scope: ClassScope, head, names: list[str], types: set[str], pattern: list):
        self.scope = scope
        self.head = head
        self.names = names
        self.types = types
        self.pattern = pattern
        self.key = self.key_of({})

    def given(self, combination: tuple) -> dict[str, str | None] | None:
        """Returns what its parameters are for pointers to some spaces; None if it is not for them."""
        kinds: dict[str, str | None] = dict.fromkeys(self.names)
        if len(combination) != len(self.pattern):
            return None
        for (what, of), kind in zip(self.pattern, combination, strict=True):
            if what == _PARAMETER:
                kinds[of] = kind
            elif of != kind:
                return None
        return kinds

    def key_of(self, kinds: dict[str, str | None]) -> tuple:
        """Returns what tells its copies apart, and from the specialisations that a program has."""
        return tuple(
            ((_ANY_POINTER, kinds[of]) if kinds.get(of) else _PARAMETER)
            if what == _PARAMETER
            else (what, of)
            for what, of in self.pattern
        )

    def texts(self, source, names: list[str]) -> list[str]:
        """Returns its template arguments, with its parameters named otherwise."""
        if self.head.type != "template_type" or len(names) != len(self.names):
            return []
        renamed = dict(zip(self.names, names, strict=True))
        arguments = self.head.child_by_field_name("arguments").named_children
        texts = [source.masked_text(a).strip() for a in arguments]
        return [re.sub(r"\w+", lambda m: renamed.get(m.group(), m.group()), t) for t in texts]


class _Copy:
    """One copy of a class template. kinds: the address space that each of its parameters points to, None for no pointer.
    prefix: of the names in it."""

    def __init__(
        self, copies: ClassCopies, member: _Member, kinds: dict[str, str | None], prefix: str
    ):
        self.copies = copies
        self.source = copies.source
        self.scope = member.scope
        self.types = member.types
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
            (begin, begin, f" public: {aliases} {self._access()}"),
            *self._renamed(specifier, [*self.kinds], begin),
        ]
        if name.type != "template_type":
            edits.append((name.end_byte, name.end_byte, self._arguments([*self.kinds])))
        return self._edited(self.scope.node.start_byte, self.scope.end, edits)

    def of_member(self, function: Function) -> str:
        """Returns the definition of a member outside of the class."""
        names = self.copies.names_in(function)
        scope = next(
            node
            for node in self.source.find("(template_type) @t", function.node)
            if self.source.masked_text(node.child_by_field_name("name"))
            == self.scope.name.split("<")[0].strip()
        )
        edits = [
            self._header(function.template_headers[0], names),
            *self._renamed(function.node, names, scope.end_byte),
        ]
        return self._edited(function.node.start_byte, function.node.end_byte, edits)

    def _access(self) -> str:
        return "private: " if self.source.masked_text(self.scope.specifier)[:5] == "class" else ""

    def _alias(self, name: str) -> str:
        return f"{self.prefix}type_{name}"

    def _pointer(self, name: str, written: str | None = None) -> str:
        kind = self.kinds[name]
        return f"{kind} {self.prefix}{written or name}*" if kind else self._plain(name, written)

    def _plain(self, name: str, written: str | None = None) -> str:
        """Returns the name of a parameter that is no pointer."""
        text = written or name
        return text if name not in self.types or text.startswith(NO_POINTER) else NO_POINTER + text

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
            if self.kinds[own]:
                text = f"typename {self.prefix}{name}"
            elif own in self.types:
                text = re.sub(rf"\b{re.escape(name)}\b", self._plain(own, name), text)
            written.append(text)
        return header.start_byte, header.end_byte, f"<{', '.join(written)}>"

    def _renamed(self, node, names: list[str], begin: int) -> Iterator[tuple[int, int, str]]:
        """Yields the edits that rename the parameters: to an alias of the class from an offset on."""
        own = dict(zip(names, self.kinds, strict=True))
        for identifier in self.source.find(_IDENTIFIERS, node):
            name = self.source.masked_text(identifier)
            if name in own and not self.kinds[own[name]]:
                text = self._plain(own[name], name)
                if text != name:
                    yield identifier.start_byte, identifier.end_byte, text
            elif name in own:
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
