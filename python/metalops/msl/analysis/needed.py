"""The part of a program that some of its kernels need.

What a kernel needs is found by names alone: it needs every declaration whose name occurs in what it needs. That is more
than a kernel reaches (calls.py), and never less, since C++ finds nothing that is not named but operators and the few
functions of range loops and structured bindings. So a program without the rest means the same, and is what the host
compiler gets for a kernel that is compiled alone.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from .program import Function, Program, declared_identifier, parameter_ranges

_WORD = re.compile(r"[A-Za-z_]\w*")
_DIRECTIVE = re.compile(r"(?m)^[ \t]*#.*$")
_TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")
_LONG = 1000  # characters of a line
_CLASSES = {"class_specifier", "struct_specifier", "union_specifier"}
_TYPES = {*_CLASSES, "enum_specifier", "type_definition", "alias_declaration"}
# Words of constructs that call the compiler's runtime, and of declarations whose definition may be missing.
_OF_THE_RUNTIME = {"new", "throw", "typeid", "dynamic_cast", "virtual", "thread_local", "extern"}
_DELETE = re.compile(r"\bdelete\b(?!\s*;)")
_HERE = {"default_method_clause", "delete_method_clause"}
# Found by range loops and structured bindings without being named.
_IMPLICIT = ("begin", "end", "get", "tuple_size", "tuple_element")


@dataclass(eq=False)
class _Unit:
    """A declaration at namespace scope. start: the end of what stands before it. names: what it declares; empty if it
    is always needed. requires: the types without which an operator is of no use."""

    start: int
    end: int
    text: str
    names: frozenset[str]
    is_type: bool = False
    parameters: frozenset[str] | None = None  # of an operator: the words of its parameters
    arguments: frozenset[str] | None = None  # of a specialisation: the words of its arguments
    words: frozenset[str] = field(init=False)

    def __post_init__(self):
        self.words = frozenset(_WORD.findall(_DIRECTIVE.sub("", self.text)))


class Needed:
    """Finds what kernels of a program need."""

    def __init__(self, program: Program):
        self.source = program.source
        self._units = [*self._of_scope(self.source.root.children, 0)]
        self._instances = {i.name: i for i in program.instances}
        constants = program.source.attribute_lists
        self._constants = [
            a.start for a in constants if any(x.name == "function_constant" for x in a.attributes)
        ]
        templates = {name for u in self._units if u.arguments is None for name in u.names}
        for unit in self._units:
            if unit.arguments is not None and unit.names.isdisjoint(templates):
                unit.parameters = unit.arguments  # of the library's templates, which name it
        self._by_name: dict[str, list[_Unit]] = {}
        self._operators = [u for u in self._units if u.parameters is not None]
        for unit in self._units:
            for name in unit.names if unit.parameters is None else ():
                self._by_name.setdefault(name, []).append(unit)
        self._types = {name for u in self._units if u.is_type for name in u.names}
        self._instantiations = self._units_at(i.offset for i in program.instances)
        always = [u for u in self._units if not u.names and u not in self._instantiations]
        self._always = {*always, *self._units_at(self._constants)}

    def text(self, kernels: Collection[str]) -> str:
        """Returns the source with nothing but what these kernels need. Lines are kept, and columns of all but very long
        lines, which macros expanded to."""
        kept = self._units_of(kernels)
        text = self.source.text
        pieces, position = [], 0
        for unit in self._units:
            if unit not in kept:
                pieces += [text[position : unit.start], _blank(text, unit.start, unit.end)]
                position = unit.end
        lines = "".join([*pieces, text[position:]]).split("\n")
        return "\n".join(line.rstrip(" ") for line in lines)

    @functools.cached_property
    def _alike(self) -> dict[str, tuple[str, ...]]:
        declared = self._types.union(self._by_name)
        groups: dict[object, list[str]] = {}
        for name, instance in self._instances.items():
            own = self._units_at([instance.offset])
            words = frozenset().union(*(unit.words for unit in own)) & declared
            groups.setdefault((instance.kernel.number, words), []).append(name)
        return {name: tuple(group) for group in groups.values() for name in group}

    def alike(self, kernel: str) -> tuple[str, ...]:
        """Returns the kernels, this one among them, that differ in their template arguments alone: instances of one function
        whose registrations name the same declarations, so that they need the same."""
        return self._alike[kernel]

    def size(self, kernels: Collection[str]) -> int:
        """Returns the number of characters that these kernels need."""
        return sum(unit.end - unit.start for unit in self._units_of(kernels))

    def _units_of(self, kernels: Collection[str]) -> set[_Unit]:
        own = self._units_at(self._instances[name].offset for name in kernels)
        kept: set[_Unit] = set()
        words: set[str] = set()
        waiting = [*self._always, *own]
        new_words = [*_IMPLICIT]
        operators = self._operators
        while waiting or new_words:
            for word in new_words:
                if word not in words:
                    words.add(word)
                    waiting += self._by_name.get(word, ())
            new_words = []
            while waiting:
                unit = waiting.pop()
                if unit not in kept and (unit not in self._instantiations or unit in own):
                    kept.add(unit)
                    new_words += unit.words - words
            if not new_words:
                usable = [u for u in operators if u.parameters & self._types <= words]
                operators = [u for u in operators if u not in usable]
                waiting += usable
        return kept

    # ---- the declarations ------------------------------------------------------------------------

    def _units_at(self, offsets: Iterable[int]) -> set[_Unit]:
        found = set()
        for offset in offsets:
            index = bisect.bisect_right(self._units, offset, key=lambda u: u.start) - 1
            if index >= 0 and offset < self._units[index].end:
                found.add(self._units[index])
        return found

    def _of_scope(self, children, start: int) -> Iterator[_Unit]:
        for child in children:
            if child.type == "namespace_definition" and not child.has_error:
                body = child.child_by_field_name("body")
                yield from self._of_scope(body.children, body.start_byte)
            elif child.is_named:
                yield self._unit(child, start)
            start = child.end_byte

    def _unit(self, node, start: int) -> _Unit:
        text = self.source.text[start : node.end_byte]
        if node.type == "static_assert_declaration":  # has been checked with the whole program
            return _Unit(start, node.end_byte, "", frozenset({""}))
        names = () if node.has_error else self._names(node)
        operator = next((n for n in names if n.startswith("operator")), None)
        if operator is None or '"' in operator:
            names = () if operator else names
            is_type, arguments = self._is_type(node), self._arguments(node)
            return _Unit(start, node.end_byte, text, frozenset(names), is_type, None, arguments)
        return _Unit(
            start, node.end_byte, text, frozenset(names), False, self._operands(node, names)
        )

    def _is_type(self, node) -> bool:
        while node.type == "template_declaration":
            node = node.named_children[-1]
        specifier = node.child_by_field_name("type")
        return node.type in _TYPES or (specifier is not None and specifier.type in _TYPES)

    def _names(self, node) -> list[str]:
        """Returns the names that a declaration declares, and the scopes that qualify them."""
        kind = node.type
        if kind in ("template_declaration", "template_instantiation") and node.named_children:
            return self._names_of_template(node)
        if kind in _CLASSES or kind in ("alias_declaration", "concept_definition"):
            return self._name(node.child_by_field_name("name"))
        if kind == "enum_specifier":
            enumerators = self.source.find("(enumerator name: (_) @n)", node)
            names = [self.source.masked_text(n) for n in enumerators]
            return [*self._name(node.child_by_field_name("name")), *names]
        if kind == "using_declaration":
            text = self.source.masked_text(node)
            return [] if "namespace" in text.split() else _WORD.findall(text)[-1:]
        if kind in ("function_definition", "declaration", "type_definition"):
            specifier = node.child_by_field_name("type")
            names = self._names(specifier) if specifier.type in _TYPES else []
            for declarator in node.children_by_field_name("declarator"):
                while (inner := declarator.child_by_field_name("declarator")) is not None:
                    declarator = inner
                names += self._name(declarator)
            return names
        return []

    def _names_of_template(self, node) -> list[str]:
        if node.type == "template_declaration":
            return self._names(node.named_children[-1])
        declarator = node.child_by_field_name("declarator")
        if declarator is None:
            specifier = node.child_by_field_name("type") or node.named_children[-1]
            return self._names(specifier)
        while (inner := declarator.child_by_field_name("declarator")) is not None:
            declarator = inner
        return self._name(declarator)

    def _name(self, node) -> list[str]:
        if node is None:
            return []
        text = self.source.masked_text(node)
        if "operator" in text:
            scopes, _, name = text.rpartition("operator")
            return [*self._plain(scopes), "operator" + "".join(name.split())]
        return self._plain(text)

    @staticmethod
    def _plain(text: str) -> list[str]:
        count = 1
        while count:
            text, count = _TEMPLATE_ARGUMENTS.subn("", text)
        return _WORD.findall(text)

    def _arguments(self, node) -> frozenset[str] | None:
        """Returns the words of the arguments that a class template is specialised for."""
        if node.type != "template_declaration":
            return None
        while node.type == "template_declaration":
            node = node.named_children[-1]
        if node.type not in _CLASSES:
            node = node.child_by_field_name("type") or node
        name = node.child_by_field_name("name") if node.type in _CLASSES else None
        if name is None or not self.source.masked_text(name).endswith(">"):
            return None
        return frozenset(_WORD.findall(self.source.masked_text(name).partition("<")[2]))

    def _operands(self, node, names: Iterable[str]) -> frozenset[str]:
        """Returns the words of an operator's parameters, and of the class whose member it is, that are not its template
        parameters."""
        own: set[str] = set()
        while node.type == "template_declaration":
            for parameter, _, _ in parameter_ranges(node.child_by_field_name("parameters")):
                own.update(_WORD.findall(self.source.masked_text(parameter))[-1:])
            node = node.named_children[-1]
        parameters = next(self.source.find("(parameter_list) @p", node), None)
        words = _WORD.findall(self.source.masked_text(parameters)) if parameters else []
        scopes = [name for name in names if not name.startswith("operator")]
        return frozenset({*words, *scopes} - own)


def _blank(text: str, start: int, end: int) -> str:
    """Returns the directives and line breaks of a range, with blanks where its last line goes on."""
    lines = text[start:end].split("\n")
    kept = [line if line.lstrip().startswith("#") else "" for line in lines[:-1]]
    is_long = end - text.rfind("\n", 0, end) > _LONG
    return "\n".join([*kept, "" if is_long else " " * len(lines[-1])])


def only_code_tells_errors(program: Program) -> bool:
    """Returns true if the program may have an error that compilers find only when they generate code: something that is
    declared and not defined, or a construct that calls the compiler's runtime. A function template of which there are
    only specialisations counts as defined."""
    source = program.source
    if _OF_THE_RUNTIME & source.identifiers or _DELETE.search(source.masked):
        return True
    defined = {_signature(program, f) for f in program.functions if _is_defined(f)}
    specialised = {f.name for f in program.functions if f.is_specialisation and _is_defined(f)}
    for function in program.functions:
        if function.stage is None and not _is_defined(function):
            has_others = function.template_headers and function.name in specialised
            if not has_others and _signature(program, function) not in defined:
                return True
    query = "(field_declaration (storage_class_specifier) declarator: (field_identifier)) @member"
    return any(not re.search(r"\bconstexpr\b|=", source.masked_text(m)) for m in source.find(query))


def _is_defined(function: Function) -> bool:
    return function.body is not None or any(c.type in _HERE for c in function.node.children)


def _signature(program: Program, function: Function) -> tuple:
    """Returns the name and the types of the parameters, as written."""
    types = []
    for node, start, end in parameter_ranges(function.declarator.child_by_field_name("parameters")):
        default = node.child_by_field_name("default_value")
        text = program.source.masked[start : default.start_byte if default else end].rstrip("= ")
        name = declared_identifier(node.child_by_field_name("declarator"))
        if name is not None:
            at = name.start_byte - start
            text = text[:at] + text[at + name.end_byte - name.start_byte :]
        types.append("".join(text.split()))
    return function.name, *types
