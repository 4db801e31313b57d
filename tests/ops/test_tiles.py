"""Elementwise operators as GPUs run them where operands are strided, broadcast or of 16 bits: <metalops/tiles.h>."""

import struct

import pytest
import torch
from metalops import debug, ops
from metalops.testing import make
from metalops.testing.samples import FLOATS

from .aten import only_ours

DTYPES = (*FLOATS, torch.int64, torch.int16, torch.uint8, torch.bool)


@pytest.fixture
def launched(tmp_path):
    """launched(call): what call() gives where kernels are taken as on a GPU, and the launches."""

    def run(call):
        with debug.capture(tmp_path / "a.trace", contents=1, gpu=True) as trace:
            result = call()
        return result, trace.launches

    return run


def to_mps(x):
    """A copy on the device with the same strides, offset and storage."""
    storage = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return storage.to("mps").as_strided(x.size(), x.stride(), x.storage_offset())


# Pairs of tensors that broadcast to 2^16 elements or a few more.
def _layouts(dtype):
    def new(*shape, seed=1):
        return make(shape, dtype, low=-3, high=4, seed=seed)

    yield "column slices", new(300, 600)[:, :260], new(300, 600)[:, 300:560]
    yield "columns that are not all in fours", new(259, 520)[:, :261], new(259, 520)[:, 256:517]
    yield "misaligned column slices", new(257, 603)[:, 1:261], new(257, 604)[:, 3:263]
    yield "a transposed matrix", new(258, 260).t(), new(260, 258)
    yield "a misaligned transposed matrix", new(258, 262)[1:, 1:].t(), new(261, 257)
    yield "two transposed matrices", new(516, 260)[::2].t(), new(258, 260).t()
    yield "equal rows", new(262, 256), new(256)
    yield "equal columns", new(262, 256), new(262, 1)
    yield "one number", new(262, 256), new(1, 1)
    yield "a row and a column", new(256, 1), new(1, 260)
    yield "every second element", new(2**17)[::2], new(2**16)
    yield "every second element of each", new(2**17)[::2], new(2**17)[1::2]
    yield "without gaps", new(2**16), new(2**16)
    yield "without gaps, misaligned", new(2**16 + 1)[1:], new(2**16 + 3)[3:]
    yield "one number and a vector", new(2**16), new(1)
    yield "four dimensions", new(12, 24, 20, 14).permute(2, 0, 3, 1), new(20, 12, 14, 24)
    yield "five dimensions", new(8, 6, 30, 12, 14)[:, 1:, :, 2:10, ::2], new(8, 1, 30, 8, 7)
    yield (
        "channels last",
        new(3, 33, 31, 29).contiguous(memory_format=torch.channels_last),
        new(3, 33, 31, 29),
    )
    yield "seven dimensions", new(2, 5, 3, 4, 7, 8, 11).permute(3, 0, 6, 2, 5, 1, 4), new(5, 7)
    yield "few rows", new(2, 40_000).t(), new(40_000, 2)
    yield "windows", new(70_000).as_strided((300, 256), (200, 1)), new(256, 300).t()
    yield "a dimension of one", new(300, 1, 500)[:, :, :260], new(1, 260, 300).permute(2, 0, 1)


LAYOUTS = [name for name, _, _ in _layouts(torch.bool)]
# That are left to torch, but for one operand of small elements.
DENSE = ("without gaps", "without gaps, misaligned")


@pytest.mark.sampled(2)
@only_ours("aten::heaviside")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_operands(launched, layout, dtype):
    a, b = next((a, b) for name, a, b in _layouts(dtype) if name == layout)
    expected = torch.heaviside(a, b)
    result, (launch,) = launched(lambda: torch.heaviside(to_mps(a), to_mps(b)))
    assert torch.equal(result.cpu(), expected)
    assert result.stride() == expected.stride()
    assert ("_tiles_" in launch.kernel) == (layout not in DENSE)


@only_ours("aten::heaviside")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("step", [1, 2])
def test_a_result_that_is_given(launched, layout, step):
    a, b = next((a, b) for name, a, b in _layouts(torch.float16) if name == layout)
    expected = torch.heaviside(a, b)
    whole = torch.full((*expected.shape[:-1], expected.shape[-1] * step + 4), 7.0).half()
    out = whole.to("mps")
    part = (..., slice(0, expected.shape[-1] * step, step))
    _, (launch,) = launched(lambda: torch.heaviside(to_mps(a), to_mps(b), out=out[part]))
    assert ("_tiles_" in launch.kernel) == (layout not in DENSE or step != 1)
    whole[part] = expected
    assert torch.equal(out.cpu(), whole)


