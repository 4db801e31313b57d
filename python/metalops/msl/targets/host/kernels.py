"""Turns kernels into ordinary functions, and passes each synchronising call its site.

The launch of kernels is in thunks.py.
"""

from __future__ import annotations

from ...analysis.program import Kernel, Program
from ...dialect import names
from ...dialect.rewrite import Rewritten, rewrite
from .synchronisation import add_sites
from .threadgroup import rewrite_variables


def rewrite_for_host(program: Program) -> tuple[Rewritten, list[int]]:
    """Returns the edits for the whole program, and the offsets of its sites, by their numbers. Raises ProgramError for
    constructs that Metal forbids."""
    rewritten = rewrite(program)
    with rewritten.edits.layer("fibers"):
        sites = add_sites(rewritten)  # around the rewritten expressions
    for kernel in program.kernels:
        _kernel(rewritten, kernel)
    return rewritten, sites


def _kernel(rewritten: Rewritten, kernel: Kernel) -> None:
    """Turns a kernel into a function that is inlined into its thunk, with the group as a last parameter if needed."""
    function, edits = kernel.function, rewritten.edits
    if kernel.unsupported:
        rewritten.remove(function.head, function.node)
        return
    start = function.node.start_byte
    if function.template_headers:
        start = rewritten.program.source.next_code(function.template_headers[-1].end_byte)
    edits.append(start, "inline __attribute__((always_inline)) ")
    if kernel.threadgroup_variables:
        parameters = function.declarator.child_by_field_name("parameters")
        if not kernel.parameters:
            edits.blank(parameters.start_byte + 1, parameters.end_byte - 1)
        comma = ", " if kernel.parameters else ""
        edits.append(parameters.end_byte - 1, f"{comma}{names.ABI}::Group& msl_group")
        rewrite_variables(rewritten, kernel)
