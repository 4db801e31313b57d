"""Keeps the address spaces in template arguments where a template tells them apart, before they are erased.

Such templates are `is_same` and classes and variables that are specialised for pointers or references to one address
space. Where one is named, `device T*` becomes `msl_spaced<1, device T*>`, in the specialisations and in the uses alike.
An argument that may be a pointer and does not name its address space, as a template parameter, is an error there.

A template whose specialisations are all alike, `element<device T*>` and `element<threadgroup T*>`, means the same once
address spaces are erased, but for pointers to other spaces.

A template that uses its parameter cannot get a marked type. Where its specialisations take all pointers to some spaces,
`array<device T*>`, only these are marked, and others, which the template itself gets, stay types. Other specialisations
of such a template are errors, as are pointers to other spaces than those of specialisations that are all alike where
some argument may be a pointer of any space.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from ..analysis.program import (
    Function,
    Program,
    ProgramError,
    declared_identifier,
    template_name,
    template_parameters,
)
from ..analysis.spaces import Spaces, arguments_of, chain, decayed, nested
from ..analysis.types import DATA_SPACES, NO_POINTER, Type
from .duplicates import Keys
from .insertion import Insertion

_COMPARING = {"is_same", "is_same_v"}
_NUMBERS = {"device": "1", "constant": "2", "threadgroup": "3", "thread": "4"}
_USES = "[(template_type) (template_function) (template_method)] @t"


def spaced_arguments(program: Program, spaces: Spaces) -> list[Insertion]:
    """Returns the text that marks address spaces in template arguments.

    Raises ProgramError where the meaning depends on an address space that is not known.
    """
    return _Specialisations(program, spaces).run()


def uses(source, node=None) -> Iterator:
    """Yields the nodes of names with template arguments that may be those of classes, in an initialiser of a base, too."""
    for found in source.find(_USES, node):
        if found.type != "template_method" or found.parent.type == "field_initializer":
            yield found


def deduced_uses(program: Program, name: str) -> Iterator:
    """Yields the uses of a class template without template arguments outside of the classes of that name, and of their
    members."""
    classes = [s for s in program.classes if s.name.split("<")[0].strip() == name]
    members = [f for f in program.functions if f"{name}<" in _written_before(program, f)]
    inside = [(s.node.start_byte, s.end) for s in classes]
    inside += [(f.node.start_byte, f.node.end_byte) for f in members]
    is_other = any(not s.template_headers for s in classes)
    is_function = any(
        f.name == name and f not in members and not _is_constructor(f) for f in program.functions
    )
    for offset in () if is_other else program.source.words_at.get(name, ()):
        node = program.source.leaf_at(offset)
        if any(start <= offset < end for start, end in inside):
            continue
        parent = node.parent
        while parent is not None and parent.type == "qualified_identifier":
            parent = parent.parent
        kind = "" if parent is None else parent.type
        if node.type == "type_identifier" and kind in (
            "declaration",
            "compound_literal_expression",
        ):
            yield node
        elif node.type == "identifier" and kind == "call_expression" and not is_function:
            yield node


def _is_constructor(function: Function) -> bool:
    """Returns true for a constructor in its class."""
    owner = function.path[-1].removeprefix("class ") if function.in_class else ""
    return owner.split("<")[0].strip() == function.name


def _written_before(program: Program, function: Function) -> str:
    """Returns the name of a function as it is declared, with the class before it, without spaces."""
    end = function.declarator.child_by_field_name("parameters").start_byte
    return "".join(program.source.masked[function.declarator.start_byte : end].split())


def has_spaced_arguments(program: Program) -> bool:
    """Returns true if the program names an address space in some template's arguments, or compares types."""
    return "<" in program.source.masked and (
        not _COMPARING.isdisjoint(program.source.identifiers)
        or any(program.source.words_in(n.start_byte, n.end_byte) for _, n in _heads(program))
    )


