"""Test classes with a class attribute `operators` get a parameter `operator`: each of them."""

import metalops
import pytest


def pytest_generate_tests(metafunc):
    operators = getattr(metafunc.cls, "operators", None)
    if operators is not None and "operator" in metafunc.fixturenames:
        metafunc.parametrize("operator", operators, ids=str)


@pytest.fixture(params=["cpu", "gpu"])
def taken_as_on(request):
    """Kernels with a thread for each element, as on a CPU, and with one for four, as on a GPU."""
    if not metalops._is_software:
        pytest.skip("a Mac has a GPU, for which torch chooses")
    from metalops import _host

    flavour = "" if request.param == "cpu" else "gpu"
    before = _host.set_elementwise_flavour(flavour, flavour)
    yield request.param
    _host.set_elementwise_flavour(*before)
