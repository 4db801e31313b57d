"""Types of declarations and expressions, as far as address spaces need them.

A pointer or reference in Metal names its address space where it is declared, so most spaces can be read off the source
without instantiating templates. Types that cannot be read off (auto without an initialiser that can be followed, a
template parameter that may stand for a pointer, a member of an unknown class) are None, and None breaks no rule.
"""

from __future__ import annotations

import bisect
import re
from typing import NamedTuple

from ..source.parse import Source
from .program import Function, Program, parameter_ranges, template_parameters

_CLASSES = ("struct_specifier", "class_specifier", "union_specifier")
# Begins the names of type parameters that stand for no pointers (dialect/space_copies.py).
NO_POINTER = "msl_no_pointer_"
NOTHING = f"{NO_POINTER}nothing_"  # of those of templates of which only copies are used
DATA_SPACES = ("device", "constant", "threadgroup", "thread")

_BUILTIN = re.compile(
    r"(?:packed_)?(?:(?:unsigned|signed) )?"
    r"(?:bool|u?char|u?short|u?int|u?long|half|float|bfloat|u?int(?:8|16|32|64)_t|size_t|ptrdiff_t"
    r"|void|unsigned|signed)"
    r"(?:[234](?:x[234])?)?(?: int)?$"
)
_BUILTIN_TEMPLATES = {
    "vec",
    "packed_vec",
    "matrix",
    "atomic",
    "array",
    "simdgroup_matrix",
    "tensor",
}
_KNOWN_BUILTIN = re.compile(
    r"(?:atomic_(?:u?int|bool|float|u?long)|simdgroup_(?:half|float|bfloat)8x8|sampler|os_log)$"
)


class Type(NamedTuple):
    """A type. kind: "pointer", "reference", "array" or "value". space: the address space of an object of this type,
    None if it is not named. name: of a value's class or builtin type. is_open: true for a value whose type may itself
    be a pointer or reference. is_const: true if the object is const."""

    kind: str
    space: str | None = None
    target: Type | None = None
    name: str = ""
    is_open: bool = False
    is_const: bool = False

    def in_space(self, space: str | None) -> Type:
        return self._replace(space=space)

    def written(self) -> str:
        """Returns the type as a user would write it."""
        if self.kind in ("pointer", "reference"):
            return f"{self.target.written()}{'*' if self.kind == 'pointer' else '&'}"
        if self.kind == "array":
            return f"{self.target.written()}[]"
        return f"{self.space} {self.name}" if self.space else self.name


FUNCTION = Type("value", None, None, "a function", True)  # a name that no program can have


class Declared(NamedTuple):
    """One declarator's type, with the nodes of its parts: (node, type) of each pointer and reference level."""

    type: Type
    levels: tuple[tuple[object, Type], ...]


