"""torch.func._random, random numbers without a state: kernels/creation/philox.metal."""

import itertools
import math

import numpy as np
import pytest
import torch
from metalops.testing.samples import FLOATS
from scipy import stats

aten = torch.ops.aten
HAS_CPU = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_philox_uniform_", "CPU")
HAS_RANDINT = hasattr(aten, "_philox_randint_")
on_cpu = pytest.mark.skipif(not HAS_CPU, reason="torch 2.13 has these operators for CUDA only")
with_randint = pytest.mark.skipif(not HAS_RANDINT, reason="torch 2.15 added the operator")
by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)

MASK = 2**64 - 1
KEY = (0x0123456789ABCDEF, 0xFFFFFFFFFFFFFFFE)  # the counter wraps after two blocks
INTEGERS = [
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
]
SHAPES = [(), (1,), (4,), (7,), (3, 5), (2, 3, 4), (0, 3), (1025,)]

# ---- a model of the cipher, from the paper -------------------------------------------------------


def philox(seed: int, counter: int) -> list[int]:
    """Philox-4x32-10 of a 64-bit counter, as four words."""
    words = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            (second >> 32) ^ words[1] ^ key[0],
            second & 0xFFFFFFFF,
            (first >> 32) ^ words[3] ^ key[1],
            first & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return words


