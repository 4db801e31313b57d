"""Turns the Metal parts of a program into C++, by edits on exact ranges of the syntax tree. Each step that every target
needs is a module of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..analysis.calls import CallGraph
from ..analysis.program import (
    Program,
    ProgramError,
    declared_identifier,
    parameter_ranges,
)
from .address_spaces import AddressSpaces
from .anonymous_members import anonymous_members
from .deduced_values import deduced_values
from .duplicates import remove_duplicates
from .edits import Edits
from .expressions import Expressions
from .function_constants import Derived, FunctionConstants
from .member_specialisations import member_specialisations
from .promotions import promotions

_VECTOR_WIDTH = re.compile(r"\b(?:packed_)?vec\s*<[^<>]*,\s*([A-Za-z_]\w*)\s*>")

_BICUBIC = re.compile(r"\b(?:mag_|min_)?filter\s*::\s*bicubic\b")


@dataclass
class Rewritten:
    """A program, the edits that make it C++, and the facts that emitted tables need."""

    program: Program
    edits: Edits
    calls: CallGraph
    swizzles: set[str] = field(default_factory=set)  # names that need an accessor
    derived: list[Derived] = field(default_factory=list)
    removed: list[tuple[int, int]] = field(default_factory=list)

    def remove(self, head: int, node, end: int | None = None) -> None:
        """Removes a declaration, with the attributes and specifiers from `head` on."""
        start = min(self.program.source.next_code(head), node.start_byte)
        end = node.end_byte if end is None else end
        self.edits.erase(start, end)
        self.removed.append((node.start_byte, end))

    def is_removed(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.removed)


def rewrite(
    program: Program,
    before_expressions: Callable[[Rewritten], None] = lambda _: None,
    compiled_in: bool = False,
    tensors_meet: bool = True,
) -> Rewritten:
    """Returns the edits for the whole program. Raises ProgramError for constructs that Metal forbids.

    before_expressions: makes edits that must precede the copying of expressions' text. compiled_in: true if the values
    of function constants are compiled in. tensors_meet: see CallGraph.
    """
    _refuse_bicubic_filters(program)
    calls = CallGraph(program, tensors_meet)
    rewritten = Rewritten(program, Edits(program.source.text), calls)
    _erase_attributes(rewritten)
    AddressSpaces(program, rewritten.edits).run()
    deduced_values(rewritten)
    before_expressions(rewritten)
    Expressions(rewritten).run()
    FunctionConstants(rewritten, compiled_in).run()
    member_specialisations(rewritten)
    _enumerations(rewritten)
    anonymous_members(rewritten)
    promotions(rewritten)
    _linkage(rewritten)
    _vector_widths(rewritten)
    _functions_of_other_stages(rewritten)
    for node, _, head in program.instantiations:
        rewritten.remove(head, node)
    remove_duplicates(rewritten)
    return rewritten


def _refuse_bicubic_filters(program: Program) -> None:
    is_named = "bicubic" in program.source.words_at
    found = _BICUBIC.search(program.source.masked) if is_named else None
    if found is not None:
        raise ProgramError(
            "bicubic filters of samplers are not supported: sample with filter::linear, or read the texels",
            found.start(),
        )


def _erase_attributes(rewritten: Rewritten) -> None:
    """Erases attributes, and pragmas: these are hints to Apple's compiler, in which macros are not even expanded."""
    source, edits = rewritten.program.source, rewritten.edits
    for item in source.attribute_lists:
        edits.blank(item.start, item.end)
    for match in re.finditer(r"(?m)^[ \t]*#[ \t]*pragma[^\n]*", source.text):
        edits.erase(*match.span())


def _linkage(rewritten: Rewritten) -> None:
    """Blanks `extern "C"` and its braces: functions of all programs have names of their own in a library."""
    for node in rewritten.program.source.find("(linkage_specification) @l"):
        rewritten.edits.blank(node.start_byte, node.child_by_field_name("value").end_byte)
        body = node.child_by_field_name("body")
        if body.type == "declaration_list":
            rewritten.edits.blank(body.start_byte, body.start_byte + 1)
            rewritten.edits.blank(body.end_byte - 1, body.end_byte)


def _enumerations(rewritten: Rewritten) -> None:
    """Rewrites `typedef enum E : int E;`, as the usual NS_ENUM of headers shared with the host has it before the
    enumeration itself: C++ wants the declaration alone."""
    source = rewritten.program.source
    for node in source.find("(type_definition type: (enum_specifier base: (_) !body)) @t"):
        enumeration = node.child_by_field_name("type")
        name = source.node_text(enumeration.child_by_field_name("name"))
        alias = source.node_text(node.child_by_field_name("declarator"))
        declared = source.node_text(enumeration)
        also = "" if alias == name else f" typedef {name} {alias};"
        rewritten.edits.replace(node.start_byte, node.end_byte, f"{declared};{also}")


def _vector_widths(rewritten: Rewritten) -> None:
    """Rewrites `template <typename T, uint N> void f(vec<T, N>)`: Metal deduces N of any integer type, C++ only an int,
    as vec declares it."""
    source = rewritten.program.source
    for function in rewritten.program.functions:
        parameters = function.declarator.child_by_field_name("parameters")
        text = source.masked_text(parameters) if function.template_headers else ""
        widths = set(_VECTOR_WIDTH.findall(text))
        for header in function.template_headers if widths else ():
            for node, _, _ in parameter_ranges(header):
                name = declared_identifier(node.child_by_field_name("declarator"))
                if name is not None and source.node_text(name) in widths:
                    type_node = node.child_by_field_name("type")
                    if type_node.type != "placeholder_type_specifier":
                        rewritten.edits.replace(type_node.start_byte, type_node.end_byte, "int")


def _functions_of_other_stages(rewritten: Rewritten) -> None:
    """Removes vertex functions and the like, and kernels that are only declared."""
    for function in rewritten.program.functions:
        is_kernel = function.stage == "kernel"
        if function.stage is not None and (not is_kernel or function.body is None):
            rewritten.remove(function.head, function.node)
