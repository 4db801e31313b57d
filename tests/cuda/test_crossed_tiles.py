"""Operands that lie across each other, by the kernels of <metalops/crossed_tiles.h>, which the software device runs here on
tensors of the CPU."""

import pytest
import torch
from metalops.cuda.library import Library
from metalops.kernel.functor import crossed_tiles, metal_text
from metalops.ops._define import pointwise

from .layouts import operands, strides
from .recorded import ARCHITECTURE, needs_nvrtc, needs_software_device
from .test_functor import HostLibrary, functor, launched

pytestmark = needs_software_device

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8]


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch):
    monkeypatch.setattr("metalops.cuda.library.Library", HostLibrary)
    monkeypatch.setattr(crossed_tiles, "_FEWEST_THREADS", 0)
    launched.clear()


@pytest.fixture(scope="module")
def product():
    return functor(
        "x * y + z",
        inputs=("x", "y", "z"),
        grad=("grad * y", "grad * x", "grad"),
        integers="stay",
    )


def whole(*shape, dtype=torch.float32):
    return torch.randint(-4, 5, shape).to(dtype)


def pairs(dtype):
    def new(*shape):
        return whole(*shape, dtype=dtype)

    yield "a transposed matrix", new(72, 136).t(), new(136, 72)
    yield "the other one transposed", new(136, 72), new(72, 136).t()
    yield "sizes that are not all in fours", new(94, 93).t(), new(93, 94)
    yield "misaligned", new(68, 73)[:, 1:].t(), new(73, 68)[1:]
    yield "misaligned rows", new(64, 64).t(), new(64, 65)[:, 1:]
    yield "with gaps", new(64, 132)[:, ::2].t(), new(66, 96)[:, :64]
    yield "a small matrix", new(32, 31).t(), new(31, 32)
    yield "many small ones", new(9, 24, 30).transpose(1, 2), new(9, 30, 24)
    yield "channels last", new(3, 64, 9, 7).to(memory_format=torch.channels_last), new(3, 64, 9, 7)
    yield "four dimensions", new(4, 40, 3, 64).permute(3, 2, 0, 1), new(64, 3, 4, 40)
    yield "a column", new(80, 64), new(80, 1)
    yield "a transposed one and a row", new(64, 80).t(), new(64)


NAMES = [name for name, _, _ in pairs(torch.float32)]


@pytest.mark.full
@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operands_that_lie_across_each_other(product, name, dtype):
    x, y = next((x, y) for found, x, y in pairs(dtype) if found == name)
    expected = x * y + x
    result = product(x, y, x)
    assert torch.equal(result, expected) and strides(result) == strides(expected)
    assert launched == ["crossed"]


@pytest.mark.sampled(20)
@pytest.mark.full
@pytest.mark.parametrize("seed", range(0, 100, 5))
def test_operands_at_random(product, seed):
    for one in range(seed, seed + 5):
        x, y, z = operands(one, DTYPES[one % len(DTYPES)], "cpu", 3, most=2**15)
        assert torch.equal(product(x, y, z), x * y + z), one
        assert strides(product(x, y, y)) == strides(x * y), one


@pytest.mark.full
def test_gradients(product):
    x, y, z = whole(64, 72).t().requires_grad_(), whole(72, 64).requires_grad_(), whole(72, 64)
    grad = whole(72, 64)
    gradients = torch.autograd.grad(product(x, y, z), (x, y), grad)
    assert torch.equal(gradients[0], grad * y) and torch.equal(gradients[1], grad * x)
    assert launched == ["crossed", "crossed"]