def _heads(program: Program):
    """Yields (name, template arguments) of the specialisations of classes and variables."""
    source = program.source
    for scope in program.classes:
        name = scope.specifier.child_by_field_name("name")
        if name is not None and name.type == "template_type":
            yield source.masked_text(name.child_by_field_name("name")), name
    for node, _, _ in program.declarations:
        for declarator in node.children_by_field_name("declarator"):
            for name in source.find("(template_function) @t", declarator):
                if declarator.start_byte == name.start_byte:
                    yield source.masked_text(name.child_by_field_name("name")), name


class _Specialisations:
    def __init__(self, program: Program, spaces: Spaces):
        self.program = program
        self.source = program.source
        self.spaces = spaces
        self.types = spaces.types
        self._found: list[Insertion] = []
        self._covered: dict[str, set[str]] = {}  # by the specialisations of a template, all alike
        # By template: the arguments of each specialisation that are pointers or references, by position.
        self._patterns: dict[str, list[dict[int, Type]]] = {}
        # The address spaces of pointers, by template and parameter; None for those that are not known.
        self._given: dict[tuple[int, str], set[str | None]] = {}

    @functools.cached_property
    def keys(self) -> Keys:
        return Keys.of_erased(self.program)

    def run(self) -> list[Insertion]:
        heads: dict[str, list] = {}
        for name, node in _heads(self.program):
            heads.setdefault(name, []).append(node)
        comparing = {*_COMPARING} - {s.name for s in self.program.classes}
        comparing |= {n for n, nodes in heads.items() if any(map(self._compares, nodes))}
        telling = {n for n, nodes in heads.items() if self._tells(n, nodes)}
        for name in [*self._covered]:
            if self._leaves_others(name, heads[name]):
                del self._covered[name]
                telling.add(name)
        if not telling and not self._covered and comparing.isdisjoint(self.source.identifiers):
            return []
        declared = {node.start_byte for nodes in heads.values() for node in nodes}
        self._check_deduced(telling)
        for node in uses(self.source):
            name = self.source.masked_text(template_name(node))
            if name in telling or name in comparing:
                self._use(node, name, node.start_byte in declared, name in comparing)
            elif name in self._covered and node.start_byte not in declared:
                self._check_covered(node, name)
        return self._found

    def _check_deduced(self, telling: set[str]) -> None:
        """Raises an error for a class whose template arguments are left to its constructor, `s x(p)`."""
        for scope in self.program.classes:
            if scope.name in telling:
                for node in deduced_uses(self.program, scope.name):
                    self._refuse_deduced(scope.name, node)

    # ---- which templates -------------------------------------------------------------------------

    def _compares(self, head) -> bool:
        """Returns true if a specialisation is for equal arguments: `same<T, T>`."""
        arguments = head.child_by_field_name("arguments").named_children
        texts = [self.source.masked_text(a) for a in arguments]
        return any(texts.count(t) > 1 and self.types.is_template_parameter(t) for t in texts)

    def _tells(self, name: str, heads: list) -> bool:
        """Returns true if the meaning of a template depends on an address space."""
        spaced = [h for h in heads if self._names_a_space(h)]
        if not spaced:
            return False
        scopes = [s for s in self.program.classes if s.name.split("<")[0].strip() == name]
        if not scopes:
            return True  # a variable
        of_heads = {h.start_byte for h in spaced}
        bodies: dict[str, list] = {}
        for scope in scopes:
            if scope.specifier.child_by_field_name("name").start_byte in of_heads:
                bodies.setdefault(self.keys.of_class(scope), []).append(
                    self.keys.body_of_class(scope)
                )
        if any(body != found[0] for found in bodies.values() for body in found[1:]):
            self._check_primary(name, scopes, spaced)
            return True
        primary = [s for s in scopes if "<" not in s.name]
        if not any(map(self._says_something, primary)):
            return False
        covered = {w.text for h in spaced for w in self._words(h)}
        if len({str(b) for f in bodies.values() for b in f}) == 1:
            if covered >= {*DATA_SPACES}:
                return False
            if any(map(self._uses_parameter, primary)):
                self._covered[name] = covered
                return False
        self._check_primary(name, scopes, spaced)
        return True

    def _leaves_others(self, name: str, heads: list) -> bool:
        """Returns true if a template is used for pointers to spaces for which it is not specialised, its specialisations
        take all others, and each use tells which it means."""
        declared = {head.start_byte for head in heads}
        named = [
            node
            for node in uses(self.source)
            if self.source.masked_text(template_name(node)) == name
            and node.start_byte not in declared
        ]
        arguments = [a for node in named for a in self._types_in(node)]
        if not any(self._pointers(a) - self._covered[name] - {None} for a in arguments):
            return False
        if any(self._kind(a) == "open" for a in arguments):
            return False
        patterns = self._patterns_of([h for h in heads if self._names_a_space(h)])
        if patterns is not None:
            self._patterns[name] = patterns
        return patterns is not None

    def _patterns_of(self, heads: list) -> list[dict[int, Type]] | None:
        """Returns the patterns of specialisations, if each takes all pointers or references to some spaces and all else:
        `array<device T*, N>`."""
        found = []
        for head in heads:
            pattern = {}
            of_template = head.parent
            while of_template is not None and of_template.type != "template_declaration":
                of_template = of_template.parent
            if of_template is None:
                return None
            parameters = template_parameters(of_template.child_by_field_name("parameters"))
            names = [self.source.masked_text(p.identifier) for p in parameters if p.identifier]
            for index, argument in enumerate(head.child_by_field_name("arguments").named_children):
                name = self.source.masked_text(argument).strip()
                if self._spaces(argument):
                    pattern[index] = self.spaces.described(argument)
                    name = pattern[index].target.name
                    if pattern[index].target.kind != "value":
                        return None
                if name not in names:
                    return None
                names.remove(name)
            found.append(pattern)
        return found

    def _words(self, node) -> list:
        return [
            w for w in self.source.words_in(node.start_byte, node.end_byte) if w.text in DATA_SPACES
        ]

    def _names_a_space(self, head) -> bool:
        return any(map(self._spaces, head.child_by_field_name("arguments").named_children))

    @staticmethod
    def _says_something(scope) -> bool:
        """Returns true if a class has members or bases."""
        body = scope.specifier.child_by_field_name("body")
        return bool(body.named_children) or any(
            c.type == "base_class_clause" for c in scope.specifier.children
        )

    def _check_primary(self, name: str, scopes: list, heads: list) -> None:
        """Raises an error if the template itself uses a parameter as a type, which would not be one, unless it never gets
        one that is marked."""
        for scope in scopes:
            if "<" not in scope.name and self._uses_parameter(scope):
                patterns = self._patterns_of(heads)
                if patterns is not None:
                    self._patterns[name] = patterns
                    return
                raise ProgramError(
                    f"a specialisation of {scope.name} for some pointers to an address space is not "
                    "supported, since the template itself uses its parameter",
                    heads[0].start_byte,
                    scope.specifier.child_by_field_name("name").start_byte,
                )

    def _uses_parameter(self, scope) -> bool:
        body = scope.specifier
        text = self.source.masked[body.child_by_field_name("name").end_byte : body.end_byte]
        names = [name for header in scope.template_headers for name in self._types_of(header)]
        return any(
            name and not name.startswith(NO_POINTER) and re.search(rf"\b{name}\b", text)
            for name in names
        )

    # ---- uses ------------------------------------------------------------------------------------

    def _types_in(self, node) -> list:
        """Returns the template arguments of a use that are types."""
        arguments = node.child_by_field_name("arguments").named_children
        return [a for a in arguments if a.type == "type_descriptor"]

    def _use(self, node, name: str, is_head: bool, compares: bool) -> None:
        arguments = self._types_in(node)
        kinds = [self._kind(a) for a in arguments]
        marked = [self._spaces(a) for a in arguments]
        if is_head and not any(marked):
            return
        if compares and self._differ_by_class(node, arguments):
            return
        if compares and not any(marked):
            if kinds.count("open") < 2 or is_head:
                return
            if not (self._are_of_lambda(arguments) or self._are_pointers(node, arguments)):
                return
            self._refuse(node, name, arguments[0])
        if compares and self._is_of_every_space(node):
            return
        if name in self._patterns:
            marked = self._matched(node, name)
        for argument, kind, spaces in zip(arguments, kinds, marked, strict=True):
            if spaces:
                self._mark(argument, spaces)
            elif kind == "open" and not is_head:
                self._refuse(node, name, argument)

    def _differ_by_class(self, node, arguments: list) -> bool:
        """Marks the arguments of a comparison that are classes of the program with address spaces in their template
        arguments, and returns true if there is one. Raises an error if another argument may be one."""
        types = [self.spaces.described(a) for a in arguments]
        for type_ in types:
            if self._is_class(type_) and "<" not in type_.name and self._is_deduced(type_.name):
                self._refuse_deduced(type_.name, node)
        spaces = [nested(t) if self._is_class(t) else _spaces_of(t) for t in types]
        if not any(s for s, t in zip(spaces, types, strict=True) if self._is_class(t)):
            return False
        for argument, type_, of_type in zip(arguments, types, spaces, strict=True):
            if of_type:
                self._mark(argument, of_type)
            elif type_.is_open or type_.name.startswith(NO_POINTER):
                self._refuse(node, self.source.masked_text(template_name(node)), argument)
        return True

    def _is_deduced(self, name: str) -> bool:
        """Returns true for a class template of which some use leaves the arguments to a constructor."""
        return any(deduced_uses(self.program, name.split("::")[-1].strip()))

    def _refuse_deduced(self, name: str, node) -> None:
        raise ProgramError(
            f"template arguments of {name} that are deduced, whose specialisations differ by address "
            "space, are not supported: write them",
            node.start_byte,
        )

    def _is_class(self, type_: Type) -> bool:
        name = type_.name.split("<")[0].split("::")[-1].strip()
        return type_.kind == "value" and name in self.types.classes

    def _matched(self, node, name: str) -> list[tuple[str, ...]]:
        """Returns the address spaces of the types in a use of a template that tell which of its specialisations it
        means; () for each type of another use, and for what tells nothing."""
        arguments = node.child_by_field_name("arguments").named_children
        found: dict[int, tuple[str, ...]] = {}
        for pattern in self._patterns[name]:
            if all(
                index < len(arguments) and self._is_taken(type_, arguments[index])
                for index, type_ in pattern.items()
            ):
                found |= {index: _spaces_of(type_) for index, type_ in pattern.items()}
        return [
            found.get(index, ())
            for index, argument in enumerate(arguments)
            if argument.type == "type_descriptor"
        ]

    def _is_taken(self, pattern: Type, argument) -> bool:
        """Returns true if a template argument is one of the pointers or references of a pattern."""
        if not self._spaces(argument):
            return False
        type_ = self.spaces.described(argument)
        of_one_space = _spaces_of(type_)[:1] == _spaces_of(pattern)
        is_const = type_.target.is_const or type_.target.space == "constant"
        return (
            of_one_space
            and type_.kind == pattern.kind
            and (is_const or not pattern.target.is_const)
        )

    def _check_covered(self, node, name: str) -> None:
        """Raises an error if a template gets a pointer to an address space for which it is not specialised."""
        for argument in node.child_by_field_name("arguments").named_children:
            others = self._pointers(argument) - self._covered[name] - {None}
            if others:
                raise ProgramError(
                    f"{name} is not specialised for pointers to {min(others)} memory, and the template "
                    "itself uses its parameter, which is not supported",
                    node.start_byte,
                )

    def _is_of_every_space(self, node) -> bool:
        """Returns true for each part of `is_same_v<T, device X*> || is_same_v<T, threadgroup X*> || is_same_v<T, thread
        X*>`, which tells pointers in the constant address space alone, and so pointers to const."""
        top = self._disjunction(node)
        key = self._compared(node)
        if key is None:
            return False
        found = [
            self._compared(use) for use in uses(self.source, top) if self._disjunction(use) == top
        ]
        spaces = {other[1] for other in found if other is not None and other[0] == key[0]}
        return spaces >= {("device",), ("threadgroup",), ("thread",)}

    def _disjunction(self, node):
        """Returns the outermost expression that is true if the comparison at a node is."""
        while True:
            parent = node.parent
            is_or = parent.type == "binary_expression" and "||" in [c.type for c in parent.children]
            if not is_or and parent.type not in (
                "qualified_identifier",
                "parenthesized_expression",
            ):
                return node
            node = parent

    def _compared(self, node) -> tuple | None:
        """Returns (what is compared, the address spaces) of `is_same<T, device X*>`."""
        arguments = node.child_by_field_name("arguments").named_children
        name = self.source.masked_text(template_name(node))
        if name not in _COMPARING or len(arguments) != 2:
            return None
        texts = ["".join(self.source.masked_text(a).split()) for a in arguments]
        return texts, self._spaces(arguments[1])

    def _kind(self, argument) -> str:
        type_ = self.spaces.described(argument)
        return "open" if type_.kind == "value" and (type_.is_open or nested(type_)) else "known"

    def _spaces(self, argument) -> tuple[str, ...]:
        """Returns the address spaces of a template argument that is a pointer or a reference."""
        if argument.type != "type_descriptor":
            return ()
        return _spaces_of(self.spaces.described(argument))

    def _mark(self, argument, spaces: tuple[str, ...]) -> None:
        start = self.source.previous_code(argument.start_byte) + 1
        end = self.source.next_code(argument.end_byte)
        number = "".join(_NUMBERS.get(s, "5") for s in spaces)
        self._found.append(Insertion(start, f"msl_spaced<{number}, "))
        self._found.append(Insertion(end, ">"))

    def _refuse(self, node, name: str, argument) -> None:
        if self.types.is_unused(node):
            return
        what = " ".join(self.source.node_text(argument).split())
        raise ProgramError(
            f"the meaning of {name} depends on the address space of {what}, which cannot be "
            "inferred here",
            node.start_byte,
        )

    # ---- template parameters that are pointers ---------------------------------------------------

    def _are_of_lambda(self, arguments: list) -> bool:
        """Returns true for the types of what generic lambdas take, which may be pointers to any space."""
        if not all(self.source.masked_text(a).startswith("decltype") for a in arguments):
            return False
        node = arguments[0]
        while node is not None and node.type != "lambda_expression":
            node = node.parent
        declarator = None if node is None else node.child_by_field_name("declarator")
        return declarator is not None and "auto" in self.source.masked_text(declarator)

    def _are_pointers(self, node, arguments: list) -> bool:
        """Returns true if pointers are known to be given for two template parameters."""
        names = [self.source.masked_text(a).strip() for a in arguments]
        if not all(map(self.types.is_template_parameter, names)):
            return False
        return all(self._pointers_given(node, name) for name in names)

    def _pointers(self, argument) -> set[str | None]:
        """Returns the address spaces that a template argument, or what is known to be given for it, points to."""
        spaces = self._spaces(argument)
        name = self.source.masked_text(argument).strip()
        if spaces or not self.types.is_template_parameter(name):
            return {*spaces[:1]}
        return self._pointers_given(argument, name)

    def _pointers_given(self, node, name: str) -> set[str | None]:
        """Returns the address spaces of the pointers that are known to be given for a template parameter that a node
        names, directly or by templates that pass on a parameter of their own."""
        outer = node.parent
        while outer is not None:
            if outer.type == "template_declaration" and name in self._parameters(outer):
                key = (outer.start_byte, name)
                if key not in self._given:
                    self._given[key] = set()  # for templates that use each other
                    self._given[key] = self._given_to(outer).get(name, set())
                return self._given[key]
            outer = outer.parent
        return set()

    def _types_of(self, header) -> list[str | None]:
        """Returns the names of the parameters in a template header; None for one that has no name or stands for values."""
        return [
            self.source.masked_text(p.identifier) if p.is_type and p.identifier else None
            for p in template_parameters(header)
        ]

    def _parameters(self, template) -> list[str | None]:
        return self._types_of(template.child_by_field_name("parameters"))

    def _given_to(self, template) -> dict[str, set[str | None]]:
        """Returns the parameters of a template for which pointers are known to be given, with the spaces of these."""
        given: dict[str, set[str | None]] = {}
        order = self._parameters(template)
        header = template_parameters(template.child_by_field_name("parameters"))
        is_pack = bool(header) and header[-1].node.type.startswith("variadic")
        last = order[-1:] if is_pack else []
        inner = template.named_children[-1]
        function = self._functions.get(template.id)
        name = inner.child_by_field_name("name")
        if name is None and inner.type == "declaration":  # a variable
            name = declared_identifier(inner.child_by_field_name("declarator"))
        is_head = name is not None and name.type == "template_type"
        if is_head:  # a partial specialisation, whose arguments tell which parameter is which
            given_there = name.child_by_field_name("arguments").named_children
            texts = [self.source.masked_text(a).strip() for a in given_there]
            order = [text if text in order else None for text in texts[: len(texts) - is_pack]]
            name = name.child_by_field_name("name")
        called = function.name if function is not None else name and self.source.masked_text(name)
        for offset in self._mentions(called) if called else ():
            use = self.source.leaf_at(offset).parent
            if use is not None and use.type in ("template_type", "template_function"):
                written = use.child_by_field_name("arguments").named_children
                if is_head and not is_pack and len(written) != len(order):
                    continue
                for parameter, argument in zip(order + last * len(written), written, strict=False):
                    if parameter is not None:
                        given.setdefault(parameter, set()).update(self._pointers(argument))
            while use is not None and use.type in (
                "template_function",
                "qualified_identifier",
                "field_expression",
                "template_method",
            ):
                use = use.parent
            if function is not None and use is not None and use.type == "call_expression":
                for parameter, spaces in self._given_by_call(use, function):
                    given.setdefault(parameter, set()).update(spaces)
        return given

    @functools.cached_property
    def _functions(self) -> dict[int, Function]:
        """The first function of each node."""
        return {f.node.id: f for f in reversed(self.program.functions)}

    def _mentions(self, name: str) -> list[int]:
        if re.fullmatch(r"\w+", name):
            return self.source.words_at.get(name, [])
        return [m.start() for m in re.finditer(rf"\b{name}\b", self.source.masked)]

    def _given_by_call(self, call, function) -> Iterator[tuple[str, set[str | None]]]:
        """Yields the names of the types of a function's parameters that a call gives pointers, with their spaces."""
        parameters = self.types.parameters(function.declarator)
        for argument, (_, _, declared) in zip(arguments_of(call) or (), parameters, strict=False):
            actual = self.spaces.type_of(argument)
            if actual is None:
                continue
            if actual.kind in ("pointer", "array"):
                spaces = {*chain(decayed(actual))[:1]} or {None}
            elif actual.is_open:
                spaces = self._pointers_given(argument, actual.name)
            else:
                continue
            type_ = declared.type
            yield type_.target.name if type_.kind == "reference" else type_.name, spaces


def _spaces_of(type_: Type) -> tuple[str, ...]:
    """Returns the address spaces of a pointer or a reference, the outermost first."""
    if type_.kind == "reference":
        return (type_.target.space or "thread", *chain(type_.target))
    return chain(type_) if type_.kind == "pointer" else ()
