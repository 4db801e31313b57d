"""Writes what starts the kernels on a GPU: for every kernel an entry, which finds the thread's place and the arguments,
and a table of what template arguments decide about it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...dialect import names
from ...dialect.assembly import Piece, in_namespaces, parameter_types
from ...dialect.rewrite import Rewritten
from ...program import Instance, Kernel, Parameter
from .sites import Sites

_SUPPORT = names.SUPPORT


def has_fast_entry(kernel: Kernel) -> bool:
    """Whether a kernel can be given its arguments one by one, for grids of one dimension: pointers to memory that is
    aligned and that no other argument shows, and values."""
    return all(
        p.kind == "builtin" or (p.kind == "buffer" and (p.is_pointer or _is_value(p)))
        for p in kernel.parameters
    )


def _is_value(parameter: Parameter) -> bool:
    return parameter.is_reference and "constant" in parameter.type.split()


def arguments(kernel: Kernel) -> tuple[str, ...]:
    """What the arguments in buffers and threadgroup memory are, in their order: "pointer", "value" (a reference to
    constant memory), "reference" or "threadgroup"."""
    kinds = []
    for p in kernel.parameters:
        if p.kind == "threadgroup":
            kinds.append("threadgroup")
        elif p.kind == "buffer":
            kinds.append("value" if _is_value(p) else "pointer" if p.is_pointer else "reference")
    return tuple(kinds)


class Entries:
    def __init__(self, rewritten: Rewritten, sites: Sites):
        self.rewritten = rewritten
        self.program = rewritten.program
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        self.sites = sites
        self.instances = [i for i in self.program.instances if not i.kernel.unsupported]

    def pieces(self) -> Iterator[Piece]:
        for number, instance in enumerate(self.instances):
            yield self._instance(number, instance)

    def _instance(self, number: int, instance: Instance) -> Piece:
        kernel = instance.kernel
        expression = self.edits.text_of(*instance.expression)
        takes_site = self.sites.takes_site(kernel.function)
        if instance.signature is None:
            signature = f"decltype(&{expression})"
        else:
            types = parameter_types(self.rewritten, instance.signature)
            if takes_site:
                types.insert(0, f"{names.ABI}::Site")
            signature = f"void (*)({', '.join(types)})"
        types = f"msl_types_{number}"
        values = ["msl_place.site"] if takes_site else []
        fast_values, fast_parameters = list(values), []
        facts = [kernel.max_threads or "0"]
        for position, p in enumerate(kernel.parameters):
            kind = f"{types}::parameter<{position + takes_site}>"
            if p.kind == "builtin":
                value = f"{_SUPPORT}::builtin<{kind}>::make(msl_place.{p.attribute}(msl_extent))"
                values.append(value)
                fast_values.append(value)
                continue
            what = "buffer" if p.kind == "buffer" else "threadgroup"
            values.append(f"{_SUPPORT}::{what}<{kind}>(msl_launch, {p.index})")
            facts.append(
                f"{p.index}, {_SUPPORT}::element_bytes<{kind}>, {_SUPPORT}::is_writable<{kind}>"
            )
            name = f"msl_argument_{position}"
            if _is_value(p):
                fast_parameters.append(
                    f"const __grid_constant__ {_SUPPORT}::plain_value<{kind}>::type {name}"
                )
                fast_values.append(name)
            else:
                fast_parameters.append(f"{kind} __restrict__ {name}")
                fast_values.append(f"{_SUPPORT}::aligned({name})")
        extent = f"const __grid_constant__ {names.ABI}::Extent msl_extent"
        text = f"""typedef {_SUPPORT}::signature<{signature}> {types};
extern "C" __device__ const {names.ABI}::u32 msl_facts_{number}[] = {{{", ".join(facts)}}};
extern "C" __global__ void msl_kernel_{number}(const __grid_constant__ {names.ABI}::Launch msl_launch) {{
  const {names.ABI}::Extent& msl_extent = msl_launch.extent;
  const {_SUPPORT}::Place<false> msl_place(msl_extent);
  if (!msl_place.exists) return;
  {expression}({", ".join(values)});
}}
"""
        if has_fast_entry(kernel):
            text += f"""extern "C" __global__ void msl_fast_{number}({", ".join([extent, *fast_parameters])}) {{
  const {_SUPPORT}::Place<true> msl_place(msl_extent);
  if (!msl_place.exists) return;
  {expression}({", ".join(fast_values)});
}}
"""
        return Piece(in_namespaces(instance.path, text), instance.offset)
