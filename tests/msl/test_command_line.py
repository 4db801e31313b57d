"""`metalops compile` and `metalops sweep`."""

import os
import signal
import time

import pytest
from metalops import msl
from metalops.msl.check import cli as check

GOOD = """#include <metal_stdlib>
using namespace metal;
template <typename T>
[[kernel, max_total_threads_per_threadgroup(64)]] void
scale(device T* out [[buffer(0)]], constant T* in, uint i [[thread_position_in_grid]]) { out[i] = in[i]; }
template [[host_name("scale_float")]] kernel void scale<float>(device float*, constant float*, uint);
kernel void tex(texture2d<float> t [[texture(2)]], sampler s, device float* out [[buffer(0)]]) {}
kernel void many(texture2d_ms<float, access::read> t [[texture(0)]], device float* out [[buffer(0)]]) {}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "good.metal"
    path.write_text(GOOD)
    return path


def test_list_prints_the_kernel_table_and_compiles_nothing(file, capsys):
    assert msl.main_compile([str(file), "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "scale_float [[max_total_threads_per_threadgroup(64)]]",
        "    device T * out [[buffer(0)]]",
        "    constant T * in [[buffer(1)]]",
        "    uint i [[thread_position_in_grid]]",
        "tex",
        "    texture2d<float> t [[texture(2)]]",
        "    sampler s [[sampler(0)]]",
        "    device float * out [[buffer(0)]]",
        "many  (not in the library: parameter t (texture2d_ms))",
        "    texture2d_ms<float, access::read> t [[texture2d_ms]]",
        "    device float * out [[buffer(0)]]",
    ]
    assert not file.with_suffix(".so").exists()


def test_explain_says_how_each_kernel_runs(tmp_path, capsys):
    path = tmp_path / "sums.metal"
    path.write_text("""#include <metal_stdlib>