def _unary(dtype):
    for name, x, _ in _layouts(dtype):
        if name != "a row and a column":
            yield name, x


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.int8), ids=str)
def test_one_operand(launched, dtype):
    for name, x in _unary(dtype):
        if x.numel() < 2**16:
            continue
        result, launches = launched(lambda x=x: ops.relu_squared(to_mps(x)))
        assert torch.equal(result.cpu(), torch.relu(x).square()), name
        dense = torch.empty_like(x).stride() == x.stride()
        if not dense:
            assert "_tiles_" in launches[0].kernel, name


@pytest.mark.parametrize("dtype", (torch.bool, torch.uint8, torch.int64), ids=str)
def test_integers_that_become_floating_point(launched, dtype):
    for name, x in _unary(dtype):
        result, _ = launched(lambda x=x: ops.gelu_quick(to_mps(x)))
        expected = x.float() * torch.sigmoid(1.702 * x.float())
        torch.testing.assert_close(result.cpu(), expected, msg=name)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_scalar_beside_one_operand_or_two(launched, dtype):
    for name, a, b in _layouts(dtype):
        result, launches = launched(lambda a=a: ops.softcap(to_mps(a), 1.5))
        expected = (1.5 * torch.tanh(a.float() / 1.5)).to(dtype)
        torch.testing.assert_close(result.cpu(), expected, msg=name)
        result, (launch,) = launched(lambda a=a, b=b: ops.swiglu_clamped(to_mps(a), to_mps(b), 2.0))
        gate, linear = a.float().clamp(max=2), b.float().clamp(-2, 2) + 1
        expected = (linear * gate * torch.sigmoid(1.702 * gate)).to(dtype)
        torch.testing.assert_close(result.cpu(), expected, msg=name)
        if name not in DENSE:
            assert "_tiles_" in launch.kernel, name


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int32, torch.uint8), ids=str)
def test_three_operands(launched, dtype):
    for name, a, b in _layouts(dtype):
        on_device = to_mps(a), to_mps(b)
        result, (launch,) = launched(lambda x=on_device: ops.fma(x[0], x[1], x[0]))
        exact = a.double() * b.double() + a.double()
        expected = exact.to(dtype) if dtype.is_floating_point else a * b + a
        torch.testing.assert_close(result.cpu(), expected, msg=name)
        assert "_tiles_" in launch.kernel, name


@pytest.mark.parametrize(
    ("columns", "grid", "group"),
    [
        (slice(256, 512), (64, 128), (64, 4)),
        (slice(1, 257), (64, 128), (64, 4)),  # read one by one
        (slice(0, 300), (75, 128), (75, 3)),
        (slice(0, 302), (96, 128), (96, 2)),  # and written one by one
        (slice(0, 510, 2), (64, 128), (64, 4)),
    ],
    ids=str,
)
def test_a_thread_takes_four_times_four_elements(launched, columns, grid, group):
    x = torch.rand(512, 512, device="mps")
    _, (launch,) = launched(lambda: ops.relu_squared(x[:, columns]))
    assert launch.kernel == "relu_squared_tiles_float_float"
    assert (launch.grid[:2], launch.group[:2]) == (grid, group)


