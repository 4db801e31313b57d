"""Kernels under the compiler's sanitizers, as METALOPS_SANITIZE says: starts the interpreter with their runtime, and
turns the checks on. The checks themselves are in metalops.debug.

A sanitizer's runtime must be part of a process from its beginning. If METALOPS_SANITIZE asks for it, `import metalops`
starts the interpreter anew, once, with the runtime preloaded and the same arguments. `python -m metalops sanitize` does
the same from outside.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from . import _environment

# Options of the runtimes that differ from their defaults; the user's own come after them.
_OPTIONS = {
    "ASAN_OPTIONS": {
        # Python frees little at exit.
        "detect_leaks": 0,
        # Reports are read by metalops, one for each place and launch, without stack traces.
        "halt_on_error": 0,
        "suppress_equal_pcs": 0,
        "symbolize": 0,
        # Stacks of GPU threads overflow into pages that fault, which the device handles.
        "handle_segv": 0,
        "handle_sigbus": 0,
        "detect_stack_use_after_return": 0,
        # The runtime is preloaded together with a library of metalops.
        "verify_asan_link_order": 0,
        # Python and torch were not built with the sanitizer.
        "alloc_dealloc_mismatch": 0,
        "detect_odr_violation": 0,
        "detect_container_overflow": 0,
        "allocator_may_return_null": 1,
        "redzone": 64,
        "quarantine_size_mb": 64,
    },
    "UBSAN_OPTIONS": {"halt_on_error": 0, "print_stacktrace": 0, "symbolize": 0},
    "TSAN_OPTIONS": {
        "halt_on_error": 0,
        "report_bugs": 1,
        "report_signal_unsafe": 0,
        # The device handles faults, or they end the process as they would without the runtime.
        "handle_segv": 0,
        "handle_sigbus": 0,
        "symbolize": 0,
        "exitcode": 0,
        "ignore_noninstrumented_modules": 1,
        # Each launch of a wrong kernel fails.
        "suppress_equal_stacks": 0,
        "suppress_equal_addresses": 0,
        # GPU threads have no deadlocks; a report about a lock that a library holds when the process forks would wait
        # for the runtime's own locks for ever.
        "detect_deadlocks": 0,
        "report_mutex_bugs": 0,
        # For each GPU thread; more would take more memory.
        "history_size": 2,
    },
}
_RESTARTED = "METALOPS_SANITIZE_RESTARTED"  # the id of the process that has started itself anew
_NO_RANDOMIZATION = 0x0040000


def wanted() -> str:
    """Returns "address", "thread" or "", as METALOPS_SANITIZE says. Raises ValueError."""
    text = _environment.value("METALOPS_SANITIZE")
    if not text:
        return ""
    from .msl.targets.host import sanitizers

    return sanitizers.mode_of(text)


def ensure_runtime() -> None:
    """Starts the interpreter anew if METALOPS_SANITIZE asks for a runtime that this process does not have. Raises
    RuntimeError if that is impossible."""
    if not _environment.value("METALOPS_SANITIZE"):
        return
    mode = wanted()
    if sys.platform != "linux":
        raise RuntimeError(
            "METALOPS_SANITIZE works on the software Metal device only, that is, on Linux."
        )
    from .msl.targets.host import sanitizers

    if sanitizers.loaded() == mode:
        return
    if os.environ.get(_RESTARTED) == str(os.getpid()):
        raise RuntimeError(
            f"METALOPS_SANITIZE: the runtime of the {mode} sanitizer could not be loaded into "
            f"{_executable()} (LD_PRELOAD={os.environ.get('LD_PRELOAD', '')!r})."
        )
    arguments = _same_arguments()
    environment = runtime_environment(mode, os.environ)
    environment[_RESTARTED] = str(os.getpid())
    _restore_captured_output()
    start(arguments, environment)


def runtime_environment(mode: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which programs start with the runtime of a sanitizer. Raises RuntimeError if the
    compiler has none."""
    from .msl.targets.host import sanitizers

    result = dict(environment)
    ours = sanitizers.preloads(mode, sanitizers.host_for(mode))
    theirs = [path for path in result.get("LD_PRELOAD", "").split() if path not in ours]
    result["LD_PRELOAD"] = " ".join([*ours, *theirs])
    for name, options in _OPTIONS.items():
        texts = [f"{key}={value}" for key, value in options.items()]
        # Later options override earlier ones; a child of a sanitized process finds these already set.
        if result.get(name) and not result[name].startswith(":".join(texts)):
            texts.append(result[name])
            result[name] = ":".join(texts)
        else:
            result.setdefault(name, ":".join(texts))
    return result


