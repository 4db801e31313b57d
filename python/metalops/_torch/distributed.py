"""torch.distributed with ``mps`` tensors: the part of csrc/distributed that is Python.

csrc/distributed registers kernels for mps tensors for the operators of c10d, on which all of torch.distributed is
built. They run torch's Gloo on the tensors' own memory. Reasons against a backend of metalops's own
(``torch.distributed.Backend.register_backend``): the operators would need their kernels all the same, since a process
group reaches its backend through them; "gloo", which torch uses for mps by default, would be another thing than that
backend; and from Python it could not keep up with Gloo on small tensors.
"""

from __future__ import annotations

import functools
import os
import warnings

import torch

from .internals import rendezvous_handlers


@functools.cache
def install() -> None:
    """Lets "gloo" serve mps tensors, and lets groups that name no backend serve CPU tensors, too.

    Otherwise init_process_group("gloo") gives a group without a backend for mps tensors, and init_process_group() one
    without a backend for CPU tensors, which monitored_barrier() and programs that log or count need.
    """
    if not torch.distributed.is_available():
        return
    backend = torch.distributed.Backend
    if "mps" not in backend.backend_capability[backend.GLOO]:
        backend.backend_capability[backend.GLOO].append("mps")
    config = torch.distributed.distributed_c10d.BackendConfig
    init = config.__init__

    @functools.wraps(init)
    def with_cpu(self, requested):
        init(self, requested)
        if requested == backend.UNDEFINED and self.device_backend_map == {"mps": backend.GLOO}:
            self.device_backend_map = {"cpu": backend.GLOO, "mps": backend.GLOO}

    config.__init__ = with_cpu
    _serve_fully_shard()
    _start_anew_after_restarts()


def _start_anew_after_restarts() -> None:
    """Keeps ranks that torchrun has restarted from calling the addresses of ranks that have ended.

    The agents of torchrun keep their store, in which Gloo's ranks publish their addresses. One agent has started all
    its ranks equally often; several agents count separately.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    if os.environ.get("GROUP_WORLD_SIZE") != "1":
        warnings.warn(
            "torchrun has restarted this rank, and its agents still have the addresses of Gloo's ranks before; set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 where torchrun is called",
            stacklevel=2,
        )
        return
    handler = rendezvous_handlers["env"]

    @functools.wraps(handler)
    def with_prefix(*args, **keywords):
        for store, rank, size in handler(*args, **keywords):
            yield torch.distributed.PrefixStore(f"attempt {attempt}", store), rank, size

    rendezvous_handlers["env"] = with_prefix


def _serve_fully_shard() -> None:
    """Registers mps kernels for those of fully_shard's operators that torch registers for every other device, made of
    the same operators."""
    for kernel in (all_gather_copy_in, split_with_sizes_copy, chunk_cat):
        _fully_shard.impl(kernel.__name__, kernel, "MPS")


_fully_shard = torch.library.Library("fsdp", "IMPL")


def all_gather_copy_in(inputs, output, split_sizes, numel, rank):
    """Copies this rank's input of all_gather into its part of the output."""
    part = output.narrow(0, numel * rank, numel)
    with torch.no_grad():
        torch.ops.aten._foreach_copy_(torch.split(part, split_sizes), inputs)
    return part, output


def split_with_sizes_copy(output, split_sizes, dim=0, *, out):
    """Copies the gathered data to the parameters."""
    torch.split_with_sizes_copy(output, split_sizes, dim=dim, out=out)


def chunk_cat(tensors, dim, num_chunks, *, out):
    """Lays gradients out as reduce_scatter takes them."""
    torch.ops.aten._chunk_cat.out(tensors, dim, num_chunks, out=out)
