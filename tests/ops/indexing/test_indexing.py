"""take, put_, embedding_renorm_, channel_shuffle and narrow_copy: kernels/indexing/indexing.metal."""

import math

import pytest
import torch
import torch.nn.functional as F
from metalops import testing
from metalops.testing.samples import FLOATS, INTEGERS, layouts, make, to_device
from torch._subclasses.fake_tensor import FakeTensorMode

from ..aten import CPU_FLOATS, Calls, OpInfoSamples, only_ours, served_by_us
from ..benchmark import FIBERS, Benchmark, permutation

MOVED = (*FLOATS, *INTEGERS, torch.bool, torch.complex64)
by_moved_dtype = pytest.mark.parametrize("dtype", MOVED, ids=str)
by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
# What fills a new tensor with zeros, and what takes a strided index into the shape of the source.
STOCK = {"aten::zero_", "aten::fill_.Scalar"}


# In torch's op_db.
OPINFOS = (
    "take",
    "put",
    "narrow_copy",
    "nn.functional.channel_shuffle",
)


def _opinfo_embedding_renorm(dtype: torch.dtype) -> Calls:
    weight = make((10, 7), dtype)
    for indices in (torch.tensor([0, 3, 3, 9]), torch.tensor([[1, 2], [2, 1]]), torch.tensor(4)):
        for norm_type in (1.0, 2.0, float("inf")):
            yield (weight, indices, 2.0, norm_type), {}
            yield (weight.t().contiguous().t(), indices.int(), 2.0, norm_type), {}


OPINFO_SAMPLES = (
    OpInfoSamples(
        "embedding_renorm",
        torch.ops.aten.embedding_renorm,
        {*CPU_FLOATS, torch.complex64},
        _opinfo_embedding_renorm,
    ),
)


BENCHMARKS = (
    Benchmark.same("take", lambda x, out: torch.take(x, permutation(x.shape, x.device), out=out)),
    Benchmark.same("put_", lambda x, out: out.put_(permutation(x.shape, x.device), x)),
    Benchmark.same(
        "put_ and add",
        lambda x, out: out.put_(permutation(x.shape, x.device), x, True),
        reason="a sum of 16 bits is a loop of compare-and-exchange on the word around it, as GPUs need it",
    ),
    Benchmark.same(
        "channel_shuffle", lambda x, out: torch.channel_shuffle(x.unflatten(1, (4, -1)), 2)
    ),
    Benchmark.same("narrow_copy", lambda x, out: torch.narrow_copy(x, 1, 0, x.shape[1], out=out)),
    Benchmark.same(
        "embedding_renorm_",
        lambda x, out: torch.embedding_renorm_(
            out.copy_(x), permutation(x.shape[:1], x.device), 1.0, 2.0
        ),
        reason=FIBERS,
    ),
)


