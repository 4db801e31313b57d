"""The call graph: the functions that a kernel or a function may reach, and what follows for how it may be run.

Names are resolved by scope (scopes.py, lookup.py). A kernel reaches members of only those classes that it, or something
it reaches, mentions. Properties of a function, whoever calls it, count the members of all classes.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Callable, Collection, Container, Iterable

from ..source.vocabulary import (
    BARRIER,
    SYNCHRONISING,
    TENSOR_FUNCTIONS,
    TENSOR_METHODS,
    is_simdgroup_name,
)
from .lookup import (
    CALL_OPERATOR,
    CONSTRUCTOR,
    CONVERSION,
    OF_RANGES,
    Lookup,
    Meaning,
    Member,
    Place,
)
from .memory_order import MemoryOrder
from .private_memory import OF_THE_GRID, OF_THE_GROUP, has_arrays, has_computed_accesses
from .program import ClassScope, Function, Instance, Program, name_node, name_of
from .scopes import Declaration, FunctionScopes

_CALLS = """
(call_expression) @call
[(field_identifier) (operator_name)] @name
"""
_OPERATORS = """
(_ operator: _ @operator)
(subscript_expression) @subscript
(comma_expression) @comma
(for_range_loop) @range
"""
_IMPLICIT = (CONSTRUCTOR, CONVERSION, "operator=")  # and destructors
# Nodes that hold declarations of functions, classes and variables at namespace or class scope.
_ROOMS = {"translation_unit", "declaration_list", "field_declaration_list"}
_WORD = re.compile(r"[A-Za-z_]\w*")


class _Part:
    """A node of the call graph: a function, class, variable or alias of the program, or a lambda, with what it runs and
    mentions once it is read.

    item: a Function, a ClassScope or a node. runs: other parts. members: member functions called on objects whose class
    the source does not tell. takes: functions that it mentions without calling. has_operation: true if its own code has
    a barrier, a simdgroup operation or a simdgroup_matrix; has_barrier: a threadgroup_barrier; has_simd_operation: an
    operation or a barrier of a simdgroup.
    """

    def __init__(self, graph: CallGraph, item):
        self.item = item
        self.runs: list[_Part] = []
        self.members: set[Member] = set()
        self.takes: set[Function] = set()
        self.has_operation = False
        self.has_barrier = False
        self.has_simd_operation = False
        self._graph = graph
        self._place: Place | None = None
        self._computes: dict[frozenset[str], bool] = {}

    def read(self) -> _Part:
        if self._place is None:
            place, nodes = self._graph.extent(self.item)
            for node in nodes:
                self.read_nodes([node], self._graph.scopes(node), place)
            self.runs += map(self._graph.part, self._graph.implicit(self.item))
        return self

    def read_nodes(self, nodes: list, scopes: FunctionScopes, place: Place) -> None:
        self._place = place
        for node in nodes:
            self._read(node, scopes)

    def computes_addresses(self, spaces: frozenset[str]) -> bool:
        """Returns true if it may access private memory at computed addresses (see private_memory.py)."""
        if spaces not in self._computes:
            graph = self._graph
            nodes = graph.extent(self.item)[1]
            if isinstance(self.item, Function):
                self._computes[spaces] = has_computed_accesses(
                    graph.source, graph.scopes(*nodes), graph.takes_reference, spaces
                )
            else:
                self._computes[spaces] = isinstance(self.item, ClassScope) and any(
                    has_arrays(graph.source, node) for node in nodes
                )
        return self._computes[spaces]

    @functools.cached_property
    def depends_on_order(self) -> bool:
        """Returns true if the order in which it accesses shared memory matters."""
        return self._order is not None and self._order.matters()

    @functools.cached_property
    def mixes_buffers(self) -> bool:
        """True if that order matters when two of its pointers to device memory alias."""
        return self._order is not None and self._order.matters_between_buffers()

    @functools.cached_property
    def _order(self) -> MemoryOrder | None:
        if not isinstance(self.item, Function):
            return None
        nodes = self._graph.extent(self.item)[1]
        return self._graph.memory_order(nodes, self._graph.scopes(*nodes))

    def _read(self, node, scopes: FunctionScopes) -> None:
        graph = self._graph
        captures = graph.source.captures(_CALLS, node)
        called = set()
        for call in captures.get("call", ()):
            meaning = graph.lookup.call(call, scopes, self._place)
            self.runs += map(graph.part, meaning.functions)
            called_lambda = graph.lambda_called(call, scopes)
            if called_lambda is not None:
                self.runs.append(graph.part(called_lambda))
            if graph.is_tensor_operation(call, meaning.functions):
                self.has_operation = True
                self.has_simd_operation |= graph.tensors_meet
            if meaning.member is not None:
                self.members.add(meaning.member)
            called.add(name_node(call.child_by_field_name("function")).start_byte)
        for name in scopes.free:
            if node.start_byte <= name.start_byte < node.end_byte:
                self._mention(name, name.start_byte in called)
        for name in captures.get("name", ()):
            # Otherwise a data member, or a member function that is called.
            if name.start_byte not in called and (
                name.type == "operator_name" or graph.has_template_arguments(name)
            ):
                self._take(name)
        if graph.lookup.operators:
            self._use_operators(node)

    def _mention(self, node, is_called: bool) -> None:
        graph = self._graph
        name = graph.source.masked_text(node)
        if name in graph.types_and_variables:
            self.runs += map(graph.part, graph.types_and_variables[name])
        if not is_called and name in graph.lookup.functions:
            self._take(node)
        if graph.is_operation(name, self._place):
            self.has_operation = True
            self.has_barrier |= name == BARRIER
            self.has_simd_operation |= name in SYNCHRONISING and name != BARRIER

    def _take(self, node) -> None:
        """Records a function that is mentioned and not called: any call of something unknown may call it."""
        graph = self._graph
        name = "".join(graph.source.masked_text(node).split())
        if name not in graph.lookup.functions or node.start_byte in graph.declaring:
            return
        if graph.lookup.field(self._place, name) is None or graph.has_template_arguments(node):
            functions = graph.lookup.named(name)
            # The name of a constructor is that of its class.
            self.takes.update(f for f in functions if graph.lookup.owner(f) != f.name)
            self.runs += map(graph.part, functions)

    def _use_operators(self, node) -> None:
        graph = self._graph
        captures = graph.source.captures(_OPERATORS, node)
        used = {f"operator{graph.source.masked_text(o)}" for o in captures.get("operator", ())}
        if "subscript" in captures:
            used.add("operator[]")
        if "comma" in captures:
            used.add("operator,")
        if "range" in captures:
            used.update(OF_RANGES)
        for name in used & graph.lookup.operators:
            self.members.add(Member(name))
            self.runs += map(graph.part, graph.lookup.free_operators.get(name, ()))


class CallGraph:
    """The call graph of a program. Functions are read on demand."""

    def __init__(self, program: Program, tensors_meet: bool = True):
        """tensors_meet: true if operations on tensors count as simdgroup operations of divergent lanes."""
        self.program = program
        self.tensors_meet = tensors_meet
        self.source = program.source
        self.lookup = program.kept(Lookup)
        self._parts: dict[object, _Part] = {}
        self._scopes = program.kept(_scopes)
        self._reached: dict[tuple, set[_Part]] = {}
        self._any: dict[Member, list[_Part]] = {}

    # ---- questions about kernels -----------------------------------------------------------------

    def synchronises(self, instance: Instance) -> bool:
        """Returns true if threads of this kernel may synchronise, or share threadgroup memory, during the launch."""
        kernel = instance.kernel
        if kernel.threadgroup_variables or any(p.kind == "threadgroup" for p in kernel.parameters):
            return True
        return any(part.has_operation for part in self._reached_by(instance))

    def depends_on_order(self, instance: Instance) -> bool:
        """Returns true if a thread of this kernel may access private memory at computed addresses, or read back what it
        has written to shared memory.

        A compiler that is told that iterations are independent would let vector lanes share such memory, and mix up the
        order. Nothing is known about writes through a tensor.
        """
        return self.program.has_tensors or any(
            part.computes_addresses(OF_THE_GRID) or part.depends_on_order
            for part in self._reached_by(instance)
        )

    def nodes_compute_addresses(
        self, nodes: list, is_harmless: Callable[[Declaration | None], bool]
    ) -> bool:
        """Returns true if nodes of a function may access a thread's private memory at computed addresses while the
        threads of a group run (see private_memory.has_computed_accesses)."""
        scopes = self._around(nodes[0])[0]
        return any(
            has_computed_accesses(
                self.source, scopes, self.takes_reference, OF_THE_GROUP, node, is_harmless
            )
            for node in nodes
        ) or any(other.computes_addresses(OF_THE_GROUP) for other in self._run_by(nodes))

    def nodes_depend_on_order(self, nodes: list) -> bool:
        """Returns true if the order in which nodes of a function access shared memory may matter, whichever buffers
        alias."""
        order = self.memory_order(nodes, self._around(nodes[0])[0])
        return (
            order.matters()
            or order.matters_between_buffers()
            or any(other.depends_on_order or other.mixes_buffers for other in self._run_by(nodes))
        )

    def mixes_buffers(self, instance: Instance) -> bool:
        """Returns true if aliasing buffers matter to a thread of this kernel: if it may access one buffer after it has
        written to another."""
        return any(part.mixes_buffers for part in self._reached_by(instance))

    def memory_order(self, nodes: list, scopes: FunctionScopes) -> MemoryOrder:
        return MemoryOrder(self.source, scopes, self.takes_reference, nodes)

    def _run_by(self, nodes: list) -> set[_Part]:
        """Returns the parts that nodes of a function run, without those that synchronise: these do not run in a
        work-item loop."""
        scopes, place = self._around(nodes[0])
        part = _Part(self, nodes[0])
        part.read_nodes(nodes, scopes, place)
        return self._closure([part], self.lookup.members) - self._synchronising - {part}

    # ---- questions about functions and calls -----------------------------------------------------

    def callees(self, call) -> list[Function]:
        """Returns the functions of the program, with a body, that a call_expression may call: none for the library's,
        and all functions of a name where the source does not say which."""
        items = (part.item for part in self._parts_called(call))
        return [i for i in items if isinstance(i, Function) and i.body is not None]

    def called(self, call) -> list:
        """Returns what a call_expression may call: the functions of callees(), and the nodes of lambdas."""
        items = (part.item for part in self._parts_called(call))
        return [
            i
            for i in items
            if (i.body is not None if isinstance(i, Function) else i.type == "lambda_expression")
        ]

    def meaning(self, call) -> Meaning:
        """Returns what a call_expression may mean: functions of the program, and a member of an unknown class."""
        return self.lookup.call(call, *self._around(call))

    def functions_called(self, call) -> list[Function] | None:
        """Returns the functions of the program that a call_expression may call, with or without a body; None if it may
        also call something else that is not known, a lambda for example."""
        meaning = self.meaning(call)
        found = [*meaning.functions]
        if meaning.member is not None:
            found += [
                f
                for f in self.lookup.named(meaning.member.name, meaning.member.count)
                if f not in found and self.lookup.owner(f) is not None
            ]
            if not found and meaning.member.name != CONSTRUCTOR:
                return None
        return found

    def function_of(self, definition) -> Function | None:
        """Returns the function of a function_definition."""
        body = definition.child_by_field_name("body")
        return None if body is None else self._by_body.get(body.start_byte)

    def place_of(self, node) -> Place:
        """Returns the place of the function around a node."""
        return self._around(node)[1]

    def function_around(self, node) -> Function | None:
        """Returns the function whose definition a node is in; None outside of functions."""
        return self._plain_around(node) or self.function_of(_item_around(node, ()))

    def _plain_around(self, node) -> Function | None:
        """Returns the function in whose body a node is, if that declares no classes; else None. A parser's node finds its
        parent from the root, so that the way up takes long in deep trees."""
        start = node.start_byte
        # A body that begins at the node is not around it.
        at = bisect.bisect_left(self._plain_starts, start) - 1
        if at < 0:
            return None
        end, function = self._plain_bodies[at]
        return function if node.end_byte < end else None

    @functools.cached_property
    def _plain_starts(self) -> list[int]:
        return [function.body.start_byte for _, function in self._plain_bodies]

    @functools.cached_property
    def _plain_bodies(self) -> list[tuple[int, Function]]:
        """(end, function) of the bodies of functions without definitions of functions and classes."""
        query = "[(function_definition) (field_declaration_list) (declaration_list)] @n"
        inside = [n.start_byte for n in self.source.find(query)]
        found = []
        for start, function in sorted(self._by_body.items(), key=lambda item: item[0]):
            end = function.body.end_byte
            if bisect.bisect_right(inside, start) == bisect.bisect_left(inside, end):
                found.append((end, function))
        return found

    def function_synchronises(self, function: Function) -> bool:
        """Returns true if a function may reach a barrier, a simdgroup operation or a simdgroup_matrix, whoever calls
        it."""
        return self.part(function) in self._synchronising

    def call_synchronises(self, call) -> bool:
        """Returns true if a call_expression itself, apart from its arguments, may reach any of these."""
        return (
            self.is_operation_call(call)
            or self.is_tensor_operation(call)
            or not self._synchronising.isdisjoint(self._parts_called(call))
        )

    def is_operation_call(self, call) -> bool:
        """Returns true if a call_expression names a barrier or another operation that involves other threads."""
        scopes, place = self._around(call)
        name = name_node(call.child_by_field_name("function"))
        return (
            name.type == "identifier"
            and scopes.declaration_of(name) is None
            and self.is_operation(self.source.masked_text(name), place)
        )

    def is_tensor_operation(self, call, functions: Collection[Function] | None = None) -> bool:
        """Returns true if a call_expression may be an operation on tensors that involves other threads. functions: the
        program's functions that it may call, if they are known already."""
        if not self.program.has_tensors:
            return False
        callee = call.child_by_field_name("function")
        name = self.source.masked_text(name_node(callee))
        if callee.type != "field_expression":
            return name in TENSOR_FUNCTIONS and name not in self.lookup.functions
        if name not in TENSOR_METHODS:
            return False
        least, most = TENSOR_METHODS[name]
        low, high = self.lookup.arguments(call.child_by_field_name("arguments"))
        if high < least or low > most:
            return False
        if functions is None:
            functions = self.lookup.call(call, *self._around(call)).functions
        return not functions

    def function_has_simd_operation(self, function: Function) -> bool:
        """Returns true if a function may reach an operation or barrier of a simdgroup, whoever calls it."""
        return self.part(function) in self._with_simd_operations

    def call_has_simd_operation(self, call) -> bool:
        """Returns true if the callee of a call_expression may reach an operation or barrier of a simdgroup."""
        return (
            self.tensors_meet and self.is_tensor_operation(call)
        ) or not self._with_simd_operations.isdisjoint(self._parts_called(call))

    def surely_has_barrier(self, call) -> bool:
        """Returns true if a call_expression is a threadgroup_barrier, or reaches one whatever the classes are that it
        does not tell."""
        if self.is_operation_call(call):
            name = name_node(call.child_by_field_name("function"))
            return self.source.masked_text(name) == BARRIER
        called = self.called(call)
        return bool(called) and all(self.part(f) in self._with_barriers for f in called)

    def lambda_synchronises(self, node) -> bool:
        """Returns true if a lambda_expression synchronises, as function_synchronises() does."""
        return self.part(node) in self._synchronising

    @functools.cached_property
    def simd_operators(self) -> frozenset[str]:
        """Operators (`operator+` and the like) that may reach an operation or barrier of a simdgroup."""
        return frozenset(
            name
            for name in (*self.lookup.operators, "operator=")
            if self.name_has_simd_operation(name)
        )

    def name_has_simd_operation(self, name: str) -> bool:
        """Returns true if a function of that name may reach an operation or barrier of a simdgroup."""
        return any(map(self.function_has_simd_operation, self.lookup.functions.get(name, ())))

    @functools.cached_property
    def classes_with_simd_constructors(self) -> frozenset[str]:
        """Names of the classes with a constructor that may reach an operation or barrier of a simdgroup."""
        constructor = Member(CONSTRUCTOR)
        return frozenset(
            name
            for name in self.lookup.members
            if any(map(self.function_has_simd_operation, self.lookup.members_of(name, constructor)))
        )

    def class_named(self, type_node) -> str | None:
        """Returns the class of the program that a type node in a function names, if that is certain."""
        if type_node is None:
            return None
        return self.lookup.class_named(type_node, self.scopes_around(type_node))

    def reaches(self, instance: Instance, function: Function) -> bool:
        """Returns true if a kernel may reach a function."""
        return self.part(function) in self._reached_by(instance)

    def reached_by(self, instance: Instance) -> set:
        """Returns the functions, classes, variables and aliases that a kernel may reach or name, itself included."""
        return {part.item for part in self._reached_by(instance)}

    def reached_from(self, item) -> set:
        """Returns the same for a function, a class, or the declaration of a variable or alias."""
        return {part.item for part in self._closure([self.part(item)])}

    def has_operation(self, function: Function) -> bool:
        """Returns true if a function that no kernel need reach may come to a barrier or a simdgroup operation."""
        return any(part.has_operation for part in self._closure([self.part(function)]))

    def takes_reference(self, call, index: int) -> bool:
        """Returns true if a called function of the program may write argument number `index` through a reference."""
        return any(self.lookup.takes_reference(f, index) for f in self.callees(call))

    def scopes_around(self, node) -> FunctionScopes:
        """Returns the scopes of the function around a node."""
        return self._around(node)[0]

    # ---- what a kernel comes to ------------------------------------------------------------------

    def _reached_by(self, instance: Instance) -> set[_Part]:
        """Returns the kernel and what it may reach: members of the classes that are mentioned on the way, and of no
        others."""
        words = set(_WORD.findall(self.source.masked, *instance.expression))
        words = {w for w in words if w in self.types_and_variables or w in self.lookup.functions}
        parameters = instance.kernel.function.declarator.child_by_field_name("parameters")
        if instance.signature is not None and instance.signature != parameters:
            types = _WORD.findall(self.source.masked_text(instance.signature))
            words.update(w for w in types if w in self.types_and_variables)
        name = instance.kernel.function.name
        key = (name, *sorted(words - {name}))
        if key not in self._reached:
            roots = [*self.lookup.functions[name]]
            for word in words:
                roots += self.types_and_variables.get(word, ())
                roots += self.lookup.functions.get(word, ())
            self._reached[key] = self._closure(map(self.part, roots))
        return self._reached[key]

    def _closure(self, parts: Iterable[_Part], classes: Iterable[str] = ()) -> set[_Part]:
        """Returns the parts and everything that they may reach. classes: classes whose members they may call, in
        addition to those that they mention."""
        waiting = [*parts]
        reached: set[_Part] = set()
        members: set[Member] = set()
        classes = set(classes)
        while waiting:
            part = waiting.pop()
            if part in reached:
                continue
            reached.add(part)
            part.read()
            waiting += part.runs
            if isinstance(part.item, ClassScope):
                name = self.lookup.name_of(part.item)
                if name not in classes:
                    classes.add(name)
                    for member in members:
                        waiting += map(self.part, self.lookup.members_of(name, member))
            for member in part.members - members:
                members.add(member)
                for name in classes:
                    waiting += map(self.part, self.lookup.members_of(name, member))
        return reached

    # ---- what may come to an operation -----------------------------------------------------------

    @functools.cached_property
    def _synchronising(self) -> set[_Part]:
        return self._coming_to(lambda part: part.has_operation)

    @functools.cached_property
    def _with_barriers(self) -> set[_Part]:
        return self._coming_to(lambda part: part.has_barrier, with_members=False)

    @functools.cached_property
    def _with_simd_operations(self) -> set[_Part]:
        return self._coming_to(lambda part: part.has_simd_operation)

    @functools.cached_property
    def _all_parts(self) -> set[_Part]:
        """All parts that some kernel may reach, and lambdas; all of them read."""
        found: set[_Part] = set()
        for instance in self.program.instances:
            self._reached_by(instance)
        for reached in self._reached.values():
            found |= reached
        found |= self._closure(self.part(kernel.function) for kernel in self.program.kernels)
        return found | {self.part(x).read() for x in self.lookup.lambdas}

    def _coming_to(self, has: Callable[[_Part], bool], with_members: bool = True) -> set[_Part]:
        if not self.program.has_tensors and not any(
            map(is_simdgroup_name, self.source.identifiers)
        ):
            return set()
        found = {part for part in self._all_parts if has(part)}
        if not found:
            return found
        users: dict[_Part, list[_Part]] = {}
        for part in self._all_parts:
            for other in part.runs:
                users.setdefault(other, []).append(part)
            for member in part.members if with_members else ():
                for other in self._any_member(member):
                    users.setdefault(other, []).append(part)
        waiting = [*found]
        while waiting:
            new = set(users.get(waiting.pop(), ())) - found
            found |= new
            waiting += new
        return found

    @functools.cached_property
    def _taken(self) -> list[Function]:
        return [*{function: None for part in self._all_parts for function in part.takes}]

    def _any_member(self, member: Member) -> list[_Part]:
        """Returns the functions that a member function of an unknown class may be; for the call operator, also lambdas
        and function pointers."""
        if member not in self._any:
            items = [
                f for owner in self.lookup.members for f in self.lookup.members_of(owner, member)
            ]
            if member.name == CALL_OPERATOR:
                items += self.lookup.taking(self._taken, member.count)
                items += self.lookup.lambdas
            self._any[member] = [*map(self.part, items)]
        return self._any[member]

    def _parts_called(self, call) -> list[_Part]:
        scopes, place = self._around(call)
        meaning = self.lookup.call(call, scopes, place)
        found = [*map(self.part, meaning.functions)]
        if meaning.member is not None:
            found += self._any_member(meaning.member)
        called_lambda = self.lambda_called(call, scopes)
        if called_lambda is not None:
            found.append(self.part(called_lambda))
        return [*dict.fromkeys(found)]

    @staticmethod
    def lambda_called(call, scopes: FunctionScopes):
        """Returns the lambda_expression that a call_expression certainly calls, or None."""
        callee = call.child_by_field_name("function")
        while callee.type == "parenthesized_expression" and callee.named_child_count == 1:
            callee = callee.named_children[0]
        if callee.type == "identifier":
            declaration = scopes.declaration_of(callee)
            return None if declaration is None else declaration.lambda_expression
        return callee if callee.type == "lambda_expression" else None

    # ---- the program -----------------------------------------------------------------------------

    def part(self, item) -> _Part:
        """Returns the part of a function, class or lambda, or of the declaration of a variable or alias."""
        part = self._parts.get(item)
        if part is None:
            part = self._parts[item] = _Part(self, item)
        return part

    def scopes(self, node) -> FunctionScopes:
        """Returns the scopes of a function, or of a declaration outside of functions; for a lambda, those of the
        function around it."""
        if node.type == "lambda_expression":
            return self._around(node)[0]
        if node not in self._scopes:
            self._scopes[node] = FunctionScopes(self.source, node)
        return self._scopes[node]

    def extent(self, item) -> tuple[Place, list]:
        """Returns the place of a part (for name lookup), and the nodes that it consists of."""
        if isinstance(item, Function):
            return self.lookup.place(item), [item.node]
        if isinstance(item, ClassScope):  # what it says outside of functions
            path = (*(p.removeprefix("class ") for p in item.path if p), self.lookup.name_of(item))
            children = item.specifier.child_by_field_name("body").named_children
            nodes = [c for c in item.specifier.children if c.type == "base_class_clause"]
            nodes += [h for h in item.template_headers if h.named_children]
            return Place(path), [*nodes, *(c for c in children if not _is_defined_here(c))]
        if item.type == "lambda_expression":
            return self._around(item)[1], [item]
        while item.parent.type == "template_declaration":
            item = item.parent
        return Place((), False), [item]

    def implicit(self, item) -> list:
        """Returns the parts that come implicitly with a part: the functions that objects of a class run by themselves,
        and the class that `typedef struct { ... } name;` declares."""
        if isinstance(item, ClassScope):
            members = self.lookup.members.get(self.lookup.name_of(item), {})
            names = [n for n in members if n in _IMPLICIT or n.startswith("~")]
            return [function for name in names for function in members[name]]
        if isinstance(item, Function):
            return []
        return [s for s in self.program.classes if s.specifier == item.child_by_field_name("type")]

    def _around(self, node) -> tuple[FunctionScopes, Place]:
        """Returns the scopes and the place of the function around a node."""
        function = self._plain_around(node)
        if function is None:
            node = _item_around(node, _ROOMS)
            function = self.function_of(node)
        if function is None:
            return self.scopes(node), Place((), False)
        return self.scopes(function.node), self.lookup.place(function)

    @functools.cached_property
    def _by_body(self) -> dict[int, Function]:
        return {f.body.start_byte: f for f in self.program.functions if f.body is not None}

    @functools.cached_property
    def types_and_variables(self) -> dict[str, list]:
        """The meanings of names at namespace and class scope, except functions: classes, aliases, variables."""
        found: dict[str, list] = {}
        for declared in (self.lookup.classes, self.lookup.aliases, self.lookup.variables):
            for name, items in declared.items():
                found[name] = found.get(name, []) + items
        return found

    @functools.cached_property
    def declaring(self) -> set[int]:
        """Offsets of the names in declarations of functions."""
        names = [name_of(f.declarator) for f in self.program.functions]
        return {node.start_byte for name in names for node in (name, name_node(name))}

    def has_template_arguments(self, node) -> bool:
        """Returns true if `<` follows a name, in an expression that the parser may not have understood."""
        return self.source.masked.startswith("<", self.source.next_code(node.end_byte))

    def is_operation(self, name: str, place: Place) -> bool:
        """Returns true if a name that no function declares is an operation of Metal that involves other threads."""
        if not is_simdgroup_name(name) or self.lookup.field(place, name) is not None:
            return False
        return name in SYNCHRONISING or not (
            name in self.lookup.functions or name in self.types_and_variables
        )


def _scopes(program: Program) -> dict[object, FunctionScopes]:
    """Returns a table for the scopes of functions, as they are needed."""
    return {}


def _item_around(node, rooms: Container[str]):
    """Returns the function definition that a node is in; without one, the item of a node of one of the types `rooms` that
    it is in, or else the root."""
    while node.type != "function_definition" and node.parent is not None:
        if node.parent.type in rooms:
            break
        node = node.parent
    return node


def _is_defined_here(node) -> bool:
    """Returns true if a member of a class is a function with a body."""
    while node.type in ("template_declaration", "friend_declaration"):
        node = node.named_children[-1]
    return node.type == "function_definition"