def test_groups_are_high_where_operands_lie_across_each_other(launched):
    x = torch.rand(512, 512, device="mps")
    _, (launch,) = launched(lambda: ops.swiglu(x, x.t()))
    assert launch.kernel == "swiglu_tiles_float_float"
    assert (launch.grid[:2], launch.group[:2]) == ((128, 128), (8, 32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("first", "count", "kernel"),
    [
        (0, 2**18, "_packs_"),
        (8, 2**16 + 8, "_packs_"),
        (4, 2**18, "_tiles_"),
        (0, 64 * 1025 + 4, "_dense_"),
    ],
    ids=str,
)
def test_an_operand_of_16_bits_without_gaps(launched, dtype, first, count, kernel):
    x = make((first + count,), dtype, low=-3, high=4)
    part = x.to("mps")[first:]
    for call, plain in (
        (ops.gelu_quick, lambda x: x * torch.sigmoid(1.702 * x)),
        (lambda x: ops.softcap(x, 1.5), lambda x: 1.5 * torch.tanh(x / 1.5)),
    ):
        result, (launch,) = launched(lambda c=call: c(part))
        assert kernel in launch.kernel
        torch.testing.assert_close(result.cpu(), plain(x[first:].float()).to(dtype))
        if kernel == "_packs_":
            assert launch.grid[0] == count // 8


def _at_once(launch):
    """Of each operand, the result first: whether four neighbours are taken at once along the columns, and along the rows."""
    layout = bytes.fromhex(launch.arguments[-1].value)
    head, operand = 18 * 4, 17 * 4  # bytes of TileLayout before its operands, and of each of them
    return [
        struct.unpack_from("<HH", layout, at - 4)
        for at in range(head + operand, len(layout) + 1, operand)
    ]


@only_ours("aten::heaviside")
@pytest.mark.parametrize(
    ("layout", "at_once"),
    [
        ("column slices", [(1, 0), (1, 0), (1, 0)]),
        ("columns that are not all in fours", [(0, 0), (0, 0), (0, 0)]),
        ("misaligned column slices", [(1, 0), (0, 0), (0, 0)]),
        ("a transposed matrix", [(1, 0), (1, 0), (0, 0)]),
        ("two transposed matrices", [(1, 0), (1, 0), (1, 0)]),
        ("equal rows", [(1, 0), (1, 0), (1, 0)]),
        ("equal columns", [(1, 0), (1, 0), (0, 1)]),
        ("one number", [(1, 0), (1, 0), (0, 0)]),
        ("every second element", [(1, 0), (0, 0), (1, 0)]),
    ],
)
def test_neighbours_are_taken_at_once_where_they_lie_together_and_aligned(
    launched, layout, at_once
):
    a, b = next((a, b) for name, a, b in _layouts(torch.float32) if name == layout)
    _, (launch,) = launched(lambda: torch.heaviside(to_mps(a), to_mps(b)))
    assert _at_once(launch) == at_once


@only_ours("aten::heaviside")
@pytest.mark.parametrize(("first", "at_once"), [(0, (0, 1)), (1, (0, 0)), (4, (0, 1))])
def test_columns_are_taken_at_once_where_they_are_aligned(launched, first, at_once):
    x, y = make((260, 520), torch.float32), make((256, 260), torch.float32)
    across = x.to("mps")[:, first : first + 256].t()
    _, (launch,) = launched(lambda: torch.heaviside(y.to("mps"), across))
    assert _at_once(launch) == [(1, 0), (1, 0), at_once]


@only_ours("aten::heaviside")
def test_few_elements_are_left_to_torch(launched):
    x = torch.rand(256, 256, device="mps")
    for rows, kernel in ((256, "tiles"), (255, "strided")):
        _, (launch,) = launched(lambda r=rows: torch.heaviside(x[:r].t(), x[0, :r].expand(256, r)))
        assert kernel in launch.kernel


@pytest.mark.full
def test_a_cpu_takes_an_element_a_thread(tmp_path):
    x = torch.rand(512, 512, device="mps")
    with debug.capture(tmp_path / "a.trace") as trace:
        ops.relu_squared(x[:, :256])
    assert trace.launches and not any("tiles" in launch.kernel for launch in trace.launches)


def test_other_dtypes_of_results_and_of_operands_are_left_to_torch(launched):
    a, b = make((256, 300), torch.float32, seed=1), make((300, 256), torch.int32, seed=2)
    out = torch.empty(300, 256, device="mps", dtype=torch.float16)
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ops.metalops.relu_squared.out(a.to("mps").t(), out=out.int())
    iterated, launches = launched(lambda: torch.special.airy_ai(a.to("mps").t(), out=out))
    assert "castout" in launches[0].kernel
    torch.testing.assert_close(iterated.cpu(), torch.special.airy_ai(a.t()).half())
    result, launches = launched(lambda: ops.reglu(a.to("mps").t(), b.to("mps")))
    assert "cast" in launches[-1].kernel
    torch.testing.assert_close(result.cpu(), torch.relu(a.t()) * b)


def test_a_number_of_the_cpu(launched):
    a = make((300, 600), torch.float32)
    two = torch.tensor(2.0)
    result, _ = launched(lambda: torch.heaviside(a.to("mps")[:, 3:], two.to("mps")))
    assert torch.equal(result.cpu(), torch.heaviside(a[:, 3:], two))
    result, _ = launched(lambda: ops.swiglu(a.to("mps")[:, 3:], two))
    torch.testing.assert_close(result.cpu(), torch.nn.functional.silu(a[:, 3:]) * 2)


def test_in_place(launched):
    for first, last in ((0, 300), (1, 300), (4, 304)):
        x = make((300, 305), torch.float16)
        on_device = x.to("mps")
        part = on_device[:, first:last]
        _, (launch,) = launched(lambda p=part: torch.ops.metalops.relu_squared_(p))
        x[:, first:last] = torch.relu(x[:, first:last]).square()
        assert "_tiles_" in launch.kernel
        assert torch.equal(on_device.cpu(), x)


# Each of the launches writes a part of the result, of which a sanitizer says that it is not all.
@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*output-not-written")
@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8], ids=str)
def test_elements_further_apart_than_32_bits_reach(launched, dtype):
    rows, columns, stride = 160, 4096, 2**25
    x = make((rows, columns), dtype, low=-3, high=4)
    far = torch.empty(rows * stride, dtype=dtype, device="mps").as_strided(x.shape, (stride, 1))
    far.copy_(x)
    result, launches = launched(lambda: ops.relu_squared(far))
    assert len(launches) > 1
    assert all("_tiles_" in launch.kernel for launch in launches)
    assert torch.equal(result.cpu(), torch.relu(x).square() if dtype != torch.uint8 else x.square())
