"""sort, topk and kthvalue in the place of stock's, while the fix "sort" is on: kernels/reduction/sort.metal."""

import metalops
import pytest
import torch
from metalops import debug, testing
from metalops.testing.samples import FLOATS, INTEGERS, layouts, make, special_values, to_device
from torch.testing._internal.common_methods_invocations import op_db

from ..aten import assert_refused_as_on_the_cpu

DTYPES = (*FLOATS, *INTEGERS, torch.bool)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# One block, the elements of one thread, and several blocks, the last of which is short or single.
LENGTHS = (1, 7, 8, 9, 64, 65, 2047, 2048, 2049, 4096, 5000)


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("sort"), debug.standins() as served:
        yield
        assert not {"aten::sort.stable", "aten::topk", "aten::kthvalue.values"} & set(served)


def numbers(shape, dtype, seed=0):
    """Few different ones, so that many are equal; NaN, infinities and both zeros among floats."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 20, shape, generator=generator)
    if not dtype.is_floating_point:
        return x.to(dtype)
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, *range(-8, 7)])
    return values[x].to(dtype)


def assert_same(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=0, atol=0, equal_nan=True)


def sorted_on_both(x, **options):
    return torch.sort(to_device(x, "mps"), **options), torch.sort(x, **options)


@by_dtype
@pytest.mark.parametrize("descending", [False, True])
def test_rows_of_every_length_are_sorted_stably(dtype, descending):
    for length in LENGTHS:
        assert_same(
            *sorted_on_both(numbers((3, length), dtype, length), stable=True, descending=descending)
        )


@by_dtype
def test_layouts_along_every_dimension(dtype):
    for _, x in layouts(dtype):
        for dim in range(min(x.dim(), 6)):
            assert_same(*sorted_on_both(x, stable=True, dim=dim))


def test_dimensions_before_the_last_four():
    x = numbers((3, 2, 2, 3, 2, 2), torch.int64)
    for dim in range(-6, 6):
        assert_same(*sorted_on_both(x, stable=True, dim=dim, descending=True))
        k = x.shape[dim]
        actual = torch.topk(x.to("mps"), k, dim)
        assert torch.equal(actual.values.cpu(), torch.topk(x, k, dim).values)


@by_dtype
def test_special_values(dtype):
    x = special_values(dtype)
    for descending in (False, True):
        assert_same(*sorted_on_both(x, stable=True, descending=descending))


def test_long_columns_of_several_dimensions():
    x = numbers((2, 2300, 3), torch.float32)
    assert_same(*sorted_on_both(x, stable=True, dim=1))
    assert_same(*sorted_on_both(x.transpose(0, 2), stable=True, dim=1, descending=True))


def test_int64_beyond_2_to_the_53():
    x = 2**60 + torch.randperm(3000)
    assert_same(*sorted_on_both(x))
    assert_same(*sorted_on_both(-x))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_unsigned_integers(dtype):
    x = torch.tensor([0, 1, 255, 60000, 3, 2], dtype=dtype)
    assert torch.equal(torch.sort(x.to("mps")).indices.cpu(), torch.tensor([0, 1, 5, 4, 2, 3]))


@pytest.mark.parametrize("dtype", [x for x in DTYPES if x != torch.bool], ids=str)
@pytest.mark.parametrize("largest", [False, True])
def test_topk_is_the_beginning_of_the_sorted_row(dtype, largest):
    for length in (9, 2048, 5000):
        x = numbers((2, length), dtype, length)
        expected = torch.sort(x, stable=True, dim=1, descending=largest)
        for k in sorted({0, 1, 5, min(length, 2300), length}):
            actual = torch.topk(x.to("mps"), k, 1, largest)
            assert_same(actual, [e[:, :k] for e in expected])


@pytest.mark.parametrize("dtype", [x for x in DTYPES if x != torch.bool], ids=str)
def test_kthvalue(dtype):
    for length in (9, 2048, 5000):
        x = numbers((2, length, 2), dtype, length)
        expected = torch.sort(x, stable=True, dim=1)
        for k in sorted({1, 4, length // 2, length}):
            for keepdim in (False, True):
                actual = torch.kthvalue(x.to("mps"), k, 1, keepdim)
                assert_same(actual, [e[:, k - 1 : k] if keepdim else e[:, k - 1] for e in expected])


def test_argsort_msort_and_quantiles_use_the_kernels():
    x = numbers((5, 6), torch.float32)
    m = x.to("mps")
    assert torch.equal(m.argsort(dim=0, stable=True).cpu(), x.argsort(dim=0, stable=True))
    assert_same([torch.msort(m)], [torch.msort(x)])
    q = torch.tensor([0.2, 0.7])
    assert_same([torch.nanquantile(m, q.to("mps"), 1)], [torch.nanquantile(x, q, 1)])
    assert_same([torch.quantile(m, 0.5)], [torch.quantile(x, 0.5)])


# ---- outputs ------------------------------------------------------------------------------------


def _calls(x):
    return {
        "sort": lambda **out: torch.sort(x, stable=True, dim=0, **out),
        "topk": lambda **out: torch.topk(x, x.shape[0], 0, **out),
        "kthvalue": lambda **out: torch.kthvalue(x, 2, 0, **out),
    }


@pytest.mark.parametrize("name", ["sort", "topk", "kthvalue"])
def test_out(name):
    x = make((5, 4), torch.float32)
    call, expected = _calls(x.to("mps"))[name], _calls(x)[name]()
    shape = expected[0].shape
    for empty in (
        lambda dtype: torch.empty(shape, dtype=dtype, device="mps"),
        lambda dtype: torch.empty(0, dtype=dtype, device="mps"),
        lambda dtype: torch.empty(*shape, 2, dtype=dtype, device="mps")[..., 1],
        lambda dtype: torch.empty(shape[::-1], dtype=dtype, device="mps").permute(
            *reversed(range(len(shape)))
        ),
    ):
        out = (empty(torch.float32), empty(torch.int64))
        actual = call(out=out)
        assert actual[0] is out[0] and actual[1] is out[1]
        assert_same(out, expected)
    with pytest.raises(RuntimeError, match="(?i)int"):
        call(out=(empty(torch.float32), empty(torch.int32)))
    with pytest.raises(RuntimeError, match="(?i)half"):
        call(out=(empty(torch.float16), empty(torch.int64)))
    with pytest.raises(RuntimeError, match="device"):
        call(out=(empty(torch.float32).cpu(), empty(torch.int64)))


def test_a_tensor_sorted_into_itself():
    x = make((7, 3), torch.float32)
    moved = x.to("mps")
    torch.sort(
        moved, stable=True, dim=0, out=(moved, torch.empty(0, dtype=torch.int64, device="mps"))
    )
    assert torch.equal(moved.cpu(), x.sort(0).values)


def test_strides_are_those_of_the_cpu():
    for x in (make((4, 5), torch.float32).T, make((4, 6), torch.float32)[:, ::2]):
        for a, e in zip(*sorted_on_both(x, stable=True, dim=0), strict=True):
            assert a.stride() == e.stride()


def test_bad_arguments():
    x = torch.ones(3, 4)
    assert_refused_as_on_the_cpu(
        (
            lambda to: torch.sort(to(x), dim=2),
            lambda to: torch.topk(to(x), 5),
            lambda to: torch.topk(to(x), -1),
            lambda to: torch.topk(to(x), 1, 3),
            lambda to: torch.kthvalue(to(x), 0),
            lambda to: torch.kthvalue(to(x), 5),
            lambda to: torch.kthvalue(to(x), 1, -3),
            lambda to: torch.kthvalue(to(x[:, :0]), 1, 1),
        ),
        RuntimeError,
        IndexError,
    )
    for operator in (torch.sort, lambda x: torch.topk(x, 1), lambda x: torch.kthvalue(x, 1)):
        with pytest.raises(RuntimeError, match="(?i)complex"):
            operator(torch.ones(3, dtype=torch.complex64, device="mps"))


# ---- gradients, samples -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sort", "topk", "kthvalue"])
def test_gradients(name):
    x = torch.randperm(35, generator=torch.Generator().manual_seed(0)).view(5, 7).float()
    case = testing.Case(name, (x,))
    testing.check_gradient(
        lambda x: _calls(x)[name]()[0], lambda x: _calls(x)[name]()[0], case, "mps", name=name
    )


@pytest.mark.parametrize(
    "op",
    [op for op in op_db if op.name in ("sort", "topk", "kthvalue", "argsort", "msort", "quantile")],
    ids=lambda op: op.formatted_name,
)
def test_samples(op):
    """Where elements are equal, indices may be those of any of them, unless the order is to be stable."""
    for dtype in sorted(op.dtypes & {torch.float32, torch.bfloat16, torch.int64}, key=str):
        for sample in list(op.sample_inputs("cpu", dtype))[:40]:
            args, kwargs = testing.to_device((sample.args, sample.kwargs), "mps")
            actual = op.op(testing.to_device(sample.input, "mps"), *args, **kwargs)
            expected = op.op(sample.input, *sample.args, **sample.kwargs)
            if isinstance(actual, torch.Tensor):
                actual, expected = [actual], [expected]
            if op.name == "argsort":
                dim = sample.kwargs.get("dim", sample.args[0] if sample.args else -1)
                actual, expected = (
                    [sample.input.gather(dim, x[0].cpu())] if sample.input.dim() else x
                    for x in (actual, expected)
                )
            is_stable = sample.kwargs.get("stable", False)
            for a, e in zip(actual[: None if is_stable else 1], expected, strict=is_stable):
                torch.testing.assert_close(a.cpu(), e, equal_nan=True)


def test_compiled():
    def function(x):
        values, indices = torch.topk(x, 3)
        return values + 1, indices, torch.sort(x, stable=True, dim=0).indices

    x = make((4, 9), torch.float32)
    compiled = torch.compile(function, backend="aot_eager")
    assert_same(compiled(x.to("mps")), function(x))
