"""What tests/tensorops asks of the software device, asked of a GPU: its test functions with libraries that copy the tensors there
and back.

    PYTHONPATH=python pytest --noconftest tests/cuda/test_tensorops_exec.py
"""

import importlib
import inspect

import pytest
import torch
from metalops.cuda.library import Library
from metalops.msl.source import languages

from tests.cuda.test_exec import Copies
from tests.tensorops import products

MODULES = [
    importlib.import_module(f"tests.tensorops.test_{about}")
    for about in "convolution2d cooperative_tensors formats matmul2d scale_planes tensors".split()
]
NOT_OF_GPUS = ("raises(", "compile_source")

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no NVIDIA GPU, or torch has no CUDA"
)

_libraries = {}


def build(source, language="4.0", layout="apple10", optimize=1):
    key = source, language, layout
    if key not in _libraries:
        number = languages.number_of(language)
        library = Library(products.HEADER + source, language=number, cooperative_layout=layout)
        _libraries[key] = Copies(library)
    return _libraries[key]


@pytest.fixture(autouse=True, params=["apple10", "tensor_cores"])
def on_the_gpu(monkeypatch, request):
    """Where tests do not say it, cooperative tensors have their elements as an Apple GPU or as this one has them."""

    def build_with(source, language="4.0", layout=request.param, optimize=1):
        return build(source, language, layout, optimize)

    for module in MODULES:
        monkeypatch.setattr(module, "build", build_with)


def _collected():
    for module in MODULES:
        about = module.__name__.rpartition("test_")[2]
        for name, function in vars(module).items():
            if name.startswith("test_") and callable(function):
                text = inspect.getsource(function)
                if not any(words in text for words in NOT_OF_GPUS):
                    yield name.replace("test_", f"test_{about}_", 1), function


globals().update(_collected())
