"""Forked children run operators whatever other threads of their parent were doing."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import metalops
import pytest
import torch

pytestmark = pytest.mark.skipif(
    sys.platform == "darwin", reason="Metal does not work in forked children"
)

SOURCE = """#include <metal_stdlib>
using namespace metal;
kernel void twice(device float* x, uint i [[thread_position_in_grid]]) { x[i] *= 2; }
kernel void sums(device float* x, uint i [[thread_position_in_grid]]) { x[i] = simd_sum(x[i]); }
"""
FORKS = 20


def kernels():
    """A library, which is compiled once and loaded often; the cache on disk is what makes it fast."""
    return torch.mps.compile_shader(SOURCE)


def launches():
    library, x = kernels(), torch.ones(40_000, device="mps")
    while True:
        library.twice(x)
        library.sums(x)
        yield


def operators():
    x = torch.rand(200, 300, device="mps")
    while True:
        torch.special.airy_ai(x[:, ::2])
        metalops.ops.silu_and_mul(x)
        yield


def compiling():
    while True:
        kernels()
        yield


def lookups():
    library = kernels()
    while True:
        assert library.twice is not library.sums
        yield


def recorded_stand_ins():
    x = torch.rand(4, device="mps")
    while True:
        with metalops.debug.standins():
            x.sin()
        yield


def events():
    event = torch.mps.Event(enable_timing=True)
    while True:
        event.record()
        event.query()
        torch.mps.Event().record()
        yield


def pinned_memory():
    x = torch.zeros(4)
    while True:
        x.pin_memory().is_pinned()
        yield


def kept_memory():
    while True:
        torch.empty(64 << 20, dtype=torch.uint8, device="mps")
        torch.mps.empty_cache()
        yield


def random_numbers():
    x = torch.zeros(1000, device="mps")
    while True:
        x.normal_()
        torch.rand(1000, device="mps")
        yield


def kernels_from_python():
    kernel = metalops.metal_kernel(
        name="forked",
        input_names=["a"],
        output_names=["out"],
        source="out[thread_position_in_grid.x] = a[0];",
    )
    x = torch.ones(4, device="mps")
    while True:
        for n in (1, 2):
            kernel(
                inputs=[x],
                grid=(n, 1, 1),
                threadgroup=(n, 1, 1),
                output_shapes=[(n,)],
                output_dtypes=[torch.float32],
            )
        yield


WORK = [
    launches,
    operators,
    compiling,
    lookups,
    recorded_stand_ins,
    events,
    pinned_memory,
    kept_memory,
    random_numbers,
    kernels_from_python,
]


def fork(function):
    """The status of a forked child that runs a function; 14 (SIGALRM) if it hangs."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        try:
            function()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.sampled(12)
@pytest.mark.full
@pytest.mark.parametrize("work", WORK, ids=[work.__name__ for work in WORK])
def test_children_run_operators_while_another_thread_works(work):
    next(work())  # what is done once is done
    stop = threading.Event()
    failed = []

    def go_on():
        try:
            for _ in work():
                if stop.is_set():
                    return
        except BaseException as error:
            failed.append(error)

    def in_child():
        for _, one in zip(range(2), work()):
            assert one is None
        x = torch.full((4,), 0.5, device="mps")
        assert (x + x).tolist() == [1] * 4

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        statuses = [fork(in_child) for _ in range(FORKS)]
    finally:
        stop.set()
        thread.join()
    assert statuses == [0] * FORKS and failed == []


def test_children_run_kernels_of_which_their_parent_has_run_one_on_several_threads():
    from metalops import _host

    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        x = torch.linspace(-2, 2, 1 << 18, device="mps")
        expected = torch.special.airy_ai(x)
        assert _host.threads_of_last_launch() == 4

        def in_child():
            assert torch.equal(torch.special.airy_ai(x), expected)
            assert _host.threads_of_last_launch() == 1
            assert x.sin().shape == x.shape  # torch's own kernel, which would use several

        assert fork(in_child) == 0
    finally:
        torch.set_num_threads(before)


@pytest.mark.full
def test_the_import_leaves_the_device_to_children():
    """Where a parent has used a device before it forks, torch.manual_seed leaves out that device in its children."""
    program = """
import os
import metalops
import torch
child = os.fork()
if child == 0:
    torch.manual_seed(0)
    first = torch.randn(3, device="mps")
    torch.manual_seed(0)
    os._exit(0 if torch.equal(first, torch.randn(3, device="mps")) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


needs_sources = pytest.mark.skipif(
    not (Path(__file__).parents[2] / "csrc").exists(), reason="needs the sources of the device"
)


@pytest.mark.full
@needs_sources
def test_a_process_forks_while_other_threads_make_and_destroy_locks(tmp_path):
    from metalops.msl.source.compiler import find

    here, host = Path(__file__).parent, Path(__file__).parents[2] / "csrc" / "host"
    library = str(tmp_path / "locks_test.so")
    includes = [f"-I{host}", f"-I{sysconfig.get_paths()['include']}"]
    sources = [str(here / "locks_test.cpp"), str(host / "locks.cpp")]
    built = find().run(
        ["-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", *includes, *sources, "-o", library]
    )
    assert built.returncode == 0, built.stderr.decode()
    program = f"import ctypes; print(ctypes.CDLL({library!r}).forks_that_fail(20))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "0\n", "")


@needs_sources
def test_every_lock_of_the_device_is_one_that_fork_knows():
    plain = re.compile(
        r"std::(recursive_|shared_|timed_)*mutex\b|std::once_flag|std::condition_variable"
        r"|pthread_(mutex|once|cond|rwlock)_t|std::call_once"
    )
    folder = Path(__file__).parents[2] / "csrc" / "host"
    # Extensions in Objective-C have threads of their own (dispatch queues), which no forked child has, here as on a Mac.
    of_extensions = folder / "objc"
    found = {
        f"{path.name}: {line.strip()}"
        for path in folder.rglob("*")
        if path.suffix in (".h", ".cpp") and path.stem != "locks"
        if of_extensions not in path.parents
        for line in path.read_text().splitlines()
        if plain.search(line) and ".mutex()" not in line  # a generator's, which is torch's
    }
    assert found == set()


def test_every_lock_of_the_package_is_one_that_fork_knows():
    package = Path(metalops.__file__).parent
    found = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.name != "_locks.py"
        and re.search(r"threading\.(R?Lock|Condition|Semaphore)\(", path.read_text())
    ]
    assert found == []
