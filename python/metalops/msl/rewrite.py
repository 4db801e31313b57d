"""Turns the Metal parts of a program into C++, by edits on exact ranges of the syntax tree.

What it rewrites: address spaces, attributes, literals, global names, swizzles, shifts and integer division,
synchronising calls, threadgroup variables, function constants, and definitions that become duplicates once address
spaces are gone. Kernels are made ordinary functions; how they are launched is thunks.py's subject.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import names
from .calls import SYNCHRONISING
from .edits import Edits
from .kernels import (
    FunctionConstant,
    Program,
    ProgramError,
    declared_identifier,
    declarator_kinds,
    name_of,
    parameter_ranges,
)
from .parse import closing_bracket

_NAME = re.compile(r"[A-Za-z_]\w*")
_SWIZZLE = re.compile(r"(?:\.|->)\s*([xyzw]{2,4}|[rgba]{1,4})\b(?!\s*\()")
_ARITHMETIC = re.compile(r"<<=?|>>=?|/=?|%=?")
_INTEGER_ARM = re.compile(r"[(\s]*[-+]?\s*(?:0[xX][\da-fA-F]+|\d+)[uUlL]*[)\s]*$")
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
_ZERO = re.compile(
    r"[\s{}(),]*(?:0[\dx]*(?:\.0*)?[uUlLfFhH]*|false)?[\s{}(),]*$"
)  # what the memory holds anyway


@dataclass
class Derived:
    """A program-scope constant computed from function constants."""

    name: str
    path: tuple[str, ...]
    number: int


@dataclass
class Rewritten:
    edits: Edits
    sites: list[int] = field(default_factory=list)  # offsets, by site id
    swizzles: dict[str, bool] = field(default_factory=dict)  # name -> used for assignment too
    derived: list[Derived] = field(default_factory=list)
    removed: list[tuple[int, int]] = field(default_factory=list)


def rewrite(program: Program) -> Rewritten:
    return _Rewriter(program).run()


class _Rewriter:
    def __init__(self, program: Program):
        self.program = program
        self.source = program.source
        self.edits = Edits(self.source.text)
        self.result = Rewritten(self.edits)

    def run(self) -> Rewritten:
        self._erase_attributes()
        self._erase_pragmas()
        self._erase_address_spaces()
        self._literals()
        self._global_names()
        self._function_constants()
        self._synchronising_functions()
        self._synchronising_calls()
        self._swizzles()
        self._arithmetic()
        self._conditional_literals()
        self._class_scope_specialisations()
        self._kernels()
        self._remove_duplicates()
        return self.result

    # ---- Metal's own words ----------------------------------------------------------------------------------

    def _erase_attributes(self) -> None:
        for item in self.source.attribute_lists:
            self.edits.blank(item.start, item.end)

    def _erase_pragmas(self) -> None:
        """Hints to Apple's compiler, and what they say need not even be C++ once macros are not expanded in them."""
        for match in re.finditer(r"(?m)^[ \t]*#[ \t]*pragma[^\n]*", self.source.text):
            self.edits.erase(*match.span())

    def _erase_address_spaces(self) -> None:
        for word in self.source.words:
            if word.text == "constant":
                self._constant(word)
            else:
                self.edits.blank(word.start, word.end)

    def _constant(self, word) -> None:
        """`constant` becomes `const`, unless its type already is const; on a method it is dropped or becomes const."""
        if self._is_doubled(word):
            self.edits.blank(word.start, word.end)
        elif self._qualifies_method(word):
            leaf = self.source.previous_code(word.start)
            while leaf >= 0 and self.source.masked[leaf] != ")":
                leaf = self.source.previous_code(leaf)
            node = self.source.leaf_at(leaf).parent
            declarator = node.parent if node is not None else None
            name = declarator.child_by_field_name("declarator") if declarator else None
            is_operator = name is not None and name.type in ("operator_name", "operator_cast")
            scope = self._class_of(word.start)
            is_constructor = name is not None and scope == self.source.masked_text(name)
            if is_constructor and not is_operator:
                self.edits.blank(word.start, word.end)
            else:
                self.edits.replace(word.start, word.end, "const   ")
        else:
            self.edits.replace(word.start, word.end, "const   ")

    def _class_of(self, offset: int) -> str | None:
        inside = [c for c in self.program.classes if c.specifier.start_byte < offset < c.end]
        if not inside:
            return None
        return inside[-1].name.split("<")[0].strip()

    def _qualifies_method(self, word) -> bool:
        text = self.source.masked
        before = self.source.previous_code(word.start)
        tail = text[max(0, before - 40) : before + 1]
        return bool(re.search(r"\)\s*(?:(?:const|volatile|noexcept)\s*)*$", tail))

    def _is_doubled(self, word) -> bool:
        """Whether the type that `constant` qualifies is const by another word at the same level."""
        text, masked = self.source.text, self.source.masked
        before = self._segment_before(masked, word.start)
        if re.search(r"\b(?:const|constant)\b", self._without_brackets(text, before, word.start)):
            return True
        after = self._segment_after(masked, word.end)
        return bool(re.search(r"\bconst\b", self._without_brackets(text, word.end, after)))

    @staticmethod
    def _without_brackets(text: str, start: int, end: int) -> str:
        segment = text[start:end]
        while (
            shorter := re.sub(r"<[^<>]*>|\[\[.*?\]\]|\([^()]*\)", "", segment, flags=re.S)
        ) != segment:
            segment = shorter
        return segment

    @staticmethod
    def _segment_before(text: str, position: int) -> int:
        """Start of the declaration specifiers that end at `position`."""
        depth = 0
        while position > 0:
            c = text[position - 1]
            if c == ">":
                depth += 1
            elif c == "<":
                if depth == 0:
                    break
                depth -= 1
            elif depth == 0 and c in "(),;{}*&=[]#+-/|?!":
                break
            elif depth and c in ";{}":
                break
            position -= 1
        return position

    @staticmethod
    def _segment_after(text: str, position: int) -> int:
        depth = 0
        while position < len(text):
            c = text[position]
            if c == "<":
                depth += 1
            elif c == ">":
                if depth == 0:
                    break
                depth -= 1
            elif (depth == 0 and c in "(),;{}*&=[]#") or c in ";{}":
                break
            position += 1
        return position

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
        """`::x` becomes `::msl::x`."""
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

    # ---- function constants ---------------------------------------------------------------------------------

    def _function_constants(self) -> None:
        dependent: set[str] = set()
        for node, path, head in self.program.declarations:
            attributes = self.source.attributes_in(head, self.source.next_code(node.end_byte))
            index = next((a for a in attributes if a.name == "function_constant"), None)
            if index is not None:
                self._function_constant(node, path, head, index)
                dependent.update(c.name for c in self.program.function_constants)
            elif dependent:
                self._derived_constant(node, path, head, dependent)
        for match in re.finditer(r"\bis_function_constant_defined\s*\(", self.source.masked):
            close = closing_bracket(self.source.masked, match.end() - 1)
            if close is None:
                continue
            *scope, name = re.split(
                r"\s*::\s*", self.source.masked[match.end() : close - 1].strip()
            )
            flag = "::".join([*scope, f"msl_is_defined_{name}"])
            start = match.start()
            qualifier = re.search(
                r"(?:metal\s*::\s*)$", self.source.masked[max(0, start - 12) : start]
            )
            if qualifier:
                start -= len(qualifier.group())
            self.edits.replace(start, close, f"({flag} != 0)")

    def _specifiers_range(self, node, head) -> tuple[int, int]:
        start = (
            self.source.text.index(self.source.text[head:].lstrip()[:1], head)
            if head < node.start_byte
            else node.start_byte
        )
        words = self.source.words_in(head, node.start_byte)
        return (words[0].start if words else min(start, node.start_byte)), node.end_byte

    def _function_constant(self, node, path, head, attribute) -> None:
        type_node = node.child_by_field_name("type")
        type_text = self.edits.text_of(type_node.start_byte, type_node.end_byte)
        pieces = []
        for declarator in node.children_by_field_name("declarator"):
            identifier = declared_identifier(declarator)
            if identifier is None:
                continue
            name = self.source.node_text(identifier)
            constant = FunctionConstant(name, path, attribute.arguments or "0", node)
            self.program.function_constants.append(constant)
            pieces.append(
                f"static {type_text} {name}; static {names.ABI}::u8 msl_is_defined_{name};"
            )
        start, end = self._specifiers_range(node, head)
        self.edits.replace(start, end, " ".join(pieces))

    def _derived_constant(self, node, path, head, dependent: set[str]) -> None:
        """A constant computed from function constants is computed again whenever these get their values."""
        if any(
            c.type == "type_qualifier" and self.source.node_text(c) == "constexpr"
            for c in node.children
        ):
            return
        pieces = []
        type_node = node.child_by_field_name("type")
        for declarator in node.children_by_field_name("declarator"):
            value = (
                declarator.child_by_field_name("value")
                if declarator.type == "init_declarator"
                else None
            )
            identifier = declared_identifier(declarator)
            if value is None or identifier is None or declarator_kinds(declarator):
                return
            words = set(_NAME.findall(self.source.masked_text(value)))
            if not words & (dependent | {"is_function_constant_defined"}):
                return
            name = self.source.node_text(identifier)
            number = len(self.result.derived)
            type_text = self.edits.text_of(type_node.start_byte, type_node.end_byte)
            pieces.append((name, number, type_text, value))
        start, end = self._specifiers_range(node, head)
        for name, number, type_text, value in pieces:
            dependent.add(name)
            self.result.derived.append(Derived(name, path, number))
            self.edits.replace(
                start,
                value.start_byte,
                f"static {type_text} {name}; static inline void msl_derive_{number}() {{ {name} = ",
            )
            self.edits.replace(value.end_byte, end, "; }")

    # ---- synchronisation ------------------------------------------------------------------------------------

    def _synchronising_functions(self) -> None:
        """The program's own functions of such a name take a Site too, so that every call may pass one."""
        for function in self.program.functions:
            if function.name in SYNCHRONISING:
                parameters = function.declarator.child_by_field_name("parameters")
                inside = self.source.masked_text(parameters)[1:-1].strip()
                comma = ", " if inside and inside != "void" else ""
                is_definition_elsewhere = "::" in self.source.masked_text(
                    name_of(function.declarator)
                )
                default = (
                    "" if is_definition_elsewhere or self._is_specialisation(function) else " = {}"
                )
                self.edits.append(parameters.end_byte - 1, f"{comma}{names.ABI}::Site{default}")

    @staticmethod
    def _is_specialisation(function) -> bool:
        return any(
            header is not None and not header.named_children for header in function.template_headers
        )

    def _synchronising_calls(self) -> None:
        pattern = re.compile(r"\b(?:" + "|".join(sorted(SYNCHRONISING)) + r")\b")
        masked = self.source.masked
        for match in pattern.finditer(masked):
            position = self.source.next_code(match.end())
            if masked[position : position + 1] == "<":
                call = self._enclosing_call(match.start())
                if call is None:
                    continue
                position = call.child_by_field_name("arguments").start_byte
            if masked[position : position + 1] != "(":
                continue
            leaf = self.source.leaf_at(match.start())
            if not self._is_callee(leaf):
                continue
            close = closing_bracket(masked, position)
            if close is None:
                continue
            comma = ", " if masked[position + 1 : close - 1].strip() else ""
            self.edits.append(close - 1, f"{comma}{names.ABI}::Site{{{len(self.result.sites)}}}")
            self.result.sites.append(match.start())

    def _enclosing_call(self, offset: int):
        node = self.source.leaf_at(offset)
        while node is not None and node.type != "call_expression":
            if node.type in ("compound_statement", "argument_list"):
                return None
            node = node.parent
        return node

    def _is_callee(self, leaf) -> bool:
        """Whether the name is called, and not declared (a function or a variable of that name)."""
        node = leaf
        while node.parent is not None:
            parent = node.parent
            if parent.type in ("qualified_identifier", "template_function", "field_expression"):
                node = parent
                continue
            if parent.type in ("function_declarator", "init_declarator", "declaration"):
                # `simd_sum(x);` alone may parse as a declaration; it is one only with a type before the name.
                return False
            return True
        return True

    # ---- expressions ----------------------------------------------------------------------------------------

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
            assigned = self._is_assigned(node)
            self.result.swizzles[name] = self.result.swizzles.get(name, False) or assigned
            accessor = f"{names.SUPPORT}::{'set' if assigned else 'get'}_{name}"
            if operator == "-":
                self.edits.wrap(argument.start_byte, argument.end_byte, f"{accessor}(*(", "))")
            else:
                self.edits.wrap(argument.start_byte, argument.end_byte, f"{accessor}(", ")")
            self.edits.erase(argument.end_byte, match.end())

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
        """Shift counts are taken modulo the width, and integer division does not trap."""
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

    def _is_plain_operand(self, node, operator: str) -> bool:
        """Whether the right operand needs no care: a literal in range, or a floating value."""
        while node.type == "parenthesized_expression" and node.named_child_count == 1:
            node = node.named_children[0]
        text = self.source.masked_text(node)
        if node.type == "number_literal":
            return "/" in operator or "%" in operator or bool(re.match(r"\d+[uUlL]*$", text))
        return self._is_floating(node)

    def _is_floating(self, node) -> bool:
        while node.type == "parenthesized_expression" and node.named_child_count == 1:
            node = node.named_children[0]
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

    def _conditional_literals(self) -> None:
        """In `c ? x : 0` the literal takes the type of x where that is a class for us but arithmetic in Metal."""
        nodes = list(self.source.find("(conditional_expression) @c"))
        for node in reversed(nodes):  # what is inside first, because its text is copied
            arms = node.child_by_field_name("consequence"), node.child_by_field_name("alternative")
            if None in arms or node.has_error:
                continue
            for arm, other in (arms, arms[::-1]):
                text = self.source.masked_text(other)
                if not _INTEGER_ARM.match(self.source.masked_text(arm)) or not re.search(
                    r"[A-Za-z_]", text
                ):
                    continue
                if "[" in text and re.search(r"\[[&=\w\s]*\]\s*\(", text):
                    continue  # a lambda cannot stand in decltype
                known = self.edits.text_of(other.start_byte, other.end_byte)
                known = re.sub(r"\s+", " ", known)
                self.edits.wrap(
                    arm.start_byte,
                    arm.end_byte,
                    f"{names.SUPPORT}::literal_like<decltype({known})>(",
                    ")",
                )

    # ---- definitions ----------------------------------------------------------------------------------------

    def _class_scope_specialisations(self) -> None:
        """`template <>` on a member function in its class: g++ takes an overload instead."""
        for function in self.program.functions:
            if not function.in_class or not self._is_specialisation(function):
                continue
            name = name_of(function.declarator)
            if name.type in ("template_function", "template_method"):
                continue
            header = function.template_headers[-1]
            start = self.source.masked.rfind("template", 0, header.start_byte)
            self.edits.blank(start, header.end_byte)

    def _kernels(self) -> None:
        for function in self.program.functions:
            if function.stage == "kernel" and function.body is None:
                self._remove(function.head, function.node)
            elif function.stage is not None and function.stage != "kernel":
                self._remove(function.head, function.node)
        for node, _, head in self.program.instantiations:
            self._remove(head, node)
        for kernel in self.program.kernels:
            if kernel.unsupported:
                self._remove(kernel.function.head, kernel.function.node)
                continue
            node = kernel.function.declarator
            first = self._definition_start(kernel.function)
            self.edits.append(first, "inline __attribute__((always_inline)) ")
            if kernel.threadgroup_variables:
                parameters = node.child_by_field_name("parameters")
                comma = ", " if kernel.parameters else ""
                self.edits.append(parameters.end_byte - 1, f"{comma}{names.ABI}::Group& msl_group")
                if not kernel.parameters:
                    self.edits.blank(parameters.start_byte + 1, parameters.end_byte - 1)
                self._threadgroup_variables(kernel)

    def _definition_start(self, function) -> int:
        if function.template_headers:
            return self.source.next_code(function.template_headers[-1].end_byte)
        return function.node.start_byte

    def _remove(self, head: int, node) -> None:
        start = self.source.next_code(head)
        self.edits.erase(min(start, node.start_byte), node.end_byte)
        self.result.removed.append((node.start_byte, node.end_byte))

    def _threadgroup_variables(self, kernel) -> None:
        by_declaration: dict[int, list] = {}
        for variable in kernel.threadgroup_variables:
            by_declaration.setdefault(variable.declaration.start_byte, []).append(variable)
        for variables in by_declaration.values():
            declaration = variables[0].declaration
            pieces = []
            for declarator in declaration.children_by_field_name("declarator"):
                variable = next((v for v in variables if v.declarator == declarator), None)
                if variable is None:
                    raise ProgramError(
                        "pointers and threadgroup variables cannot be declared together here",
                        declarator.start_byte,
                    )
                value = declarator.child_by_field_name("value")
                if value is not None and not _ZERO.match(self.source.masked_text(value)):
                    raise ProgramError(
                        "variable in the threadgroup address space cannot be initialized, except with zero",
                        declarator.start_byte,
                    )
                name = self.source.node_text(variable.identifier)
                number = variable.number
                alias = f"msl_threadgroup_{number}"
                pieces.append(
                    f"{self.threadgroup_typedef(variable, alias)} {alias}& {name} = "
                    f"{names.THREADGROUP_VARIABLE}<{alias}>(msl_group, {number});"
                )
            start = min(declaration.start_byte, variables[0].space_word.start)
            self.edits.replace(start, declaration.end_byte, " ".join(pieces))

    def threadgroup_typedef(self, variable, alias: str) -> str:
        return threadgroup_typedef(self.source, self.edits, variable, alias)

    def _remove_duplicates(self) -> None:
        """Removes definitions that differ from an earlier one only by address space."""
        seen: set[tuple] = set()
        keys = _Keys(self.source, self.edits)
        for scope in self.program.classes:
            if "<" not in scope.name:
                continue
            key = (scope.path, "class", keys.of_class(scope))
            if key in seen:
                self.edits.erase(
                    min(self.source.next_code(scope.head), scope.node.start_byte), scope.end
                )
                self.result.removed.append((scope.node.start_byte, scope.end))
            seen.add(key)
        declared: set[tuple] = set()
        for function in self.program.functions:
            if any(start <= function.node.start_byte < end for start, end in self.result.removed):
                continue
            key = (self._scope_key(function), keys.of_function(function))
            known = (
                seen
                if function.body is not None or not self._has_default_body(function)
                else declared
            )
            if function.body is None and not function.in_class:
                continue
            if key in known:
                self._remove(function.head, function.node)
                following = self.source.next_code(function.node.end_byte)
                del following
            known.add(key)

    def _scope_key(self, function) -> tuple:
        """Namespaces, and the very class body that a member belongs to."""
        if not function.in_class:
            return function.path
        inside = [
            c.specifier.start_byte
            for c in self.program.classes
            if c.specifier.start_byte <= function.node.start_byte < c.end
        ]
        return (*function.path, inside[-1] if inside else 0)

    def _has_default_body(self, function) -> bool:
        return "=" in self.source.masked_text(function.node)[-12:]


