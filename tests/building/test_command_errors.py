"""Every command with what it cannot read, write or understand: a sentence and status 1 or 2, never a traceback."""

import errno
import io
import os
import subprocess
import sys

import pytest
import torch
from metalops import __main__, debug

KERNEL = "kernel void f(device float* x, uint i [[thread_position_in_grid]]) { x[i] += 1; }\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Paths by what is wrong with them, and good ones."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("empty folder", "kernels", "out"):
        (folder / name).mkdir()
    (folder / "text.metal").write_text(KERNEL)
    (folder / "kernels" / "good.metal").write_text(KERNEL)
    (folder / "bytes.metal").write_bytes(bytes(range(256)) * 9)
    (folder / "empty").write_bytes(b"")
    (folder / "latin.metal").write_bytes(KERNEL.encode() + b"// caf\xe9\n")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "dangling").symlink_to(folder / "nowhere")
    (folder / "closed").write_text(KERNEL)
    (folder / "closed").chmod(0)
    with debug.capture(folder / "good.trace"):
        torch.mps.compile_shader(KERNEL).f(torch.ones(3, device="mps"))
    with debug.capture(folder / "no launches.trace"):
        pass
    return folder


MISSING = ("nowhere", "loop", "dangling", "text.metal/below", "nowhere/below", "x" * 300, "")
FOLDERS = ("empty folder", "kernels", "out")
# A process of root may read what nobody may.
CLOSED = () if os.access("/etc/shadow", os.R_OK) else ("closed",)
UNREADABLE = (*MISSING, *FOLDERS, *CLOSED)
UNWRITABLE = (*FOLDERS, "text.metal/below", "nowhere/below", "x" * 300, "/dev/full/x")
MADE = (*FOLDERS, "nowhere/below")  # by the demo, where they are not there

READ = {
    "build-mac": [("--", name) for name in (*UNREADABLE, "bytes.metal", "empty", "text.metal")],
    "check": [(name,) for name in (*MISSING, "empty folder", *CLOSED)],
    "compile": [(name,) for name in UNREADABLE]
    + [(name, "--list") for name in UNREADABLE]
    + [("text.metal", "-O", "0", "-o", name) for name in (*UNWRITABLE, "/dev/null")],
    "demo": [("--image", name) for name in (*UNREADABLE, "bytes.metal", "empty", "text.metal")]
    + [("--image", "picture.png", "--output", name) for name in UNWRITABLE if name not in MADE],
    "new": [
        (name, "out/package") for name in ("", "two words", "1st", "class", "torch", "a/b", "..")
    ]
    + [
        ("my_ops", name)
        for name in UNWRITABLE
        if name not in ("empty folder", "out", "nowhere/below")
    ]
    + [("my_ops", "text.metal"), ("my_ops", "loop")],
    "replay": [(name,) for name in (*UNREADABLE, "bytes.metal", "empty", "text.metal")]
    + [("no launches.trace",), ("no launches.trace", "--check"), ("no launches.trace", "--time")],
    "selftest": [("--output", name) for name in UNWRITABLE],
    "sweep": [(name,) for name in (*MISSING, "empty folder", "text.metal")]
    + [("kernels", "--only", "nothing"), ("kernels", "--suffix", ".nothing")],
}


def run(arguments, files, monkeypatch):
    monkeypatch.chdir(files)
    try:
        return __main__.main(list(arguments))
    except SystemExit as stopped:  # of argparse
        return stopped.code


@pytest.fixture
def picture(files):
    image = pytest.importorskip("PIL.Image", reason="the demo reads images with Pillow")
    image.new("RGB", (40, 24), (200, 100, 50)).save(files / "picture.png")


@pytest.mark.full
@pytest.mark.parametrize("command", READ)
def test_what_cannot_be_read_or_written(command, files, picture, monkeypatch, capsys):
    for arguments in READ[command]:
        status = run([command, *arguments], files, monkeypatch)
        printed = capsys.readouterr()
        assert status in (1, 2), (arguments, printed)
        assert printed.err.startswith(f"metalops {command}: "), (arguments, printed)
        assert printed.err.count("\n") == 1, (arguments, printed)
        assert printed.out == "", (arguments, printed)


def test_every_command_was_tried():
    # These read and write nothing that is named to them, but sanitize, which is python itself.
    assert set(READ) | {"info", "coverage", "doctor", "sanitize"} == set(__main__.COMMANDS)


