"""An extension for torch's stable ABI is built with metalops.build and runs its Metal kernels on mps tensors."""

from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.full

SOURCE = Path(__file__).parent / "stable" / "stable_tests.cpp"
VERSION = "-DTORCH_TARGET_VERSION=0x020d000000000000"


@pytest.fixture(scope="module")
def stable_tests(shared_folder, once):
    from metalops import build

    def make():
        folder = shared_folder / "stable_tests"
        folder.mkdir()
        return build.load(
            "stable_tests",
            [str(SOURCE)],
            extra_cflags=[VERSION, "-DUSE_MPS"],
            build_directory=str(folder),
        )

    torch.ops.load_library(once("stable_tests", make))
    return torch.ops.metalops_stable_tests


def test_its_kernels_run(stable_tests):
    x = torch.randn(7, 100)
    torch.testing.assert_close(stable_tests.row_sums(x.to("mps")).cpu(), x.sum(1))


def test_its_errors_reach_python(stable_tests):
    with pytest.raises(RuntimeError, match="row_sums: expected a contiguous matrix"):
        stable_tests.row_sums(torch.zeros(3, device="mps"))


def test_boxed_calls_with_sizes_reach_the_kernels_of_views(stable_tests):
    """In inference mode nothing unboxes them before."""
    x = torch.arange(6.0, device="mps")
    with torch.inference_mode():
        assert torch.equal(stable_tests.as_rows(x, 3), x.view(2, 3))
