"""embedding_bag in the place of stock's, while the fix "embedding_bag" is on: kernels/indexing/embedding_bag.metal."""

import metalops
import pytest
import torch
from metalops import debug, fixes, testing
from metalops.testing.samples import make
from torch.nn import functional as F

from ..aten import assert_refused_as_on_the_cpu, kernels_of


def by_dtype(*dtypes):
    """Each test compiles kernels of its own: those of most dtypes are left to the nightly tier."""
    first, *others = dtypes
    cases = (first, *(pytest.param(dtype, marks=pytest.mark.nightly) for dtype in others))
    return pytest.mark.parametrize("dtype", cases, ids=str)


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("embedding_bag"), debug.standins() as served:
        yield
        names = {fix.name: fix.operators for fix in fixes.status()}["embedding_bag"]
    assert not set(served) & set(names)


def _expected(index, weight, offsets, mode, samples, last, padding):
    """The definition, bag by bag, in float64."""
    ends = [*offsets[1:].tolist()] if last else [*offsets[1:].tolist(), len(index)]
    rows = []
    for begin, end in zip(offsets.tolist(), ends, strict=False):
        kept = [i for i in range(begin, end) if index[i] != padding]
        bag = weight[index[kept]]
        if samples is not None:
            bag = bag * samples[kept, None]
        if not kept:
            rows.append(torch.zeros_like(weight[0]))
        elif mode == "max":
            rows.append(bag.max(0).values)  # of equal ones the first has the gradient
        else:
            rows.append(bag.sum(0) / (len(kept) if mode == "mean" else 1))
    return torch.stack(rows)


OFFSETS = ([0, 3, 3, 10, 11], [0], [0, 0, 40])


@by_dtype(torch.float32, torch.float16, torch.bfloat16)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_values_and_gradients(mode, dtype):
    index = make((40,), torch.int64, low=0, high=8)
    for number, offsets in enumerate(map(torch.tensor, OFFSETS)):
        for last in (False, True) if len(offsets) > 1 else (False,):
            for weight in (
                make((9, 7), dtype),
                make((70, 9), dtype).t()[:, ::2],
                make((9, 8), dtype),
            ):
                padding = 3 if number % 2 else None
                samples = make((40,), dtype) if mode == "sum" and number != 1 else None
                case = testing.Case("bags", (weight, *([] if samples is None else [samples])))

                def call(weight, samples=None, o=offsets, last=last, padding=padding):
                    if weight.dtype == torch.float64:
                        return _expected(index, weight, o, mode, samples, last, padding)
                    return F.embedding_bag(
                        index.to(weight.device), weight, o.to(weight.device), mode=mode,
                        per_sample_weights=samples, include_last_offset=last, padding_idx=padding,
                    )  # fmt: skip

                inputs = [x.to("mps").requires_grad_() for x in case.args]
                wide = [x.double().requires_grad_() for x in case.args]
                actual, expected = call(*inputs), call(*wide)
                eps = torch.finfo(dtype).eps
                torch.testing.assert_close(
                    actual.detach().cpu(), expected.to(dtype).detach(), rtol=4 * eps, atol=2e-5
                )
                cotangent = make(expected.shape, dtype, low=-1, high=1)
                for a, e in zip(
                    torch.autograd.grad(actual, inputs, cotangent.to("mps")),
                    torch.autograd.grad(expected, wide, cotangent.double()),
                    strict=True,
                ):
                    torch.testing.assert_close(a.cpu(), e.to(dtype), rtol=4 * eps, atol=40 * 2**-18)


def test_index_dtypes_and_two_dimensions():
    weight = make((9, 5), torch.float32)
    index = make((4, 6), torch.int64, low=0, high=8)
    for dtype in (torch.int64, torch.int32):
        for mode in ("sum", "mean", "max"):
            x = index.to(dtype)
            actual = F.embedding_bag(x.to("mps"), weight.to("mps"), mode=mode)
            torch.testing.assert_close(actual.cpu(), F.embedding_bag(x, weight, mode=mode))
    flat, offsets = index.flatten().int(), torch.tensor([0, 5, 9])
    actual = F.embedding_bag(flat.to("mps"), weight.to("mps"), offsets.to("mps").int())
    torch.testing.assert_close(actual.cpu(), F.embedding_bag(flat.long(), weight, offsets))


def test_without_bags_indices_or_columns():
    for count, bags, columns in ((0, 3, 4), (0, 0, 4), (2, 1, 0)):
        weight = torch.ones(5, columns, device="mps", requires_grad=True)
        index = torch.zeros(count, dtype=torch.int64, device="mps")
        result = F.embedding_bag(index, weight, torch.zeros(bags, dtype=torch.int64, device="mps"))
        assert result.shape == (bags, columns) and not result.any()
        result.sum().backward()
        assert not weight.grad.any()


@pytest.mark.full
def test_many_indices_of_few_rows():
    """Runs of equal indices that fill many spans."""
    index = make((6000,), torch.int64, low=0, high=2)
    offsets = torch.arange(0, 6000, 50)
    weight, cotangent = make((3, 40), torch.float32), make((120, 40), torch.float32, low=0, high=1)
    for frequency in (False, True):
        x = weight.to("mps").requires_grad_()
        result = F.embedding_bag(
            index.to("mps"), x, offsets.to("mps"), mode="sum", scale_grad_by_freq=frequency
        )
        (grad,) = torch.autograd.grad(result, x, cotangent.to("mps"))
        expected = torch.zeros(3, 40, dtype=torch.float64)
        expected.index_add_(0, index, cotangent.double().repeat_interleave(50, 0))
        if frequency:
            expected /= index.bincount()[:, None]
        torch.testing.assert_close(grad.cpu(), expected.float(), rtol=2e-6, atol=1e-6)


