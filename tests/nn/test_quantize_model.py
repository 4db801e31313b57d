"""quantize_model: all layers are replaced, or none."""

import copy
import itertools
import random

import pytest
import torch
from metalops import nn as layers
from metalops.nn import QuantizedEmbedding, QuantizedLinear, quantize_model
from metalops.nn import quantized as module_of_layers
from torch import nn

WRONG = {
    "columns that are no whole bytes": lambda: nn.Linear(60, 8),
    "float64": lambda: nn.Linear(64, 8, dtype=torch.float64),
    "complex": lambda: nn.Linear(64, 8, dtype=torch.complex64),
    "an embedding that is renormalised": lambda: nn.Embedding(8, 64, max_norm=1.0),
    "an embedding of odd rows": lambda: nn.Embedding(8, 63),
}
OPTIONS = ({"bits": 9}, {"group_size": 48}, {"mode": "mxfp5"}, {"mode": "mxfp4", "bits": 3})


class Shared(nn.Module):
    """A layer in two places, weights of one layer that another one has too, and modules in modules."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 64)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64, bias=chance.random() < 0.5), nn.ReLU())
            for _ in range(3)
        )
        self.again = self.blocks[0][0]
        self.by_name = nn.ModuleDict({"a": nn.Linear(64, 64), "b": self.blocks[1]})
        self.head = nn.Linear(64, 32, bias=False)
        self.head.weight = self.embedding.weight


def everything(model):
    """What a model is made of: its modules and tensors themselves, by all of their names, and their values."""
    modules = dict(model.named_modules(remove_duplicate=False))
    state = dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )
    return modules, state, {name: x.detach().clone() for name, x in state.items()}


def assert_unchanged(model, before):
    modules, state, values = before
    now = dict(model.named_modules(remove_duplicate=False))
    assert list(now) == list(modules)
    assert all(now[name] is modules[name] for name in modules)
    after = everything(model)[1]
    assert list(after) == list(state)
    assert all(after[name] is state[name] for name in state)
    assert all(torch.equal(state[name], values[name]) for name in values)


def all_layers(layer, fqn):
    return True


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_layer_that_cannot_be_quantised_leaves_all_as_they_were(wrong, place):
    model = Shared(random.Random(0))
    if place == "first":
        model.embedding = WRONG[wrong]()
    elif place == "middle":
        model.blocks[1].append(WRONG[wrong]())
    else:
        model.last = WRONG[wrong]()
    before = everything(model)
    with pytest.raises((ValueError, NotImplementedError)):
        quantize_model(model, filter_fn=all_layers)
    assert_unchanged(model, before)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_wrong_options_leave_all_as_they_were(options):
    model = Shared(random.Random(0))
    before = everything(model)
    with pytest.raises(ValueError):
        quantize_model(model, **options)
    assert_unchanged(model, before)


class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, Stop])
@pytest.mark.parametrize("step", ["filter", "quantize", "replace"])
@pytest.mark.parametrize("calls", range(5))
def test_an_interruption_leaves_all_as_they_were(monkeypatch, error, step, calls):
    model = Shared(random.Random(calls))
    before = everything(model)
    count = itertools.count()

    def once(function):
        def called(*args, **options):
            if next(count) == calls:
                raise error
            return function(*args, **options)

        return called

    accepts = all_layers
    if step == "filter":
        accepts = once(all_layers)
    elif step == "quantize":
        monkeypatch.setattr(module_of_layers.ops, "quantize", once(module_of_layers.ops.quantize))
    else:
        monkeypatch.setattr(nn.Module, "set_submodule", once(nn.Module.set_submodule))
    with pytest.raises(error):
        quantize_model(model, filter_fn=accepts)
    assert_unchanged(model, before)


@pytest.mark.parametrize("seed", range(10))
def test_without_an_interruption_all_of_them_are_replaced(seed):
    chance = random.Random(seed)
    model = Shared(chance)
    chosen = {name for name, _ in model.named_modules() if chance.random() < 0.6}
    expected = copy.deepcopy(model)
    assert quantize_model(model, filter_fn=lambda layer, fqn: fqn in chosen) is model
    places = dict(model.named_modules(remove_duplicate=False))
    for name, layer in dict(expected.named_modules(remove_duplicate=False)).items():
        first = next(n for n, x in expected.named_modules() if x is layer)
        kind = {nn.Linear: QuantizedLinear, nn.Embedding: QuantizedEmbedding}.get(type(layer))
        if kind is not None and first in chosen:
            assert type(places[name]) is kind
            assert places[name] is places[first]
        elif kind is not None:
            assert torch.equal(places[name].weight, layer.weight)
    if "head" not in chosen and "embedding" not in chosen:
        assert model.head.weight is model.embedding.weight


class Adapted(nn.Linear):
    """A layer with layers of its own."""

    def __init__(self) -> None:
        super().__init__(64, 64)
        self.down = nn.Linear(64, 8)


def test_what_is_in_a_replaced_layer_goes_with_it():
    model = nn.Sequential(Adapted(), nn.Linear(64, 8))
    asked = []

    def accepts(layer, fqn):
        asked.append(fqn)
        return True

    quantize_model(model, filter_fn=accepts)
    assert asked == ["0", "1"]
    assert all(type(layer) is layers.QuantizedLinear for layer in model)
    assert type(quantize_model(Adapted(), filter_fn=accepts)) is layers.QuantizedLinear
