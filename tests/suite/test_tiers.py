"""Which tests belong to which tier (tests/tiers.py)."""

import functools

import pytest

from .. import tiers


class Item:
    """What tiers.py asks of a pytest.Item."""

    def __init__(self, nodeid, function, *marks):
        self.nodeid, self.function = nodeid, function
        self.marks = {mark.name: mark for mark in marks}

    def get_closest_marker(self, name):
        return self.marks.get(name)

    def add_marker(self, decorator):
        self.marks[decorator.mark.name] = decorator.mark


def quick(items):
    tiers.mark_tiers(items)
    return [item.nodeid for item in items if "quick" in item.marks]


def written():
    """The function that all of these are cases of."""


def of_operator(name):
    """A function as torch makes one for an operator: under another name, and wrapped."""

    @functools.wraps(written)
    def instantiated():
        written()

    return Item(f"a.py::TestCPU::test_values_{name}", instantiated)


def test_the_first_cases_are_quick():
    items = [Item(f"a.py::test_values[{i}]", written) for i in range(5)]
    assert quick(items) == ["a.py::test_values[0]", "a.py::test_values[1]"]


def test_functions_that_torch_makes_for_operators_are_cases_of_one():
    items = [of_operator(name) for name in ("add_float32", "add_float16", "mul_float32")]
    assert quick(items) == [item.nodeid for item in items[: tiers.CASES]]


def test_cases_with_a_mark_of_another_tier_are_not_quick():
    marked = [pytest.mark.full.mark, pytest.mark.nightly.mark, pytest.mark.sampled(2).mark]
    items = [Item(f"a.py::test_values[{i}]", written, mark) for i, mark in enumerate(marked)]
    assert quick(items) == ["a.py::test_values[2]"]  # the first one of those that are sampled
