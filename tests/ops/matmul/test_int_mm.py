"""_int_mm, exact products of matrices of bytes: kernels/matmul/int_mm.metal."""

import functools

import metalops
import pytest
import torch
from metalops.testing import no_standins

from ..aten import assert_refused_as_on_the_cpu, only_ours
from ..benchmark import Benchmark
from .bodies import tensors_first

pytestmark = only_ours("aten::_int_mm")

SHAPES = (
    (1, 1, 1),
    (1, 40, 7),
    (5, 33, 17),
    (16, 64, 64),
    (33, 65, 130),
    (64, 16, 48),
    (70, 1100, 67),
    (40, 2049, 5),
    (150, 531, 203),
)


def operands(rows, inner, columns, dtype=torch.int8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    info = torch.iinfo(dtype)
    left = torch.randint(info.min, info.max + 1, (rows, inner), generator=generator, dtype=dtype)
    right = torch.randint(-128, 128, (inner, columns), generator=generator, dtype=torch.int8)
    return left, right


def exact(left, right):
    """Of int64, so modulo 2^32."""
    return (left.long() @ right.long()).int()


@functools.lru_cache(maxsize=4)
def _weights(features, device):
    return operands(1, features, 256)[1].to(device)


BENCHMARKS = (
    Benchmark.same(
        "_int_mm",
        lambda x, out: torch._int_mm(x.view(torch.int8), _weights(4 * x.shape[-1], x.device)),
        only_dtype="float32",
        reason="torch's CPU operator is a library's, which is written for each processor",
    ),
)


@pytest.fixture(params=["tensor", "simdgroup"])
def body(request, monkeypatch):
    """By which products: of tensors, or of simdgroup matrices."""
    monkeypatch.setenv("METALOPS_MATMUL", request.param)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_exact(dtype, shape, body):
    left, right = operands(*shape, dtype)
    with metalops.debug.standins() as served:
        actual = torch._int_mm(left.to("mps"), right.to("mps"))
    assert actual.dtype == torch.int32 and actual.is_contiguous()
    assert torch.equal(actual.cpu(), exact(left, right))
    assert "aten::_int_mm" not in served


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("shape", [(9, 36, 50), (40, 36, 50), (139, 299, 85)], ids=str)
@tensors_first
def test_every_layout(dtype, shape, body):
    left, right = operands(*shape, dtype)
    for of_left in layouts(left):
        for of_right in layouts(right):
            assert torch.equal(torch._int_mm(of_left, of_right).cpu(), exact(left, right))


def layouts(x):
    """The matrix on the device: without gaps, transposed, with gaps and offsets, with steps and, of its first row, expanded."""
    x = x.to("mps")
    gaps = torch.zeros(x.shape[0] + 2, x.shape[1] + 3, dtype=x.dtype, device="mps")
    gaps[1:-1, 2:-1] = x
    steps = torch.zeros(x.shape[0] * 2, x.shape[1] * 3, dtype=x.dtype, device="mps")
    steps[::2, ::3] = x
    return x, x.t().contiguous().t(), gaps[1:-1, 2:-1], steps[::2, ::3]


def test_an_expanded_operand():
    left, right = operands(1, 20, 7)
    actual = torch._int_mm(left.to("mps").expand(50, -1), right.to("mps"))
    assert torch.equal(actual.cpu(), exact(left, right).expand(50, -1))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_extremes_are_exact_beyond_what_float_holds(dtype, body):
    info = torch.iinfo(dtype)
    for a, b in ((info.max, 127), (info.min, -128), (info.max, -128)):
        left = torch.full((3, 5001), a, dtype=dtype)
        right = torch.full((5001, 2), b, dtype=torch.int8)
        actual = torch._int_mm(left.to("mps"), right.to("mps"))
        assert actual.unique().tolist() == [a * b * 5001]


@pytest.mark.parametrize(
    "body",
    [
        "tensor",
        pytest.param(
            "simdgroup",
            marks=pytest.mark.reported("more barriers than it counts", modes=("thread",)),
        ),
    ],
    indirect=True,
)
def test_sums_wrap(body):
    inner = 140_000  # 2^14 of them are more than int32 holds
    left = torch.full((1, inner), -128, dtype=torch.int8, device="mps")
    actual = torch._int_mm(left, left.t())
    assert actual.item() == inner * 2**14 - 2**32


def test_empty_matrices():
    for shape in ((0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 0)):
        left, right = operands(*shape)
        actual = torch._int_mm(left.to("mps"), right.to("mps"))
        assert torch.equal(actual.cpu(), torch.zeros(shape[0], shape[2], dtype=torch.int32))


def test_out():
    left, right = (x.to("mps") for x in operands(6, 20, 9))
    expected = exact(left.cpu(), right.cpu())
    for out in (
        torch.empty(6, 9, dtype=torch.int32, device="mps"),
        torch.empty(9, 6, dtype=torch.int32, device="mps").t(),
        torch.empty(6, 18, dtype=torch.int32, device="mps")[:, ::2],
    ):
        with no_standins(["aten::copy_"]):
            assert torch._int_mm(left, right, out=out) is out
        assert torch.equal(out.cpu(), expected)


def test_fake_tensors_are_like_real_ones():
    from torch._subclasses.fake_tensor import FakeTensorMode

    left, right = (x.to("mps") for x in operands(6, 20, 9))
    for a, b in ((left, right), (left[:, ::2], right[::2]), (left[:0], right)):
        real = torch._int_mm(a, b)
        with FakeTensorMode() as mode:
            fake = torch._int_mm(mode.from_tensor(a), mode.from_tensor(b))
        assert (real.shape, real.dtype, real.stride()) == (fake.shape, fake.dtype, fake.stride())


def test_wrong_arguments_are_refused_as_on_the_cpu():
    def zeros(*shape, dtype=torch.int8):
        return torch.zeros(*shape, dtype=dtype)

    def call(left, right, out=None):
        return lambda move: torch._int_mm(
            move(left), move(right), **({} if out is None else {"out": move(out)})
        )

    assert_refused_as_on_the_cpu(
        [
            call(zeros(2, 3, 4), zeros(3, 4)),
            call(zeros(2, 3, dtype=torch.int16), zeros(3, 4)),
            call(zeros(2, 3), zeros(3, 4, dtype=torch.uint8)),
            call(zeros(2, 3), zeros(4, 4)),
            call(zeros(2, 3), zeros(3, 4), zeros(2, 4).float()),
            call(zeros(2, 3), zeros(3, 4), zeros(1, 4).int()),
            call(zeros(2, 3), zeros(3, 4), zeros(2, 5).int()),
        ],
        RuntimeError,
    )
    with pytest.raises(RuntimeError, match="Expected mat2 to be of dimension 2 but got 1"):
        torch._int_mm(zeros(2, 3).to("mps"), zeros(3).to("mps"))
    with pytest.raises(RuntimeError, match="same device"):
        torch._int_mm(zeros(2, 3).to("mps"), zeros(3, 4))
    with pytest.raises(RuntimeError, match="overlap|single memory location"):
        out = torch.zeros(1, dtype=torch.int32, device="mps").expand(2, 4)
        torch._int_mm(zeros(2, 3).to("mps"), zeros(3, 4).to("mps"), out=out)
