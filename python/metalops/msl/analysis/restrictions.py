"""Restrictions of Metal that a C++ compiler would let pass, in the words of Apple's compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..source import languages
from ..source.vocabulary import THREAD_ATTRIBUTES
from .program import (
    Kernel,
    Program,
    ProgramError,
    declarator_kinds,
    declared_identifier,
    integer_value,
)

# Limit on the buffers of a Metal function (Metal Feature Set Tables, "Maximum number of entries in the buffer argument
# table, per compute command").
MAX_BUFFERS = 31

_DECLARATORS = """
[(declaration declarator: (_) @d) (field_declaration declarator: (_) @d) (parameter_declaration declarator: (_) @d)]
"""
_POSITION_TYPE = re.compile(r"(?:const )?(?:metal::)?u?(?:short|int)([234]?)(?: const)?$")


def check(program: Program, language: int) -> None:
    """Raises ProgramError at the first construct that is forbidden. language: __METAL_VERSION__."""
    for name, offset, first in newer_names(program, language):
        raise ProgramError(
            f"{name} needs Metal {languages.name_of(first)}, and this is Metal "
            f"{languages.name_of(language)} ({languages.VARIABLE} chooses, where the program does not)",
            offset,
        )
    _program_scope_variables(program)
    for kernel in program.kernels:
        _thread_limit(program, kernel)
        _widths_of_positions(program, kernel)
        _buffer_indices(program, kernel)


def newer_names(program: Program, language: int) -> Iterator[tuple[str, int, int]]:
    """Yields the uses of names that only later languages have, in order: the name, its offset, and the first language
    that has it. Names that the program declares itself are left out."""
    source = program.source
    newer = {n: v for n, v in languages.newer_names(language).items() if n in source.identifiers}
    if not newer:
        return
    words = "|".join(newer)
    own = re.compile(rf"\b(?:struct|class|enum|using|typename|concept)\s+({words})\s*[{{:;=>,]")
    declared = {match[1] for match in own.finditer(source.masked)}
    declared.update(function.name for function in program.functions)
    for node in source.find(_DECLARATORS):
        name = declared_identifier(node)
        if name is not None:
            declared.add(source.masked_text(name))
    for match in re.finditer(rf"\b(?:{words})\b", source.masked):
        if match[0] not in declared:
            yield match[0], match.start(), newer[match[0]]


def _program_scope_variables(program: Program) -> None:
    source = program.source
    for node, _, head in program.declarations:
        declarators = node.children_by_field_name("declarator")
        if not declarators or node.has_error:
            continue
        if source.node_text(node.child_by_field_name("type")).split("::")[-1].strip() == "sampler":
            continue
        if any(source.node_text(c) in ("extern", "typedef") for c in node.children):
            continue
        if any(declarator_kinds(d, True) & {"function", "reference"} for d in declarators):
            continue
        # In `device T* constant p` the word follows the star.
        if source.words_in(head, node.end_byte):
            continue
        raise ProgramError(
            "program scope variable must reside in constant address space",
            declarators[0].start_byte,
        )


def _thread_limit(program: Program, kernel: Kernel) -> None:
    function = kernel.function
    parameters = function.declarator.child_by_field_name("parameters")
    for attribute in program.source.attributes_in(parameters.end_byte, function.body.start_byte):
        if attribute.name == "max_total_threads_per_threadgroup":
            raise ProgramError(
                "'max_total_threads_per_threadgroup' attribute cannot be applied to types: "
                "it stands before the kernel, not behind its parameters",
                attribute.start,
            )


def _widths_of_positions(program: Program, kernel: Kernel) -> None:
    """Checks that a kernel takes all positions and sizes as scalars, or all as vectors of one width."""
    first = None
    for parameter in kernel.parameters:
        match = _POSITION_TYPE.match(parameter.type)
        attribute = THREAD_ATTRIBUTES.get(parameter.attribute)
        if attribute is None or not attribute.is_position or match is None:
            continue
        if first is None:
            first = parameter, match[1]
        elif first[1] != match[1]:
            raise ProgramError(
                "expecting input declarations with either all scalar types or all vector types "
                f"with the same number of elements: '{first[0].attribute}' has type "
                f"'{first[0].type}', '{parameter.attribute}' has type '{parameter.type}'",
                program.source.next_code(parameter.start),
            )


def _buffer_indices(program: Program, kernel: Kernel) -> None:
    for parameter in kernel.parameters:
        if parameter.kind != "buffer" or parameter.index is None:  # or the kernel is left out
            continue
        if (integer_value(parameter.index) or 0) >= MAX_BUFFERS:
            raise ProgramError(
                "'buffer' attribute parameter is out of bounds: must be between 0 and "
                f"{MAX_BUFFERS - 1}, but is {parameter.index}",
                program.source.next_code(parameter.start),
            )
