"""nn.SyncBatchNorm over mps tensors of several processes. torch's module refuses devices that are not on its list; the
operators that it is made of are in csrc/ops/training/sync_batch_norm.mm, the collectives in csrc/distributed."""

from __future__ import annotations

import functools

import torch.distributed as dist
from torch import Tensor, nn

from .internals import sync_batch_norm


@functools.cache
def install() -> None:
    if not dist.is_available():
        return
    stock = nn.SyncBatchNorm.forward

    @functools.wraps(stock)
    def forward(self: nn.SyncBatchNorm, input: Tensor) -> Tensor:
        if input.is_mps and self.training and dist.is_initialized():
            return _forward(self, input)
        return stock(self, input)

    nn.SyncBatchNorm.forward = forward


def _forward(module: nn.SyncBatchNorm, input: Tensor) -> Tensor:
    group = module.process_group or dist.group.WORLD
    processes = dist.get_world_size(group)
    if processes < 2:
        return super(nn.SyncBatchNorm, module).forward(input)
    if input.dim() < 2:
        raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
    if input.size(1) == 0:
        raise ValueError("SyncBatchNorm number of input channels should be non-zero")
    share = 0.0 if module.momentum is None else module.momentum
    running = None, None
    if module.track_running_stats:
        running = module.running_mean, module.running_var
        module.num_batches_tracked.add_(1)
        if module.momentum is None:  # the mean of all batches
            share = 1.0 / int(module.num_batches_tracked)
    return sync_batch_norm(
        input, module.weight, module.bias, *running, module.eps, share, group, processes
    )
