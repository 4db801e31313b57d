"""Class templates with packs, written out for each number of arguments that uses of them have.

`template <typename... T> struct s` gets a specialisation `template <typename T_0, typename T_1> struct s<T_0, T_1>`, of
which copies by address space are made as of any other (class_copies.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ..analysis.program import (
    ClassScope,
    declared_identifier,
    parameter_ranges,
    template_name,
    template_parameters,
)
from ..analysis.spaces import Spaces
from ..analysis.types import NO_POINTER, NOTHING
from .insertion import Insertion
from .packs import Packs
from .specialisations import uses

_LIMIT = 32  # numbers of arguments
_IDENTIFIERS = "[(identifier) (type_identifier) (namespace_identifier)] @n"


def has_pack(scope: ClassScope) -> bool:
    """Returns true for a class template with a pack that is not written out yet, or is left for what is no pointer."""
    return any(
        p.node.type.startswith("variadic")
        for header in scope.template_headers
        for p in template_parameters(header)
    )


class PackClasses:
    """copies_around: returns the copies of the template around a node, or []."""

    def __init__(self, spaces: Spaces, copies_around: Callable):
        self.spaces = spaces
        self.source = spaces.source
        self.program = spaces.program
        self._copies_around = copies_around

    def of(self, scopes: list[ClassScope]) -> list[Insertion] | None:
        """Returns the insertions that write out a class template of these classes, or first the copies of a template in
        which it is used. Empty if it cannot be written out; None if it has no packs, or it is done."""
        with_packs = [s for s in scopes if has_pack(s)]
        if not with_packs or all(self._is_done(s) for s in with_packs):
            return None
        if not all(map(self._is_simple, with_packs)) or self._has_members_outside(scopes[0]):
            return []
        counts: set[int] = set()
        is_left = False
        for use in self._uses(scopes):
            count = self._count(use)
            if count is not None:
                counts.add(count)
            elif self._is_of_no_pointers(use):
                is_left = True
            else:
                return self._copies_around(use)
        waiting, longer = [*counts], []
        while waiting and len(counts) < _LIMIT:
            count = waiting.pop()
            for scope, text, given in self._written_out(scopes, with_packs, count):
                longer.append(Insertion(scope.end, f" {text}"))
                for other in given - counts:
                    counts.add(other)
                    waiting.append(other)
        prefix = NO_POINTER if is_left else NOTHING
        for scope in with_packs:
            names = {self._name(p) for p in template_parameters(scope.template_headers[0])}
            for node in self.source.find(_IDENTIFIERS, scope.node):
                if self.source.masked_text(node) in names:
                    longer.append(Insertion(node.start_byte, prefix))
        return sorted(longer, key=lambda i: i.offset)

    # ---- which classes and uses ------------------------------------------------------------------

    def _name(self, parameter) -> str:
        return self.source.masked_text(parameter.identifier)

    def _is_done(self, scope: ClassScope) -> bool:
        pack = template_parameters(scope.template_headers[0])[-1]
        return pack.identifier is not None and self._name(pack).startswith(NO_POINTER)

    def _is_simple(self, scope: ClassScope) -> bool:
        """Returns true for a class of one template, whose parameters have names and of which the last one is a pack of
        types."""
        if len(scope.template_headers) != 1:
            return False
        *others, pack = template_parameters(scope.template_headers[0])
        if any(p.identifier is None for p in (*others, pack)) or not pack.is_type:
            return False
        return not any(p.node.type.startswith("variadic") for p in others) and not any(
            part.startswith("class ") for part in scope.path
        )

    def _has_members_outside(self, scope: ClassScope) -> bool:
        name = _bare(scope)
        owner = self.spaces.calls.lookup.owner
        return any(owner(f) == name and not f.in_class for f in self.program.functions)

    def _uses(self, scopes: list[ClassScope]) -> Iterator:
        """Yields the uses of a class template outside of its classes."""
        name = _bare(scopes[0])
        for node in uses(self.source):
            if self.source.masked_text(template_name(node)) == name and not any(
                s.node.start_byte <= node.start_byte < s.end for s in scopes
            ):
                yield node

    @staticmethod
    def _count(use) -> int | None:
        """Returns how many template arguments a use has; None if that depends on a pack."""
        given = [
            c for c in use.child_by_field_name("arguments").named_children if c.type != "comment"
        ]
        if any(c.type == "parameter_pack_expansion" for c in given):
            return None
        return len(given)

    def _is_of_no_pointers(self, use) -> bool:
        """Returns true for a use whose packs are of what is no pointer."""
        return all(
            self.source.masked_text(a).lstrip().startswith(NO_POINTER)
            for a in use.child_by_field_name("arguments").named_children
            if a.type == "parameter_pack_expansion"
        )

    # ---- text ------------------------------------------------------------------------------------

    def _written_out(
        self, scopes: list[ClassScope], with_packs: list[ClassScope], count: int
    ) -> Iterator[tuple[ClassScope, str, set[int]]]:
        """Yields the classes that take a number of arguments, each with its text for it, and how many arguments it gives
        the template itself. Of those that take any types of that number only the one with the smallest pack."""
        general: ClassScope | None = None
        found = []
        for scope in with_packs:
            fixed = self._fixed(scope)
            if fixed is None or len(fixed) > count:
                continue
            header = template_parameters(scope.template_headers[0])
            if {*fixed} <= {self._name(p) for p in header}:
                if general is None or len(fixed) > len(self._fixed(general) or ()):
                    general = scope
            else:
                found.append(scope)
        is_taken = any(
            not has_pack(s) and s is not general and self._takes_any(s, count) for s in scopes
        )
        for scope in ([] if general is None or is_taken else [general]) + found:
            written = _Written(self, scope, count - len(self._fixed(scope) or ()))
            yield scope, written.text(), written.given

    def _takes_any(self, scope: ClassScope, count: int) -> bool:
        """Returns true for a specialisation for any types of some number: `s<A, B>`, or `s<>`."""
        head = scope.specifier.child_by_field_name("name")
        if head.type != "template_type" or len(scope.template_headers) != 1:
            return False
        given = head.child_by_field_name("arguments").named_children
        names = {self._name(p) for p in template_parameters(scope.template_headers[0])}
        texts = [self.source.masked_text(g).strip() for g in given]
        return len(texts) == count and len({*texts}) == count and {*texts} <= names

    def _fixed(self, scope: ClassScope) -> list[str] | None:
        """Returns the template arguments of a class before those of its pack; None if the pack is not the last one."""
        header = template_parameters(scope.template_headers[0])
        head = scope.specifier.child_by_field_name("name")
        if head.type != "template_type":
            return [self._name(p) for p in header[:-1]]
        given = head.child_by_field_name("arguments").named_children
        texts = [self.source.masked_text(g).strip() for g in given]
        pack = self._name(header[-1])
        if not texts or re.fullmatch(rf"{re.escape(pack)}\s*\.\.\.", texts[-1]) is None:
            return None
        return None if any(pack in re.findall(r"\w+", t) for t in texts[:-1]) else texts[:-1]


class _Written:
    """A class with its pack written out as `count` elements. given: how many arguments it gives the template itself."""

    def __init__(self, classes: PackClasses, scope: ClassScope, count: int):
        self.source = classes.source
        self.scope = scope
        header = template_parameters(scope.template_headers[0])
        pack = self.source.masked_text(header[-1].identifier)
        self._elements = [f"{pack}_{i}" for i in range(count)]
        self._pack = pack
        packs = {pack: self._elements}
        for node in self._parameter_packs():
            name = declared_identifier(node.child_by_field_name("declarator"))
            if name is not None:
                own = self.source.masked_text(name)
                packs[own] = [f"{own}_{i}" for i in range(count)]
        self._packs = Packs(self.source, packs, lambda text: text)
        self.given: set[int] = set()

    def _parameter_packs(self) -> Iterator:
        """Yields the parameters of functions that are of types of the pack."""
        for node in self.source.find("(variadic_parameter_declaration) @p", self.scope.node):
            if re.search(rf"\b{re.escape(self._pack)}\b", self.source.masked_text(node)):
                yield node

    def text(self) -> str:
        specifier, header = self.scope.specifier, self.scope.template_headers[0]
        ranges = [*parameter_ranges(header)]
        written = [self.source.text[start:end].strip() for _, start, end in ranges[:-1]]
        written = [w.partition("=")[0].strip() for w in written]
        written += [f"typename {element}" for element in self._elements]
        edits = [(header.start_byte, header.end_byte, f"<{', '.join(written)}>")]
        name = specifier.child_by_field_name("name")
        if name.type != "template_type":
            own = [self.source.masked_text(p.identifier) for p in template_parameters(header)[:-1]]
            arguments = ", ".join([*own, *self._elements])
            edits.append((name.end_byte, name.end_byte, f"<{arguments}>"))
        edits += self._parameters()
        edits += self._bases()
        done = [(start, end) for start, end, _ in edits]
        edits += self._packs.expanded(self.scope.node, done)
        text = self._edited(edits)
        self._find_given(text)
        return text

    def _parameters(self) -> Iterator[tuple[int, int, str]]:
        for node in self._parameter_packs():
            start = self.source.previous_code(node.start_byte) + 1
            pattern = self.source.text[start : node.end_byte].replace("...", " ")
            elements = self._packs.elements(pattern.strip())
            end = node.end_byte
            if not elements:
                start, end = self._packs.with_comma(start, end)
            yield start, end, ", ".join(elements)

    def _bases(self) -> Iterator[tuple[int, int, str]]:
        for clause in self.scope.specifier.children:
            if clause.type != "base_class_clause":
                continue
            first = clause.start_byte + 1
            for child in clause.children[1:]:
                if child.type == ",":
                    first = child.end_byte
                elif child.type == "...":
                    pattern = self.source.text[first : child.start_byte].strip()
                    if self._packs.named_in(pattern):
                        elements = self._packs.elements(pattern)
                        start = first
                        if not elements and len(clause.named_children) == 1:
                            start = clause.start_byte
                        yield start, child.end_byte, f" {', '.join(elements)}"

    def _find_given(self, text: str) -> None:
        """Finds how many arguments the text gives the template itself."""
        for found in re.finditer(rf"\b{re.escape(_bare(self.scope))}\s*<", text):
            depth, count, at = 1, 1, found.end()
            is_empty = text[at:].lstrip().startswith(">")
            while at < len(text) and depth:
                depth += (text[at] in "<([") - (text[at] in ">)]")
                count += text[at] == "," and depth == 1
                at += 1
            self.given.add(0 if is_empty else count)

    def _edited(self, edits: list[tuple[int, int, str]]) -> str:
        pieces, position = [], self.scope.node.start_byte
        for start, end, text in sorted(edits):
            if start < position:
                continue  # inside of what is replaced
            pieces += [self.source.text[position:start], text]
            position = end
        text = "".join([*pieces, self.source.text[position : self.scope.end]])
        lines = re.sub(r"(?m)^[ \t]*#.*$", "", text).split("\n")
        return " ".join(line.strip() for line in lines)


def _bare(scope: ClassScope) -> str:
    return scope.name.split("<")[0].strip()