# ---- cases that users reported -------------------------------------------------------------------


def test_the_last_offset_is_the_end():
    weight = torch.arange(16.0, device="mps").view(4, 4).requires_grad_()
    index, offsets = torch.tensor([0, 1, 2], device="mps"), torch.tensor([0, 2], device="mps")
    result = F.embedding_bag(index, weight, offsets, mode="sum", include_last_offset=True)
    assert result.tolist() == [[4, 6, 8, 10]]
    result.sum().backward()
    assert weight.grad[:, 0].tolist() == [1, 1, 0, 0]


def test_gradients_are_divided_by_the_frequency_of_their_index():
    """torch's CPU divides by that of another one where frequencies differ."""
    weight = torch.ones(4, 3, device="mps", requires_grad=True)
    index, offsets = torch.tensor([1, 1, 3], device="mps"), torch.tensor([0], device="mps")
    for mode, expected in (("sum", [0, 1, 0, 1]), ("mean", [0, 1 / 3, 0, 1 / 3])):
        result = F.embedding_bag(index, weight, offsets, mode=mode, scale_grad_by_freq=True)
        (grad,) = torch.autograd.grad(result.sum(), weight)
        torch.testing.assert_close(grad[:, 1].cpu(), torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("wrong", [5, 6, -1, 2**40])
@pytest.mark.parametrize("mode", ["sum", "max"])
def test_an_index_out_of_range_is_an_error(mode, wrong):
    """The first row behind the weight is one."""
    memory = torch.ones(7, 3, device="mps")
    weight = memory[:5].requires_grad_()
    index = torch.tensor([2, wrong], device="mps")
    result = F.embedding_bag(index, weight, torch.tensor([0], device="mps"), mode=mode)
    (grad,) = torch.autograd.grad(result.sum(), weight)
    message = rf"index 1 of input takes value {wrong} which is not in the valid range \[0, 5\)"
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert result.tolist() == [[1, 1, 1]] and grad[:, 0].tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("offsets", [[1, 2], [0, 9], [0, 3, 2]])
def test_wrong_offsets_are_an_error(offsets):
    weight, index = torch.ones(5, 3, device="mps"), torch.zeros(4, dtype=torch.int64, device="mps")
    F.embedding_bag(index, weight, torch.tensor(offsets, device="mps"))
    with pytest.raises(torch.AcceleratorError, match="offsets"):
        torch.mps.synchronize()


def test_arguments_are_refused_as_on_the_cpu():
    weight, index, offsets = torch.ones(3, 4), torch.tensor([0, 1]), torch.tensor([0])
    bag = torch.ops.aten._embedding_bag
    assert_refused_as_on_the_cpu(
        [
            lambda d: F.embedding_bag(d(index), d(weight)[0], d(offsets)),
            lambda d: bag(d(weight), d(index), d(offsets)[:0], False, 0, False, None, True),
        ],
        ValueError,
        RuntimeError,
    )
    with pytest.raises(RuntimeError, match="per_sample_weights only supported with mode='sum'"):
        x = torch.ones(2, device="mps")
        bag(weight.to("mps"), index.to("mps"), offsets.to("mps"), False, 1, False, x)


@pytest.mark.full
def test_compiled_functions():
    bags = torch.nn.EmbeddingBag(9, 5, mode="mean").to("mps")
    index = make((3, 6), torch.int64, low=0, high=8).to("mps")
    expected = bags(index)
    torch.testing.assert_close(torch.compile(bags, backend="aot_eager")(index), expected)
    torch.testing.assert_close(
        expected.cpu(), F.embedding_bag(index.cpu(), bags.weight.detach().cpu())
    )


# Columns of a weight, what lies between its rows, and where it begins.
@pytest.mark.parametrize("layout", [(8, 0, 0), (8, 4, 4), (8, 3, 0), (8, 0, 2), (7, 1, 0)], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@by_dtype(torch.float32, torch.float16, torch.bfloat16)
def test_rows_are_read_in_packs(layout, mode, dtype, tmp_path):
    columns, gap, begin = layout
    memory = make((begin + 9 * (columns + gap),), dtype, seed=3)
    weight = memory.as_strided((9, columns), (columns + gap, 1), begin)
    there = memory.to("mps").as_strided(weight.shape, weight.stride(), begin)
    index, offsets = make((40,), torch.int64, low=0, high=8), torch.tensor([0, 3, 3, 40])
    actual, kernels = kernels_of(
        lambda: F.embedding_bag(index.to("mps"), there, offsets.to("mps"), mode=mode), tmp_path
    )
    packs = "packs_" if columns % 4 == gap % 4 == begin % 4 == 0 else ""
    assert any(name.startswith(f"embedding_bag_forward_{packs}") for name in kernels)
    assert any("packs_" in name for name in kernels) == bool(packs)
    expected = F.embedding_bag(index, weight.double(), offsets, mode=mode).to(dtype)
    torch.testing.assert_close(actual.cpu(), expected, rtol=4 * torch.finfo(dtype).eps, atol=2e-5)
