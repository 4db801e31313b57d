"""What a launch may do besides computing: counted, as times depend on the machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import metalops
import pytest
from metalops.build import objective_c
from metalops.msl.source.compiler import find

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not metalops._is_software, reason="counts calls of the C library"),
]

COUNTERS = """
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
extern "C" {
long locks = 0, blocks = 0;
int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static const auto lock = (int (*)(pthread_mutex_t*))dlsym(RTLD_NEXT, "pthread_mutex_lock");
  ++locks;
  return lock(mutex);
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) {
  static const auto lock = (int (*)(pthread_mutex_t*))dlsym(RTLD_NEXT, "pthread_mutex_trylock");
  ++locks;
  return lock(mutex);
}
void* malloc(size_t bytes) {
  static const auto allocate = (void* (*)(size_t))dlsym(RTLD_NEXT, "malloc");
  ++blocks;
  return allocate(bytes);
}
}
"""

BEGIN = """
import ctypes, json, metalops, sys, torch
counters = ctypes.CDLL(sys.argv[1])
torch.set_num_threads(1)

def counts(call):
    for _ in range(20):
        call()
    names = ("locks", "blocks")
    before = [ctypes.c_long.in_dll(counters, name).value for name in names]
    for _ in range(100):
        call()
    after = [ctypes.c_long.in_dll(counters, name).value for name in names]
    return [(b - a) / 100 for a, b in zip(before, after)]
"""

PROGRAM = """
def measured(device):
    a, b, out = (torch.full((8,), 0.5, device=device) for _ in range(3))
    places = torch.arange(8, device=device)
    return {
        "unary": counts(lambda: torch.special.airy_ai(a, out=out)),
        "binary": counts(lambda: torch.special.laguerre_polynomial_l(a, b, out=out)),
        "grid": counts(lambda: torch.take(a, places, out=out)),
        "stand-in": counts(lambda: a + b),
    }

print(json.dumps([measured("cpu"), measured("mps")]))
"""


# The two ways of benchmarks/objective_c.py.
OBJECTIVE_C = """
sys.path.append(sys.argv[2])
import objective_c, metalops.build
library = ctypes.CDLL(metalops.build.load("objective_c_launches", sys.argv[2] + "/objective_c.mm"))
library.prepare(objective_c.SOURCE.encode())
shader = torch.mps.compile_shader(objective_c.SOURCE).scale
x, out = torch.arange(8.0, device="mps"), torch.empty(8, device="mps")
memory = [ctypes.c_void_p(t.untyped_storage().data_ptr()) for t in (x, out)]
factor, size = ctypes.c_float(2), ctypes.c_uint(8)
print(json.dumps({
    "compile_shader": counts(lambda: shader(x, out, 2.0)),
    "Objective-C": counts(lambda: library.by_stream(*memory, factor, size)),
    "nothing": counts(lambda: library.nothing(*memory, factor, size)),
}))
"""
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def count(tmp_path_factory):
    """count(program): what it prints, as a program whose locks and blocks of memory are counted."""
    folder = tmp_path_factory.mktemp("counters")
    source, library = folder / "counters.cpp", folder / "counters.so"
    source.write_text(COUNTERS)
    built = find().run(["-O1", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"])
    assert built.returncode == 0, built.stderr.decode()

    def run(program, *arguments):
        result = subprocess.run(
            [sys.executable, "-c", BEGIN + program, str(library), *arguments],
            env={**os.environ, "LD_PRELOAD": str(library)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return run


@pytest.fixture(scope="module")
def counted(count):
    return count(PROGRAM)


# Torch's interface takes the name of an operator as a std::string: a block if it is a long one.
LONG_NAMES = {"unary": 0, "binary": 1, "grid": 0}


@pytest.mark.parametrize("kind", ["unary", "binary", "grid"])
def test_a_launch_takes_one_lock_more_than_torchs_cpu_operator_and_no_memory(counted, kind):
    (torchs_locks, torchs_blocks), (locks, blocks) = (side[kind] for side in counted)
    assert locks <= torchs_locks + 1
    assert blocks <= torchs_blocks + LONG_NAMES[kind]


def test_a_stand_in_takes_two_locks_more_than_torchs_cpu_operator(counted):
    """The size of the memory that it adopts is noted, for MTLBuffer, and forgotten when that is freed."""
    (torchs_locks, _), (locks, _) = (side["stand-in"] for side in counted)
    assert locks <= torchs_locks + 2


def test_a_launch_in_objective_c_takes_as_many_locks_as_one_in_python_and_no_memory(count):
    if objective_c.find_compiler() is None:
        pytest.skip("clang, which compiles Objective-C, is not installed (apt-get install clang)")
    counted = count(OBJECTIVE_C, str(BENCHMARKS))
    locks, blocks = (a - b for a, b in zip(counted["Objective-C"], counted["nothing"], strict=True))
    assert locks <= counted["compile_shader"][0]
    assert blocks == 0