def words_of(key: tuple[int, int], count: int) -> list[int]:
    """The first words that a key draws."""
    blocks = (philox(key[0], (key[1] + i) & MASK) for i in range(-(-count // 4)))
    return list(itertools.chain(*blocks))[:count]


def derived(key: tuple[int, int], block: int) -> tuple[int, int]:
    a, b, c, d = philox(key[0], (key[1] + block) & MASK)
    return a | b << 32, c | d << 32


def keys(*pairs: tuple[int, int], shape=()) -> torch.Tensor:
    return torch.tensor(np.array(pairs, dtype=np.uint64)).reshape(*shape, 2).to("mps")


def pairs_of(tensor: torch.Tensor) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in tensor.cpu().numpy().reshape(-1, 2)]


# ---- keys ----------------------------------------------------------------------------------------

PAIRS = [KEY, (0, 0), (MASK, MASK), (5, 6), (2**32, 2**32 - 1), (1, 2**63)]


def test_split_derives_consecutive_blocks():
    split = aten._philox_key_split(keys(*PAIRS, shape=(2, 3)), 3)
    assert split.shape == (3, 2, 3, 2) and split.dtype == torch.uint64
    assert pairs_of(split) == [derived(pair, i) for i in range(3) for pair in PAIRS]


@pytest.mark.parametrize("data", [0, 1, 2**62, -1, -(2**63)])
def test_fold_in_derives_one_block(data):
    given = keys(*PAIRS, shape=(2, 3)).transpose(0, 1)
    folded = aten._philox_key_fold_in(given, data)
    assert pairs_of(folded) == [derived(pair, data & MASK) for pair in pairs_of(given)]
    assert folded.is_contiguous() and folded.shape == (3, 2, 2)


@pytest.mark.skipif(
    "Tensor" not in aten._philox_key_fold_in.overloads(), reason="torch 2.14 added the overload"
)
def test_fold_in_of_a_tensor_is_that_of_its_number():
    for data in (0, 7, 2**63 + 1):
        number = torch.tensor([data], dtype=torch.uint64).to("mps")
        folded = aten._philox_key_fold_in(keys(KEY), number)
        assert pairs_of(folded) == [derived(KEY, data)]


def test_keys_without_elements():
    none = torch.empty(0, 2, dtype=torch.uint64, device="mps")
    assert aten._philox_key_split(none, 2).shape == (2, 0, 2)
    assert aten._philox_key_fold_in(none, 2).shape == (0, 2)


# ---- distributions -------------------------------------------------------------------------------


def uniform_of(words, dtype, low, high):
    digits = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[dtype]
    low, high = (torch.tensor(x, dtype=dtype).float() for x in (low, high))
    fractions = torch.tensor([word % 2**digits / 2**digits for word in words])
    return (fractions * (high - low) + low).to(dtype)


def normal_of(words, mean, std):
    """Box-Muller transforms in float64."""
    u = (np.array(words, dtype=np.float64) + 0.5) / 2**32
    radius, angle = np.sqrt(-2 * np.log(u[0::2])), 2 * np.pi * u[1::2]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return torch.from_numpy(pairs.ravel() * std + mean)


@by_float
@pytest.mark.parametrize(("low", "high"), [(0, 1), (-0.3, 5.7), (2.0, -1.0)])
def test_uniform_numbers(dtype, low, high):
    drawn = aten._philox_uniform_(
        torch.empty(1023, dtype=dtype, device="mps"), keys(KEY), low, high
    )
    expected = uniform_of(words_of(KEY, 1023), dtype, low, high)
    torch.testing.assert_close(
        drawn.cpu(), expected, rtol=0, atol=float(2 * torch.finfo(dtype).eps)
    )
    assert (drawn.cpu() == expected).float().mean() > 0.5  # others differ by a contracted product


@by_float
def test_normal_numbers(dtype):
    drawn = aten._philox_normal_(torch.empty(1022, dtype=dtype, device="mps"), keys(KEY), 0.1, 1.3)
    expected = normal_of(words_of(KEY, 1024), 0.1, 1.3)[:1022]
    rtol = float(torch.finfo(dtype).eps) if dtype != torch.float32 else 1e-5
    torch.testing.assert_close(drawn.cpu().double(), expected, rtol=rtol, atol=2e-5)


def test_distributions():
    normal = aten._philox_normal_(torch.empty(2**16, device="mps"), keys(KEY)).cpu().numpy()
    uniform = aten._philox_uniform_(torch.empty(2**16, device="mps"), keys(KEY)).cpu().numpy()
    assert stats.kstest(normal, "norm").pvalue > 1e-3
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3


@with_randint
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype):
    info, size = torch.iinfo(dtype), dtype.itemsize
    bits = 64 if size == 8 else 32
    words = words_of(KEY, 300)
    if size == 8:
        words = [high << 32 | low for high, low in zip(words[::2], words[1::2], strict=True)]
    bounds = [
        (None, None),
        (0, 10),
        (info.min, info.min + 3),
        (3, 3 + 2**20),
        (min(info.max, 2**63 - 1), None),
    ]
    for low, high in [*bounds, (None, 7), (-500, 1000), (0, 2 ** (bits - 2))]:
        low_or_less = info.min if low is None else low
        high_or_more = info.max + 1 if high is None else high
        span = (high_or_more - low_or_less) % 2**bits
        if size < 8 and span and 2**32 % span and span >= 2**28:
            continue  # refused: see the errors
        drawn = aten._philox_randint_(
            torch.empty(len(words), dtype=dtype, device="mps"), keys(KEY), low, high
        )
        full = high is None and (low_or_less - info.min) % 2**bits == 0
        expected = [word if full else word % span + low_or_less for word in words]
        assert [int(x) % 2 ** (8 * size) for x in drawn.cpu().numpy()] == [
            x % 2 ** (8 * size) for x in expected
        ]


# ---- which element gets which number -------------------------------------------------------------

LAYOUTS = {
    "contiguous": lambda shape: torch.zeros(shape, device="mps"),
    "transposed": lambda shape: torch.zeros(shape[::-1], device="mps").permute(
        tuple(reversed(range(len(shape))))
    ),
    "shifted": lambda shape: torch.zeros(math.prod(shape) + 1, device="mps")[1:].view(shape),
    "gaps": lambda shape: torch.zeros(*shape, 2, device="mps")[..., 1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_are_drawn_in_row_major_order(layout, shape):
    out = LAYOUTS[layout](shape)
    strides = out.stride()
    assert aten._philox_uniform_(out, keys(KEY)) is out and out.stride() == strides
    expected = uniform_of(words_of(KEY, math.prod(shape)), torch.float32, 0, 1)
    assert torch.equal(out.cpu().flatten(), expected)


@pytest.mark.parametrize(
    ("batch", "shape"),
    [
        ((2, 1), (2, 5)),
        ((2, 1, 1), (2, 3, 4)),
        ((2, 3, 1), (2, 3, 8)),
        ((2, 3), (2, 3)),
        ((1, 3), (2, 3)),
        ((1, 3, 1), (2, 3, 5)),
        ((1, 1), (2, 3)),
        ((2, 1, 3, 1), (2, 2, 3, 5)),
    ],
    ids=str,
)
def test_each_key_fills_the_dimensions_after_the_last_batch(batch, shape):
    count = math.prod(batch)
    given = keys(*[(i, 3 * i) for i in range(count)], shape=batch)
    drawn = aten._philox_uniform_(torch.empty(shape, device="mps"), given).cpu()
    last = max((i + 1 for i, size in enumerate(batch) if size != 1), default=0)
    expanded = given.cpu().flatten(last, -2)[..., 0, :] if last < len(batch) else given.cpu()
    expanded = expanded.expand(*shape[:last], 2)
    event = math.prod(shape[last:])
    expected = [uniform_of(words_of(key, event), torch.float32, 0, 1) for key in pairs_of(expanded)]
    assert torch.equal(drawn.flatten(), torch.cat(expected))


@on_cpu
def test_all_is_as_on_the_cpu():
    """Bit for bit, but for the functions of the Box-Muller transform."""
    generator = np.random.default_rng(0)
    for _ in range(20):
        shape = tuple(generator.integers(1, 6, size=generator.integers(0, 4)))
        batch = tuple(int(n) if generator.random() < 0.5 else 1 for n in shape)
        pairs = generator.integers(0, 2**63, size=(math.prod(batch), 2))
        on_mps = keys(*pairs.tolist(), shape=batch)
        for name, arguments in (("uniform", (0.0, 1.0)), ("normal", (1.0, 2.0))):
            function = getattr(aten, f"_philox_{name}_")
            ours = function(torch.empty(shape, device="mps"), on_mps, *arguments)
            torch.testing.assert_close(
                ours.cpu(), function(torch.empty(shape), on_mps.cpu(), *arguments)
            )
        for dtype in INTEGERS if HAS_RANDINT else ():
            for low, high in [(None, None), (0, 10), (None, 100), (7, None)]:
                results = []
                for device in ("mps", "cpu"):
                    out = torch.empty(shape, dtype=dtype, device=device)
                    try:
                        aten._philox_randint_(out, on_mps.to(device), low, high)
                    except RuntimeError as error:
                        results.append(str(error))
                    else:
                        results.append(out.tolist())
                assert results[0] == results[1], (dtype, low, high)


# ---- errors --------------------------------------------------------------------------------------


def _empty(*shape, dtype=torch.float32):
    return lambda device: torch.empty(*shape, dtype=dtype, device=device)


def _keys(*shape, dtype=torch.uint64):
    return lambda device: torch.zeros(*shape, 2, dtype=dtype).to(device)


WRONG_CALLS = [
    ("_philox_key_split", _keys(dtype=torch.int64), 2),
    ("_philox_key_split", _empty(3, dtype=torch.uint64), 2),
    ("_philox_key_split", _keys(), 0),
    ("_philox_key_fold_in", _keys(dtype=torch.int64), 2),
    ("_philox_key_fold_in", _empty(5, dtype=torch.uint64), 2),
    ("_philox_key_fold_in", _keys(), _keys()),
    ("_philox_key_fold_in", _keys(), _empty(2, dtype=torch.int64)),
    *(
        (f"_philox_{name}_", *arguments)
        for name in ("uniform", "normal")
        for arguments in (
            (_empty(3, dtype=torch.int32), _keys()),
            (_empty(3, dtype=torch.complex64), _keys()),
            (_empty(3), _keys(dtype=torch.int64)),
            (_empty(3), _empty(3, dtype=torch.uint64)),
            (_empty(3, 4), _keys(3)),
            (_empty(3, 4), _keys(2, 1)),
            (lambda device: torch.empty(1, device=device).expand(3), _keys()),
        )
    ),
    *(
        ("_philox_randint_", *arguments)
        for arguments in (
            (_empty(3), _keys()),
            (_empty(3, dtype=torch.bool), _keys()),
            (_empty(3, dtype=torch.int32), _keys(), 5, 5),
            (_empty(3, dtype=torch.int32), _keys(), 5, None),
            (_empty(3, dtype=torch.int32), _keys(), 0, 2**28 + 1),
            (_empty(3, dtype=torch.uint8), _keys(), 256, None),
            (_empty(3, dtype=torch.int64), _keys(), None, -(2**63)),
            (_empty(3, dtype=torch.int64), _keys(dtype=torch.int64), 0, 1),
        )
    ),
]


@on_cpu
@pytest.mark.parametrize("call", WRONG_CALLS, ids=lambda call: call[0])
def test_wrong_arguments_are_refused_as_on_the_cpu(call):
    if not hasattr(aten, call[0]):
        pytest.skip("this torch has no such operator")
    errors = []
    for device in ("cpu", "mps"):
        arguments = [x(device) if callable(x) else x for x in call[1:]]
        with pytest.raises(Exception, match=".") as caught:
            getattr(aten, call[0])(*arguments)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]


# ---- through torch.func --------------------------------------------------------------------------


@on_cpu
def test_functions_of_torch_func():
    from torch.func import _random as random

    for device in ("mps", "cpu"):
        first, second = random.split(random.key(42, device=device))
        drawn = random.normal(first, 3, 4), random.uniform(second, 5, low=-1, high=1)
        if device == "mps":
            on_mps = drawn
    for ours, theirs in zip(on_mps, drawn, strict=True):
        assert ours.device.type == "mps"
        torch.testing.assert_close(ours.cpu(), theirs)


@on_cpu
def test_vmap_over_keys_draws_what_each_key_draws():
    split = aten._philox_key_split(keys(KEY), 3)
    drawn = torch.vmap(lambda out, key: aten._philox_uniform_(out, key, 0.0, 1.0))(
        torch.empty(3, 5, device="mps"), split
    )
    for row, key in zip(drawn, split, strict=True):
        assert torch.equal(row, aten._philox_uniform_(torch.empty(5, device="mps"), key))


@on_cpu
def test_compiled():
    def draw(key):
        first, second = aten._philox_key_split(key, 2).unbind()
        return (
            aten._philox_normal(torch.zeros(5, device="mps"), first, 0.0, 1.0) + second[0].float()
        )

    torch.testing.assert_close(torch.compile(draw, backend="aot_eager")(keys(KEY)), draw(keys(KEY)))
