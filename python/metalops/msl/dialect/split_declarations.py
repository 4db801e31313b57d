"""Splits declarations in which a synchronising call uses a variable that they declare, `uint a = x, b = simd_sum(a);`.

Loops over the threads of a group have to end between the values of the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..analysis.calls import CallGraph
from ..analysis.program import Program, declared_identifier
from ..source.locations import LineMap
from ..source.parse import Source
from ..source.vocabulary import is_simdgroup_name
from .insertion import Insertion, inserted


def with_split_declarations(program: Program, lines: LineMap) -> Program:
    """Returns the program with these declarations split: the program itself, if it has none. lines: the map of its text,
    which becomes that of the new program's."""
    if not any(map(is_simdgroup_name, program.source.identifiers)):
        return program
    insertions = [*_insertions(program)]
    if not insertions:
        return program
    made = Program(Source(inserted(program.source.text, insertions, lines)))
    made.left_out = program.left_out
    return made


def _insertions(program: Program) -> Iterator[Insertion]:
    source = program.source
    calls = None
    for node in source.find("(compound_statement (declaration) @d)"):
        declarators = node.children_by_field_name("declarator")
        if len(declarators) < 2 or node.has_error:
            continue
        start = source.previous_code(node.start_byte) + 1
        specifiers = source.text[start : declarators[0].start_byte]
        if "\n" in specifiers.strip() or source.words_in(start, declarators[0].start_byte):
            continue
        declared: set[str] = set()
        for index, declarator in enumerate(declarators):
            value = declarator.child_by_field_name("value")
            if value is not None and declared & {
                source.masked_text(n) for n in source.find("(identifier) @n", value)
            }:
                calls = calls or CallGraph(program)
                if any(map(calls.call_synchronises, source.find("(call_expression) @c", value))):
                    comma = source.masked.rindex(
                        ",", declarators[index - 1].end_byte, declarator.start_byte
                    )
                    yield Insertion(comma, f"; {specifiers.strip()} ", comma + 1)
            identifier = declared_identifier(declarator)
            if identifier is not None:
                declared.add(source.masked_text(identifier))
