"""MetalKernelFunction and MetalShaderLibrary as a C++ extension uses them."""

import pytest
import torch

from .common import software_device_only

RUN = """
kernel void run(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = i * VALUE;
}
"""


def test_arguments_by_value_and_by_container(metal_tests):
    out = torch.zeros(7, device="mps")
    metal_tests.fill(out, 2.5, [4, 5])
    assert torch.equal(out.cpu(), torch.full((7,), 6.5))


def test_bindings_stay_for_the_next_launch_of_the_block(metal_tests):
    out = torch.zeros(20, device="mps")
    metal_tests.fill_twice(out, 1, 2)
    assert torch.equal(out.cpu(), torch.tensor([2.0] * 10 + [1.0] * 10))


@software_device_only
@pytest.mark.parametrize(
    "mistake, message",
    [
        ("start outside", "startEncoding must be called inside runCommandBlock"),
        ("no start", "setArg must be called after this kernel's startEncoding"),
        ("set outside", "setArg must be called after this kernel's startEncoding"),
        ("nested", "inside another command block"),
        ("unbound", r"'fill': nothing is bound to buffer 2 \('constant long ?\* increments'\)"),
    ],
)
def test_misuse_is_an_error_and_the_kernel_stays_usable(metal_tests, mistake, message):
    out = torch.zeros(7, device="mps")
    with pytest.raises(RuntimeError, match=message):
        metal_tests.fill(out, 2.5, [1], mistake)
    metal_tests.fill(out, 2.5, [1])
    assert (out == 3.5).all()


@software_device_only
def test_bytes_above_metals_limit_are_refused(metal_tests):
    out = torch.zeros(7, device="mps")
    metal_tests.fill(out, 0, [1] * 512)
    with pytest.raises(
        RuntimeError, match="at most 4096 bytes by value, but buffer 2 was given 4104"
    ):
        metal_tests.fill(out, 0, [1] * 513)


def test_no_bytes_are_refused(metal_tests):
    with pytest.raises(RuntimeError, match="size > 0"):
        metal_tests.fill(torch.zeros(7, device="mps"), 0, [])


def test_a_gpu_address_counts_the_storage_offset(metal_tests):
    assert metal_tests.gpu_address_counts_the_offset(torch.zeros(4, 5, device="mps")[2:, 1:])


def test_a_kernel_outlives_its_library(metal_tests):
    out = torch.zeros(5, device="mps")
    metal_tests.from_source(out, RUN.replace("VALUE", "3"))
    assert out.tolist() == [0, 3, 6, 9, 12]


def test_wrong_source_is_a_syntax_error_in_python(metal_tests):
    with pytest.raises(SyntaxError, match="undeclared"):
        metal_tests.from_source(torch.zeros(5, device="mps"), RUN.replace("VALUE", "undeclared"))


def test_wrong_source_is_a_c10_error_in_cpp(metal_tests):
    assert metal_tests.wrong_source_throws_c10_syntax_error("printf(x);")


def test_an_empty_library_has_no_functions(metal_tests):
    assert metal_tests.number_of_functions("// Empty library") == 0


def test_a_source_with_parameters(metal_tests):
    source = RUN.replace("{", "{{").replace("}", "}}").replace("VALUE", "{}")
    assert metal_tests.parametrised_source(source, "5")
