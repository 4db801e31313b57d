"""The examples in the docstrings of metalops.kernel run and print what they say."""

import doctest
import importlib
import pkgutil

import metalops.kernel
import pytest

MODULES = [
    "metalops.kernel",
    *(
        f"metalops.kernel.{module.name}"
        for module in pkgutil.iter_modules(metalops.kernel.__path__)
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0
