"""Launches take no more CPU threads than torch was given, wherever they come from."""

import sys

import pytest
import torch

if sys.platform != "darwin":
    from metalops import _host

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a GPU runs the kernels")

# One for each engine, of a grid that is worth several CPU threads.
KERNELS = """
#include <metal_stdlib>
using namespace metal;
kernel void plain(device float* x, uint i [[thread_position_in_grid]]) {
  for (uint k = 0; k < 300; ++k) x[i] = x[i] * 0.5f + 1;
}
kernel void synchronising(device float* x, uint i [[thread_position_in_grid]]) {
  x[i] = simd_sum(x[i]) * 0.5f;
}
"""
SIZE = 64_000


@pytest.fixture(scope="module")
def kernels():
    return torch.mps.compile_shader(KERNELS)


@pytest.fixture
def cpu_threads():
    """cpu_threads(n): torch has n from now on."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["plain", "synchronising"])
def test_a_backward_takes_as_many_as_the_forward(name, kernels, cpu_threads):
    """On a thread of autograd's, which is there before the number changes."""
    taken = {}

    def launch(when):
        getattr(kernels, name)(torch.zeros(SIZE, device="mps"))
        taken[when] = _host.threads_of_last_launch(), torch.get_num_threads()

    class Launching(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            launch("forward")
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            launch("backward")
            return gradient

    x = torch.ones(3, device="mps", requires_grad=True)
    for threads in (2, 4, 1, 3):
        cpu_threads(threads)
        Launching.apply(x).sum().backward()
        assert taken == {"forward": (threads, threads), "backward": (threads, threads)}


def test_stock_operators_of_a_backward_do_too(cpu_threads):
    numbers = []
    x = torch.ones(3, device="mps", requires_grad=True)
    for threads in (2, 1, 3):
        cpu_threads(threads)
        y = x.sin()
        y.grad_fn.register_prehook(lambda _: numbers.append(torch.get_num_threads()))
        y.sum().backward()
    assert numbers == [2, 1, 3]


@pytest.mark.nightly
def test_a_launch_of_one_of_torchs_cpu_threads_takes_that_one(metal_tests, cpu_threads):
    cpu_threads(4)
    x = torch.rand(200_000, device="mps")
    alone = torch.empty_like(x)
    metal_tests.unary(alone, x, "metal_tests", "triple")
    assert _host.threads_of_last_launch() == 4
    outs = [torch.empty_like(x) for _ in range(8)]
    metal_tests.unary_on_cpu_threads(outs, x, "metal_tests", "triple")
    assert _host.threads_of_last_launch() == 1
    assert all(torch.equal(out, alone) for out in outs)
