"""Which kernels of the loop engine run as vector lanes, and which of their values are uniform: the same for threads that
are adjacent in x."""

from __future__ import annotations

import functools
import math

from ....analysis.calls import CallGraph
from ....analysis.program import Function, Kernel
from ....analysis.scopes import Declaration, FunctionScopes
from ....source.parse import Source
from ....source.tree import (
    LOOPS,
    alternative_of,
    is_constexpr_if,
    statements_of,
    walk,
    without_parentheses,
)
from ....source.vocabulary import THREAD_ATTRIBUTES
from .accesses import Accesses
from .reasons import NoLanes
from .rows import Rows

LANE = "thread_position_in_grid"
_NUMBERS = """bool char uchar short ushort int uint long ulong half float bfloat size_t int32_t uint32_t
    int64_t uint64_t"""
SCALARS = frozenset(
    [*_NUMBERS.split(), "unsigned", "unsigned int", "unsigned long", "unsigned char"]
)
VECTORS = {f"{t}{n}" for t in SCALARS if t.isalpha() for n in (2, 3, 4)}
_PURE = SCALARS | {"min", "max", "clamp"}
# Functions of the library whose results are the same for numbers and for vectors of them, and that touch no memory.
_CALLED = (
    SCALARS
    | VECTORS
    | set(
        """min max clamp abs fabs fma sqrt rsqrt floor ceil trunc rint round fract sign select mix saturate step dot
        length length_squared distance distance_squared cross normalize popcount clz ctz rotate reverse_bits mulhi
        mul24 mad24 mad_sat add_sat sub_sat absdiff isnan isinf isfinite any all as_type static_cast fmin fmax copysign
        exp exp2 exp10 log log2 log10 tanh metal vec __builtin_inff __builtin_nanf""".split()
    )
)
_LONGEST = 4000  # characters
_AROUND_LOOPS = {*LOOPS, "compound_statement", "if_statement", "else_clause"}
_REFUSED = {
    "goto_statement": "goto",
    "labeled_statement": "goto",
    "lambda_expression": "a lambda",
    "for_range_loop": "a loop over a range",
}
# Functions of the program with these have loops or access memory.
_NOT_PLAIN = {
    *LOOPS,
    *_REFUSED,
    "pointer_declarator",
    "abstract_pointer_declarator",
    "reference_declarator",
    "abstract_reference_declarator",
    "pointer_expression",
    "subscript_expression",
    "->",
}


def inside(node, outer) -> bool:
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


