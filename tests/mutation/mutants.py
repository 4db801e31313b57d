"""Mutants of a Metal source: the same program with one small fault. Found on the front end's syntax tree of the
preprocessed text, so that headers, macros and conditional code are seen as the compiler sees them.

The faults that every kernel's tests must notice:

- a threadgroup_barrier or simdgroup_barrier is deleted;
- a bound check is deleted: a comparison with < <= > >= of an index (something of an integer type) is always true, or
  always false; min, max or clamp of an index is one of its arguments. A loop's own condition stays, because without it
  the loop does not end.

More faults, which measure how good the tests are (`thorough`): comparisons of other values that are always true or
false, another operator for + - * / % << >> & | ^ && || and comparisons, numbers one larger or smaller, arguments of a
call swapped, max for min.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from metalops.msl.analysis.program import declared_identifier, last_name
from metalops.msl.check.checked import ancestor, descendants
from metalops.msl.source.locations import LineMap, Position
from metalops.msl.source.parse import Source
from metalops.msl.source.preprocess import Preprocessed

BARRIERS = ("threadgroup_barrier", "simdgroup_barrier")
LIMITS = ("min", "max", "clamp")
RANGE = ("<", "<=", ">", ">=")
OTHER_OPERATOR = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "+": "-",
    "-": "+",
    "*": "+",
    "/": "*",
    "%": "/",
    "<<": ">>",
    ">>": "<<",
    "&": "|",
    "|": "&",
    "^": "|",
    "&&": "||",
    "||": "&&",
}

_INTEGER = re.compile(
    r"(?:(?:const|constexpr|volatile|static)\s+)*(?:metal::|::metal::)?"
    r"(?:u?(?:char|short|int|long)[234]?|size_t|ptrdiff_t|u?int(?:8|16|32|64)_t|auto"
    r"|(?:unsigned|signed|long|short)(?:\s+(?:char|short|int|long))*)"
)
_DECLARATIONS = (
    "declaration",
    "parameter_declaration",
    "optional_parameter_declaration",
    "field_declaration",
    "for_range_loop",
)


@dataclass(frozen=True)
class Mutant:
    """kind: what was done; original and replacement: the text that was changed, and what it is now. start, end: where
    it is in the preprocessed text; file_start, file_end: in the text of the file at `path`, which is `file` in reports.
    is_whole: what is replaced is an expression, or a statement among statements."""

    file: str
    line: int
    column: int
    kind: str
    original: str
    replacement: str
    start: int
    end: int
    path: str
    file_start: int
    file_end: int
    is_whole: bool

    @property
    def identity(self) -> tuple:
        """The same for one fault in a header, whichever file includes the header."""
        return (self.file, self.line, self.column, self.kind, self.original, self.replacement)

    def __str__(self) -> str:
        change = "deleted" if self.kind == "barrier" else f"is now {self.replacement}"
        return f"{self.file}:{self.line}:{self.column}: {self.kind}: {self.original} {change}"

    def apply(self, text: str) -> str:
        """The preprocessed text with the fault."""
        lines = text.count("\n", self.start, self.end)
        return text[: self.start] + self.replacement + "\n" * lines + text[self.end :]

    def source_line(self) -> str:
        """The line of its file that it begins in."""
        with open(self.path, encoding="utf-8") as stream:
            return stream.read().splitlines()[self.line - 1]

    def text_of_file(self) -> str:
        """The text of its file with the fault."""
        with open(self.path, encoding="utf-8") as stream:
            text = stream.read()
        found = " ".join(text[self.file_start : self.file_end].split())
        if found != self.original:  # in the text of a macro
            raise ValueError(f"{self}: the file has {found!r} there")
        return text[: self.file_start] + self.replacement + text[self.file_end :]


def find(
    preprocessed: Preprocessed, name_of_file: Callable[[str], str | None], thorough: bool = False
) -> list[Mutant]:
    """The mutants of a preprocessed source, in order of position. name_of_file: what to call a file in reports, or None
    to leave it alone."""
    source = Source(preprocessed.text)
    lines = LineMap(preprocessed.text, preprocessed.name, dict(preprocessed.sources))
    names: dict[str, str | None] = {}
    result = []
    integers = _Integers(source)
    for body in source.find("(function_definition body: (compound_statement) @body)"):
        file, _ = lines.place(body.start_byte)
        if file not in names:
            names[file] = name_of_file(file)
        if names[file] is None:
            continue
        for node in descendants(body):
            for kind, at, replacement in _faults(source, node, integers, thorough):
                place = lines.position(at.start_byte)
                last = lines.position(at.end_byte - 1)
                result.append(
                    Mutant(
                        names[file],
                        place.line,
                        place.column,
                        kind,
                        " ".join(source.node_text(at).split()),
                        replacement,
                        at.start_byte,
                        at.end_byte,
                        place.file,
                        _offset_in_file(lines, place),
                        _offset_in_file(lines, last) + 1,
                        _is_whole(at),
                    )
                )
    # A function inside a function, such as a method of a local class, is met twice.
    return sorted(dict.fromkeys(result), key=lambda mutant: mutant.start)


def _is_whole(node) -> bool:
    if node.type == "call_expression" and node.parent.type == "expression_statement":
        return node.parent.parent.type == "compound_statement"
    return node.type in ("binary_expression", "call_expression", "number_literal")


def with_switch(text: str, mutants: dict[int, Mutant]) -> str:
    """A preprocessed text with all these mutants, which must be whole: the one whose number the variable `mutant` of the
    program has is what runs."""

    def switched(start: int, end: int, within: list[tuple[int, Mutant]]) -> str:
        result, done = "", start
        while within:
            outer = within[0][1]
            here = [(n, m) for n, m in within if (m.start, m.end) == (outer.start, outer.end)]
            inside = [(n, m) for n, m in within if m.end <= outer.end and (n, m) not in here]
            within = [(n, m) for n, m in within if m.start >= outer.end]
            original = switched(outer.start, outer.end, inside)
            if outer.kind == "barrier":
                original = f"if (mutant != {here[0][0]}) {original}"
            else:
                for number, mutant in here:
                    original = f"(mutant == {number} ? {mutant.replacement} : {original})"
            result += text[done : outer.start] + original
            done = outer.end
        return result + text[done:end]

    ordered = sorted(mutants.items(), key=lambda item: (item[1].start, -item[1].end))
    return switched(0, len(text), ordered)


def _offset_in_file(lines: LineMap, place: Position) -> int:
    lines.source_line(place.file, place.line)  # reads the file
    before = lines.sources[place.file].split("\n")[: place.line - 1]
    return sum(len(line) + 1 for line in before) + place.column - 1


class _Integers:
    """Which names of a source are integers: variables and parameters by function, fields by name alone."""

    def __init__(self, source: Source):
        self._source = source
        self._fields = {
            name
            for declaration in source.find("(field_declaration) @f")
            for name in self._declared(declaration)
        }
        self._of_function: dict[int, set[str]] = {}

    def mentioned(self, node) -> bool:
        """Whether the value of an expression is computed from integers, not only found with their help."""
        if node.type == "identifier":
            return self._source.node_text(node) in self._locals(node)
        if node.type == "field_expression":
            field = self._source.node_text(node.child_by_field_name("field"))
            return field in self._fields or self.mentioned(node.child_by_field_name("argument"))
        if node.type == "subscript_expression":
            return self.mentioned(node.child_by_field_name("argument"))
        if node.type == "call_expression":
            name = last_name(self._source, node.child_by_field_name("function"))
            is_conversion = bool(_INTEGER.fullmatch(name))
            if name not in ("static_cast", "abs", *LIMITS) and not is_conversion:
                return False
        return any(self.mentioned(child) for child in node.named_children)

    def _locals(self, node) -> set[str]:
        function = ancestor(node, "function_definition")
        if function.start_byte not in self._of_function:
            self._of_function[function.start_byte] = {
                name
                for declaration in descendants(function)
                if declaration.type in _DECLARATIONS
                for name in self._declared(declaration)
            }
        return self._of_function[function.start_byte]

    def _declared(self, declaration) -> Iterator[str]:
        kind = declaration.child_by_field_name("type")
        if kind is None or not _INTEGER.fullmatch(self._source.masked_text(kind)):
            return
        for declarator in declaration.children_by_field_name("declarator"):
            identifier = declared_identifier(declarator)
            if identifier is not None:
                yield self._source.node_text(identifier)


def _faults(
    source: Source, node, integers: _Integers, thorough: bool
) -> Iterator[tuple[str, object, str]]:
    """(kind, what is replaced, by what) of the faults at one node."""
    if node.type == "binary_expression":
        yield from _of_operator(source, node, integers, thorough)
    elif node.type == "call_expression":
        yield from _of_call(source, node, integers, thorough)
    elif node.type == "number_literal" and thorough:
        text = source.node_text(node)
        yield "number", node, f"({text} + 1)"
        yield "number", node, f"({text} - 1)"


def _of_operator(source, node, integers, thorough) -> Iterator[tuple[str, object, str]]:
    operator = node.child_by_field_name("operator")
    text = source.node_text(operator)
    if text in ("==", "!=", *RANGE) and not _is_condition_of_loop(node):
        is_bound = text in RANGE and integers.mentioned(node)
        if is_bound or thorough:
            kind = "bound check" if is_bound else "comparison"
            yield kind, node, "true"
            yield kind, node, "false"
    if thorough and text in OTHER_OPERATOR:
        yield "operator", operator, OTHER_OPERATOR[text]


def _is_condition_of_loop(node) -> bool:
    loop = ancestor(node, "for_statement", "while_statement", "do_statement", "lambda_expression")
    if loop is None or loop.type == "lambda_expression":
        return False
    condition = loop.child_by_field_name("condition")
    return (
        condition is not None
        and condition.start_byte <= node.start_byte
        and node.end_byte <= condition.end_byte
    )


def _of_call(source, node, integers, thorough) -> Iterator[tuple[str, object, str]]:
    name = last_name(source, node.child_by_field_name("function"))
    arguments = [
        child
        for child in node.child_by_field_name("arguments").named_children
        if child.type != "comment"
    ]
    if name in BARRIERS:
        yield "barrier", node, "(void)0"
    if name in LIMITS and len(arguments) > 1:
        is_bound = integers.mentioned(node)
        if is_bound or thorough:
            for argument in arguments:
                kind = "bound check" if is_bound else "limit"
                yield kind, node, f"({' '.join(source.node_text(argument).split())})"
    if thorough:
        texts = [source.node_text(argument) for argument in arguments]
        for i in range(len(texts) - 1):
            if texts[i] != texts[i + 1]:
                swapped = [*texts[:i], texts[i + 1], texts[i], *texts[i + 2 :]]
                yield "arguments", node.child_by_field_name("arguments"), f"({', '.join(swapped)})"
        if name in ("min", "max"):
            yield (
                "operator",
                node.child_by_field_name("function"),
                "max" if name == "min" else "min",
            )
