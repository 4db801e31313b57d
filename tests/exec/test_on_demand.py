"""Sources of much code are checked when they are opened, and each of their kernels is compiled when it is used."""

import os
import signal
import struct
import subprocess
import sys
import threading
import time

import metalops
import pytest
import torch
from metalops import _host, msl
from metalops.msl import build, cache, left_out
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host import emit as emission

from .conftest import HEADER

SOURCE = """
constant int shift [[function_constant(0)]];
constant bool has_shift = is_function_constant_defined(shift);
int unused(int x) { return x; }
template <typename T>
kernel void add(device T* x, uint i [[thread_position_in_grid]]) { x[i] += T(1); }
template <typename T>
[[max_total_threads_per_threadgroup(64)]] kernel void sum(device T* x, constant T& start, uint i [[thread_position_in_grid]]) {
  threadgroup T all[4];
  all[0] = start + simd_sum(x[i]);
  x[i] = all[0];
}
kernel void add_shift(device int* x, uint i [[thread_position_in_grid]]) { x[i] += has_shift ? shift : 100; }
#define REGISTER(NAME, T, ...) template [[host_name(#NAME "_" #T)]] kernel void NAME<T>(device T*, __VA_ARGS__);
REGISTER(add, int, uint) REGISTER(add, float, uint)
REGISTER(sum, int, constant int&, uint) REGISTER(sum, float, constant float&, uint)
"""


@pytest.fixture(autouse=True)
def on_demand(tmp_path, monkeypatch):
    """Any code is much; the cache is empty."""
    monkeypatch.setenv("METALOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(emission, "MUCH", 0)


@pytest.fixture
def compilations(monkeypatch):
    """The kernels of each library that is compiled from now on; a described one has none."""
    done = []
    compile_emitted = build.compile_emitted

    def noted(emitted, *rest):
        done.append([] if emitted.described else [*emitted.engines])
        compile_emitted(emitted, *rest)

    monkeypatch.setattr(build, "compile_emitted", noted)
    return done


def opened(source=SOURCE):
    return _host.Library(msl.compile_source(HEADER + source))


def run(library, name, values, *others, engine="auto", dtype=torch.int32):
    x = torch.tensor(values, dtype=dtype)
    library.launch(name, [x, *others], len(values), len(values), {}, engine, 1)
    return x.tolist()


def test_each_kernel_is_compiled_once_and_others_never(compilations):
    library = opened()
    assert compilations == [[]] and len(cache.entries()) == 1
    assert run(library, "add_shift", [1, 2]) == [101, 102]
    assert run(library, "add_shift", [1, 2]) == [101, 102]
    assert compilations == [[], ["add_shift"]]
    assert run(library, "add_int", [1, 2]) == [2, 3]
    assert run(library, "add_float", [1.5], dtype=torch.float32) == [2.5]  # of the same part
    assert compilations == [[], ["add_shift"], ["add_int", "add_float"]]
    assert run(library, "sum_int", [1, 2], struct.pack("i", 5)) == [8, 8]
    assert compilations[3:] == [["sum_int"]]
    assert run(opened(), "sum_int", [1, 2], struct.pack("i", 5)) == [8, 8]
    assert len(compilations) == len(cache.entries()) == 4


@pytest.mark.full
def test_another_process_finds_them_in_the_cache():
    run(opened(), "add_shift", [1])
    code = (
        "import sys, metalops; from tests.exec import test_on_demand as t; from metalops.msl import build\n"
        "def fail(*_): raise AssertionError('it compiles')\n"
        "t.emission.MUCH = 0; build.compile_emitted = fail\n"
        "print(t.run(t.opened(), 'add_shift', [1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[101]\n", done.stderr


def test_names_arguments_constants_and_limits_are_there_at_once(compilations):
    library = opened()
    names = ["add_shift", "add_int", "add_float", "sum_int", "sum_float"]
    assert library.names() == names
    table = {entry["name"]: entry for entry in library.kernel_table()}
    assert [*table] == names
    assert [a["element_bytes"] for a in table["sum_float"]["arguments"]] == [4, 4, 0]
    assert [a["writable"] for a in table["sum_float"]["arguments"]] == [True, False, False]
    assert table["sum_int"]["static_threadgroup_bytes"] == 16
    assert table["sum_int"]["max_threads_per_threadgroup"] == 64
    assert table["sum_int"]["engines"] == []
    library.specialise({0: struct.pack("i", 1)})
    with pytest.raises(ValueError, match="has 4 bytes; the value has 8"):
        library.specialise({0: struct.pack("q", 1)})
    assert compilations == [[]]


def test_the_description_is_that_of_the_compiled_kernel():
    library = opened()
    described = {entry["name"]: entry for entry in library.kernel_table()}
    for name in library.names():
        path = left_out.compile_left_out(library.source, 400, [name])
        (entry,) = _host.Library(path).kernel_table()
        assert entry["engines"] and entry | {"engines": []} == described[name]


def test_shaders_compile_in_the_background_once_a_kernel_is_asked_for(compilations):
    library = torch.mps.compile_shader(HEADER + SOURCE)
    assert set(dir(library)) == {"add_shift", "add_int", "add_float", "sum_int", "sum_float"}
    assert compilations == [[]]
    kernels = [library.sum_float, library.add_int]
    assert kernels[0].max_threads_per_threadgroup == 64
    assert kernels[0].static_thread_group_memory_length == 16
    deadline = time.monotonic() + 120
    while len(cache.entries()) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    x = torch.ones(4, device="mps")
    kernels[0](x, 2.0)
    assert x.tolist() == [6.0] * 4
    assert sorted(compilations) == [[], ["add_int", "add_float"], ["sum_float"]]
    with pytest.raises(RuntimeError, match="add_flat, did you mean add_float"):
        _ = library.add_flat


def test_function_constants():
    for shift in (3, 5):
        shader = metalops.compile_shader(HEADER + SOURCE, constants={"shift": shift})
        x = torch.ones(2, device="mps", dtype=torch.int32)
        shader.add_shift(x)
        assert x.tolist() == [1 + shift] * 2
    assert len(cache.entries()) == 2


def test_all_engines_run_them():
    library = opened()
    for engine in ("loop", "fiber"):
        assert run(library, "add_shift", [1, 2], engine=engine) == [101, 102]
    for engine in ("group", "fiber"):
        assert run(library, "sum_int", [1, 2], struct.pack("i", 5), engine=engine) == [8, 8]


def test_several_threads_compile_a_kernel_once(compilations):
    library = opened()
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(run(library, "add_shift", [1])))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[101]] * 4 and compilations == [[], ["add_shift"]]


