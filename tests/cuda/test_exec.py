"""What tests/exec asks of the software device, asked of a GPU: its test functions with libraries that copy the tensors there and
back. Left out are those about errors in launches, engines and threads of the CPU, and of what the target lacks.

    PYTHONPATH=python pytest --noconftest tests/cuda/test_exec.py
"""

import importlib
import inspect

import pytest
import torch
from metalops.cuda.library import Library

from tests.exec import test_math
from tests.exec.conftest import HEADER

ABOUT = "atomics barriers integer math pack_and_log simdgroup simdgroup_matrix thread_attributes threadgroup_memory types"
MODULES = [importlib.import_module(f"tests.exec.test_{about}") for about in ABOUT.split()]
# In a program with matrices the lanes of a warp are others of the simdgroup's: all that knows lanes, once more with that.
MATRICES = "\ntypedef simdgroup_half8x8 Unused;\n"
OF_LANES = "atomics barriers simdgroup thread_attributes threadgroup_memory".split()
# "initial_contents": shared memory holds what earlier kernels left there.
NOT_OF_GPUS = ("raises(", "kernel_table", "capfd", "lock_excludes", "nested too deeply", ".emit")
NOT_OF_GPUS += ("initial_contents",)

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no NVIDIA GPU, or torch has no CUDA"
)

# What Metal allows functions of one argument, in ulp (Metal Shading Language Specification, "Numerical compliance"); the tests
# themselves ask more of the software device.
ULP = dict.fromkeys("acos acosh asin asinh cos cosh cospi exp2 sin sinh sinpi".split(), 4)
ULP |= dict.fromkeys("exp exp10 log log10 log2".split(), 3)
ULP |= dict.fromkeys("atan atanh tanh".split(), 5) | {"tan": 6}

_libraries = {}


class Copies:
    """A GPU's library that takes tensors of the CPU."""

    def __init__(self, library):
        self._library = library

    def kernel_table(self):
        return [{"name": name, "engines": ["auto"]} for name in self._library.kernel_names]

    def launch(self, name, buffers, grid, group, threadgroup_bytes=None, engine="auto", threads=0):
        there = {}
        arguments = [self._there(b, there) if isinstance(b, torch.Tensor) else b for b in buffers]
        self._library.launch(name, arguments, grid, group, threadgroup_bytes)
        for here, copy in there.values():
            here.copy_(copy)

    @staticmethod
    def _there(tensor, there):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in there:
            there[storage.data_ptr()] = storage, storage.cuda()
        copy = there[storage.data_ptr()][1]
        view = torch.empty(0, dtype=tensor.dtype, device="cuda")
        return view.set_(copy, tensor.storage_offset(), tensor.shape, tensor.stride())


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch, request):
    more = getattr(request, "param", "")

    def build(source, optimize=None):
        """optimize: of the software device's compiler, which NVRTC is not."""
        text = HEADER + source + more
        if text not in _libraries:
            _libraries[text] = Copies(Library(text))
        return _libraries[text]

    for module in MODULES:
        monkeypatch.setattr(module, "build", build)
    monkeypatch.setattr(test_math, "FLUSHING", {"exp2"})
    for name, (reference, ulp) in test_math.UNARY.items():
        monkeypatch.setitem(test_math.UNARY, name, (reference, max(ulp, ULP.get(name, 0))))


def pytest_generate_tests(metafunc):
    if metafunc.function.__module__.rpartition("test_")[2] in OF_LANES:
        metafunc.parametrize("on_the_gpu", ["", MATRICES], indirect=True, ids=["", "with matrices"])


@pytest.fixture
def engine():
    return "auto"


@pytest.fixture
def several_threads():
    return lambda *_: None


def _collected():
    for module in MODULES:
        about = module.__name__.rpartition("test_")[2]
        for name, function in vars(module).items():
            if name.startswith("test_") and callable(function):
                text = inspect.getsource(function)
                if not any(words in text or words in name for words in NOT_OF_GPUS):
                    yield name.replace("test_", f"test_{about}_", 1), function


globals().update(_collected())
