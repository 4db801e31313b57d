"""torch's view of the GPUs: the GPU that tensors are on, the current GPU, and its current stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch
from torch import Tensor

from .._torch.internals import cuda_function

_NOTHING = contextlib.nullcontext()


def index_of(arguments: Iterable[object]) -> int:
    """Returns the index of the GPU of the tensors among the arguments; of the current one if there are none.

    Raises RuntimeError for tensors that are not on one GPU.
    """
    index = -1
    for argument in arguments:
        if isinstance(argument, Tensor):
            own = argument.get_device() if argument.is_cuda else -1
            if own != index:
                if own < 0 or index >= 0:
                    raise _not_on_one_gpu(arguments)
                index = own
    return index if index >= 0 else torch.cuda.current_device()


def _not_on_one_gpu(arguments: Iterable[object]) -> RuntimeError:
    places = sorted({str(a.device) for a in arguments if isinstance(a, Tensor)})
    return RuntimeError(f"a kernel's tensors are on one GPU, got {', '.join(places)}")


def using(index: int) -> contextlib.AbstractContextManager:
    """Makes a GPU the current one, unless it is. torch must have initialised CUDA."""
    return _NOTHING if cuda_function("getDevice")() == index else torch.cuda.device(index)


def stream(index: int) -> int:
    """Returns the handle of torch's current stream on a GPU."""
    return cuda_function("getCurrentRawStream")(index)


def architecture(index: int) -> str:
    """Returns NVRTC's name of a GPU, such as "sm_80"; with architecture-specific features, such as "sm_90a"."""
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")


def pinned_zeros(size: int) -> Tensor:
    """Returns zeroed bytes of pinned host memory, which GPUs write at the same address."""
    return torch.zeros(size, dtype=torch.uint8).pin_memory()


def empty_bytes(size: int) -> Tensor:
    """Returns memory of the current GPU."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def synchronize(index: int) -> None:
    torch.cuda.synchronize(index)


def is_capturing() -> bool:
    """Returns true if the current stream's work is captured in a CUDA graph."""
    return torch.cuda.is_current_stream_capturing()