@pytest.fixture
def held_back(monkeypatch):
    """Kernels compile only once this event is set."""
    event = threading.Event()
    compile_part = left_out._compile

    def compile_later(part):
        assert event.wait(60)
        return compile_part(part)

    monkeypatch.setattr(left_out, "_compile", compile_later)
    yield event
    event.set()


def test_ctrl_c_ends_waiting_and_the_kernel_can_be_asked_for_again(held_back, compilations):
    library = opened()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    timer = threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT])
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(library, "add_shift", [1])
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    held_back.set()
    assert run(library, "add_shift", [1]) == [101]
    assert compilations == [[], ["add_shift"]]


def test_what_somebody_waits_for_comes_first(held_back, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    order, has_begun = [], threading.Event()
    compile_part = left_out._compile

    def compile_noted(part):
        has_begun.set()
        path = compile_part(part)
        order.append(part.kernels[0])
        return path

    monkeypatch.setattr(left_out, "_compile", compile_noted)
    library = opened()
    for name in ("add_shift", "add_int", "sum_float", "sum_int"):
        left_out.begin_left_out(library.source, 400, [name])
        assert has_begun.wait(60)  # with the first one
    timer = threading.Timer(0.1, held_back.set)
    timer.start()
    left_out.compile_left_out(library.source, 400, ["sum_int"])
    assert order[:2] == ["add_shift", "sum_int"]
    left_out.compile_left_out(library.source, 400, ["sum_float"])
    timer.join()


def test_a_forked_child_compiles_by_itself(held_back):
    library = opened()
    left_out.begin_left_out(library.source, 400, ["add_shift"])
    child = os.fork()
    if child == 0:
        held_back.set()
        try:
            path = left_out.compile_left_out(library.source, 400, ["add_shift"])
            os._exit(0 if os.path.exists(path) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


LATE = """
template <typename T> T only_specialised(T x);
template <> float only_specialised(float x) { return x; }
kernel void early(device float* x) { x[0] = only_specialised(x[1]); }
kernel void late(device int* x) { x[0] = only_specialised(x[1]); }
"""


def test_an_error_that_is_found_late_names_kernel_and_line():
    library = opened(LATE)
    assert run(library, "early", [0.0, 2.0], dtype=torch.float32) == [2.0, 2.0]
    for _ in range(2):
        with pytest.raises(SyntaxError, match="kernel 'late': .*never defined") as caught:
            run(library, "late", [0, 2])
        assert caught.value.lineno == 4


def test_a_compiler_that_is_ended_is_an_error_of_the_kernel(monkeypatch):
    library = opened()

    def ended(*_):
        raise RuntimeError("the compiler was ended")

    with monkeypatch.context() as patched:
        patched.setattr(left_out, "compile_text", ended)
        with pytest.raises(RuntimeError, match="kernel 'add_shift': the compiler was ended"):
            run(library, "add_shift", [1])
    assert run(library, "add_shift", [1]) == [101]


def test_a_part_that_does_not_compile_alone_is_compiled_with_all_of_its_source(monkeypatch):
    library = opened()
    left_out._program.cache_clear()
    monkeypatch.setattr(left_out.Needed, "text", lambda self, kernels: "kernel void add_shift(")
    with pytest.warns(RuntimeWarning, match="does not compile alone"):
        assert run(library, "add_shift", [1]) == [101]


def test_a_part_has_only_what_its_kernels_need():
    library = opened()
    source = _host.Library(left_out.compile_left_out(library.source, 400, ["add_shift"])).source
    import zlib

    text = zlib.decompress(source).decode()
    assert "add_shift" in text and "sum" not in text and "unused" not in text


# Broken sources: what is wrong stands in a function, a template that the last kernel alone instantiates, and so on.
BROKEN = {
    "an undeclared name": "kernel void k(device float* x) { x[0] = missing; }",
    "a syntax error": "kernel void k(device float* x) { x[0] = ; }",
    "an unbalanced bracket": "kernel void k(device float* x) { x[0] = 1; ",
    "a type error in a function that no kernel calls": "struct A {}; float f(A a) { return a; }",
    "a type error in the last instantiation": (
        "template <typename T> float f(T x) { return x.value; } struct A { float value; }; struct B {};\n"
        "template <typename T> kernel void k(device float* x) { x[0] = f(T()); }\n"
        'template [[host_name("a")]] kernel void k<A>(device float*);\n'
        'template [[host_name("b")]] kernel void k<B>(device float*);'
    ),
    "a failing static_assert": 'static_assert(sizeof(int) == 8, "small");',
    "a failing static_assert of the last instantiation": (
        'template <int N> kernel void k(device float* x) { static_assert(N < 2, "too large"); }\n'
        'template [[host_name("a")]] kernel void k<1>(device float*);\n'
        'template [[host_name("b")]] kernel void k<2>(device float*);'
    ),
    "a template that does not exist": 'template [[host_name("a")]] kernel void none<1>(device float*);',
    "an instantiation with another signature": (
        "template <typename T> kernel void k(device T* x) {}\n"
        'template [[host_name("a")]] kernel void k<int>(device float*);'
    ),
    "two kernels of one name": "kernel void twice(device float* x) {}\nkernel void twice(device float* x) {}",
    "a parameter without an attribute": "kernel void k(device float* x, int n) {}",
    "a const violation": "kernel void k(const device float* x) { x[0] = 1; }",
    "an ambiguous call": (
        "float f(short x) { return 1; } float f(char x) { return 2; } kernel void k(device float* x) { x[0] = f(1); }"
    ),
    "a function that is never defined": "float f(float x); kernel void k(device float* x) { x[0] = f(x[1]); }",
    "a member that is never defined": (
        "struct A { float f() const; }; kernel void k(device float* x) { x[0] = A().f(); }"
    ),
    "throw": "kernel void k(device float* x) { throw 1; }",
    "new": "thread int* f() { return new int(1); }",
    "assembly": 'kernel void k(device float* x) { asm("nop"); }',
    "a missing header": '#include "no_such_file.h"\n',
    "several errors": (
        "kernel void k(device float* x) { x[0] = first; }\nfloat f() { return second; }\n"
        "template <typename T> kernel void t(device T* x) { x[0] = third; T().fourth(); }\n"
        'template [[host_name("t")]] kernel void t<int>(device int*);'
    ),
}  # fmt: skip


@pytest.mark.sampled(16)
@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.usefixtures("each_compiler")
def test_errors_at_opening_are_those_of_compiling_all(what, monkeypatch):
    source = HEADER + SOURCE + BROKEN[what]
    found = []
    for much in (0, 10**9):
        monkeypatch.setattr(emission, "MUCH", much)
        with pytest.raises(SyntaxError) as caught:
            msl.compile_source(source)
        error = caught.value
        found.append((error.msg, error.filename, error.lineno, error.offset, error.text))
    assert found[0] == found[1]
    assert cache.entries() == []


def test_little_code_and_a_single_kernel_are_compiled_at_once(monkeypatch):
    def is_described(source):
        return emission.emit(preprocess(HEADER + source), on_demand=True).described

    assert is_described(SOURCE)
    assert not is_described("kernel void k(device float* x) { x[0] = 1; }")
    monkeypatch.undo()
    assert not is_described(SOURCE)


def test_lists_of_kernels_and_files_are_compiled_at_once(tmp_path, compilations):
    options = msl.Options(kernels=("add_shift", "add_int"), on_demand=True)
    msl.compile_source(HEADER + SOURCE, options=options)
    assert compilations == [["add_shift", "add_int"]]
    path = tmp_path / "k.metal"
    path.write_text(HEADER + SOURCE)
    assert len(_host.Library(msl.compile_file(path)).kernel_table()[0]["engines"]) == 2
