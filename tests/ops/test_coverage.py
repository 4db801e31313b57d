"""metalops.coverage(): which of torch's operators work on mps."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import metalops
import pytest
import torch
from metalops._cli.coverage import _WITHOUT_KERNEL, STATUSES, counts_table
from metalops._torch import versions
from torch.testing._internal import common_mps

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def statuses():
    return {entry.name: entry.status for entry in metalops.coverage()}


def run(*arguments):
    command = [sys.executable, "-m", "metalops", "coverage", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("aten::sin.out", "stock"),
        ("aten::sin", "stock"),
        ("aten::special_airy_ai.out", "ours"),
        ("aten::special_airy_ai", "ours"),
        ("aten::logit_", "ours"),
        ("aten::softmax.int", "composite"),
        ("aten::_spdiags", "ours"),
        ("aten::hspmm", "ours"),  # of sparse tensors alone
        ("aten::_coalesce", "stock"),
        ("aten::embedding_renorm_", "replaced"),  # stock PyTorch runs it on the CPU
        ("aten::median", "replaced"),
        ("aten::_cudnn_rnn", "elsewhere"),
        ("aten::mkldnn_rnn_layer", "cpu only"),
        ("aten::_to_sparse_csr", "no such tensors"),
    ],
)
def test_status_of(name, status, statuses):
    assert statuses[name] == status


def test_what_mps_has_no_kernel_for_raises_and_what_is_ours_runs(statuses):
    x = torch.rand(3, 3, device="mps")
    assert statuses["aten::_foobar"] == "cpu only"
    with pytest.raises(NotImplementedError, match="aten::_foobar"):
        torch.ops.aten._foobar(x)
    assert statuses["aten::special_airy_ai"] == "ours"
    with metalops.debug.standins() as used:
        torch.special.airy_ai(x)
    assert not used


# An operator of a later torch with a kernel for the CPU, and one for its sparse tensors.
LATER_OPERATORS = """
from torch.library import Library

library = Library("aten", "FRAGMENT")
for key in ("CPU", "SparseCPU"):
    library.define(f"later_{key}(Tensor self) -> Tensor")
    library.impl(f"later_{key}", lambda self: self, key)
import metalops
from metalops._cli.coverage import _status

print(*[_status(f"aten::later_{key}", {}, {}) for key in ("CPU", "SparseCPU")])
"""


@pytest.mark.nightly
def test_what_a_later_torch_has_for_the_cpu_alone_is_missing():
    command = [sys.executable, "-c", LATER_OPERATORS]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "missing missing\n"


def test_what_has_no_kernel_for_good_or_is_replaced_has_a_reason_and_nothing_else_has():
    entries = metalops.coverage()
    expected = {entry.name for entry in entries if entry.status == "replaced"}
    for status, reasons in _WITHOUT_KERNEL.items():
        assert {entry.name: entry.reason for entry in entries if entry.status == status} == reasons
        expected |= set(reasons)
    assert {entry.name for entry in entries if entry.reason} == expected


def test_torch_makes_no_compressed_nested_or_quantized_tensors_on_mps():
    crow, col = torch.tensor([0, 1, 2], device="mps"), torch.tensor([0, 1], device="mps")
    values = torch.ones(2, device="mps")
    with pytest.raises(RuntimeError, match="must be one of CPU, CUDA, XPU, Meta or PrivateUse1"):
        torch.sparse_csr_tensor(crow, col, values, check_invariants=True)
    with pytest.raises(NotImplementedError, match="new_compressed_tensor"):
        torch.sparse_csr_tensor(crow, col, values, check_invariants=False)
    with pytest.raises(RuntimeError, match="storage_device.is_cpu"):
        torch.nested.nested_tensor([torch.ones(2)], device="mps", layout=torch.strided)
    with pytest.raises(NotImplementedError, match="quantized tensors"):
        torch.empty(2, dtype=torch.qint8, device="mps")


def test_jagged_nested_tensors_come_of_masks_and_of_padding():
    padded = torch.arange(12.0, device="mps").reshape(2, 6)
    mask = padded % 5 < 3
    chosen = torch.nested.masked_select(padded, mask)
    assert [x.tolist() for x in chosen.unbind()] == [x[y].tolist() for x, y in zip(padded, mask)]
    lengths = torch.tensor([2, 5], device="mps")
    starts = torch.zeros(2, dtype=torch.int64, device="mps")
    nested = torch.nested.narrow(padded, 1, starts, lengths, layout=torch.jagged)
    assert [x.tolist() for x in nested.unbind()] == [[0, 1], [6, 7, 8, 9, 10]]
    assert nested.contiguous().to_padded_tensor(-1.0)[0].tolist() == [0, 1, -1, -1, -1]


# A torch with Metal kernels for two overloads of ours; the second is made of the first.
LATER_TORCH = """
import torch
from torch.library import Library