@pytest.mark.parametrize("command", __main__.COMMANDS)
def test_wrong_arguments(command, files, monkeypatch, capsys):
    wrong = [("--nonsense",), ("--json", "--markdown"), ("one", "two", "three"), ("",)]
    wrong += [("--part", "none"), ("--language", "9.9"), ("-O", "x"), ("--time-limit", "x")]
    if command == "sanitize":  # the rest are python's
        wrong = [("--mode",), ("--mode", "x"), ("--mode=",), ("--mode", "thread ")]
    for arguments in wrong:
        status = run([command, *arguments], files, monkeypatch)
        printed = capsys.readouterr()
        assert status in (1, 2), (arguments, printed)
        assert "metalops" in printed.err and "Traceback" not in printed.err, (arguments, printed)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("check", "latin.metal"), 0),
        (("check", "empty"), 0),
        (("check", "bytes.metal"), 1),
        (("compile", "latin.metal", "-O", "0", "-o", "out/latin.so"), 0),
        (("compile", "bytes.metal", "-O", "0", "-o", "out/bytes.so"), 1),
        (("compile", "empty", "--list"), 0),
        (("sweep", ".", "--suffix", "bytes.metal"), 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_files_that_are_no_text_in_utf_8(arguments, expected, files, monkeypatch, capsys):
    assert run(arguments, files, monkeypatch) == expected
    assert "Traceback" not in capsys.readouterr().err


# A run of each command that prints something, soon.
SHORT = [
    ("info",),
    ("info", "--variables"),
    ("coverage",),
    ("coverage", "--markdown"),
    ("check", "--rules"),
    ("check", "bytes.metal"),
    ("compile", "text.metal", "--list"),
    ("compile", "text.metal", "--emit"),
    ("doctor", "--faults"),
    ("replay", "good.trace"),
    ("replay", "good.trace", "--check"),
    ("selftest", "--seconds", "0", "--output", "out/report.txt"),
    ("sweep", "kernels", "--stop-at", "emit"),
    ("sanitize", "--help"),
    (),
    ("--help",),
    *((command, "--help") for command in __main__.COMMANDS),
]


class Broken(io.StringIO):
    """Standard output that fails: at once, or when what it has kept is written."""

    def __init__(self, error, at_once):
        super().__init__()
        self.error, self.at_once = error, at_once

    def write(self, text):
        if self.at_once:
            raise self.error
        return super().write(text)

    def flush(self):
        if not self.closed and self.getvalue():
            raise self.error


def test_every_command_has_a_short_run():
    # The demo takes longer, new refuses a folder that it has written, and both print in the same way; build-mac leaves
    # that to the command that it runs.
    others = {"sanitize", "demo", "new", "build-mac"}
    assert {a[0] for a in SHORT if a and a[-1] != "--help"} | others >= set(__main__.COMMANDS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "kept"])
@pytest.mark.parametrize("code", [errno.EPIPE, errno.ENOSPC], ids=["pipe", "full"])
@pytest.mark.parametrize("arguments", SHORT, ids=" ".join)
def test_standard_output_fails(arguments, code, at_once, files, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Broken(OSError(code, os.strerror(code)), at_once))
    status = run(arguments, files, monkeypatch)
    printed = capsys.readouterr().err
    if at_once and "--help" in arguments and len(arguments) == 2 and arguments[0] != "sanitize":
        assert (status, printed) == (0, "")  # argparse itself is silent about it
        return
    name = next(iter(arguments), "")
    sentence = f"metalops {name}: standard output: {os.strerror(code)}\n"
    assert (status, printed) == (1, "" if code == errno.EPIPE else sentence)


@pytest.mark.nightly
def test_names_that_are_no_text_are_written_as_they_are(files):
    name = b"caf\xe9.metal"
    with open(os.path.join(os.fsencode(files), name), "w") as stream:
        stream.write(KERNEL.replace("uint i", "uint i, uint j"))
    command = [sys.executable, "-m", "metalops", "check", name]
    result = subprocess.run(command, cwd=files, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (1, b"")
    assert result.stdout.startswith(name + b":1:")


@pytest.mark.nightly
def test_a_reader_that_leaves_is_no_error_and_closed_output_is_none_either():
    command = [sys.executable, "-m", "metalops", "check", "--rules"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # before anything is written: the process takes a second to start
        assert process.stderr.read() == b""
    assert process.returncode == 1
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, check=False
    )
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, b"", b"")
