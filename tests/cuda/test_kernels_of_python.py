"""What metal_kernel and TorchMetalKernel launch on GPUs. This needs NVRTC and no GPU: a GPU's tensors are stood for by the CPU's,
see recorded.py."""

import struct

import metalops
import pytest
import torch
from metalops.cuda import compile_shader
from metalops.kernel.metal_kernel import call_arguments
from metalops.kernel.metal_kernel import launch as launching
from metalops.kernel.metal_kernel.call_arguments import check_arguments

from .recorded import needs_nvrtc

pytestmark = needs_nvrtc

CPU = torch.device("cpu")


@pytest.fixture
def on_gpus(recorder, monkeypatch):
    """Tensors of the CPU pass for a GPU's in kernels of Python."""
    monkeypatch.setattr(launching, "shader_compiler", lambda *_: compile_shader)
    monkeypatch.setattr(call_arguments, "DEVICES", ("cpu",))
    return recorder


def run(kernel, inputs, shapes, grid, threadgroup, init_value=None):
    program = kernel._program
    arguments = check_arguments(
        program.definition, shapes, [torch.float32] * len(shapes), grid, threadgroup, None
    )
    launch = launching.prepare(program.definition, program.words, inputs, arguments, CPU)
    return launch(inputs, init_value)


def test_metal_kernel(on_gpus):
    kernel = metalops.metal_kernel(
        "scale", ["x", "a"], ["y"], "uint i = thread_position_in_grid.x; y[i] = a * x[i];"
    )
    x = torch.ones(1000)
    (y,) = run(kernel, [x, 2.0], [(1000,)], (1000, 1, 1), (1024, 1, 1))
    (launch,) = on_gpus.launches
    assert launch.function == "msl_fast_0"
    assert (launch.blocks, launch.block) == ((4, 1, 1), (256, 1, 1))
    assert launch.parameters[1:] == [
        struct.pack("Q", x.data_ptr()),
        struct.pack("f", 2),
        struct.pack("Q", y.data_ptr()),
    ]


def test_metal_kernel_with_strides_and_three_dimensions(on_gpus):
    kernel = metalops.metal_kernel(
        "gather",
        ["x"],
        ["y"],
        "uint i = thread_position_in_grid.x; y[i] = x[elem_to_loc(i, x_shape, x_strides, x_ndim)];",
        ensure_row_contiguous=False,
    )
    x = torch.ones(3, 4).t()
    (y,) = run(kernel, [x], [(4, 3)], (12, 2, 1), (8, 2, 1), init_value=7)
    assert y.unique().tolist() == [7]
    (launch,) = on_gpus.launches
    assert (launch.blocks, launch.block) == ((2, 1, 1), (8, 2, 1))
    (given,) = launch.parameters
    # In the order of the buffers: x, y, shape, strides, ndim.
    assert struct.unpack_from("I", given, 48)[0] == 0b11100
    assert struct.unpack_from("2i", given, 432) == (4, 3)
    assert struct.unpack_from("2q", given, 448) == (1, 4)
    assert struct.unpack_from("i", given, 464) == (2,)
    contiguous = metalops.metal_kernel("copied", ["x"], ["y"], "y[0] = x[1];")
    run(contiguous, [x], [(1,)], (1, 1, 1), (1, 1, 1))
    assert on_gpus.launches[1].parameters[1] != struct.pack("Q", x.data_ptr())


def test_a_threadgroup_that_is_too_large(on_gpus):
    kernel = metalops.metal_kernel("large", ["x"], ["y"], "y[0] = x[0];")
    with pytest.raises(ValueError, match="at most 1024"):
        run(kernel, [torch.ones(9)], [(1,)], (4096, 1, 1), (2048, 1, 1))


def test_other_devices_are_refused():
    kernel = metalops.metal_kernel("refused", ["x"], ["y"], "y[0] = x[0];")
    call = dict(
        output_shapes=[(1,)], output_dtypes=[torch.float32], grid=(1, 1, 1), threadgroup=(1, 1, 1)
    )
    with pytest.raises(RuntimeError, match="must be an mps or cuda tensor, but is on cpu"):
        kernel(inputs=[torch.ones(1)], **call)
    with pytest.raises(ValueError, match="runs on mps and on cuda, not on device='cpu'"):
        kernel(inputs=[1.0], device="cpu", **call)


def test_torch_metal_kernel(recorder, monkeypatch):
    module = "metalops.kernel.torch_metal_kernel.kernel_definition"
    monkeypatch.setattr(f"{module}.shader_compiler", lambda *_: compile_shader)
    monkeypatch.setattr(f"{module}.DEVICES", ("cpu",))

    def reference(x: torch.Tensor, a: float) -> torch.Tensor:
        return a * x

    kernel = metalops.TorchMetalKernel(
        "cuda_recorded",
        ["x", "a"],
        ["y"],
        "y[i] = a * x[i];",
        reference,
        metal_params=[metalops.MetalParameter("i", "uint", "thread_position_in_grid")],
    )
    x = torch.ones(6, 2)[:, 0]
    definition = kernel._definition
    plan = definition._plan([x, 2.0], (6, 1, 1), (4, 1, 1), [[6]], None)
    (y,) = plan([x, 2.0])
    assert y.shape == (6,) and y.device == CPU
    (launch,) = recorder.launches
    assert (launch.blocks, launch.block) == ((2, 1, 1), (4, 1, 1))
