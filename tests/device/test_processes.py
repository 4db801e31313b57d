"""The device in other processes: import order, fork, DataLoader workers, environment variables."""

import ctypes
import os
import signal
import subprocess
import sys
import threading

import metalops
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

pytestmark = pytest.mark.full


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    package_root = os.path.dirname(os.path.dirname(metalops.__file__))
    inherited = {k: v for k, v in os.environ.items() if k != "PYTORCH_ENABLE_MPS_FALLBACK"}
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "beforehand",
    [
        "import metalops, torch",
        "import torch, metalops",
        "import torch; assert not torch.backends.mps.is_available(); import metalops",
        "import torch; assert not torch.accelerator.is_available(); import metalops",
        "import torch; torch.manual_seed(1); import metalops",
        "import torch.nn, torch.mps; torch.mps.is_available(); import metalops",
        "import torch._dynamo, torch._inductor; import metalops",
    ],
)  # fmt: skip
def test_import_order(beforehand):
    after = (
        "assert torch.backends.mps.is_available() and torch.backends.mps.is_built()\n"
        "assert torch.accelerator.current_accelerator().type == 'mps'\n"
        "torch.manual_seed(0)\n"
        "x = torch.randn(3, device='mps', requires_grad=True)\n"
        "x.sin().sum().backward()\n"
        "print('fine', torch.equal(x.grad, x.cos()))\n"
    )
    result = run(f"{beforehand}\n{after}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "fine True"
    # A CUDA build of torch says that without a GPU, when it finds the CUDA toolkit.
    lines = [x for x in result.stderr.splitlines() if "No CUDA runtime is found" not in x]
    assert lines == []


@pytest.mark.nightly
def test_importing_twice_changes_nothing():
    result = run(
        "import torch, metalops, importlib\n"
        "from metalops._torch import software_device\n"
        "before = torch.UntypedStorage.__new__\n"
        "software_device.bring_up()\n"
        "assert torch.UntypedStorage.__new__ is before\n"
    )
    assert result.returncode == 0, result.stderr


CALL_WHAT_STOCK_LACKS = """
import torch, metalops
x = torch.zeros(3, device='mps')
y = torch.ops.aten._test_optional_floatlist(x, [1.0, 1.0, 1.0])
assert y.device.type == 'mps', y.device
print(y.sum().item())
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("environment", [{}, {"PYTORCH_ENABLE_MPS_FALLBACK": "0"}], ids=str)
def test_operators_that_stock_lacks_are_refused(environment):
    refused = run(CALL_WHAT_STOCK_LACKS, **environment)
    assert "NotImplementedError: The operator 'aten::_test_optional_floatlist'" in refused.stderr


def test_fallback_serves_operators_that_stock_lacks():
    served = run(CALL_WHAT_STOCK_LACKS, PYTORCH_ENABLE_MPS_FALLBACK="1")
    assert served.returncode == 0, served.stderr
    assert served.stdout.split() == ["3.0"]
    warning = "The operator 'aten::_test_optional_floatlist' is not currently supported on the MPS backend and will fall"
    assert warning in served.stderr


def test_the_fallback_to_the_cpu_makes_no_tensors_that_mps_has_not():
    code = (
        "import torch, metalops, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "x = torch.ones(2, 2, device='mps')\n"
        "for call in (x.to_sparse_csr, lambda: torch.quantize_per_tensor(x, 1.0, 0, torch.quint8)):\n"
        "    try: call()\n"
        "    except NotImplementedError as error: print(str(error).split('returns one that is ')[1])\n"
    )
    served = run(code, PYTORCH_ENABLE_MPS_FALLBACK="1")
    assert served.stdout.splitlines() == ["of layout SparseCsr.", "quantized."], served.stderr


@pytest.mark.nightly
def test_high_watermark_of_the_environment():
    code = (
        "import torch, metalops\n"
        "try: torch.empty(1 << 30, dtype=torch.uint8, device='mps')\n"
        "except torch.OutOfMemoryError as e: print('refused', 'max allowed' in str(e))\n"
    )
    ratio = str((1 << 29) / torch.mps.recommended_max_memory())
    assert run(code, PYTORCH_MPS_HIGH_WATERMARK_RATIO=ratio).stdout.strip() == "refused True"
    assert run(code, PYTORCH_MPS_HIGH_WATERMARK_RATIO="0.0").stdout.strip() == ""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mib, kept", [(130, "128"), (512, "256"), (0, "256"), (32, "0")])
def test_low_watermark_of_the_environment_bounds_kept_memory(mib, kept):
    """0 is no bound."""
    code = (
        "import torch, metalops\n"
        "del [torch.empty(1 << 26, dtype=torch.uint8, device='mps') for _ in range(4)][0]\n"
        "print(torch.mps.driver_allocated_memory() - torch.mps.current_allocated_memory() >> 20)\n"
    )
    ratio = str(mib * 2**20 / torch.mps.recommended_max_memory())
    assert run(code, PYTORCH_MPS_LOW_WATERMARK_RATIO=ratio).stdout.strip() == kept


@pytest.mark.sampled(12)
@pytest.mark.parametrize("ratio", ["5", "-1", "abc", "1,7", "", "nan"])
@pytest.mark.parametrize("which", ["high", "low"])
def test_an_invalid_watermark_raises_at_the_first_allocation(which, ratio):
    variable = f"PYTORCH_MPS_{which.upper()}_WATERMARK_RATIO"
    code = (
        "import torch, metalops\n"
        "for _ in range(2):\n"
        "    try: torch.ones(2, device='mps')\n"
        "    except RuntimeError as e: print(e)\n"
    )
    result = run(code, **{variable: ratio})
    message = (
        f"invalid {which} watermark ratio '{ratio}' in {variable}: expected a number from 0.0 to 4"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [message, message]
    assert result.stderr == ""


@pytest.mark.nightly
def test_a_memory_fraction_stands_in_for_an_invalid_high_watermark():
    code = (
        "import torch, metalops\n"
        "torch.mps.set_per_process_memory_fraction(1.0)\n"
        "print(torch.ones(2, device='mps').tolist())\n"
    )
    result = run(code, PYTORCH_MPS_HIGH_WATERMARK_RATIO="abc")
    assert result.stdout.strip() == "[1.0, 1.0]", result.stderr


def test_an_invalid_fallback_switch_raises_where_it_is_read():
    code = (
        "import torch, metalops\n"
        "try: torch.ops.aten._test_optional_floatlist(torch.ones(1, device='mps'), [1.0])\n"
        "except RuntimeError as e: print(str(e).splitlines()[0])\n"
    )
    result = run(code, PYTORCH_ENABLE_MPS_FALLBACK="yes")
    message = "PYTORCH_ENABLE_MPS_FALLBACK: expected an integer, but got 'yes'"
    assert result.stdout.strip() == message


AUTOLOAD = (
    "import sys, torch, metalops_autoload\n"
    "metalops_autoload.bring_up()\n"
    "print('metalops' in sys.modules, torch.backends.mps.is_available())\n"
)


def test_autoload_entry_point():
    assert run(AUTOLOAD, METALOPS_AUTOLOAD="1").stdout.strip() == "True True"


def test_autoload_is_off_by_default():
    assert run(AUTOLOAD).stdout.strip() == "False False"


class OnTheDevice(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return (torch.ones(2, device="mps") * index).sin().cpu()


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.nightly
def test_data_loader_workers_use_the_device(context):
    loader = DataLoader(OnTheDevice(), 2, num_workers=2, multiprocessing_context=context)
    batches = torch.cat(list(loader))
    expected = torch.stack([torch.full((2,), float(i)).sin() for i in range(4)])
    torch.testing.assert_close(batches, expected)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_data_loader_feeds_the_device():
    data = TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, 4, num_workers=1, pin_memory=True)
    assert [batch[0].to("mps").sum().item() for batch in loader] == [6, 22]


@pytest.mark.parametrize("elements", [4, 1 << 20], ids=["small", "large"])
def test_forked_child_runs_kernels(elements):
    """Also kernels of ours, after the parent has run one on several threads."""
    x = torch.full((elements,), 0.5, device="mps")
    expected = torch.special.airy_ai(x)[-1].item()
    result = run_in_child(lambda: str(torch.special.airy_ai(x)[-1].item()))
    assert float(result) == expected


def test_forked_child_runs_kernels_although_another_thread_is_running_one():
    source = """#include <metal_stdlib>
    using namespace metal;
    kernel void wait(device atomic_int* x) {
      atomic_store_explicit(x + 1, 1, memory_order_relaxed);
      while (atomic_load_explicit(x, memory_order_relaxed) == 0) {}
    }"""
    library = torch.mps.compile_shader(source)
    x = torch.zeros(2, dtype=torch.int32, device="mps")
    shared = (ctypes.c_int32 * 2).from_address(x.data_ptr())
    y = torch.full((4,), 0.5, device="mps")
    thread = threading.Thread(target=lambda: library.wait(x, threads=1))
    thread.start()
    try:
        while not shared[1]:
            assert thread.is_alive()
        result = run_in_child(lambda: str(torch.special.airy_ai(y)[-1].item()))
    finally:
        shared[0] = 1
        thread.join()
    assert float(result) == torch.special.airy_ai(y)[-1].item()


def run_in_child(function) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(30)  # a child that hangs dies
        os.write(writing, function().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return answer


@pytest.mark.nightly
def test_process_ends_well_right_after_backward():
    """The device's autograd thread still holds Python tensors when backward() returns."""
    code = (
        "import torch, metalops\n"
        "x = torch.randn(3, device='mps', requires_grad=True)\n"
        "x.sin().sum().backward()\n"
    )
    for _ in range(3):
        result = run(code)
        assert (result.returncode, result.stderr) == (0, "")


def test_forked_child_computes():
    x = torch.arange(4.0, device="mps")
    assert run_in_child(lambda: str((x * 2).sum().item())) == "12.0"
    assert x.sum().item() == 6
