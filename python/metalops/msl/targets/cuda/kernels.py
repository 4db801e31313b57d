"""Turns kernels into device functions of the GPU's threads. Their launch is in entries.py."""

from __future__ import annotations

from ...analysis.program import Kernel, Program, ThreadgroupVariable, check_initializer
from ...dialect import names
from ...dialect.rewrite import Rewritten, rewrite
from .generic_lambdas import name_types_of_constants
from .sites import Sites
from .strided_loops import unroll_strided_loops
from .subscripts import join_subscripts
from .unrolling import keep_unrolling, unrolled_loops


def rewrite_for_cuda(program: Program) -> tuple[Rewritten, Sites]:
    """Returns the edits for the whole program. Raises ProgramError for constructs that Metal forbids or this target
    lacks."""
    sites: list[Sites] = []

    def add_sites(rewritten: Rewritten) -> None:
        sites.append(Sites(rewritten))
        sites[0].add()

    # All threads of its scope run an operation on tensors: it needs no mask of lanes.
    rewritten = rewrite(program, add_sites, compiled_in=True, tensors_meet=False)
    for kernel in program.kernels:
        _kernel(rewritten, kernel)
    unroll_strided_loops(rewritten, unrolled_loops(rewritten))
    keep_unrolling(rewritten)
    if program.has_tensors:
        join_subscripts(rewritten)
    name_types_of_constants(rewritten)
    return rewritten, sites[0]


def _kernel(rewritten: Rewritten, kernel: Kernel) -> None:
    function, edits = kernel.function, rewritten.edits
    if kernel.unsupported:
        rewritten.remove(function.head, function.node)
        return
    if rewritten.is_removed(function.node.start_byte):
        return
    start = function.node.start_byte
    if function.template_headers:
        start = rewritten.program.source.next_code(function.template_headers[-1].end_byte)
    edits.append(start, "__forceinline__ ")
    declarations = {v.declaration.start_byte: v for v in kernel.threadgroup_variables}
    for variable in declarations.values():
        edits.append(variable.declaration.start_byte, "__shared__ ")
    for variable in kernel.threadgroup_variables:
        _begin(rewritten, variable)


def _begin(rewritten: Rewritten, variable: ThreadgroupVariable) -> None:
    """Rewrites the zero initialiser of a variable in threadgroup memory, the only one allowed: the group's first thread
    writes the zeros."""
    declarator = variable.declarator
    if declarator.type != "init_declarator":
        return
    source = rewritten.program.source
    check_initializer(source, declarator)
    rewritten.edits.erase(
        declarator.child_by_field_name("declarator").end_byte, declarator.end_byte
    )
    name = source.node_text(variable.identifier)
    rewritten.edits.append(variable.declaration.end_byte, f" {names.SUPPORT}::clear({name});")