@pytest.mark.nightly
def test_in_place_and_results_of_other_dtypes(product):
    x, y = whole(64, 64), whole(64, 64)
    expected = x * x.t() + y
    product.inplace(x, x.t(), y)
    assert torch.equal(x, expected)
    positive = functor("x > y", inputs=("x", "y"), result="bool")
    assert torch.equal(positive(x, y.t()), x > y.t())
    both = functor(("x + y", "x - y"), inputs=("x", "y"), complex=True, integers="stay")
    for dtype in (torch.complex64, torch.int32):
        x, y = whole(40, 64, dtype=dtype).t(), whole(64, 40, dtype=dtype)
        total, difference = both(x, y)
        assert torch.equal(total, x + y) and torch.equal(difference, x - y)
    assert launched == ["crossed"] * 4


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["swiglu", "fma", "silu_and_mul"])
def test_operators_and_their_gradients(name):
    elsewhere = pointwise.declared[name].elsewhere
    cuda, cpu = elsewhere["CUDA"], elsewhere["CPU"]
    inputs = [torch.randn(128, 64), torch.randn(64, 128).t(), torch.randn(128, 64)]
    inputs = inputs[: cuda.operator.operands]
    shape = (128, 32) if cuda.operator.halving else (128, 64)
    given = [torch.randn(*shape[::-1]).t(), *inputs[: cuda.backward.operands - 1]]
    torch.testing.assert_close(cuda.operator.functional(*inputs), cpu.operator.functional(*inputs))
    torch.testing.assert_close(cuda.backward(*given), cpu.backward(*given))
    assert launched[-1] == "crossed"


def dimensions(*rows):
    return [(size, strides) for size, *strides in rows]


def test_what_kernels_are_for():
    def kernel(dimensions, size=4, is_aligned=True):
        found = crossed_tiles.tiles(dimensions, 1, size, is_aligned)
        return found and found.kernel

    across = dimensions((256, 1, 256, 1), (256, 256, 1, 256))
    crosses = (False, True, False)
    assert kernel(across) == (64, 1, crosses, (4, 4, 4))
    assert kernel(across, is_aligned=False) == (64, 1, crosses, (1, 1, 1))
    assert kernel(across, size=8) == (32, 1, crosses, (2, 2, 2))
    odd = dimensions((256, 1, 257, 1), (256, 256, 1, 256))
    assert kernel(odd) == (64, 1, crosses, (4, 1, 4))
    # A result that is written one by one: what does not cross is shared as it is.
    odd = dimensions((256, 1, 256, 1), (256, 257, 1, 256))
    assert kernel(odd) == (64, 1, crosses, (1, 4, 1))
    small = dimensions((24, 1, 24), (24, 24, 1), (1000, 576, 576))
    assert kernel(small).side == 32
    assert kernel(dimensions((256, 1, 1), (256, 256, 300))) is None
    assert kernel(dimensions((3, 1, 999), (999, 3, 1), (99, 2997, 2997))) is None
    # The rows are where most operands lie; the others are read as they are.
    three = dimensions((64, 1, 99, 99, 4096), (64, 64, 4096, 4096, 1), (64, 4096, 1, 1, 64))
    assert kernel(three).crosses == (False, True, True, False)


def test_few_elements_and_far_ones_are_for_other_kernels(monkeypatch):
    monkeypatch.setattr(crossed_tiles, "_FEWEST_THREADS", 2**14)
    sizes = {n: dimensions((n, 1, n), (n, n, 1)) for n in (511, 448)}
    assert crossed_tiles.tiles(sizes[511], 1, 4, True) and not crossed_tiles.tiles(
        sizes[448], 1, 4, True
    )
    for stride, found in ((2**22, True), (2**24, False)):
        far = dimensions((512, 1, stride), (512, 512, 1))
        assert bool(crossed_tiles.tiles(far, 1, 4, True)) == found


@pytest.mark.nightly
@needs_nvrtc
def test_kernels_compile_for_gpus(product):
    for element, side, pack in (("float", 64, 4), ("half", 32, 4), ("long", 32, 2)):
        for packs in ((pack,) * 4, (1,) * 4):
            kernel = crossed_tiles.Kernel(side, 1, (False, True, True, False), packs)
            text = metal_text.source(product.definition, element, for_mps=False, crossed=kernel)
            assert ".entry msl_fast_0" in Library(text).compile(ARCHITECTURE).decode()
