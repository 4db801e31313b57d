"""TORCH_REPORT_ERROR in a kernel becomes torch.AcceleratorError at the next synchronisation."""

import pytest
import torch

SOURCE = """
#include <c10/metal/error.h>
kernel void check(
    device int* out,
    constant int& limit,
    device c10::metal::ErrorMessages* errors,
    uint i [[thread_position_in_grid]]) {
  if (int(i) >= limit) {
    TORCH_REPORT_ERROR(errors, "index ", int(i), " is out of bounds for size ", limit);
    return;
  }
  out[i] = i;
}
"""


@pytest.fixture(scope="module")
def check():
    return torch.mps.compile_shader(SOURCE).check


def run(check, limit, threads=8):
    out = torch.zeros(threads, dtype=torch.int32, device="mps")
    check(out, limit, error_buf_idx=2, arg_casts={1: "int32"}, group_size=1)
    return out


def test_a_report_is_raised_by_synchronize(check):
    run(check, 7)
    with pytest.raises(torch.AcceleratorError, match="index 7 is out of bounds for size 7"):
        torch.mps.synchronize()


def test_it_is_a_runtime_error_and_raised_once(check):
    run(check, 3)
    with pytest.raises(RuntimeError, match="index [3-7] is out of bounds for size 3"):
        torch.mps.synchronize()
    torch.mps.synchronize()
    assert run(check, 8).tolist() == list(range(8))
    torch.mps.synchronize()


def test_more_reports_than_the_buffer_holds(check):
    run(check, 0, threads=1000)
    with pytest.raises(torch.AcceleratorError, match="is out of bounds for size 0"):
        torch.mps.synchronize()
    torch.mps.synchronize()


def test_the_kernel_goes_on_for_the_other_threads(check):
    out = run(check, 3)
    with pytest.raises(torch.AcceleratorError):
        torch.mps.synchronize()
    assert out.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


def test_torch_synchronize_raises_too(check):
    run(check, 7)
    with pytest.raises(torch.AcceleratorError):
        torch.accelerator.synchronize()
