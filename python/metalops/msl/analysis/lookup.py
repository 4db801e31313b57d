"""Name lookup: the functions of a program that a name may mean where it is used, by namespaces and classes, by number
of arguments, and by the type of an object if that is plainly declared.

Where the source does not tell (a template parameter's member, a pointer), the answer is all functions of that name.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from ..source.parse import Source
from .program import (
    ClassScope,
    Function,
    Program,
    declarator_kinds,
    declared_identifier,
    last_name,
    name_node,
    name_of,
    parameters_of,
    takes_reference,
)
from .scopes import Declaration, FunctionScopes

Count = tuple[float, float]  # minimum, maximum

CALL_OPERATOR = "operator()"
CONSTRUCTOR = "constructor"
CONVERSION = "conversion"
OF_RANGES = ("begin", "end", "operator++", "operator!=", "operator*")
_OPERATOR = re.compile(r"operator(?!\(\)$|=$)\W+")
_NAMESPACE_OF_THE_LIBRARY = "metal"
_DECLARATIONS = """
(using_declaration) @using
(namespace_definition) @namespace
[(alias_declaration) (type_definition)] @alias
[(struct_specifier) (class_specifier) (union_specifier) (enum_specifier)] @type
(lambda_expression) @lambda
"""


class Member(NamedTuple):
    """A member function of an unknown class: its name, and how many arguments it is given."""

    name: str
    count: Count = (0, math.inf)


class Meaning(NamedTuple):
    """The possible meanings of a call: functions of the program, and a member of an unknown class."""

    functions: tuple[Function, ...] = ()
    member: Member | None = None


NOTHING = Meaning()


class Place(NamedTuple):
    """The context of a name: the namespaces and classes around it. is_known: false in a class inside of a function,
    where the path is not all there is to know."""

    path: tuple[str, ...]
    is_known: bool = True


class Lookup:
    """Names of a program at namespace and class scope."""

    def __init__(self, program: Program):
        self.program = program
        self.source: Source = program.source
        self.functions: dict[str, list[Function]] = {}
        for function in program.functions:
            name = CONVERSION if function.is_conversion else function.name
            self.functions.setdefault(name, []).append(function)
        self.classes: dict[str, list[ClassScope]] = {}
        for scope in program.classes:
            self.classes.setdefault(base_name(scope.name), []).append(scope)
        # Overloads of an operator, and of what a range-based for calls. Without them these have their built-in meaning.
        self.operators = {n for n in self.functions if n in OF_RANGES or _OPERATOR.fullmatch(n)}
        self.free_operators: dict[str, list[Function]] = {}  # for operands of any type
        self.members: dict[str, dict[str, list[Function]]] = {}  # by class and name
        self._places: dict[Function, tuple[str, ...]] = {}
        self._bodies: dict[Function, Place] = {}
        self._owners: dict[Function, str | None] = {}
        self._counts: dict[Function, Count] = {}
        self._seen: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        for name, functions in self.functions.items():
            for function in functions:
                owner = self.owner(function)
                if owner is not None:
                    of_class = self.members.setdefault(owner, {})
                    plain = CONSTRUCTOR if name == owner else name
                    of_class.setdefault(plain, []).append(function)
                elif name in self.operators:  # belongs to the classes of its operands
                    classes = self._operand_classes(function)
                    for owner in classes:
                        self.members.setdefault(owner, {}).setdefault(name, []).append(function)
                    if not classes:
                        self.free_operators.setdefault(name, []).append(function)

    # ---- functions -------------------------------------------------------------------------------

    def place(self, function: Function) -> Place:
        """Returns where the body of a function stands; for a member function, in its class."""
        if function not in self._bodies:
            owner = self.owner(function)
            is_local = owner is not None and any(
                map(_is_in_a_function, (scope.specifier for scope in self.classes.get(owner, ())))
            )
            self._bodies[function] = Place(self._path(function), not is_local)
        return self._bodies[function]

    def _path(self, function: Function) -> tuple[str, ...]:
        """Returns the namespaces and classes that a function is declared in, without nameless namespaces."""
        if function not in self._places:
            path = [*function.path, *self._written_scopes(function)]
            self._places[function] = tuple(base_name(p.removeprefix("class ")) for p in path if p)
        return self._places[function]

    def _written_scopes(self, function: Function) -> list[str]:
        """Returns the qualifiers before the last `::`, as in `F::operator()`."""
        if function.is_conversion:
            node = function.declarator
            while node is not None and node.type != "operator_cast":
                node = node.parent
            while node.parent.type == "qualified_identifier":
                node = node.parent
        else:
            node = name_of(function.declarator)
        return _qualifiers(self.source, node)

    def owner(self, function: Function) -> str | None:
        """Returns the name of the class that a function is a member of, or None."""
        if function not in self._owners:
            path = self._path(function)
            if function.in_class:
                is_member = not _is_friend(function)
            else:
                is_member = bool(self._written_scopes(function)) and path[-1] in self.classes
            self._owners[function] = path[-1] if is_member else None
        return self._owners[function]

    def count(self, function: Function) -> Count:
        """Returns how many arguments a function takes."""
        if function not in self._counts:
            low, high = 0, 0
            for node in function.declarator.child_by_field_name("parameters").children:
                if node.type == "parameter_declaration":
                    high += 1
                    low += self.source.masked_text(node).strip() != "void"
                elif node.type == "optional_parameter_declaration":
                    high += 1
                elif node.type in ("variadic_parameter_declaration", "variadic_parameter", "..."):
                    high = math.inf
                elif node.type == "ERROR":
                    low, high = 0, math.inf
            self._counts[function] = low, high
        return self._counts[function]

    @functools.cached_property
    def _with_defaults(self) -> set[str]:
        """Names of functions whose parameters may have default values in one declaration and not in another."""
        return {
            last_name(self.source, name_of(function.declarator))
            for function in self.program.functions
            if any(
                c.type == "optional_parameter_declaration"
                for c in function.declarator.child_by_field_name("parameters").named_children
            )
        }

    def taking(self, functions: Iterable[Function], count: Count) -> list[Function]:
        """Returns the functions that take that many arguments."""
        low, high = count
        return [
            f
            for f in functions
            if low <= self.count(f)[1] and (self.count(f)[0] <= high or self._may_have_defaults(f))
        ]

    def _may_have_defaults(self, function: Function) -> bool:
        """Returns true if another declaration of a function may give its parameters default values."""
        is_whole = function.in_class and function.body is not None
        return function.name in self._with_defaults and not is_whole

    def _operand_classes(self, function: Function) -> set[str]:
        """Returns the classes of the program that are plainly the types of a function's parameters."""
        parameters = function.declarator.child_by_field_name("parameters").named_children
        types = (p.child_by_field_name("type") for p in parameters)
        names = {base_name(self.source.masked_text(t)) for t in types if t is not None}
        for header in function.template_headers:
            names.difference_update(re.findall(r"\w+", self.source.masked_text(header)))
        return {n for n in names if n in self.classes and n not in self.aliases}

    def takes_reference(self, function: Function, index: int) -> bool:
        """Returns true if a function may write its argument number `index`, from 0."""
        parameters = parameters_of(self.source, function)
        if index >= len(parameters) and parameters and "variadic" in parameters[-1][0].type:
            index = len(parameters) - 1
        return index < len(parameters) and takes_reference(self.source, parameters[index])

    def members_of(self, owner: str, member: Member) -> list[Function]:
        """Returns the member functions of the classes of one name."""
        found = self.members.get(owner, {}).get(member.name)
        return self.taking(found, member.count) if found else []

    def named(self, name: str, count: Count = (0, math.inf)) -> tuple[Function, ...]:
        """Returns all functions of a name, of classes and of namespaces."""
        return tuple(self.taking(self.functions.get(name, ()), count))

    def is_used(self, name: str) -> bool:
        """Returns true if a using-declaration brings the name from one scope into another."""
        return name in self._used

    def is_field(self, name: str) -> bool:
        """Returns true if some class has a data member of that name."""
        return any(name in fields for fields in self._fields.values())

    @staticmethod
    def name_of(scope: ClassScope) -> str:
        """Returns the name by which members of a class are looked up."""
        return base_name(scope.name)

    # ---- classes ---------------------------------------------------------------------------------

    @functools.cached_property
    def _fields(self) -> dict[str, dict[str, list]]:
        """Data members, by class and name: their declarations, several where the class has specialisations."""
        fields: dict[str, dict[str, list]] = {}
        for name, scopes in self.classes.items():
            of_class = fields.setdefault(name, {})
            for scope in scopes:
                for node in scope.specifier.child_by_field_name("body").named_children:
                    if node.type != "field_declaration":
                        continue
                    for declarator in node.children_by_field_name("declarator"):
                        if declarator_kinds(declarator)[:1] == ["function"]:
                            continue  # a member function that is defined elsewhere
                        leaf = declarator
                        while leaf is not None and leaf.type != "field_identifier":
                            leaf = leaf.child_by_field_name("declarator") or (
                                leaf.named_children[-1] if leaf.named_children else None
                            )
                        if leaf is not None:
                            of_class.setdefault(self.source.masked_text(leaf), []).append(node)
        return fields

    def field(self, place: Place, name: str):
        """Returns a declaration of the data member that a name means in a class, or None."""
        declarations = self._declarations_of_field(place, name)
        return declarations[-1] if declarations else None

    def _declarations_of_field(self, place: Place, name: str) -> list:
        for owner in reversed(place.path):
            if owner in self.classes and name in self._fields[owner]:
                return self._fields[owner][name]
        return []

    def _class_of_field(self, place: Place, name: str, scopes: FunctionScopes) -> str | None:
        """Returns the class of a data member, if all its declarations agree."""
        types = [d.child_by_field_name("type") for d in self._declarations_of_field(place, name)]
        owners = {self.class_named(node, scopes) for node in types}
        return owners.pop() if len(owners) == 1 else None

    def has_bases(self, owner: str) -> bool:
        """Returns true if some class of that name is derived from others."""
        return owner in self._derived

    @functools.cached_property
    def _derived(self) -> set[str]:
        """Names of classes of which some is derived from others."""
        return {
            name
            for name, scopes in self.classes.items()
            for scope in scopes
            if any(child.type == "base_class_clause" for child in scope.specifier.children)
        }

    @functools.cached_property
    def aliases(self) -> dict[str, list]:
        """The declarations of type aliases, at any scope."""
        found: dict[str, list] = {}
        for node in self._declarations.get("alias", ()):
            names = [node.child_by_field_name("name")] if node.type == "alias_declaration" else []
            for declarator in node.children_by_field_name("declarator"):
                while declarator is not None and declarator.type != "type_identifier":
                    declarator = declarator.child_by_field_name("declarator")
                names.append(declarator)
            for name in filter(None, names):
                found.setdefault(self.source.masked_text(name), []).append(node)
        return found

    def class_named(self, node, scopes: FunctionScopes) -> str | None:
        """Returns the class of the program that a type node names for certain."""
        while node is not None and node.type in ("qualified_identifier", "template_type"):
            node = node.child_by_field_name("name")
        if node is None or scopes.declaration_of(node) is not None:
            return None
        name = self.source.masked_text(node)
        return name if name in self.classes and name not in self.aliases else None

    def class_of(self, declaration: Declaration, scopes: FunctionScopes) -> str | None:
        """Returns the class of the program that a variable is of, or that a pointer or reference points to, if it is
        plainly declared."""
        if declaration.kind not in ("parameter", "variable"):
            return None
        type_node = declaration.type_node
        if type_node is None or type_node.type != "placeholder_type_specifier":
            return self.class_named(type_node, scopes)
        return self._class_of_value(declaration.initialiser, scopes)

    def _class_of_value(self, node, scopes: FunctionScopes) -> str | None:
        """Returns the class of the program that an expression is of, if the expression says it."""
        while node is not None and node.type in ("parenthesized_expression", "pointer_expression"):
            node = node.named_children[-1] if node.named_children else None
        if node is None:
            return None
        if node.type == "identifier":
            declaration = scopes.declaration_of(node)
            return None if declaration is None else self.class_of(declaration, scopes)
        if node.type == "compound_literal_expression":
            return self.class_named(node.child_by_field_name("type"), scopes)
        if node.type == "call_expression":
            return self.class_named(name_node(node.child_by_field_name("function")), scopes)
        return None

    @property
    def lambdas(self) -> list:
        """All lambda_expressions of the program."""
        return self._declarations.get("lambda", [])

    @functools.cached_property
    def _declarations(self) -> dict[str, list]:
        """The nodes that _DECLARATIONS captures, at any scope."""
        return self.source.captures(_DECLARATIONS)

    # ---- namespaces ------------------------------------------------------------------------------

    @functools.cached_property
    def _namespaces(self) -> set[tuple[str, ...]]:
        """All namespaces that hold something, as paths."""
        found = set()
        for item in (*self.program.functions, *self.program.classes):
            path = [p for p in item.path if p]
            found.update(tuple(path[:n]) for n in range(1, len(path) + 1))
        return {p for p in found if not p[-1].startswith("class ")}

    @functools.cached_property
    def _directives(self) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """(the namespace where it stands, the namespace that becomes visible there) of using-directives and inline
        namespaces."""
        found = []
        declarations = self._declarations
        for node in (*declarations.get("using", ()), *declarations.get("namespace", ())):
            words = [c.type for c in node.children]
            if node.type == "using_declaration" and "namespace" in words:
                written = self.source.masked_text(node.named_children[-1])
            elif "inline" in words and node.child_by_field_name("name") is not None:
                written = self.source.masked_text(node.child_by_field_name("name"))
            else:
                continue
            names = self._meant(re.findall(r"\w+", written))
            here = self._around(node)
            around = () if written.lstrip().startswith("::") else here
            for length in range(len(around), -1, -1):
                if (*around[:length], *names) in self._namespaces:
                    found.append((here, (*around[:length], *names)))
                    break
        return found

    def _opened(self, path: tuple[str, ...]) -> set[tuple[str, ...]]:
        """Returns the namespaces whose names are visible in a namespace as if they enclosed it."""
        if path not in self._seen:
            found: set[tuple[str, ...]] = set()
            count = -1
            while count != len(found):  # transitive: a visible namespace opens others
                count = len(found)
                found.update(
                    seen for at, seen in self._directives if at == path[: len(at)] or at in found
                )
            self._seen[path] = found
        return self._seen[path]

    @functools.cached_property
    def _used(self) -> set[str]:
        """Names that using-declarations bring from one scope into another."""
        return {
            last_name(self.source, node.named_children[-1])
            for node in self._declarations.get("using", ())
            if all(c.type != "namespace" for c in node.children)
        }

    @functools.cached_property
    def _with_types(self) -> set[tuple[str, ...]]:
        """Namespaces that declare types: argument-dependent lookup finds the functions of such a namespace."""
        return {self._around(node) for node in self._declarations.get("type", ())}

    def _around(self, node) -> tuple[str, ...]:
        """Returns the namespaces around a node."""
        path: list[str] = []
        node = node.parent
        while node is not None:
            name = node.child_by_field_name("name")
            if node.type == "namespace_definition" and name is not None:
                path[:0] = re.findall(r"\w+", self.source.masked_text(name))
            node = node.parent
        return tuple(path)

    def _meant(self, names: list[str]) -> tuple[str, ...]:
        """Returns the names before `::`, with namespace aliases resolved."""
        if names and names[0] in self.program.namespace_aliases:
            names = [*self.program.namespace_aliases[names[0]], *names[1:]]
        return tuple(names)

    # ---- calls -----------------------------------------------------------------------------------

    def call(self, node, scopes: FunctionScopes, place: Place) -> Meaning:
        """Returns what a call_expression may mean."""
        callee = node.child_by_field_name("function")
        arguments = node.child_by_field_name("arguments")
        count = self.arguments(arguments)
        while callee.type == "parenthesized_expression" and callee.named_child_count == 1:
            callee = callee.named_children[0]
        if callee.type == "template_function":
            callee = callee.child_by_field_name("name")
        if callee.type == "identifier":
            return self._unqualified(callee, count, scopes, place)
        if callee.type == "qualified_identifier":
            return self._qualified(callee, count, scopes, place)
        if callee.type == "field_expression":
            return self._member(callee, count, scopes, place)
        if callee.type in ("primitive_type", "sized_type_specifier", "lambda_expression"):
            return NOTHING
        if callee.type == "pointer_expression" and callee.named_children[-1].type == "this":
            return self._of_class(place.path[-1] if place.path else None, CALL_OPERATOR, count)
        return self._of_class(self._class_of_value(callee, scopes), CALL_OPERATOR, count)

    def arguments(self, node) -> Count:
        """Returns how many arguments an argument_list may stand for: the parser cannot always tell less-than from the
        bracket of a template."""
        if node.type != "argument_list" or node.has_error:
            return 0, math.inf
        named = [c for c in node.named_children if c.type != "comment"]
        if any(c.type == "parameter_pack_expansion" for c in named):
            return 0, math.inf
        low = high = len(named)
        text = self.source.masked_text(node)
        if "<" in text and "," in text:
            lists = self.source.find("(template_argument_list) @l", node)
            high += sum(max(0, found.named_child_count - 1) for found in lists)
            if ">" in text and any(self.source.find('(binary_expression "<") @c', node)):
                low = 1
        return low, high

    def _of_class(self, owner: str | None, name: str, count: Count) -> Meaning:
        """Returns the meaning of a member of a class, or of any class if that is unknown or has bases."""
        if owner is None or owner not in self.classes or self.has_bases(owner):
            return Meaning((), Member(name, count))
        return Meaning(tuple(self.members_of(owner, Member(name, count))))

    def _of_variable(self, declaration, count: Count, scopes: FunctionScopes) -> Meaning:
        """Returns the meaning of a call of a variable: an object, a lambda, or a pointer to a function that is
        mentioned elsewhere."""
        if declaration.lambda_expression is not None:
            return NOTHING
        return self._of_class(self.class_of(declaration, scopes), CALL_OPERATOR, count)

    def _unqualified(self, node, count: Count, scopes, place: Place) -> Meaning:
        name = self.source.masked_text(node)
        declaration = scopes.declaration_of(node)
        if declaration is not None:
            if declaration.kind == "type":
                return Meaning((), Member(CONSTRUCTOR, count))
            meaning = self._of_variable(declaration, count, scopes)
            if declaration.kinds[:1] == ["function"]:  # or a function is declared in a block
                return Meaning((*meaning.functions, *self.named(name, count)), meaning.member)
            return meaning
        functions = self.functions.get(name)
        if functions is None:
            if self.field(place, name) is not None:
                owner = self._class_of_field(place, name, scopes)
                return self._of_class(owner, CALL_OPERATOR, count)
            if self._is_variable(name):
                return self._of_class(None, CALL_OPERATOR, count)
            return NOTHING
        if node.parent.has_error or not place.is_known or name in self._used:
            return Meaning(self.named(name, count), Member(CALL_OPERATOR, count))
        found: list[Function] = []
        free: list[Function] = []
        for function in functions:
            (free if self.owner(function) is None else found).append(function)
        owners = {owner for owner in place.path if owner in self.classes}
        found = [f for f in found if self.owner(f) in owners or any(map(self.has_bases, owners))]
        if not found or any(map(self.has_bases, owners)):
            found += self._visible(free, place.path, node.start_byte, count[1] > 0)
        if name in self.classes:
            found += self.members_of(name, Member(CONSTRUCTOR))
        member = None
        if self.field(place, name) is not None or self._is_variable(name):
            member = Member(CALL_OPERATOR, count)
        return Meaning(tuple(self.taking(found, count)), member)

    def _visible(self, functions, path, offset: int, has_arguments: bool) -> list[Function]:
        """Returns those of `functions`, all of one name, that the unqualified name may mean at an offset inside of
        namespaces."""
        path = tuple(p for p in path if p not in self.classes)
        opened = self._opened(path)
        found = [
            f
            for f in functions
            if self._path(f) in opened or (has_arguments and self._namespace(f) in self._with_types)
        ]
        for length in range(len(path), -1, -1):
            here = [f for f in functions if self._namespace(f) == path[:length]]
            found += [f for f in here if f not in found]
            if any(f.node.start_byte < offset for f in here):
                break
        return found

    def reached_by_name(self, functions: Iterable[Function], place: Place) -> list[Function]:
        """Returns those of the functions that a call may mean by an unqualified name whose arguments, all numbers, bring
        no namespace with them."""
        path = tuple(p for p in place.path if p not in self.classes)
        opened = self._opened(path)
        return [
            f
            for f in functions
            if self.owner(f) is not None
            or self._path(f) in opened
            or self._namespace(f) == path[: len(self._namespace(f))]
        ]

    def _namespace(self, function: Function) -> tuple[str, ...]:
        """Returns the namespace of a non-member function; a friend belongs to the namespace around the class."""
        path = self._path(function)
        if function.in_class:
            return tuple(p for p in function.path if p and not p.startswith("class "))
        return path

    @functools.cached_property
    def variables(self) -> dict[str, list]:
        """The declarations of variables at namespace scope."""
        found: dict[str, list] = {}
        for node, _, _ in self.program.declarations:
            for declarator in node.children_by_field_name("declarator"):
                identifier = declared_identifier(declarator)
                if identifier is not None:
                    found.setdefault(self.source.masked_text(identifier), []).append(node)
        return found

    def _is_variable(self, name: str) -> bool:
        return name in self.variables

    def variables_meant(self, node) -> list:
        """Returns the declarations of namespace-scope variables that an identifier or qualified_identifier at namespace
        scope may mean."""
        found = [(v, self._around(v)) for v in self.variables.get(last_name(self.source, node), ())]
        names = self._meant(_qualifiers(self.source, node))
        if names:
            return [v for v, path in found if path[-len(names) :] == names]
        here = self._around(node)
        for length in range(len(here), -1, -1):
            visible = {here[:length], *self._opened(here[:length])}
            meant = [v for v, path in found if path in visible]
            if meant:
                return meant
        return []

    def _qualified(self, node, count: Count, scopes, place: Place) -> Meaning:
        name = last_name(self.source, node)
        if name not in self.functions:
            return NOTHING
        unknown = Meaning(self.named(name, count), Member(name, count))
        if node.has_error or name in self._used:
            return unknown
        first = node.child_by_field_name("scope")
        if first is not None and scopes.declaration_of(name_node(_template_name(first))):
            return Meaning((), Member(name, count))  # of a template parameter, or an alias
        written = _qualifiers(self.source, node)
        names = self._meant(written)
        functions = self.functions[name]
        if not names:  # ::name
            found = [f for f in functions if self._namespace(f) in {(), *self._opened(())}]
            return Meaning(tuple(self.taking(found, count)))
        last = names[-1]
        if last in self.aliases or (last not in self.classes and not self._is_namespace(names)):
            if names[0] == _NAMESPACE_OF_THE_LIBRARY:
                return NOTHING
            return unknown
        if last in self.classes:
            if self._is_namespace(names):
                return unknown
            return self._of_class(last, name, count)
        if any(at[-len(names) :] == names for at, _ in self._directives):
            return unknown
        found = [
            f
            for f in functions
            if self.owner(f) is None and self._namespace(f)[-len(names) :] == names
        ]
        return Meaning(tuple(self.taking(found, count)))

    def _is_namespace(self, names: tuple[str, ...]) -> bool:
        return any(p[-len(names) :] == names for p in self._namespaces)

    def _member(self, node, count: Count, scopes, place: Place) -> Meaning:
        name = last_name(self.source, node)
        if name not in self.functions:
            # An object may have a data member that is called like a function.
            return Meaning((), Member(CALL_OPERATOR, count)) if self.is_field(name) else NOTHING
        argument = node.child_by_field_name("argument")
        while argument.type == "parenthesized_expression" and argument.named_child_count == 1:
            argument = argument.named_children[0]
        if argument.type == "pointer_expression" and argument.named_children[-1].type == "this":
            argument = argument.named_children[-1]
        if argument.type == "this":
            owner = place.path[-1] if place.path else None
        elif argument.type == "identifier":
            declaration = scopes.declaration_of(argument)
            owner = None if declaration is None else self.class_of(declaration, scopes)
        else:
            owner = self._class_of_value(argument, scopes)
        if owner is not None and name in self._fields.get(owner, {}):
            return self._of_class(None, CALL_OPERATOR, count)
        return self._of_class(owner, name, count)


def base_name(name: str) -> str:
    """Returns the name of a class without template arguments and qualifiers."""
    return name.split("<")[0].split("::")[-1].strip()


def _is_friend(function: Function) -> bool:
    node = function.declarator
    while node is not None and node.type not in ("friend_declaration", "field_declaration_list"):
        node = node.parent
    return node is not None and node.type == "friend_declaration"


def _template_name(node):
    return node.child_by_field_name("name") if node.type == "template_type" else node


def _qualifiers(source: Source, node) -> list[str]:
    """Returns the names before the last `::` of a name, without template arguments."""
    names = []
    while node is not None and node.type == "qualified_identifier":
        scope = node.child_by_field_name("scope")
        if scope is not None:
            names.append(base_name(source.masked_text(scope)))
        node = node.child_by_field_name("name")
    return names


def _is_in_a_function(node) -> bool:
    while node is not None and node.type != "compound_statement":
        node = node.parent
    return node is not None
