"""Rewrites expressions whose meaning differs in C++: literals, names of the global namespace, swizzles, shifts, integer
division, conditional expressions of half and bfloat."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from ..analysis.spaces import spaces_of
from ..source.tree import inner_first, without_parentheses
from ..source.vocabulary import SYNCHRONISING
from . import names
from .conversions import Conversions

_SWIZZLE = re.compile(r"(?:\.|->)\s*([xyzw]{2,4}|[rgba]{1,4})\b(?!\s*\()")
_ARITHMETIC = re.compile(r"<<=?|>>=?|/=?|%=?")
# A decimal literal below 32, which every promoted integer can be shifted by.
_NARROW = re.compile(r"(?:[0-9]|[12][0-9]|3[01])[uUlL]*$")
# Arms of a conditional expression that are not of type half or bfloat: literals, strings, addresses.
_NEVER_SMALL = re.compile(
    r"[(\s]*(?:[-+~]?\s*(?:0[xX][\da-fA-F]+[uUlL]*|\d+[uUlL]*|\d*\.?\d*(?:[eE][-+]?\d+)?[fF]?)"
    r"|true|false|nullptr|\"[^\"]*\"|'[^']*'|&[^&].*)[)\s]*$",
    re.DOTALL,
)
# Numbers that are of one type if they have the same suffix, and a fraction or none.
_NUMBER = re.compile(
    r"[-+]?(?:\d{1,9}|(?P<fraction>(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?))(?P<suffix>[uUlLfFhH]*)$"
)
_INDEX = re.compile(r"\[ ?\d+[uU]? ?\]")
_LAMBDA = re.compile(r"\[[&=\w\s]*\]\s*\(")  # not allowed in decltype
_MANY_TYPES = 16  # in one conditional expression
_FUNCTIONS = {
    "<<": "shift_left",
    ">>": "shift_right",
    "/": "divide",
    "%": "remainder",
    "<<=": "assign_shift_left",
    ">>=": "assign_shift_right",
    "/=": "assign_divide",
    "%=": "assign_remainder",
}
_KEYWORDS_BEFORE_NAME = {
    "return", "case", "else", "typename", "const", "void", "static", "inline", "constexpr",
    "using", "new", "sizeof", "throw", "volatile", "extern", "typedef", "and", "or", "not",
    "goto", "do", "public", "private", "namespace", "friend", "operator", "class", "struct",
    "enum", "decltype", "alignof", "mutable", "unsigned", "signed",
}  # fmt: skip
_FLOATING_CALL = re.compile(
    r"(?:::\s*)?(?:metal\s*::\s*)?(?:(?:precise|fast)\s*::\s*)?"
    r"(?:float|half|exp2?|log(?:2|10)?|sqrt|rsqrt|sin|cos|tanh?"
    r"|static_cast\s*<\s*(?:float|half)\s*>)$"
)


class Expressions:
    def __init__(self, rewritten):
        self.rewritten = rewritten
        self.program = rewritten.program
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        self._floating: dict[int, bool] = {}  # what _is_floating() returned
        self._divisions: set[int] = set()  # where the assignments `x /= y` begin that are rewritten

    def run(self) -> None:
        self._literals()
        self._global_names()
        self._swizzles()
        self._arithmetic()
        self._types_of_variables()
        Conversions(self.rewritten, self._is_bit_field, self._divisions).run()
        self._conditional_arms()

    def _literals(self) -> None:
        for literal in self.source.literals:
            if literal.suffix == "f":
                continue
            if literal.suffix == "":
                self.edits.replace(literal.start, literal.end, literal.digits + "f")
                continue
            kind = "half" if literal.suffix == "h" else "bfloat"
            digits = literal.digits + ("f" if re.search(r"[.eEpP]", literal.digits) else "")
            self.edits.replace(literal.start, literal.end, f"{names.PROGRAM}::{kind}({digits})")

    def _global_names(self) -> None:
        """Rewrites `::x` as `::msl::x`."""
        masked = self.source.masked
        for match in re.finditer(r"::", masked):
            before = self.source.previous_code(match.start())
            c = masked[before] if before >= 0 else ";"
            if c.isalnum() or c == "_":
                word = re.search(r"\w+$", masked[max(0, before - 40) : before + 1])
                if word is None or word.group() not in _KEYWORDS_BEFORE_NAME:
                    continue
            elif c in ">)":
                leaf = self.source.leaf_at(match.start())
                parent = leaf.parent
                if (
                    parent is None
                    or parent.type != "qualified_identifier"
                    or parent.children[0] != leaf
                ):
                    continue
            self.edits.insert(match.start(), f" {names.PROGRAM}" if c in "<" else names.PROGRAM)

    def _swizzles(self) -> None:
        for match in _SWIZZLE.finditer(self.source.masked):
            name = match.group(1)
            if re.search(r"[xyzw]", name) and re.search(r"[rgba]", name):
                continue
            leaf = self.source.leaf_at(match.start(1))
            node = leaf.parent
            if node is None or node.type != "field_expression":
                continue
            argument = node.child_by_field_name("argument")
            operator = self.source.masked[match.start() : match.start() + 1]
            if argument is None or argument.type == "this":
                continue
            if name in self._bit_fields and self._is_member(argument, operator, name):
                continue
            assigned = self._is_assigned(node)
            self.rewritten.swizzles.add(name)
            accessor = f"{names.SUPPORT}::{'set' if assigned else 'get'}_{name}"
            if operator == "-":
                self.edits.wrap(argument.start_byte, argument.end_byte, f"{accessor}(*(", "))")
            else:
                self.edits.wrap(argument.start_byte, argument.end_byte, f"{accessor}(", ")")
            self.edits.erase(argument.end_byte, match.end())

    @functools.cached_property
    def _bit_fields(self) -> set[str]:
        """The names of bit-fields, to which no reference binds."""
        return {
            self.source.node_text(clause.prev_named_sibling)
            for clause in self.source.find("(bitfield_clause) @b")
            if clause.prev_named_sibling is not None
        }

    def _is_member(self, owner, operator: str, name: str) -> bool:
        """Returns true if an object is known to be of a class with a member of that name."""
        spaces = self.rewritten.program.kept(spaces_of)
        type_ = spaces.type_of(owner)
        if operator == "-" and type_ is not None:
            type_ = type_.target
        return type_ is not None and type_.kind == "value" and spaces.field(type_, name) is not None

    @staticmethod
    def _is_assigned(node) -> bool:
        parent = node.parent
        while parent is not None and parent.type == "parenthesized_expression":
            node, parent = parent, parent.parent
        if parent is None:
            return False
        if parent.type == "assignment_expression":
            return parent.child_by_field_name("left") == node
        return parent.type == "update_expression"

    def _arithmetic(self) -> None:
        """Rewrites shifts, whose counts are taken modulo the width, and integer division, which must not trap."""
        masked = self.source.masked
        for match in _ARITHMETIC.finditer(masked):
            operator = match.group()
            leaf = self.source.leaf_at(match.start())
            node = leaf.parent
            if node is None or leaf.type != operator or leaf.end_byte != match.end():
                continue
            if node.type not in ("binary_expression", "assignment_expression"):
                continue
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            if left is None or right is None or node.has_error:
                continue
            if self._is_plain_operand(right, operator) or self._is_floating(left):
                continue
            if right.type == "initializer_list" or self._in_preprocessor_like_place(node):
                continue
            function = f"{names.SUPPORT}::{_FUNCTIONS[operator]}"
            self.edits.wrap(node.start_byte, node.end_byte, f"{function}(", ")")
            self.edits.replace(match.start(), match.end(), ",")
            if operator == "/=":
                self._divisions.add(node.start_byte)

    def _is_plain_operand(self, node, operator: str) -> bool:
        """Returns true if the right operand needs no rewriting: a literal in range, or a floating value."""
        while node.type == "parenthesized_expression" and node.named_child_count == 1:
            node = node.named_children[0]
        text = self.source.masked_text(node)
        if node.type == "number_literal":
            return "/" in operator or "%" in operator or _NARROW.match(text) is not None
        return self._is_floating(node)

    def _is_floating(self, node) -> bool:
        if node.id not in self._floating:
            for inner in inner_first(node, ("binary_expression", "parenthesized_expression")):
                if inner.id not in self._floating:
                    self._floating[inner.id] = self._has_floating(inner)
        return self._floating[node.id]

    def _has_floating(self, node) -> bool:
        node = without_parentheses(node)
        if node.type == "number_literal":
            return bool(re.search(r"\.|^\d+[eE]", self.source.masked_text(node)))
        if node.type == "call_expression":
            function = self.source.masked_text(node.child_by_field_name("function"))
            return bool(_FLOATING_CALL.match(function))
        if node.type == "binary_expression":
            return (
                any(self._is_floating(node.child_by_field_name(side)) for side in ("left", "right"))
                and self.source.masked_text(node.child_by_field_name("operator")) in "+-*/"
            )
        return False

    @staticmethod
    def _in_preprocessor_like_place(node) -> bool:
        return node.parent is not None and node.parent.type in ("bitfield_clause", "enumerator")

    def _types_of_variables(self) -> None:
        """Rewrites `decltype(x)` for targets that keep `x` elsewhere and make its name a reference."""
        shares = any(k.threadgroup_variables for k in self.rewritten.program.kernels)
        if not shares and self.source.identifiers.isdisjoint(SYNCHRONISING):
            return
        for node in self.source.find("(decltype) @d"):
            if [c.type for c in node.named_children] != ["identifier"]:
                continue
            name = node.named_children[0]
            declaration = self.rewritten.calls.scopes_around(name).declaration_of(name)
            if declaration is not None and not declaration.is_reference:
                kept = "reference" if self._is_const(declaration) else "cvref"
                text = f"{names.PROGRAM}::metal::remove_{kept}_t<"
                self.edits.wrap(node.start_byte, node.end_byte, text, ">")

    def _is_const(self, declaration) -> bool:
        """Returns true if a variable itself is const, and not what it points to."""
        if not declaration.is_pointer:
            return declaration.is_const
        start, end = declaration.declarator.start_byte, declaration.identifier.start_byte
        return "const" in self.source.masked[start:end].rpartition("*")[2].split()

    def _conditional_arms(self) -> None:
        """Rewrites `c ? a : b` where one side is half or bfloat: these are classes that convert to numbers and back, so
        that C++ could not choose between the arms' types. Each arm is cast to the type that Metal gives the whole
        expression, or to its own type if that is no number."""
        inner = set()
        nodes = [c for c in self.source.find("(conditional_expression) @c") if not c.has_error]
        for node in nodes:  # the outermost expression of a chain stands for all of it
            inner.update(
                (arm.start_byte, arm.end_byte)
                for arm in map(without_parentheses, _arms(node))
                if arm.type == "conditional_expression"
            )
        for node in reversed(nodes):  # inner expressions first, because their text is copied
            if (node.start_byte, node.end_byte) in inner:
                continue
            leaves = list(_leaves(node))
            ranges = [(leaf.start_byte, leaf.end_byte) for leaf in leaves]
            texts = [self.source.text[start:end] for start, end in ranges]
            if all(map(_NEVER_SMALL.match, texts)) or any(map(_LAMBDA.search, texts)):
                continue
            if any(self._is_bit_field(leaf) for leaf in leaves):
                continue
            kinds = [_kind_of_arm(text) for text in texts]
            types = {}  # one for all arms of a kind
            for kind, arm in zip(kinds, ranges, strict=True):
                if kind not in types:
                    types[kind] = f"decltype(({' '.join(self.edits.text_of(*arm).split())}))"
            arms = [(*arm, types[kind]) for kind, arm in zip(kinds, ranges, strict=True)]
            if len(types) > _MANY_TYPES and self._may_be_in_lambda(node):
                self._cast_in_lambda(node, arms, list(types.values()))
                continue
            for start, end, own in arms:
                all_types = ", ".join([own, *(t for t in types.values() if t != own)])
                arm = f"{names.SUPPORT}::arm<{all_types}>"
                self.edits.wrap(start, end, f"static_cast<{arm}>(", ")")

    def _may_be_in_lambda(self, node) -> bool:
        """Returns true for expressions of function bodies that call no function whose calls are rewritten one by one."""
        words = re.findall(r"[A-Za-z_]\w*", self.source.masked_text(node))
        if not SYNCHRONISING.isdisjoint(words):
            return False
        while node is not None and node.type != "compound_statement":
            node = node.parent
        return node is not None

    def _cast_in_lambda(self, node, arms: list[tuple[int, int, str]], types: list[str]) -> None:
        """Casts the arms of a long chain, each with its own type, where the types of all are named once: text in which
        each arm names them is quadratic."""
        for start, end, own in arms:
            arm = f"{names.SUPPORT}::arm_of<{own}, msl_arms>"
            self.edits.wrap(start, end, f"static_cast<{arm}>(", ")")
        named = f"using msl_arms = {names.SUPPORT}::arms<{', '.join(types)}>;"
        before = f"[&]() -> decltype(auto) {{ {named} return ("
        self.edits.wrap(node.start_byte, node.end_byte, before, "); }()")

    def _is_bit_field(self, node) -> bool:
        """Returns true if this may be a bit-field, to which no reference can bind."""
        if not self._bit_fields:
            return False
        words = re.findall(r"[A-Za-z_]\w*", self.source.masked_text(node))
        return bool(words) and words[-1] in self._bit_fields


def _kind_of_arm(text: str) -> str:
    """Returns what arms of one type have in common: their text, but for numbers and constant indices."""
    text = " ".join(text.split())
    number = _NUMBER.match(text)
    if number:
        return f"{bool(number['fraction'])} {number['suffix'].lower()}"
    return _INDEX.sub("[0]", text)


def _arms(node) -> list:
    arms = (node.child_by_field_name("consequence"), node.child_by_field_name("alternative"))
    return [arm for arm in arms if arm is not None]


def _leaves(node) -> Iterator:
    """Yields the arms of a chain of conditional expressions that are not conditional themselves."""
    waiting = _arms(node)[::-1]
    while waiting:
        arm = waiting.pop()
        inside = without_parentheses(arm)
        if inside.type == "conditional_expression":
            waiting += _arms(inside)[::-1]
        else:
            yield arm
