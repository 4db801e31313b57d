"""Pointwise operators of this package on CUDA tensors: the functors of their kernel files, kernels/<module>.metal, in
the CUDA kernels of functors written in Python (kernel/functor/cuda_launch.py)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from .._cuda.kernel_file import text_of
from . import elsewhere, fake

if TYPE_CHECKING:
    from ...kernel.functor import crossed_tiles

_REGISTRATION = re.compile(r"(?m)^REGISTER_\w+\([^;]*\);$")
_FLOATS = ("float", "half", "bfloat")
_MOST_ELEMENTS = 2**32 - 4  # that one launch takes whatever the layout


@dataclass(frozen=True)
class Kernels:
    """The kernels of an operator. file: of kernels/, without its ending. functor: without "_functor"; that of the
    gradients has the additional suffix "_backward". operands, numbers, gradients: their numbers. halving: true if the
    operands are the halves of one tensor. swapped: true if the functors take them in reverse order. integers_stay: true
    if integers stay integers. rounds: true if the functor takes operands in half precision, and rounds."""

    file: str
    functor: str
    operands: int
    numbers: int
    gradients: int
    halving: bool
    swapped: bool
    integers_stay: bool
    rounds: bool

    @property
    def _backward_functor(self) -> str:
        return f"{self.functor}_backward"

    def compute(self, otherwise: elsewhere.Compute) -> elsewhere.Compute:
        """Returns the function that computes the operator. otherwise: for tensors that are too large for a launch."""
        launch = self._launcher(self.functor, self._forward_source)

        def compute(outputs, inputs, scalars) -> None:
            if outputs[0].numel() > _MOST_ELEMENTS:
                otherwise(outputs, inputs, scalars)
                return
            given = fake.halves(self.functor, inputs[0]) if self.halving else inputs
            launch()(outputs, list(given), [float(x) for x in scalars])

        return compute

    def compute_gradients(self, otherwise: elsewhere.Compute) -> elsewhere.Compute:
        """Returns the function that computes the operands' gradients from the result's and the operands."""
        launch = self._launcher(self._backward_functor, self._backward_source)

        def compute(outputs: list[Tensor], inputs: list[Tensor], scalars) -> None:
            if outputs[0].numel() > _MOST_ELEMENTS:
                otherwise(outputs, inputs, scalars)
            else:
                launch()(outputs, inputs, [float(x) for x in scalars])

        return compute

    def _launcher(self, functor: str, source: Callable[..., str]) -> Callable:
        @functools.cache
        def launcher():
            from ...kernel.functor.cuda_launch import Launcher

            kinds = [float] * self.numbers
            return Launcher(functor, f"metalops_{functor}", source, kinds, has_mask=False)

        return launcher

    def _forward_source(self, element: str, crossed: crossed_tiles.Kernel | None = None) -> str:
        is_float = element in _FLOATS
        names = [f"x{i}" for i in range(self.operands)]
        return self._source(
            self.functor,
            names,
            [self._call(self.functor, names)],
            crossed,
            element=element,
            compute="float" if is_float and not self.rounds else element,
            result=element if is_float or self.integers_stay else "float",
            before="",
        )

    def _backward_source(self, element: str, crossed: crossed_tiles.Kernel | None = None) -> str:
        # A functor of one gradient returns it; the others return a struct as in <metalops/backward.h>, in the order of
        # the operands that they take; an absent number is passed as zero.
        names = [f"x{i}" for i in range(self.gradients)]
        call = self._call(self._backward_functor, names, "grad")
        before, values = "", [call]
        if self.gradients > 1:
            if self.numbers == 0:
                call = f"{call[:-1]}, 0.0f)"
            before = f"    const auto gradients = {call};\n"
            values = [f"gradients.{name}" for name in "abc"[: self.gradients]]
        if self.swapped:
            values.reverse()
        return self._source(
            self._backward_functor,
            ["grad", *names],
            values,
            crossed,
            element=element,
            compute="float",
            result=element,
            before=before,
        )

    def _call(self, functor: str, operands: list[str], *first: str) -> str:
        operands = operands[::-1] if self.swapped else operands
        numbers = [f"number{i}" for i in range(self.numbers)]
        return f"{functor}_functor()({', '.join([*first, *operands, *numbers])})"

    def _source(
        self,
        functor: str,
        operands: list[str],
        values: list[str],
        crossed: crossed_tiles.Kernel | None,
        **about: str,
    ) -> str:
        from ...kernel.functor import metal_text
        from ...kernel.functor.definition import Parameter

        operator = metal_text.Operator(
            name=f"metalops_{functor}",
            inputs=tuple(operands),
            parameters=tuple(Parameter(f"number{i}", float, None) for i in range(self.numbers)),
            lines=tuple(f"{value};\n" for value in values),
            **about,
        )
        # Registrations of kernels for torch's classes, which nothing launches here.
        text = _REGISTRATION.sub("", text_of(self.file))
        return metal_text.source_for_cuda(text + "\n", operator, crossed)
