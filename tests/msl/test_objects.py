"""What a compiled library asks for is read from the object, and refused where kernels have no use for it."""

import glob
import os
import shutil
import subprocess

import metalops
import pytest
from metalops.msl.build import Options, compile_path
from metalops.msl.targets.host import objects

# C++ objects with one thing that no kernel library has, and what is said of it.
WRONG = {
    "'system' is no function": 'extern "C" int system(const char*); int f() { return system(""); }',
    "'puts' is no function": 'extern "C" int puts(const char*); int (*f)(const char*) = puts;',
    "'environ' is no function": 'extern "C" char** environ; char** f() { return environ; }',
    "there is no new": "int* f() { return new int(1); }",
    "there is no throw": "void f() { throw 1; }",
    "there is no thread_local": "struct S { S(); ~S() { volatile int x = 1; } }; S::S() {} thread_local S s; S* f() { return &s; }",
    "has no destructor": "struct S { ~S() { volatile int x = 1; } } s;",
    "when the kernel library is loaded (_GLOBAL__sub_I": "int g() { volatile int x = 1; return x; } int z = g();",
    "when the kernel library is loaded": "__attribute__((constructor)) static void first() { volatile int x = 1; }",
    "when the kernel library is unloaded": "__attribute__((destructor)) static void last() { volatile int x = 1; }",
    "while it is loaded (ifunc": 'typedef void (*F)(); static void g() {} extern "C" F choose() { return g; } void ifunc() __attribute__((ifunc("choose")));',
    "stack that can be executed": 'asm(".section .note.GNU-stack,\\"x\\",@progbits");',
}
COMPILERS = [c for c in ("g++", "clang++-19", "clang++") if shutil.which(c)]


def _linked(folder, text, compiler, *flags):
    source, library = folder / "x.cpp", folder / "x.so"
    source.write_text(text)
    words = [compiler, "-O1", "-fPIC", "-shared", "-w", "-std=c++17", *flags]
    subprocess.run([*words, source, "-o", library], check=True)
    return str(library)


@pytest.mark.full
@pytest.mark.parametrize("compiler", COMPILERS)
def test_each_is_found(tmp_path, compiler):
    for message, text in WRONG.items():
        found = [f.message for f in objects.faults(_linked(tmp_path, text, compiler), False)]
        if "ifunc" in message:
            message = "is chosen while it is loaded"
        if "_GLOBAL__sub_I" in message:
            message = "when the kernel library is loaded (_GLOBAL__"
        assert any(message in m for m in found), (message, found)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_ordinary_code_is_not_refused(tmp_path, compiler):
    text = """
    extern "C" float sinf(float); extern "C" void* memcpy(void*, const void*, unsigned long);
    struct S { int x; S() : x(1) {} };
    int f(float* y, int n) { static S s; for (int i = 0; i < n; ++i) y[i] = sinf(y[i]); memcpy(y, y + n, n); return s.x; }
    unsigned __int128 g(unsigned __int128 a, unsigned __int128 b) { return a / b; }
    """
    assert objects.faults(_linked(tmp_path, text, compiler), False) == []


def test_our_own_kernels_ask_for_nothing_else():
    libraries = glob.glob(os.path.join(os.path.dirname(metalops.__file__), "_C.kernels", "*.so"))
    assert len(libraries) > 50
    for library in libraries:
        assert objects.faults(library, False) == [], library


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-g++") is None, reason="needs a cross compiler")
def test_objects_for_other_processors_are_read(tmp_path):
    compiler = "aarch64-linux-gnu-g++"
    assert (
        objects.faults(_linked(tmp_path, "int f(int x) { return x + 1; }", compiler), False) == []
    )
    for message in ("'system' is no function", "when the kernel library is loaded"):
        found = [
            f.message for f in objects.faults(_linked(tmp_path, WRONG[message], compiler), False)
        ]
        assert any(message in m for m in found), (message, found)


KERNEL = """
#include <metal_stdlib>
using namespace metal;
constant float2 table[2] = {float2(1, 2), float2(3, 4)};
constant int chosen [[function_constant(0)]];
constant int twice = chosen * 2;
kernel void k(device float* x [[buffer(0)]], device atomic_int* n [[buffer(1)]], uint i [[thread_position_in_grid]],
              uint t [[thread_index_in_threadgroup]]) {
  threadgroup float shared[64];
  shared[t % 64] = sin(x[i]) + pow(x[i], table[i % 2].x) + fmod(x[i], 3.0f);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(n, int(simd_sum(shared[0])) + twice, memory_order_relaxed);
  os_log_default.log("%.2f", x[i]);
  x[i] = float(half(x[i]) * 2.0h) + float(bfloat(x[i])) + exp10(x[i]) + float(ulong(x[i]) / 3);
}
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    "options",
    [
        Options(optimize=0),
        Options(arch="portable", debug=True),
        Options(sanitize="address"),
        Options(sanitize="thread"),
    ],
    ids=["O0", "portable", "address", "thread"],
)
def test_kernels_compile_however_they_are_built(tmp_path, monkeypatch, compiler, options):
    monkeypatch.setenv("CXX", compiler)
    path = tmp_path / "k.metal"
    path.write_text(KERNEL)
    library = str(tmp_path / "k.so")
    compile_path(str(path), library, options)
    assert objects.faults(library, bool(options.sanitize)) == []
