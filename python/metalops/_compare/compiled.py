"""Functions of torch.compile: each buffer that a compiled kernel computes is compared with the operators of Inductor's graph
that it was compiled from.

In the block, functions are compiled anew by Inductor, with a hook behind each kernel. The reference for a buffer starts
from the buffers that were computed before it on mps, so that a wrong kernel does not make those after it differ.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from .._torch.internals import (
    InductorCompiler,
    OpOverload,
    inductor_compiler,
    is_fake,
    pytree,
    without_dispatch_modes,
)
from .arguments import size, snapshot, tensors_of
from .call import operator_of
from .differences import Difference, Mismatch
from .judgement import judge
from .reference import NoReferenceError, off_the_device, widened
from .report import versions

_AFTER_WRONG = "because an operator before them in their graph differs"
_WITHOUT_REFERENCE = "because the CPU cannot compute what they were compiled from"


class Comparison(Protocol):
    """The part of mode.Comparison that is needed here."""

    calls: int
    compared: int
    differing_operators: int

    def module(self) -> tuple[str, bool]: ...
    def fits(self, size: int) -> bool: ...
    def skip(self, reason: str, name: str) -> None: ...
    def found(self, difference: Difference) -> None: ...


@contextlib.contextmanager
def kernels_compared(comparison: Comparison) -> Iterator[None]:
    """Compares the kernels of compiled functions that are called in the block."""
    inductor = inductor_compiler()
    runs = _Runs()

    def backend(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        compile_one = functools.partial(_compiled, inductor, comparison, runs)
        patches = {"generate_intermediate_hooks": True}
        with inductor.without_autograd_cache():
            return inductor.compile(
                graph, inputs, inner_compile=compile_one, config_patches=patches
            )

    with (
        inductor.hook(runs.computed),
        torch.compiler.set_stance("default", force_backend=backend),
    ):
        yield


class _Runs(threading.local):
    """The graphs that run in this thread, the innermost one last."""

    def __init__(self) -> None:
        self.stack: list[_Run | None] = []

    def computed(self, name: str, value: Any) -> None:
        """Is told of each buffer, by the name of its node in the graph."""
        if self.stack and self.stack[-1] is not None and isinstance(value, Tensor):
            self.stack[-1].computed(name, value)


def _compiled(
    inductor: InductorCompiler,
    comparison: Comparison,
    runs: _Runs,
    graph: torch.fx.GraphModule,
    inputs: list,
    **options: Any,
) -> Any:
    """Compiles a graph of operators; the result compares its kernels when it runs."""
    kept = copy.deepcopy(graph)  # the compiler rewrites its graph
    compiled = inductor.compile_inner(graph, inputs, **options)
    run = compiled.current_callable
    is_backward = bool(options.get("is_backward"))

    def compared(arguments: list) -> Any:
        if not comparison.fits(size(arguments)):
            comparison.skip("because they need too much memory", "a compiled graph")
            runs.stack.append(None)
        else:
            runs.stack.append(_Run(comparison, kept, arguments, is_backward))
        try:
            results = run(arguments)
            if runs.stack[-1] is not None:
                runs.stack[-1].returned(results)
            return results
        finally:
            runs.stack.pop()

    compiled.current_callable = compared
    return compiled


class _Run:
    """A run of a graph: the values of its nodes on the CPU, as far as they are known from mps."""

    def __init__(
        self,
        comparison: Comparison,
        graph: torch.fx.GraphModule,
        arguments: list,
        is_backward: bool,
    ) -> None:
        self._comparison = comparison
        self._graph = graph
        self._is_backward = is_backward
        self._differing_before = comparison.differing_operators
        self._nodes = {node.name: node for node in graph.graph.nodes}
        self._known: dict[str, Any] = {}
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        with without_dispatch_modes():
            before = snapshot((tuple(arguments), {}))
            values, _ = before.on_cpu(fresh=False)
        for node, value in zip(placeholders, values):
            self._known[node.name] = value

    def returned(self, results: Any) -> None:
        """Compares results that no kernel was said to compute."""
        output = next(node for node in self._graph.graph.nodes if node.op == "output")
        for node, value in zip(output.args[0], results):
            if isinstance(node, torch.fx.Node) and isinstance(value, Tensor):
                self.computed(node.name, value)

    def computed(self, name: str, value: Tensor) -> None:
        node = self._nodes.get(name)
        if node is None or name in self._known or not value.is_mps:
            return
        self._comparison.calls += 1
        with torch.no_grad(), without_dispatch_modes():
            self._compare_and_keep(node, value.detach().cpu())

    def _compare_and_keep(self, node: torch.fx.Node, actual: Tensor) -> None:
        try:
            self._compare(node, actual)
        except _Unknown:
            self._comparison.skip(_WITHOUT_REFERENCE, _operator(node))
        finally:
            self._known[node.name] = actual

    def _compare(self, node: torch.fx.Node, actual: Tensor) -> None:
        seen: list[torch.fx.Node] = []
        native = _Evaluation(self._known, self._graph, wide=False).value(node, seen)
        wide = None
        with contextlib.suppress(_Unknown):
            wide = _Evaluation(self._known, self._graph, wide=True).value(node, [])
        if not isinstance(native, Tensor):
            raise _Unknown
        operands = [
            x
            for n in seen
            for x in tensors_of([self._known.get(a.name) for a in n.all_input_nodes])
        ]
        short = operator_of(node.target).short if isinstance(node.target, OpOverload) else ""
        found = judge(
            actual, native, wide, name=short, gradient=self._is_backward, operands=operands
        )
        self._comparison.compared += 1
        if found is None:
            return
        if self._comparison.differing_operators > self._differing_before:
            # Its result may have been an argument of the kernel, and is no buffer that is known.
            self._comparison.skip(_AFTER_WRONG, _operator(node))
        else:
            self._comparison.found(self._difference(node, seen, found))

    def _difference(
        self, node: torch.fx.Node, seen: list[torch.fx.Node], found: Mismatch
    ) -> Difference:
        outer, _ = self._comparison.module()
        module = ".".join(filter(None, [outer, _module(node)])) if _module(node) else outer
        inputs = dict.fromkeys(a for n in seen for a in n.all_input_nodes if a not in seen)
        arguments = [f"{a.name}: {_described(self._known.get(a.name))}" for a in inputs]
        arguments.append(f"compiled from {', '.join(_operator(n) for n in seen)}")
        return Difference(
            _operator(node),
            module,
            self._is_backward,
            self._comparison.calls,
            tuple(arguments),
            f"buffer {node.name}",
            found,
            "float64, rounded",
            "a kernel of torch.compile",
            versions(),
        )


class _Unknown(Exception):
    """A value that the CPU cannot compute."""


class _Evaluation:
    """Computes nodes of a graph on the CPU from the values that are known from mps."""

    def __init__(self, known: dict[str, Any], graph: torch.fx.GraphModule, *, wide: bool) -> None:
        self._known, self._graph, self._wide = known, graph, wide
        self._values: dict[str, Any] = {}

    def value(self, node: torch.fx.Node, seen: list[torch.fx.Node]) -> Any:
        """Returns the value of a node, and adds to a list those that were computed for it."""
        if node.name in self._known:
            return self._adapted(self._known[node.name])
        if node.name not in self._values:
            self._values[node.name] = self._computed(node, seen)
            seen.append(node)
        return self._values[node.name]

    def _adapted(self, x: Any) -> Any:
        return widened(x) if self._wide else x

    def _computed(self, node: torch.fx.Node, seen: list[torch.fx.Node]) -> Any:
        if node.op == "get_attr":
            x = functools.reduce(getattr, node.target.split("."), self._graph)
            if not isinstance(x, Tensor) or is_fake(x):
                raise _Unknown
            return self._adapted(x.detach().cpu())
        if node.op != "call_function" or _is_random(node.target) or _writes(node.target):
            raise _Unknown
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: self.value(n, seen))
        args, kwargs = pytree.tree_map(off_the_device, (args, kwargs))
        if self._wide:
            args, kwargs = pytree.tree_map(widened, (args, kwargs))
        try:
            return node.target(*args, **kwargs)
        except (NotImplementedError, NoReferenceError, RuntimeError, TypeError):
            raise _Unknown from None


def _is_random(target: Any) -> bool:
    name = str(target)
    return "rand" in name or "seed" in name or torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())  # fmt: skip


def _writes(target: Any) -> bool:
    return isinstance(target, OpOverload) and bool(operator_of(target).written)


def _operator(node: torch.fx.Node) -> str:
    if isinstance(node.target, OpOverload):
        return node.target.name()
    return getattr(node.target, "__name__", str(node.target))


def _module(node: torch.fx.Node) -> str:
    """Returns the name of the module that a node comes from, in the one that was compiled."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    if not stack:
        return ""
    name = list(stack.values())[-1][0]
    name = re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", name)
    name = re.sub(r"\b_modules\.|^L?\.?self\.?|^L\.", "", name)
    return name.strip(".")


def _described(x: Any) -> str:
    if not isinstance(x, Tensor):
        return repr(x)
    return f"{str(x.dtype)[6:]} {list(x.shape)}, strides {x.stride()}"
