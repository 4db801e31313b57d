"""Which functions a kernel can reach, by name, and what that says about how it may be run.

Names are compared without types or scopes, so the answer is safe but may be too careful: a kernel
is taken to synchronise when anything it may call does.
"""

from __future__ import annotations

import bisect
import re

from .kernels import (
    Instance,
    Program,
    declarator_kinds,
    declared_identifier,
    function_declarator,
    parameter_ranges,
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
_WORD = re.compile(r"[A-Za-z_]\w*")


class CallGraph:
    def __init__(self, program: Program):
        self.source = program.source
        self._bodies: dict[str, list[tuple[int, int]]] = {}
        for function in program.functions:
            if function.body is not None:
                start = function.node.start_byte
                self._bodies.setdefault(function.name, []).append((start, function.body.end_byte))
        for scope in program.classes:
            name = scope.name.split("<")[0].split("::")[-1].strip()
            self._bodies.setdefault(name, []).append((scope.specifier.start_byte, scope.end))
        self._words: dict[tuple[int, int], frozenset[str]] = {}
        self._indexed: list[int] | None = None
        self._meets: dict[tuple[int, int], bool] = {}
        self._reached: dict[tuple[str, ...], set[tuple[int, int]]] = {}

    def _words_of(self, span: tuple[int, int]) -> frozenset[str]:
        if span not in self._words:
            words = _WORD.findall(self.source.masked, *span)
            self._words[span] = frozenset(w for w in words if w in self._bodies)
        return self._words[span]

    def reached(self, instance: Instance) -> set[tuple[int, int]]:
        """Ranges of the kernel and of every function and class whose name it may use."""
        roots = {instance.kernel.function.name}
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
        """Whether a thread of this kernel may use indexed memory of its own.

        A compiler told that iterations are independent would let vector lanes share such memory.
        """
        if self._indexed is None:
            self._indexed = self._indexed_memory()
        for start, end in self.reached(instance):
            at = bisect.bisect_left(self._indexed, start)
            if at < len(self._indexed) and self._indexed[at] < end:
                return True
        return False

    def _indexed_memory(self) -> list[int]:
        """Offsets of array declarations, and of subscripts of anything but a pointer parameter."""
        found = [
            d.start_byte
            for d in self.source.find("(array_declarator) @a")
            if d.parent.type in ("declaration", "init_declarator", "field_declaration")
        ]
        pointers: dict[int, set[str]] = {}
        for subscript in self.source.find("(subscript_expression) @s"):
            base = subscript.child_by_field_name("argument")
            function = subscript.parent
            while function is not None and function.type != "function_definition":
                function = function.parent
            if function is None or base is None or base.type != "identifier":
                found.append(subscript.start_byte)
                continue
            if function.start_byte not in pointers:
                pointers[function.start_byte] = self._pointer_parameters(function)
            if self.source.node_text(base) not in pointers[function.start_byte]:
                found.append(subscript.start_byte)
        return sorted(found)

    def _pointer_parameters(self, function) -> set[str]:
        declarator = function_declarator(function.child_by_field_name("declarator"))
        if declarator is None:
            return set()
        names = set()
        for node, start, end in parameter_ranges(declarator.child_by_field_name("parameters")):
            if any(w.text == "thread" for w in self.source.words_in(start, end)):
                continue  # may point at a variable of the caller
            inner = node.child_by_field_name("declarator")
            identifier = declared_identifier(inner)
            if identifier is not None and declarator_kinds(inner)[:1] == ["pointer"]:
                names.add(self.source.node_text(identifier))
        return names
