"""Operators with indices in the place of stock's, while the fix "indexing" is on: kernels/indexing/scatter.metal."""

import itertools
from functools import partial

import metalops
import pytest
import torch
from metalops import debug, fixes, testing
from metalops.testing.samples import FLOATS, INTEGERS, layouts, make, to_device
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import DeterministicGuard

from ..aten import assert_refused_as_on_the_cpu, kernels_of

EXACT = (*INTEGERS, torch.bool)


def by_dtype(*dtypes):
    """Each test compiles kernels of its own: those of most dtypes are left to the nightly tier."""
    first, *others = dtypes or (*FLOATS, *EXACT, torch.complex64)
    cases = (first, *(pytest.param(dtype, marks=pytest.mark.nightly) for dtype in others))
    return pytest.mark.parametrize("dtype", cases, ids=str)


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("indexing"), debug.standins() as served:
        yield
        names = {fix.name: fix.operators for fix in fixes.status()}["indexing"]
    assert not set(served) & set(names)


def wide(x):
    if isinstance(x, torch.Tensor) and x.is_complex():
        return x.to(torch.complex128)
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def assert_same(function, *args, terms=1.0, exact=False, **options):
    """terms: a bound of the magnitude of what is combined, of which errors are a share."""
    args = tuple(args)
    actual = function(*to_device(args, "mps"), **to_device(options, "mps"))
    if exact:
        assert torch.equal(actual.cpu(), function(*args, **options))
        return actual
    expected = function(*map(wide, args), **options)
    assert actual.shape == expected.shape
    if not (actual.is_floating_point() or actual.is_complex()):
        assert torch.equal(actual.cpu(), expected)
        return actual
    eps = torch.finfo(actual.dtype).eps
    torch.testing.assert_close(
        actual.cpu(), expected.to(actual.dtype), rtol=4 * eps, atol=terms * 2**-22, equal_nan=True
    )
    return actual


def _index(count, size, seed=0, dtype=torch.int64):
    return make((count,), dtype, low=0, high=size - 1, seed=seed)


def _reductions(dtype):
    yield from ("sum", "prod")
    if not dtype.is_complex:
        yield from ("amax", "amin")
    if dtype != torch.bool:
        yield "mean"


def _layouts(dtype):
    """Tensors of all layouts, each with another dimension than the one before, and its size."""
    for number, (_, x) in enumerate(layouts(dtype, low=-2, high=2)):
        dim = number % x.dim() if x.dim() else 0
        size = x.shape[dim] if x.dim() else 1
        if size and x.numel() < 5000:
            yield number, x, dim, size


@by_dtype()
def test_rows_of_all_layouts(dtype):
    for number, x, dim, size in _layouts(dtype):
        index = _index(7 if x.dim() else 1, size, dim)
        source = x.index_select(dim, index) if x.dim() else x
        if number % 2:
            source = source.transpose(0, -1).contiguous().transpose(0, -1)
        assert_same(torch.index_add, x, dim, index, source, terms=16)
        assert_same(torch.index_copy, x, dim, index, source, exact=True)
        assert_same(
            torch.index_fill, x, dim, index - size, True if dtype == torch.bool else 3, exact=True
        )


@by_dtype()
def test_elements_of_all_layouts(dtype):
    for number, x, dim, size in _layouts(dtype):
        index = make(x.shape, torch.int64, low=0, high=size - 1, seed=dim)
        assert_same(torch.gather, x, dim, index, exact=True)
        assert_same(torch.scatter_add, x, dim, index, x, terms=40)
        reductions = list(_reductions(dtype))
        reduce, has_self = reductions[number % len(reductions)], number % 3 != 0
        small = x.clamp(-1, 1) if reduce == "prod" and dtype in FLOATS else x
        assert_same(
            torch.scatter_reduce, small, dim, index, small, reduce, include_self=has_self, terms=40
        )
        unique = torch.argsort(make(x.shape, torch.float32, seed=dim), dim) if x.dim() else index
        assert_same(torch.scatter, x, dim, unique, x, exact=True)
        assert_same(torch.scatter, x, dim, unique, 1, exact=True)


