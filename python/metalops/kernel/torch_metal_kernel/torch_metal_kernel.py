"""TorchMetalKernel: a Metal kernel over tensor views with a reference in torch operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from .annotations import read_signature
from .kernel_definition import define
from .metal_code import checked_code
from .metal_parameter import MetalParameter


class TorchMetalKernel:
    """A kernel from the body of a Metal function over tensors, with a reference in torch operators.

    On mps and cuda tensors the Metal code runs, on other devices the reference. Code for Core AI's class of the same
    name (package coreai_torch) runs once the import is changed.

    Args:
        name: an identifier, also the name of the kernel's operator, ``torch.ops.metalops_torch_kernel.NAME``.
            Constructed again with the same Metal code it is the same kernel, with the newest torch_defn and backward.
        input_names, result_names: the names of the inputs and the results in the body.
        src: the body, compiled with ``using namespace metal``. A tensor ``x`` is a view:

            - ``x[i]``, ``x[i, j]``, ``x[index]`` with a ``metal::array<uint, rank>``: a reference to an element. The
              first index is the innermost: ``A[k, m]`` is ``A[m, k]`` in torch. A single index into a tensor of higher
              rank counts elements in memory order.
            - ``x.get_extent(d)``: the size along dimension d, counted from the innermost.
            - ``x.get_rank()``: the rank, a constant expression.

            A tensor without dimensions is a plain number unless the body subscripts it or asks for its rank. Helper
            functions take views as template parameters. Inputs must not be written to. Inputs that are not contiguous
            are copied before the kernel runs.
            Where helper_src includes ``<metal_tensor>`` or a header of Metal Performance Primitives, tensors are instead
            those of Metal 4, ``tensor<device T, dextents<int, rank>, tensor_inline>``, for ``slice`` and ``matmul2d``;
            their subscripts have as many indices as dimensions.
        torch_defn: the reference, a function whose parameters are annotated torch.Tensor, int, float or bool. The last
            three are plain names in the body, an int of 32 bits, a float, a bool. It returns torch.Tensor,
            ``list[torch.Tensor]`` or ``tuple[torch.Tensor, torch.Tensor]`` with one tensor for each result, and a call
            of the kernel the same. It decides about the results' dtypes, by running on fake tensors.
        metal_params: the thread attributes that the body uses.
        helper_src: Metal code before the kernel: functions, types, includes.
        template_dtypes: names for the Metal types of inputs in src and helper_src: ``{"A": "TYPE"}``. Inputs that share
            a name must be of one dtype.
        textures: the inputs that the kernel samples and reads as textures, and the results that it writes as such, with
            their pixel formats: ``{"image": "rgba8unorm", "volume": "r32float 3d"}``. Their tensors have the shapes and
            dtypes that metalops.texture takes; samplers are declared in the body.
        backward: the gradient, ``backward(grad_outputs, inputs, outputs)`` -> a list with one gradient or None for each
            input, where scalars may be left out. It may call other kernels. Without it, backward through the kernel
            raises NotImplementedError.

    Each combination of the tensors' ranks and dtypes is compiled at its first use. Kernels can be pickled and copied with
    functions that can, and called from several threads.

    Raises:
        TypeError, ValueError: for an argument that is none of these; names that Metal cannot use or that occur twice;
            more than 31 inputs, results and metal_params together; a name that another kernel has, unless its code did
            not compile.

    Example:

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
        >>> C = product(
        ...     A,
        ...     B,
        ...     threads_per_grid=(4, 3, 1),
        ...     threads_per_thread_group=(4, 3, 1),
        ...     result_shapes=[[3, 4]],
        ... )
        >>> C.tolist()
        [[1.0, 2.0, 2.0, 4.0], [3.0, 4.0, 6.0, 8.0], [5.0, 6.0, 10.0, 12.0]]
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
        textures: Mapping[str, str] | None = None,
        backward: Callable | None = None,
    ):
        code = checked_code(
            name,
            input_names,
            result_names,
            src,
            metal_params,
            helper_src,
            template_dtypes,
            textures,
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
    textures = property(lambda self: dict(self._definition.code.textures))
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
        """Runs the kernel and returns its results, new contiguous tensors, as torch_defn is annotated to return them.

        Args:
            inputs: the arguments of torch_defn, all tensors on one device. Without tensors among them the kernel runs
                on the device on which torch_defn creates its results.
            threads_per_grid: the number of threads in x, y and z.
            threads_per_thread_group: the threads of a threadgroup in x, y and z; the last ones may have fewer.
            result_shapes: one shape for each result, those that torch_defn gives. Elements that no thread writes are
                uninitialised.

        Raises:
            TypeError, ValueError: wrong numbers or types of inputs, inputs of two dtypes under one name of
                template_dtypes, integers beyond 32 bits, shapes that differ from torch_defn's, threads that are not
                three integers, a threadgroup beyond the kernel's limit, no threads for results that are not empty,
                dtypes that Metal has no type for.
            RuntimeError: tensors on several devices.
            SyntaxError: the Metal code does not compile; it counts lines from the first of src or helper_src.
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

    def source(
        self,
        *inputs: torch.Tensor | float,
        threads_per_grid: tuple[int, int, int] = (1, 1, 1),
        threads_per_thread_group: tuple[int, int, int] = (1, 1, 1),
        result_shapes: Sequence[Sequence[int]],
    ) -> str:
        """Returns the Metal text that a call with these arguments runs. Neither compiles nor runs it."""
        return self._definition.text(
            inputs, threads_per_grid, threads_per_thread_group, result_shapes
        )

    def to_coreai(self):
        """Returns Core AI's kernel of the same arguments, for TorchConverter.register_custom_kernels.

        From then on torch.export records calls of this kernel as calls of that one, which the converter knows. Needs
        Apple's package coreai_torch: raises ImportError without it.
        """
        if self.textures:
            raise NotImplementedError(
                f"TorchMetalKernel {self.name!r}: Core AI's kernels take no textures"
            )
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
        arguments = code._asdict()
        arguments.update(template_dtypes=self.template_dtypes, textures=self.textures)
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
