"""Fixes: kernels of ours that take the place of stock ones while they are on. csrc/ops/common/fixes.mm, metalops.fixes."""

import json
import os
import subprocess
import sys

import metalops
import pytest
import torch
from metalops import _environment, debug, fixes, testing
from metalops.fixes import FAULTS, FIXES
from torch.testing._internal.common_methods_invocations import op_db

from ..aten import NARROW, kernels_of, reference

# Entries of op_db by the fix that serves them; those of random operators have tests of their own.
OPERATORS = {
    "adaptive_max_pool": ("nn.functional.adaptive_max_pool2d", "nn.functional.adaptive_max_pool1d"),
    "matmul": (
        "addbmm", "addmm", "addmv", "baddbmm", "bmm", "matmul", "mm", "mv", "nn.functional.linear",
    ),
}  # fmt: skip
ENTRIES = [(fix, op) for fix, names in OPERATORS.items() for op in op_db if op.name in names]
# Complex products, whose terms cancel, are in test_gemm.py.
FLOATS = {*NARROW, torch.float32}
INTEGERS = {torch.int64, torch.int32, torch.uint8}


def _dtypes(op):
    """Stock MPS refuses linear for integers."""
    taken = FLOATS if op.name == "nn.functional.linear" else FLOATS | INTEGERS
    return sorted(op.dtypes & taken, key=str)


NAMES = [op.formatted_name for _, op in ENTRIES]
SAMPLES = [
    pytest.param(fix, op, dtype, id=f"{op.formatted_name}-{str(dtype)[6:]}")
    for fix, op in ENTRIES
    for dtype in _dtypes(op)
]


@pytest.fixture(autouse=True)
def as_before():
    """What is on when a test ends is off again."""
    before = {fix.name for fix in fixes.status() if fix.on}
    yield
    metalops.disable_fixes()
    metalops.enable_fixes(before)


def _samples(op, dtype, most=40):
    return list(op.sample_inputs("cpu", dtype))[:most]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("fix", "op", "dtype"), SAMPLES)
def test_samples_in_every_dtype(fix, op, dtype):
    with metalops.enable_fixes(fix), debug.standins() as served:
        for sample in _samples(op, dtype):
            arguments = (sample.input, *sample.args)
            args, kwargs = testing.to_device((arguments, sample.kwargs), "mps")
            actual = op.op(*args, **kwargs)
            case = testing.Case("sample", arguments, sample.kwargs)
            expected = testing.checks.expected_result(reference(op.op), case)
            tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
            for a, e in zip(_listed(actual), _listed(expected), strict=True):
                testing.assert_close(a, e, op.name, operands=tensors)
        ours = {fix.name: fix.operators for fix in fixes.status()}[fix]
    assert not set(served) & set(ours)


def _listed(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.mark.parametrize(("fix", "op"), ENTRIES, ids=NAMES)
def test_gradients_are_ours_too(fix, op):
    def first(*args, **kwargs):
        return _listed(op.op(*args, **kwargs))[0]

    with metalops.enable_fixes(fix), debug.standins() as served:
        for sample in _samples(op, torch.float32, 12):
            kwargs = sample.kwargs

            def function(*args, kwargs=kwargs):
                return first(*args, **testing.to_device(kwargs, args[0].device.type))

            case = testing.Case("sample", (sample.input, *sample.args))
            testing.check_gradient(function, function, case, "mps", name=op.name)
        ours = {fix.name: fix.operators for fix in fixes.status()}[fix]
    assert not set(served) & set(ours)


CALLS = {
    "adaptive_max_pool": lambda: torch.nn.functional.adaptive_max_pool2d(torch.rand(1, 5, 5, device="mps"), 3),
    "convolution": lambda: torch.nn.functional.conv2d(torch.rand(1, 2, 5, 5, device="mps"), torch.rand(3, 2, 3, 3, device="mps")),
    "cumulative": lambda: torch.rand(8, device="mps").cumsum(0),
    "embedding_bag": lambda: torch.nn.functional.embedding_bag(torch.tensor([[1, 2]], device="mps"), torch.rand(3, 4, device="mps")),
    "exponential": lambda: torch.empty(8, device="mps").exponential_(),
    "grid_sample": lambda: torch.nn.functional.grid_sample(torch.rand(1, 2, 5, 5, device="mps"), torch.rand(1, 3, 3, 2, device="mps"), align_corners=True),
    "histogram": lambda: torch.histc(torch.rand(8, device="mps"), 4, 0, 1),
    "indexing": lambda: torch.zeros(8, device="mps").index_add_(0, torch.ones(3, dtype=torch.int64, device="mps"), torch.ones(3, device="mps")),
    "matmul": lambda: torch.rand(3, 4, device="mps") @ torch.rand(4, 5, device="mps"),
    "median": lambda: torch.rand(8, device="mps").median(),
    "multinomial": lambda: torch.rand(8, device="mps").multinomial(1),
    "norm": lambda: torch.nn.functional.batch_norm(torch.rand(4, 3, 5, device="mps"), None, None, training=True),
    "reduction": lambda: torch.rand(8, device="mps").sum(),
    "sort": lambda: torch.rand(8, device="mps").sort(),
    "unique": lambda: torch.rand(8, device="mps").unique(),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, fix in FIXES.items() if fix.kernels])
