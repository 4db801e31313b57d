"""Random numbers: MPS's Philox generator, and streams that its state repeats."""

import concurrent.futures
import functools
import struct
import threading

import pytest
import torch
from metalops._torch import software_device, stock
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


def ones(*shape):
    return torch.ones(shape, device="mps")


aten = torch.ops.aten
# Every random operator of stock MPS, in any version of torch, by its overload.
RANDOM = {
    "_sample_dirichlet": lambda: aten._sample_dirichlet(ones(9, 3)),
    "_scaled_dot_product_attention_math_for_mps": lambda: (
        aten._scaled_dot_product_attention_math_for_mps(
            ones(1, 2, 8, 4), ones(1, 2, 8, 4), ones(1, 2, 8, 4), None, 0.5
        )[1]
    ),
    "_standard_gamma": lambda: aten._standard_gamma(ones(20)),
    "bernoulli.out": lambda: aten.bernoulli.out(ones(99) / 2, out=ones(99)),
    "bernoulli_.Tensor": lambda: aten.bernoulli_.Tensor(ones(99), ones(99) / 2),
    "bernoulli_.float": lambda: aten.bernoulli_.float(ones(99), 0.5),
    "binomial": lambda: aten.binomial(ones(99) * 50, ones(99) / 2),
    "cauchy_": lambda: aten.cauchy_(ones(20)),
    "exponential_": lambda: aten.exponential_(ones(20)),
    "geometric_": lambda: aten.geometric_(ones(99), 0.1),
    "log_normal_": lambda: aten.log_normal_(ones(20)),
    "multinomial": lambda: aten.multinomial(ones(200), 20),
    "multinomial.out": lambda: aten.multinomial.out(ones(200), 20, out=ones(0).long()),
    "native_dropout": lambda: aten.native_dropout(ones(99), 0.5, True)[0],
    "normal.Tensor_Tensor": lambda: aten.normal.Tensor_Tensor(ones(20), ones(20)),
    "normal.Tensor_Tensor_out": lambda: aten.normal.Tensor_Tensor_out(
        ones(20), ones(20), out=ones(20)
    ),
    "normal.Tensor_float": lambda: aten.normal.Tensor_float(ones(20), 1.0),
    "normal.Tensor_float_out": lambda: aten.normal.Tensor_float_out(ones(20), 1.0, out=ones(20)),
    "normal.float_Tensor": lambda: aten.normal.float_Tensor(1.0, ones(20)),
    "normal.float_Tensor_out": lambda: aten.normal.float_Tensor_out(1.0, ones(20), out=ones(20)),
    "normal_": lambda: aten.normal_(ones(20)),
    "poisson": lambda: aten.poisson(ones(99) * 50),
    "random_": lambda: aten.random_(ones(20)),
    "random_.from": lambda: getattr(aten.random_, "from")(ones(20), 5, 5000),
    "random_.to": lambda: aten.random_.to(ones(20), 5000),
    "randperm.generator_out": lambda: aten.randperm.generator_out(
        200, generator=None, out=ones(0).long()
    ),
    "uniform_": lambda: aten.uniform_(ones(20)),
    # compositions and operators of ours that draw
    "dropout": lambda: aten.dropout(ones(99), 0.5, True),
    "feature_dropout": lambda: aten.feature_dropout(ones(99, 2), 0.5, True),
    "alpha_dropout": lambda: aten.alpha_dropout(ones(99), 0.5, True),
    "rrelu": lambda: aten.rrelu(-ones(20), 0.1, 0.9, True),
    "rand": lambda: torch.rand(20, device="mps"),
    "randint_like": lambda: torch.randint_like(ones(20), 5000),
    "scaled_dot_product_attention": lambda: nn.functional.scaled_dot_product_attention(
        ones(1, 2, 8, 4), ones(1, 2, 8, 4), ones(1, 2, 8, 4), dropout_p=0.5
    ),
    "lstm": lambda: nn.LSTM(2, 3, num_layers=2, dropout=0.5, device="mps")(ones(5, 9, 2))[0],
}


def random_stock_overloads() -> set[str]:
    found = set()
    for name in stock.stock_overloads() - software_device.stock_operators_without_kernel():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(aten, packet), overload or "default")
        takes_generator = any("Generator" in str(a.type) for a in op._schema.arguments)
        if takes_generator or torch.Tag.nondeterministic_seeded in op.tags:
            found.add(name.removeprefix("aten::"))
    return found


def test_every_random_operator_is_listed():
    assert random_stock_overloads() <= set(RANDOM)


@pytest.mark.parametrize("name", RANDOM)
def test_random_operators_draw_from_the_mps_generator_alone(name):
    cpu = torch.get_rng_state()
    torch.mps.manual_seed(11)
    before = torch.mps.get_rng_state()
    first = RANDOM[name]().tolist()
    assert not torch.equal(torch.mps.get_rng_state(), before)
    assert RANDOM[name]().tolist() != first
    torch.mps.manual_seed(11)
    assert RANDOM[name]().tolist() == first
    assert torch.equal(torch.get_rng_state(), cpu)


THREADS = 4


def together(*functions):
    """Runs each in a thread of its own, all starting at once; their results."""
    meet = threading.Barrier(len(functions))

    def run(function):
        meet.wait()
        return threading.get_ident(), function()

    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        idents, results = zip(*pool.map(run, functions), strict=True)
    assert len(set(idents)) == len(functions)
    return results


