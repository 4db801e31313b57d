"""What kernels report with TORCH_REPORT_ERROR. This needs NVRTC and no GPU: the reports are written here."""

import ctypes
import struct

import pytest
import torch
from metalops import cuda
from metalops.cuda import compile_shader, errors

from tests.metal.test_error_buffer import SOURCE

from .recorded import needs_nvrtc

pytestmark = needs_nvrtc


@pytest.fixture
def check(recorder):
    """Launches the kernel; returns where it reports to."""
    kernel = compile_shader(SOURCE).check

    def launch():
        kernel(
            torch.zeros(8, dtype=torch.int32), 3, error_buf_idx=2, arg_casts={1: "int32"}, threads=8
        )
        return errors._Messages.from_address(errors.buffer_address(0))

    return launch


def report(buffer, text):
    buffer.msg[buffer.count].message = text.encode()
    buffer.count += 1


def test_the_buffer_is_what_the_kernel_is_given(recorder, check):
    buffer = check()
    (launch,) = recorder.launches
    assert launch.function == "msl_fast_0"
    assert launch.parameters[2:] == [
        struct.pack("i", 3),
        struct.pack("Q", ctypes.addressof(buffer)),
    ]


def test_the_size_of_the_buffer_is_that_of_the_kernel():
    text = compile_shader(
        "#include <c10/metal/error.h>\n"
        "kernel void k(device c10::metal::ErrorMessages* e, device uint* x) { x[0] = sizeof(*e); }"
    )._library.compile("compute_90")
    assert f" {ctypes.sizeof(errors._Messages)};".encode() in text


def test_a_report_is_raised_once_by_the_next_launch_or_by_synchronize(recorder, check):
    buffer = check()
    cuda.synchronize()
    report(buffer, "index 7 is out of bounds for size 3")
    report(buffer, "another")
    with pytest.raises(
        torch.AcceleratorError, match="^index 7 is out of bounds for size 3$"
    ) as info:
        check()
    assert info.value.error_code == 1
    assert len(recorder.launches) == 1
    check()
    report(buffer, "again")
    with pytest.raises(RuntimeError, match="^again$"):
        cuda.synchronize()
    cuda.synchronize()


def test_launches_wait_for_nothing_without_a_report(recorder, check):
    check()
    check()
    assert recorder.synchronized == []


def test_reports_wait_while_a_graph_is_captured(recorder, check):
    buffer = check()
    report(buffer, "late")
    recorder.is_capturing = True
    check()
    recorder.is_capturing = False
    with pytest.raises(torch.AcceleratorError, match="late"):
        check()
