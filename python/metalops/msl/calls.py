"""Which functions a kernel can reach, by name, and what that says about how it may be run.

Names are compared without types or scopes, so the answer is safe but may be too careful: a kernel is taken to
synchronise when anything it may call does.
"""

from __future__ import annotations

import re

from .kernels import Instance, Program, declarator_kinds

_SIMD_OPERATIONS = (
    "sum product max min and or xor any all ballot is_first is_helper_thread active_threads_mask broadcast "
    "broadcast_first shuffle shuffle_up shuffle_down shuffle_xor shuffle_rotate_up shuffle_rotate_down "
    "shuffle_and_fill_up shuffle_and_fill_down prefix_exclusive_sum prefix_inclusive_sum "
    "prefix_exclusive_product prefix_inclusive_product"
).split()

# Functions whose callers meet other threads there. Each takes a trailing Site.
SYNCHRONISING = {
    *(f"{group}_{name}" for group in ("simd", "quad") for name in _SIMD_OPERATIONS),
    "threadgroup_barrier",
    "simdgroup_barrier",
    "simdgroup_load",
    "simdgroup_store",
    "simdgroup_multiply",
    "simdgroup_multiply_accumulate",
    "simdgroup_async_copy",
}

_SYNCHRONISING_CALL = re.compile(
    r"\b(?:" + "|".join(sorted(SYNCHRONISING)) + r"|simdgroup_event)\b\s*[(<]"
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
        return any(_SYNCHRONISING_CALL.search(self.source.masked, *span) for span in self.reached(instance))

    def keeps_private_memory(self, instance: Instance) -> bool:
        """Whether a thread of this kernel may use indexed memory of its own.

        A compiler told that iterations are independent would let vector lanes share such memory.
        """
        for start, end in self.reached(instance):
            if self._span_keeps_memory(start, end):
                return True
        return False

    def _span_keeps_memory(self, start: int, end: int) -> bool:
        node = self.source.root.descendant_for_byte_range(start, end)
        for subscript in self.source.find("(subscript_expression) @s", node):
            base = subscript.child_by_field_name("argument")
            if base is None or base.type != "identifier":
                return True
            if not self._is_pointer_parameter(base):
                return True
        return any(
            declarator.parent.type in ("declaration", "init_declarator", "field_declaration")
            for declarator in self.source.find("(array_declarator) @a", node)
        )

    def _is_pointer_parameter(self, identifier) -> bool:
        name = self.source.node_text(identifier)
        node = identifier
        while node is not None and node.type != "function_definition":
            node = node.parent
        if node is None:
            return False
        for parameter in self.source.find("(parameter_declaration declarator: (pointer_declarator) @d)", node):
            if self.source.node_text(parameter).split("*")[-1].strip() == name:
                return "pointer" in declarator_kinds(parameter, True)
        return False