class Values:
    """The variables of a kernel, and the parts of its body: guards, and statements without them.

    uniform: the identifiers' offsets of the uniform variables. Raises NoLanes.
    """

    def __init__(self, source: Source, scopes: FunctionScopes, kernel: Kernel, calls: CallGraph):
        self.source = source
        self.scopes = scopes
        self.kernel = kernel
        self._calls = calls
        self.body = kernel.function.body
        self.parameters = {p.name: p for p in kernel.parameters}
        self._check()
        self.guards, self.statements = self._guards()
        self._loops = [n for s in self.statements for n in walk(s) if n.type in LOOPS]
        self.returns = any(n.type == "return_statement" for s in self.statements for n in walk(s))
        for loop in self._loops:
            self._check_structure(loop)
        self.accesses = Accesses(source, scopes, kernel)
        self.uniform = {key(d) for d in self.variables if self._is_never_passed(d)}
        changed = True
        while changed:
            varying = {d.node.start_byte for d in self.variables if not self._is_uniform(d)}
            left = {
                key(d)
                for d in self.variables
                if key(d) in self.uniform and d.node.start_byte not in varying
            }
            changed, self.uniform = left != self.uniform, left
        for loop in self._loops:
            self._check_loop(loop)
        self.rows = Rows(self)
        for name, indices in self.accesses.written.items():
            if not self.rows.have_own(indices):
                self._check_element(name, indices)

    def _check_element(self, name: str, indices: list) -> None:
        """Refuses a buffer that is written unless each thread has one element of it."""
        if len({"".join(self.text(i).split()) for i in indices}) != 1:
            raise NoLanes(f"'{name}', which is written and has several indices")
        for part in walk(indices[0]):
            declaration = self.scopes.declaration_of(part)
            if declaration is not None and declaration.kind == "variable":
                if declaration.definitions:
                    raise NoLanes(f"'{name}', which is written at several indices")
        if not self.grows(indices[0]):
            raise NoLanes("a store whose index does not grow by one from thread to thread")

    def text(self, node) -> str:
        return self.source.masked_text(node)

    def loops_in(self, node) -> bool:
        return any(n.type in LOOPS for n in walk(node))

    def leaves(self, node) -> bool:
        """Returns true if lanes may leave a statement for what does not follow it."""
        return _leaves(node, False, False)

    def has_stored(self, nodes: list) -> bool:
        """Returns true if a thread may have written to a buffer when it comes to statements."""
        first = min(node.start_byte for node in nodes)
        around = [o for o in self._loops if any(inside(n, o) for n in nodes)]
        return any(
            store.start_byte < first or any(inside(store, o) for o in around)
            for store in self.accesses.stores
        )

    def is_divergent(self, loop) -> bool:
        """Returns true if lanes may leave a loop before others."""
        condition = loop.child_by_field_name("condition")
        if condition is None or not self.counts(loop) or not self.is_uniform(condition):
            return True
        return _leaves(loop.child_by_field_name("body"), False, False)

    def counts(self, loop) -> bool:
        """Returns true if a loop's begin declares its counters, which are uniform."""
        if loop.type != "for_statement":
            return False
        initializer = loop.child_by_field_name("initializer")
        return initializer is not None and self.is_uniform_declaration(initializer)

    def is_uniform(self, node) -> bool:
        """Returns true if an expression has one value for adjacent threads, and no effect."""
        if node.type in ("assignment_expression", "update_expression", "lambda_expression"):
            return False
        if node.type == "call_expression":
            if self.text(node.child_by_field_name("function")) not in _PURE:
                return False
            return all(map(self.is_uniform, node.child_by_field_name("arguments").named_children))
        if node.type == "pointer_expression":
            return False
        if node.type == "subscript_expression" and not self._is_constant(
            node.child_by_field_name("argument")
        ):
            return False
        if node.type == "field_expression":
            argument = node.child_by_field_name("argument")
            base = self.parameter(argument)
            if base is not None and base.attribute == LANE:
                return self.text(node.child_by_field_name("field")) in ("y", "z")
            if node.child_by_field_name("operator").type == "->" and not self._is_constant(
                argument
            ):
                return False
            return self.is_uniform(argument)
        if node.type == "identifier":
            return self._is_uniform_name(node)
        return all(map(self.is_uniform, node.named_children))

    def parameter(self, node):
        """Returns the kernel's parameter that an expression consists of, or None."""
        declaration = self.scopes.declaration_of(node) if node.type == "identifier" else None
        if declaration is None or declaration.kind != "parameter":
            return None
        return self.parameters.get(declaration.name)

    def grows(self, node) -> bool:
        """Returns true if an index grows by one from thread to thread, unless it wraps."""
        return self.step(node) == 1

    def step(self, node) -> float | None:
        """Returns by how much an index grows from thread to thread, unless it wraps: 1, or nan if it is a number that is
        known when the kernel runs. None if it may grow in another way."""
        node = without_parentheses(node)
        parameter = self.parameter(node)
        if parameter is not None:
            return 1 if parameter.attribute == LANE else None
        if node.type == "identifier":
            declaration = self.scopes.declaration_of(node)
            is_never_changed = (
                declaration is not None
                and declaration.kind == "variable"
                and not declaration.kinds
                and not declaration.definitions
                and not declaration.is_address_taken
                and declaration.initialiser is not None
                and self.text(declaration.type_node) in ("uint", "int", "ulong", "long", "size_t")
            )
            return self.step(declaration.initialiser) if is_never_changed else None
        if node.type == "field_expression":
            base = self.parameter(node.child_by_field_name("argument"))
            is_x = self.text(node.child_by_field_name("field")) == "x"
            return 1 if base is not None and base.attribute == LANE and is_x else None
        if node.type != "binary_expression":
            return None
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = self.text(node.child_by_field_name("operator"))
        if operator in ("+", "*") and self.is_uniform_sum_part(left):
            left, right = right, left
        if operator not in ("+", "-", "*") or not self.is_uniform_sum_part(right):
            return None
        step = self.step(left)
        return math.nan if step is not None and operator == "*" else step

    def is_uniform_sum_part(self, node) -> bool:
        """Returns true for what may be computed where the source does not: it reads no memory."""
        reads = ("subscript_expression", "->")
        return self.is_uniform(node) and not any(n.type in reads for n in walk(node))

    @functools.cached_property
    def variables(self) -> list[Declaration]:
        return [d for d in self.scopes.declarations if d.kind == "variable"]

    def declared_by(self, node) -> list[Declaration]:
        return [d for d in self.variables if d.node == node]

    def is_uniform_declaration(self, node) -> bool:
        declared = self.declared_by(node) if node.type == "declaration" else []
        return bool(declared) and all(key(d) in self.uniform for d in declared)

    def _is_never_passed(self, declaration: Declaration) -> bool:
        return not (
            declaration.is_address_taken
            or declaration.is_reference
            or declaration.is_array
            or any(self._is_passed(u) for u in declaration.uses)
        )

    def _is_passed(self, use) -> bool:
        """Returns true if a called function may change a variable."""
        node = use
        while node.parent.type in ("parenthesized_expression", "field_expression"):
            node = node.parent
        arguments = node.parent
        if arguments.type != "argument_list" or arguments.parent.type != "call_expression":
            return node.type == "field_expression" and arguments.type == "call_expression"
        given = [a for a in arguments.named_children if a.type != "comment"]
        return self._calls.takes_reference(arguments.parent, given.index(node))

    def _is_uniform(self, declaration: Declaration) -> bool:
        if key(declaration) not in self.uniform:
            return False
        loop = declaration.node.parent
        for definition in declaration.definitions:
            update = loop.child_by_field_name("update") if loop.type == "for_statement" else None
            if update is None or not inside(definition, update):
                return False
            value = definition.child_by_field_name("right")
            if value is not None and not self.is_uniform(value):
                return False
        value = declaration.initialiser
        return value is not None and value.type != "argument_list" and self.is_uniform(value)

    def _is_uniform_name(self, node) -> bool:
        parameter = self.parameter(node)
        if parameter is not None:
            if parameter.kind == "builtin":
                return not THREAD_ATTRIBUTES[parameter.attribute].differs_in_group
            return parameter.is_pointer or "constant" in parameter.type.split()
        declaration = self.scopes.declaration_of(node)
        if declaration is None or declaration.kind in ("type", "constant"):
            return True
        return declaration.kind == "variable" and key(declaration) in self.uniform

    def _is_constant(self, node) -> bool:
        parameter = self.parameter(node)
        return parameter is not None and bool({"const", "constant"} & set(parameter.type.split()))

    # ---- which kernels -----------------------------------------------------------------------------

    def _check(self) -> None:
        if len(self.body.text) > _LONGEST:
            raise NoLanes("its length")
        if self._calls.lookup.operators:
            raise NoLanes("operators of the program's own")
        for parameter in self.kernel.parameters:
            if parameter.kind not in ("buffer", "builtin"):
                raise NoLanes(f"a {parameter.kind} argument")
            is_varying = (
                parameter.kind == "builtin"
                and THREAD_ATTRIBUTES[parameter.attribute].differs_in_group
            )
            if (is_varying and parameter.attribute != LANE) or not parameter.name:
                raise NoLanes(f"[[{parameter.attribute}]]")
        for declaration in self.scopes.declarations:
            if (
                declaration.kind == "parameter"
                and not declaration.is_pointer
                and not declaration.is_reference
                and (declaration.definitions or declaration.is_address_taken)
            ):
                raise NoLanes("a parameter that changes")
        if any(map(is_constexpr_if, self.source.find("(if_statement) @n", self.body))):
            raise NoLanes("if constexpr")
        for call in self.source.find("(call_expression) @n", self.body):
            name = self._called(call)
            functions = self._calls.callees(call)
            if not (all(map(self._is_plain, functions)) if functions else name in _CALLED):
                raise NoLanes(f"the call of '{name}'")
        for declaration in self.variables:
            if declaration.name in self.parameters:
                raise NoLanes(f"two variables named '{declaration.name}'")
            if declaration.kinds:
                raise NoLanes(f"'{declaration.name}', which is a pointer, reference or array")
            if "constexpr" in declaration.type.split() or "static" in declaration.type.split():
                raise NoLanes(f"'{declaration.name}', which is a constant")
        if any(
            d.kind not in ("parameter", "variable", "type", "constant")
            for d in self.scopes.declarations
        ):
            raise NoLanes("a structured binding")

    def _is_plain(self, function: Function, callers: tuple = ()) -> bool:
        """Returns true if a function of the program computes its result from numbers, without loops and memory."""
        parameters = function.declarator.child_by_field_name("parameters")
        kinds = {n.type for n in (*walk(parameters), *walk(function.body))}
        if function in callers or function.in_class or kinds & _NOT_PLAIN:
            return False
        for call in self.source.find("(call_expression) @n", function.body):
            functions = self._calls.callees(call)
            if functions:
                is_plain = all(self._is_plain(f, (*callers, function)) for f in functions)
            else:
                is_plain = self._called(call) in _CALLED
            if not is_plain:
                return False
        return True

    def _called(self, call) -> str:
        function = call.child_by_field_name("function")
        if function.type == "template_function":
            function = function.child_by_field_name("name")
        text = "".join(self.text(function).split())
        return text.removeprefix("metal::").removeprefix("precise::")

    def _check_structure(self, loop) -> None:
        around = loop.parent
        while around != self.body:
            if around.type not in _AROUND_LOOPS:
                raise NoLanes(f"a loop in a statement ({around.type})")
            around = around.parent

    def _guards(self) -> tuple[list, list]:
        """Returns the statements up to the last guard at the begin, and all statements without these guards."""
        statements = statements_of(self.body)
        for node in (n for s in statements for n in walk(s)):
            if node.type in _REFUSED:
                raise NoLanes(_REFUSED[node.type])
            if node.type in ("identifier", "field_identifier") and "atomic" in self.text(node):
                raise NoLanes("an atomic operation")
        last = 0
        effects = ("assignment_expression", "update_expression")
        for number, node in enumerate(statements):
            is_guard = self._is_guard(node)
            if not is_guard and node.type != "declaration":
                break
            if any(n.type in effects for n in walk(node)):
                break
            if is_guard:
                last = number + 1
        guards = statements[:last]
        return guards, [s for s in statements if s not in guards or not self._is_guard(s)]

    def _is_guard(self, node) -> bool:
        if node.type != "if_statement" or alternative_of(node) is not None:
            return False
        inner = statements_of(node.child_by_field_name("consequence"))
        return len(inner) == 1 and inner[0].type == "return_statement"

    def _check_loop(self, loop) -> None:
        condition = loop.child_by_field_name("condition")
        if condition is not None and any(n.type == "declaration" for n in walk(condition)):
            raise NoLanes("a condition that declares a variable")
        if loop.type != "for_statement":
            return
        initializer, update = (loop.child_by_field_name(n) for n in ("initializer", "update"))
        declared = [] if initializer is None else self.declared_by(initializer)
        if not self.counts(loop):
            return
        changed = [] if update is None else [d for d in declared for n in d.definitions]
        if not changed or update.type not in ("update_expression", "assignment_expression"):
            raise NoLanes("a for loop that does not count")


def key(declaration: Declaration) -> int:
    return declaration.identifier.start_byte


def _leaves(node, breaks: bool, continues: bool) -> bool:
    """breaks, continues: true if `break` and `continue` do not leave what is looked at."""
    if node.type == "return_statement":
        return True
    if node.type == "break_statement":
        return not breaks
    if node.type == "continue_statement":
        return not continues
    if node.type in LOOPS:
        breaks = continues = True
    elif node.type == "switch_statement":
        breaks = True
    return any(_leaves(child, breaks, continues) for child in node.named_children)
