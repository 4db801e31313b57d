"""Rules about Metal 4's tensors: names that a version of the language does not have, numbers of threads, and code that
assumes a layout of cooperative tensors, which differs between generations of GPUs and may change with any of them."""

from __future__ import annotations

import re

from ..analysis.program import integer_value, name_node
from ..analysis.restrictions import newer_names
from ..analysis.scopes import Declaration
from ..source import languages
from ..source.vocabulary import THREAD_ATTRIBUTES
from .checked import Checked, descendants
from .rules import rule

VERSION = rule(
    "tensor-version",
    "2.20",
    "Tensors need Metal 4.0, small formats and planes of scales Metal 4.1: in sources for earlier ones too they stand "
    "behind __HAVE_TENSOR__ and the other macros of the features.",
)
THREADS = rule(
    "tensor-threads",
    "2.20",
    "An operation of N simdgroups needs a threadgroup of 32 N threads, and the kernel allows as many.",
)
CAPACITY = rule(
    "cooperative-capacity",
    "2.20",
    "How many elements of a cooperative tensor a thread has is what get_capacity() says, not a number.",
    is_suspicion=True,
)
LAYOUT = rule(
    "cooperative-layout",
    "2.20",
    "Where an element of a cooperative tensor is in its tile is what get_multidimensional_index() says, and not "
    "computed from the thread and the slot.",
    is_suspicion=True,
)
CONVERSION = rule(
    "cooperative-conversion",
    "2.20",
    "A destination becomes an input only where is_compatible_as_left_input() or is_compatible_as_right_input() says so.",
    is_suspicion=True,
)

_COOPERATIVE = re.compile(r"\bget_\w*cooperative_tensor\b|\bcooperative_tensor(?:_\w+_t)?\b")
_CONVERTS = re.compile(r"get_(left|right)_input_cooperative_tensor$")
# Methods that return the position of an element, or read an element by its position.
_TELLING = {"get_multidimensional_index", "is_valid_element", "get", "map_iterator"}
_LANES = re.compile(r"\b__metal_get_thread_index_in_(?:simdgroup|threadgroup|quadgroup)\b")
_NO_LANE = ("simdgroup_index_in_threadgroup", "quadgroup_index_in_threadgroup")
_LANE, _SLOT = 1, 2


def check(checked: Checked) -> None:
    """Reports violations of the rules of this group."""
    program = checked.program
    for name, offset, first in newer_names(program, checked.language):
        checked.report(
            VERSION,
            offset,
            f"{name} needs Metal {languages.name_of(first)}; put it behind the macro of the feature, or check with "
            f"--language {languages.name_of(first)}",
        )
    if not program.has_tensors:
        return
    for kernel in program.kernels:
        _threads(checked, kernel)
    lanes = frozenset(
        f.name
        for f in program.functions
        if f.body is not None and _LANES.search(checked.source.masked_text(f.body))
    )
    parameters = {
        kernel.function.node.start_byte: {
            p.name
            for p in kernel.parameters
            if p.kind == "builtin"
            and p.attribute not in _NO_LANE
            and THREAD_ATTRIBUTES[p.attribute].differs_in_group
        }
        for kernel in program.kernels
    }
    for function in program.functions:
        if function.body is not None and checked.wants(function.node.start_byte):
            _Function(checked, function, parameters.get(function.node.start_byte, ()), lanes).run()


def _threads(checked: Checked, kernel) -> None:
    text = "1024" if kernel.max_threads is None else kernel.max_threads
    limit = integer_value(text.strip("() "))
    for node in descendants(kernel.function.body):
        if node.type not in ("template_type", "template_function"):
            continue
        if checked.text(node.child_by_field_name("name")) != "execution_simdgroups":
            continue
        number = integer_value(checked.text(node.child_by_field_name("arguments")).strip("<> "))
        if limit is not None and number is not None and 32 * number > limit:
            checked.report(
                THREADS,
                node,
                f"an operation of {number} simdgroups needs {32 * number} threads, and a threadgroup of this kernel has "
                f"{limit} at most",
            )


