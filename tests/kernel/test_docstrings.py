"""The examples in the docstrings of metalops.kernel run and print what they say."""

import doctest
import importlib
import pkgutil

import metalops.kernel
import pytest

MODULES = [
    "metalops.kernel",
    *(
        module.name
        for module in pkgutil.walk_packages(metalops.kernel.__path__, "metalops.kernel.")
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0
