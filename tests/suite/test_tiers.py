"""Which tests belong to which tier (tests/tiers.py)."""

import functools
import itertools
import types

import pytest
import torch

from .. import tiers


class Item:
    """What tiers.py asks of a pytest.Item."""

    def __init__(self, nodeid, function, *marks, **parameters):
        self.nodeid, self.function = nodeid, function
        self.callspec = types.SimpleNamespace(params=parameters)
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


def full(file, *marks, **parameters):
    """The parameters of the cases of a function that belong to the full tier."""
    names, values = [*parameters], itertools.product(*parameters.values())
    items = [
        Item(f"{file}::test_values[{i}]", written, *marks, **dict(zip(names, row, strict=True)))
        for i, row in enumerate(values)
    ]
    tiers.mark_tiers(items)
    return [(*i.callspec.params.values(),) for i in items if "nightly" not in i.marks]


def test_each_value_of_each_parameter_is_sampled():
    mark = pytest.mark.sampled(3).mark
    found = full("tests/a.py", mark, rows=range(6), layout=["dense", "strided", "empty"])
    assert len(found) == 6
    assert {rows for rows, _ in found} == {*range(6)}
    assert {layout for _, layout in found} == {"dense", "strided", "empty"}


def test_arguments_that_are_given_together_are_one_parameter():
    mark = pytest.mark.sampled(2).mark
    items = [Item(f"a.py::test_f[{i}]", written, mark, a=i, b=-i) for i in range(4)]
    tiers.mark_tiers(items)
    assert ["nightly" in item.marks for item in items] == [False, True, False, True]


def test_one_dtype_of_a_class_is_enough_for_a_family():
    dtypes = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool]
    chosen = set()
    for folder in "abcdef":
        found = full(f"tests/ops/{folder}/test_a.py", rows=[1, 2], dtype=dtypes)
        for dtype in (torch.float32, torch.bool):
            assert (1, dtype) in found and (2, dtype) in found
        others = [dtype for _, dtype in found if dtype not in (torch.float32, torch.bool)]
        assert len(others) == 4 and len({*others}) == 2  # the same for all rows
        assert found == full(f"tests/ops/{folder}/test_b.py", rows=[1, 2], dtype=dtypes)
        chosen |= {*others}
    assert len(chosen) > 2  # not the same for all folders
    assert len(full("tests/device/test_a.py", dtype=dtypes)) == len(dtypes)
