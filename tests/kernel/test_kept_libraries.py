"""Of the libraries that are compiled at run time those that are not used for long go, and their mappings with them."""

import gc
import itertools
import re
import sys
from types import SimpleNamespace

import metalops
import pytest
import torch
from metalops.kernel import compile as kernel_compile
from metalops.kernel.torch_metal_kernel.kernel_definition import Definition

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="Metal keeps its own libraries")

KEPT = 20
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def copies(monkeypatch):
    """Compiling costs nothing: what differs in a template integer alone is a copy of the first that was compiled.

    The list of the texts that were compiled.
    """
    from metalops import msl

    texts, compiled = [], {}

    def compile_shader(text):
        texts.append(text)
        kind = re.sub(r"\b1\d{5}\b", "7", text)  # the template integers of these tests
        if kind not in compiled:
            with open(msl.compile_source(kind), "rb") as stream:
                compiled[kind] = stream.read()
        return torch.mps.load_metallib(compiled[kind])

    monkeypatch.setattr(torch.mps, "compile_shader", compile_shader)
    monkeypatch.setattr(kernel_compile, "_KEPT", KEPT)
    kernel_compile._libraries.clear()
    return texts


def mappings():
    gc.collect()
    with open("/proc/self/maps") as file:
        return len(file.readlines())


def metal_kernel():
    return metalops.metal_kernel(
        name=f"kept_{next(NUMBERS)}",
        input_names=["a"],
        output_names=["out"],
        source="const uint i = thread_position_in_grid.x; out[i] = a[i] + (N > 0 ? 1 : 0);",
    )


def call(kernel, x, n):
    (out,) = kernel(
        inputs=[x],
        template=[("N", n)],
        grid=(x.numel(), 1, 1),
        threadgroup=(4, 1, 1),
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
    )
    return out


@pytest.mark.nightly
def test_a_template_integer_for_each_call_does_not_use_up_the_mappings():
    kernel, x = metal_kernel(), torch.arange(4.0, device="mps")
    for n in range(10**5, 10**5 + 2 * KEPT):
        call(kernel, x, n)
    before = mappings()
    for n in range(10**5 + 2 * KEPT, 10**5 + 1500):
        out = call(kernel, x, n)
    assert out.tolist() == [1, 2, 3, 4]
    assert abs(mappings() - before) < 20
    assert len(kernel_compile._libraries) == KEPT


def test_what_is_used_again_stays(copies):
    kernel, x = metal_kernel(), torch.zeros(4, device="mps")
    text = None
    for n in range(10**5, 10**5 + 3 * KEPT):
        call(kernel, x, n)
        text = text or copies[0]
        kernel_compile.compile_library("again", text)
    assert copies.count(text) == 1


def test_a_library_that_went_is_compiled_again(copies):
    kernel, x = metal_kernel(), torch.zeros(4, device="mps")
    for n in [*range(10**5, 10**5 + 2 * KEPT), 10**5]:
        assert call(kernel, x, n).tolist() == [1] * 4
    assert copies.count(copies[0]) == 2


def test_a_kernel_that_is_held_works_when_its_library_is_no_longer_kept(copies):
    text = "kernel void one(device int* out [[buffer(0)]]) { *out = 1; }"
    held = kernel_compile.compile_library("held", text).one
    kernel, x = metal_kernel(), torch.zeros(4, device="mps")
    for n in range(10**5, 10**5 + 2 * KEPT):
        call(kernel, x, n)
    assert (text, torch.mps.compile_shader) not in kernel_compile._libraries
    out = torch.zeros(1, dtype=torch.int32, device="mps")
    held(out)
    assert out.item() == 1


def test_torch_metal_kernels_let_go_of_their_plans():
    definition = Definition.__new__(Definition)
    plans = [SimpleNamespace(kernel=object()) for _ in range(3)]
    keys = [("mps", "one"), ("mps", "two"), ("cuda", "one")]
    definition._kernels = {key: plan.kernel for key, plan in zip(keys, plans)}
    definition._plans = dict(enumerate(plans))
    definition._forget("one")
    assert definition._kernels == {keys[1]: plans[1].kernel}
    assert definition._plans == {1: plans[1]}


@pytest.mark.full
def test_shaders_that_are_dropped_are_unloaded():
    before = mappings()
    for _ in range(50):
        torch.mps.compile_shader(
            "kernel void one(device int* out [[buffer(0)]]) { *out = 1; }"
        ).one(torch.zeros(1, dtype=torch.int32, device="mps"))
    assert abs(mappings() - before) < 20
