"""Copies of templates that are given pointers to several address spaces, and whose meaning depends on them.

`template <typename P> int g(P p)` becomes an overload for each combination of spaces that calls give, such as
`template <typename P> int g(device P* p)`, and one for what is no pointer; overloads by address space are then told apart
as those that the program has itself (overloads.py). A pack becomes the parameters that a call gives it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

from ..analysis.lookup import CALL_OPERATOR
from ..analysis.program import (
    Function,
    Program,
    ProgramError,
    declared_identifier,
    name_node,
    name_of,
    parameter_ranges,
    template_parameters,
)
from ..analysis.spaces import Spaces, arguments_of, chain, decayed, spaces_of
from ..analysis.types import ATTEMPT, DATA_SPACES, NO_POINTER, NOTHING, Type
from ..source.locations import LineMap
from ..source.parse import Source
from .call_operators import tag_in
from .class_aliases import without_aliases
from .class_copies import ClassCopies
from .insertion import Insertion, inserted
from .lambda_copies import LambdaCopies
from .overloads import spaced_aliases
from .separated import insertions
from .template_copy import IDENTIFIERS, Kind, TemplateCopy, pointee

_LIMIT = 64  # templates of a program
NOT_TAKEN = "not taken"
# Errors in the use of a class template, by name, rather than in itself.
_CLASS = re.compile(
    r"(?:template arguments of )?(\w+) (?:is not specialised for pointers|that are deduced)"
)


def separated(program: Program, lines: LineMap) -> Program:
    """Returns the program in which what address spaces tell apart has names of its own: the program itself, if its meaning
    does not depend on them. lines: the map of its text, which becomes that of the longer text.

    Raises ProgramError where the meaning depends on an address space that is not known.
    """
    first, left_out = None, program.left_out
    for number in range(_LIMIT):
        try:
            if _has_spaced_specialisations(program):
                _Copies(program, number).check_specialisations()
            longer = insertions(program)
        except ProgramError as error:
            first = first or error
            longer = _Copies(program, number).of(error)
            if not longer:
                raise first from None
        else:
            first = None
        if not longer:
            return program
        text = inserted(program.source.text, longer, lines)
        if first is not None:
            first.offset += sum(len(i.text) for i in longer if i.offset <= first.offset)
        program = Program(Source(text))
        program.left_out = left_out
        if first is None:
            return program
    raise first


def _has_spaced_specialisations(program: Program) -> bool:
    """Returns true if some explicit specialisation of a function template may name an address space."""
    found = [f for f in program.functions if f.is_specialisation and f.stage is None]
    aliases = spaced_aliases(program) if found else set()
    for function in found:
        start = name_of(function.declarator).start_byte
        end = function.declarator.end_byte
        if any(w.text in DATA_SPACES for w in program.source.words_in(start, end)):
            return True
        if not aliases.isdisjoint(re.findall(r"\w+", program.source.masked[start:end])):
            return True
    return False


class _Copies:
    """number: which makes names unique, of the copies of one template."""

    def __init__(self, program: Program, number: int):
        self.program = program
        self.source = program.source
        self.number = number
        self.spaces: Spaces = program.kept(spaces_of)
        self.calls = self.spaces.calls
        self._classes = ClassCopies(self.spaces, number, self._kind_of, self._around)
        self._lambdas = LambdaCopies(self.spaces, self._kind, self._around)
        self._open: dict[Function, dict[str, bool]] = {}
        self._calls_found: dict[Function, list] = {}

    def of(self, error: ProgramError) -> list[Insertion]:
        """Returns the insertions that resolve an error about an address space in a template: the copies of that, or first
        of one that calls it. Empty if there is nothing to copy."""
        if not re.search("address space|is not specialised for pointers", error.message):
            return []
        longer = without_aliases(self.program, self.spaces.types)
        node = self.source.leaf_at(error.offset)
        named = _CLASS.match(error.message)
        for scope in self.spaces.types.classes.get(named[1], ()) if named and not longer else ():
            longer = longer or self._classes.of(scope)
        return longer or self._around(node)

    def _around(self, node) -> list[Insertion]:
        """Returns the copies of the generic lambda around a node, or else of the function template, or of the class
        template."""
        longer = self._lambdas.around(node)
        if longer:
            return longer
        function = self.calls.function_around(node) or self._with_header(node)
        if function is not None and function.is_specialisation:
            function = self.specialised.get(function)
        found = [] if function is None else self.copies_for(function)
        scope = None if found else self._classes.around(node)
        return found if scope is None else self._classes.of(scope)

    def _with_header(self, node) -> Function | None:
        """Returns the function template of whose parameters or result a node is part."""
        found = [
            f
            for f in self.program.functions
            if f.template_headers and f.node.start_byte <= node.start_byte < f.node.end_byte
        ]
        return found[-1] if found else None

    # ---- which template --------------------------------------------------------------------------

    def copies_for(self, function: Function) -> list[Insertion]:
        """Returns the copies of a template, and of those with which it is recursive; or first of one that calls it."""
        waits_for = self._waits_for(function)
        for called in (function, *waits_for):
            for call in self._calls_of(called):
                if self._kinds(call, called, self._open_parameters(called)) is None:
                    longer = self._lambdas.around(call)
                    if longer:
                        return longer
        group = [f for f in waits_for if f is not function and function in self._waits_for(f)]
        group.insert(0, function)
        group += [f for f in self._namesakes(group) if f not in group]
        if any(map(self._is_in_expansion, self._calls_between(group))):
            return []
        if not all(self._open_parameters(f) and self._can_be_copied(f) for f in group):
            return []
        for other in waits_for:
            if other not in group:
                return self.copies_for(other)
        found = self._combinations_of(group)
        if found is None:
            return []
        longer = [i for call in self._calls_outside(group) for i in self._marks(call, group, {})]
        for f, combinations in found.items():
            given = [c for c in combinations if any(kind not in (None, ()) for kind in c)]
            declarations = self._declarations_of(f)
            nodes = [f.node, *declarations]
            prefix = NOTHING if len(given) == len(combinations) else NO_POINTER
            begin = min(n.start_byte for n in nodes)
            own = self._own_types(f, (None,) * len(self._open_parameters(f)))
            for call in self._calls_in(f, group):
                longer += self._marks(call, group, own)
            for index, combination in enumerate(given):
                copy = self._copy(f, combination, f"{group.index(f)}_{index}", group)
                text = copy.text()
                longer.append(Insertion(f.node.end_byte, f" {text}"))
                if self._is_declared_before(f, group):
                    longer.append(Insertion(begin, f"{copy.declaration()} "))
            for node in nodes:
                longer += self._named(node, self._open_parameters(f), prefix)
            for specialisation in self._specialisations_of(f):
                longer += self._marks_of_specialisation(specialisation, f)
        return sorted(dict.fromkeys(longer), key=lambda i: i.offset)

    def _namesakes(self, group: list[Function]) -> list[Function]:
        """Returns the templates that share their name with one of a group of which copies get names of their own, and
        that its calls may mean as well."""
        return [
            other
            for function in group
            if self._only_written(function)
            for other in self.program.functions
            if other.name == function.name
            and other.body is not None
            and other.template_headers
            and not other.is_specialisation
            and self._place(other) == self._place(function)
            and self.calls.lookup.taking([other], self.calls.lookup.count(function))
        ]

    def _place(self, function: Function) -> tuple:
        lookup = self.calls.lookup
        return (*lookup.place(function).path, lookup.owner(function))

    def _waits_for(self, function: Function) -> list[Function]:
        """Returns the templates that have to be copied first, since what they give a template is not known: those that call
        it, and what these wait for."""
        found: dict[Function, None] = {}
        waiting = [function]
        while waiting:
            called = waiting.pop()
            parameters = self._open_parameters(called)
            for call in self._calls_of(called):
                around = self.calls.function_around(call)
                if around is None or around in found or self._gives_no_pointers(call):
                    continue
                if self._kinds(call, called, parameters) is None:
                    found[around] = None
                    waiting.append(around)
        return [*found]

    def _combinations_of(self, group: list[Function]) -> dict[Function, dict[tuple, None]] | None:
        """Returns what templates are given that call each other; None if that is not known."""
        found: dict[Function, dict[tuple, None]] = {f: {} for f in group}
        inside: list[tuple[Function, object, Function]] = []
        for function in group:
            for call in self._calls_of(function):
                around = self.calls.function_around(call)
                if self._gives_no_pointers(call):
                    continue
                if around in group:
                    inside.append((around, call, function))
                    continue
                kinds = self._kinds(call, function, self._open_parameters(function))
                if kinds is None:
                    return None
                found[function].setdefault(kinds)
            for specialisation in self._specialisations_of(function):
                found[function].setdefault(self._kinds_of_specialisation(specialisation, function))
        waiting = [(f, c) for f in group for c in found[f]]
        while waiting and sum(map(len, found.values())) < _LIMIT:
            around, combination = waiting.pop()
            own = self._own(around, combination)
            types = self._own_types(around, combination)
            for _, call, function in [i for i in inside if i[0] is around]:
                given: list[Kind] = []
                actual: list[Type | None] = []
                for argument in call.child_by_field_name("arguments").named_children:
                    given += self._kinds_inside(argument, own, types)
                    actual.append(self._of_copy(self.spaces.type_of(argument), types))
                if self._is_of_another(len(given), function):
                    continue
                parameters = self._open_parameters(function)
                written = self._kinds_written(call, function, parameters, types)
                if written is None:
                    return None
                kinds = self._combination(function, parameters, given, written, actual)
                if kinds is None:
                    return None
                if kinds not in found[function]:
                    found[function][kinds] = None
                    waiting.append((function, kinds))
        return found

    @staticmethod
    def _of_copy(type_: Type | None, kinds: dict[str, Kind]) -> Type | None:
        """Returns the type of an object in a copy, whose class has parameters of the template as arguments."""
        if type_ is None or type_.kind != "value" or "<" not in type_.name:
            return type_
        name = type_.name
        for own, kind in kinds.items():
            text = f"{NO_POINTER}{own}" if kind is None else f"{kind} int*"
            name = re.sub(rf"\b{re.escape(own)}\b", text, name)
        return type_._replace(name=name)

    def _own_types(self, function: Function, combination: tuple) -> dict[str, Kind]:
        """Returns what the type parameters of a template are, by name, without packs."""
        parameters = self._open_parameters(function).items()
        pairs = zip(parameters, combination, strict=True)
        return {name: kind for (name, is_pack), kind in pairs if not is_pack}

    def _own(self, function: Function, combination: tuple) -> dict[str, Kind]:
        """Returns what the parameters of a template are, by name."""
        kinds = dict(zip(self._open_parameters(function), combination, strict=True))
        own: dict[str, Kind] = {}
        for node, name, _ in self._bare(function):
            identifier = declared_identifier(node.child_by_field_name("declarator"))
            if name in kinds and identifier is not None:
                own[self.source.masked_text(identifier)] = kinds[name]
        return own

    def _is_declared_before(self, function: Function, group: list[Function]) -> bool:
        """Returns true if copies of a template call each other before they are defined."""
        if function.in_class or function.body is None or self._has_defaults(function):
            return False
        if re.search(r"\bauto\b", self._head(function)):
            return False
        before = [f.node.start_byte for f in self._specialisations_of(function)]
        if any(start < function.node.start_byte for start in before):
            return True
        return any(
            self.calls.function_around(call) in group for f in group for call in self._calls_of(f)
        )

    def _head(self, function: Function) -> str:
        end = function.declarator.start_byte
        return self.source.masked[function.template_headers[0].end_byte : end]

    def _has_defaults(self, function: Function) -> bool:
        return any(n.child_by_field_name("default_value") for n, _, _ in self._bare(function))

    def _declarations_of(self, function: Function) -> list:
        """Returns the nodes of the declarations of a template beside its definition."""
        return [
            f.node
            for f in self.program.functions
            if f.name == function.name and f.body is None and self._declares(f, function)
        ]

    def _declares(self, declaration: Function, function: Function) -> bool:
        sides = [
            (
                f.path,
                [self.source.masked_text(h).split() for h in f.template_headers],
                [(t.type, "..." in self.source.masked_text(n)) for n, _, t in self._typed(f)],
            )
            for f in (declaration, function)
        ]
        return sides[0] == sides[1]

    def _typed(self, function: Function) -> list:
        return self.spaces.types.parameters(function.declarator)

    def _calls_outside(self, group: list[Function]) -> Iterator:
        for function in group:
            for call in self._calls_of(function):
                if self.calls.function_around(call) not in group:
                    yield call

    def _calls_between(self, group: list[Function]) -> list:
        """Returns the calls with template arguments of functions of a group in one of them."""
        return [
            c
            for f in group
            for c in self._calls_in(f, group)
            if name_node(c.child_by_field_name("function")).parent.type.startswith("template_")
        ]

    @staticmethod
    def _is_in_expansion(node) -> bool:
        while node is not None and node.type != "function_definition":
            if node.type in ("parameter_pack_expansion", "fold_expression"):
                return True
            node = node.parent
        return False

    def _calls_in(self, function: Function, group: list[Function]) -> Iterator:
        """Yields the calls of functions of a group that stand in one of them."""
        for called in group:
            for call in self._calls_of(called):
                if self.calls.function_around(call) is function:
                    yield call

    def _marks(self, call, group: list[Function], own: dict[str, Kind]) -> Iterator[Insertion]:
        """Yields what turns a call into one of a copy: its name, and what pointers in its template arguments point to.
        own: what the parameters of the template are in which it stands, if that is of the group."""
        name = name_node(call.child_by_field_name("function"))
        for function in group:
            if function.name != self.source.masked_text(name) or call not in self._calls_of(
                function
            ):
                continue
            parameters = self._open_parameters(function)
            written = self._kinds_written(call, function, parameters, own)
            yield from self._marked(name, function, written, self._written(call, function))
            return

    def _marked(
        self, name, function: Function, kinds: dict[str, Kind], written: list
    ) -> Iterator[Insertion]:
        suffix = self._suffix(function, kinds)
        if suffix:
            yield Insertion(name.end_byte, suffix)
        for parameter, argument in written:
            if kinds.get(parameter) is not None:
                start = self.source.previous_code(argument.start_byte) + 1
                yield Insertion(start, f" {pointee(kinds[parameter])}<")
                yield Insertion(self.source.next_code(argument.end_byte), ">")

    def _suffix(self, function: Function, kinds: dict[str, Kind]) -> str:
        """Returns what the name of a copy ends with, which tells what template parameters are that no argument tells."""
        of_written = [kinds.get(name) for name in self._only_written(function)]
        if not any(of_written):
            return ""
        suffix = "_of_" + "_".join(kind or "0" for kind in of_written)
        while function.name + suffix in self._written_names:
            suffix += "_"
        return suffix

    @functools.cached_property
    def _written_names(self) -> set[str]:
        return {n for n in self.source.identifiers if "_of_" in n}

    # ---- explicit specialisations ----------------------------------------------------------------

    def check_specialisations(self) -> None:
        """Raises an error for an explicit specialisation of a function template for pointers to some address space, which
        the template takes with any others."""
        for function, template in self.specialised.items():
            kinds = self._kinds_of_specialisation(function, template)
            if any(kind not in (None, ()) for kind in kinds):
                raise ProgramError(
                    f"an explicit specialisation of {function.name} for an address space is not "
                    "supported here; write an overload",
                    function.declarator.start_byte,
                )

    @functools.cached_property
    def specialised(self) -> dict[Function, Function]:
        """The templates of explicit specialisations, by these, of which a parameter may be a pointer."""
        found = {}
        for function in self.program.functions:
            if not function.is_specialisation or function.stage is not None:
                continue
            templates = [
                f
                for f in self.program.functions
                if f.name == function.name
                and f.template_headers
                and not f.is_specialisation
                and self._place(f) == self._place(function)
                and self.calls.lookup.count(f) == self.calls.lookup.count(function)
            ]
            templates = [t for t in templates if t.body is not None] or templates[:1]
            templates = [t for t in templates if self._is_specialised_by(t, function)]
            if len(templates) == 1 and self._open_parameters(templates[0]):
                found[function] = templates[0]
        return found

    def _is_specialised_by(self, template: Function, function: Function) -> bool:
        """Returns true if the parameters of a specialisation are such as a template takes, as far as pointers tell."""
        if len(template.template_headers) != 1:
            return False
        for (_, name, _), (_, _, declared), (_, _, own) in zip(
            self._bare(template), self._typed(template), self._typed(function), strict=True
        ):
            if name is None and chain(declared.type) != chain(own.type):
                if declared.type.kind in ("pointer", "reference") or own.type.kind == "pointer":
                    return False
        return True

    def _specialisations_of(self, template: Function) -> list[Function]:
        return [f for f, of in self.specialised.items() if of is template]

    def _written_in(self, function: Function, template: Function) -> list:
        """Returns the template arguments in the name of a specialisation, with the names of their parameters."""
        node = name_node(name_of(function.declarator))
        if node.parent.type not in ("template_function", "template_method"):
            return []
        return self._with_names(node.parent, template)

    def _kinds_of_specialisation(self, function: Function, template: Function) -> tuple:
        parameters = self._open_parameters(template)
        written = {
            name: self._kind_of(argument)
            for name, argument in self._written_in(function, template)
            if name in parameters and not parameters[name]
        }
        types = [decayed(d.type) for _, _, d in self._typed(function)]
        given = [*map(self._kind_of_type, types)]
        return self._combination(template, parameters, given, written, types) or ("unknown",)

    def _marks_of_specialisation(self, function: Function, template: Function):
        parameters = [*self._open_parameters(template)]
        kinds = self._kinds_of_specialisation(function, template)
        node = name_node(name_of(function.declarator))
        own = dict(zip(parameters, kinds, strict=True))
        return self._marked(node, template, own, self._written_in(function, template))

    def _written(self, call, function: Function) -> list[tuple[str | None, object]]:
        """Returns the template arguments written in a call, with the names of their parameters."""
        name = name_node(call.child_by_field_name("function"))
        if name.parent.type not in ("template_function", "template_method"):
            return []
        return self._with_names(name.parent, function)

    def _with_names(self, node, function: Function) -> list[tuple[str | None, object]]:
        arguments = node.child_by_field_name("arguments").named_children
        parameters = template_parameters(function.template_headers[0])
        names = [p.identifier and self.source.masked_text(p.identifier) for p in parameters]
        return list(zip(names, arguments, strict=False))

    def _kinds_inside(self, argument, own: dict[str, Kind], types: dict[str, Kind]) -> list[Kind]:
        """Returns what an argument in a template is, or those of the expansion of a pack. own: what its parameters are.
        types: what the parameters of its template are."""
        text = self.source.masked_text(argument)
        if argument.type == "comment":
            return []
        if argument.type == "parameter_pack_expansion":
            pattern = argument.child_by_field_name("pattern")
            kinds = own.get(self.source.masked_text(pattern), ("unknown",))
            return [*kinds] if isinstance(kinds, tuple) else ["unknown"]
        if text in own and not isinstance(own[text], tuple):
            return [own[text]]
        if argument.type == "binary_expression":
            sides = [argument.child_by_field_name(f) for f in ("left", "right")]
            kinds = [k for side in sides for k in self._kinds_inside(side, own, types)]
            return [next((k for k in kinds if k is not None), None)]
        type_ = self.spaces.type_of(argument)
        if type_ is not None and type_.kind == "value" and type_.name in types:
            return [types[type_.name]]
        return [self._kind(argument)]

    def _open_parameters(self, function: Function) -> dict[str, bool]:
        """Returns the type parameters of a template that may be pointers, by a parameter or by a template argument that a
        call names: true for packs."""
        if function not in self._open:
            self._open[function] = self._find_open(function)
        return self._open[function]

    def _find_open(self, function: Function) -> dict[str, bool]:
        if len(function.template_headers) != 1 or self._is_of_class_template(function):
            return {}
        names = {}
        for parameter in template_parameters(function.template_headers[0]):
            if parameter.is_type and parameter.identifier is not None:
                name = self.source.masked_text(parameter.identifier)
                names[name] = parameter.node.type.startswith("variadic")
        found = {name for _, name, _ in self._bare(function) if name in names}
        found |= {n for n in self._written_only(function, names) if not names[n]}
        found |= {n for of in self._typed(function) for n, _ in self._inside(of[2].type, names)}
        return {
            n: is_pack
            for n, is_pack in names.items()
            if n in found and not n.startswith(NO_POINTER)
        }

    def _is_of_class_template(self, function: Function) -> bool:
        """Returns true for a member defined outside of its class, whose template header is that of the class."""
        name = name_of(function.declarator)
        scope = name.child_by_field_name("scope") if name.type == "qualified_identifier" else None
        return scope is not None and any(self.source.find("(template_type) @t", name))

    def _inside(self, type_: Type, names: Iterable[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yields the template parameters that are arguments of the class of a parameter, `s<P>`, with their place."""
        if type_.kind in ("reference", "pointer"):
            type_ = type_.target
        if type_.kind != "value" or "<" not in type_.name:
            return
        if type_.name.split("<")[0].strip() not in self.spaces.types.classes:
            return
        for index, argument in enumerate(self.spaces.types.arguments_in(type_.name)):
            if argument.kind == "value" and argument.name in names:
                yield argument.name, (index,)
            for name, path in self._inside(argument, names):
                yield name, (index, *path)

    def _kind_inside(self, wanted: Type, actual: Type, path: tuple[int, ...]) -> Kind:
        """Returns what a template argument of an object's class is; NOT_TAKEN if a parameter does not take the object."""
        if wanted.kind == "pointer":
            if actual.kind not in ("pointer", "array"):
                return NOT_TAKEN
            actual = actual.target
        if wanted.kind in ("reference", "pointer"):
            wanted = wanted.target
        if not path:
            return self._kind_of_type(actual)
        names = [t.name.split("<")[0].strip() for t in (wanted, actual)]
        if actual.kind != "value" or actual.is_open:
            return "unknown" if actual.is_open else NOT_TAKEN
        if names[0] != names[1]:
            return "unknown" if self.calls.lookup.has_bases(names[1]) else NOT_TAKEN
        types = [self.spaces.types.arguments_in(t.name) for t in (wanted, actual)]
        if path[0] >= len(types[1]):
            return "unknown"
        return self._kind_inside(types[0][path[0]], types[1][path[0]], path[1:])

    def _written_only(self, function: Function, names: Iterable[str]) -> list[str]:
        """Returns the names of template parameters that the parameters of a function do not name."""
        parameters = function.declarator.child_by_field_name("parameters")
        text = self.source.masked_text(parameters)
        return [n for n in names if not re.search(rf"\b{re.escape(n)}\b", text)]

    def _only_written(self, function: Function) -> list[str]:
        """Returns the open parameters that no argument tells."""
        return self._written_only(function, self._open_parameters(function))

    def _bare(self, function: Function) -> Iterator[tuple[object, str | None, int]]:
        """Yields (node, the name of its type, start) of each parameter; None for one that is not of a parameter's type
        or a reference to thread memory of it."""
        for node, start, declared in self.spaces.types.parameters(function.declarator):
            type_ = declared.type
            if type_.kind == "reference" and type_.target.space in (None, "thread"):
                type_ = type_.target
            is_bare = type_.kind == "value" and type_.is_open
            yield node, type_.name if is_bare else None, start

    def _can_be_copied(self, function: Function) -> bool:
        if function.is_specialisation or function.stage is not None:
            return False
        if function.body is None and not self._specialisations_of(function):
            return False
        if function.is_conversion or not re.fullmatch(r"\w+|operator\(\)", function.name):
            return False
        if function.name == CALL_OPERATOR and self._only_written(function):
            return False
        family = [f for f in self.program.functions if f.name == function.name]
        if any("unknown" in self._kinds_of_specialisation(*p) for p in self.specialised.items()):
            return False
        if self._is_used_otherwise(function):
            return False
        return not any(
            (other.is_specialisation and other not in self.specialised)
            or (
                other.body is None
                and function.body is not None
                and bool(other.template_headers)
                and not any(f.body is not None and self._declares(other, f) for f in family)
            )
            for other in family
        )

    def _is_used_otherwise(self, function: Function) -> bool:
        """Returns true if something else is done with a template than to call it, `auto h = g<device float*>;`."""
        declared = [n.start_byte for n in map(self._name_of, self.program.functions)]
        for offset in self.source.words_at.get(function.name, ()):
            node = self.source.leaf_at(offset)
            if node.parent.type not in ("template_function", "template_method"):
                continue
            use = node.parent
            while use.parent.type in ("qualified_identifier", "field_expression", "dependent_name"):
                use = use.parent
            is_called = use.parent.type == "call_expression"
            if not is_called and offset not in declared:
                return True
        return False

    @staticmethod
    def _name_of(function: Function):
        return name_node(name_of(function.declarator))

    def _calls_of(self, function: Function) -> list:
        """Returns the calls that may be of a function template."""
        if function not in self._calls_found:
            self._calls_found[function] = [*self._find_calls(function)]
        return self._calls_found[function]

    def _calls_by(self, name: str) -> Iterator:
        """Yields the calls by a name; for call operators, those of objects."""
        if name == CALL_OPERATOR:
            yield from (c for c in self.spaces.object_calls if tag_in(self.source, c) is None)
            return
        for call in self.source.find("(call_expression) @c"):
            if self.source.masked_text(name_node(call.child_by_field_name("function"))) == name:
                yield call

    def _find_calls(self, function: Function) -> Iterator:
        for call in self._calls_by(function.name):
            called = self.calls.functions_called(call)
            if called and function not in called:
                continue
            if not self._takes_written(call, function):
                continue
            arguments = arguments_of(call)
            if arguments is None or not self._is_of_another(len(arguments), function):
                yield call

    def _takes_written(self, call, function: Function) -> bool:
        """Returns true if a call has template arguments such as a template takes, and all that no argument tells."""
        name = name_node(call.child_by_field_name("function"))
        written = []
        if name.parent.type in ("template_function", "template_method"):
            written = name.parent.child_by_field_name("arguments").named_children
        header = [p for h in function.template_headers for p in template_parameters(h)]
        if any(p.node.type.startswith("variadic") for p in header):
            return True
        if len(written) > len(header):
            return False
        for parameter, argument in zip(header, written, strict=False):
            if argument.type.endswith("_literal") and parameter.is_type:
                return False
            is_type = argument.type == "type_descriptor" and not re.fullmatch(
                r"[\w:]+", self.source.masked_text(argument).strip()
            )
            if (is_type or _is_of_builtin(argument)) and not parameter.is_type:
                return False
        left = [p for p in header[len(written) :] if p.identifier is not None]
        names = [
            self.source.masked_text(p.identifier)
            for p in left
            if not p.node.type.startswith("optional")
        ]
        return not self._written_only(function, names)

    def _is_of_another(self, arguments: int, function: Function) -> bool:
        """Returns true if a call with some number of arguments means a function of as many parameters, and not a template
        with a pack."""
        return any(self._open_parameters(function).values()) and any(
            f.name == function.name
            and f is not function
            and (f.name != CALL_OPERATOR or self._place(f) == self._place(function))
            and len(self.spaces.types.parameters(f.declarator)) == arguments
            and "..." not in self.source.masked_text(f.declarator)
            for f in self.program.functions
        )

    def _gives_no_pointers(self, call) -> bool:
        """Returns true for the expansion of a pack of what is left for no pointers."""
        return any(
            (type_ := self.spaces.type_of(argument.child_by_field_name("pattern"))) is not None
            and type_.name.startswith(NO_POINTER)
            for argument in call.child_by_field_name("arguments").named_children
            if argument.type == "parameter_pack_expansion"
        )

    def _kinds(self, call, function: Function, parameters: dict[str, bool]) -> tuple | None:
        """Returns what a call gives the open parameters, in their order; None if that is not known."""
        arguments = arguments_of(call)
        if arguments is None:
            return None
        written = self._kinds_written(call, function, parameters, {})
        if written is None:
            return None
        types = [*map(self.spaces.type_of, arguments)]
        given = [*map(self._kind, arguments)]
        return self._combination(function, parameters, given, written, types)

    def _kinds_written(
        self, call, function: Function, parameters: dict[str, bool], own: dict[str, Kind]
    ) -> dict[str, Kind] | None:
        """Returns what the template arguments of a call are, and the defaults of those that no argument tells; None if
        that is not known. own: what the parameters of the template are in which it stands."""
        written: dict[str, Kind] = {}
        for name, argument in self._written(call, function):
            if name in parameters:
                text = self.source.masked_text(argument).strip()
                kind = own[text] if text in own else self._kind_of(argument)
                if kind == "unknown" or parameters[name]:
                    return None
                written[name] = kind
        for name, default in self._defaults(function):
            if name not in written and name in self._only_written(function):
                written[name] = self._classes.kind_of_default(default)
                if written[name] == "unknown":
                    return None
        return written

    def _defaults(self, function: Function) -> Iterator[tuple[str, str]]:
        """Yields the names and the defaults of the parameters of a template that have one."""
        for header in function.template_headers[:1]:
            for parameter, (_, start, end) in zip(
                template_parameters(header), parameter_ranges(header), strict=True
            ):
                default = self.source.text[start:end].partition("=")[2].strip()
                if default and parameter.is_type and parameter.identifier is not None:
                    yield self.source.masked_text(parameter.identifier), default

    def _combination(
        self,
        function: Function,
        parameters: dict[str, bool],
        given: list[Kind],
        written: dict[str, Kind],
        types: list[Type | None],
    ) -> tuple | None:
        """Returns what the open parameters are if a template is given arguments of these kinds; None if it is not known.
        written: what they are by template arguments. types: of the arguments, without expansions of packs."""
        found = dict(written)
        is_no_call = (None,) * len(parameters)
        for index, ((_, name, _), (_, _, declared)) in enumerate(
            zip(self._bare(function), self._typed(function), strict=True)
        ):
            if parameters.get(name):
                if "unknown" in given:
                    return None
                found[name] = tuple(given)
                given = []
                break
            if not given:
                break  # a default
            kind = given.pop(0)
            if name not in parameters:
                spaces = chain(declared.type) if declared.type.kind == "pointer" else ()
                if spaces and kind != "unknown" and kind != spaces[0]:
                    return is_no_call
                for own, path in self._inside(declared.type, parameters):
                    if own in written:
                        continue
                    actual = types[index] if index < len(types) else None
                    if actual is None:
                        return None
                    kind = self._kind_inside(declared.type, actual, path)
                    if kind == "unknown":
                        return None
                    if kind == NOT_TAKEN or found.setdefault(own, kind) != kind:
                        return is_no_call
                continue
            if name in written:
                continue
            if kind == "unknown":
                return None
            if found.setdefault(name, kind) != kind:
                return is_no_call
        return tuple(
            found.get(name, () if is_pack else None) for name, is_pack in parameters.items()
        )

    def _kind(self, argument) -> Kind:
        """Returns the address space that an argument points to, None if it is no pointer, or "unknown"."""
        type_ = self.spaces.type_of(argument)
        return "unknown" if type_ is None else self._kind_of_type(decayed(type_))

    def _kind_of(self, argument) -> Kind:
        """Returns what _kind() does for a template argument."""
        if argument.type != "type_descriptor":
            return None
        text = self.source.masked_text(argument).strip()
        if text.startswith(("msl_pointee<", "msl_constant_pointee<")) and text.endswith(">"):
            return None
        return self._kind_of_type(decayed(self.spaces.described(argument)))

    @staticmethod
    def _kind_of_type(type_: Type) -> Kind:
        if type_.kind == "pointer":
            spaces = chain(type_)
            return spaces[0] if len(spaces) == 1 else "unknown"
        return None if type_.kind == "value" and not type_.is_open else "unknown"

    # ---- text ------------------------------------------------------------------------------------

    def _named(self, node, parameters: dict[str, bool], prefix: str) -> Iterator[Insertion]:
        """Yields the insertions that rename the parameters of a template that is left for what is no pointer."""
        for identifier in self.source.find(IDENTIFIERS, node):
            if self.source.masked_text(identifier) in parameters:
                yield Insertion(identifier.start_byte, prefix)

    def _copy(
        self, function: Function, combination: tuple, index: str, group: list[Function]
    ) -> TemplateCopy:
        kinds = dict(zip(self._open_parameters(function), combination, strict=True))
        own = self._own_types(function, combination)
        marks = [i for c in self._calls_in(function, group) for i in self._marks(c, group, own)]
        name = self._name_of(function)
        suffix = self._suffix(function, kinds)
        if suffix:
            marks.append(Insertion(name.end_byte, suffix))
        prefix = ATTEMPT if function.name == CALL_OPERATOR else "msl_"
        return TemplateCopy(
            self.source,
            function,
            kinds,
            f"{prefix}{self.number}_{index}_",
            [*self._bare(function)],
            self._only_written(function),
            marks,
        )


def _is_of_builtin(argument) -> bool:
    """Returns true for a template argument that is a builtin type of C++."""
    named = argument.child_by_field_name("type")
    return named is not None and named.type == "primitive_type"