library = Library("aten", "IMPL")
library.impl("ormqr", lambda self, tau, other, *sides: torch.full_like(other, 7), "MPS")
library.impl("special_airy_ai.out", lambda x, out: out.fill_(7), "MPS")
import metalops

x = torch.ones(3, device="mps")
a, tau = torch.zeros(3, 3, device="mps"), torch.zeros(3, device="mps")
assert torch.ormqr(a, tau, a).tolist() == [[7, 7, 7]] * 3
assert torch.special.airy_ai(x).tolist() == [7, 7, 7]
assert torch.ormqr(a, tau, a, out=torch.empty_like(a)).tolist() == [[0, 0, 0]] * 3
statuses = {entry.name: entry.status for entry in metalops.coverage()}
names = "aten::ormqr", "aten::special_airy_ai.out", "aten::special_airy_ai", "aten::ormqr.out"
print(*[statuses[name] for name in names], sep=", ")
"""


@pytest.mark.full
def test_what_a_later_torch_has_itself_is_left_to_it_without_a_warning():
    command = [sys.executable, "-W", "error", "-c", LATER_TORCH]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.stdout == "left to torch, left to torch, left to torch, ours\n"


def test_nothing_is_missing(statuses):
    assert not [name for name, status in statuses.items() if status == "missing"]


# Stock operators that take no complex tensors on a Mac, nor do they with us.
REFUSED_THERE = {"addr", "float_power", "log_softmax", "conv3d", "renorm"}


@pytest.mark.skipif(
    " UNSUPPORTED_COMPLEX_OPS" not in inspect.getsource(common_mps),
    reason="this torch lists what is supported",
)
def test_complex_operators_that_fail_on_macs_in_torchs_own_tests_are_ours(statuses):
    text = inspect.getsource(common_mps)
    names = re.search(r"UNSUPPORTED_COMPLEX_OPS = {(.*?)}", text, re.DOTALL)[1]
    names = re.sub(r"nn\.functional\.|with_dtype", "", names)
    names = {name.replace(".", "_") for name in re.findall(r'"(\S+)"', names)}
    stock = {
        name for name in names if statuses.get(f"aten::{name}") in (None, "stock", "left to torch")
    }
    assert stock <= REFUSED_THERE


@pytest.mark.nightly
def test_the_command_prints_the_same(statuses):
    assert run("--missing").split() == []
    assert {x["name"]: x["status"] for x in json.loads(run("--json"))} == statuses
    assert all(re.search(rf"^{status} +\d+ ", run(), re.MULTILINE) for status in STATUSES)


@pytest.mark.skipif(sys.platform == "darwin", reason="torch has other CPU kernels there")
@pytest.mark.skipif(
    not versions.is_documented(torch.__version__), reason="pages are about another torch"
)
def test_the_table_of_the_readme_is_up_to_date():
    text = README.read_text(encoding="utf-8")
    assert counts_table(metalops.coverage()) in text
    assert f"overloads with torch {versions.minor(torch.__version__)}," in text