def start(arguments: list[str], environment: Mapping[str, str]) -> None:
    """Replaces this process by the interpreter with these arguments."""
    # Sanitizers of older compilers do not start if addresses are random in more bits than they support, ThreadSanitizer
    # never and AddressSanitizer now and then. The call is forbidden in some containers, whose kernels mostly use fewer
    # bits.
    ctypes.CDLL(None).personality(_NO_RANDOMIZATION)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(_executable(), [sys.executable, *arguments], dict(environment))


def _executable() -> str:
    # Not sys.executable, which may be a script that starts the interpreter.
    return os.path.realpath("/proc/self/exe")


def _same_arguments() -> list[str]:
    """Returns the interpreter's arguments that run this program again. Raises RuntimeError if interactive input would
    be lost."""
    how = (
        "start it with `python -m metalops sanitize`, which has the sanitizer's runtime from the "
        "beginning"
    )
    if sys.flags.interactive or hasattr(sys, "ps1") or "get_ipython" in _builtins():
        raise RuntimeError(f"METALOPS_SANITIZE: this session is interactive; {how}.")
    if not sys.orig_argv or not sys.executable:
        raise RuntimeError(f"METALOPS_SANITIZE: this program embeds Python; {how}.")
    program = _program_from_stdin()
    if program is None:
        return sys.orig_argv[1:]
    return [*subprocess._args_from_interpreter_flags(), "-c", program, *sys.argv]


def _builtins() -> dict:
    import builtins

    return vars(builtins)


_RUN_CODE = """\
import marshal, os, sys
with open({path!r}, "rb") as stream: code = marshal.load(stream)
os.unlink({path!r})
del sys.argv[0], stream, marshal, os
exec(code)
"""


def _program_from_stdin() -> str | None:
    """Returns code that runs a program from standard input again, which cannot be read a second time: the interpreter
    compiled all of it before it started. None for other programs."""
    if sys.argv[:1] not in ([""], ["-"]):
        return None
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    if frame.f_code.co_filename != "<stdin>":
        return None
    with tempfile.NamedTemporaryFile(prefix="metalops", delete=False) as stream:
        marshal.dump(frame.f_code, stream)
    return _RUN_CODE.format(path=stream.name)


def _restore_captured_output() -> None:
    """Restores the file descriptors that pytest redirects while it imports tests."""
    capture = sys.modules.get("_pytest.capture")
    if capture is None:
        return
    import gc

    for one in gc.get_objects():
        if isinstance(one, capture.FDCapture) and getattr(one, "_state", "done") != "done":
            os.dup2(one.targetfd_save, one.targetfd)


def turn_on() -> None:
    """Turns on the checks of launches that METALOPS_SANITIZE asks for, once the device is up."""
    mode = wanted()
    if not mode:
        return
    from . import _host, debug

    debug._prepare_sanitizing()
    _host.set_sanitizer_halt(_environment.value("METALOPS_SANITIZE_HALT") != "0")
    _host.set_sanitizer(mode)
    _host.check_stream_order(True)


_USAGE = """\
usage: python -m metalops sanitize [--mode address|thread] PROGRAM [ARGUMENTS]

Runs a program with every Metal kernel under a sanitizer of the C++ compiler. PROGRAM is given as to
python: a script, -m MODULE, -c CODE or - for standard input; without one, python is interactive.

  --mode address   (default) accesses outside of buffers, and undefined behaviour
  --mode thread    races between the threads of a kernel
"""


def main(argv: list[str]) -> int:
    """Runs `python -m metalops sanitize`. Returns only on failure."""
    mode = None
    program = list(argv)
    # The options of python, which may follow, look like those of this command.
    while program and program[0].partition("=")[0] in ("-h", "--help", "--mode"):
        name, equals, value = program.pop(0).partition("=")
        if name != "--mode":
            print(_USAGE, end="")
            return 0
        mode = value if equals or not program else program.pop(0)
        if mode not in ("address", "thread"):
            print(f"metalops sanitize: --mode is address or thread, not {mode!r}", file=sys.stderr)
            return 2
    if sys.platform != "linux":
        print(
            "metalops sanitize: works on the software Metal device only, that is, on Linux.",
            file=sys.stderr,
        )
        return 1
    try:
        mode = mode or wanted() or "address"
        environment = runtime_environment(mode, os.environ)
    except (RuntimeError, ValueError) as error:
        print(f"metalops sanitize: {error}", file=sys.stderr)
        return 1
    environment["METALOPS_SANITIZE"] = "address,undefined" if mode == "address" else "thread"
    start([*subprocess._args_from_interpreter_flags(), *program], environment)
    raise AssertionError("the process was replaced")
