"""Accesses to buffers by kernels whose threads run as vector lanes.

The form runs a statement for all lanes before the next one. It leaves the memory as threads that run one after another
do if no thread accesses an element that another one writes. So all accesses to memory have to be seen: buffers are
subscripted where they are mentioned, and each that is written has one index, which differs from thread to thread, or is
accessed in rows that belong to a thread each (rows.py). That buffers do not share memory is known when the kernel is
launched.
"""

from __future__ import annotations

from ....analysis.program import Kernel
from ....analysis.scopes import Declaration, FunctionScopes
from ....source.parse import Source
from .reasons import NoLanes

_EFFECTS = ("assignment_expression", "update_expression")


class Accesses:
    """written: by the name of each buffer that the kernel writes, the indices of all accesses to it. stores: the elements
    that are written. positions: the numbers of these buffers' parameters. Raises NoLanes."""

    def __init__(self, source: Source, scopes: FunctionScopes, kernel: Kernel):
        self._source = source
        self._scopes = scopes
        self.written: dict[str, list] = {}
        self.positions: list[int] = []
        self.stores: list = []
        by_name = {p.name: n for n, p in enumerate(kernel.parameters)}
        for declaration in scopes.declarations:
            if declaration.kind != "parameter" or declaration.name not in by_name:
                continue
            position = by_name[declaration.name]
            parameter = kernel.parameters[position]
            if parameter.kind != "buffer":
                continue
            is_read_only = bool({"const", "constant"} & set(parameter.type.split()))
            if declaration.is_pointer:
                self._read_pointer(declaration, position, is_read_only)
            elif not is_read_only:
                raise NoLanes(f"'{declaration.name}', a reference to memory")
        if not self.written:
            raise NoLanes("no store to a buffer")
        for node in source.find("(pointer_expression) @n", kernel.function.body):
            raise NoLanes(f"the pointer '{source.masked_text(node)}'")
        for node in source.find("(subscript_expression) @n", kernel.function.body):
            self._check_base(node)

    def _check_base(self, subscript) -> None:
        """Refuses subscripts of what may be pointers that lie in memory."""
        base = subscript.child_by_field_name("argument")
        declaration = self._scopes.declaration_of(base) if base.type == "identifier" else None
        if declaration is None or declaration.kind != "parameter" or not declaration.is_pointer:
            raise NoLanes(f"'{self._source.masked_text(subscript)}'")
        if declaration.kinds != ["pointer"]:
            raise NoLanes(f"'{declaration.name}', which points to pointers")

    def _read_pointer(self, pointer: Declaration, position: int, is_read_only: bool) -> None:
        indices, is_written = [], False
        for use in pointer.uses:
            access = use.parent
            if (
                access.type == "field_expression"
                and access.child_by_field_name("operator").type == "->"
                and is_read_only
            ):
                continue
            if (
                access.type != "subscript_expression"
                or access.child_by_field_name("argument") != use
            ):
                raise NoLanes(f"'{pointer.name}' without an index")
            found = access.child_by_field_name("indices").named_children
            if len(found) != 1:
                raise NoLanes(f"'{pointer.name}' with several indices")
            indices.append(found[0])
            if not is_read_only and self._is_store(access):
                self.stores.append(access)
                is_written = True
        if not is_written:
            return
        self.written[pointer.name] = indices
        self.positions.append(position)

    def _is_store(self, access) -> bool:
        """Returns true if an element is written. Raises NoLanes if it may be written elsewhere."""
        while access.parent.type in ("field_expression", "parenthesized_expression"):
            access = access.parent
        around = access.parent
        if around.type == "assignment_expression":
            return around.child_by_field_name("left") == access
        if around.type == "call_expression":
            raise NoLanes(f"the member function '{self._source.masked_text(access)}'")
        return around.type == "update_expression"
