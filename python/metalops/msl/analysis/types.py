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
# Begins those of copies that are made for calls of objects, some of which may be of other classes.
ATTEMPT = "msl_attempt_"
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
    "msl_decayed",
    "msl_in",
}
_POINTER = re.compile(
    r"(?:const )?(device|threadgroup|thread|constant) (?:const )?(.+?) ?\*(?: const)?"
)
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


NAMELESS = "struct"  # the name of the type of a class that has none
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
        self.aliases: dict[str, Type | None] = {}  # None for those of several declarations
        self._alias_nodes: dict[str, list] = {}
        # The parameters of alias templates, and the node of what they mean.
        self._alias_templates: dict[str, tuple[list[str], object]] = {}
        self.classes: dict[str, list] = {}
        for scope in program.classes:
            self.classes.setdefault(scope.name.split("<")[0].strip(), []).append(scope)
        self._parameters = {
            self._text(n) for n in source.find("(type_parameter_declaration (type_identifier) @n)")
        }
        self._packs = {
            self._text(n)
            for n in source.find("(variadic_type_parameter_declaration (type_identifier) @n)")
        }
        self._values = {
            self._text(n)
            for n in source.find(
                "(template_parameter_list [(parameter_declaration declarator: (identifier) @n)"
                " (optional_parameter_declaration declarator: (identifier) @n)])"
            )
        } - self._parameters
        self._enums = {
            self._text(n) for n in source.find("(enum_specifier name: (type_identifier) @n)")
        }
        self._declared: dict[tuple, Declared] = {}
        self._members: dict[object, dict[str, Type | None]] = {}  # by class
        self._of_nameless: dict[str, Type | None] | None = None
        self._named: dict[str, object] = {}  # a node of each name with template arguments
        self._of_functions: dict[int, list[tuple[object, int, Declared]]] = {}  # by declarator
        self._consts = sorted(
            (start, start + len(word))
            for word in ("const", "constexpr")
            for start in source.words_at.get(word, ())
        )
        self._has_attempts = ATTEMPT in source.masked
        self._has_copies = any(name.startswith(NO_POINTER) for name in self._parameters)
        self._is_complete = False  # until all aliases are known
        self._collect_aliases()
        self._is_complete = True

    def _text(self, node) -> str:
        return " ".join(self.source.masked_text(node).split())

    def _collect_aliases(self) -> None:
        for node in self.source.find("(alias_declaration) @a"):
            name = self._text(node.child_by_field_name("name"))
            self._alias_nodes.setdefault(name, []).append(node)
            if node.parent.type == "template_declaration" and name not in self.aliases:
                parameters = template_parameters(node.parent.child_by_field_name("parameters"))
                if all(p.is_type and p.identifier is not None for p in parameters):
                    names = [self._text(p.identifier) for p in parameters]
                    self._alias_templates[name] = (names, node.child_by_field_name("type"))
            else:
                self._alias_templates.pop(name, None)
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
            self._alias_nodes.setdefault(name, []).append(node)
            if name in self.aliases:
                self.aliases[name] = None
                self._alias_templates.pop(name, None)
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
        """Returns true if some template has a type parameter of that name, or a pack of them."""
        return name in self._parameters or name in self._packs

    def is_unused(self, node) -> bool:
        """Returns true for a node of a template of which only copies are used, or of an alias template that nothing names."""
        return (self._has_copies and self._is_of(node, NOTHING)) or self.is_unused_alias(node)

    def is_unused_alias(self, node) -> bool:
        """Returns true for a node of an alias template that nothing names."""
        while node is not None and node.type != "alias_declaration":
            node = node.parent
        if node is None or node.parent.type != "template_declaration":
            return False
        name = node.child_by_field_name("name")
        return all(
            offset == name.start_byte or self._is_brought(offset)
            for offset in self.source.words_at.get(self._text(name), ())
        )

    def _is_brought(self, offset: int) -> bool:
        """Returns true for a name in a using-declaration."""
        node = self.source.leaf_at(offset).parent
        while node.type == "qualified_identifier":
            node = node.parent
        return node.type == "using_declaration"

    def is_left(self, node) -> bool:
        """Returns true for a node of a template that is left for what is no pointer."""
        return self._has_copies and self._is_of(node, NO_POINTER)

    def is_attempt(self, node) -> bool:
        """Returns true for a node of a copy of a call operator, or of a lambda, that is made for a call of an object which
        may be of another class: no error in it means anything, unless C++ instantiates it."""
        around = node
        while around is not None and self._has_attempts:
            if around.type == "lambda_expression":
                declarator = around.child_by_field_name("declarator")
                if declarator is not None and ATTEMPT in self.source.masked_text(declarator):
                    return True
            around = around.parent
        return self._has_attempts and self._is_of(node, ATTEMPT)

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
            name = self._text(inner) if inner is not None else NAMELESS
            return Type("value", space, None, name, False, is_const)
        if type_node is not None and name not in self._parameters and not type_node.is_error:
            alias = self._alias(type_node, name)
            if alias is not None:
                return alias._replace(
                    space=space or alias.space, is_const=is_const or alias.is_const
                )
        return Type("value", space, None, name, self._is_open(type_node, name), is_const)

    # ---- aliases ---------------------------------------------------------------------------------

    def _alias(self, node, name: str) -> Type | None:
        """Returns the type that an alias means, or None. Those of several declarations, of classes and with template
        arguments are followed to address spaces only."""
        if self.aliases.get(name) is not None:
            return self.aliases[name]
        found = self._alias_in_scopes(node, name)
        return found if found is not None and _tells_a_space(found) else None

    def _alias_in_scopes(self, node, name: str) -> Type | None:
        if node.type in ("identifier", "type_identifier"):
            return self._alias_around(node, name) if name in self.aliases else None
        if node.type == "template_type":
            return self._alias_with_arguments(node)
        if node.type == "dependent_type":
            inner = node.named_children[-1]
            return self._alias_in_scopes(inner, self._text(inner))
        if node.type != "qualified_identifier" or not self._is_complete:
            return None
        scope, inner = node.child_by_field_name("scope"), node.child_by_field_name("name")
        if scope is None or inner is None or inner.type not in ("type_identifier", "template_type"):
            return None
        declared = self._alias_nodes.get(self._text(inner).split("<")[0].strip(), ())
        if not declared or self._text(scope) in self._parameters:
            return None
        if len(declared) == 1 and self._is_in(declared[0], self._text(scope)):
            if inner.type == "type_identifier":
                return self.aliases[self._text(inner)]
            return self._alias_with_arguments(inner)
        owner = self._name(scope)
        classes = self.classes_named(owner)
        own = [n for n in declared for c in classes if self._body_around(n) == c.specifier]
        if len(classes) != 1 or len(own) != 1:
            return None
        type_ = self._meaning(own[0])
        if type_ is None or "<" in classes[0].name or "<" not in owner:
            return type_
        names = [p.identifier for h in classes[0].template_headers for p in template_parameters(h)]
        given = {
            self._text(name): argument
            for name, argument in zip(names, self.arguments_in(owner), strict=False)
            if name is not None
        }
        return self._substituted(type_, given, {n: t.written() for n, t in given.items()})

    @staticmethod
    def _body_around(node):
        """Returns the class or namespace in which an alias is declared, or None."""
        node = node.parent
        if node is not None and node.type == "template_declaration":
            node = node.parent
        if node is None or node.type not in ("field_declaration_list", "declaration_list"):
            return None
        return node.parent

    def _is_in(self, declared, scope: str) -> bool:
        """Returns true if an alias is declared in the class or namespace of a name, which is no template."""
        body = self._body_around(declared)
        name = None if body is None else body.child_by_field_name("name")
        if name is None or body.parent.type == "template_declaration":
            return False
        return self._text(name).split("::")[-1].strip() == scope

    def _alias_around(self, node, name: str) -> Type | None:
        """Returns the type of an alias of which there are several, in the block or class around a node."""
        if not self._is_complete:
            return None
        declared = {n.parent.id: n for n in self._alias_nodes.get(name, ())}
        around = node.parent
        while around is not None:
            found = declared.get(around.id)
            if found is not None:
                is_itself = found.start_byte <= node.start_byte < found.end_byte
                return None if is_itself else self._meaning(found)
            if around.type == "function_definition" and around.child_by_field_name("declarator"):
                text = self._text(around.child_by_field_name("declarator")).split("(")[0]
                if "::" in text:
                    return None  # a member that is defined outside of its class
            around = around.parent
        return None

    def _meaning(self, declared) -> Type | None:
        """Returns the type that an alias_declaration or type_definition gives a name."""
        if declared.parent.type == "template_declaration":
            return None
        type_node = declared.child_by_field_name("type")
        if declared.type == "alias_declaration":
            return self.described(type_node).type
        start = self.source.previous_code(declared.start_byte) + 1
        declarator = declared.child_by_field_name("declarator")
        return self.declared(start, type_node, declarator, declared.end_byte).type

    def alias_template(self, name: str) -> tuple[list[str], object] | None:
        """Returns the parameters of the alias template of a name, all types, and the node of what it means."""
        return self._alias_templates.get(name)

    def _alias_with_arguments(self, node) -> Type | None:
        """Returns the type that an alias template means with the template arguments of a template_type."""
        name = self._text(node.child_by_field_name("name"))
        if name not in self._alias_templates:
            return None
        names, meant = self._alias_templates[name]
        arguments = node.child_by_field_name("arguments").named_children
        if len(arguments) != len(names) or any(a.type != "type_descriptor" for a in arguments):
            return None
        del self._alias_templates[name]  # for aliases that name each other
        try:
            type_ = self.described(meant).type
            given = {n: self.described(a).type for n, a in zip(names, arguments, strict=True)}
        finally:
            self._alias_templates[name] = (names, meant)
        texts = {n: self.in_arguments(a) for n, a in zip(names, arguments, strict=True)}
        return self._substituted(type_, given, texts)

    def in_arguments(self, argument) -> str:
        """Returns the text of a template argument, with the address spaces in it."""
        start = self.source.previous_code(argument.start_byte) + 1
        return " ".join(self.source.text[start : self.source.next_code(argument.end_byte)].split())

    def _substituted(self, type_: Type, given: dict[str, Type], texts: dict[str, str]) -> Type:
        """Returns a type with others in the place of template parameters."""
        if type_.target is not None:
            return type_._replace(target=self._substituted(type_.target, given, texts))
        if type_.name in given:
            found = given[type_.name]
            return found._replace(
                space=type_.space or found.space, is_const=type_.is_const or found.is_const
            )
        if "<" not in type_.name and "::" not in type_.name:
            return type_
        pattern = rf"\b(?:{'|'.join(map(re.escape, texts))})\b"
        return type_._replace(name=re.sub(pattern, lambda m: texts[m.group()], type_.name))

    def classes_named(self, name: str, among=None) -> list:
        """Returns the classes that a name with template arguments may mean, as far as their address spaces tell. among:
        one of those of that name, which is enough to know about."""
        bare, _, arguments = name.partition("<")
        scopes = self.classes.get(bare.strip(), [])
        if len(scopes) < 2 or not arguments:
            return scopes
        words = re.findall(r"\w+", arguments)
        scopes = self._with_as_many_arguments(scopes, name)
        spaces = [w for w in words if w in DATA_SPACES]
        if not spaces and any(w in self._parameters or w in self.aliases for w in words):
            if not all(w.startswith(NO_POINTER) for w in words if w in self._parameters):
                return scopes
        found = [s for s in scopes if self._spaces_in(self.written_name(s)) == spaces]
        return found or [s for s in scopes if not self._spaces_in(self.written_name(s))] or scopes

    def _with_as_many_arguments(self, scopes: list, name: str) -> list:
        """Returns the classes that have as many template arguments as a name: of templates with packs, some have more."""
        if not any("..." in self._text(header) for s in scopes for header in s.template_headers):
            return scopes
        names = {s: self.written_name(s) for s in scopes}
        count = len(self.arguments_in(name))
        same = [s for s, n in names.items() if "<" in n and len(self.arguments_in(n)) == count]
        return [s for s in same if "..." not in names[s]] or scopes

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
        inner = type_node
        while inner.type == "qualified_identifier":
            inner = inner.child_by_field_name("name")
        if inner.type == "template_type":
            # A class template of the program, without the namespaces before it.
            scope = self._text(type_node).split("::")[0].strip()
            if self._text(inner.child_by_field_name("name")) in self.classes:
                type_node = type_node if scope in self._parameters else inner
        name = self._written(type_node)
        arguments = type_node.child_by_field_name("arguments") if "<" in name else None
        for argument in () if arguments is None else arguments.named_children:
            named = argument.child_by_field_name("type")
            if named is None or self._text(argument) in self._parameters:
                continue
            alias = self._alias(named, self._text(argument))
            if alias is not None and alias.kind == "pointer" and _is_alone(argument):
                pattern = rf"\b{re.escape(self._text(argument))}(?!\w)"
                name = re.sub(pattern, alias.written(), name)
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

    def arguments_in(self, name: str) -> list[Type]:
        """Returns the template arguments in the name of a class."""
        _, _, text = name.partition("<")
        text = text.rpartition(">")[0]
        found, depth, start = [], 0, 0
        for at, c in enumerate(f"{text},"):
            depth += (c in "<([") - (c in ">)]")
            if c == "," and depth == 0:
                found.append(self._of_text(" ".join(text[start:at].split())))
                start = at + 1
        return found

    def _of_text(self, text: str) -> Type:
        pointer = _POINTER.fullmatch(text)
        if pointer is not None and not re.search(r"[*&]", pointer[2]):
            return Type("pointer", None, Type("value", pointer[1], None, pointer[2]))
        alias = self.aliases.get(text)
        if alias is not None and text not in self._parameters:
            return alias
        bare = text.split("<")[0].strip()
        if text.startswith(NO_POINTER):
            return Type("value", None, None, text)
        is_known = bare in self.classes or bare in self._enums or bare in _BUILTIN_TEMPLATES
        is_known = is_known or _BUILTIN.match(bare) or re.match(r"\d|true$|false$", text)
        is_known = is_known and not re.search(r"[*&]", text.split("<")[0] + text.split(">")[-1])
        return Type("value", None, None, text, bare in self._parameters or not is_known)

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
        around = node.parent.parent
        if around is not None and around.type == "template_argument_list":
            if name in self._values and name not in self.aliases:
                return False  # parsed as a type
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
            self._members[scope] = self._read_fields(scope.specifier)
        return self._members[scope]

    def field_of_nameless(self, name: str) -> Type | None:
        """Returns the declared type of a data member of a class without a name, as in `struct { ... } inner;`; None
        unless all of these classes that have such a member declare it with one type."""
        if self._of_nameless is None:
            self._of_nameless = {}
            for node in self.source.find("[(struct_specifier) (union_specifier)] @c"):
                is_nameless = node.child_by_field_name("name") is None
                if is_nameless and node.child_by_field_name("body") is not None:
                    for member, type_ in self._read_fields(node).items():
                        if self._of_nameless.setdefault(member, type_) != type_:
                            self._of_nameless[member] = None
        return self._of_nameless.get(name)

    def _read_fields(self, specifier) -> dict[str, Type | None]:
        fields: dict[str, Type | None] = {}
        waiting = [specifier.child_by_field_name("body")]
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


def _tells_a_space(type_: Type) -> bool:
    """Returns true for pointers and references, objects of classes with address spaces in their template arguments, and
    what is certainly no pointer in a copy."""
    while type_.kind == "array":
        type_ = type_.target
    if type_.kind != "value" or type_.name.startswith(NO_POINTER):
        return True
    return any(word in DATA_SPACES for word in re.findall(r"\w+", type_.name))


def _is_alone(argument) -> bool:
    """Returns true for a type_descriptor that is a name alone."""
    return argument.child_by_field_name("declarator") is None


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
