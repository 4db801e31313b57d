"""Ctrl-C ends a kernel that does not end, on every engine, within a second, and so does the time limit; both leave the device
usable."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

ENGINES = ("loop", "group", "fiber")

# Kernels whose threads wait for what never comes: all of them, one of many, or one after others have gone through barriers.
KERNELS = """
#include <metal_stdlib>
using namespace metal;

void wait_for(device atomic_int* flag) {
  while (atomic_load_explicit(flag, memory_order_relaxed) == 0) {}
}
kernel void every(device atomic_int* flag, uint i [[thread_position_in_grid]]) { wait_for(flag); }
kernel void last(device atomic_int* flag, uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
  if (i == n - 1) wait_for(flag);
}
kernel void functions(device atomic_int* flag, uint i [[thread_position_in_grid]]) {
  float x = i;
  while (atomic_load_explicit(flag, memory_order_relaxed) == 0) x = sin(pow(abs(x) + 1, 0.9f));
  if (x == 3.0f) atomic_store_explicit(flag, 1, memory_order_relaxed);
}
kernel void together(
    device atomic_int* flag, uint i [[thread_position_in_grid]], uint lane [[thread_index_in_threadgroup]]) {
  threadgroup int shared[64];
  int seen = 0;
  do {
    shared[lane] = atomic_load_explicit(flag, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    seen = shared[63 - lane];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  } while (seen == 0);
}
kernel void one(device int* out, uint i [[thread_position_in_grid]]) { out[i] = 1; }
"""

CASES = [
    (engine, kernel, grid, threads)
    for engine in ENGINES
    for kernel in ("every", "last", "functions", "together")
    for grid, threads in ((64, 1), (1 << 16, 4))
    if not (engine == "loop" and kernel == "together")  # which the loop engine does not take
    if not (
        engine == "group" and kernel != "together"
    )  # and the group engine those without barriers
]

PROGRAM = f"""
import json, os, signal, sys, threading, time
import metalops, torch
from metalops import _host

signal.signal(signal.SIGINT, signal.default_int_handler)
lib = torch.mps.compile_shader({KERNELS!r})
out = torch.zeros(64, dtype=torch.int32, device="mps")

def pressed(call):
    "How long after Ctrl-C it ends, and by what."
    when = []
    def press():
        when.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(0.3, press).start()
    try:
        call()
        ended = "nothing"
        time.sleep(5)
    except KeyboardInterrupt as error:
        ended = "KeyboardInterrupt"
    return time.monotonic() - when[0], ended

def launch(engine, kernel, grid, threads):
    torch.set_num_threads(threads)
    before = _host.prefer_engine(engine)
    flag = torch.zeros(1, dtype=torch.int32, device="mps")
    try:
        result = pressed(lambda: getattr(lib, kernel)(flag, threads=grid, group_size=64))
    finally:
        _host.prefer_engine(before)
    out.zero_()
    lib.one(out)
    return *result, bool((out == 1).all())

for case in json.loads(sys.argv[1]):
    print(json.dumps(launch(*case)), flush=True)

def in_backward():
    flag = torch.zeros(1, dtype=torch.int32, device="mps")
    class Endless(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2
        @staticmethod
        def backward(ctx, grad):
            lib.every(flag, threads=64, group_size=64)
            return grad
    x = torch.ones(3, device="mps", requires_grad=True)
    def backward():
        try:
            Endless.apply(x).sum().backward()
        except RuntimeError as error:
            assert "'every' was ended by Ctrl-C" in str(error), error
        time.sleep(0.01)
    result = pressed(backward)
    out.zero_()
    lib.one(out)
    return *result, bool((out == 1).all())

print(json.dumps(in_backward()), flush=True)
"""


@pytest.fixture(
    scope="module",
    params=[CASES[::3], pytest.param(CASES, marks=pytest.mark.nightly)],
    ids=["few", "all"],
)
def cases(request):
    """Of each engine and each kernel at least one, or all."""
    return request.param


@pytest.fixture(scope="module")
def ended(once, cases):
    def run():
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), json.dumps(cases)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=150)
            output, errors = done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            output, errors = (error.stdout or b"").decode(), (error.stderr or b"").decode()
        return [json.loads(line) for line in output.splitlines()], errors

    return once(f"endless {len(cases)}", run)


@pytest.mark.full
def test_control_c_ends_what_does_not_end(cases, ended):
    results, errors = ended
    assert len(results) == len(cases) + 1, f"did not end: {errors}"
    for case, (seconds, by, is_usable) in zip([*cases, "backward"], results, strict=True):
        assert by == "KeyboardInterrupt" and is_usable, case
        assert seconds < 5, case  # 0.4 on a machine that has nothing else to do


@pytest.mark.nightly
def test_a_handler_of_the_program_is_asked_first():
    """It may want the launch to end by itself, so only Python's own ends it."""
    program = f"""
    import ctypes, os, signal, threading
    import metalops, torch
    lib = torch.mps.compile_shader({KERNELS!r})
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    flag = torch.zeros(1, dtype=torch.int32, device="mps")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    cell = ctypes.c_int.from_address(flag.data_ptr())
    threading.Timer(1.5, lambda: setattr(cell, "value", 1)).start()
    lib.every(flag, threads=64, group_size=64)
    print("ended", len(seen))
    """
    program = textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "ended 1\n", done.stderr


BARRIER = """
kernel void one_comes(
    device atomic_int* flag, uint i [[thread_position_in_grid]], uint lane [[thread_index_in_threadgroup]]) {
  threadgroup int shared[64];
  if (lane == 40) while (atomic_load_explicit(flag, memory_order_relaxed) == 0) {}
  shared[lane] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (shared[63 - lane] == -1) atomic_store_explicit(flag, 1, memory_order_relaxed);
}
"""
AT_LIMIT = f"""
import json, sys, threading, time
import metalops, torch
from metalops import _host

lib = torch.mps.compile_shader({KERNELS + BARRIER!r})
out = torch.zeros(64, dtype=torch.int32, device="mps")

def launch(engine, kernel, grid, threads):
    torch.set_num_threads(threads)
    before = _host.prefer_engine(engine)
    flag = torch.zeros(1, dtype=torch.int32, device="mps")
    ended = "nothing"
    try:
        getattr(lib, kernel)(flag, threads=grid, group_size=64)
    except RuntimeError as error:
        ended = str(error)
    finally:
        _host.prefer_engine(before)
    out.zero_()
    lib.one(out)
    return ended, bool((out == 1).all())

for case in json.loads(sys.argv[1]):
    print(json.dumps(launch(*case)), flush=True)
"""


def at_limit(cases):
    """For each case the message with which the time limit ended it, and whether the device is usable; and error output."""
    command = [sys.executable, "-c", textwrap.dedent(AT_LIMIT), json.dumps(cases)]
    environment = {**os.environ, "METALOPS_TIME_LIMIT": "0.4"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.nightly
def test_the_time_limit_ends_what_does_not_end(cases):
    results, errors = at_limit(cases)
    assert len(results) == len(cases), errors
    for (engine, kernel, *_), (ended, is_usable) in zip(cases, results, strict=True):
        assert f"kernel '{kernel}' was ended because it made no progress for 0.4 s" in ended, engine
        assert is_usable


@pytest.mark.full
def test_the_time_limit_names_the_barrier_at_which_others_wait():
    results, errors = at_limit([("fiber", "one_comes", 64, 1)])
    assert results, errors
    ended, _ = results[0]
    assert "(threads of simdgroup 0 wait at the barrier at program_source:" in ended


@pytest.mark.nightly
def test_what_makes_progress_has_no_limit():
    """A launch whose pieces of work end may take any time, and so may a single one without a limit."""
    program = f"""
    import ctypes, threading
    import metalops, torch
    lib = torch.mps.compile_shader({KERNELS!r})
    flag = torch.zeros(1, dtype=torch.int32, device="mps")
    cell = ctypes.c_int.from_address(flag.data_ptr())
    threading.Timer(1.0, lambda: setattr(cell, "value", 1)).start()
    lib.every(flag, threads=64, group_size=64)
    print("ended")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "METALOPS_TIME_LIMIT": "0"},
    )
    assert done.stdout == "ended\n", done.stderr
