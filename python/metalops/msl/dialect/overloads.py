"""Gives overloads that differ by address space names of their own, and each call the name that it means, before address
spaces are erased.

Only functions of a name are renamed of which some could be taken for another once they are erased: a pointer or a
reference to one space for one to another, or for a template parameter. Calls are resolved by the spaces of their
arguments (analysis/spaces.py), then by the C++ compiler among the functions that got one name. A call whose arguments
do not tell is an error.
"""

from __future__ import annotations

import functools
import re

from ..analysis.lookup import CALL_OPERATOR, CONSTRUCTOR, CONVERSION
from ..analysis.program import (
    Function,
    Program,
    ProgramError,
    name_node,
    name_of,
    template_parameters,
)
from ..analysis.spaces import (
    COPY,
    NO,
    UNKNOWN,
    YES,
    Spaces,
    arguments_of,
    decayed,
    is_scalar,
    is_static,
    nested,
    qualifier,
)
from ..analysis.types import DATA_SPACES, Type
from ..source.vocabulary import LIBRARY_WITH_SPACES
from .call_operators import first_parameter, is_by_name, other_uses, suffix_of, tag_in, tagged
from .duplicates import Keys, scope_of
from .insertion import Insertion
from .operands import Operands
from .parameter_types import are_apart, conflict, end_of, is_builtin, spaces_named

_OF_NO_NAME = re.compile(r"operator\W|operator$|operator |~")
_VECTOR = re.compile(
    r"(?:metal::)?(?:bool|u?char|u?short|u?int|u?long|half|float|bfloat)[234](?:x[234])?"
)
_WRITABLE = {"device", "threadgroup", "thread"}
_ALIAS = re.compile(r"[^;{}]*?\b(?:using\s+(\w+)\s*=|typedef\b)")
_NAMES = "[(identifier) (field_identifier)] @n"


def spaced_families(program: Program) -> dict[str, list[Function]]:
    """Returns the functions, by name, of which some name an address space, by themselves or by a type alias."""
    aliases = spaced_aliases(program)
    families: dict[str, list[Function]] = {}
    for function in program.functions:
        if function.stage is None:
            families.setdefault(function.name, []).append(function)
    return {
        name: functions
        for name, functions in families.items()
        if (len(functions) > 1 or name in LIBRARY_WITH_SPACES)
        and any(_names_a_space(program, f, aliases) for f in functions)
    }


def _names_a_space(program: Program, function: Function, aliases: set[str]) -> bool:
    parameters = function.declarator.child_by_field_name("parameters")
    following = function.body or function.node.next_sibling
    end = following.start_byte if following is not None else function.node.end_byte
    words = program.source.words_in(parameters.start_byte, end)
    return any(w.text in DATA_SPACES for w in words) or (
        bool(aliases)
        and not aliases.isdisjoint(re.findall(r"\w+", program.source.masked_text(parameters)))
    )


def spaced_aliases(program: Program) -> set[str]:
    """Returns the names of type aliases that name an address space."""
    masked = program.source.masked
    found = set()
    for word in program.source.words:
        start = 0
        for c in ";{}":  # each is looked for no farther back than the others were found
            start = max(start, masked.rfind(c, start, word.start) + 1)
        declared = _ALIAS.match(masked, start)
        if declared is not None:
            end = masked.find(";", word.end)
            found.add(declared[1] or re.findall(r"\w+", masked[start:end] or "_")[-1])
    return found