_KEYWORDS_BEFORE_NAME = {
    "return", "case", "else", "typename", "const", "void", "static", "inline", "constexpr", "using", "new", "sizeof",
    "throw", "volatile", "extern", "typedef", "and", "or", "not", "goto", "do", "public", "private", "namespace",
    "friend", "operator", "class", "struct", "enum", "decltype", "alignof", "mutable", "unsigned", "signed",
}  # fmt: skip
_FLOATING_CALL = re.compile(
    r"(?:::\s*)?(?:metal\s*::\s*)?(?:(?:precise|fast)\s*::\s*)?"
    r"(?:float|half|exp2?|log(?:2|10)?|sqrt|rsqrt|sin|cos|tanh?|static_cast\s*<\s*(?:float|half)\s*>)$"
)


def threadgroup_typedef(source, edits: Edits, variable, alias: str) -> str:
    """`typedef T alias[N];` for a threadgroup variable."""
    declaration, identifier = variable.declaration, variable.identifier
    type_node = declaration.child_by_field_name("type")
    base = edits.text_of(type_node.start_byte, type_node.end_byte)
    declarator = variable.declarator
    if declarator.type == "init_declarator":
        declarator = declarator.child_by_field_name("declarator")
    before = edits.text_of(declarator.start_byte, identifier.start_byte)
    after = edits.text_of(identifier.end_byte, declarator.end_byte)
    return re.sub(r"\n", " ", f"typedef {base} {before}{alias}{after};")