def test_parts_of_a_source_and_of_self():
    x, source = make((5, 6, 7), torch.float32), make((8, 9, 10), torch.float32)
    for dim in range(3):
        index = torch.argsort(make((3, 4, 5), torch.float32, seed=dim), dim)
        for each in (index, index[:, :1].expand(3, 4, 5), index[:1, :, :1].expand(3, 4, 5)):
            assert_same(torch.scatter_add, x, dim, each, source, terms=40)
            assert_same(torch.gather, x, dim, each, exact=True)
        assert_same(torch.scatter, x, dim, index, source, exact=True)
        assert_same(torch.scatter, x, dim, index, source, reduce="add", terms=9)
        assert_same(torch.scatter, x, dim, index, source, reduce="multiply", terms=9)
        assert_same(torch.scatter, x, dim, index, 3, reduce="add", terms=9)
        assert_same(torch.scatter, x, dim, index, -2.5, reduce="multiply", terms=9)


@pytest.mark.parametrize("places", [1, 3, 40, 5000])
def test_runs_of_every_length(places, deterministic):
    """Runs lie in a span of items, begin in one and end in another, and fill several."""
    for items in (1, 31, 32, 33, 500, 3000):
        index = _index(items, places, items)
        columns = 1 + items % 3
        source = make((items, columns), torch.float32, low=-1, high=1)
        x = torch.ones(places, columns)
        assert_same(torch.index_add, x, 0, index.sort().values, source, terms=2 * items)
        spread = index[:, None].expand(items, columns)
        assert_same(torch.scatter_reduce, x, 0, spread, source, "mean", terms=16)
        half = source.half()
        assert_same(
            torch.scatter_reduce, x.half(), 0, spread, half, "amin", include_self=False, exact=True
        )


@pytest.fixture
def deterministic():
    with DeterministicGuard(True):
        yield


def test_deterministic_sums_are_the_same_each_time(deterministic):
    index = torch.zeros(4096, dtype=torch.int64)
    source = make((4096,), torch.float32, low=0, high=1)
    sums = {torch.zeros(2, device="mps").index_add_(0, index.to("mps"), source.to("mps"))[0].item() for _ in range(5)}  # fmt: skip
    assert len(sums) == 1


