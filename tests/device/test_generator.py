"""Random numbers: MPS's Philox generator, and streams that its state repeats."""

import struct

import pytest
import torch
from torch import nn


def state_of(generator: torch.Generator) -> tuple[list[int], int, int]:
    raw = bytes(generator.get_state().tolist())
    *words, seed, offset = struct.unpack("<7IQQ", raw)
    return words, seed, offset


def test_state_layout():
    generator = torch.Generator("mps").manual_seed((5 << 32) + 7)
    assert generator.get_state().dtype == torch.uint8
    assert generator.get_state().device.type == "cpu"
    assert generator.get_state().numel() == 44
    assert state_of(generator) == ([1, 1, 1, 1, 1, 7, 5], (5 << 32) + 7, 0)
    generator.set_offset(12)
    assert generator.get_offset() == 12
    assert state_of(generator)[2] == 12
    assert generator.initial_seed() == (5 << 32) + 7
    assert generator.device.type == "mps"


def test_default_generator():
    torch.manual_seed(3)
    a = torch.randn(4, device="mps")
    torch.manual_seed(3)
    b = torch.randn(4, device="mps")
    torch.mps.manual_seed(3)
    c = torch.randn(4, device="mps")
    assert a.tolist() == b.tolist() == c.tolist()
    assert torch.randn(4, device="mps").tolist() != c.tolist()
    torch.mps.seed()
    assert torch.mps.get_rng_state().numel() == 44


DRAWS = {
    "rand": lambda g: torch.rand(5, device="mps", generator=g),
    "randn": lambda g: torch.randn(100, device="mps", generator=g),
    "randint": lambda g: torch.randint(1000, (5,), device="mps", generator=g),
    "randperm": lambda g: torch.randperm(50, device="mps", generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((64,), 0.5, device="mps"), generator=g),
    "uniform_": lambda g: torch.empty(5, device="mps").uniform_(2, 3, generator=g),
    "normal_": lambda g: torch.empty(5, device="mps").normal_(2, 3, generator=g),
    "exponential_": lambda g: torch.empty(5, device="mps").exponential_(generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(50, device="mps"), 9, generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_state_repeats_the_numbers(name):
    draw = DRAWS[name]
    generator = torch.Generator("mps").manual_seed(1)
    draw(generator)
    state = generator.get_state()
    first = draw(generator)
    second = draw(generator)
    assert generator.get_offset() > 0
    assert first.tolist() != second.tolist()
    generator.set_state(state)
    assert draw(generator).tolist() == first.tolist()
    assert draw(generator).tolist() == second.tolist()
    other = torch.Generator("mps").manual_seed(1)
    other.set_state(state)
    assert draw(other).tolist() == first.tolist()


def test_seed_and_offset_alone_decide():
    generator = torch.Generator("mps").manual_seed(4)
    generator.set_offset(77)
    first = torch.randn(10, device="mps", generator=generator)
    after = generator.get_offset()
    other = torch.Generator("mps").manual_seed(4)
    other.set_offset(77)
    assert torch.randn(10, device="mps", generator=other).tolist() == first.tolist()
    assert other.get_offset() == after


def test_offset_advances_by_groups_of_four():
    generator = torch.Generator("mps").manual_seed(4)
    torch.rand(10, device="mps", generator=generator)
    assert generator.get_offset() == 3
    torch.rand(1, device="mps", generator=generator)
    assert generator.get_offset() == 4


def test_dropout_follows_the_generator():
    x = torch.ones(200, device="mps")
    torch.mps.manual_seed(9)
    first = nn.functional.dropout(x, 0.5)
    native, _ = torch.native_dropout(x, 0.5, True)
    torch.mps.manual_seed(9)
    assert nn.functional.dropout(x, 0.5).tolist() == first.tolist()
    assert torch.native_dropout(x, 0.5, True)[0].tolist() == native.tolist()
    assert native.tolist() != first.tolist()


def test_the_cpu_generator_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    torch.randn(10, device="mps")
    torch.native_dropout(torch.ones(10, device="mps"), 0.5, True)
    assert torch.equal(torch.get_rng_state(), before)


def test_fork_rng():
    before = torch.mps.get_rng_state()
    with torch.random.fork_rng(device_type="mps"):
        torch.randn(2, device="mps")
        assert not torch.equal(torch.mps.get_rng_state(), before)
    assert torch.equal(torch.mps.get_rng_state(), before)


def test_clone_continues_from_the_same_place():
    generator = torch.Generator("mps").manual_seed(8)
    torch.randn(3, device="mps", generator=generator)
    twin = generator.clone_state()
    assert twin.get_offset() == generator.get_offset()
    a = torch.randn(3, device="mps", generator=generator)
    assert torch.randn(3, device="mps", generator=twin).tolist() == a.tolist()


def test_state_of_wrong_size():
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        torch.Generator("mps").set_state(torch.zeros(10, dtype=torch.uint8))


def test_generator_of_another_device():
    with pytest.raises(
        RuntimeError, match="Expected a 'mps' device type for generator but found 'cpu'"
    ):
        torch.randn(3, device="mps", generator=torch.Generator())


def test_numbers_look_random():
    x = torch.randn(100_000, device="mps")
    assert abs(x.mean().item()) < 0.02
    assert abs(x.std().item() - 1) < 0.02
    generator = torch.Generator("mps").manual_seed(1)
    draws = torch.stack([torch.rand(64, device="mps", generator=generator) for _ in range(64)])
    centred = (draws - 0.5).cpu()
    correlation = torch.corrcoef(centred).fill_diagonal_(0).abs().max()
    assert correlation < 0.6
    shifted = torch.corrcoef(torch.stack([draws[1, :-4].cpu(), draws[0, 4:].cpu()]))[0, 1]
    assert abs(shifted) < 0.5