class _Keys:
    """What tells two definitions apart once address spaces are erased."""

    def __init__(self, source, edits: Edits):
        self.source = source
        self.edits = edits

    def _tokens(self, text: str, renamed: dict[str, str]) -> str:
        return " ".join(renamed.get(t, t) for t in re.findall(r"\w+|[^\s\w]", text))

    def _template(self, headers) -> tuple[str, dict[str, str]]:
        renamed: dict[str, str] = {}
        parts = []
        for header in headers:
            for node, _, _ in parameter_ranges(header) if header is not None else ():
                name = node.child_by_field_name("name") or declared_identifier(
                    node.child_by_field_name("declarator")
                )
                if node.type in (
                    "type_parameter_declaration",
                    "variadic_type_parameter_declaration",
                ):
                    name = next(
                        (c for c in node.named_children if c.type == "type_identifier"), None
                    )
                if node.type == "optional_type_parameter_declaration":
                    name = node.child_by_field_name("name")
                if name is not None:
                    renamed[self.source.masked_text(name)] = f"${len(renamed)}"
            if header is not None:
                text = self.edits.text_of(header.start_byte, header.end_byte)
                parts.append(re.sub(r"\bclass\b", "typename", text))
        return self._tokens(" , ".join(parts), renamed), renamed

    def of_class(self, scope) -> str:
        template, renamed = self._template(scope.template_headers)
        name = scope.specifier.child_by_field_name("name")
        return (
            template
            + "|"
            + self._tokens(self.edits.text_of(name.start_byte, name.end_byte), renamed)
        )

    def of_function(self, function) -> str:
        template, renamed = self._template(function.template_headers)
        declarator = function.declarator
        parameters = declarator.child_by_field_name("parameters")
        parts = []
        for node, start, end in parameter_ranges(parameters):
            identifier = declared_identifier(node.child_by_field_name("declarator"))
            default = node.child_by_field_name("default_value")
            stop = default.start_byte if default is not None else end
            if identifier is None:
                text = self.edits.text_of(start, stop)
            else:
                text = self.edits.text_of(start, identifier.start_byte) + self.edits.text_of(
                    identifier.end_byte, stop
                )
            parts.append(self._tokens(text.rstrip("= "), renamed))
        name = name_of(declarator)
        qualifiers = " ".join(
            self.source.masked_text(c) for c in declarator.children if c.type == "type_qualifier"
        )
        if "const" not in qualifiers and any(
            w.text == "constant"
            for w in self.source.words_in(parameters.end_byte, declarator.end_byte)
        ):
            qualifiers += " const"
        returned = ""
        if function.template_headers:
            head = function.node.start_byte
            start = function.template_headers[-1].end_byte
            returned = self.edits.text_of(max(head, start), declarator.start_byte)
            returned = re.sub(r"\b(?:inline|static|constexpr)\b", "", returned)
        return "|".join(
            [
                template,
                self._tokens(returned, renamed),
                self._tokens(self.edits.text_of(name.start_byte, name.end_byte), renamed),
                ",".join(parts),
                qualifiers,
            ]
        )