using namespace metal;
kernel void sums(device float* x, uint i [[thread_position_in_grid]], uint g [[threadgroup_position_in_grid]]) {
  float sum = x[i];
  sum = simd_sum(sum);
  x[i] = sum + g;
}
kernel void some(device float* x, uint i [[thread_position_in_grid]]) {
  if (i < 3) threadgroup_barrier(mem_flags::mem_device);
}
kernel void one(device float* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }
""")
    assert msl.main_compile([str(path), "--explain"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "sums: group, a loop over the threads of a group, split where they synchronise",
        "    split at (line): simd_sum (5)",
        "    uniform: x, g",
        "    rematerialised in each loop: i",
        "    privatised: sum",
        "some: fiber, a stack for each thread",
        "    no group loop because of a threadgroup_barrier for a part of the threadgroup",
        "one: loop, a loop over the grid: no threads synchronise",
    ]
    assert not path.with_suffix(".so").exists()


def test_compile_writes_a_library(file, tmp_path, capsys):
    output = tmp_path / "out.so"
    assert msl.main_compile([str(file), "-o", str(output), "--list"]) == 0
    assert "scale_float" in capsys.readouterr().out
    assert msl.cli.open_table(str(output)) == 2
    assert msl.main_compile([str(file)]) == 0
    assert capsys.readouterr().out.strip() == str(file.with_suffix(".so"))


def test_emit_prints_c_plus_plus(file, capsys):
    assert msl.main_compile([str(file), "--emit"]) == 0
    assert "#include <msl/metal.h>" in capsys.readouterr().out


def test_defines_and_include_folders(tmp_path, capsys):
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "x.h").write_text("#define NAME k_x\n")
    path = tmp_path / "a.metal"
    path.write_text(
        "#include <x.h>\n#if LEVEL == 2\nkernel void NAME(device float* o) { o[0] = 1; }\n#endif\n"
    )
    assert (
        msl.main_compile([str(path), "-I", str(tmp_path / "inc"), "-D", "LEVEL=2", "--list"]) == 0
    )
    assert capsys.readouterr().out.startswith("k_x\n")
    assert msl.main_compile([str(path), "-I", str(tmp_path / "inc"), "--list"]) == 0
    assert capsys.readouterr().out == "no kernels\n"


@pytest.mark.full
def test_compile_finds_the_headers_that_check_finds(tmp_path, capsys):
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "given.h").write_text("#define GIVEN 2\n")
    (tmp_path / "beside.h").write_text("#define BESIDE 3\n")
    path = tmp_path / "headers.metal"
    path.write_text(
        "#include <c10/metal/utils.h>\n#include <given.h>\n#include <metalops/registration.h>\n"
        '#include "beside.h"\n'
        "struct six_functor {\n  template <typename T>\n  inline T operator()(const T x) {\n"
        "    return static_cast<T>(c10::metal::remainder(x, x) + GIVEN * BESIDE);\n  }\n};\n"
        "REGISTER_FLOAT_UNARY_OP(six);\n"
    )
    include = ["-I", str(tmp_path / "inc")]
    assert check.main([str(path), *include]) == 0, capsys.readouterr().out
    assert msl.main_compile([str(path), *include, "--list"]) == 0, capsys.readouterr().err
    assert "six_dense_half_half" in capsys.readouterr().out
    output = tmp_path / "headers.so"
    assert msl.main_compile([str(path), *include, "-O", "0", "-o", str(output)]) == 0
    assert output.is_file()


def test_errors_go_to_stderr(tmp_path, capsys):
    path = tmp_path / "bad.metal"
    path.write_text("kernel void k(device float* o) {\n  o[0] = missing;\n}\n")
    assert msl.main_compile([str(path)]) == 1
    assert f"{path}:2:10: error: " in capsys.readouterr().err
    assert msl.main_compile([str(tmp_path / "none.metal")]) == 1
    assert "no Metal source at" in capsys.readouterr().err


@pytest.mark.full
def test_sweep_names_the_stage_that_fails(tmp_path, file, capsys):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "a.metal").write_text('#include "nowhere.h"\n')
    (tmp_path / "b.metal").write_text("kernel void k(device float* o, uint i) { o[i] = 1; }\n")
    (tmp_path / "c.metal").write_text("kernel void k(device float* o) { o[0] = missing; }\n")
    (tmp_path / "d.metal").write_text(
        "float nowhere(float);\nkernel void k(device float* o) { o[0] = nowhere(o[1]); }\n"
    )
    assert msl.main_sweep([str(tmp_path)]) == 1
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert (
        " ok " in rows["good.metal"] and "2 kernels (1 not for this device)" in rows["good.metal"]
    )
    assert " preprocess " in rows["deeper/a.metal"] and "nowhere.h" in rows["deeper/a.metal"]
    assert " emit " in rows["b.metal"]
    assert " compile " in rows["c.metal"] and "missing" in rows["c.metal"]
    assert " compile " in rows["d.metal"] and "nowhere" in rows["d.metal"]
    assert rows["5"] == "5 files, 4 kernels: 1 ok, 1 preprocess, 1 emit, 2 compile"


def test_sweep_finds_headers_in_the_folder(tmp_path, capsys):
    for name, text in {
        "include/project/nearby.h": '#include "deeper/last.h"\n',
        "include/deeper/last.h": "#define NAME here\n",
        "kernels/a.metal": "#include <project/nearby.h>\nkernel void NAME(device float* o) { *o = 1; }\n",
        "kernels/b.msl": "kernel void other(device float* o) { *o = 1; }\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert msl.main_sweep([str(tmp_path), "-j", "2"]) == 0
    out = capsys.readouterr().out
    assert "kernels/a.metal" in out and "kernels/b.msl" in out
    assert "2 files, 2 kernels: 2 ok" in out


@pytest.mark.full
def test_sweep_outlives_files_that_crash_or_do_not_end(tmp_path, monkeypatch, capsys):
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.metal").write_text("kernel void k(device float* o) { *o = 1; }\n")

    def open_table(library, open_table=msl.sweep.open_table):
        name = current[0]
        if name == "a":
            os.kill(os.getpid(), signal.SIGSEGV)
        if name == "b":
            time.sleep(60)
        if name == "c":
            raise ZeroDivisionError("of the front end")
        return open_table(library)

    def preprocess(path, options, preprocess=msl.sweep.preprocess_file):
        current[:] = [os.path.basename(path)[0]]
        return preprocess(path, options)

    current = []
    monkeypatch.setattr(msl.sweep, "open_table", open_table)
    monkeypatch.setattr(msl.sweep, "preprocess_file", preprocess)
    assert msl.main_sweep([str(tmp_path), "--time-limit", "8"]) == 1
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert " run " in rows["a.metal"] and "ended by SIGSEGV" in rows["a.metal"]
    assert " run " in rows["b.metal"] and "not done after 8 s" in rows["b.metal"]
    assert "ZeroDivisionError: of the front end" in rows["c.metal"]
    assert " ok " in rows["d.metal"]


def test_sweep_can_stop_early(file, capsys):
    assert msl.main_sweep([str(file.parent), "--stop-at", "emit", "--only", "good"]) == 0
    assert "1 ok" in capsys.readouterr().out


def test_sweep_without_a_folder(tmp_path, capsys):
    assert msl.main_sweep([str(tmp_path / "none")]) == 1
    assert "no folder" in capsys.readouterr().err


def test_libraries_that_cannot_be_opened(tmp_path):
    path = tmp_path / "x.so"
    path.write_bytes(b"not a library")
    with pytest.raises(OSError, match="x.so"):
        msl.cli.open_table(str(path))
