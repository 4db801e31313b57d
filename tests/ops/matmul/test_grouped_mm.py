"""_grouped_mm and torch.nn.functional.grouped_mm: kernels/matmul/grouped_mm.metal."""

import functools

import pytest
import torch
from metalops.testing import no_host_copies, no_standins
from metalops.testing.samples import FLOATS
from torch.nn.functional import grouped_mm

from ..aten import assert_refused_as_on_the_cpu, only_ours
from ..benchmark import Benchmark
from .bodies import with_dtypes

pytestmark = only_ours("aten::_grouped_mm")

ERRORS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
FORMS = ("2d x 3d", "3d x 2d", "2d x 2d", "3d x 3d")
# Empty ones, those of one, and all in one; around the tiles, of 16 and 64, and with a rest that belongs to none.
SIZES = (
    ((1,), 0),
    ((0, 0, 0), 5),
    ((1, 1, 1), 0),
    ((0, 37, 0), 0),
    ((16, 0, 17, 15), 3),
    ((63, 64, 65, 0, 1), 0),
    ((1, 130, 2, 3), 20),
)

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)
forms = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(params=["tensor", "simdgroup"])
def body(request, monkeypatch):
    """By which products: of tensors, or of simdgroup matrices."""
    monkeypatch.setenv("METALOPS_MATMUL", request.param)


@functools.lru_cache(maxsize=4)
def _experts(features, dtype, device):
    weights = torch.randn(2, features, 256, generator=torch.Generator().manual_seed(0))
    return weights.to(dtype).to(device)


