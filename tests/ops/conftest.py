"""Test classes with a class attribute `operators` get a parameter `operator`: each of them."""

import metalops
import pytest


def pytest_generate_tests(metafunc):
    operators = getattr(metafunc.cls, "operators", None)
    if operators is not None and "operator" in metafunc.fixturenames:
        metafunc.parametrize("operator", operators, ids=str)


@pytest.fixture(params=["cpu", "gpu"])
def taken_as_on(request):
    """Kernels as for a CPU, with a thread for each element, and as for a GPU, with one for four."""
    if not metalops._is_software:
        if request.param == "cpu":
            pytest.skip("a Mac has a GPU")
        yield request.param
        return
    from metalops import _host

    flavour = "" if request.param == "cpu" else "gpu"
    before = _host.set_elementwise_flavour(flavour, flavour)
    yield request.param
    _host.set_elementwise_flavour(*before)
