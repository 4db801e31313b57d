"""Values of constant expressions and sizes of types, as far as array bounds need them."""

from __future__ import annotations

import ast
import re

from ..analysis.program import declared_identifier, parameter_ranges
from ..analysis.types import Type, Types
from .checked import Checked

_SIZES = {
    name: size
    for size, names in {
        1: ("bool", "char", "uchar", "int8_t", "uint8_t", "signed char", "unsigned char"),
        2: ("short", "ushort", "int16_t", "uint16_t", "unsigned short", "half", "bfloat"),
        4: ("int", "uint", "int32_t", "uint32_t", "unsigned int", "unsigned", "float"),
        8: ("long", "ulong", "int64_t", "uint64_t", "unsigned long", "size_t", "ptrdiff_t"),
    }.items()
    for name in names
}
_SIZES |= {f"atomic_{name}": _SIZES[name] for name in ("int", "uint", "float", "ulong")}
_SIZES["atomic_bool"] = 4
_VECTOR = re.compile(r"(packed_)?([a-z]\w*?)([234])(?:x([234]))?$")


class Constants:
    def __init__(self, checked: Checked, types: Types):
        self.checked = checked
        self.types = types
        self._variables: dict[str, str | None] | None = None
        self._evaluating: set[str] = set()

    # ---- values ----------------------------------------------------------------------------------

    def value(self, text: str, names: dict[str, str] | None = None) -> int | None:
        """Returns the value of an integer expression; None if it is unknown. names: template arguments."""
        text = re.sub(r"\b(0[xX][\da-fA-F]+|\d+)[uUlL]+\b", r"\1", text)
        text = re.sub(
            r"\bsizeof\s*\(([^()]*)\)",
            lambda m: str(self._size_of_name(m[1], names) or "unknown"),
            text,
        )
        text = (
            text.replace("&&", " and ")
            .replace("||", " or ")
            .replace("true", "1")
            .replace("false", "0")
        )
        text = re.sub(r"\b(?:u?int|u?short|size_t|u?char|u?long)\s*\(", "(", text)
        try:
            tree = ast.parse(" ".join(text.split()), mode="eval").body
        except (SyntaxError, ValueError):
            return None
        return self._evaluate(tree, names or {})

    def _evaluate(self, node, names) -> int | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return int(node.value)
        if isinstance(node, ast.Name):
            return self._named(node.id, names)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._evaluate(node.operand, names)
            return None if inner is None else -inner
        if isinstance(node, ast.BinOp):
            left, right = self._evaluate(node.left, names), self._evaluate(node.right, names)
            if left is None or right is None:
                return None
            return _operate(node.op, left, right)
        return None

    def _named(self, name: str, names) -> int | None:
        if name in names:
            return self.value(names[name])
        if self._variables is None:
            self._variables = self._constants()
        text = self._variables.get(name)
        if text is None or name in self._evaluating:
            return None
        self._evaluating.add(name)
        try:
            return self.value(text, names)
        finally:
            self._evaluating.discard(name)

    def _constants(self) -> dict[str, str | None]:
        """Returns the initialisers of const integers; None for names with several meanings."""
        found: dict[str, str | None] = {}
        source = self.checked.source
        for node in source.find("[(declaration) (field_declaration)] @d"):
            start = source.previous_code(node.start_byte) + 1
            for declarator in node.children_by_field_name("declarator"):
                identifier = declared_identifier(declarator)
                if identifier is None:
                    continue
                name = source.masked_text(identifier)
                value = declarator.child_by_field_name("value") or node.child_by_field_name(
                    "default_value"
                )
                before = source.masked[start : identifier.start_byte]
                is_const = re.search(r"\b(?:const|constexpr)\b", before) or any(
                    w.text == "constant" for w in source.words_in(start, identifier.start_byte)
                )
                text = source.masked_text(value) if value is not None and is_const else None
                found[name] = text if name not in found or found[name] == text else None
        for node in source.find("(enumerator) @e"):
            name = source.masked_text(node.child_by_field_name("name"))
            value = node.child_by_field_name("value")
            found[name] = (
                source.masked_text(value) if value is not None and name not in found else None
            )
        return found

    # ---- template arguments ----------------------------------------------------------------------

    def template_arguments(self, function, instance) -> dict[str, str]:
        """Returns what each template parameter of a kernel stands for in one instance, as text."""
        if instance is None or instance.template_arguments is None or not function.template_headers:
            return {}
        source = self.checked.source
        arguments = [source.masked_text(a) for a in instance.template_arguments.named_children]
        names: dict[str, str] = {}
        for index, (node, _, _) in enumerate(parameter_ranges(function.template_headers[-1])):
            if node.type in ("type_parameter_declaration", "optional_type_parameter_declaration"):
                name = next((c for c in node.named_children if c.type == "type_identifier"), None)
                default = node.child_by_field_name("default_type")
            else:
                name = declared_identifier(node.child_by_field_name("declarator"))
                default = node.child_by_field_name("default_value")
            if name is None:
                continue
            if index < len(arguments):
                names[source.masked_text(name)] = arguments[index]
            elif default is not None:
                names[source.masked_text(name)] = source.masked_text(default)
        return names

    # ---- sizes -----------------------------------------------------------------------------------

    def size_of(self, name: str) -> int | None:
        """Returns the bytes of a type by its name; None if they are unknown."""
        return self._size_of_name(name, None)

    def size_of_variable(self, variable, names: dict[str, str]) -> int | None:
        """Returns the bytes of a threadgroup variable; None if they are unknown."""
        source = self.checked.source
        declarator = variable.declarator
        count = 1
        while declarator is not None and declarator.type in ("init_declarator", "array_declarator"):
            if declarator.type == "array_declarator":
                bound = declarator.child_by_field_name("size")
                extent = self.value(source.masked_text(bound), names) if bound is not None else None
                if extent is None:
                    return None
                count *= extent
            declarator = declarator.child_by_field_name("declarator")
        if declarator is None or declarator.type != "identifier":
            return None
        size = self._size_of_name(
            source.masked_text(variable.declaration.child_by_field_name("type")), names
        )
        return None if size is None else size * count

    def _size_of_name(self, name: str, names: dict[str, str] | None) -> int | None:
        name = " ".join(name.split()).removeprefix("metal::")
        name = (names or {}).get(name, name)
        if name in _SIZES:
            return _SIZES[name]
        if match := _VECTOR.match(name):
            packed, element, first, second = match.groups()
            return _vector_size(_SIZES.get(element), int(first), int(second or 0), bool(packed))
        if match := re.match(r"(?:vec|array)<\s*([\w:]+)\s*,\s*([^<>]+)>$", name):
            size, count = self._size_of_name(match[1], names), self.value(match[2], names)
            if size is None or count is None:
                return None
            return size * count if name.startswith("array") else _vector_size(size, count, 0, False)
        if match := re.match(r"atomic<\s*([\w:]+)\s*>$", name):
            return self._size_of_name(match[1], names)
        alias = self.types.aliases.get(name)
        if isinstance(alias, Type) and alias.kind == "value" and alias.name != name:
            return self._size_of_name(alias.name, names)
        return None


def _vector_size(element: int | None, count: int, rows: int, packed: bool) -> int | None:
    if element is None or count not in (2, 3, 4):
        return None
    if rows:
        return count * element * (rows if packed or rows != 3 else 4)
    return element * (count if packed or count != 3 else 4)


def _operate(operator, left: int, right: int) -> int | None:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.LShift) and 0 <= right < 64:
        return left << right
    if isinstance(operator, ast.RShift) and 0 <= right < 64:
        return left >> right
    if isinstance(operator, ast.Div | ast.FloorDiv) and right > 0 and left >= 0:
        return left // right
    if isinstance(operator, ast.Mod) and right > 0 and left >= 0:
        return left % right
    return None
