"""tests.select finds the tests that a change concerns."""

from pathlib import Path

import pytest

from ..select import PLACES, ROOT, select

pytestmark = pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the sources are not here")


@pytest.mark.parametrize(
    "file, tests",
    [
        ("kernels/reduction/pdist.metal", ["tests/ops/reduction/test_pdist.py"]),
        ("python/metalops/ops/gated.py", ["tests/ops/pointwise/test_gated.py"]),
        ("python/metalops/ops/int8_linear.py", ["tests/ops/quantized/test_int8_linear.py"]),
        ("csrc/ops/linalg/ldl.mm", ["tests/ops/linalg/test_ldl.py"]),
    ],
)
def test_a_file_of_a_family_selects_its_tests(file, tests):
    assert select([file]) == [*tests, "tests/ops/test_families.py"]


def test_a_header_selects_the_families_that_include_it():
    selected = select(["kernels/linalg/common/complex.h"])
    assert {"tests/ops/linalg/test_lu.py", "tests/ops/linalg/test_eig.py"} <= set(selected)
    assert "tests/ops/pointwise/test_gated.py" not in selected


def test_a_family_has_the_tests_that_begin_with_its_name_and_those_of_its_kernels_on_cuda():
    selected = set(select(["kernels/attention/attention.metal"]))
    assert "tests/ops/attention/test_attention_extremes.py" in selected
    assert "tests/cuda/test_attention.py" in selected
    assert "tests/ops/attention/test_attention_decode.py" not in selected


def test_other_files_select_the_tests_of_their_place():
    assert select(["csrc/host/exec/launch.cpp"]) == ["tests/exec", "tests/metal"]
    assert select(["python/metalops/msl/check/atomics.py"]) == ["tests/check"]
    assert select(["tests/exec/engines.py", "tests/exec/test_math.py"]) == ["tests/exec"]
    assert select(["tests/metal/extension/metal_tests.metal"]) == ["tests/metal"]
    assert select(["LICENSE"]) == []


def test_places_and_their_tests_are_there():
    for place, tests in PLACES.items():
        path = ROOT / place
        assert path.exists() or list(path.parent.glob(f"{path.name}*")), place
        for test in tests:
            assert (ROOT / test).exists(), test


def test_every_test_file_selects_itself():
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    for file in files:
        assert select([file]) == [Path(file).as_posix()]
