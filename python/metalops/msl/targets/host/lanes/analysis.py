"""Which kernels of the loop engine run as vector lanes, and which of their values are uniform: the same for threads that
are adjacent in x."""

from __future__ import annotations

import functools
import math

from ....analysis.calls import CallGraph
from ....analysis.program import Kernel, integer_value
from ....analysis.scopes import Declaration, FunctionScopes
from ....source.parse import Source
from ....source.tree import alternative_of, is_constexpr_if, statements_of, walk
from ....source.vocabulary import THREAD_ATTRIBUTES
from .accesses import Accesses
from .reasons import NoLanes

LANE = "thread_position_in_grid"
_NUMBERS = """bool char uchar short ushort int uint long ulong half float bfloat size_t int32_t uint32_t
    int64_t uint64_t"""
SCALARS = frozenset(
    [*_NUMBERS.split(), "unsigned", "unsigned int", "unsigned long", "unsigned char"]
)
_VECTORS = {f"{t}{n}" for t in SCALARS if t.isalpha() for n in (2, 3, 4)}
_PURE = SCALARS | {"min", "max", "clamp"}
# Functions of the library whose results are the same for numbers and for vectors of them, and that touch no memory.
_CALLED = (
    SCALARS
    | _VECTORS
    | set(
        """min max clamp abs fabs fma sqrt rsqrt floor ceil trunc rint round fract sign select mix saturate step dot
        length length_squared distance distance_squared cross normalize popcount clz ctz rotate reverse_bits mulhi
        mul24 mad24 mad_sat add_sat sub_sat absdiff isnan isinf isfinite any all as_type static_cast fmin fmax copysign
        metal vec""".split()
    )
)
_LONGEST = 4000  # characters
_SHORT = 64  # iterations of nested loops
_EXITS = {"return_statement", "break_statement", "continue_statement"}
_REFUSED = {
    "goto_statement": "goto",
    "labeled_statement": "goto",
    "lambda_expression": "a lambda",
    "switch_statement": "a switch",
    "for_range_loop": "a loop over a range",
    "while_statement": "a loop whose trip count is not known at its begin",
    "do_statement": "a loop whose trip count is not known at its begin",
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
        self._loops = [n for s in self.statements for n in walk(s) if n.type == "for_statement"]
        for loop in self._loops:
            self._check_structure(loop)
        self.accesses = Accesses(source, scopes, kernel)
        self.uniform = {key(d) for d in self._variables() if self._is_never_passed(d)}
        changed = True
        while changed:
            varying = {d.node.start_byte for d in self._variables() if not self._is_uniform(d)}
            left = {
                key(d)
                for d in self._variables()
                if key(d) in self.uniform and d.node.start_byte not in varying
            }
            changed, self.uniform = left != self.uniform, left
        for loop in self._loops:
            self._check_loop(loop)
        for written in self.accesses.written:
            if not self.grows(written):
                raise NoLanes("a store whose index does not grow by one from thread to thread")

    def text(self, node) -> str:
        return self.source.masked_text(node)

    def loops_in(self, node) -> bool:
        return any(n.type == "for_statement" for n in walk(node))

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
        while node.type == "parenthesized_expression" and node.named_child_count == 1:
            node = node.named_children[0]
        parameter = self.parameter(node)
        if parameter is not None:
            return parameter.attribute == LANE
        if node.type == "identifier":
            declaration = self.scopes.declaration_of(node)
            return (
                declaration is not None
                and declaration.kind == "variable"
                and not declaration.kinds
                and not declaration.definitions
                and not declaration.is_address_taken
                and declaration.initialiser is not None
                and self.text(declaration.type_node) in ("uint", "int", "ulong", "long", "size_t")
                and self.grows(declaration.initialiser)
            )
        if node.type == "field_expression":
            base = self.parameter(node.child_by_field_name("argument"))
            is_x = self.text(node.child_by_field_name("field")) == "x"
            return base is not None and base.attribute == LANE and is_x
        if node.type != "binary_expression":
            return False
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = self.text(node.child_by_field_name("operator"))
        if operator == "+" and self._is_sum_part(left) and self.grows(right):
            return True
        return operator in ("+", "-") and self.grows(left) and self._is_sum_part(right)

    def _is_sum_part(self, node) -> bool:
        """Returns true for what may be computed where the source does not: it reads no memory."""
        reads = ("subscript_expression", "->")
        return self.is_uniform(node) and not any(n.type in reads for n in walk(node))

    def _variables(self) -> list[Declaration]:
        return [d for d in self.scopes.declarations if d.kind == "variable"]

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
            if name not in _CALLED or self._calls.callees(call):
                raise NoLanes(f"the call of '{name}'")
        names: set[str] = set()
        for declaration in self._variables():
            is_counter = declaration.node.parent.type == "for_statement"
            if declaration.name in names or declaration.name in self.parameters:
                raise NoLanes(f"two variables named '{declaration.name}'")
            if declaration.kinds:
                raise NoLanes(f"'{declaration.name}', which is a pointer, reference or array")
            if "constexpr" in declaration.type.split() or "static" in declaration.type.split():
                raise NoLanes(f"'{declaration.name}', which is a constant")
            if not is_counter:
                names.add(declaration.name)
        counters = {d.name for d in self._variables() if d.node.parent.type == "for_statement"}
        if counters & names:
            raise NoLanes("a loop's counter with the name of another variable")
        if any(
            d.kind not in ("parameter", "variable", "type", "constant")
            for d in self.scopes.declarations
        ):
            raise NoLanes("a structured binding")

    def _called(self, call) -> str:
        function = call.child_by_field_name("function")
        if function.type == "template_function":
            function = function.child_by_field_name("name")
        text = "".join(self.text(function).split())
        return text.removeprefix("metal::").removeprefix("precise::")

    def _check_structure(self, loop) -> None:
        around = loop.parent
        while around != self.body:
            if around.type not in ("for_statement", "compound_statement"):
                raise NoLanes("a loop under a condition")
            around = around.parent

    def _guards(self) -> tuple[list, list]:
        """Returns the statements up to the last guard, and all statements without the guards."""
        guards, statements, last = [], [], 0
        for node in statements_of(self.body):
            guards.append(node)
            if self._is_guard(node):
                last = len(guards)
                continue
            statements.append(node)
            for n in walk(node):
                if n.type in _REFUSED:
                    raise NoLanes(_REFUSED[n.type])
                if n.type in _EXITS:
                    raise NoLanes("threads that leave a loop or the kernel before others")
                if n.type in ("identifier", "field_identifier") and "atomic" in self.text(n):
                    raise NoLanes("an atomic operation")
        if any(n.type != "declaration" and not self._is_guard(n) for n in guards[:last]):
            raise NoLanes("threads that return after a statement")
        effects = ("assignment_expression", "update_expression")
        if any(n.type in effects for guard in guards[:last] for n in walk(guard)):
            raise NoLanes("threads that return after an assignment")
        return guards[:last], statements

    def _is_guard(self, node) -> bool:
        if node.type != "if_statement" or alternative_of(node) is not None:
            return False
        inner = statements_of(node.child_by_field_name("consequence"))
        return len(inner) == 1 and inner[0].type == "return_statement"

    @functools.cached_property
    def is_short(self) -> bool:
        """True if all loops have so few iterations, whose number the source tells, that clang unrolls them."""
        return all(
            math.prod(map(self._iterations, [o for o in self._loops if inside(loop, o)])) <= _SHORT
            for loop in self._loops
        )

    def _iterations(self, loop) -> float:
        begin = [
            d.initialiser
            for d in self._variables()
            if d.node == loop.child_by_field_name("initializer")
        ]
        condition = loop.child_by_field_name("condition")
        end = (
            condition.child_by_field_name("right")
            if condition.type == "binary_expression"
            else None
        )
        numbers = [integer_value(self.text(n)) for n in (*begin, end) if n is not None]
        if len(numbers) != 2 or None in numbers:
            return math.inf
        return max(abs(numbers[1] - numbers[0]), 1)

    def _check_loop(self, loop) -> None:
        initializer = loop.child_by_field_name("initializer")
        condition, update = (loop.child_by_field_name(n) for n in ("condition", "update"))
        if initializer is None or condition is None or update is None:
            raise NoLanes("a for loop without one of its parts")
        declared = [d for d in self._variables() if d.node == initializer]
        counts = declared and all(key(d) in self.uniform for d in declared)
        if not counts or not self.is_uniform(condition):
            raise NoLanes("a loop whose trip count varies")
        changed = [d for d in declared for n in d.definitions if inside(n, update)]
        if update.type not in ("update_expression", "assignment_expression") or not changed:
            raise NoLanes("a for loop that does not count")


def key(declaration: Declaration) -> int:
    return declaration.identifier.start_byte
