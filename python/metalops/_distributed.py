"""torch.distributed with ``mps`` tensors: what csrc/distributed leaves to Python.

There the operators of c10d, which are what all of torch.distributed is made of, get kernels for mps tensors. They run torch's
Gloo on the tensors' own memory. Why not a backend of our own (``torch.distributed.Backend.register_backend``): the operators would
need their kernels all the same, since a process group comes to its backend through them; "gloo", which torch takes for mps by
default, would be another thing than ours; and from Python it could not keep up with Gloo on small tensors.
"""

from __future__ import annotations

import functools

import torch


def install() -> None:
    """Lets "gloo" and torch's "fake" serve mps tensors, and groups that name no backend CPU tensors too.

    Otherwise init_process_group("gloo") gives a group without a backend for mps tensors, and init_process_group() one without a
    backend for CPU tensors, which monitored_barrier() needs and programs that log or count.
    """
    if not torch.distributed.is_available():
        return
    backend = torch.distributed.Backend
    for name in (backend.GLOO, backend.FAKE):
        if "mps" not in backend.backend_capability[name]:
            backend.backend_capability[name].append("mps")
    config = torch.distributed.distributed_c10d.BackendConfig
    init = config.__init__

    @functools.wraps(init)
    def with_cpu(self, requested):
        init(self, requested)
        if requested == backend.UNDEFINED and self.device_backend_map == {"mps": backend.GLOO}:
            self.device_backend_map = {"cpu": backend.GLOO, "mps": backend.GLOO}

    config.__init__ = with_cpu
