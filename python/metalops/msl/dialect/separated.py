"""Separates what address spaces tell apart, before they are erased."""

from __future__ import annotations

from ..analysis.program import Program, ProgramError
from ..analysis.spaces import spaces_of
from .insertion import Insertion
from .overloads import Overloads, spaced_families
from .specialisations import has_spaced_arguments, spaced_arguments


def insertions(program: Program) -> list[Insertion]:
    """Returns the text that keeps apart overloads and specialisations that differ by address space, in order. Empty for
    a program whose meaning does not depend on them.

    Raises ProgramError where it depends on an address space that is not known, at the first place.
    """
    families = spaced_families(program)
    specialised = has_spaced_arguments(program)
    if not families and not specialised:
        return []
    spaces = program.kept(spaces_of)
    overloads = Overloads(program, spaces, families)
    found, errors = [], []
    for step in (
        lambda: overloads.run() if families else [],
        lambda: spaced_arguments(program, spaces) if specialised else [],
    ):
        try:
            found += step()
        except ProgramError as error:
            errors.append(error)
    if errors:
        raise min(errors, key=lambda error: error.offset)
    found += overloads.copies(found)
    return sorted(found, key=lambda i: i.offset)
