"""Which functions a kernel can reach, by name, and what that says about how it may be run.

Names are compared without types or scopes, so the answer is safe but may be too careful: a kernel
is taken to synchronise when anything it may call does.
"""

from __future__ import annotations

import bisect
import functools
import re

from .program import (
    Instance,
    Program,
    declarator_kinds,
    declared_identifier,
    name_of,
)

_SIMD_OPERATIONS = (
    "sum product max min and or xor any all ballot is_first active_threads_mask broadcast "
    "broadcast_first shuffle shuffle_up shuffle_down shuffle_xor "
    "shuffle_rotate_up shuffle_rotate_down "
    "shuffle_and_fill_up shuffle_and_fill_down prefix_exclusive_sum prefix_inclusive_sum "
    "prefix_exclusive_product prefix_inclusive_product"
).split()

# Functions whose callers meet other threads there. Each takes a trailing Site.
SYNCHRONISING = {
    *(f"{group}_{name}" for group in ("simd", "quad") for name in _SIMD_OPERATIONS),
    "threadgroup_barrier",
    "simdgroup_barrier",
    "simdgroup_multiply",
    "simdgroup_multiply_accumulate",
}

_SYNCHRONISING_CALL = re.compile(
    r"\b(?:"
    + "|".join(sorted(SYNCHRONISING))
    + r"|simdgroup_\w+|__metal_(?:simd|quad)\w*)\b\s*[(<]"
    r"|\bsimdgroup_(?:matrix|float\d|half\d|bfloat\d)"
)
_SIMD_CALL = re.compile(
    r"\b(?:"
    + "|".join(sorted(SYNCHRONISING - {"threadgroup_barrier"}))
    + r")\b|\b__metal_(?:simd|quad)"
)
_WORD = re.compile(r"[A-Za-z_]\w*")