def _indices(count, size, seed=0):
    """With repetitions, and half of them negative."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-size, size, (count,), generator=generator)


def _same(actual, expected):
    assert actual.device.type == "mps" and actual.dtype == expected.dtype
    assert actual.shape == expected.shape and actual.stride() == expected.stride()
    assert torch.equal(actual.cpu(), expected)


# ---- take ----------------------------------------------------------------------------------------


@by_moved_dtype
def test_take_from_every_layout(dtype):
    for name, x in layouts(dtype):
        count = 40 if x.numel() else 0
        index = (
            _indices(count, max(1, x.numel())).view(5, -1) if count else torch.zeros(0, 3).long()
        )
        _same(torch.take(to_device(x, "mps"), index.to("mps")), torch.take(x, index)), name


def test_take_with_indices_of_every_layout():
    x = make((9, 11), torch.float32)
    for _, index in layouts(torch.int64, low=-99, high=98):
        _same(torch.take(x.to("mps"), to_device(index, "mps")), torch.take(x, index))


def test_take_out():
    x = make((4, 5), torch.float32)
    index = _indices(12, 20).view(3, 4)
    expected = torch.take(x, index)
    x, index = x.to("mps"), index.to("mps")
    for out in (
        torch.empty(3, 4, device="mps"),
        torch.empty(4, 3, device="mps").t(),
        torch.empty(0, device="mps"),
        torch.empty(3, 8, device="mps")[:, ::2],
    ):
        assert torch.take(x, index, out=out) is out
        assert torch.equal(out.cpu(), expected)
    with pytest.warns(UserWarning, match="was resized"):
        torch.take(x, index, out=torch.empty(2, device="mps"))


def test_gradient_of_take_sums_repeated_indices():
    for dtype in (*FLOATS, torch.complex64):
        x = make((5, 7), dtype).t()
        index = _indices(200, 35)
        cotangent = make((200,), dtype, seed=1)
        expected = torch.zeros(35, dtype=torch.complex128 if dtype.is_complex else torch.float64)
        expected.index_add_(0, index % 35, cotangent.to(expected.dtype))
        on_device = to_device(x, "mps").requires_grad_()
        torch.take(on_device, index.to("mps")).backward(cotangent.to("mps"))
        # The sum of about six terms of at most five, rounded after each.
        tolerance = 6 * 30 * torch.finfo(dtype).eps
        actual = on_device.grad.cpu().reshape(-1).to(expected.dtype)
        torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


# ---- put_ ----------------------------------------------------------------------------------------


@by_moved_dtype
def test_put_into_every_layout(dtype):
    every_other = (slice(None, None, 2),) * 7
    for name, x in (*layouts(dtype), ("every other of 7-d", make((3,) * 7, dtype)[every_other])):
        if "expanded" in name:
            with pytest.raises(RuntimeError, match="single memory location"):
                to_device(x, "mps").put_(*(t.to("mps") for t in (_indices(1, 2), x.flatten()[:1])))
            continue
        count = x.numel() // 2
        index = torch.randperm(max(1, x.numel()))[:count]
        index -= x.numel() * (index % 2)
        source = make((count,), dtype, seed=5)
        whole = to_device(x, "mps")
        for accumulate in (False, True):
            expected = x.clone().put_(index, source, accumulate)
            actual = whole.clone().put_(index.to("mps"), source.to("mps"), accumulate)
            assert torch.equal(actual.cpu(), expected), (name, accumulate)
            if x.dim() >= 10:  # its elements overlap
                continue
            storage = to_device(x, "mps")
            assert storage.put_(index.to("mps"), source.to("mps"), accumulate) is storage
            assert torch.equal(storage.cpu(), expected), (name, accumulate)


@pytest.mark.parametrize("dtype", (*INTEGERS, torch.bool), ids=str)
def test_sums_of_repeated_indices_are_exact(dtype):
    x = make((13,), dtype)
    index = _indices(4001, 13)
    source = make((4001,), dtype, seed=1)
    if dtype == torch.int64:
        source = source * (2**53 + 1)
    expected = x.clone().put_(index, source, True)
    actual = x.to("mps").put_(index.to("mps"), source.to("mps"), True)
    assert torch.equal(actual.cpu(), expected)


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", (*FLOATS, torch.complex64, torch.int8, torch.bool), ids=str)
def test_sums_of_repeated_indices_at_any_alignment(dtype, offset):
    # Integers, so that no sum is rounded.
    whole = make((9 + offset,), torch.int8, low=-3, high=3).to(dtype)
    index = _indices(101, 5)
    source = make((101,), torch.int8, low=-1, high=1, seed=1).to(dtype)
    expected = whole.clone()
    expected[offset : offset + 5].put_(index, source, True)
    actual = whole.to("mps")
    actual[offset : offset + 5].put_(index.to("mps"), source.to("mps"), True)
    assert torch.equal(actual.cpu(), expected)


@pytest.mark.reported("which of several sources is written last is a race", modes=("thread",))
def test_one_of_several_sources_for_an_index_is_put_whole():
    x = torch.zeros(3, dtype=torch.int64, device="mps")
    source = torch.arange(1, 1001) * (2**32 + 1)
    x.put_(torch.arange(1000, device="mps") % 3, source.to("mps"))
    for place, value in enumerate(x.tolist()):
        assert value in source.tolist() and (value // (2**32 + 1) - 1) % 3 == place


def test_put_takes_any_shapes_of_as_many_elements():
    x = make((4, 5), torch.float32)
    index, source = torch.randperm(20)[:12].view(3, 4), make((2, 6), torch.float32)
    expected = x.put(index, source)
    for index_, source_ in (
        (index, source),
        (index.t().contiguous().t(), source),
        (index, source.t().contiguous().t()),
    ):
        actual = to_device(x, "mps").put(to_device(index_, "mps"), to_device(source_, "mps"))
        assert torch.equal(actual.cpu(), expected)


@only_ours("aten::put_")
@pytest.mark.parametrize("accumulate", [False, True])
def test_put_refuses_deterministic_mode_as_on_cuda(accumulate):
    x = torch.zeros(3, device="mps")
    index = torch.tensor([0], device="mps")
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
            x.put_(index, x[:1].clone(), accumulate)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_of_put(accumulate):
    index = torch.randperm(35)[:20].view(4, 5)

    def put(x, source):
        return x.put(index.to(x.device), source, accumulate)

    case = testing.Case("put", (make((5, 7), torch.float32), make((4, 5), torch.float32, seed=1)))
    testing.check_gradient(put, put, case, "mps", name="put")


# ---- indices out of range ------------------------------------------------------------------------


@only_ours("aten::put_")
@pytest.mark.parametrize("index", [12, -13, 2**40, -(2**40)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_put_reports_an_index_out_of_range_and_leaves_the_tensor_alone(index, accumulate):
    x = torch.arange(14.0, device="mps")
    part = x[1:13].view(3, 4)
    part.put_(torch.tensor([2, index], device="mps"), torch.ones(2, device="mps"), accumulate)
    message = rf"put_\(\): out of range: tried to access index {index} on a tensor of 12 elements"
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    expected = torch.arange(14.0)
    expected[3] = 1 + expected[3] * accumulate
    assert torch.equal(x.cpu(), expected)


@only_ours("aten::take.out")
@pytest.mark.parametrize("index", [12, -13, 2**40])
def test_take_reports_an_index_out_of_range(index):
    x = torch.arange(12.0, device="mps").view(3, 4).t()
    result = torch.take(x, torch.tensor([[index, 5]], device="mps"))
    message = rf"take\(\): out of range: tried to access index {index} on a tensor of 12 elements"
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert result.cpu()[0, 1] == x.cpu().take(torch.tensor(5))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_embedding_renorm_reports_an_index_out_of_range(dtype):
    weight = torch.ones(3, 2, device="mps")
    torch.embedding_renorm_(weight, torch.tensor([0, 5, -4], device="mps", dtype=dtype), 1.0, 2.0)
    message = r"embedding_renorm_\(\): index (5|-4) out of range for tensor of size \[3, 2\]"
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert torch.equal(weight.cpu()[1:], torch.ones(2, 2))
    torch.testing.assert_close(weight.cpu()[0], torch.full((2,), 0.5**0.5))


# ---- embedding_renorm_ ---------------------------------------------------------------------------


def _renormed(weight, indices, max_norm, norm_type):
    """The rows named by indices, scaled down to max_norm once, in float64."""
    wide = torch.complex128 if weight.dtype.is_complex else torch.float64
    result = weight.to(wide)
    for i in set((indices % len(weight)).flatten().tolist()):
        norm = torch.linalg.vector_norm(result[i].abs(), norm_type).item()
        if norm > max_norm:
            result[i] *= max_norm / (norm + 1e-7)
    return result


@pytest.mark.sampled(8)
@pytest.mark.parametrize("norm_type", [0.0, 0.5, 1.0, 2.0, 3.0, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize(
    "dtype",
    (*FLOATS, torch.complex64, pytest.param(torch.complex32, marks=pytest.mark.nightly)),
    ids=str,
)
def test_embedding_renorm(dtype, norm_type):
    for columns in (1, 3, 32, 45, 200):
        real = torch.float32 if dtype.is_complex else dtype
        weight = make((20, columns), torch.complex64 if dtype.is_complex else real).to(dtype)
        weight[3] = 0
        indices = torch.tensor([[0, 3, 5, 5], [-1, 19, 5, 7]])
        norms = torch.linalg.vector_norm(weight.to(torch.complex128).abs(), norm_type, dim=1)
        # Far from every norm, so that rounding does not decide whether a row is scaled.
        gaps = norms.sort().values
        max_norm = (gaps[9] + gaps[10]).item() / 2 or 0.5
        expected = _renormed(weight, indices, max_norm, norm_type)
        for index_dtype in (torch.int64, torch.int32):
            for given in (weight, weight.t().contiguous().t(), torch.cat([weight] * 2, 1)):
                actual = to_device(given, "mps")[:, :columns]
                index = to_device(indices.to(index_dtype).t().contiguous().t(), "mps")
                assert torch.embedding_renorm_(actual, index, max_norm, norm_type) is actual
                eps = torch.finfo(dtype).eps
                torch.testing.assert_close(
                    actual.cpu().to(expected.dtype), expected, rtol=4 * max(eps, 2e-7), atol=1e-7
                )


def test_embedding_renorm_of_rows_with_nan_and_infinities():
    nan, inf = math.nan, math.inf
    weight = torch.tensor([[nan, 1], [inf, 1], [-inf, nan], [0, 0], [3, 4]])
    indices = torch.arange(5)
    for norm_type in (1.0, 2.0, 3.0, inf):
        expected = torch.embedding_renorm_(weight.clone(), indices, 1.0, norm_type)
        actual = torch.embedding_renorm_(weight.to("mps"), indices.to("mps"), 1.0, norm_type)
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("norm_type", [2.0, 3.0])
@pytest.mark.parametrize(("value", "max_norm"), [(2e38, 1e20), (1e-30, 1e-35)])
def test_powers_in_a_norm_neither_overflow_nor_vanish(norm_type, value, max_norm):
    weight, indices = torch.tensor([[value, -value]]), torch.tensor([0])
    expected = _renormed(weight, indices, max_norm, norm_type).float()
    actual = torch.embedding_renorm_(weight.to("mps"), indices.to("mps"), max_norm, norm_type)
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=0)


def test_embedding_renorm_of_many_rows():
    weight = torch.randn(3000, 17)
    indices = torch.randint(0, 3000, (20_000,))
    expected = _renormed(weight, indices, 2.0, 2.0)
    actual = torch.embedding_renorm_(weight.to("mps"), indices.to("mps"), 2.0, 2.0)
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=2e-6, atol=0)


def test_embedding_renorm_with_more_indices_than_simdgroups():
    indices = torch.zeros(2**20 + 2, dtype=torch.int32)
    indices[-2:] = torch.tensor([1, -1])
    weight = torch.embedding_renorm_(torch.ones(4, 1, device="mps"), indices.to("mps"), 0.5, 2.0)
    torch.testing.assert_close(weight.cpu().flatten(), torch.tensor([0.5, 0.5, 1.0, 0.5]))


def test_embedding_with_max_norm_trains():
    torch.manual_seed(1)
    reference = torch.nn.Embedding(10, 4, max_norm=0.7)
    layer = torch.nn.Embedding(10, 4, max_norm=0.7)
    layer.load_state_dict(reference.state_dict())
    layer.to("mps")
    index = torch.tensor([[1, 1, 3], [9, 0, 1]])
    for module, x in ((reference, index), (layer, index.to("mps"))):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(layer.weight.cpu(), reference.weight)


def test_embedding_renorm_refuses_what_the_cpu_refuses():
    index = torch.tensor([0], device="mps")
    with pytest.raises(RuntimeError, match="Expected 2-dimensional tensor, but got 3-dimensional"):
        torch.embedding_renorm_(torch.ones(3, 2, 2, device="mps"), index, 1.0, 2.0)
    with pytest.raises(RuntimeError, match="one of the following scalar types: Long, Int"):
        torch.embedding_renorm_(torch.ones(3, 2, device="mps"), index.float(), 1.0, 2.0)
    with pytest.raises(RuntimeError, match="should be either floating point or complex. Got Int"):
        torch.embedding_renorm_(index.int().view(1, 1), index, 1.0, 2.0)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.embedding_renorm_(torch.ones(1, 2, device="mps").expand(3, 2), index, 1.0, 2.0)
    for shape in ((3, 0), (0, 3), (3, 2)):
        weight = torch.ones(shape, device="mps")
        assert torch.embedding_renorm_(weight, index[:0], 1.0, 2.0) is weight
    assert torch.embedding_renorm_(torch.ones(3, 0, device="mps"), index, 1.0, 2.0).shape == (3, 0)


# ---- channel_shuffle and narrow_copy -------------------------------------------------------------


def _images(dtype):
    yield make((2, 6, 5), dtype)
    yield make((2, 6, 4, 5), dtype)
    yield make((2, 6, 4, 5), dtype).to(memory_format=torch.channels_last)
    yield make((2, 6, 2, 4, 5), dtype).to(memory_format=torch.channels_last_3d)
    yield make((6, 2, 5, 4), dtype).permute(1, 0, 3, 2)
    yield make((3, 12, 4, 5), dtype)[1:, ::2]
    yield make((1, 1, 4, 5), dtype).expand(2, 6, 4, 5)
    yield make((2, 6, 2, 2, 3, 2), dtype)
    yield make((0, 6, 3), dtype)
    yield make((2, 0, 3), dtype)
    yield make((2, 6, 0), dtype)


@by_moved_dtype
def test_channel_shuffle_in_every_memory_format(dtype):
    for x in _images(dtype):
        for groups in (1, 2, 3, 6):
            expected = torch.channel_shuffle(x, groups)
            _same(torch.channel_shuffle(to_device(x, "mps"), groups), expected)


def test_channel_shuffle_refuses_what_the_cpu_refuses():
    with pytest.raises(RuntimeError, match=r"expects input with > 2 dims, .* sizes \[2, 3\]"):
        torch.channel_shuffle(torch.zeros(2, 3, device="mps"), 1)
    x = torch.zeros(2, 3, 4, device="mps")
    with pytest.raises(RuntimeError, match="Got 3 channels and 2 groups"):
        torch.channel_shuffle(x, 2)
    with pytest.raises(RuntimeError, match="must be positive. Value of groups:0"):
        torch.channel_shuffle(x, 0)


def test_gradient_of_channel_shuffle():
    for x in _images(torch.float32):
        if x.shape[1] == 0:
            continue  # torch's formula divides the channels by the groups and gets no groups
        case = testing.Case("images", (x,))

        def shuffle(x):
            return torch.channel_shuffle(x, 3)

        testing.check_gradient(shuffle, shuffle, case, "mps", name="channel_shuffle")


@by_moved_dtype
def test_narrow_copy_out(dtype):
    x = make((4, 5), dtype)
    for given in (x, x.t(), x[1:, 1::2]):
        expected = torch.narrow_copy(given, -1, -2, 2)
        on_device = to_device(given, "mps")
        strided = torch.empty(expected.shape[::-1], dtype=dtype, device="mps").t()
        for out in (torch.empty(0, dtype=dtype, device="mps"), strided):
            assert torch.narrow_copy(on_device, -1, -2, 2, out=out) is out
            assert torch.equal(out.cpu(), expected)
    with pytest.warns(UserWarning, match="was resized"):
        torch.narrow_copy(x.to("mps"), 0, 1, 2, out=torch.empty(3, dtype=dtype, device="mps"))


def test_narrow_copy_out_refuses_what_the_cpu_refuses():
    x, out = torch.zeros(3, 4, device="mps"), torch.empty(0, device="mps")
    with pytest.raises(RuntimeError, match=r"cannot be applied to a 0-dim tensor"):
        torch.narrow_copy(x[0, 0], 0, 0, 1, out=out)
    with pytest.raises(RuntimeError, match=r"start \(3\) \+ length \(2\) exceeds dimension size"):
        torch.narrow_copy(x, 1, 3, 2, out=out)
    with pytest.raises(IndexError, match=r"range of \[-4, 4\], but got 5"):
        torch.narrow_copy(x, 1, 5, 2, out=out)
    with pytest.raises(RuntimeError, match="self.dtype = Float and out.dtype = Int"):
        torch.narrow_copy(x, 1, 1, 2, out=out.int())
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.narrow_copy(x, 1, 1, 2, out=out.resize_(1, 1).expand(3, 2))
    with pytest.raises(RuntimeError, match="same device"):
        torch.narrow_copy(x, 1, 1, 2, out=torch.empty(3, 2))


# ---- all of them ---------------------------------------------------------------------------------


def _calls():
    x = torch.randn(4, 6, 3, device="mps")
    index = torch.tensor([[1, -2], [1, 0]], device="mps")
    source = torch.randn(2, 2, device="mps")
    return {
        "take": (lambda x: torch.take(x, index), x),
        "put": (lambda x: x.put(index, source, True), x),
        "channel_shuffle": (lambda x: torch.channel_shuffle(x, 2), x),
        "embedding": (lambda x: F.embedding(index % 4, x.flatten(1) * 1, max_norm=0.5), x),
    }


@pytest.mark.parametrize("name", _calls())
def test_no_host_copy_and_no_stand_in(name):
    call, x = _calls()[name]

    def run():
        given = x.clone().requires_grad_()
        with testing.no_host_copies():
            call(given).sum().backward()

    assert served_by_us(run) == []


def test_narrow_copy_out_makes_no_host_copy():
    x, out = torch.zeros(3, 4, device="mps"), torch.empty(0, device="mps")
    with testing.no_host_copies(), testing.no_standins():
        torch.narrow_copy(x, 1, 1, 2, out=out)


@pytest.mark.parametrize("name", _calls())
def test_forward_derivative(name):
    if name == "embedding":
        pytest.skip("torch has no forward derivative of embedding")
    call, x = _calls()[name]
    tangent = torch.randn_like(x)
    _, actual = torch.func.jvp(call, (x,), (tangent,))
    zero = call(torch.zeros_like(x))
    torch.testing.assert_close(actual, call(tangent) - zero)


@pytest.mark.parametrize("name", [name for name in _calls() if name != "embedding"])
def test_fake_tensors_have_the_results_properties(name):
    call, x = _calls()[name]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = call(mode.from_tensor(x))
    real = call(x)
    assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
    assert fake.stride() == real.stride()


@pytest.mark.parametrize("name", _calls())
def test_compiled(name):
    call, x = _calls()[name]
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), call(x))


@only_ours("aten::put_")
def test_take_and_put_refuse_what_the_cpu_refuses():
    x = torch.zeros(3, 4, device="mps")
    index, none = torch.tensor([0, 1], device="mps"), torch.empty(0, device="mps")
    with pytest.raises(RuntimeError, match="Expected a long tensor for index, but got Int"):
        torch.take(x, index.int())
    with pytest.raises(RuntimeError, match="self.dtype = Float and out.dtype = Half"):
        torch.take(x, index, out=none.half())
    with pytest.raises(IndexError, match=r"take\(\): tried to take from an empty tensor"):
        torch.take(none, index)
    with pytest.raises(RuntimeError, match="same device"):
        torch.take(x, index.cpu())
    with pytest.raises(RuntimeError, match="Expected a long tensor for index, but got Int"):
        x.put_(index.int(), x[0, :2].clone())
    with pytest.raises(RuntimeError, match="self.dtype = Float and source.dtype = Half"):
        x.put_(index, x[0, :2].half())
    with pytest.raises(IndexError, match=r"source.numel\(\) = 3, index.numel\(\) = 2"):
        x.put_(index, x[0, :3].clone())
    with pytest.raises(IndexError, match="Tried to put elements into an empty tensor"):
        none.put_(index, x[0, :2])
    with pytest.raises(RuntimeError, match="same device"):
        x.put_(index, torch.zeros(2))
    with pytest.raises(RuntimeError, match="single memory location"):
        x.put_(index, x[0, :2])
    for dtype in (torch.complex32, torch.uint16, torch.uint32):
        with pytest.raises(NotImplementedError, match="not implemented for"):
            torch.take(x.to(dtype), index)
        with pytest.raises(NotImplementedError, match="not implemented for"):
            x.to(dtype).put_(index, x[0, :2].to(dtype))
