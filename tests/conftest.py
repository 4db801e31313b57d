"""What every test needs: the device, before torch's testing modules look for it."""

# torch.testing._internal reads at import whether there is an mps device.
import metalops  # noqa: F401
import pytest
import torch

# A package of its own: tests/build/test_extension_example.py installs it and runs its tests.
collect_ignore = ["extension_example"]


@pytest.fixture(autouse=True)
def _same_random_numbers_in_every_test():
    torch.manual_seed(0)


@pytest.fixture
def fresh_compiler():
    """torch.compile with nothing remembered from earlier tests, and nothing left to later ones."""
    from torch._inductor.utils import fresh_cache  # takes seconds to import

    torch._dynamo.reset()
    with fresh_cache():
        yield
    torch._dynamo.reset()
