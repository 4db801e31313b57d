"""Writes the template arguments of classes that their constructors deduce, `s x(p)` as `s<device float*> x(p)`, so that
copies of these classes (class_copies.py) and their specialisations see them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..analysis.program import ClassScope, Function, parameter_ranges, template_parameters
from ..analysis.spaces import NO, Spaces, chain, decayed
from ..analysis.types import Type
from .insertion import Insertion
from .specialisations import deduced_uses


class ClassDeduction:
    """copies_around: returns the copies of the template around a node, or []."""

    def __init__(self, spaces: Spaces, copies_around):
        self.spaces = spaces
        self.source = spaces.source
        self._copies_around = copies_around

    def of(self, scope: ClassScope) -> list[Insertion] | None:
        """Returns the insertions that write the template arguments of a class template, or first the copies of a template
        in which they are deduced. Empty if they are not known; None if none is deduced."""
        found = []
        waiting = None
        for node in deduced_uses(self.spaces.program, scope.name):
            arguments = self._arguments(node)
            if arguments is None:
                return []
            texts = self._deduced(scope, arguments)
            if texts is None:
                waiting = waiting or node
                continue
            found.append(Insertion(node.end_byte, f"<{', '.join(texts)}>"))
        if found or waiting is None:
            return found or None
        return self._copies_around(waiting)

    def _arguments(self, node) -> list | None:
        """Returns the expressions that an object is made of: (text, type) of each; None if they are not known."""
        use = node.parent
        while use.type == "qualified_identifier":
            use = use.parent
        if use.type == "call_expression":
            given = use.child_by_field_name("arguments")
        elif use.type == "compound_literal_expression":
            given = use.child_by_field_name("value")
        else:
            declarators = use.children_by_field_name("declarator")
            if len(declarators) != 1:
                return None
            if declarators[0].type == "function_declarator":  # `s x(p);`
                return [*self._parsed_as_parameters(declarators[0])]
            given = declarators[0].child_by_field_name("value")
            if given is None:
                return None
            if given.type not in ("argument_list", "initializer_list"):
                return [(self.source.node_text(given), self.spaces.type_of(given))]
        nodes = [c for c in given.named_children if c.type != "comment"]
        if any(c.type == "parameter_pack_expansion" for c in nodes):
            return None
        return [(self._text(c), self.spaces.type_of(c)) for c in nodes]

    def _text(self, node) -> str:
        return " ".join(self.source.text[node.start_byte : node.end_byte].split())

    def _parsed_as_parameters(self, declarator) -> Iterator:
        """Yields the arguments of `s x(p, q);`, which the parser takes for a declaration of a function."""
        scopes = self.spaces.calls.scopes_around(declarator)
        for node, _, _ in parameter_ranges(declarator.child_by_field_name("parameters")):
            name = self.source.masked_text(node).strip()
            declaration = scopes.declaration_of(node.child_by_field_name("type") or node)
            found = None if declaration is None else self.spaces.type_of_variable(declaration)
            yield name, found

    def _deduced(self, scope: ClassScope, arguments: list) -> list[str] | None:
        """Returns the template arguments that a constructor deduces; None if they are not known."""
        types = [decayed(t) for _, t in arguments]
        if len(types) == 1 and types[0] is not None and types[0].name.startswith(f"{scope.name}<"):
            return [types[0].name.partition("<")[2].rpartition(">")[0].strip()]  # a copy
        if any(t is not None and t.name == scope.name for t in types):
            return None  # an object whose own arguments are written first
        found = set()
        for constructor in self._constructors(scope, len(arguments)):
            parameters = self.spaces.types.parameters(constructor.declarator)
            taken = [
                self._takes(d.type, t) for (_, _, d), t in zip(parameters, types, strict=False)
            ]
            if NO in taken:
                continue
            found.add(self._deduced_by(scope, constructor, arguments, types))
        return [*found.pop()] if len(found) == 1 and None not in found else None

    def _constructors(self, scope: ClassScope, count: int) -> list[Function]:
        lookup = self.spaces.calls.lookup
        found = [f for f in self.spaces.program.functions if f.name == scope.name]
        if any(lookup.owner(f) != scope.name for f in found):
            return []  # a deduction guide
        own = [f for f in found if scope.node.start_byte <= f.node.start_byte < scope.end]
        return lookup.taking(own, (count, count))

    @staticmethod
    def _takes(wanted: Type, actual: Type | None) -> str | None:
        if actual is None or wanted.kind == "reference":
            return None
        if wanted.kind == "pointer":
            return NO if actual.kind != "pointer" or chain(wanted)[0] != chain(actual)[0] else None
        return NO if actual.kind == "pointer" and not wanted.is_open else None

    def _deduced_by(self, scope, constructor: Function, arguments: list, types: list):
        found: list[str] = []
        header = template_parameters(scope.template_headers[0])
        if any(p.node.type.startswith("variadic") for p in header):
            return None
        parameters = self.spaces.types.parameters(constructor.declarator)
        for parameter in header:
            name = parameter.identifier and self.source.masked_text(parameter.identifier)
            texts = [
                self._deduced_from(declared.type, name, text, type_)
                for (_, _, declared), (text, _), type_ in zip(
                    parameters, arguments, types, strict=False
                )
            ]
            texts = [t for t in texts if t is not None]
            if not texts:
                return tuple(found) if "=" in self.source.masked_text(parameter.node) else None
            if "" in texts:
                return None
            found.append(texts[0])
        return tuple(found)

    @staticmethod
    def _deduced_from(wanted: Type, name: str, text: str, type_: Type | None) -> str | None:
        """Returns what a parameter tells of a template parameter: None for nothing, "" for what is not known."""
        if wanted.kind == "reference":
            wanted = wanted.target
            if wanted.kind == "value" and wanted.space not in (None, "thread"):
                return None if wanted.name != name else ""
        if wanted.kind == "pointer" and wanted.target.name == name:
            return f"msl_pointee<decltype(({text}) + 0)>"
        if wanted.kind != "value" or wanted.name != name:
            return None
        if type_ is None or type_.is_open:
            return ""
        spaces = chain(type_)
        if len(spaces) == 1:
            pointee = "msl_constant_pointee" if spaces[0] == "constant" else "msl_pointee"
            return f"{spaces[0]} {pointee}<decltype(({text}) + 0)>*"
        if spaces:
            return ""
        return type_.name if "<" in type_.name else f"msl_decayed<decltype({text})>"
