"""The pytest plugin that is installed with metalops: it skips without mps, runs tests under sanitizers and reports stand-ins."""

import os
import subprocess
import sys

import metalops
import pytest
from metalops.msl.targets.host import sanitizers

pytest_plugins = "pytester"

software = pytest.mark.skipif(not metalops._is_software, reason="about the software device")


@pytest.fixture
def suite(pytester):
    """A function that runs a test file with the plugin, in this process, which has the device already."""
    pytester.makeini("[pytest]\naddopts = --strict-markers\n")

    def run(text, *options):
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess(
            "-p", "metalops_pytest", "-p", "no:xdist", "-p", "no:cacheprovider", *options
        )

    return run


MARKED = """
    import pytest

    @pytest.mark.mps
    def test_on_mps():
        pass

    @pytest.mark.sanitized("thread")
    def test_under_a_sanitizer():
        pass

    def test_elsewhere():
        pass
"""


def test_tests_on_mps_are_skipped_where_there_is_none(suite, monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    monkeypatch.setattr(metalops, "_problem", "it was built for another torch")
    result = suite(MARKED, "-rs", "-m", "not sanitized")
    result.assert_outcomes(passed=1, skipped=1, deselected=1)
    result.stdout.fnmatch_lines(["*no mps device: it was built for another torch"])


def test_tests_on_mps_run_where_there_is_one(suite):
    suite(MARKED, "-m", "mps").assert_outcomes(passed=1, deselected=2)


NOT_ABOUT_METALOPS = """
import sys
import pytest

@pytest.mark.mps
@pytest.mark.sanitized("memory")
def test_it():
    assert not {"torch", "metalops"} & set(sys.modules)
"""


def test_a_run_that_is_not_about_metalops_is_left_alone(tmp_path):
    """The plugin does not even import torch; marks of the same names mean what they mean there."""
    (tmp_path / "test_it.py").write_text(NOT_ABOUT_METALOPS)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "metalops_pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        # Not with what the environment loads by itself.
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "METALOPS_AUTOLOAD": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout


STANDINS = """
    import metalops
    import pytest
    import torch

    x = torch.rand(8, device="mps")

    def test_ours():
        metalops.ops.gelu_new(x)

    def test_a_stand_in():
        x + x

    @pytest.mark.standins("aten::add.Tensor")
    def test_an_overload_that_is_allowed():
        x + x

    @pytest.mark.standins("aten::add")
    def test_an_operator_that_is_allowed():
        x + x

    @pytest.mark.standins
    def test_all_are_allowed():
        (x + x).cos()

    @pytest.mark.standins("aten::cos")
    def test_another_one_is_allowed():
        (x + x).cos()

    def test_that_fails_anyway():
        x + x
        assert not "the test's own"
"""


@software
def test_stand_ins_are_reported_at_the_end(suite):
    result = suite(STANDINS, "--metalops-standins=report", "-k", "not anyway")
    result.assert_outcomes(passed=6, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "*stand-ins: CPU kernels in place of MPS kernels*",
            "aten::add.Tensor * 5 calls, 5 tests: *::test_a_stand_in",
            "aten::cos * 2 calls, 2 tests: *::test_all_are_allowed",
        ]
    )


@software
def test_stand_ins_that_are_not_allowed_fail_the_test(suite):
    result = suite(STANDINS, "--metalops-standins=error")
    result.assert_outcomes(passed=4, failed=3)
    result.stdout.fnmatch_lines(
        [
            "*in place of MPS kernels: aten::add.Tensor (1). *",
            "*in place of MPS kernels: aten::add.Tensor (1). *",
            "*the test's own*",
        ]
    )


@software
def test_a_run_without_stand_ins_says_so(suite):
    result = suite(STANDINS, "--metalops-standins=report", "-k", "ours")
    result.assert_outcomes(passed=1, deselected=6)
    result.stdout.fnmatch_lines(["*stand-ins: *", "none"])


@software
@pytest.mark.nightly
def test_stand_ins_of_other_processes_are_reported(pytester):
    pytester.makepyfile(STANDINS)
    result = pytester.runpytest_subprocess(
        *("-p", "metalops_pytest", "-n", "1", "--metalops-standins=error", "-k", "not anyway")
    )
    result.assert_outcomes(passed=4, failed=2)
    result.stdout.fnmatch_lines(["aten::add.Tensor * 5 calls, 5 tests: *"])


def test_an_unknown_sanitizer_is_refused(suite):
    text = MARKED.replace('"thread"', '"memory"')
    result = suite(text)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*test_under_a_sanitizer: sanitized is 'address' or 'thread', not*"]
    )
    result = suite(MARKED, "--metalops-sanitize=memory")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


SHIFT = """
kernel void shift(device float* out, device const float* in, uint i [[thread_position_in_grid]]) {
  out[i] = in[i + BY];
}
"""
SANITIZED = f"""
    import metalops
    import pytest
    import torch

    source = {SHIFT!r}

    def shift(by):
        x = torch.zeros(8, device="mps")
        torch.mps.compile_shader(source.replace("BY", str(by))).shift(torch.empty_like(x), x)
        torch.mps.synchronize()

    def test_nobody_notices():
        shift(1)

    @pytest.mark.sanitized
    @pytest.mark.parametrize("by", [0, 1])
    def test_it_is_noticed(by):
        shift(by)

    @pytest.mark.sanitized(mode="thread")
    def test_elsewhere_it_is_skipped():
        shift(1)
"""


def _has_sanitizers():
    from metalops.msl.source import compiler

    try:
        sanitizers.preloads("address", compiler.find())
    except RuntimeError:
        return False
    return True


needs_sanitizers = pytest.mark.skipif(
    not metalops._is_software or not _has_sanitizers(),
    reason="sanitizers are those of the software device and its compiler",
)


@needs_sanitizers
@pytest.mark.nightly
def test_a_marked_test_runs_in_a_process_under_the_sanitizer(suite):
    result = suite(SANITIZED, "-k", "not elsewhere")
    result.assert_outcomes(passed=2, failed=1, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "under the sanitizer address, with status 1:",
            "*heap-buffer-overflow in kernel 'shift'*",
        ]
    )


@needs_sanitizers
@pytest.mark.nightly
def test_a_whole_run_is_put_under_the_sanitizer(pytester):
    pytester.makepyfile(SANITIZED)
    result = pytester.runpytest_subprocess(
        *("-p", "metalops_pytest", "-n", "0", "--metalops-sanitize=address", "-rs")
    )
    result.assert_outcomes(passed=1, failed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * under the sanitizer address, the test is for thread"])
