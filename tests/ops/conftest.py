"""Test classes with a class attribute `operators` get a parameter `operator`: each of them."""


def pytest_generate_tests(metafunc):
    operators = getattr(metafunc.cls, "operators", None)
    if operators is not None and "operator" in metafunc.fixturenames:
        metafunc.parametrize("operator", operators, ids=str)