def _through_experts(x, out):
    half = torch.tensor([x.shape[0] // 2, x.shape[0]], dtype=torch.int32, device=x.device)
    return torch._grouped_mm(x, _experts(x.shape[1], x.dtype, x.device), half)


BENCHMARKS = (
    Benchmark.same(
        "_grouped_mm",
        _through_experts,
        reason="torch's CPU operator is a library's, which is written for each processor",
    ),
)


def operand(*shape, dtype, seed=0):
    """Rows begin at multiples of 16 bytes, as the operator wants them."""
    step = 16 // dtype.itemsize
    padded = -(-shape[-1] // step) * step
    values = torch.randn(*shape[:-1], padded, generator=torch.Generator().manual_seed(seed))
    return values.to(dtype)[..., : shape[-1]]


def ends_of(sizes):
    return torch.tensor(sizes).cumsum(0).int()


def operands(form, sizes, rest, dtype, m=20, k=24, n=40):
    """mat_a, mat_b and offs."""
    groups, total = len(sizes), sum(sizes) + rest
    shapes = {
        "2d x 3d": ((total, k), (groups, k, n)),
        "3d x 2d": ((groups, m, k), (k, total)),
        "2d x 2d": ((m, total), (total, n)),
        "3d x 3d": ((groups, m, k), (groups, k, n)),
    }[form]
    left, right = (operand(*s, dtype=dtype, seed=i) for i, s in enumerate(shapes))
    return left, right, None if form == "3d x 3d" else ends_of(sizes)


def products(left, right, ends):
    """A plain loop in float64; what belongs to no group is zero."""
    left, right = left.double(), right.double()
    if ends is None:
        return left @ right
    ends = ends.tolist()
    starts = [0, *ends[:-1]]
    if left.dim() == 2 and right.dim() == 2:
        pairs = [(left[:, s:e], right[s:e]) for s, e in zip(starts, ends, strict=True)]
        return torch.stack([a @ b for a, b in pairs])
    if left.dim() == 2:
        out = left.new_zeros(left.shape[0], right.shape[2])
        for i, (s, e) in enumerate(zip(starts, ends, strict=True)):
            out[s:e] = left[s:e] @ right[i]
        return out
    out = left.new_zeros(left.shape[1], right.shape[1])
    for i, (s, e) in enumerate(zip(starts, ends, strict=True)):
        out[:, s:e] = left[i] @ right[:, s:e]
    return out


def to_mps(x):
    """With its strides."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="mps").copy_(x)


def assert_right(actual, left, right, ends):
    expected = products(left, right, ends)
    assert actual.device.type == "mps" and actual.dtype == left.dtype
    assert actual.shape == expected.shape
    size = 1 if actual.numel() == 0 else products(left.abs(), right.abs(), ends).max().item() + 1
    difference = (actual.cpu().double() - expected).abs()
    assert difference.numel() == 0 or difference.max() <= ERRORS[left.dtype] * size


@pytest.mark.sampled(16)
@with_dtypes(ERRORS)
@forms
@pytest.mark.parametrize(("sizes", "rest"), SIZES, ids=str)
def test_groups_of_all_sizes(dtype, form, sizes, rest, body):
    left, right, ends = operands(form, sizes, rest, dtype)
    a, b, offs = to_mps(left), to_mps(right), None if ends is None else ends.to("mps")
    with no_standins(["aten::zero_", "aten::fill_.Scalar"]), no_host_copies():
        actual = torch._grouped_mm(a, b, offs)
    assert_right(actual, left, right, ends)
    step = 16 // dtype.itemsize
    assert actual.stride(-1) == 1 and actual.stride(-2) == -(-actual.shape[-1] // step) * step
    assert torch.equal(grouped_mm(a, b, offs=offs), actual)


@pytest.mark.sampled(4)
@forms
@pytest.mark.parametrize("size", [1, 15, 17, 64, 65])
def test_other_dimensions_around_the_tiles(form, size, body):
    for m, k, n in ((size, 33, 7), (70, size, 7), (3, 9, size), (70, 8, 130)):
        left, right, ends = operands(form, (5, 0, 67), 2, torch.float32, m, k, n)
        offs = None if ends is None else ends.to("mps")
        assert_right(torch._grouped_mm(to_mps(left), to_mps(right), offs), left, right, ends)


@with_dtypes(ERRORS)
@forms
def test_layouts(dtype, form, body):
    left, right, ends = operands(form, (8, 0, 24), 8, dtype, 16, 24, 40)
    offs = None if ends is None else ends.to("mps")
    for a in layouts(left):
        for b in layouts(right):
            assert_right(torch._grouped_mm(a, b, offs), left, right, ends)
    if offs is not None:
        steps = torch.stack([offs, -offs], 1)[:, 0]
        assert_right(torch._grouped_mm(to_mps(left), to_mps(right), steps), left, right, ends)


def layouts(x):
    """Without gaps, transposed, and a part of a larger one."""
    x = x.to("mps")
    gaps = torch.full((*x.shape[:-2], x.shape[-2] + 3, x.shape[-1] + 16), torch.nan, device="mps")
    gaps = gaps.to(x.dtype)
    part = gaps[..., 2:-1, 8:-8]
    part.copy_(x)
    yield from (x.contiguous(), x.mT.contiguous().mT, part)
    if x.dim() == 3:
        yield x.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize("form", FORMS[:3])
def test_nothing_is_read_beyond_a_group(form):
    """What the neighbours hold is not in the products, and NaN times zero would be."""
    left, right, _ = operands(form, (3, 5), 8, torch.float32)
    offs = torch.tensor([3, 8], dtype=torch.int32)
    dim = {"2d x 3d": (0, None), "3d x 2d": (None, 1), "2d x 2d": (1, 0)}[form]
    expected = torch._grouped_mm(to_mps(left), to_mps(right), offs.to("mps"))
    for x, d in ((left, dim[0]), (right, dim[1])):
        if d is not None:
            x.narrow(d, 8, x.shape[d] - 8).fill_(torch.nan)
    assert torch.equal(torch._grouped_mm(to_mps(left), to_mps(right), offs.to("mps")), expected)


NONSENSE = ([4, 100, 200], [-5, -1, 10], [8, 3, 10], [2**31 - 1, -(2**31), 5])


@pytest.mark.parametrize("form", FORMS[:3])
def test_offsets_that_make_no_sense_stay_within_the_operands(form, body):
    left, right, _ = operands(form, (3, 5, 2), 0, torch.float32)
    for ends in NONSENSE:
        offs = torch.tensor(ends, dtype=torch.int32)
        clamped = offs.long().clamp(0, 10).cummax(0).values
        actual = torch._grouped_mm(to_mps(left), to_mps(right), offs.to("mps"))
        assert_right(actual, left, right, clamped)


def test_empty_operands():
    for form, m, k, n, sizes in (
        ("2d x 3d", 4, 0, 8, (2, 3)), ("2d x 3d", 4, 8, 0, (2, 3)), ("2d x 3d", 4, 8, 8, (0, 0)),
        ("3d x 2d", 4, 0, 8, (2, 3)), ("3d x 2d", 0, 8, 8, (2, 3)), ("3d x 2d", 4, 8, 8, (0, 0)),
        ("2d x 2d", 4, 8, 8, (0, 0)), ("2d x 2d", 0, 8, 8, (2, 3)), ("2d x 2d", 4, 8, 0, (2, 3)),
        ("3d x 3d", 4, 0, 8, (2, 3)), ("3d x 3d", 0, 8, 8, (2, 3)), ("3d x 3d", 4, 8, 8, ()),
    ):  # fmt: skip
        left, right, ends = operands(form, sizes, 0, torch.float32, m, k, n)
        a, b = to_mps(left), to_mps(right)
        try:
            torch._grouped_mm(left, right, ends)
        except RuntimeError as error:  # of strides, which torch has ideas of where nothing is
            with pytest.raises(RuntimeError) as ours:
                torch._grouped_mm(a, b, None if ends is None else ends.to("mps"))
            assert str(ours.value) == str(error)
            continue
        actual = torch._grouped_mm(a, b, None if ends is None else ends.to("mps"))
        assert torch.equal(actual.cpu().double(), products(left, right, ends))


@dtypes
@forms
def test_gradients(dtype, form):
    left, right, ends = operands(form, (8, 0, 24), 0, dtype, 16, 24, 40)
    exact = [x.double().requires_grad_() for x in (left, right)]
    expected = products(*exact, ends) if ends is None else _differentiable(*exact, ends)
    a, b = to_mps(left).requires_grad_(), to_mps(right).requires_grad_()
    with no_host_copies():
        actual = torch._grouped_mm(a, b, None if ends is None else ends.to("mps"))
        weight = torch.randn(actual.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
        actual.backward(to_mps(weight))
    expected.backward(weight.double())
    for ours, theirs in zip((a, b), exact, strict=True):
        error = (ours.grad.cpu().double() - theirs.grad).norm() / theirs.grad.norm()
        assert error <= ERRORS[dtype] and ours.grad.dtype == dtype


def _differentiable(left, right, ends):
    starts, ends = [0, *ends.tolist()[:-1]], ends.tolist()
    spans = list(zip(starts, ends, strict=True))
    if left.dim() == 2 and right.dim() == 2:
        return torch.stack([left[:, s:e] @ right[s:e] for s, e in spans])
    if left.dim() == 2:
        return torch.cat([left[s:e] @ right[i] for i, (s, e) in enumerate(spans)])
    return torch.cat([left[i] @ right[:, s:e] for i, (s, e) in enumerate(spans)], 1)


def test_wrong_arguments_are_refused_as_on_the_cpu():
    x = torch.ones(4, 8)
    experts = torch.ones(2, 8, 8)
    offs = torch.tensor([2, 4], dtype=torch.int32)

    def call(*arguments, **options):
        return lambda move: torch._grouped_mm(
            *(move(x) if isinstance(x, torch.Tensor) else x for x in arguments),
            **{k: move(v) if isinstance(v, torch.Tensor) else v for k, v in options.items()},
        )

    assert_refused_as_on_the_cpu(
        [
            call(x.int(), experts, offs),
            call(x, experts.long(), offs),
            call(x[0], experts, offs),
            call(x, experts[None], offs),
            call(x, torch.ones(2, 4, 8), offs),
            call(torch.ones(4, 6), torch.ones(2, 6, 8), offs),
            call(torch.ones(4, 16)[:, ::2], experts, offs),
            call(x, experts),
            call(experts, experts, offs),
            call(x, experts, offs[None]),
            call(x, experts, offs.long()),
            call(x, experts, offs, bias=torch.ones(8)),
            call(x, experts, offs, out_dtype=torch.bfloat16),
            call(x, experts, offs[:1]),
            call(experts, x.t(), offs[:1]),
            call(experts, torch.ones(3, 8, 8)),
        ],
        RuntimeError,
    )
    on_mps = x.to("mps"), experts.to("mps"), offs.to("mps")
    with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype, but got: "):
        torch._grouped_mm(on_mps[0].half(), *on_mps[1:])
    with pytest.raises(RuntimeError, match=r"cannot be multiplied \(4x8 and 4x8\)"):
        torch._grouped_mm(on_mps[0], on_mps[0], on_mps[2])
    with pytest.raises(RuntimeError, match="same device"):
        torch._grouped_mm(*on_mps[:2], offs)


@dtypes
@forms
def test_fake_tensors_are_like_real_ones(dtype, form):
    from torch._subclasses.fake_tensor import FakeTensorMode

    arguments = operands(form, (3, 4), 0, dtype, 5, 8, 7)
    arguments = [None if x is None else to_mps(x) for x in arguments]
    real = torch._grouped_mm(*arguments)
    with FakeTensorMode() as mode:
        fakes = [None if x is None else mode.from_tensor(x) for x in arguments]
        fake = torch._grouped_mm(*fakes)
    assert fake.device.type == "mps"
    assert (real.shape, real.dtype, real.stride()) == (fake.shape, fake.dtype, fake.stride())


def test_other_devices_keep_their_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(2, 8, 8, dtype=torch.bfloat16)
        assert torch._grouped_mm(x, x).device.type == "cpu"
        with pytest.raises(RuntimeError, match="BF16|Float16"):
            torch._grouped_mm(x.half(), x.half())


@pytest.mark.full
@dtypes
def test_compiled_with_gradients(dtype):
    torch._dynamo.reset()
    left, right, ends = operands("2d x 3d", (8, 0, 24), 0, dtype, 16, 24, 40)

    def experts(x, weights, offs):
        return torch.relu(grouped_mm(x, weights, offs=offs)) * 2

    results = []
    for function in (experts, torch.compile(experts, fullgraph=True)):
        x, weights = to_mps(left).requires_grad_(), to_mps(right).requires_grad_()
        result = function(x, weights, ends.to("mps"))
        result.sum().backward()
        results.append((result, x.grad, weights.grad))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)
