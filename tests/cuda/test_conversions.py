"""Floating-point numbers become integers on GPUs as on the software device (tests/exec/test_conversions.py).

PYTHONPATH=python pytest --noconftest tests/cuda/test_conversions.py
"""

import pytest
import torch
from metalops.cuda.library import Library

from tests.exec.conftest import HEADER
from tests.exec.test_conversions import FLOATS, FORMS, INTEGERS, check

from .test_exec import Copies

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no NVIDIA GPU, or torch has no CUDA"
)


@pytest.mark.parametrize("of", FLOATS)
def test_conversions_saturate(of):
    check(INTEGERS, of, FORMS, build=lambda source: Copies(Library(HEADER + source)))