@pytest.mark.parametrize("columns", [1, 3, 8, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_few_elements_are_added_by_atomics(dtype, columns, tmp_path):
    """Sums are exact in any order. Rows of more elements are sorted, and all items where algorithms are to be deterministic."""
    index = _index(3000, 40).to("mps")
    memory = make((2, 3000, columns), dtype, low=-1000, high=1000).trunc_().to("mps")
    expected = torch.ones(40, columns, dtype=dtype).index_add_(0, index.cpu(), memory[1].cpu())
    calls = (
        lambda x: x.index_add_(0, index, memory[1]),
        lambda x: x.scatter_add_(0, index[:, None].expand(3000, columns), memory[1]),
        lambda x: x.index_put_((index,), memory[1], accumulate=True),
    )
    for call in calls:
        for is_deterministic in (False, True):
            with DeterministicGuard(is_deterministic):
                x = torch.ones(columns, 40, dtype=dtype, device="mps").t()
                _, kernels = kernels_of(lambda f=call, x=x: f(x), tmp_path)
            is_atomic = columns <= 8 and not is_deterministic and call is not calls[2]
            assert any(name.startswith("scatter_add_") for name in kernels) == is_atomic
            assert any(name.startswith("scatter_spans_") for name in kernels) != is_atomic
            assert torch.equal(x.cpu(), expected)


@pytest.mark.parametrize("columns", [1, 3, 8, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_extrema_of_few_elements_are_found_by_atomics(dtype, columns, tmp_path):
    index = _index(3000, 40)
    source = make((3000, columns), dtype, low=-1000, high=1000)
    source[index % 4 == 0] = source[index % 4 == 0].abs()
    source[index % 4 == 1] = -source[index % 4 == 1].abs()
    x = make((columns, 40), dtype, low=-2000, high=2000).t()
    arguments = (x, 0, index[:, None].expand(3000, columns), source)
    for reduce in ("amax", "amin"):
        for has_self in (True, False):
            call = partial(torch.scatter_reduce, reduce=reduce, include_self=has_self)
            result, kernels = kernels_of(lambda f=call: f(*to_device(arguments, "mps")), tmp_path)
            assert any(name.startswith("scatter_extremum_") for name in kernels) == (columns <= 8)
            assert torch.equal(result.cpu(), call(*arguments))


def test_extrema_of_nan_infinity_and_zero():
    """By atomics on their bits. Zero is larger than -0, and a NaN of either sign is an extremum."""
    nan, inf = float("nan"), float("inf")
    minus_nan = torch.tensor(-4194304, dtype=torch.int32).view(torch.float32).item()
    items = [
        [nan, 1.0], [1.0, nan], [-1.0, minus_nan], [minus_nan, -1.0], [inf, -inf], [-inf, -inf], [inf, inf],
        [0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0], [-1.0, -2.0], [-2.0, -1.0], [3.0, -2.0], [-2.0, 3.0], [1e-45, -1e-45],
    ]  # fmt: skip
    firsts = [-inf, inf, -5.0, 5.0, 0.0, -0.0, nan, minus_nan]
    source = torch.tensor(items * len(firsts)).flatten()
    index = torch.arange(len(source)) // 2
    x = torch.tensor(firsts).repeat_interleave(len(items))
    for reduce in ("amax", "amin"):
        for has_self in (True, False):
            ours = x.to("mps").scatter_reduce(
                0, index.to("mps"), source.to("mps"), reduce, include_self=has_self
            )
            theirs = x.double().scatter_reduce(
                0, index, source.double(), reduce, include_self=has_self
            )
            assert torch.equal(ours.cpu().isnan(), theirs.isnan())
            numbers = ours.cpu().nan_to_num(nan=7.0, posinf=inf, neginf=-inf)
            assert torch.equal(numbers, theirs.nan_to_num(nan=7.0, posinf=inf, neginf=-inf).float())
            if has_self:
                continue
            is_zero = (source.view(-1, 2) == 0).all(1)
            signs = source.view(-1, 2).signbit()
            expected = signs.all(1) if reduce == "amax" else signs.any(1)
            assert torch.equal(ours.cpu().signbit()[is_zero], expected[is_zero])


def test_half_precision_is_added_in_float():
    index = torch.zeros(4096, dtype=torch.int64)
    ones = torch.ones(4096, dtype=torch.float16, device="mps")
    assert torch.zeros_like(ones).index_add_(0, index.to("mps"), ones)[0].item() == 4096


def test_the_last_of_several_items_remains():
    """Always for index_copy, and for others if algorithms are to be deterministic."""
    index, source = _index(3000, 50), torch.arange(3000.0)
    assert_same(torch.index_copy, torch.zeros(50), 0, index, source, exact=True)
    torch.use_deterministic_algorithms(True)
    try:
        assert_same(torch.scatter, torch.zeros(50), 0, index, source, exact=True)
        assert_same(torch.index_put, torch.zeros(50), (index,), source, exact=True)
    finally:
        torch.use_deterministic_algorithms(False)


@by_dtype(torch.int32, *EXACT)
def test_integers_wrap_around_and_means_are_rounded_down(dtype):
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    source = torch.tensor([high, high, low, 5 % 2, 1, low], dtype=torch.int64).to(dtype)
    index = torch.tensor([0, 0, 1, 1, 2, 2])
    x = torch.tensor([1, 0, 1], dtype=torch.int64).to(dtype)
    assert_same(torch.index_add, x, 0, index, source)
    for reduce in ("sum", "prod", "amax", "amin"):
        for has_self in (True, False):
            assert_same(torch.scatter_reduce, x, 0, index, source, reduce, include_self=has_self)
    if dtype.is_signed:
        negative = torch.tensor([-3, -4, 2], dtype=dtype)
        assert_same(torch.scatter_reduce, x, 0, index[:3], negative, "mean")


def test_nan_is_an_extremum_and_infinities_are_added():
    source = torch.tensor([torch.nan, 1, 2, torch.nan, torch.inf, -torch.inf, torch.inf])
    index = torch.tensor([0, 0, 1, 1, 2, 2, 3])
    for reduce in ("amax", "amin", "sum", "prod", "mean"):
        assert_same(torch.scatter_reduce, torch.ones(5), 0, index, source, reduce)


def test_alpha_and_index_dtypes():
    x, source = make((4, 5), torch.float32), make((4, 3), torch.float32)
    for dtype in (torch.int64, torch.int32):
        index = torch.tensor([4, 0, 4], dtype=dtype)
        assert_same(torch.index_add, x, 1, index, source, alpha=-2.5, terms=16)
    z = make((4,), torch.complex64)
    assert_same(torch.index_add, z, 0, torch.tensor([1, 1]), z[:2], alpha=1j, terms=40)


@by_dtype(torch.int32, *EXACT)
def test_alpha_is_a_number_of_the_dtype(dtype):
    x, source = make((4, 5), dtype), make((4, 3), dtype)
    for alpha in (0.5, 2.5, 2, True, 0):
        assert_same(torch.index_add, x, 1, torch.tensor([4, 0, 4]), source, alpha=alpha)
        assert_same(torch.index_add, x[0], 0, torch.tensor([4]), source[0, :1], alpha=alpha)


# ---- index_put_ ----------------------------------------------------------------------------------

INDICES = (
    (torch.tensor([0, 3, 3, -1]),),
    (torch.tensor([[0, 3], [1, -4]]),),
    (None, torch.tensor([2, 0, 2])),
    (None, None, torch.tensor([1, 1, 5])),
    (torch.tensor([0, 1, 1]), torch.tensor([2, -1, -1])),
    (torch.tensor([[0], [2]]), torch.tensor([1, 3, 3])),
    (torch.tensor([0, 1, 1]), None, torch.tensor([2, -1, -1])),
    (torch.tensor(2),),
    (torch.tensor([True, False, True, False]),),
    (torch.tensor([[True, False, True, False, False]] * 4),),
    (None, torch.tensor([False, True, False, True, True]), torch.tensor([1, 0, 1])),
    (torch.tensor([0, 2], dtype=torch.int32),),
    (torch.tensor([], dtype=torch.int64),),
    (torch.tensor([1]).expand(3), torch.tensor([4]).expand(3)),
)


@by_dtype()
def test_index_put(dtype):
    for indices, accumulate in itertools.product(INDICES, (False, True)):
        for x in (make((4, 5, 6), dtype), make((6, 5, 4), dtype).permute(2, 1, 0)):
            shape = x[tuple(slice(None) if i is None else i for i in indices)].shape
            for value in (make(shape, dtype), make(shape[-1:], dtype), make((), dtype)):
                if not accumulate:  # of several values for one element any remains
                    value = torch.full_like(value, True)  # noqa: PLW2901
                assert_same(torch.ops.aten.index_put, x, indices, value, accumulate, terms=40)


def test_index_put_by_assignment():
    x, device = make((4, 5), torch.float32), make((4, 5), torch.float32).to("mps")
    for t in (x, device):
        t[torch.tensor([0, 2], device=t.device)] = 3.0
        t[:, torch.tensor([1, 3], device=t.device)] += 1
        t[t > 2] = -1
        t[torch.tensor([1, 1]), torch.tensor([2, 4])] = torch.tensor([5.0, 6.0], device=t.device)
    assert torch.equal(device.cpu(), x)


def test_index_put_is_refused_as_on_the_cpu():
    x, two = torch.zeros(3, 4), torch.tensor([0, 1])
    put = torch.index_put
    assert_refused_as_on_the_cpu(
        [
            lambda d: put(d(x), (d(two), d(two), d(two)), d(torch.tensor(1.0))),
            lambda d: put(d(x), (d(two), d(torch.tensor([0, 1, 2]))), d(torch.tensor(1.0))),
            lambda d: put(d(x), (d(two),), d(torch.ones(3))),
            lambda d: put(d(x), (d(two),), d(torch.tensor(1))),
            lambda d: put(d(x), (d(two).float(),), d(torch.tensor(1.0))),
            lambda d: put(d(x[:0]), (d(two),), d(torch.ones(4))),
            lambda d: put(d(x), (d(torch.tensor([True, False])),), d(torch.tensor(1.0))),
        ],
        IndexError,
        RuntimeError,
    )  # fmt: skip


# ---- cases that users reported -------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(8))
def test_bool_views_that_begin_in_the_middle_of_four_bytes(offset):
    index, ones = torch.tensor([0, 2], device="mps"), torch.ones(2, dtype=torch.bool, device="mps")
    for add in (
        lambda view: view.scatter_add_(0, index, ones),
        lambda view: view.index_add_(0, index, ones),
        lambda view: view.index_put_((index,), ones, accumulate=True),
    ):
        memory = torch.zeros(16, dtype=torch.bool, device="mps")
        add(memory[offset : offset + 4])
        assert memory.cpu().nonzero().flatten().tolist() == [offset, offset + 2]


WRITES = {
    "index_fill": lambda x, i: x.index_fill_(0, i, 7.0),
    "index_copy": lambda x, i: x.index_copy_(0, i, torch.full((2,), 7.0, device="mps")),
    "index_add": lambda x, i: x.index_add_(0, i, torch.full((2,), 7.0, device="mps")),
    "index_put": lambda x, i: x.index_put_((i,), torch.full((2,), 7.0, device="mps")),
    "index_put_accumulate": lambda x, i: x.index_put_((i,), torch.full((2,), 7.0, device="mps"), True),
    "scatter": lambda x, i: x.scatter_(0, i, 7.0),
    "scatter_add": lambda x, i: x.scatter_add_(0, i, torch.full((2,), 7.0, device="mps")),
    "scatter_reduce": lambda x, i: x.scatter_reduce_(0, i, torch.full((2,), 7.0, device="mps"), "sum"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", [12, -13, 2**40])
@pytest.mark.parametrize("name", WRITES)
def test_an_index_out_of_range_is_an_error_and_writes_nothing(name, wrong):
    memory = torch.zeros(64, device="mps")
    WRITES[name](memory[20:32], torch.tensor([wrong, 3], device="mps"))
    message = rf"index {wrong} is out of bounds for dimension 0 with size 12"
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    expected = torch.zeros(64)
    expected[23] = 7.0
    assert torch.equal(memory.cpu(), expected)


@pytest.mark.parametrize("name", [x for x in WRITES if x.startswith(("index_copy", "scatter"))])
def test_a_negative_index_is_an_error_where_it_does_not_count_from_the_end(name):
    memory = torch.zeros(64, device="mps")
    WRITES[name](memory[20:32], torch.tensor([-1, 3], device="mps"))
    with pytest.raises(torch.AcceleratorError, match="index -1 is out of bounds"):
        torch.mps.synchronize()
    assert memory.cpu().nonzero().flatten().tolist() == [23]


def test_gather_reads_nothing_for_an_index_out_of_range():
    x = torch.arange(1.0, 13, device="mps")[2:7]
    actual = x.gather(0, torch.tensor([5, 1, -1], device="mps"))
    with pytest.raises(torch.AcceleratorError, match="index (5|-1) is out of bounds for dimension 0 with size 5"):  # fmt: skip
        torch.mps.synchronize()
    assert actual.tolist() == [0, 4, 0]


def test_several_indices_where_the_last_dimension_has_one_element():
    x = torch.zeros(10, 100, 1, device="mps")
    index = make((10, 100, 1), torch.float32).to("mps").topk(2, dim=1).indices
    assert x.scatter_(1, index, 1.0).sum().item() == 20


# ---- torch's own samples, gradients, compiled functions ------------------------------------------

NAMES = (
    "gather", "index_add", "index_copy", "index_fill", "index_put", "scatter", "scatter_add", "scatter_reduce",
)  # fmt: skip
ENTRIES = [pytest.param(op, id=op.formatted_name) for op in op_db if op.name in NAMES]


@by_dtype(torch.float32, torch.float16, torch.int64, torch.complex64)
@pytest.mark.parametrize("op", ENTRIES)
def test_samples(op, dtype):
    if dtype not in op.dtypes:
        pytest.skip(f"{op.name} has no {dtype}")
    torch.use_deterministic_algorithms(True)
    try:
        for sample in list(op.sample_inputs("cpu", dtype))[:30]:
            assert_same(op.op, sample.input, *sample.args, terms=300, **sample.kwargs)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("op", ENTRIES)
def test_gradients_of_samples(op):
    for sample in list(op.sample_inputs("cpu", torch.float32))[:6]:
        kwargs = sample.kwargs
        if op.name == "scatter" and "reduce" in kwargs:  # of which torch has no derivative
            continue

        def function(*args, kwargs=kwargs):
            return op.op(*args, **testing.to_device(kwargs, args[0].device.type))

        case = testing.Case("sample", (sample.input, *sample.args))
        testing.check_gradient(function, function, case, "mps", name=op.name)


@pytest.mark.full
def test_compiled_functions():
    def function(x, index, source):
        y = torch.index_add(x, 0, index, source).scatter_add(0, index, source)
        return y.gather(0, index) + torch.index_put(x, (index,), source, True).sum()

    x, index, source = make((9,), torch.float32), _index(20, 9), make((20,), torch.float32)
    compiled = torch.compile(function, backend="aot_eager")
    assert_same(compiled, x, index, source, terms=200)


def test_arguments_are_refused_as_on_the_cpu():
    x, index, source = torch.zeros(3, 4), torch.tensor([0, 1]), torch.ones(2, 4)
    assert_refused_as_on_the_cpu(
        [
            lambda d: d(x).index_fill(0, d(index).int(), 1.0),
            lambda d: d(x).index_fill(0, d(index).view(1, 2), 1.0),
            lambda d: d(x).index_fill(0, d(index), 1j),
            lambda d: d(x).index_fill(2, d(index), 1.0),
            lambda d: d(x).index_copy(0, d(index), d(source)[:, :3]),
            lambda d: d(x).index_add(0, d(index).view(1, 2), d(source)),
            lambda d: d(x).index_add(0, d(index), d(source), alpha=1j),
            lambda d: d(x).int().index_add(0, d(index), d(source).int(), alpha=2**40),
            lambda d: d(x).scatter(0, d(index), d(source)),
            lambda d: d(x).scatter(0, d(index).view(1, 2).float(), d(source)),
            lambda d: d(x).scatter_reduce(0, d(index).view(1, 2), d(source), "median"),
            lambda d: d(x).gather(0, d(index)),
            lambda d: d(x).gather(3, d(index).view(1, 2)),
        ],
        IndexError,
        RuntimeError,
    )
    with pytest.raises(NotImplementedError, match="not implemented for 'ComplexFloat'"):
        z = x[0].to("mps", torch.complex64)
        z.scatter_reduce(0, index.to("mps"), z, "amax")


# ---- rows in packs of elements -------------------------------------------------------------------

# Rows of which all elements are in packs of 16 bytes, and others: their number, what lies between them, and where the
# source and self begin.
ROWS = [
    (64, 0, 0, 0),
    (64, 8, 0, 0),
    (64, 3, 0, 0),
    (63, 1, 0, 0),
    (64, 0, 1, 0),
    (64, 0, 0, 1),
    (64, 0, 4, 4),
]


def rows_of(count, columns, gap, begin, dtype, seed):
    """A matrix whose rows lie `gap` elements apart, and begins at another element than its storage."""
    stride = columns + gap
    memory = make((begin + count * stride,), dtype, seed=seed)
    return memory, (count, columns), (stride, 1), begin


@pytest.mark.parametrize("rows", ROWS, ids=str)
@by_dtype(torch.float32, torch.float16, torch.uint8, torch.complex64)
def test_rows_are_copied_in_packs(rows, dtype):
    columns, gap, of_source, of_self = rows
    index = _index(150, 40)
    results = []
    for device in ("cpu", "mps"):
        source, self = (
            memory.to(device).as_strided(*layout)
            for memory, *layout in (
                rows_of(150, columns, gap, of_source, dtype, 1),
                rows_of(40, columns, gap, of_self, dtype, 2),
            )
        )
        results.append(self.index_copy_(0, index.to(device), source).cpu())
    assert torch.equal(*results)


@pytest.mark.parametrize("rows", ROWS, ids=str)
@by_dtype(torch.float32, torch.float16, torch.bfloat16)
def test_rows_are_reduced_in_packs(rows, dtype, tmp_path, deterministic):
    columns, gap, of_source, of_self = rows
    index = _index(300, 5)  # runs longer than a thread's span
    source, self = (
        memory.to("mps").as_strided(*layout)
        for memory, *layout in (
            rows_of(300, columns, gap, of_source, dtype, 1),
            rows_of(5, columns, gap, of_self, dtype, 2),
        )
    )
    expected = self.cpu().double().index_add_(0, index, source.cpu().double())
    _, kernels = kernels_of(lambda: self.index_add_(0, index.to("mps"), source), tmp_path)
    quads = (columns % 4, gap % 4, of_source % 4) == (0, 0, 0)
    assert any(name.startswith("scatter_spans_packs_") for name in kernels) == quads
    torch.testing.assert_close(
        self.cpu(), expected.to(dtype), rtol=4 * torch.finfo(dtype).eps, atol=300 * 2**-22
    )
