"""How a program gets the sanitizer's runtime: the restart by METALOPS_SANITIZE, the command line,
metalops.debug.sanitize; and how it ends.
"""

import os
import shutil
import subprocess
import sys

import pytest
from metalops import debug
from metalops.msl import build
from metalops.msl.source import compiler
from metalops.msl.targets.host import sanitizers

HERE = os.path.dirname(os.path.abspath(__file__))
WRONG = os.path.join(HERE, "smooth.py")

TELL = """
import sys
import metalops
from metalops.msl.targets.host import sanitizers
print(sanitizers.loaded(), sys.argv[1:], __name__, sys.flags.optimize, flush=True)
"""


def python(*arguments, sanitize="address,undefined", environment=(), **options):
    env = {**os.environ, "METALOPS_SANITIZE": sanitize, **dict(environment)}
    return subprocess.run(
        [sys.executable, *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["address", "thread"])
def test_a_script_starts_anew_with_the_same_arguments(tmp_path, mode):
    script = tmp_path / "tell.py"
    script.write_text("print('once more')\n" + TELL)
    result = python("-O", str(script), "a", "b c", sanitize=mode)
    assert result.stdout.splitlines()[-1] == f"{mode} ['a', 'b c'] __main__ 1", result.stderr
    # What comes before the import runs in the first interpreter too.
    assert result.stdout.count("once more") == 2


@pytest.mark.nightly
def test_code_given_on_the_command_line_starts_anew():
    result = python("-c", TELL, "x")
    assert result.stdout == "address ['x'] __main__ 0\n", result.stderr


@pytest.mark.nightly
def test_a_module_starts_anew(tmp_path):
    (tmp_path / "tell.py").write_text(TELL)
    result = python("-m", "tell", "x", cwd=tmp_path)
    assert result.stdout == "address ['x'] __main__ 0\n", result.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", [[], ["-", "x"]])
def test_a_program_from_standard_input_starts_anew(arguments):
    result = python(*arguments, input=TELL + "def f(): return f\nassert f() is f\n")
    assert result.stdout == f"address {arguments[1:]} __main__ 0\n", result.stderr
    assert result.returncode == 0, result.stderr


@pytest.mark.nightly
def test_pytest_starts_anew_and_its_output_is_seen(tmp_path):
    (tmp_path / "test_one.py").write_text(
        "import metalops\nfrom metalops.msl.targets.host import sanitizers\n"
        "def test_one(): assert sanitizers.loaded() == 'address'\n"
    )
    result = python("-m", "pytest", "-p", "no:cacheprovider", str(tmp_path))
    assert "1 passed" in result.stdout, result.stdout + result.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    "program", [["-c", TELL, "--mode"], ["{script}", "--mode"], ["-m", "tell", "--mode"]]
)
def test_the_command_runs_a_program(tmp_path, program):
    script = tmp_path / "tell.py"
    script.write_text(TELL)
    words = [word.replace("{script}", str(script)) for word in program]
    result = python("-m", "metalops", "sanitize", *words, sanitize="", cwd=tmp_path)
    assert result.stdout == "address ['--mode'] __main__ 0\n", result.stderr


@pytest.mark.full
def test_the_command_refuses_another_mode():
    result = python("-m", "metalops", "sanitize", "--mode", "memory", WRONG, sanitize="")
    assert result.returncode == 2
    assert result.stderr == "metalops sanitize: --mode is address or thread, not 'memory'\n"


def test_an_unknown_sanitizer_is_an_error():
    result = python("-c", "import metalops", sanitize="memory")
    assert result.returncode == 1
    assert (
        "ValueError: METALOPS_SANITIZE is 'memory', but must be address,undefined or thread"
        in result.stderr
    )


def test_an_interactive_session_says_how_to_start():
    result = python("-i", "-c", "import metalops", input="")
    assert "RuntimeError: METALOPS_SANITIZE: this session is interactive" in result.stderr
    assert "python -m metalops sanitize" in result.stderr


def test_a_compiler_without_the_runtime_is_an_error(tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text(
        '#!/bin/sh\ncase "$1" in -print-file-name=*) echo "${1#*=}";; '
        f'*) exec {shutil.which("g++")} "$@";; esac\n'
    )
    compiler.chmod(0o755)
    result = python("-c", "import metalops", environment={"CXX": str(compiler)})
    assert result.returncode == 1
    assert (
        f"SanitizerUnavailable: the compiler {compiler} has no libasan.so and libubsan.so"
        in result.stderr
    )


def test_the_users_options_come_after_ours():
    from metalops._sanitize import runtime_environment

    environment = runtime_environment(
        "address", {"ASAN_OPTIONS": "redzone=32", "LD_PRELOAD": "/lib/other.so"}
    )
    assert environment["ASAN_OPTIONS"].startswith("detect_leaks=0:")
    assert environment["ASAN_OPTIONS"].endswith(":redzone=32")
    assert environment["LD_PRELOAD"].endswith(" /lib/other.so")
    # A process that a sanitized one starts has them already.
    assert runtime_environment("address", environment) == environment


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["address,undefined", "thread"])
def test_freed_memory_is_not_kept_for_reuse(mode):
    result = python(
        "-c",
        "import torch, metalops\n"
        "torch.empty(1 << 26, dtype=torch.uint8, device='mps')\n"
        "torch.ones(1 << 24, device='mps').sin()\n"
        "print(torch.mps.driver_allocated_memory() - torch.mps.current_allocated_memory())\n",
        sanitize=mode,
    )
    assert result.stdout.strip() == "0", result.stderr


