"""Test classes with a class attribute `family` get a parameter `operator`: each operator of that kernel file."""

from metalops.testing.operators import family


def pytest_generate_tests(metafunc):
    name = getattr(metafunc.cls, "family", None)
    if name is not None and "operator" in metafunc.fixturenames:
        metafunc.parametrize("operator", family(name), ids=str)
