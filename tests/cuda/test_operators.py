"""Operators of metalops.ops on CUDA tensors, without a GPU: what runs for these launches its kernels on the software device here,
on tensors of the CPU."""

import pytest
import torch
from metalops import ops  # noqa: F401 declares them
from metalops.cuda.library import Library
from metalops.ops._define import pointwise

from .recorded import ARCHITECTURE, needs_nvrtc, needs_software_device
from .test_functor import HostLibrary, launched

pytestmark = needs_software_device

NUMBERS = {"softcap": [2.0], "fatrelu_and_mul": [0.25], "swiglu_clamped": [0.5]}
each_operator = pytest.mark.parametrize("name", list(pointwise.declared))


@pytest.fixture(autouse=True)
def on_the_software_device(monkeypatch):
    monkeypatch.setattr("metalops.cuda.library.Library", HostLibrary)
    launched.clear()


def tensors(name, dtype, *shape):
    declared = pointwise.declared[name]
    return [(torch.randn(*shape) * 3).to(dtype) for _ in range(declared.operands)]


def both(name):
    elsewhere = pointwise.declared[name].elsewhere
    return elsewhere["CUDA"], elsewhere["CPU"]


def assert_close(ours, expected):
    is_low = expected.dtype in (torch.float16, torch.bfloat16)
    assert ours.dtype == expected.dtype and ours.stride() == expected.stride()
    torch.testing.assert_close(ours, expected, rtol=1e-2 if is_low else 1e-5, atol=1e-5)


@pytest.mark.sampled(20)
@pytest.mark.full
@each_operator
def test_results_are_computed_by_one_kernel(name):
    cuda, cpu = both(name)
    for dtype in (torch.float16, torch.int32):
        inputs = tensors(name, dtype, 6, 8)
        launched.clear()
        result = cuda.operator.functional(*inputs, *NUMBERS.get(name, []))
        assert len(launched) == 1
        assert_close(result, cpu.operator.functional(*inputs, *NUMBERS.get(name, [])))


@pytest.mark.sampled(24)
@each_operator
def test_layouts(name):
    cuda, cpu = both(name)
    numbers = NUMBERS.get(name, [])
    for view in (
        lambda x: x.transpose(0, 1),
        lambda x: x[:, ::2],
        lambda x: x[1:, :, 2:4],
        lambda x: x[:1, :1].expand(4, 3, 8),
        lambda x: x[:0],
    ):
        inputs = [view(x) for x in tensors(name, torch.float32, 5, 6, 8)]
        expected = cpu.operator.functional(*inputs, *numbers)
        assert_close(cuda.operator.functional(*inputs, *numbers), expected)
        out = torch.empty(0, dtype=torch.float16)
        cuda.operator.out(*inputs, *numbers, out=out)
        assert_close(out, expected.half().contiguous())


@pytest.mark.sampled(20)
@pytest.mark.full
@pytest.mark.parametrize(
    "name", [n for n, d in pointwise.declared.items() if d.elsewhere["CUDA"].backward]
)
def test_gradients_are_computed_by_one_kernel(name):
    cuda, cpu = both(name)
    for dtype in (torch.float32, torch.bfloat16):
        given = tensors(name, dtype, 6, 8)[: cpu.backward.operands - 1]
        shape = (6, 4) if cpu.operator.halving else (6, 8)
        grad = torch.randn(*shape).to(dtype)
        arguments = [grad, *given, *NUMBERS.get(name, [])]
        launched.clear()
        results, expected = cuda.backward(*arguments), cpu.backward(*arguments)
        assert len(launched) == 1
        for x, y in zip(
            *([r] if torch.is_tensor(r) else r for r in (results, expected)), strict=True
        ):
            assert_close(x, y)


def test_halves_are_read_and_written_where_they_are():
    cuda, _ = both("silu_and_mul")
    x = torch.randn(6, 16)
    cuda.operator.functional(x)
    cuda.backward(torch.randn(6, 8), x)
    assert launched == ["fourrows", "fourrows"]


def test_operands_of_several_dtypes_broadcast():
    cuda, cpu = both("fma")
    inputs = torch.randn(5, 1, 3), torch.randn(4, 1).half(), torch.arange(3)
    assert_close(cuda.operator.functional(*inputs), cpu.operator.functional(*inputs))


def test_wrong_numbers_raise_as_on_the_cpu():
    for elsewhere in both("softcap"):
        with pytest.raises(ValueError, match="finite number other than 0, but got inf"):
            elsewhere.operator.functional(torch.ones(3), float("inf"))


@pytest.mark.sampled(3)
@pytest.mark.full
@needs_nvrtc
@pytest.mark.parametrize("name", ["gelu_new", "swiglu", "fma"])
def test_kernels_compile_for_gpus(name, monkeypatch):
    class Compiled:
        def __init__(self, text):
            self.text = Library(text).compile(ARCHITECTURE).decode()

        def launch(self, kernel, *_):
            launched.append(self.text.count(".entry msl_fast_"))

    monkeypatch.setattr("metalops.cuda.library.Library", Compiled)
    cuda, _ = both(name)
    for dtype in (torch.half, torch.int32):
        cuda.operator.functional(*tensors(name, dtype, 6, 9))
    assert launched == [3, 3]
