"""The text of one copy of a function template by address space (space_copies.py)."""

from __future__ import annotations

import re

from ..analysis.program import (
    Function,
    declared_identifier,
    parameter_ranges,
    template_parameters,
)
from ..analysis.types import NO_POINTER
from ..source.parse import Source
from .insertion import Insertion
from .packs import Packs

IDENTIFIERS = "[(identifier) (type_identifier) (namespace_identifier)] @n"
# An argument's address space, or None if it is no pointer. A tuple of these for a pack.
Kind = str | None | tuple


def pointee(kind: Kind) -> str:
    """Returns the template that gives what a pointer points to, as the parameter of a copy is deduced."""
    return "msl_constant_pointee" if kind == "constant" else "msl_pointee"


class TemplateCopy:
    """One copy of a template. kinds: what its parameters are. prefix: of the names in it. bare: (node, the name of its type,
    start) of each parameter of the function. only_written: the parameters that no argument tells. marks: what else is
    inserted into it."""

    def __init__(
        self,
        source: Source,
        function: Function,
        kinds: dict[str, Kind],
        prefix: str,
        bare: list[tuple],
        only_written: list[str],
        marks: list[Insertion],
    ):
        self.source = source
        self.function = function
        self.kinds = kinds
        self.prefix = prefix
        self.bare = bare
        self.only_written = only_written
        self._edits: list[tuple[int, int, str]] = [(i.offset, i.offset, i.text) for i in marks]
        self.packs: dict[
            str, list[str]
        ] = {}  # of types and of parameters: the names of their elements

    def text(self) -> str:
        self._find_packs()
        self._header()
        aliases = self._parameters()
        self._expansions()
        body = self.function.body
        if body is not None:
            self._edit(body.start_byte + 1, body.start_byte + 1, f" {aliases}")
        self._names()
        return self._edited(self.function.node.end_byte)

    def declaration(self) -> str:
        """Returns the declaration of the copy, once text() has been called."""
        return f"{self._edited(self.function.body.start_byte)};"

    def _edited(self, until: int) -> str:
        pieces, position = [], self.function.node.start_byte
        for start, end, text in sorted(self._edits):
            if start < position:
                continue  # inside of what is replaced
            if start >= until:
                break
            pieces += [self.source.text[position:start], text]
            position = end
        pieces.append(self.source.text[position:until])
        lines = re.sub(r"(?m)^[ \t]*#.*$", "", "".join(pieces)).split("\n")
        return " ".join(line.strip() for line in lines)

    def _edit(self, start: int, end: int, text: str) -> None:
        self._edits.append((start, end, text))

    def _type(self, name: str, kind: Kind) -> str:
        """Returns the parameter of a template as it is written outside of the body."""
        return f"{NO_POINTER}{name}" if kind is None else f"{kind} {self.prefix}{name}*"

    def _find_packs(self) -> None:
        for node, name, _ in self.bare:
            if isinstance(self.kinds.get(name), tuple):
                count = len(self.kinds[name])
                self.packs[name] = [f"{name}_{i}" for i in range(count)]
                identifier = declared_identifier(node.child_by_field_name("declarator"))
                if identifier is not None:
                    own = self.source.masked_text(identifier)
                    self.packs[own] = [f"{self.prefix}{own}_{i}" for i in range(count)]

    def _header(self) -> None:
        header = self.function.template_headers[0]
        written = []
        for parameter, (_, start, end) in zip(
            template_parameters(header), parameter_ranges(header), strict=True
        ):
            name = parameter.identifier and self.source.masked_text(parameter.identifier)
            if name not in self.kinds:
                written.append(self._in_header(self.source.text[start:end].strip()))
                continue
            kind = self.kinds[name]
            elements = zip(
                self.packs.get(name, [name]), kind if name in self.packs else [kind], strict=True
            )
            for element, of_element in elements:
                own = NO_POINTER if of_element is None else self.prefix
                default = self.source.text[start:end].partition("=")[2].strip()
                value = ""
                if default and name in self.only_written and of_element is not None:
                    value = f" = {pointee(of_element)}<{self._in_header(default)}>"
                written.append(f"typename {own}{element}{value}")
        self._edit(header.start_byte, header.end_byte, f"<{', '.join(written)}>")

    def _in_header(self, text: str) -> str:
        for name, kind in self.kinds.items():
            if name not in self.packs:
                text = re.sub(rf"\b{re.escape(name)}\b", self._type(name, kind), text)
        return text

    def _parameters(self) -> str:
        """Rewrites the parameters, and returns the aliases of their types in the body."""
        parameters = self.function.declarator.child_by_field_name("parameters")
        written, aliases = [], []
        ranges = {node.id: (start, end) for node, start, end in parameter_ranges(parameters)}
        for node, name, _ in self.bare:
            start, end = ranges[node.id]
            text = self.source.text[start:end].strip()
            if name not in self.kinds:
                written.append(self._in_header(text))
                continue
            identifier = declared_identifier(node.child_by_field_name("declarator"))
            own = "" if identifier is None else self.source.masked_text(identifier)
            before = self.source.text[start : identifier.start_byte if identifier else end]
            suffix = " const" if re.search(r"\bconst\b", before) else ""
            suffix += " thread&" if "&" in before else ""
            kind = self.kinds[name]
            if name in self.packs:
                elements = zip(
                    self.packs[name], kind, self.packs.get(own, [""] * len(kind)), strict=True
                )
                for element, of_element, parameter in elements:
                    written.append(f"{self._type(element, of_element)}{suffix} {parameter}")
            else:
                default = node.child_by_field_name("default_value")
                value = (
                    "" if default is None else f" = {self.source.text[default.start_byte : end]}"
                )
                written.append(f"{self._type(name, kind)}{suffix} {own}{value}")
        for name, kind in self.kinds.items():
            if name not in self.packs and kind is not None:
                aliases.append(f"using {self.prefix}type_{name} = {self._type(name, kind)};")
        self._edit(parameters.start_byte, parameters.end_byte, f"({', '.join(written)})")
        return " ".join(aliases)

    def _expansions(self) -> None:
        """Rewrites the expansions of packs in the body."""
        if self.function.body is None:
            return
        written = {
            name: [self._type(e, k) for e, k in zip(elements, self.kinds[name], strict=True)]
            if name in self.kinds
            else elements
            for name, elements in self.packs.items()
        }
        done = [(start, end) for start, end, _ in self._edits]
        packs = Packs(self.source, written, self._renamed)
        self._edits += packs.expanded(self.function.body, done)

    def _renamed(self, text: str) -> str:
        for name, kind in self.kinds.items():
            if name not in self.packs:
                own = f"{NO_POINTER}{name}" if kind is None else f"{self.prefix}type_{name}"
                text = re.sub(rf"\b{re.escape(name)}\b", own, text)
        return text

    def _names(self) -> None:
        """Renames the parameters of the template where they are left, in the result and in the body."""
        body = self.function.body
        for node in self.source.find(IDENTIFIERS, self.function.node):
            name = self.source.masked_text(node)
            if name not in self.kinds or name in self.packs:
                continue
            kind = self.kinds[name]
            is_inside = body is not None and node.start_byte > body.start_byte and kind is not None
            text = f"{self.prefix}type_{name}" if is_inside else self._type(name, kind)
            self._edit(node.start_byte, node.end_byte, text)
