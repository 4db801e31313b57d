"""metalops.coverage(): which of torch's operators work on mps."""

import json
import re
import subprocess
import sys
from pathlib import Path

import metalops
import pytest
import torch
from metalops._coverage import _CPU_ONLY, STATUSES, counts_table

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
        ("aten::linalg_eig", "missing"),
        ("aten::embedding_renorm_", "replaced"),  # stock PyTorch runs it on the CPU
        ("aten::median", "replaced"),
        ("aten::_cudnn_rnn", "elsewhere"),
        ("aten::mkldnn_rnn_layer", "cpu only"),
    ],
)
def test_status_of(name, status, statuses):
    assert statuses[name] == status


def test_what_is_missing_raises_and_what_is_ours_runs(statuses):
    x = torch.rand(3, 3, device="mps")
    assert statuses["aten::linalg_eig"] == "missing"
    with pytest.raises(NotImplementedError, match="aten::linalg_eig"):
        torch.linalg.eig(x)
    assert statuses["aten::heaviside"] == "ours"
    with metalops.debug.standins() as used:
        torch.heaviside(x, x)
    assert not used


def test_what_is_for_the_cpu_only_or_replaced_has_a_reason_and_nothing_else_has():
    entries = metalops.coverage()
    of_the_cpu = {entry.name: entry.reason for entry in entries if entry.status == "cpu only"}
    assert of_the_cpu == _CPU_ONLY
    replaced = {entry.name for entry in entries if entry.status == "replaced"}
    assert {entry.name for entry in entries if entry.reason} == {*of_the_cpu, *replaced}


# A torch with Metal kernels for two overloads of ours; the second is made of the first.
LATER_TORCH = """
import torch
from torch.library import Library

library = Library("aten", "IMPL")
library.impl("take", lambda self, index: self.new_full(index.shape, 7), "MPS")
library.impl("special_airy_ai.out", lambda x, out: out.fill_(7), "MPS")
import metalops

x = torch.ones(3, device="mps")
assert torch.take(x, torch.zeros(2, dtype=torch.long, device="mps")).tolist() == [7, 7]
assert torch.special.airy_ai(x).tolist() == [7, 7, 7]
assert torch.take(x, x.long(), out=torch.empty(3, device="mps")).tolist() == [1, 1, 1]
statuses = {entry.name: entry.status for entry in metalops.coverage()}
names = "aten::take", "aten::special_airy_ai.out", "aten::special_airy_ai", "aten::take.out"
print(*[statuses[name] for name in names], sep=", ")
"""


def test_what_a_later_torch_has_itself_is_left_to_it_without_a_warning():
    command = [sys.executable, "-W", "error", "-c", LATER_TORCH]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.stdout == "left to torch, left to torch, left to torch, ours\n"


# Linear algebra; sparse and nested tensors; eager quantisation, which torch deprecates.
LEFT_OUT_PREFIXES = (
    "linalg_",
    "_linalg_",
    "sspaddmm",
    "_spdiags",
    "_to_sparse_",
    "_validate_compressed_sparse",
    "_nested_",
    "quantize_per_",
    "dequantize",
    "_empty_affine_quantized",
    "_empty_per_channel_affine_quantized",
    "_make_per_tensor_quantized",
    "_make_per_channel_quantized",
)
LEFT_OUT = re.compile(f"aten::({'|'.join(LEFT_OUT_PREFIXES)})")


def test_only_what_is_left_out_is_missing(statuses):
    missing = [name for name, status in statuses.items() if status == "missing"]
    matches = {name: LEFT_OUT.match(name) for name in missing}
    assert [name for name, match in matches.items() if match is None] == []
    unused = set(LEFT_OUT_PREFIXES) - {match.group(1) for match in matches.values()}
    assert unused == set()


@pytest.mark.slow
def test_the_command_prints_the_same(statuses):
    missing = {name for name, status in statuses.items() if status == "missing"}
    assert set(run("--missing").split()) == missing
    assert {x["name"]: x["status"] for x in json.loads(run("--json"))} == statuses
    assert all(re.search(rf"^{status} +\d+ ", run(), re.MULTILINE) for status in STATUSES)


@pytest.mark.skipif(sys.platform == "darwin", reason="torch has other CPU kernels there")
def test_the_table_of_the_readme_is_up_to_date():
    assert counts_table(metalops.coverage()) in README.read_text(encoding="utf-8")