SAME_TIME = {
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "normal_": lambda x: x.normal_(),
    "randperm": lambda x: torch.randperm(x.numel(), device="mps"),
    "rrelu": lambda x: nn.functional.rrelu(-x, training=True),
}


@pytest.mark.parametrize("name", SAME_TIME)
def test_threads_draw_different_numbers_and_leave_the_cpu_generator_alone(name):
    calls, elements = 100, 5000  # long enough for calls to overlap

    def on_mps():
        return [bytes(SAME_TIME[name](ones(elements)).cpu().numpy()) for _ in range(calls)]

    def on_cpu():
        return [bytes(torch.rand(elements).numpy()) for _ in range(calls)]

    torch.manual_seed(5)
    alone = on_cpu()
    torch.manual_seed(5)
    *drawn, beside = together(*[on_mps] * (THREADS - 1), on_cpu)
    assert beside == alone
    every = [numbers for one in drawn for numbers in one]
    assert len(set(every)) == len(every) == (THREADS - 1) * calls


def test_threads_with_generators_of_their_own_repeat_their_numbers():
    def stream(seed):
        generator = torch.Generator("mps").manual_seed(seed)
        return [draw(generator).tolist() for _ in range(20) for draw in DRAWS.values()]

    alone = [stream(seed) for seed in range(THREADS)]
    assert list(together(*[functools.partial(stream, seed) for seed in range(THREADS)])) == alone


def test_dropout_gives_the_numbers_of_the_cpu_after_the_same_seed():
    x = torch.randn(5, 7)
    for p in (0.0, 0.3, 1.0):
        torch.manual_seed(2)
        expected = torch.native_dropout(x, p, True)
        torch.manual_seed(2)
        actual = torch.native_dropout(x.to("mps"), p, True)
        for a, b in zip(actual, expected, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a.cpu(), b)
    output, mask = torch.native_dropout(x.to("mps"), 0.3, False)
    assert torch.equal(output.cpu(), x)
    assert mask.all()
    assert torch.native_dropout(torch.ones(0, device="mps"), 0.3, True)[1].dtype == torch.bool


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


def overloads_with_generators() -> list[str]:
    """Every one that a kernel or a composition serves on both devices."""
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if not name.startswith("aten::") or name.startswith(
            "aten::_fused_dropout"
        ):  # of CUDA alone
            continue
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(aten, packet, None), overload or "default", None)
        if op is not None and any("Generator" in str(a.type) for a in op._schema.arguments):
            found.append(name)
    return found


def draw_from(name: str, device: str, generator: torch.Generator):
    """Calls an overload with arguments that it takes."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    op = getattr(getattr(aten, packet), overload or "default")
    integers = "multinomial" in name or "randperm" in name

    def argument(a):
        kind = str(a.type)
        if a.is_out:
            return torch.zeros(4, device=device, dtype=torch.int64 if integers else torch.float32)
        if "Generator" in kind:
            return generator
        if a.name == "high" and kind == "Tensor":
            return torch.tensor(9)  # wanted on the CPU
        if kind == "Tensor":
            return torch.full((4,), -0.5 if "rrelu" in name else 0.5, device=device)
        if "Device" in kind:
            return torch.device(device)
        if a.name == "training":
            return True
        if a.has_default_value():
            return a.default_value
        numbers = {"p": 0.5, "n": 4, "high": 9, "to": 9, "size": [4]}
        return numbers.get(a.name, [4] if kind.startswith("List") else 1)

    values = [(a, argument(a)) for a in op._schema.arguments]
    positional = [value for a, value in values if not a.kwarg_only]
    return op(*positional, **{a.name: value for a, value in values if a.kwarg_only})


@pytest.mark.parametrize("devices", [("cpu", "mps"), ("mps", "cpu")], ids="-".join)
@pytest.mark.parametrize("name", overloads_with_generators())
def test_generator_of_another_device(name, devices):
    """CPU tensors refuse one of mps too, although it leads their call to the kernels for mps."""
    device, other = devices
    draw_from(name, device, torch.Generator(device))
    before = torch.Generator(other).manual_seed(1)
    state = before.get_state()
    with pytest.raises(
        RuntimeError,
        match=f"Expected a '{device}(:0)?' (device type for generator|generator device) but found '{other}",
    ):
        draw_from(name, device, before)
    assert torch.equal(before.get_state(), state)


@pytest.mark.parametrize(
    "init",
    [
        nn.init.uniform_,
        nn.init.normal_,
        nn.init.trunc_normal_,
        nn.init.xavier_uniform_,
        nn.init.xavier_normal_,
        nn.init.kaiming_uniform_,
        nn.init.kaiming_normal_,
        nn.init.orthogonal_,
        nn.init.sparse_,
    ],
    ids=lambda init: init.__name__,
)
def test_initialisation_with_a_generator_of_another_device(init):
    sparsity = {"sparsity": 0.5} if init is nn.init.sparse_ else {}
    for device, other in (("cpu", "mps"), ("mps", "cpu")):
        with pytest.raises(RuntimeError, match=f"Expected a '{device}'.* but found '{other}"):
            init(torch.empty(4, 5, device=device), generator=torch.Generator(other), **sparsity)


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