@pytest.mark.nightly
def test_a_finding_is_raised_at_the_launch_and_names_everything():
    result = python(WRONG)
    assert result.returncode == 1
    assert "launched" not in result.stdout
    last = result.stderr[result.stderr.index("metalops.debug.SanitizerError: ") :]
    assert "program_source:3:" in last
    assert "heap-buffer-overflow in kernel 'smooth': reads 4 bytes" in last
    assert "4 bytes before the start of buffer 1 ('in', float32 [8]) of 32 bytes" in last


@pytest.mark.nightly
def test_without_halting_a_finding_is_raised_at_synchronize():
    result = python(WRONG, "synchronize", environment={"METALOPS_SANITIZE_HALT": "0"})
    assert result.returncode == 1
    assert result.stdout == "launched\n"
    assert "torch.mps.synchronize()" in result.stderr
    assert "SanitizerError: program_source:3:" in result.stderr


@pytest.mark.nightly
def test_a_program_that_never_synchronises_ends_with_status_1():
    result = python(WRONG, environment={"METALOPS_SANITIZE_HALT": "0"})
    assert result.returncode == 1
    assert result.stdout == "launched\n"
    assert result.stderr.startswith("metalops.debug.SanitizerError: program_source:3:")


def test_halt_is_0_or_1():
    result = python("-c", "import metalops", environment={"METALOPS_SANITIZE_HALT": "maybe"})
    assert "METALOPS_SANITIZE_HALT is 'maybe', but must be 0 or 1" in result.stderr


def test_sanitize_says_how_to_start_a_process_that_has_no_runtime():
    with (
        pytest.raises(RuntimeError, match="without the runtime of the thread sanitizer"),
        debug.sanitize("thread"),
    ):
        pass
    with pytest.raises(ValueError, match="not 'memory'"), debug.sanitize("memory"):
        pass


IN_ONE_PROCESS = """
import os
del os.environ["METALOPS_SANITIZE"]
import metalops, torch
from metalops import debug, msl, _host

source = "kernel void k(device float* x, uint i [[thread_position_in_grid]]) { x[i + 8] = 1; }"
kernel = torch.mps.compile_shader(source).k
x = torch.zeros(8, device="mps")

def count(**options):
    try:
        with debug.sanitize(**options):
            kernel(x)
            print("launched")
            kernel(x)
    except debug.SanitizerError as error:
        return len(error.findings)

print(count(), count(halt=False), count(mode="address"))
plain = msl.compile_source(source, options=msl.Options(sanitize=""))
with debug.sanitize():
    try:
        torch.mps.load_metallib(plain)
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.nightly
def test_sanitize_checks_a_block_of_a_process_that_has_the_runtime():
    result = python("-m", "metalops", "sanitize", "-c", IN_ONE_PROCESS, sanitize="")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:2] == ["launched", "1 2 1"]
    assert "was built without the address sanitizer" in lines[2]
    assert "compile --sanitize address" in lines[2]


@pytest.fixture
def without_runtimes(monkeypatch):
    """compilers(*kinds): those of these kinds are found without the runtimes of sanitizers from now on."""

    def lack(*kinds):
        whole = sanitizers._library
        monkeypatch.setattr(
            sanitizers,
            "_library",
            lambda host, names: (
                None if host.kind in kinds and "stdc++" not in names[0] else whole(host, names)
            ),
        )
        sanitizers._has_runtimes.cache_clear()

    monkeypatch.delenv("CXX", raising=False)
    yield lack
    sanitizers._has_runtimes.cache_clear()


@pytest.mark.parametrize("mode", ["address", "thread"])
def test_the_compiler_of_sanitized_kernels_has_the_runtime(mode, without_runtimes, monkeypatch):
    first = compiler.find()
    kinds = {one.kind: one for one in compiler.working()}
    if "gnu" not in kinds or None in sanitizers._runtimes(mode, kinds["gnu"]):
        pytest.skip("g++ with the runtimes of its sanitizers is not installed")
    fake = compiler.Compiler(("/bin/false",), "clang", "19.0", "fake")
    monkeypatch.setattr(compiler, "find", lambda: fake)
    monkeypatch.setattr(compiler, "working", lambda: iter([fake, *kinds.values()]))
    without_runtimes("clang")
    assert sanitizers.host_for(mode) == kinds["gnu"]
    assert sanitizers.preloads(mode, kinds["gnu"])
    # Who asks for a compiler gets it, or the reason.
    monkeypatch.setenv("CXX", "/bin/false")
    assert sanitizers.host_for(mode) == fake
    with pytest.raises(sanitizers.SanitizerUnavailable, match="install compiler-rt"):
        sanitizers.preloads(mode, fake)
    monkeypatch.delenv("CXX")
    without_runtimes("clang", "gnu")
    assert sanitizers.host_for(mode) == fake
    monkeypatch.setattr(compiler, "find", lambda: first)


@pytest.mark.full
def test_sanitized_kernels_are_built_by_that_compiler(without_runtimes, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(sanitizers, "host_for", lambda mode: asked.append(mode) or compiler.find())
    source = tmp_path / "kernel.metal"
    source.write_text("kernel void f(device float* x) { x[0] = 1; }")
    for mode in ("address", "thread"):
        options = build.with_options(0, [], [], sanitize=mode)
        build.compile_path(str(source), str(tmp_path / "kernel.so"), options)
    build.compile_path(str(source), str(tmp_path / "kernel.so"), build.with_options(0, [], []))
    assert asked == ["address", "thread"]
