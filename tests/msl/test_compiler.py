"""Which host compiler is used, and what is said when there is none."""

import platform
import shutil
import stat
import subprocess
import warnings

import pytest
from metalops import msl
from metalops.msl.source import compiler

SOURCE = (
    "kernel void k(device float* out [[buffer(0)]], constant float* in) { out[0] = in[0] * 2.0; }\n"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("METALOPS_CACHE_DIR", str(tmp_path / "cache"))
    yield
    compiler._find.cache_clear()


def script(folder, name, text):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


def test_no_compiler_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(msl.CompilerNotFound) as caught:
        msl.compile_source(SOURCE)
    message = str(caught.value)
    assert "C++ compiler" in message and "\n" not in message


def test_compilers_that_do_not_work_are_named(monkeypatch, tmp_path):
    tools = tmp_path / "tools"
    script(
        tools,
        "g++",
        'echo "g++ 4.8.5"; case "$*" in *--version*) exit 0;; esac; echo "error: bad" >&2; exit 1\n',
    )
    monkeypatch.setenv("PATH", f"{tools}:/nonexistent")
    monkeypatch.setenv("CXX", "nothing++")
    with pytest.raises(
        msl.CompilerNotFound, match="nothing.*is not installed.*g.. 4.8.5 cannot build"
    ):
        compiler.find()


def test_cxx_is_used(monkeypatch):
    found = shutil.which("g++") or shutil.which("clang++")
    monkeypatch.setenv("CXX", found)
    assert compiler.find().command[0] == found


def test_cxx_with_arguments(monkeypatch, tmp_path):
    real = compiler.find().command[0]
    wrapper = script(tmp_path / "tools", "wrapper", f'shift; exec {real} "$@"\n')
    monkeypatch.setenv("CXX", f"{wrapper} cc")
    assert compiler.find().command == (wrapper, "cc")
    assert msl.compile_source(SOURCE)


def test_cxx_that_cannot_build_kernels_is_passed_over_with_a_warning(monkeypatch):
    monkeypatch.setenv("CXX", "nothing++")
    with pytest.warns(UserWarning, match="nothing"):
        assert compiler.find().command[0] != "nothing++"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="others move vectors of any alignment")
@pytest.mark.parametrize("name", ["g++", "clang++-19"])
def test_the_assembler_is_asked_for_unaligned_moves_where_it_can(monkeypatch, tmp_path, name):
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    refusing = 'case "$*" in *unaligned-vector-move*) echo error >&2; exit 1;; esac; exec'
    for command, knows in (("exec", True), (refusing, False)):
        text = f'{command} {shutil.which(name)} "$@"\n'
        monkeypatch.setenv("CXX", script(tmp_path / "tools", f"{name}_{knows}", text))
        host = compiler.find()
        assert bool(host.assembler) == knows
        flags = " ".join(host.flags())
        assert ("unaligned-vector-move" in flags) == (knows and host.kind == "gnu")
        assert ("-fmax-type-align" in flags) == (host.kind == "clang")
        # The sanitizer has to know the alignment of types.
        assert "-fmax-type-align" not in " ".join(host.flags(sanitized=True))
        msl.compile_source(SOURCE)


def test_probes_are_remembered_on_disk(monkeypatch, tmp_path):
    log = tmp_path / "log"
    real = compiler.find().command[0]
    wrapper = script(tmp_path / "tools", "wrapper", f'echo run >> {log}; exec {real} "$@"\n')
    monkeypatch.setenv("CXX", wrapper)
    for _ in range(3):
        compiler._find.cache_clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert compiler.find().command[0] == wrapper
    assert log.read_text().count("run") == 3  # its version, and trials without and with a flag


