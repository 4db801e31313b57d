"""A plugin of pytest for test files that run themselves by a main(), as those of the mpsops projects do: tests get the arguments
`dtype` and `name` that main() gives them, and one that returns False has failed."""

import pytest
import torch

DTYPES = ((torch.float32, "FP32"), (torch.float16, "FP16"), (torch.bfloat16, "BF16"))


def pytest_generate_tests(metafunc):
    if {"dtype", "name"} <= set(metafunc.fixturenames):
        metafunc.parametrize("dtype, name", DTYPES, ids=[name for _, name in DTYPES])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    assert pyfuncitem.obj(**arguments) is not False, "the test returned False"
    return True