def test_a_fix_launches_its_kernels_only_while_it_is_on(name, tmp_path):
    call = CALLS[name]
    assert kernels_of(call, tmp_path)[1] == []
    with metalops.enable_fixes(name):
        launched = kernels_of(call, tmp_path)[1]
        assert launched and all(
            x.startswith(FIXES[name].kernels) for x in launched if "windows" not in x
        )
    assert kernels_of(call, tmp_path)[1] == []


def test_status_and_coverage_say_what_is_on():
    assert [fix.name for fix in fixes.status()] == sorted(FIXES) == sorted(metalops._C.fix_names())
    metalops.enable_fixes(["matmul"])
    (matmul,) = (fix for fix in fixes.status() if fix.name == "matmul")
    assert matmul.on and matmul.why == "enable_fixes()" and "aten::baddbmm" in matmul.operators
    assert "baddbmm-beta" in matmul.faults and matmul.kernels == ("gemm",)
    entries = {entry.name: entry for entry in metalops.coverage()}
    assert entries["aten::mm"].status == "replaced" and entries["aten::mm"].reason == "fix matmul"
    metalops.disable_fixes("matmul")
    assert {entry.name: entry.status for entry in metalops.coverage()}["aten::mm"] == "stock"
    assert not any(fix.on or fix.operators or fix.why for fix in fixes.status())


def test_a_block_turns_off_only_what_it_turned_on():
    metalops.enable_fixes("matmul")
    with metalops.enable_fixes():
        assert all(fix.on for fix in fixes.status())
    assert [fix.name for fix in fixes.status() if fix.on] == ["matmul"]


def test_unknown_names_are_rejected():
    for function in (metalops.enable_fixes, metalops.disable_fixes):
        with pytest.raises(
            ValueError, match=f"{function.__name__}: no fix 'mm'; there are 'adaptive"
        ):
            function(["matmul", "mm"])
    assert not any(fix.on for fix in fixes.status())
    with pytest.raises(ValueError, match="metalops has no fix 'mm'"):
        metalops._C.turn_fix("mm", True)


def test_the_table_names_operators_fixes_and_kernels_that_exist():
    names = {entry.name for entry in metalops.coverage()}
    for fault in FAULTS.values():
        composite = {"aten::argsort", "aten::nansum", "aten::trace", "aten::count_nonzero"}
        assert {f"aten::{x}" for x in fault.operators} <= names | composite
        assert fault.fix in ("", *FIXES)
    families = {entry["family"] for entry in metalops._C.kernel_libraries()}
    assert {family for fix in FIXES.values() for family in fix.kernels} <= families


def test_compiled_functions_call_what_is_on(tmp_path):
    compiled = torch.compile(lambda a, b: torch.mm(a, b) + 1, backend="aot_eager")
    a, b = torch.rand(3, 4, device="mps"), torch.rand(4, 5, device="mps")
    expected = compiled(a, b)
    with metalops.enable_fixes("matmul"):
        actual, launched = kernels_of(lambda: compiled(a, b), tmp_path)
    assert any(kernel.startswith("gemm") for kernel in launched)
    torch.testing.assert_close(actual, expected)


# ---- at import -----------------------------------------------------------------------------------

PROGRAM = (
    "import metalops; print([(fix.name, fix.why) for fix in metalops.fixes.status() if fix.on])"
)


def _imported(tmp_path, **environment):
    environment = {**os.environ, "METALOPS_SETTINGS": str(tmp_path / "none.json"), **environment}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full
def test_the_environment_and_the_settings_file_turn_fixes_on(tmp_path):
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"fixes": ["matmul", "lost"]}))
    found = _imported(tmp_path, METALOPS_SETTINGS=str(file))
    assert found.stdout.strip() == str([("matmul", str(file))])
    assert "there is no fix 'lost'" in found.stderr
    found = _imported(
        tmp_path, METALOPS_SETTINGS=str(file), METALOPS_FIXES="exponential, multinomial"
    )
    reasons = [(name, "METALOPS_FIXES") for name in ("exponential", "multinomial")]
    assert found.stdout.strip() == str(reasons)
    assert list(fixes.FIXES) == list(_environment.FIXES)
    found = _imported(tmp_path, METALOPS_FIXES="matmul,lost")
    assert (
        "METALOPS_FIXES is 'matmul,lost', but must be all, none or names of fixes" in found.stderr
    )
    assert found.returncode != 0


@pytest.mark.parametrize("text", ["{", "[]", '{"fixes": "matmul"}'])
def test_a_broken_settings_file_is_a_warning(text, tmp_path, monkeypatch):
    from metalops.fixes import settings

    file = tmp_path / "settings.json"
    file.write_text(text)
    monkeypatch.setenv("METALOPS_SETTINGS", str(file))
    with pytest.warns(UserWarning, match="settings.json"):
        settings.install()
    assert not any(fix.on for fix in fixes.status())