class Overloads:
    """The functions of a program that may have to be told apart. families: by name, as of spaced_families()."""

    def __init__(self, program: Program, spaces: Spaces, families: dict[str, list[Function]]):
        self.program = program
        self.source = program.source
        self.calls = spaces.calls
        self.lookup = spaces.calls.lookup
        self.spaces = spaces
        self.families = families
        self._mentions: dict[Function, set[str]] = {}
        self._types_of: dict[Function, list[Type]] = {}
        self._entries: dict[Function, tuple] = {}
        self._suffixes: dict[Function, str] = {}
        self._classes: dict[Function, tuple | None] = {}
        self._of_objects: dict[str, set[str]] = {}  # by name
        # By name, then by scope and address spaces: what explicit specialisations are once these are erased.
        self._specialisations: dict[str, dict[tuple, set[tuple]]] = {}
        self._in_every_space: dict[str, dict[tuple, bool]] = {}
        self._found: list[Insertion] = []
        self._names: set[str] = set()  # of functions that address spaces tell apart
        self._shared: dict[tuple[Function, ...], str] = {}  # further suffixes, of sets of functions
        # For functions that using-declarations name: the end of the declaration, its text, and the functions.
        self._usings: list[tuple[int, str, list[Function]]] = []

    @functools.cached_property
    def keys(self) -> Keys:
        return Keys.of_erased(self.program)

    @functools.cached_property
    def _aliases(self) -> set[str]:
        return spaced_aliases(self.program)

    def run(self) -> list[Insertion]:
        """Returns the text that gives each set of overloads that address spaces tell apart names of their own.

        Raises ProgramError for calls and other uses whose meaning depends on an address space that is not known.
        """
        separated = self._separated()
        if not separated:
            return []
        self._names = {*separated}
        for name in separated:
            self._separate(name)
        self._calls(separated)
        return self._found

    # ---- which functions get names ---------------------------------------------------------------

    def _separated(self) -> list[str]:
        """Returns the names of the functions that address spaces tell apart."""
        merged: dict[str, list[Function]] = {}
        found: list[str] = []
        for name, functions in self.families.items():
            if name in LIBRARY_WITH_SPACES and any(map(self._may_be_library, functions)):
                found.append(name)
                continue
            functions = self._without_specialisations(functions)
            for index, one in enumerate(functions):
                for other in functions[index + 1 :]:
                    if not self._confusable(one, other) or self._is_in_every_space(one, other):
                        continue
                    body = self._common_body(one, other)
                    if body is not None and self._are_specialised_alike(one, other):
                        merged.setdefault(name, []).append(one)
                    elif self._is_left(one, other) or self._differ_for_no_argument(one, other):
                        continue
                    else:
                        self._check_names(one, other)
                        found.append(name)
        found = [*dict.fromkeys(found)]
        waiting = [*found]
        while waiting:  # the same words mean something else if they call one of these
            called = waiting.pop()
            for name, functions in merged.items():
                if name not in found and any(called in self._mentioned(f) for f in functions):
                    if _has_no_name(self.families[name][0], self.lookup):
                        continue  # left to remove_duplicates
                    found.append(name)
                    waiting.append(name)
        return found

    def _may_be_library(self, function: Function) -> bool:
        """Returns true for an overload of a function of the library for another memory than a thread's, which address
        spaces tell from those of the library."""
        spaces = {s for entry in self._entry(function) for s in entry.split("_")}
        return self.lookup.owner(function) is None and not spaces <= {"0", "thread"}

    def _is_in_every_space(self, one: Function, other: Function) -> bool:
        """Returns true for operators, or constructors, of one class that has the same ones for all spaces, of objects and
        of parameters, that it has some for: remove_duplicates leaves one of each."""
        owner = self.lookup.owner(one)
        if owner is None or owner != self.lookup.owner(other) or not _has_no_name(one, self.lookup):
            return False
        scope = self._scope(one)
        if scope not in self._in_every_space.setdefault(one.name, {}):
            functions = [f for f in self.families[one.name] if self._scope(f) == scope]
            self._in_every_space[one.name][scope] = self._are_in_every_space(functions)
        return self._in_every_space[one.name][scope]

    def _are_in_every_space(self, functions: list[Function]) -> bool:
        of_spaces: dict[str | None, dict[tuple, list[Function]]] = {}
        for function in functions:
            key = self.keys.of_function(function)
            of_space = of_spaces.setdefault(self._object(function), {})
            of_space.setdefault((_without_const(key), key.endswith("|const")), []).append(function)
        own = of_spaces.get("thread") or next(iter(of_spaces.values()))
        of_const = {key for key in own if key[1]}
        for space, of_space in of_spaces.items():
            spaces = [
                {(*map(spaces_named, self._types(f)),) for f in found}
                for found in of_space.values()
            ]
            spaced = [s for s in spaces if any(map(any, s))]
            named = {n for s in spaced for types in s for of_type in types for n in of_type}
            if any(s != spaced[0] for s in spaced) or (spaced and not named >= _WRITABLE):
                return False
            if of_space.keys() != own.keys() and (space != "constant" or {*of_space} != of_const):
                return False
            for key, found in of_space.items():
                if not all(self.keys.mean_the_same(own[key][0], f) for f in found):
                    return False
        return True

    def _without_specialisations(self, functions: list[Function]) -> list[Function]:
        """Returns functions without the explicit specialisations of those among them that name the same address spaces."""
        templates = {(self._scope(f), self._entry(f)) for f in functions if not f.is_specialisation}
        return [
            f
            for f in functions
            if not f.is_specialisation or (self._scope(f), self._entry(f)) not in templates
        ]

    def _mentioned(self, function: Function) -> set[str]:
        """Returns the names of families that the definition of a function calls, or mentions otherwise."""
        function = self._defined(function)
        if function not in self._mentions:
            own = name_node(name_of(function.declarator)).start_byte
            found = set()
            for node in self.source.find(_NAMES, function.node):
                name = self.source.masked_text(node)
                if name not in self.families or name in found or node.start_byte == own:
                    continue
                use = self._use(node)
                called = None
                if use is not None and use.type == "call_expression" and self._is_callee(node, use):
                    called = self.calls.functions_called(use)
                if called is None or any(f in self.families[name] for f in called):
                    found.add(name)
            if CALL_OPERATOR in self.families and function in self._calling_objects:
                found.add(CALL_OPERATOR)
            self._mentions[function] = found
        return self._mentions[function]

    @functools.cached_property
    def _calling_objects(self) -> set[Function | None]:
        """The functions that call objects."""
        return {*map(self.calls.function_around, self.spaces.object_calls)}

    def _are_specialised_alike(self, one: Function, other: Function) -> bool:
        """Returns true if two templates have the same explicit specialisations, but for address spaces."""
        found = self._specialisations.get(one.name)
        if found is None:
            found = self._specialisations[one.name] = {}
            for function in self.families[one.name]:
                if function.is_specialisation:
                    key = (self._scope(function), self._entry(function))
                    erased = _without_const(self.keys.of_function(function))
                    body = (t for t in self.keys.body_of_function(function) if t != "const")
                    found.setdefault(key, set()).add((erased, *body))
        keys = [(self._scope(f), self._entry(f)) for f in (one, other)]
        return found.get(keys[0]) == found.get(keys[1])

    def _is_left(self, one: Function, other: Function) -> bool:
        """Returns true for functions that cannot have other names and become equal: remove_duplicates compares them."""
        return _has_no_name(one, self.lookup) and (
            self.keys.of_function(one) == self.keys.of_function(other)
        )

    @functools.cached_property
    def _operands(self) -> Operands:
        return Operands(self.spaces, self.lookup, self.program.functions)

    def _differ_for_no_argument(self, one: Function, other: Function) -> bool:
        """Returns true for functions of which one takes a reference to thread memory where the other takes a value, if the
        arguments of the program are values or in thread memory there: C++ tells them apart as Metal does."""
        if self._object(one) != self._object(other):
            return False
        for index, pair in enumerate(zip(self._types(one), self._types(other), strict=False)):
            if not conflict(*pair):
                if self._may_conflict(*pair):
                    return False
                continue
            references = [t for t in pair if t.kind == "reference"]
            if len(references) != 1 or {t.kind for t in pair} != {"reference", "value"}:
                return False
            target = references[0].target
            if spaces_named(references[0]) != ("thread",) or any(map(nested, pair)):
                return False
            if self._operands.may_be_elsewhere(one, other, index, target):
                return False
        return True

    def _check_names(self, one: Function, other: Function) -> None:
        """Raises an error for two functions that cannot get different names."""
        if _has_no_name(one, self.lookup) or self._entry(one) == self._entry(other):
            raise ProgramError(
                f"overloads of {one.name} that differ by address space are not supported unless "
                "they are the same but for the address space: "
                f"{self.keys.signature(one)} and {self.keys.signature(other)}",
                other.declarator.start_byte,
                one.declarator.start_byte,
            )

    def _common_body(self, one: Function, other: Function) -> list[str] | None:
        """Returns the body of two functions that are the same but for address spaces, and for const, which takes the
        place of one of them; None of others."""
        one, other = self._defined(one), self._defined(other)
        if self._scope(one) != self._scope(other):
            return None
        keys = [_without_const(self.keys.of_function(f)) for f in (one, other)]
        if keys[0] != keys[1]:
            return None
        bodies = [[t for t in self.keys.body_of_function(f) if t != "const"] for f in (one, other)]
        return bodies[0] if bodies[0] == bodies[1] else None

    def _defined(self, function: Function) -> Function:
        """Returns the definition of a function, or the function itself if there is none."""
        if function.body is not None:
            return function
        for other in self.families[function.name]:
            if (
                other.body is not None
                and self._scope(other) == self._scope(function)
                and len(self._types(other)) == len(self._types(function))
                and self._entry(other) == self._entry(function)
                and [end_of(t).name for t in self._types(other)]
                == [end_of(t).name for t in self._types(function)]
            ):
                return other
        return function

    def _scope(self, function: Function) -> tuple:
        return (*self.lookup.place(function).path, self.lookup.owner(function))

    def _confusable(self, one: Function, other: Function) -> bool:
        """Returns true if a call of one of two functions could mean the other, once address spaces are erased."""
        owners = self.lookup.owner(one), self.lookup.owner(other)
        if (owners[0] is None) != (owners[1] is None):
            return False
        are_members_of_one = owners[0] == owners[1] and self._class(one) == self._class(other)
        if not are_members_of_one and not self.lookup.is_used(one.name):
            return False
        if owners[0] is not None and self._is_definition_of(one, other):
            return False
        low, high = self.lookup.count(one)
        if not self.lookup.taking([other], (low, high)):
            return False
        if self._are_told_by_const(one, other):
            return False
        pairs = list(zip(self._types(one), self._types(other), strict=False))
        objects = self._object(one), self._object(other)
        are_of_spaces = None not in objects and objects[0] != objects[1]
        if any(
            are_apart(*pair)
            or self._are_classes_apart(*pair)
            or self._is_no_number(*pair)
            or self._is_no_number(*reversed(pair))
            for pair in pairs
        ):
            return False
        if self._is_more_special(one, other) or self._is_more_special(other, one):
            return False
        return are_of_spaces or any(conflict(*p) or self._may_conflict(*p) for p in pairs)

    def _are_told_by_const(self, one: Function, other: Function) -> bool:
        """Returns true if two functions take the same types, but one takes what is constant, and so const once it is erased,
        where the other takes what is not const."""
        types = self._types(one), self._types(other)
        if len(types[0]) != len(types[1]):
            return False
        directions = set()
        for index, (a, b) in enumerate(zip(*types, strict=True)):
            if not conflict(a, b):
                if (a.kind, end_of(a).name) != (b.kind, end_of(b).name):
                    return False
                continue
            if a.kind != b.kind or a.kind not in ("pointer", "reference"):
                return False
            targets = a.target, b.target
            if targets[0].target is not None or targets[1].target is not None:
                return False
            constant = [t.space == "constant" for t in targets]
            if constant[0] == constant[1] or targets[constant[0]].is_const:
                return False
            if any(t.is_open for t in targets):
                # A parameter of a template may stand for what is const, in any space.
                if not all(t.is_open for t in targets):
                    return False
                if self._operands.may_be_const(one, other, index):
                    return False
            elif targets[0].name != targets[1].name:
                return False
            directions.add(constant[0])
        return len(directions) == 1

    def _class(self, function: Function) -> tuple | None:
        """Returns the class body that a member function stands in: specialisations of a template are different classes.
        None for other functions, and outside of a class."""
        if function not in self._classes:
            inside = function.in_class and self.lookup.owner(function) is not None
            self._classes[function] = scope_of(self.program, function) if inside else None
        return self._classes[function]

    def _are_classes_apart(self, one: Type, other: Type) -> bool:
        """Returns true if two parameters are of different classes between which nothing converts: pointers to them both,
        or values and references."""
        if "pointer" in (one.kind, other.kind) and one.kind != other.kind:
            return False
        names = [end_of(t).name.split("<")[0].strip() for t in (one, other)]
        classes = self.spaces.types.classes
        if names[0] == names[1] or any(n not in classes or n in self.lookup.aliases for n in names):
            return False
        if any(map(self.lookup.has_bases, names)):
            return False
        if one.kind == "pointer":
            return True
        return not any(map(self._converts, names))

    def _converts(self, class_name: str) -> bool:
        """Returns true if objects of other classes may convert to one of a class, or its objects to others."""
        members = self.lookup.members.get(class_name, {})
        if CONVERSION in members:
            return True
        return any(map(self._is_converting, members.get(CONSTRUCTOR, ())))

    def _is_converting(self, constructor: Function) -> bool:
        """Returns true for a constructor that converts an object of another class implicitly."""
        if not self.lookup.taking([constructor], (1, 1)):
            return False
        start, end = constructor.head, constructor.declarator.start_byte
        if re.search(r"\bexplicit\b", self.source.masked[start:end]):
            return False
        of = end_of(self._types(constructor)[0])
        return of.is_open or not (is_builtin(of) or of.name.split("<")[0] == constructor.name)

    def _is_no_number(self, number: Type, other: Type) -> bool:
        """Returns true if a parameter is a builtin scalar, and another one an object of a class, or a reference to one or
        to a vector, none of which converts to a scalar."""
        target = other.target if other.kind == "reference" else other
        if target.kind != "value" or target.is_open:
            return False
        if number.kind != "value" or number.is_open or not is_scalar(number):
            return False
        name = target.name.split("<")[0].strip()
        if name in self.lookup.aliases:
            return False
        if name not in self.spaces.types.classes:
            return other.kind == "reference" and is_builtin(target) and not is_scalar(target)
        conversions = self.lookup.members.get(name, {}).get(CONVERSION, ())
        return not self.lookup.has_bases(name) and all(map(self._is_to_vector, conversions))

    def _is_more_special(self, one: Function, other: Function) -> bool:
        """Returns true for templates of which `one` takes an object of a class template by value where `other` takes a
        reference to anything, and which are the same in their other parameters: `one` is what C++ takes for such
        objects, and Metal, too, in any address space."""
        if not (one.template_headers and other.template_headers):
            return False
        sides = [self.keys.parameters_of_function(f) for f in (one, other)]
        types = self._types(one), self._types(other)
        if len({*map(len, (*sides, *types))}) > 1:
            return False
        differing = [n for n, texts in enumerate(zip(*sides, strict=True)) if len({*texts}) > 1]
        if len(differing) != 1:
            return False
        value, reference = (t[differing[0]] for t in types)
        return (
            reference.kind == "reference"
            and not reference.is_const
            and not reference.target.is_const
            and reference.target.is_open
            and reference.target.name in self.spaces.types.type_parameters(other)
            and self._is_class_template(value)
        )

    def _is_class_template(self, value: Type) -> bool:
        """Returns true for a class template of arguments, of which no class is derived."""
        name, _, arguments = value.name.partition("<")
        name = name.strip()
        classes = self.spaces.types.classes
        if value.kind != "value" or not arguments or name not in classes:
            return False
        return name not in self.lookup.aliases and not any(map(self.lookup.has_bases, classes))

    def _is_to_vector(self, conversion: Function) -> bool:
        return _VECTOR.fullmatch(conversion.name.strip()) is not None

    def _may_conflict(self, one: Type, other: Type) -> bool:
        """Returns true if two parameters are of aliases of which at least one is not known."""
        return one.name != other.name and any(
            t.is_open and t.name.split("::")[-1] in self._aliases for t in (one, other)
        )

    def _is_definition_of(self, one: Function, other: Function) -> bool:
        """Returns true if two member functions are the declaration and the definition of one."""
        return (one.body is None) != (other.body is None) and self._entry(one) == self._entry(other)

    def _types(self, function: Function) -> list[Type]:
        if function not in self._types_of:
            parameters = self.spaces.types.parameters(function.declarator)
            self._types_of[function] = [d.type for _, _, d in parameters]
        return self._types_of[function]

    def _object(self, function: Function) -> str | None:
        """Returns the address space of the object of a member function."""
        if self.lookup.owner(function) is None or is_static(self.source, function):
            return None
        if function.name == self.lookup.owner(function):
            return None  # a constructor's, which calls do not tell
        return qualifier(self.source, function) or "thread"

    # ---- names -----------------------------------------------------------------------------------

    def _entry(self, function: Function) -> tuple[str, ...]:
        """Returns what a name says of each parameter, and of the object: its address spaces."""
        if function not in self._entries:
            spaces = ["_".join(spaces_named(t)) or "0" for t in self._types(function)]
            while spaces and spaces[-1] == "0":
                spaces.pop()
            object_ = self._object(function)
            if object_ is not None and len(self._objects_of(function.name)) > 1:
                spaces.insert(0, object_)
            self._entries[function] = tuple(spaces)
        return self._entries[function]

    def _objects_of(self, name: str) -> set[str]:
        """Returns the address spaces of the objects of the member functions of a name."""
        if name not in self._of_objects:
            self._of_objects[name] = {self._object(f) for f in self.families[name]} - {None}
        return self._of_objects[name]

    def _suffix(self, function: Function) -> str:
        if function not in self._suffixes:
            entry = self._entry(function)
            suffix = suffix_of([*entry])
            while suffix and function.name + suffix in self.source.identifiers:
                suffix += "_"
            self._suffixes[function] = suffix
        return self._suffixes[function]

    def _separate(self, name: str) -> None:
        suffixes = {self._suffix(f) for f in self.families[name] if not f.is_specialisation}
        for function in self.families[name]:
            if function.is_specialisation and self._suffix(function) not in suffixes:
                raise ProgramError(
                    f"an explicit specialisation of {name} for an address space is not supported; "
                    "write an overload",
                    function.declarator.start_byte,
                )
            self._found += self._renamed(function, self._suffix(function))

    def _renamed(self, function: Function, suffix: str) -> list[Insertion]:
        """Returns the text that gives a function a name of its own; a call operator gets a parameter instead."""
        if function.name == CALL_OPERATOR:
            parameters = function.declarator.child_by_field_name("parameters")
            return [first_parameter(parameters, self.source, suffix)]
        end = name_node(name_of(function.declarator)).end_byte
        return [Insertion(end, suffix)] if suffix else []

    def _insert(self, offset: int, text: str) -> None:
        if text:
            self._found.append(Insertion(offset, text))

    # ---- uses ------------------------------------------------------------------------------------

    def _calls(self, names: list[str]) -> None:
        declaring = self.calls.declaring
        instantiated = [(n.start_byte, n.end_byte) for n, _, _ in self.program.instantiations]
        wanted = {*names}
        for node in self.source.find(_NAMES):
            name = self.source.masked_text(node)
            if name not in wanted or node.start_byte in declaring:
                continue
            if any(start <= node.start_byte < end for start, end in instantiated):
                continue
            if node.type == "identifier" and self._is_local(node):
                continue
            use = self._use(node)
            if use is None:
                continue
            if use.type == "using_declaration":
                self._using(node, use, name)
            elif use.type == "call_expression" and self._is_callee(node, use):
                self._call(node, use, name)
            elif node.type == "field_identifier" and self.lookup.is_field(name):
                continue
            elif not self._is_declared(node):
                suffixes = {self._suffix(f) for f in self._named(node, name)}
                if len(suffixes) == 1:
                    self._insert(node.end_byte, suffixes.pop())
                    continue
                raise ProgramError(
                    f"{name} has overloads that differ by address space; a use of it other than a "
                    "call is not supported",
                    node.start_byte,
                )
        if CALL_OPERATOR in wanted:
            self._calls_of_objects()

    def _calls_of_objects(self) -> None:
        """Resolves the calls of objects whose call operators address spaces tell apart."""
        calls = self.spaces.object_calls
        for offset in other_uses(self.source, calls):
            if offset not in self.calls.declaring:
                raise ProgramError(
                    "operator() has overloads that differ by address space; a use of it other than a "
                    "call is not supported",
                    offset,
                )
        for call in calls:
            if tag_in(self.source, call) is None:
                self._call(call.child_by_field_name("function"), call, CALL_OPERATOR)

    @staticmethod
    def _use(node):
        """Returns the node of which a name is the callee or another part; None in the declaration of a data member."""
        use = node.parent
        while use.type in (
            "template_function",
            "template_method",
            "qualified_identifier",
            "dependent_name",
        ):
            use = use.parent
        if node.type == "field_identifier":
            if use.type != "field_expression":
                return None
            use = use.parent
        while use.type == "parenthesized_expression":
            use = use.parent
        return use

    def _named(self, node, name: str) -> list[Function]:
        """Returns the functions that a name may mean where it is not called: those of the namespace or class before it,
        with the template arguments that it has."""
        outer, found = node.parent, self._of_template(node, self.families[name])
        if outer.type == "template_function":
            outer = outer.parent
        scope = outer.child_by_field_name("scope") if outer.type == "qualified_identifier" else None
        if scope is not None:
            path = re.findall(r"\w+", self.source.masked_text(scope))
            found = [f for f in found if f in self._of_scope(name, path[0])]
        return found

    def _of_template(self, node, functions: list[Function]) -> list[Function]:
        """Returns the functions that take the template arguments written behind a name."""
        if node.parent.type not in ("template_function", "template_method"):
            return functions
        kinds = [*map(self._is_type, node.parent.child_by_field_name("arguments").named_children)]
        return [f for f in functions if _takes_template_arguments(f, kinds)]

    def _is_type(self, argument) -> bool | None:
        """Returns true for a template argument that is a type, false for a value, None if it is not known."""
        if argument.type.endswith("_literal"):
            return False
        if argument.type != "type_descriptor":
            return None
        named = argument.child_by_field_name("type")
        if named.type == "primitive_type":
            return True
        if named.type != "type_identifier" or named.start_byte != argument.start_byte:
            return None
        declaration = self.calls.scopes_around(named).declaration_of(named)
        return None if declaration is None else declaration.kind == "type"

    def _of_scope(self, name: str, scope: str) -> list[Function]:
        return [f for f in self.families[name] if scope in self.lookup.place(f).path[-1:]]

    def _is_local(self, node) -> bool:
        if self._is_qualified(node):
            return False
        scopes = self.calls.scopes_around(node)
        return scopes.declaration_of(node) is not None or any(
            d.identifier.start_byte == node.start_byte for d in scopes.declarations
        )

    @staticmethod
    def _is_qualified(node) -> bool:
        """Returns true for the name in `scope::name` and `scope::template name<...>`, which is that of a member, whatever it
        means by itself."""
        while node.parent.type in ("template_function", "dependent_name"):
            node = node.parent
        return node.parent.type == "qualified_identifier"

    def _is_declared(self, node) -> bool:
        """Returns true if a name is that of a variable, a parameter or an enumerator where it is declared."""
        parent = node.parent
        while parent.type.endswith("_declarator"):
            parent = parent.parent
        return parent.type.endswith(("declaration", "enumerator"))

    @staticmethod
    def _is_callee(node, call) -> bool:
        callee = call.child_by_field_name("function")
        return callee.start_byte <= node.start_byte < callee.end_byte

    def _using(self, node, use, name: str) -> None:
        """Extends `using scope::name;` to the functions of that name."""
        text = self.source.masked[use.start_byte : node.start_byte]
        scope = re.findall(r"\w+", text)[-1]
        meant = [f for f in self._of_scope(name, scope) if f.node.start_byte < use.start_byte]
        suffixes = [*dict.fromkeys(map(self._suffix, meant or self.families[name]))]
        self._insert(node.end_byte, suffixes[0])
        for suffix in suffixes[1:]:
            self._insert(use.end_byte, f" {text}{name}{suffix};")
        self._usings.append((use.end_byte, text + name, meant or self.families[name]))

    def _call(self, node, call, name: str) -> None:
        functions = self.calls.functions_called(call)
        if functions is None:
            if node.type == "identifier" or name == CALL_OPERATOR:
                return  # an object is called
            functions = [f for f in self.families[name] if self.lookup.owner(f) is not None]
        functions = [f for f in functions if f in self.families[name]]
        named = self._of_template(node, functions)
        count = self.lookup.arguments(call.child_by_field_name("arguments"))
        functions = self.lookup.taking(named, count)
        if not functions:
            self._keep_declared(node, named or self._declared_beside(node, name))
            return  # another function of that name, of the library for example
        arguments = arguments_of(call)
        if arguments is None:
            functions = self._without_strangers(call, functions)
            fits = {f: self.spaces.fit_of_pack(call, f) for f in functions}
        else:
            fits = {f: self.spaces.fit(call, arguments, f) for f in functions}
        left = [f for f in functions if fits[f] != NO]
        if any(fits[f] == YES for f in left):
            left = [f for f in left if fits[f] != COPY]
        if not left:
            types = [self.spaces.type_of(a) for a in arguments or ()]
            is_pointer = any(t is not None and t.kind in ("pointer", "array") for t in types)
            is_other = name in LIBRARY_WITH_SPACES or self.spaces.types.is_left(call)
            is_other = is_other or (name == CALL_OPERATOR and not self._is_of_class(call))
            is_other = is_other or self.spaces.types.is_attempt(call)
            if is_pointer and not is_other:
                raise ProgramError(
                    f"no overload of {name} takes arguments in these address spaces: "
                    + " and ".join(dict.fromkeys(map(self.keys.signature, functions))),
                    node.start_byte,
                )
            return  # another function of that name, of the library for example
        if name in LIBRARY_WITH_SPACES and all(fits[f] == UNKNOWN for f in left):
            if not self.spaces.types.is_unused(call):
                self._refuse(node, call, name, left, fits)
            return
        if arguments is not None:
            left = self._most_special(left, arguments)
        suffix: str | None = self._suffix(left[0])
        if not self._have_one_suffix(left):
            suffix = self._shared_suffix(left, fits)
            if suffix is None:
                if self.spaces.types.is_unused(call):
                    return
                self._refuse(node, call, name, left, fits)
        if name == CALL_OPERATOR:
            is_known = self._is_of_class(call) or is_by_name(self.source, call)
            self._found += tagged(self.source, call, suffix, is_known)
        else:
            self._insert(node.end_byte, suffix)

    def _is_of_class(self, call) -> bool:
        """Returns true if an object is called of a class that the source tells."""
        return self.calls.meaning(call).member is None

    def _without_strangers(self, call, functions: list[Function]) -> list[Function]:
        """Returns the functions without those of other namespaces whose parameters are numbers: only an object among the
        elements of a pack brings the functions of its namespace."""
        reached = self.lookup.reached_by_name(functions, self.calls.place_of(call))
        return [
            f
            for f in functions
            if f in reached or not all(is_builtin(end_of(t)) for t in self._types(f))
        ]

    def _have_one_suffix(self, functions: list[Function]) -> bool:
        """Returns true if it does not matter which of the names of functions is called."""
        return len({*map(self._suffix, functions)}) == 1 or self._are_the_same(functions)

    def _shared_suffix(self, functions: list[Function], fits: dict) -> str | None:
        """Returns the suffix of a name for functions of which address spaces tell no more, and something else does: the class,
        in `X::template f<T>(p)`, or the other parameters of functions that all take the arguments. Each gets a copy of
        that name. Returns None if address spaces may tell them apart."""
        of_classes: dict[tuple | None, list[Function]] = {}
        for function in functions:
            if not function.is_specialisation:
                owner = self.lookup.owner(function)
                of_class = None if owner is None else (owner, self._class(function))
                of_classes.setdefault(of_class, []).append(function)
        for of_class in of_classes.values():
            if self._have_one_suffix(of_class):
                continue
            keys = {self.keys.of_function(f) for f in of_class}
            if len(keys) < len(of_class) or any(fits[f] != YES for f in of_class):
                return None
        copied = tuple(
            f
            for of_class in of_classes.values()
            for f in (of_class[:1] if self._are_the_same(of_class) else of_class)
        )
        if copied not in self._shared:
            suffix = f"_in_any_{len(self._shared)}"
            while functions[0].name + suffix in self.source.identifiers:
                suffix += "_"
            self._shared[copied] = suffix
        return self._shared[copied]

    def _with_specialisations(self, functions: tuple[Function, ...]) -> list[Function]:
        family = self.families[functions[0].name]
        return [
            *functions,
            *(
                f
                for f in family
                if f.is_specialisation
                and any(
                    self._scope(f) == self._scope(primary)
                    and self._suffix(f) == self._suffix(primary)
                    and self.lookup.taking([primary], self.lookup.count(f))
                    for primary in functions
                )
            ),
        ]

    def copies(self, insertions: list[Insertion]) -> list[Insertion]:
        """Returns the copies of functions by other names, with the insertions that are made in what is copied."""
        found = []
        for functions, suffix in self._shared.items():
            for function in self._with_specialisations(functions):
                found.append(self._copy(function, suffix, insertions))
            for end, text, meant in self._usings:
                if not {*functions}.isdisjoint(meant):
                    found.append(Insertion(end, f" {text}{suffix};"))
        return found

    def _copy(self, function: Function, suffix: str, insertions: list[Insertion]) -> Insertion:
        start, end = function.node.start_byte, function.node.end_byte
        renamed = self._renamed(function, suffix)
        at = renamed[0].offset
        pieces, position = [], start
        inside = [i for i in insertions if start < i.offset < end and i.offset != at]
        for insertion in sorted([*inside, *renamed], key=lambda i: i.offset):
            pieces += [self.source.text[position : insertion.offset], insertion.text]
            position = insertion.offset
        text = "".join([*pieces, self.source.text[position:end]])
        # In one line, without line markers and pragmas.
        lines = re.sub(r"(?m)^[ \t]*#.*$", "", text).split("\n")
        return Insertion(end, " " + " ".join(line.strip() for line in lines))

    def _keep_declared(self, node, named: list[Function]) -> None:
        """Gives a call with template arguments that no function takes, which is no error in a template that nothing
        instantiates, a name that is declared."""
        suffixes = [*map(self._suffix, named)]
        if node.parent.type == "template_function" and suffixes and all(suffixes):
            self._insert(node.end_byte, suffixes[0])

    def _declared_beside(self, node, name: str) -> list[Function]:
        """Returns the functions of a name, with any number of parameters, that are members of the class whose member a name
        stands in, or of no class for a name in a template of none."""
        around = self.calls.function_around(node)
        owner = None if around is None else self.lookup.owner(around)
        if owner is None and (around is None or not around.template_headers):
            return []
        return [f for f in self.families[name] if self.lookup.owner(f) == owner]

    def _most_special(self, functions: list[Function], arguments: list) -> list[Function]:
        """Returns the functions that name an address space, if they take a call as well as templates that take
        anything."""
        special = [f for f in functions if self._suffix(f)]
        if not special or len(special) == len(functions):
            return functions
        general = [self._types(f) for f in functions if f not in special]
        for function in special:
            for index, (wanted, argument) in enumerate(
                zip(self._types(function), arguments, strict=False)
            ):
                if wanted.kind not in ("pointer", "reference"):
                    if any(types[index] != wanted for types in general):
                        return functions
                    continue
                actual = self.spaces.type_of(argument)
                if actual is None:
                    return functions
                if wanted.kind == "pointer":
                    actual = decayed(actual).target
                target = wanted.target
                if actual is None or target.is_const != actual.is_const:
                    return functions
                plain = target.name == actual.name or self._is_parameter(function, target.name)
                if target.kind != actual.kind or not plain:
                    return functions
        return special

    def _is_parameter(self, function: Function, name: str) -> bool:
        return any(
            re.search(rf"\b{re.escape(name)}\b", self.source.masked_text(header))
            for header in function.template_headers
        )

    def _are_the_same(self, functions: list[Function]) -> bool:
        """Returns true if functions are the same but for address spaces, on which nothing depends that they call."""
        if any(self._common_body(functions[0], f) is None for f in functions[1:]):
            return False
        return len(functions) == 1 or self._names.isdisjoint(self._mentioned(functions[0]))

    def _refuse(self, node, call, name: str, left: list[Function], fits: dict) -> None:
        candidates = " and ".join(dict.fromkeys(self.keys.signature(f) for f in left))
        for argument in arguments_of(call) or ():
            kinds = {tuple(spaces_named(t)) for t in map(self._type_at(call, argument), left) if t}
            actual = self.spaces.type_of(argument)
            if len(kinds) > 1 and (actual is None or actual.is_open):
                what = " ".join(self.source.node_text(argument).split())
                raise ProgramError(
                    f"which overload of {name} this call means depends on the address space of "
                    f"{what}, which cannot be inferred here: {candidates}",
                    argument.start_byte,
                )
        raise ProgramError(
            f"which overload of {name} this call means cannot be told from the address spaces of its "
            f"arguments: {candidates}",
            node.start_byte,
        )

    def _type_at(self, call, argument):
        index = arguments_of(call).index(argument)

        def type_of(function: Function) -> Type | None:
            types = self._types(function)
            return types[index] if index < len(types) else None

        return type_of


def _takes_template_arguments(function: Function, kinds: list[bool | None]) -> bool:
    """Returns true if a function's template may have arguments of these kinds: true for a type, false for a value."""
    if not function.template_headers:
        return not kinds
    for parameter in template_parameters(function.template_headers[-1]):
        if not kinds or parameter.node.type.startswith("variadic"):
            return True
        kind, *kinds = kinds
        is_value = parameter.node.type.endswith("parameter_declaration") and not parameter.is_type
        if (kind is True and is_value) or (kind is False and parameter.is_type):
            return False
    return not kinds


def _without_const(text: str) -> str:
    return "".join(re.sub(r"\bconst\b", "", text).split())


def _has_no_name(function: Function, lookup) -> bool:
    """Returns true for an operator, a conversion, a constructor or a destructor."""
    return function.name != CALL_OPERATOR and (
        function.is_conversion
        or _OF_NO_NAME.match(function.name) is not None
        or lookup.owner(function) == function.name
    )