class CallGraph:
    def __init__(self, program: Program):
        self.source = program.source
        self._bodies: dict[str, list[tuple[int, int]]] = {}
        self._free_operators: set[str] = set()  # whose use has no name
        for function in program.functions:
            if function.body is None:
                continue
            span = (function.node.start_byte, function.body.end_byte)
            scopes = self._written_scopes(function)
            for name in {function.name, *scopes}:
                self._bodies.setdefault(name, []).append(span)
            if function.name.startswith("operator") and not (function.in_class or scopes):
                self._free_operators.add(function.name)
        for scope in program.classes:
            name = scope.name.split("<")[0].split("::")[-1].strip()
            self._bodies.setdefault(name, []).append((scope.specifier.start_byte, scope.end))
        self._words: dict[tuple[int, int], frozenset[str]] = {}
        self._computed: list[int] | None = None
        self._meets: dict[tuple[int, int], bool] = {}
        self._reached: dict[tuple[str, ...], set[tuple[int, int]]] = {}

    def _written_scopes(self, function) -> list[str]:
        """Of `F::operator()` and the like: the classes and namespaces whose member it defines."""
        name = self.source.masked_text(name_of(function.declarator))
        return _WORD.findall(name.rpartition("::")[0])

    def _words_of(self, span: tuple[int, int]) -> frozenset[str]:
        if span not in self._words:
            words = _WORD.findall(self.source.masked, *span)
            self._words[span] = frozenset(w for w in words if w in self._bodies)
        return self._words[span]

    def reached(self, instance: Instance) -> set[tuple[int, int]]:
        """Ranges of the kernel and of every function and class whose name it may use."""
        roots = {instance.kernel.function.name, *self._free_operators}
        roots.update(_WORD.findall(self.source.masked, *instance.expression))
        if instance.signature is not None:
            node = instance.signature
            roots.update(_WORD.findall(self.source.masked, node.start_byte, node.end_byte))
        key = tuple(sorted(r for r in roots if r in self._bodies))
        if key not in self._reached:
            seen: set[str] = set()
            spans: set[tuple[int, int]] = set()
            waiting = list(key)
            while waiting:
                name = waiting.pop()
                if name in seen:
                    continue
                seen.add(name)
                for span in self._bodies[name]:
                    spans.add(span)
                    waiting.extend(self._words_of(span) - seen)
            self._reached[key] = spans
        return self._reached[key]

    @functools.cached_property
    def simd_names(self) -> frozenset[str]:
        """Names of the functions, classes and functors through which a simdgroup operation may be reached."""
        found = {
            name
            for name, spans in self._bodies.items()
            if any(_SIMD_CALL.search(self.source.masked, *span) for span in spans)
        }
        if not found:
            return frozenset()
        users: dict[str, set[str]] = {}
        for name, spans in self._bodies.items():
            for used in frozenset().union(*map(self._words_of, spans)):
                users.setdefault(used, set()).add(name)
        self._add_users(found, users)
        operators = [name[8:] for name in found if re.fullmatch(r"operator\W+", name)]
        for name, spans in self._bodies.items() if operators else ():
            if any(op in self.source.masked[a:b] for op in operators for a, b in spans):
                found.add(name)
        self._add_users(found, users)
        if "operator()" in found or self._has_lambda_that_reaches(found):
            functors = self._called_variables()
            calls_functor = re.compile(r"\b(?:" + "|".join(sorted(functors)) + r")\s*\(")
            for name, spans in self._bodies.items() if functors else ():
                if any(calls_functor.search(self.source.masked, *span) for span in spans):
                    found.add(name)
            self._add_users(found, users)
            found |= functors
        return frozenset(found)

    def _add_users(self, found: set[str], users: dict[str, set[str]]) -> None:
        waiting = list(found)
        while waiting:
            new = users.get(waiting.pop(), set()) - found
            found |= new
            waiting.extend(new)

    def _has_lambda_that_reaches(self, names: set[str]) -> bool:
        for node in self.source.find("(lambda_expression) @l"):
            text = self.source.masked_text(node)
            if _SIMD_CALL.search(text) or not names.isdisjoint(_WORD.findall(text)):
                return True
        return False

    def _called_variables(self) -> set[str]:
        """Names of variables and parameters that are called: functors, lambdas, pointers to functions."""
        called = {
            self.source.masked_text(x)
            for x in self.source.find("(call_expression function: (identifier) @f)")
        }
        declarators = self.source.find(
            "(parameter_declaration declarator: (_) @d) (declaration declarator: (_) @d)"
            " (field_declaration declarator: (_) @d)"
        )
        identifiers = map(declared_identifier, declarators)
        return called & {self.source.masked_text(x) for x in identifiers if x is not None}

    def synchronises(self, instance: Instance) -> bool:
        """Whether threads of this kernel may meet, or share memory, during the launch."""
        kernel = instance.kernel
        if kernel.threadgroup_variables or any(p.kind == "threadgroup" for p in kernel.parameters):
            return True
        return any(self._span_synchronises(span) for span in self.reached(instance))

    def _span_synchronises(self, span: tuple[int, int]) -> bool:
        if span not in self._meets:
            self._meets[span] = bool(_SYNCHRONISING_CALL.search(self.source.masked, *span))
        return self._meets[span]

    def keeps_private_memory(self, instance: Instance) -> bool:
        """Whether a thread of this kernel may use memory of its own at addresses that it computes.

        A compiler told that iterations are independent would let vector lanes share such memory.
        """
        if self._computed is None:
            self._computed = self._computed_accesses()
        for start, end in self.reached(instance):
            at = bisect.bisect_left(self._computed, start)
            if at < len(self._computed) and self._computed[at] < end:
                return True
        return False

    def _computed_accesses(self) -> list[int]:
        """Offsets of arrays that are declared, and of accesses through anything but the name of a pointer that is
        declared to point to device or constant memory."""
        found = [
            d.start_byte
            for d in self.source.find("(array_declarator) @a")
            if d.parent.type in ("declaration", "init_declarator", "field_declaration")
        ]
        found += [loop.start_byte for loop in self.source.find("(for_range_loop) @l")]
        shared: dict[int, set[str]] = {}
        for access in self.source.find(
            '(subscript_expression) @x (pointer_expression operator: "*") @x'
            ' (field_expression operator: "->") @x'
        ):
            base = access.child_by_field_name("argument")
            while base.type in ("parenthesized_expression", "binary_expression"):
                base = base.child_by_field_name("left") or base.named_children[0]
            if base.type == "this" or self._is_cast_to_shared_memory(base):
                continue
            function = access.parent
            while function is not None and function.type != "function_definition":
                function = function.parent
            if function is None or base.type != "identifier":
                found.append(access.start_byte)
                continue
            if function.start_byte not in shared:
                shared[function.start_byte] = self._pointers_to_shared_memory(function)
            if self.source.node_text(base) not in shared[function.start_byte]:
                found.append(access.start_byte)
        return sorted(found)

    def _is_cast_to_shared_memory(self, node) -> bool:
        """Whether an expression names the address space that it points to."""
        if node.type not in ("cast_expression", "call_expression"):
            return False
        type_node = node.child_by_field_name("type") or node.child_by_field_name("function")
        words = {w.text for w in self.source.words_in(node.start_byte, type_node.end_byte)}
        return words in ({"device"}, {"constant"})

    def _pointers_to_shared_memory(self, function) -> set[str]:
        """Names that stand for a pointer to device or constant memory wherever the function declares them."""
        shared, others = set(), set()
        for declaration in self.source.find(
            "(parameter_declaration) @d (declaration) @d", node=function
        ):
            start = self.source.previous_code(declaration.start_byte) + 1
            for declarator in declaration.children_by_field_name("declarator"):
                identifier = declared_identifier(declarator)
                if identifier is None:
                    continue
                words = {w.text for w in self.source.words_in(start, identifier.start_byte)}
                is_shared = (
                    declarator_kinds(declarator)[:1] == ["pointer"]
                    and words & {"device", "constant"}
                    and not words & {"thread", "threadgroup"}
                )
                (shared if is_shared else others).add(self.source.node_text(identifier))
        return shared - others
