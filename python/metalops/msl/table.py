"""The kernel table of a program, for people: names, buffers with their types, attributes."""

from __future__ import annotations

from dataclasses import dataclass

from .analysis.program import Instance, Program


@dataclass(frozen=True)
class ArgumentEntry:
    """One argument of a kernel. attribute: "buffer", "threadgroup" or the builtin's name; index: its binding index,
    None for builtins."""

    name: str
    type: str
    attribute: str
    index: str | None

    def __str__(self) -> str:
        place = self.attribute if self.index is None else f"{self.attribute}({self.index})"
        return f"{self.type} {self.name} [[{place}]]".replace("  ", " ")


@dataclass(frozen=True)
class KernelEntry:
    """One kernel of a library. unsupported: why it is not in the library, or None."""

    name: str
    arguments: tuple[ArgumentEntry, ...]
    attributes: tuple[str, ...]
    threadgroup_variables: int
    unsupported: str | None = None


def kernel_entries(program: Program) -> list[KernelEntry]:
    instances = sorted([*program.instances, *program.left_out], key=lambda i: i.offset)
    return [_entry(instance) for instance in instances]


def _entry(instance: Instance) -> KernelEntry:
    kernel = instance.kernel
    arguments = tuple(
        ArgumentEntry(p.name or "", p.type, p.attribute, p.index) for p in kernel.parameters
    )
    attributes = tuple(
        a.name + (f"({a.arguments})" if a.arguments is not None else "")
        for a in kernel.function.attributes
        if a.name not in ("host_name", "kernel")
    )
    return KernelEntry(
        instance.name, arguments, attributes, len(kernel.threadgroup_variables), kernel.unsupported
    )
