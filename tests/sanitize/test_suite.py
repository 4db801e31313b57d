"""A sample of our own tests under the sanitizers: no kernel does anything that they report. The
whole suite, on demand: python -m metalops sanitize --mode MODE -m pytest tests.
"""

import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAMPLE = [
    "tests/metal/test_compile_shader.py",
    "tests/metal/test_kernel_function.py",
    "tests/metal/test_error_buffer.py",
    "tests/exec/test_barriers.py",
    "tests/kernel/test_metal_kernel.py",
]


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["address", "thread"])
@pytest.mark.parametrize("path", SAMPLE)
def test_our_own_tests_are_clean(path, mode):
    command = [sys.executable, "-m", "metalops", "sanitize", "--mode", mode, "-m", "pytest"]
    result = subprocess.run(
        # What the runtimes and the C++ library print when the process aborts is not captured there.
        [*command, "-q", "-p", "no:cacheprovider", "--capture=sys", path],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "METALOPS_SANITIZE"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, shortened(result.stdout) + shortened(result.stderr)


def shortened(text, length=4000):
    """The beginning and the end: the cause of an abort, and the frames of the threads after it."""
    if len(text) <= 2 * length:
        return text
    return f"{text[:length]}\n... {len(text) - 2 * length} characters ...\n{text[-length:]}"
