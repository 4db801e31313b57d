"""A double of the CUDA driver and of what torch knows of GPUs, for machines without one: kernels are compiled to PTX, their
launches recorded, and tensors of the CPU pass for a GPU's."""

import contextlib
import importlib.util
import re
import struct
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from metalops.cuda import driver, nvrtc

ARCHITECTURE = "compute_90"
EXTENT = struct.Struct("<12I")

needs_nvrtc = pytest.mark.skipif(
    not nvrtc.is_available(), reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc"
)

# The kernels that a GPU would run are run by the software device, with torch's operators on the CPU.
needs_software_device = pytest.mark.skipif(
    importlib.util.find_spec("metalops._host") is None,
    reason="metalops is not built: there is no software device",
)


@dataclass
class Launch:
    """What the driver was asked for. parameters: the bytes of each."""

    function: str
    blocks: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    parameters: list[bytes]

    @property
    def extent(self):
        """Grid, group, groups and first group of the entry's first parameter."""
        numbers = EXTENT.unpack(self.parameters[0][: EXTENT.size])
        return numbers[:3], numbers[3:6], numbers[6:9], numbers[9:]


class Module:
    def __init__(self, code):
        self.text = code.decode()

    def function(self, name):
        assert f".entry {name}" in self.text
        return name

    def read(self, name):
        found = re.search(rf"\.b8 {name}\[(\d+)\] = \{{([^}}]*)\}}", self.text)
        return bytes(map(int, found[2].split(","))).ljust(int(found[1]), b"\0")


@dataclass
class Recorder:
    """launches: in their order. most_threads: of a threadgroup of any kernel. allowed: bytes of dynamic shared memory, by
    function. synchronized: GPUs that were waited for. contexts: those whose context was asked for."""

    launches: list[Launch] = field(default_factory=list)
    most_threads: int = 1024
    allowed: dict[str, int] = field(default_factory=dict)
    synchronized: list[int] = field(default_factory=list)
    contexts: set[int] = field(default_factory=set)
    is_capturing: bool = False

    def launch(self, function, blocks, block, shared, stream, parameters):
        first = parameters.addresses[0]
        ends = [a - first for a in parameters.addresses[1:]] + [len(parameters.memory)]
        starts = [a - first for a in parameters.addresses]
        passed = [parameters.memory.raw[a:b] for a, b in zip(starts, ends, strict=True)]
        self.launches.append(Launch(function, blocks, block, shared, passed))


@pytest.fixture
def recorder(monkeypatch):
    """Launches are recorded, not run."""
    recorder = Recorder()
    double = SimpleNamespace(
        Module=Module,
        Parameters=driver.Parameters,
        ensure_context=recorder.contexts.add,
        launch=recorder.launch,
        max_threads=lambda function: recorder.most_threads,
        static_shared_bytes=lambda function: 0,
        allow_dynamic_shared_bytes=recorder.allowed.__setitem__,
    )
    device = SimpleNamespace(
        index_of=lambda arguments: 0,
        using=lambda index: contextlib.nullcontext(),
        stream=lambda index: 0,
        architecture=lambda index: ARCHITECTURE,
        pinned_zeros=lambda size: torch.zeros(size, dtype=torch.uint8),
        empty_bytes=lambda size: torch.empty(size, dtype=torch.uint8),
        synchronize=recorder.synchronized.append,
        is_capturing=lambda: recorder.is_capturing,
    )
    monkeypatch.setattr("metalops.cuda.errors._buffers", {})
    for module in ("library", "function"):
        monkeypatch.setattr(f"metalops.cuda.{module}.driver", double)
    for module in ("errors", "library", "long_values", "shader"):
        monkeypatch.setattr(f"metalops.cuda.{module}.device", device)
    return recorder