class Types:
    """The types that a program declares."""

    def __init__(self, source: Source, program: Program):
        self.source = source
        self.program = program
        self.aliases: dict[str, Type | None] = {}
        self.classes: dict[str, list] = {}
        for scope in program.classes:
            self.classes.setdefault(scope.name.split("<")[0].strip(), []).append(scope)
        self._parameters = {
            self._text(n) for n in source.find("(type_parameter_declaration (type_identifier) @n)")
        }
        self._enums = {
            self._text(n) for n in source.find("(enum_specifier name: (type_identifier) @n)")
        }
        self._declared: dict[tuple, Declared] = {}
        self._members: dict[object, dict[str, Type | None]] = {}  # by class
        self._named: dict[str, object] = {}  # a node of each name with template arguments
        self._of_functions: dict[int, list[tuple[object, int, Declared]]] = {}  # by declarator
        self._consts = sorted(
            (start, start + len(word))
            for word in ("const", "constexpr")
            for start in source.words_at.get(word, ())
        )
        self._has_copies = any(name.startswith(NO_POINTER) for name in self._parameters)
        self._is_complete = False  # until all aliases are known
        self._collect_aliases()
        self._is_complete = True

    def _text(self, node) -> str:
        return " ".join(self.source.masked_text(node).split())

    def _collect_aliases(self) -> None:
        for node in self.source.find("(alias_declaration) @a"):
            name = self._text(node.child_by_field_name("name"))
            if node.parent.type == "template_declaration" or name in self.aliases:
                self.aliases[name] = None
                continue
            self.aliases[name] = None
            described = node.child_by_field_name("type")
            self.aliases[name] = self.described(described).type
        for node in self.source.find("(type_definition) @t"):
            declarator = node.child_by_field_name("declarator")
            identifier = _identifier(declarator)
            if identifier is None:
                continue
            name = self._text(identifier)
            if name in self.aliases:
                self.aliases[name] = None
                continue
            self.aliases[name] = None
            type_node = node.child_by_field_name("type")
            if type_node.type in _CLASSES and type_node.child_by_field_name("name") is None:
                # `typedef struct { ... } name;`
                anonymous = [
                    s
                    for s in self.program.classes
                    if s.specifier.start_byte == type_node.start_byte
                ]
                self.classes.setdefault(name, []).extend(anonymous)
                del self.aliases[name]
                continue
            start = self.source.previous_code(node.start_byte) + 1
            self.aliases[name] = self.declared(start, type_node, declarator, node.end_byte).type

    def is_template_parameter(self, name: str) -> bool:
        """Returns true if some template has a type parameter of that name."""
        return name in self._parameters

    def is_unused(self, node) -> bool:
        """Returns true for a node of a template of which only copies are used."""
        return self._has_copies and self._is_of(node, NOTHING)

    def is_left(self, node) -> bool:
        """Returns true for a node of a template that is left for what is no pointer."""
        return self._has_copies and self._is_of(node, NO_POINTER)

    def _is_of(self, node, prefix: str) -> bool:
        while node is not None:
            if node.type == "template_declaration":
                header = node.child_by_field_name("parameters")
                if prefix in self.source.masked_text(header):
                    return True
            node = node.parent
        return False

    def type_parameters(self, function: Function) -> set[str]:
        """Returns the names of a function template's type parameters."""
        return {
            self._text(parameter.identifier)
            for header in function.template_headers
            for parameter in template_parameters(header)
            if parameter.is_type and parameter.identifier is not None
        }

    # ---- from syntax to types --------------------------------------------------------------------

    def described(self, node) -> Declared:
        """Returns the type of a type_descriptor: of a cast, an alias, a template argument."""
        start = self.source.previous_code(node.start_byte) + 1
        end = self.source.next_code(node.end_byte)
        return self.declared(
            start, node.child_by_field_name("type"), node.child_by_field_name("declarator"), end
        )

    def declared(self, start: int, type_node, declarator, end: int) -> Declared:
        """Returns the type that a declarator declares. start: where its declaration begins, blanked words included;
        end: past the declarator."""
        key = (start, type_node and type_node.id, declarator and declarator.id, end)
        found = self._declared.get(key)
        if found is None:
            found = self._read(start, type_node, declarator, end)
            if self._is_complete:
                self._declared[key] = found
        return found

    def _read(self, start: int, type_node, declarator, end: int) -> Declared:
        while declarator is not None and declarator.type == "init_declarator":
            declarator = declarator.child_by_field_name("declarator")
        limit = declarator.start_byte if declarator is not None else end
        current = self._base(start, type_node, limit)
        levels = []
        node = declarator
        while node is not None:
            kind = node.type.removeprefix("abstract_").removesuffix("_declarator")
            following = _inner(node)
            if kind == "reference" and self.source.masked[node.start_byte] == "*":
                kind = "pointer"  # a pack, see Source
            if kind in ("pointer", "reference"):
                behind = following.start_byte if following is not None else max(end, node.end_byte)
                space, is_const = self._qualifiers(node.start_byte, behind)
                current = Type(kind, space, current, is_const=is_const)
                levels.append((node, current))
            elif kind == "array":
                current = Type("array", current.space, current)
            elif kind == "function":
                current = FUNCTION
            node = following
        return Declared(current, tuple(levels))

    def _base(self, start: int, type_node, limit: int) -> Type:
        inside = None
        if type_node is not None and type_node.end_byte <= limit:
            inside = (type_node.start_byte, type_node.end_byte)
        space, is_const = None, False
        pieces = [(start, limit)] if inside is None else [(start, inside[0]), (inside[1], limit)]
        for piece in pieces:
            found, const = self._qualifiers(*piece)
            space, is_const = space or found, is_const or const
        name = self._name(type_node) if type_node is not None else ""
        if type_node is not None and type_node.type in _CLASSES:
            inner = type_node.child_by_field_name("name")
            name = self._text(inner) if inner is not None else "struct"
            return Type("value", space, None, name, False, is_const)
        if name in self.aliases and name not in self._parameters:
            alias = self.aliases[name]
            if alias is not None:
                return alias._replace(
                    space=space or alias.space, is_const=is_const or alias.is_const
                )
        return Type("value", space, None, name, self._is_open(type_node, name), is_const)

    def classes_named(self, name: str, among=None) -> list:
        """Returns the classes that a name with template arguments may mean, as far as their address spaces tell. among:
        one of those of that name, which is enough to know about."""
        bare, _, arguments = name.partition("<")
        scopes = self.classes.get(bare.strip(), [])
        if len(scopes) < 2 or not arguments:
            return scopes
        words = re.findall(r"\w+", arguments)
        spaces = [w for w in words if w in DATA_SPACES]
        if not spaces and any(w in self._parameters or w in self.aliases for w in words):
            if not all(w.startswith(NO_POINTER) for w in words if w in self._parameters):
                return scopes
        found = [s for s in scopes if self._spaces_in(self.written_name(s)) == spaces]
        return found or [s for s in scopes if not self._spaces_in(self.written_name(s))] or scopes

    @staticmethod
    def _spaces_in(name: str) -> list[str]:
        return [w for w in re.findall(r"\w+", name) if w in DATA_SPACES]

    def own_name(self, scope) -> str:
        """Returns the name of a class with its template arguments, which are its parameters if it is no specialisation."""
        name = self.written_name(scope)
        if "<" in name or len(self.classes.get(name, ())) < 2:
            return name
        names = [
            self._text(p.identifier)
            for header in scope.template_headers
            for p in template_parameters(header)
            if p.identifier is not None
        ]
        return f"{name}<{', '.join(names)}>" if names else name

    def written_name(self, scope) -> str:
        """Returns the name of a class, with the address spaces in its template arguments."""
        return self.name_of(scope.specifier.child_by_field_name("name"))

    def name_of(self, node) -> str:
        """Returns the name of a class without the namespaces before it."""
        while node.type == "qualified_identifier":
            node = node.child_by_field_name("name")
        return self._name(node)

    def _name(self, type_node) -> str:
        """Returns the name of a type, with the address spaces that its template arguments name, by aliases, too."""
        name = self._written(type_node)
        arguments = type_node.child_by_field_name("arguments") if "<" in name else None
        for argument in () if arguments is None else arguments.named_children:
            alias = self.aliases.get(self._text(argument))
            if alias is not None and alias.kind == "pointer":
                name = re.sub(rf"\b{self._text(argument)}\b", alias.written(), name)
        if arguments is not None:
            self._named[name] = type_node
        return name

    def argument(self, class_name: str, parameter: str) -> Type | None:
        """Returns what a class, by its name with template arguments, has for one of its template parameters."""
        scopes = self.classes_named(class_name)
        node = self._named.get(class_name)
        if len(scopes) != 1 or node is None or "<" in scopes[0].name:
            return None
        arguments = node.child_by_field_name("arguments").named_children
        parameters = [p for h in scopes[0].template_headers for p in template_parameters(h)]
        for own, argument in zip(parameters, arguments, strict=False):
            if own.identifier is not None and self._text(own.identifier) == parameter:
                return self.described(argument).type if argument.type == "type_descriptor" else None
        return None

    def _written(self, type_node) -> str:
        if "<" in self.source.masked_text(type_node) and not self.source.attributes_in(
            type_node.start_byte, type_node.end_byte
        ):
            return " ".join(self.source.node_text(type_node).split())
        return self._text(type_node)

    def _qualifiers(self, start: int, end: int) -> tuple[str | None, bool]:
        at = bisect.bisect_left(self._consts, (start,))
        is_const = at < len(self._consts) and self._consts[at][1] <= end
        found = self.source.words_in(start, end)
        if not found:
            return None, is_const
        words = [w.text for w in found if w.text not in ("kernel", "vertex", "fragment")]
        spaces = [w for w in words if w in DATA_SPACES]
        others = [w for w in words if w not in DATA_SPACES and w not in ("coherent",)]
        # In `thread const device T*` thread is the redundant one of the two words.
        space = next((w for w in others + spaces if w != "thread"), spaces[0] if spaces else None)
        return space, is_const

    def _is_open(self, node, name: str) -> bool:
        if node is None or node.type in (
            "placeholder_type_specifier",
            "decltype",
            "dependent_type",
        ):
            return True
        bare = name.split("<")[0].strip().removeprefix("metal::").removeprefix("::")
        if node.type in ("primitive_type", "sized_type_specifier") or _BUILTIN.match(bare):
            return False
        if bare.startswith(NO_POINTER):
            return False
        if node.type == "template_type" or "<" in name:
            return bare not in _BUILTIN_TEMPLATES and (
                bare not in self.classes or "::" in name.split(">")[-1]
            )
        if bare in self._parameters:
            return True
        return not (bare in self.classes or bare in self._enums or _KNOWN_BUILTIN.match(bare))

    # ---- members ---------------------------------------------------------------------------------

    def field(self, class_name: str, name: str) -> Type | None:
        """Returns the declared type of a data member; None unless the class and the member are known for certain."""
        bare = class_name.split("<")[0].strip().removeprefix("struct ")
        if len(self.classes.get(bare, ())) != 1:
            return None
        return self.fields_of(self.classes[bare][0]).get(name)

    def fields_of(self, scope) -> dict[str, Type | None]:
        """Returns the declared types of the data members of a class."""
        if scope not in self._members:
            self._members[scope] = self._read_fields(scope)
        return self._members[scope]

    def _read_fields(self, scope) -> dict[str, Type | None]:
        fields: dict[str, Type | None] = {}
        waiting = [scope.specifier.child_by_field_name("body")]
        while waiting:
            for node in waiting.pop().named_children:
                if node.type != "field_declaration":
                    continue
                type_node = node.child_by_field_name("type")
                declarators = node.children_by_field_name("declarator")
                if not declarators and type_node.type in _CLASSES:
                    if type_node.child_by_field_name("name") is None:  # `union { ... };`
                        waiting.append(type_node.child_by_field_name("body"))
                    continue
                start = self.source.previous_code(node.start_byte) + 1
                for declarator in declarators:
                    identifier = _identifier(declarator)
                    if identifier is not None:
                        declared = self.declared(start, type_node, declarator, node.end_byte)
                        fields[self._text(identifier)] = declared.type
        return fields

    def parameters(self, function) -> list[tuple[object, int, Declared]]:
        """Returns (node, start, type) of each parameter of a function declarator."""
        if function.id not in self._of_functions:
            self._of_functions[function.id] = self._read_parameters(function)
        return self._of_functions[function.id]

    def _read_parameters(self, function) -> list[tuple[object, int, Declared]]:
        found = []
        for node, start, end in parameter_ranges(function.child_by_field_name("parameters")):
            if node.type not in (
                "parameter_declaration",
                "optional_parameter_declaration",
                "variadic_parameter_declaration",
            ):
                continue
            declarator = node.child_by_field_name("declarator")
            limit = end
            default = node.child_by_field_name("default_value")
            if default is not None:
                limit = default.start_byte
            found.append(
                (
                    node,
                    start,
                    self.declared(start, node.child_by_field_name("type"), declarator, limit),
                )
            )
        return found

    def result(self, function: Function) -> Type | None:
        """Returns the type that a function returns; None if it has none that can be read off."""
        outer = function.node
        while outer.type == "template_declaration":
            outer = outer.named_children[-1]
        declarator = outer.child_by_field_name("declarator")
        type_node = outer.child_by_field_name("type")
        if declarator is None or type_node is None:
            return None
        start = max(self.source.previous_code(outer.start_byte) + 1, function.head)
        if function.template_headers:
            start = function.template_headers[-1].end_byte
        if declarator.type == "function_declarator":
            return self.declared(start, type_node, None, declarator.start_byte).type
        result = self.declared(start, type_node, declarator, function.declarator.start_byte)
        return result.levels[-1][1] if result.levels else None


def types_of(program: Program) -> Types:
    """Returns the types of a program, for Program.kept()."""
    return Types(program.source, program)


def _inner(node):
    following = node.child_by_field_name("declarator")
    if following is None:
        named = [c for c in node.named_children if c.type.endswith(("declarator", "identifier"))]
        following = named[-1] if named and node.type.endswith("declarator") else None
    return following


def _identifier(node):
    while node is not None and node.type not in (
        "identifier",
        "field_identifier",
        "type_identifier",
    ):
        node = _inner(node)
    return node