def test_one_program_of_several_names_is_several_compilers(tmp_path):
    """As ccache and links to it are."""
    answer = "case $0 in */clang++) echo clang version 19.1;; *) echo g++ 12.2;; esac\n"
    gnu = script(tmp_path, "g++", answer)
    clang = tmp_path / "clang++"
    clang.symlink_to(gnu)
    found = [compiler._probe([str(path)]) for path in (gnu, clang)]
    assert [host.kind for host in found] == ["gnu", "clang"]
    assert found[0].identity != found[1].identity


@pytest.mark.parametrize(
    "failure", ["the disk is full", "it cannot be started", "it takes too long", "it dies"]
)
def test_probes_that_fail_are_made_again(monkeypatch, tmp_path, failure):
    """The reason may be gone: only success is remembered."""
    real = compiler.find().command[0]
    trouble = tmp_path / "trouble"
    trouble.touch()
    behaviour = {"the disk is full": "echo 'error: No space left on device' >&2; exit 1"}
    behave = behaviour.get(failure, "kill -9 $$")
    text = f'if [ -e {trouble} ]; then {behave}; fi; exec {real} "$@"\n'
    wrapper = script(tmp_path / "tools", "wrapper", text)
    monkeypatch.setenv("CXX", wrapper)
    run = compiler.subprocess.run

    def failing(command, *args, **kwargs):
        if trouble.exists() and command[0] == wrapper and failure == "it cannot be started":
            raise OSError("no memory")
        if trouble.exists() and command[0] == wrapper and failure == "it takes too long":
            raise compiler.subprocess.TimeoutExpired(command, 60)
        return run(command, *args, **kwargs)

    monkeypatch.setattr(compiler.subprocess, "run", failing)
    with pytest.warns(UserWarning, match="because"):
        assert compiler.find().command[0] != wrapper
    trouble.unlink()
    compiler._find.cache_clear()
    assert compiler.find().command[0] == wrapper


@pytest.mark.parametrize("content", ["[]", "{", '{"%s": {"error": "x"}}', '{"%s": "x"}'])
def test_what_is_remembered_wrongly_is_asked_again(content):
    found = compiler.find()
    with open(compiler._memory_file(), "w") as stream:
        stream.write(content.replace("%s", found.identity))
    compiler._find.cache_clear()
    assert compiler.find() == found


@pytest.mark.parametrize("name", ["g++", "clang++", "clang++-19"])
def test_every_compiler_builds_kernels(monkeypatch, name):
    if not isinstance(compiler._probe([name]), compiler.Compiler):
        pytest.skip(f"{name} is not here or has no _Float16")
    import torch
    from metalops import _host

    monkeypatch.setenv("CXX", name)
    library = _host.Library(msl.compile_source(SOURCE))
    out = torch.zeros(1)
    library.launch("k", [out, torch.tensor([4.0])], 1, 1)
    assert out[0] == 8 and library.build.startswith(name)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (1, "g++: fatal error: Killed signal terminated program cc1plus"),
        (1, "clang++-19: error: unable to execute command: Killed"),
        (-15, ""),
    ],
)
def test_a_compiler_that_is_ended_is_no_error_of_the_source(monkeypatch, code, message):
    """It was taken for one of the group loops, so the kernels ran on fibers from then on."""
    source = f"""
    kernel void f_{abs(code)}_{len(message)}(device float* x [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) {{
      threadgroup float y[32];
      y[i] = x[i];
      threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      x[i] = y[31 - i];
    }}"""
    ended = subprocess.CompletedProcess([], code, b"", message.encode())
    run = compiler.Compiler.run

    def of_kernels(self, arguments, **options):
        return ended if "-shared" in arguments and "-lm" in arguments else run(self, arguments, **options)  # fmt: skip

    compiler.find()  # which tries compilers
    monkeypatch.setattr(compiler.Compiler, "run", of_kernels)
    with pytest.raises(RuntimeError, match="the compiler was ended while it compiled") as caught:
        msl.compile_source("#include <metal_stdlib>\n" + source)
    assert (message or "signal 15") in str(caught.value)
