"""Tests of the software mps device; a Mac, which has a device of its own, skips them."""

import metalops
import pytest
import torch

software = metalops._is_software


def pytest_collection_modifyitems(items):
    if software:
        return
    skip = pytest.mark.skip(reason="tests the software device; this machine has an Apple GPU")
    for item in items:
        if "tests/device" in item.path.as_posix():
            item.add_marker(skip)


@pytest.fixture
def free_of_garbage():
    """Frees what earlier tests left in cycles, so that memory can be counted."""
    import gc

    gc.collect()
    torch.mps.empty_cache()
