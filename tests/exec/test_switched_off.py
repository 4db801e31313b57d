"""An argument that a function constant switches off, and that a kernel uses all the same, reads as zeros; to write to it is
an error. Neither ends the process."""

import subprocess
import sys

import metalops
import pytest
import torch

# Parameters with nothing bound to them, and uses of them in out[i].
READS = {
    "device pointer": ("device const float* x [[buffer(1), function_constant(on)]]", "x[i]"),
    "constant pointer": ("constant float4* x [[buffer(1), function_constant(on)]]", "x[i].w"),
    "far": ("device const float4* x [[buffer(1), function_constant(on)]]", "x[~0u - i].x"),
    "before": ("device const float4* x [[buffer(1), function_constant(on)]]", "x[-int(i << 24)].x"),
    "reference": ("device const int& x [[buffer(1), function_constant(on)]]", "x"),
    "constant reference": ("constant float& x [[buffer(1), function_constant(on)]]", "x"),
    "address": ("constant float& x [[buffer(1), function_constant(on)]]", "*(&x + i)"),
    "structure": ("constant Pair& x [[buffer(1), function_constant(on)]]", "x.a + x.b[i & 1]"),
    "atomic": (
        "device atomic_int* x [[buffer(1), function_constant(on)]]",
        "atomic_load_explicit(x + i, memory_order_relaxed)",
    ),
    "threadgroup": ("threadgroup float* x [[threadgroup(0), function_constant(on)]]", "x[i * 999]"),
    "texture": (
        "texture2d<float, access::read> x [[texture(0), function_constant(on)]]",
        "x.read(uint2(i, 0)).x + x.read(uint2(0)).x",
    ),
    "sampled texture": (
        "texture2d<float> x [[texture(3), function_constant(on)]], sampler s [[sampler(0), function_constant(on)]]",
        "x.sample(s, float2(i, 0.5f)).x",
    ),
    "cube of integers": (
        "texturecube<int> x [[texture(0), function_constant(on)]]",
        "x.read(uint2(0), i % 6).y",
    ),
    "array of textures": (
        "array<texture1d<uint>, 3> x [[texture(1), function_constant(on)]]",
        "x[i % 3].read(0).z",
    ),
    "tensor": (
        "tensor<device float, dextents<int, 2>> x [[buffer(1), function_constant(on)]]",
        "(x[int(i), 0])",
    ),
}
WRITES = {
    "device pointer": ("device float* x [[buffer(1), function_constant(on)]]", "x[i] = 1"),
    "reference": ("device float& x [[buffer(1), function_constant(on)]]", "x = 1"),
    "atomic": (
        "device atomic_int* x [[buffer(1), function_constant(on)]]",
        "atomic_fetch_add_explicit(x + i, 1, memory_order_relaxed)",
    ),
    "threadgroup": ("threadgroup float* x [[threadgroup(0), function_constant(on)]]", "x[i] = 1"),
    "texture": (
        "texture2d<float, access::write> x [[texture(0), function_constant(on)]]",
        "x.write(float4(1), uint2(0))",
    ),
}
HEAD = """
#include <metal_stdlib>
#include <metal_tensor>
using namespace metal;
constant bool on [[function_constant(0)]];
struct Pair { float a; float b[2]; };
"""
MEETING = {"loop": "", "group": "threadgroup_barrier(mem_flags::mem_none);"}


def launched(kernels, engine, threads=96):
    """Runs kernels k0, k1, ... (parameter, statement); what each wrote or raised."""
    source = HEAD + "".join(
        f"kernel void k{n}(device float* out [[buffer(0)]], {parameter}, uint i [[thread_position_in_grid]])"
        f" {{ {MEETING[engine.removesuffix(' on fibers')]} {statement} }}\n"
        for n, (parameter, statement) in enumerate(kernels)
    )
    library = metalops.compile_shader(source, constants={"on": False})
    before = metalops._host.prefer_engine("fiber" if "fibers" in engine else "auto")
    try:
        found = []
        for n in range(len(kernels)):
            out = torch.ones(threads, device="mps")
            try:
                getattr(library, f"k{n}")(out, threads=threads, group_size=32)
                torch.mps.synchronize()
                found.append(out.tolist())
            except RuntimeError as error:
                found.append(str(error))
        return found
    finally:
        metalops._host.prefer_engine(before)


@pytest.mark.parametrize("engine", ["loop", "group", "group on fibers"])
def test_reads_are_zeros(engine):
    kernels = [(parameter, f"out[i] = {use};") for parameter, use in READS.values()]
    for name, values in zip(READS, launched(kernels, engine), strict=True):
        assert values == [0] * 96, name


@pytest.mark.parametrize("engine", ["loop", "group", "group on fibers"])
def test_writes_are_errors(engine):
    kernels = [(parameter, f"{use}; out[i] = 2;") for parameter, use in WRITES.values()]
    for name, error in zip(WRITES, launched(kernels, engine), strict=True):
        assert (
            "was ended because it writes to an argument that a function constant switches off (x)"
            in error
        ), name


def test_a_reference_may_be_read_ahead():
    """A compiler may read the object of a reference before the condition under which the program does."""
    parameter, _ = WRITES["reference"]
    use = "float sum = 0; for (uint j = 0; j < i; ++j) if (on) sum += x * j; out[i] = sum;"
    assert launched([(parameter, use)], "loop") == [[0] * 96]


def test_writes_on_several_threads_are_errors():
    [error] = launched([(WRITES["device pointer"][0], "x[i] = 1;")], "loop", 1 << 18)
    assert "switches off" in error


PROGRAM = """
import sys, faulthandler
sys.path.insert(0, {folder!r})
import test_switched_off as test
{before}
print(test.launched([(test.READS["device pointer"][0], "out[i] = x[i];")], "loop")[0][:1], flush=True)
{after}
parameter, use = test.WRITES["device pointer"]
[error] = test.launched([(parameter, use + ";")], "loop")
print(error)
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "faulthandler.enable()"),
        ("faulthandler.enable()", "faulthandler.disable()"),
        ("faulthandler.enable()", "faulthandler.disable(); faulthandler.enable()"),
        ("", "import signal; signal.signal(signal.SIGSEGV, signal.SIG_DFL)"),
    ],
)
def test_writes_are_errors_beside_other_handlers(request, before, after):
    """One that comes first passes the signal on without an address; one may have replaced ours."""
    folder = str(request.path.parent)
    program = PROGRAM.format(folder=folder, before=before, after=after)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "switches off (x)" in done.stdout, done.stderr