class _Function:
    """Follows how a function accesses the elements of cooperative tensors."""

    def __init__(self, checked: Checked, function, lane_parameters, lane_functions):
        self.checked = checked
        self.source = checked.source
        self.body = function.body
        self.scopes = checked.calls.scopes_around(function.body)
        self.lane_functions = lane_functions
        self.cooperative = {d for d in self.scopes.declarations if self._is_cooperative(d)}
        # Bits that say if a variable is computed from lanes, from slots, or from both.
        self.made_of: dict[Declaration, int] = {
            d: _LANE
            for d in self.scopes.declarations
            if d.kind == "parameter" and d.name in lane_parameters
        }

    def _is_cooperative(self, declaration: Declaration) -> bool:
        if declaration.kind not in ("variable", "parameter"):
            return False
        value = declaration.initialiser
        text = declaration.type + (" " + self.source.masked_text(value) if value else "")
        return _COOPERATIVE.search(text) is not None

    def run(self) -> None:
        self._conversions()
        if not self.cooperative:
            return
        slots = [
            index
            for node in descendants(self.body)
            if node.type == "subscript_expression" and self._is_tile(node)
            for index in self._indices(node)
        ]
        loops = set()
        for index in slots:
            self._capacity(index, loops)
        for name in (n for index in slots for n in descendants(index)):
            declaration = self._declaration(name)
            if declaration is not None:
                self.made_of[declaration] = self.made_of.get(declaration, 0) | _SLOT
        self._follow_variables()
        for node in descendants(self.body):
            self._address(node)

    # ---- nodes -----------------------------------------------------------------------------------

    def _declaration(self, node) -> Declaration | None:
        return self.scopes.declaration_of(node) if node.type == "identifier" else None

    def _is_tile(self, subscript) -> bool:
        return self._declaration(subscript.child_by_field_name("argument")) in self.cooperative

    @staticmethod
    def _indices(subscript) -> list:
        return subscript.child_by_field_name("indices").named_children

    # ---- capacities ------------------------------------------------------------------------------

    def _capacity(self, index, loops: set) -> None:
        """Reports element indices that assume a capacity. index: of an element. loops: the loops whose conditions have
        been checked."""
        if index.type == "number_literal":
            self.checked.report(
                CAPACITY,
                index,
                "a slot by its number; threads have get_capacity() elements, fewer on some GPUs, and "
                "is_valid_element() tells which there are",
            )
            return
        for name in filter(self._declaration, descendants(index)):
            declaration = self._declaration(name)
            loop = declaration.node.parent
            if loop.type != "for_statement" or loop.start_byte in loops:
                continue
            loops.add(loop.start_byte)
            condition = loop.child_by_field_name("condition")
            if condition is not None and condition.type == "binary_expression":
                sides = [condition.child_by_field_name(side) for side in ("left", "right")]
                limits = [s for s in sides if self._declaration(s) is not declaration]
                if len(limits) == 1 and self._is_constant(limits[0]):
                    self.checked.report(
                        CAPACITY,
                        condition,
                        f"{self.checked.text(limits[0])} elements of a cooperative tensor; a thread has get_capacity() of "
                        "them, which differs between GPUs",
                    )

    def _is_constant(self, node) -> bool:
        """Returns true if an expression consists of numbers and of constants that do not come from a capacity."""
        if node.type == "call_expression" or "get_capacity" in self.source.masked_text(node):
            return False
        for name in descendants(node):
            declaration = self._declaration(name)
            if declaration is None or declaration.kind == "constant":
                continue
            value = declaration.initialiser
            if declaration.kind != "variable" or value is None or not declaration.is_const:
                return False
            if not self._is_constant(value):
                return False
        return True

    # ---- coordinates -----------------------------------------------------------------------------

    def _follow_variables(self) -> None:
        for _ in range(8):
            before = dict(self.made_of)
            for declaration in self.scopes.declarations:
                if declaration.kind != "variable" or declaration in self.cooperative:
                    continue
                values = [n.child_by_field_name("right") for n in declaration.definitions]
                found = self.made_of.get(declaration, 0)
                for value in (declaration.initialiser, *values):
                    found |= self._made_of(value)
                if found:
                    self.made_of[declaration] = found
            if self.made_of == before:
                return

    def _made_of(self, node) -> int:
        if node is None:
            return 0
        if node.type == "identifier":
            return self.made_of.get(self.scopes.declaration_of(node), 0)
        if node.type in ("subscript_expression", "field_expression"):
            return self._made_of(node.child_by_field_name("argument"))
        found = 0
        if node.type == "call_expression":
            called = self.source.masked_text(name_node(node.child_by_field_name("function")))
            if called in _TELLING:
                return 0
            if called in self.lane_functions or _LANES.search(called):
                found = _LANE
            node = node.child_by_field_name("arguments")
        for child in node.named_children:
            found |= self._made_of(child)
        return found

    def _address(self, node) -> None:
        if node.type == "subscript_expression" and not self._is_tile(node):
            indices = self._indices(node)
        elif node.type == "pointer_expression" and node.children[0].type == "*":
            indices = [node.child_by_field_name("argument")]
        else:
            return
        found = 0
        for index in indices:
            if "get_capacity" in self.source.masked_text(index):
                return  # reserves that many elements for each thread, whatever the layout
            found |= self._made_of(index)
        if found == _LANE | _SLOT:
            self.checked.report(
                LAYOUT,
                node,
                "where an element of a cooperative tensor is, computed from the thread and the slot, differs between GPUs; "
                "ask get_multidimensional_index()",
            )

    # ---- conversions -----------------------------------------------------------------------------

    def _conversions(self) -> None:
        for call in self.source.find("(call_expression) @c", self.body):
            name = name_node(call.child_by_field_name("function"))
            match = _CONVERTS.match(self.source.masked_text(name))
            if match is None or not call.child_by_field_name("arguments").named_children:
                continue
            asked = f"is_compatible_as_{match[1]}_input"
            if asked not in self.source.masked_text(self.body):
                self.checked.report(
                    CONVERSION,
                    name,
                    f"not every GPU has the elements of a destination where those of an input are; ask {asked}(), and store "
                    "and load the tile where it says no",
                )
