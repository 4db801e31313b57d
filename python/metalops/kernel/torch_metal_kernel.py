"""TorchMetalKernel: a Metal kernel over tensor views with a reference in torch operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from .annotations import read_signature
from .metal_code import checked_code
from .metal_parameter import MetalParameter
from .torch_kernel_definition import define


class TorchMetalKernel:
    """A Metal kernel written as the body of a function over tensors, with a reference in torch operators.

    On `mps` tensors the Metal code runs, on other devices `torch_defn`. Code for Core AI's class of the same name
    (package coreai_torch) runs with the import changed.

    >>> import torch, metalops
    >>> def matmul(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    ...     return A @ B
    >>> product = metalops.TorchMetalKernel(
    ...     "docs_matmul",
    ...     input_names=["A", "B"],
    ...     result_names=["C"],
    ...     src='''
    ...         TYPE sum = 0;
    ...         for (uint k = 0; k < A.get_extent(0); ++k) {
    ...             sum += A[k, gid.y] * B[gid.x, k];
    ...         }
    ...         C[gid.x, gid.y] = sum;
    ...     ''',
    ...     torch_defn=matmul,
    ...     metal_params=[metalops.MetalParameter("gid", "uint2", "thread_position_in_grid")],
    ...     template_dtypes={"A": "TYPE"},
    ... )
    >>> A = torch.tensor([[1.0, 2], [3, 4], [5, 6]], device="mps")
    >>> B = torch.tensor([[1.0, 0, 2, 0], [0, 1, 0, 2]], device="mps")
    >>> C = product(A, B, threads_per_grid=(4, 3, 1), threads_per_thread_group=(4, 3, 1), result_shapes=[[3, 4]])
    >>> C.tolist()
    [[1.0, 2.0, 2.0, 4.0], [3.0, 4.0, 6.0, 8.0], [5.0, 6.0, 10.0, 12.0]]

    name: a name for the kernel, which is also that of its operator, torch.ops.metalops_torch_kernel.NAME. Constructed
        again with the same Metal code it is the same kernel (with the newest torch_defn and backward); with other code,
        ValueError. Only code that did not compile can be replaced.
    input_names, result_names: what `src` calls the inputs and the results.
    src: the body of the kernel, compiled with ``using namespace metal``. A tensor `x` is a view:

        - ``x[i]``, ``x[i, j]``, ``x[index]`` with a ``metal::array<uint, rank>``: an element, as a reference. The first
          index is the innermost: ``A[k, m]`` is A[m, k] in torch. A single index into a tensor of higher rank counts
          elements in memory order.
        - ``x.get_extent(d)``: its size along dimension d, counted from the innermost.
        - ``x.get_rank()``: its rank, a constant expression.

        A tensor of rank 0 that `src` neither subscripts nor asks for its rank is a plain number. Inputs that are not
        contiguous are copied before; results are contiguous. Inputs must not be written to, and what no thread writes of
        a result is uninitialized. Helper functions take views as template parameters.
    torch_defn: the reference, a function of the same inputs, annotated torch.Tensor, int, float or bool each. Scalars are
        plain names in `src`, of the types int (32 bits), float and bool. It returns torch.Tensor, list[torch.Tensor] or
        tuple[torch.Tensor, ...] with one entry for each result, and decides about the results' dtypes; its annotation
        decides whether a call returns a tensor, a list or a tuple. It runs on fake tensors too.
    metal_params: the thread attributes that `src` uses, as MetalParameter.
    helper_src: Metal code before the kernel: functions, types, includes.
    template_dtypes: names for the Metal types of inputs, {"A": "TYPE"}, for `src` and `helper_src`.
    backward: a function (grad_outputs, inputs, outputs) -> one gradient or None for each input, which may call other
        kernels; scalars, which have none, may be left out of its list. Without it, a backward pass through the kernel
        raises NotImplementedError.

    There may be at most 31 inputs, results and metal_params together. The kernel is compiled at its first use with each
    combination of ranks and dtypes; SyntaxError then shows the line of `src` or `helper_src` that does not compile.
    """

    def __init__(
        self,
        name: str,
        input_names: Sequence[str],
        result_names: Sequence[str],
        src: str,
        torch_defn: Callable,
        metal_params: Sequence[MetalParameter] | None = None,
        helper_src: str | None = None,
        template_dtypes: Mapping[str, str] | None = None,
        *,
        backward: Callable | None = None,
    ):
        code = checked_code(
            name, input_names, result_names, src, metal_params, helper_src, template_dtypes
        )
        signature = read_signature(code.owner, torch_defn, code.input_names, code.result_names)
        if backward is not None and not callable(backward):
            raise TypeError(f"{code.owner}: backward must be a function, but got {backward!r}")
        self._definition = define(code, signature, torch_defn, backward)
        self._torch_defn = torch_defn
        self._backward = backward
        self._container = signature.container
        self._core_ai = None

    name = property(lambda self: self._definition.code.name)
    input_names = property(lambda self: list(self._definition.code.input_names))
    result_names = property(lambda self: list(self._definition.code.result_names))
    src = property(lambda self: self._definition.code.src)
    torch_defn = property(lambda self: self._torch_defn)
    metal_params = property(lambda self: list(self._definition.code.metal_params))
    helper_src = property(lambda self: self._definition.code.helper_src)
    template_dtypes = property(lambda self: dict(self._definition.code.template_dtypes))
    torch_custom_op = property(
        lambda self: self._definition.operator.overload,
        doc="The operator that torch.export and torch.compile see.",
    )

    def __call__(
        self,
        *inputs: torch.Tensor | float,
        threads_per_grid: tuple[int, int, int],
        threads_per_thread_group: tuple[int, int, int],
        result_shapes: Sequence[Sequence[int]],
    ) -> torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, ...]:
        """Runs the kernel.

        inputs: what torch_defn takes, by position; tensors of one device.
        threads_per_grid: how many threads run in all, along x, y and z.
        threads_per_thread_group: how many of them form a threadgroup; the last group of a dimension may be partial.
        result_shapes: the shape of each result, as torch_defn gives it.

        Raises TypeError or ValueError for arguments that do not fit, RuntimeError for tensors of several devices.
        """
        definition = self._definition
        if torch.compiler.is_compiling():
            if self._core_ai is not None and torch.compiler.is_exporting():
                return self._core_ai(
                    *inputs,
                    threads_per_grid=threads_per_grid,
                    threads_per_thread_group=threads_per_thread_group,
                    result_shapes=result_shapes,
                )
            run = definition.trace
        else:
            run = definition.call
        results = run(inputs, threads_per_grid, threads_per_thread_group, result_shapes)
        if self._container is torch.Tensor:
            return results[0]
        return results if self._container is list else tuple(results)

    def source(self, *inputs: torch.Tensor | float, result_shapes: Sequence[Sequence[int]], **_):
        """The Metal text that a call with the same arguments compiles, without compiling or running it."""
        return self._definition.text(inputs, result_shapes)

    def to_coreai(self):
        """Core AI's kernel of the same arguments, for TorchConverter.register_custom_kernels.

        From then on torch.export records calls of this kernel as calls of that one, which the converter knows. Needs
        Apple's package coreai_torch: ImportError without it.
        """
        if self._core_ai is None:
            try:
                import coreai_torch
            except ImportError as error:
                raise ImportError(
                    f"TorchMetalKernel {self.name!r}: to_coreai needs Apple's package coreai_torch, "
                    f"which cannot be imported here ({error})"
                ) from error
            self._core_ai = coreai_torch.TorchMetalKernel(
                self.name,
                input_names=self.input_names,
                result_names=self.result_names,
                src=self.src,
                torch_defn=self._torch_defn,
                metal_params=[
                    coreai_torch.MetalParameter(p.name, p.msl_type, p.attribute)
                    for p in self.metal_params
                ],
                helper_src=self.helper_src,
                template_dtypes=self.template_dtypes,
            )
        return self._core_ai

    def __reduce__(self):
        code = self._definition.code
        arguments = {**code._asdict(), "template_dtypes": self.template_dtypes}
        return _rebuilt, (
            {**arguments, "torch_defn": self._torch_defn, "backward": self._backward},
        )

    def __repr__(self) -> str:
        code, signature = self._definition.code, self._definition.signature
        inputs = ", ".join(
            f"{name}: {kind.__name__}"
            for name, kind in zip(code.input_names, signature.kinds, strict=True)
        )
        return f"TorchMetalKernel({code.name!r}, ({inputs}) -> ({', '.join(code.result_names)}))"


def _rebuilt(arguments: dict) -> TorchMetalKernel:
    return TorchMetalKernel(**arguments)
