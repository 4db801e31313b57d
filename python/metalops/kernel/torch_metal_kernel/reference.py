"""A kernel's reference in torch operators: computes its results, and their shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from ..._torch.internals import FakeTensorMode, detect_fake_mode, is_alias_of


@dataclass(frozen=True)
class Reference:
    """owner: the subject of errors. function: torch_defn. result_names: the names of its results, in order.

    device: where the function creates tensors unless it says so itself; None: on the CPU.
    """

    owner: str
    function: Callable
    result_names: tuple[str, ...]

    def __call__(
        self, inputs: Sequence[object], device: torch.device | None = None
    ) -> list[torch.Tensor]:
        """Returns the results, as contiguous tensors with memory of their own."""
        results: list[torch.Tensor] = []
        used = [value for value in inputs if isinstance(value, torch.Tensor)]
        with device or nullcontext():
            returned = self.function(*inputs)
        for result in self._results(returned):
            result = result.contiguous()
            if any(is_alias_of(result, other) for other in used):
                result = result.clone(memory_format=torch.contiguous_format)
            results.append(result)
            used.append(result)
        return results

    def infer(
        self, inputs: Sequence[object], device: torch.device | None = None
    ) -> list[torch.Tensor]:
        """Returns fake tensors with the shapes and dtypes of the results.

        The reference runs on fake tensors of the CPU: one that was written for the CPU may create tensors without
        naming a device, or compute in float64. So the results' devices are meaningful only without tensors among the
        inputs.
        """
        ambient = detect_fake_mode(inputs)
        mode = FakeTensorMode(
            allow_non_fake_inputs=True, shape_env=ambient.shape_env if ambient else None
        )
        with mode, torch.no_grad(), device or nullcontext():
            fakes = [_on_cpu(v) if isinstance(v, torch.Tensor) else v for v in inputs]
            return self._results(self.function(*fakes))

    def _results(self, returned: object) -> list[torch.Tensor]:
        results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        for result in results:
            if not isinstance(result, torch.Tensor):
                raise TypeError(
                    f"{self.owner}: torch_defn must return tensors, but returned {result!r}"
                )
        if len(results) != len(self.result_names):
            raise ValueError(
                f"{self.owner}: torch_defn returned {len(results)} tensors, but there are "
                f"{len(self.result_names)} result names"
            )
        return results


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
