"""hash_tensor: kernels/reduction/hash_tensor.metal."""

import itertools

import pytest
import torch
from metalops import debug, testing
from metalops.testing.samples import FLOATS, INTEGERS, layouts, make, special_values, to_device

from ..aten import assert_refused_as_on_the_cpu, served_by_us
from ..benchmark import Benchmark

DTYPES = (*FLOATS, *INTEGERS, torch.bool)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


# In torch's op_db.
OPINFOS = ("hash_tensor",)


BENCHMARKS = (
    Benchmark.same("hash_tensor", lambda x, out: torch.hash_tensor(x)),
    Benchmark.same("hash_tensor, rows", lambda x, out: torch.hash_tensor(x, 1)),
)


def _check(x, *args, **options):
    actual = torch.hash_tensor(to_device(x, "mps"), *args, **options)
    expected = torch.hash_tensor(x, *args, **options)
    assert actual.dtype == expected.dtype == torch.uint64
    assert actual.stride() == expected.stride()
    assert torch.equal(actual.cpu().view(torch.int64), expected.view(torch.int64))


@pytest.mark.sampled(8)
@by_dtype
@pytest.mark.usefixtures("taken_as_on")
def test_rows_of_every_layout(dtype):
    for _, x in layouts(dtype):
        if x.numel() == 0 or x.dim() > 10:
            continue
        _check(x)
        dims = range(min(x.dim(), 5))
        for count in range(len(dims) + 1):
            for dim in itertools.combinations(dims, count):
                _check(x, dim)
                _check(x, [d - x.dim() for d in dim], keepdim=True)


# Rows for one thread, a simdgroup, several; in one piece and in several, whole and not.
@pytest.mark.parametrize("columns", [1, 15, 64, 65, 200, 3000, 8192, 8193, 40000, 16384 * 5])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.usefixtures("taken_as_on")
def test_rows_of_all_lengths(rows, columns, dtype):
    x = make((rows, columns), dtype)
    _check(x, 1)
    _check(x)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("begin", [0, 1, 4, 8])
@pytest.mark.parametrize("columns", [96, 100, 8192 * 3, 8192 * 3 + 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8], ids=str)
def test_gpus_take_packs_of_rows_that_begin_with_one(tmp_path, begin, columns, dtype):
    x = make((2 * columns + begin,), dtype).to("mps")[begin:].view(2, columns)
    with debug.capture(tmp_path / "a.trace", contents=1, gpu=True) as trace:
        actual = torch.hash_tensor(x, 1)
    expected = torch.hash_tensor(x.cpu(), 1)
    assert torch.equal(actual.cpu().view(torch.int64), expected.view(torch.int64))
    whole = all(n * x.element_size() % 16 == 0 for n in (begin, columns))
    assert ("_packs_" in trace.launches[0].kernel) == whole


@pytest.mark.usefixtures("taken_as_on")
def test_many_rows():
    _check(make((600, 9000), torch.int8), 1)
    _check(make((70_000, 3), torch.int16), 1)


@pytest.mark.parametrize("columns", [65, 3000, 20000])
@pytest.mark.usefixtures("taken_as_on")
def test_every_element_counts(columns):
    zero = torch.hash_tensor(torch.zeros(columns, dtype=torch.int64)).item()
    for place in {0, 15, 16, 31, 32, 63, 64, columns // 2, columns - 1}:
        x = torch.zeros(columns, dtype=torch.int64)
        x[place] = 2**40 + place
        assert torch.hash_tensor(x.to("mps")).item() == zero ^ (2**40 + place)


@by_dtype
def test_special_values(dtype):
    x = special_values(dtype)
    _check(x.unsqueeze(1), 1)
    _check(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("taken_as_on")
def test_every_number_of_16_bits(dtype):
    """Denormals, and NaN with all payloads."""
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    _check(bits.view(dtype).unsqueeze(1), 1)
    _check(bits.view(dtype).view(-1, 2**10), 1)
    _check(bits.view(dtype))


@pytest.mark.usefixtures("taken_as_on")
def test_floats_of_all_exponents():
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (20000,), generator=generator)
    denormal = torch.tensor([1, 2, 3, 0x7FFFFF, 0x400000, 0x3FFFFF, 0x7F800001, 0x7FC00001])
    bits = torch.cat([bits, bits >> 9, denormal, denormal - 2**31]).to(torch.int32)
    _check(bits.view(torch.float32).unsqueeze(1), 1)
    for row in (100, 2500):
        _check(bits.view(torch.float32)[: len(bits) // row * row].view(-1, row), 1)


def test_out():
    x = make((4, 6), torch.float32)
    expected = torch.hash_tensor(x, 1).view(torch.int64)
    for out in (
        torch.empty(4, dtype=torch.uint64, device="mps"),
        torch.empty(0, dtype=torch.uint64, device="mps"),
        torch.empty(4, 2, dtype=torch.uint64, device="mps")[:, 1],
    ):
        assert torch.hash_tensor(x.to("mps"), 1, out=out) is out
        assert torch.equal(out.cpu().view(torch.int64), expected)
    with pytest.warns(UserWarning, match="was resized"):
        torch.hash_tensor(x.to("mps"), 1, out=torch.empty(3, dtype=torch.uint64, device="mps"))
    with pytest.raises(RuntimeError, match="single memory location"):
        out = torch.empty(1, dtype=torch.uint64, device="mps").expand(4)
        torch.hash_tensor(x.to("mps"), 1, out=out)
    with pytest.raises(RuntimeError, match="same device"):
        torch.hash_tensor(x.to("mps"), 1, out=torch.empty(4, dtype=torch.uint64))


def test_no_elements():
    for shape, dim in (((0, 3), 1), ((3, 0), 0), ((2, 0, 3), (0, 2))):
        for keepdim in (False, True):
            _check(torch.empty(shape), dim, keepdim=keepdim)


def test_arguments_that_the_cpu_refuses():
    x = torch.rand(3, 4)
    calls = [
        lambda to: torch.hash_tensor(to(x), mode=1),
        lambda to: torch.hash_tensor(to(x), 2),
        lambda to: torch.hash_tensor(to(x), (0, -2)),
        lambda to: torch.hash_tensor(to(x[:0])),
        lambda to: torch.hash_tensor(to(x[:0]), 0),
        lambda to: torch.hash_tensor(to(x), out=to(torch.empty(()))),
    ]
    assert_refused_as_on_the_cpu(calls, RuntimeError, IndexError)
    for dtype in (torch.complex64, torch.uint16, torch.uint64):
        with pytest.raises(NotImplementedError, match="not implemented for"):
            torch.hash_tensor(x.to(dtype).to("mps"))


@pytest.mark.parametrize("size", [3, 300, 30000])
def test_no_host_copy_and_no_stand_in(size):
    x = torch.rand(size, device="mps")

    def run():
        with testing.no_host_copies():
            torch.hash_tensor(x)

    assert served_by_us(run) == []


def test_a_result_in_memory_of_what_is_hashed():
    x = torch.arange(300)
    on_device = x.to("mps")
    out = on_device[2:3].view(torch.uint64).reshape(())
    torch.hash_tensor(on_device, out=out)
    assert int(out.view(torch.int64)) == int(torch.hash_tensor(x).view(torch.int64))
    assert torch.equal(on_device[3:].cpu(), x[3:])
