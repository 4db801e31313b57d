"""Indices of sparse matrices in COO and CSR: kernels/indexing/compressed_indices.metal."""

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..aten import served_by_us
from ..benchmark import Benchmark

to_csr = torch._convert_indices_from_coo_to_csr
to_coo = torch._convert_indices_from_csr_to_coo
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
indices = pytest.mark.parametrize("dtype", INTEGERS, ids=str)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def rows_of(count, size, dtype=torch.int64):
    """Of elements, in ascending order; some rows have none."""
    return torch.randint(0, size, (count,)).sort()[0].to(dtype)


def _places(x):
    return torch.arange(x.numel(), device=x.device) // 4


def _to_csr(x, out):
    return to_csr(_places(x), x.numel() // 4)


def _to_coo(x, out):
    crow = torch.arange(x.numel() // 4 + 1, device=x.device) * 4
    return to_coo(crow, torch.zeros(x.numel(), dtype=torch.int64, device=x.device))


BENCHMARKS = (
    Benchmark.same("_convert_indices_from_coo_to_csr", _to_csr),
    Benchmark.same("_convert_indices_from_csr_to_coo", _to_coo),
)


@indices
@pytest.mark.parametrize("out_int32", [False, True])
def test_row_pointers_count_the_elements_before_a_row(dtype, out_int32):
    for count, size in ((0, 0), (0, 3), (1, 1), (7, 40), (40, 7), (100, 100), (2000, 90)):
        rows = rows_of(count, size, dtype) if count else torch.empty(0, dtype=dtype)
        found = to_csr(rows.to("mps"), size, out_int32=out_int32)
        assert found.dtype == (torch.int32 if out_int32 else torch.int64)
        expected = [int((rows < row).sum()) for row in range(size + 1)]
        assert found.tolist() == expected


@indices
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_pointers_become_rows(dtype, transpose, batch):
    for count, size in ((0, 3), (1, 1), (7, 40), (40, 7), (120, 100)):
        rows = [rows_of(count, size) for _ in range(torch.Size(batch).numel())]
        crow = torch.stack([to_csr(x, size) for x in rows]).reshape(*batch, size + 1).to(dtype)
        col = torch.randint(0, 100, (*batch, count)).to(dtype)
        found = to_coo(crow.to("mps"), col.to("mps"), out_int32=True, transpose=transpose)
        assert found.dtype == torch.int32
        pair = [torch.cat(rows), col.reshape(-1)]
        expected = [*torch.ones(*batch, count).nonzero().T[:-1], *(pair[::-1] if transpose else pair)]  # fmt: skip
        assert torch.equal(found.cpu(), torch.stack(expected).int())


def test_layouts_and_out():
    rows = rows_of(20, 9).repeat_interleave(2).to("mps")[::2]
    out = torch.empty(20, dtype=torch.int64, device="mps")[::2]
    assert to_csr(rows, 9, out=out) is out
    assert torch.equal(out, to_csr(rows.contiguous(), 9))
    col = torch.arange(40, device="mps")[::2]
    out = torch.empty(20, 2, dtype=torch.int64, device="mps").T
    assert to_coo(to_csr(rows, 9), col, out=out) is out
    assert torch.equal(out, torch.stack([rows, col]))


@pytest.mark.parametrize("rows", [[-1, 0, 2], [0, 1, 5], [3, 3, 3]], ids=str)
def test_a_row_that_there_is_not_is_an_error(rows):
    """torch's CPU writes beyond its result."""
    with pytest.raises(RuntimeError, match="found row -?[0-9] of a matrix of 3 rows"):
        to_csr(torch.tensor(rows, device="mps"), 3).cpu()


def test_errors():
    rows = torch.tensor([0, 1], device="mps")
    with pytest.raises(RuntimeError, match="supposed to be a vector, but got 2 dimensional"):
        to_csr(rows[None], 3)
    with pytest.raises(NotImplementedError, match="coo_to_csr.* not implemented for 'Float'"):
        to_csr(rows.float(), 3)
    with pytest.raises(
        RuntimeError, match="size must be (a number of rows, but is|non-negative, got) -1"
    ):
        to_csr(rows, -1)
    with pytest.raises(NotImplementedError, match="csr_to_coo.* not implemented for 'Float'"):
        to_coo(rows.float(), rows)
    with pytest.raises(RuntimeError, match="supposed to have the same dimensionality"):
        to_coo(rows[None], rows)
    for crow, col in ((rows[:0], rows), (rows.expand(2, 2), rows.expand(3, 2))):
        with pytest.raises(RuntimeError, match="crow_indices .* and col_indices .* do not fit"):
            to_coo(crow, col)
    with pytest.raises(RuntimeError, match="same device"):
        to_coo(rows, rows.cpu())


def test_no_stand_in():
    rows = torch.tensor([0, 1, 1], device="mps")
    assert served_by_us(lambda: to_csr(rows, 3)) == []
    assert served_by_us(lambda: to_coo(to_csr(rows, 3), rows)) == []


def test_fake_tensors_have_the_results_properties():
    rows = torch.tensor([0, 1, 1], device="mps")
    crow = to_csr(rows, 3)
    with FakeTensorMode() as mode:
        fakes = to_csr(mode.from_tensor(rows), 3), to_coo(*map(mode.from_tensor, (crow, rows)))
    for fake, real in zip(fakes, (crow, to_coo(crow, rows))):
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)


def _spoilt(crow, col, columns):
    """Indices that break one rule each, beside those that break none."""
    rows, count = len(crow) - 1, len(col)
    for place, value in ((0, 1), (0, -1), (rows, count - 1), (rows // 2, count + columns)):
        yield [*crow[:place], value, *crow[place + 1 :]], col
    for place in (0, count // 2, count - 1):
        for value in (-1, columns, col[max(place - 1, 0)]):
            yield crow, [*col[:place], value, *col[place + 1 :]]
    yield crow, col[::-1]
    yield crow, col


@pytest.mark.parametrize("is_crow", [True, False], ids=["csr", "csc"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_indices_are_validated_as_on_the_cpu(dtype, is_crow):
    validate = torch._validate_compressed_sparse_indices
    seen = set()
    for rows, columns, density in ((4, 5, 0.5), (9, 3, 0.9), (2, 40, 0.3), (7, 7, 1.0)):
        matrix = torch.rand(rows, columns) < density
        crow = [0, *matrix.sum(1).cumsum(0).tolist()]
        col = matrix.nonzero()[:, 1].tolist()
        for given in _spoilt(crow, col, columns):
            pointers, places = (torch.tensor(x, dtype=dtype) for x in given)
            message = None
            try:
                validate(is_crow, pointers, places, rows, columns, len(col))
            except RuntimeError as error:
                message = str(error)
            seen.add(message)
            on_mps = (pointers.to("mps"), places.to("mps"), rows, columns, len(col))
            if message is None:
                assert validate(is_crow, *on_mps) is None
            else:
                with pytest.raises(RuntimeError, match=re.escape(message)):
                    validate(is_crow, *on_mps)
    assert len(seen) == 6  # all five rules, and none


def test_batches_empty_matrices_and_wrong_shapes_are_validated():
    def validate(crow, col, *sizes, dtype=torch.int64):
        crow, col = (torch.tensor(x, dtype=dtype, device="mps") for x in (crow, col))
        torch._validate_compressed_sparse_indices(True, crow, col, *sizes)

    validate([[0, 1, 2], [0, 2, 2]], [[0, 0], [0, 1]], 2, 2, 2)
    with pytest.raises(RuntimeError, match="sorted and distinct"):
        validate([[0, 1, 2], [0, 2, 2]], [[0, 0], [1, 1]], 2, 2, 2)
    validate([[0, 1, 2]], [0, 1], 2, 2, 2)
    validate([0, 1, 2], [[0, 1], [1, 0]], 2, 2, 2)
    with pytest.raises(RuntimeError, match="sorted and distinct"):
        validate([0, 2, 2], [[0, 1], [1, 0]], 2, 2, 2)
    validate([0], [], 0, 2, 0)
    validate([0, 0, 0], [], 2, 0, 0)
    with pytest.raises(RuntimeError, match=r"crow_indices.shape\[-1\] = 3 is not equal to nrows"):
        validate([0, 1, 2], [0, 1], 3, 2, 2)
    with pytest.raises(RuntimeError, match=r"col_indices.shape\[-1\] = 2 is not equal to nnz = 3"):
        validate([0, 1, 2], [0, 1], 2, 2, 3)
    with pytest.raises(NotImplementedError, match="not implemented for 'Char'"):
        validate([0, 1, 2], [0, 1], 2, 2, 2, dtype=torch.int8)
    with pytest.raises(RuntimeError, match="Found dtype Long but expected Int"):
        torch._validate_compressed_sparse_indices(
            True, torch.tensor([0, 1]).int().to("mps"), torch.tensor([0]).to("mps"), 1, 1, 1
        )
