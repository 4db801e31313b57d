"""What the tests of the software mps device share."""

import pytest
import torch


@pytest.fixture
def free_of_garbage():
    """Frees what earlier tests left in cycles, so that memory can be counted."""
    import gc

    gc.collect()
    torch.mps.empty_cache()
