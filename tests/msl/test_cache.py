"""The cache of compiled libraries: shared by processes, bounded, never wrong."""

import json
import os
import shutil
import stat
import subprocess
import sys
import time

import pytest
from metalops import msl
from metalops.msl import build, cache

SOURCE = "kernel void k(device float* out [[buffer(0)]]) { out[0] = %d; }\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("METALOPS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiles(monkeypatch):
    """How often the host compiler ran."""
    calls = []
    real = build.compile_emitted

    def counted(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(build, "compile_emitted", counted)
    return calls


def test_the_second_time_nothing_is_compiled(compiles):
    first = msl.compile_source(SOURCE % 1)
    assert msl.compile_source(SOURCE % 1) == first
    assert len(compiles) == 1
    assert msl.compile_source(SOURCE % 2) != first
    assert len(compiles) == 2


def test_a_hit_takes_few_calls_of_python():
    """About 200, in less than a millisecond; what is compiled takes thousands, and a compiler."""
    msl.compile_source(SOURCE % 3)
    assert _calls(lambda: msl.compile_source(SOURCE % 3)) < 400


def _calls(function):
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.full
def test_options_name_and_versions_are_part_of_the_key(compiles, monkeypatch):
    base = msl.compile_source(SOURCE % 4)
    others = [
        msl.compile_source(SOURCE % 4, name="other"),
        msl.compile_source(SOURCE % 4, options=msl.Options(optimize=0)),
        msl.compile_source(SOURCE % 4, options=msl.Options(defines=("A=1",))),
    ]
    monkeypatch.setattr(build, "version", lambda: "another front end")
    others.append(msl.compile_source(SOURCE % 4))
    monkeypatch.setattr(cache, "cpu_identity", lambda: "another CPU")
    others.append(msl.compile_source(SOURCE % 4))
    assert len({base, *others}) == 6 and len(compiles) == 6


def test_another_compiler_in_the_same_process(compiles, monkeypatch):
    libraries = set()
    for name in ("g++", "clang++-19"):
        if not shutil.which(name):
            pytest.skip(f"{name} is not installed")
        monkeypatch.setenv("CXX", name)
        libraries.add(msl.compile_source(SOURCE % 5))
    assert len(libraries) == len(compiles) == 2


def test_changed_include_is_noticed(tmp_path, compiles):
    header = tmp_path / "value.h"
    options = msl.Options(include_dirs=(str(tmp_path),))
    source = (
        '#include "value.h"\nkernel void k(device int* out [[buffer(0)]]) { out[0] = VALUE; }\n'
    )
    header.write_text("#define VALUE 1\n")
    msl.compile_source(source, options=options)
    msl.compile_source(source, options=options)
    assert len(compiles) == 1
    header.write_text("#define VALUE 2\n")
    msl.compile_source(source, options=options)
    assert len(compiles) == 2


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "no note", "bad note", "gone"])
def test_damaged_entries_are_rebuilt(damage, compiles):
    path = msl.compile_source(SOURCE % 5)
    with open(path, "rb") as stream:
        good = stream.read()
    if damage == "truncated":
        _write(path, good[: len(good) // 2])
    elif damage == "flipped":
        _write(path, good[:-100] + bytes([good[-100] ^ 1]) + good[-99:])
    elif damage == "empty":
        _write(path, b"")
    elif damage == "no note":
        os.unlink(path + ".json")
    elif damage == "bad note":
        _write(path + ".json", b"[1, 2")
    else:
        os.unlink(path)
    assert msl.compile_source(SOURCE % 5) == path
    assert len(compiles) == 2
    with open(path, "rb") as stream:
        assert len(stream.read()) == len(good)


def _write(path, content):
    with open(path, "wb") as stream:
        stream.write(content)


def test_errors_leave_nothing_behind(folder):
    with pytest.raises(SyntaxError):
        msl.compile_source("kernel void k(device float* out [[buffer(0)]]) { out[0] = missing; }\n")
    assert [f for f in os.listdir(folder) if f.endswith((".so", ".tmp"))] == []


def test_the_least_recently_used_go_first(monkeypatch):
    paths = [msl.compile_source(SOURCE % i) for i in (10, 11, 12)]
    size = os.path.getsize(paths[0])
    now = time.time()
    for age, path in zip((100, 300, 200), paths):
        os.utime(path, (now - age, now - age))
    monkeypatch.setenv("METALOPS_CACHE_SIZE", str(int(size * 2.5)))
    newest = msl.compile_source(SOURCE % 13)
    assert [os.path.exists(p) for p in (*paths, newest)] == [True, False, False, True]
    assert not os.path.exists(paths[1] + ".json")
    assert cache.total_size() <= size * 2.5


def test_what_is_not_ours_stays_when_the_cache_is_trimmed(folder, monkeypatch):
    """Whatever it is called, however old and large it is."""
    ours = msl.compile_source(SOURCE % 14)
    key = os.path.basename(ours)
    names = ["thesis.so", "model.pch", "notes.tmp", "a.gch", "x" * 40 + ".so", "metalops-notes.tmp"]
    names += ["0" * 40 + ".so", key.replace(".so", ".so.bak"), "metalops-abcdefgh.tmp.txt"]
    for name in names:
        _write(folder / name, bytes(10_000))
        os.utime(folder / name, (1e9, 1e9))
    left = folder / "metalops-abcdefgh.tmp"
    _write(left, b"")
    os.utime(left, (1e9, 1e9))
    (folder / ("1" * 40 + ".so")).mkdir()
    os.symlink(folder / "thesis.so", folder / ("2" * 40 + ".so"))
    os.utime(ours, (1e9, 1e9))
    monkeypatch.setenv("METALOPS_CACHE_SIZE", "1")
    msl.compile_source(SOURCE % 15)
    assert not os.path.exists(ours) and not os.path.exists(ours + ".json")
    assert not left.exists()
    assert all((folder / name).exists() for name in names)
    assert (folder / ("1" * 40 + ".so")).is_dir()
    assert os.path.islink(folder / ("2" * 40 + ".so"))


def test_use_counts_as_recent(monkeypatch):
    old, other = (msl.compile_source(SOURCE % i) for i in (20, 21))
    now = time.time()
    os.utime(old, (now - 300, now - 300))
    os.utime(other, (now - 100, now - 100))
    msl.compile_source(SOURCE % 20)
    monkeypatch.setenv("METALOPS_CACHE_SIZE", str(int(os.path.getsize(old) * 2.5)))
    msl.compile_source(SOURCE % 22)
    assert os.path.exists(old) and not os.path.exists(other)


@pytest.mark.parametrize(
    "text, size",
    [("1000", 1000), ("2K", 2048), ("1.5M", 3 << 19), ("3GiB", 3 << 30), ("", 2 << 30)],
)
def test_size_limits(monkeypatch, text, size):
    monkeypatch.setenv("METALOPS_CACHE_SIZE", text)
    assert cache.size_limit() == size


def test_wrong_size_limit(monkeypatch):
    monkeypatch.setenv("METALOPS_CACHE_SIZE", "a lot")
    with pytest.raises(ValueError, match="METALOPS_CACHE_SIZE"):
        cache.size_limit()


@pytest.mark.full
def test_several_processes_at_once(folder):
    """All compile the same sources at the same time."""
    program = """
import sys, types
shell = types.ModuleType("metalops"); shell.__path__ = [sys.argv[1]]; sys.modules["metalops"] = shell
from metalops import msl
from metalops.msl.cli import open_table
for i in range(3):
    path = msl.compile_source("kernel void k%d(device float* out [[buffer(0)]]) { out[0] = 1; }" % (i % 2))
    assert open_table(path) == 1
"""
    package = os.path.dirname(os.path.dirname(msl.__file__))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, package], stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    libraries = [f for f in os.listdir(folder) if f.endswith(".so")]
    assert len(libraries) == 2
    for name in libraries:
        with open(folder / (name + ".json")) as stream:
            assert json.load(stream)["bytes"] == os.path.getsize(folder / name)
    assert not [f for f in os.listdir(folder) if f.endswith(".tmp")]


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("METALOPS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert os.path.exists(msl.compile_source(SOURCE % 30))


# ---- who may have written what is loaded


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """An empty temporary folder, and a process that has not looked for its cache yet."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(cache.tempfile, "tempdir", str(folder))
    _forget()
    yield folder
    _forget()


def _forget():
    cache._usable_folders.cache_clear()
    cache._temporary_folder.cache_clear()


@pytest.fixture
def no_home(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("METALOPS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))


@pytest.fixture
def foreign(monkeypatch):
    """foreign(path): from now on the path belongs to another user."""
    real, theirs = os.lstat, set()

    def status_of(real):
        def status(path, *args, **kwargs):
            found = real(path, *args, **kwargs)
            if str(path) not in theirs:
                return found
            return os.stat_result([*found[:4], 12345, *found[5:]])

        return status

    monkeypatch.setattr(os, "lstat", status_of(real))
    monkeypatch.setattr(os, "stat", status_of(os.stat))
    return lambda path: theirs.add(str(path))


def _mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.usefixtures("no_home")
def test_the_fallback_folder_is_this_users_alone(temporary):
    expected = temporary / f"metalops-{os.geteuid()}"
    assert cache.directory() == str(expected)
    assert _mode(expected) == 0o700


@pytest.mark.usefixtures("no_home")
@pytest.mark.parametrize("trap", ["link", "foreign", "for all to write", "for a group to write"])
def test_a_fallback_folder_that_others_have_made_is_not_used(temporary, tmp_path, foreign, trap):
    usual = temporary / f"metalops-{os.geteuid()}"
    if trap == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        usual.symlink_to(tmp_path / "elsewhere")
    else:
        usual.mkdir(mode=0o700)
        usual.chmod({"for all to write": 0o777, "for a group to write": 0o770}.get(trap, 0o755))
        if trap == "foreign":
            foreign(usual)
    chosen = cache.directory()
    assert chosen != str(usual) and os.path.dirname(chosen) == str(temporary)
    assert _mode(chosen) == 0o700
    assert cache.directory() == chosen
    path = msl.compile_source(SOURCE % 31)
    assert os.path.dirname(path) == chosen and os.listdir(usual) == []


def test_a_fresh_fallback_folder_goes_when_the_process_ends(tmp_path):
    program = """
import os, sys, types
shell = types.ModuleType("metalops"); shell.__path__ = [sys.argv[1]]; sys.modules["metalops"] = shell
from metalops.msl import cache
os.makedirs(os.path.join(os.environ["TMPDIR"], f"metalops-{os.geteuid()}"))
os.chmod(os.path.join(os.environ["TMPDIR"], f"metalops-{os.geteuid()}"), 0o777)
if os.fork() == 0: cache.directory(); sys.exit()
os.wait()
folder = cache.directory()
if os.fork() == 0: sys.exit()
os.wait()
assert os.path.isdir(folder)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "METALOPS_CACHE_DIR": "/dev/null/cache"}
    package = os.path.dirname(os.path.dirname(msl.__file__))
    subprocess.run([sys.executable, "-c", program, package], env=environment, check=True)
    assert os.listdir(tmp_path) == [f"metalops-{os.geteuid()}"]


def test_a_new_cache_folder_is_this_users_alone(folder):
    before = os.umask(0o002)
    try:
        cache.directory()
    finally:
        os.umask(before)
    assert _mode(folder) == 0o700


@pytest.mark.parametrize(
    "mode, owner, reason",
    [
        (0o777, None, "can be written by everyone (its mode is 777)"),
        (0o1777, None, "can be written by everyone"),
        (0o770, "group", "can be written by its group (its mode is 770)"),
        (0o755, "user", "belongs to user 12345"),
    ],
)
def test_a_chosen_folder_that_others_may_write_is_an_error(
    folder, foreign, monkeypatch, mode, owner, reason
):
    folder.mkdir()
    folder.chmod(mode)
    if owner == "user":
        foreign(folder)
    if owner == "group":
        monkeypatch.setattr(cache, "_is_private_group", lambda group, user: False)
    with pytest.raises(PermissionError) as caught:
        msl.compile_source(SOURCE % 32)
    message = str(caught.value)
    assert f"METALOPS_CACHE_DIR={folder} {reason}" in message and "chmod go-w" in message


def test_a_folder_that_a_private_group_may_write_is_fine(folder, monkeypatch):
    folder.mkdir()
    folder.chmod(0o775)
    user = cache._user_name(os.geteuid())
    entry = cache.grp.struct_group((user, "x", os.getegid(), []))
    monkeypatch.setattr(cache.grp, "getgrgid", lambda group: entry)
    assert cache.directory() == str(folder)
    shared = cache.grp.struct_group((user, "x", os.getegid(), ["somebody"]))
    monkeypatch.setattr(cache.grp, "getgrgid", lambda group: shared)
    cache._usable_folders.cache_clear()
    with pytest.raises(PermissionError):
        cache.directory()


@pytest.mark.parametrize("part", ["", ".json"])
@pytest.mark.parametrize("trap", ["link", "foreign", "for all to write"])
def test_entries_that_others_may_have_written_are_built_again(
    compiles, tmp_path, foreign, trap, part
):
    path = msl.compile_source(SOURCE % 33)
    if trap == "link":
        os.rename(path + part, tmp_path / "there")
        os.symlink(tmp_path / "there", path + part)
    elif trap == "foreign":
        foreign(path + part)
        assert cache.lookup(os.path.basename(path)[:-3]) is None
        return
    else:
        os.chmod(path + part, 0o666)
    assert msl.compile_source(SOURCE % 33) == path
    assert len(compiles) == 2
    assert stat.S_ISREG(os.lstat(path + part).st_mode) and not _mode(path + part) & 0o022


def test_a_folder_that_can_only_be_read_is_read(folder, temporary, monkeypatch, compiles):
    """As an administrator may provide one for all users."""
    path = msl.compile_source(SOURCE % 34)
    for file in (path, path + ".json"):
        assert _mode(file) & 0o444 == 0o444
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda at, mode: real(at, mode) and not (at == str(folder) and mode & os.W_OK)
    )
    _forget()
    assert msl.compile_source(SOURCE % 34) == path and len(compiles) == 1
    other = msl.compile_source(SOURCE % 35)
    assert os.path.dirname(os.path.dirname(other)) == str(temporary)
    assert msl.compile_source(SOURCE % 35) == other and len(compiles) == 2
