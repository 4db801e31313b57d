"""Precompiled headers of kernels that are compiled at run time: used whenever they can be, and never when stale."""

import os
import shutil

import pytest
from metalops import msl
from metalops.msl import build, cache
from metalops.msl.source import compiler
from metalops.msl.targets.host import precompiled

PLAIN = "kernel void k(device float* out [[buffer(0)]]) { out[0] = %d; }\n"
BARRIER = (
    "kernel void k(device float* out [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) {"
    "threadgroup float shared[64]; shared[i] = %d; threadgroup_barrier(metal::mem_flags::mem_threadgroup);"
    "out[i] = shared[63 - i]; }\n"
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("METALOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(precompiled, "AFTER", 1)
    monkeypatch.setattr(precompiled, "_valid", {})
    monkeypatch.setattr(precompiled, "_rejected", set())
    return tmp_path / "cache"


def _compilers():
    """Returns the names of g++ and of the first clang, if they are installed; of all compilers if neither is."""
    names = [words[0] for words in compiler._candidates() if shutil.which(words[0])]
    return [n for n in ("g++", *[n for n in names if "clang" in n][:1]) if n in names] or names


@pytest.fixture(params=_compilers())
def cxx(request, monkeypatch):
    monkeypatch.setenv("CXX", request.param)


@pytest.fixture
def reads(monkeypatch):
    """For each compilation of a kernel, whether the compiler read our headers one by one."""
    found = []
    real = compiler.Compiler.run

    def run(self, arguments, **options):
        if not any(word.endswith("kernels.cpp") for word in arguments):
            return real(self, arguments, **options)
        result = real(self, [*arguments, "-H", "-Winvalid-pch"], **options)
        found.append(b"msl/vector.h" in result.stderr)
        return result

    monkeypatch.setattr(compiler.Compiler, "run", run)
    return found


def _headers(folder):
    return [name for name in os.listdir(folder) if name.endswith(".pch")]


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("cxx")
@pytest.mark.parametrize("source", [PLAIN, BARRIER], ids=["plain", "barrier"])
def test_it_is_used_and_changes_nothing(source, reads, folder, monkeypatch):
    path = msl.compile_source(source % 1)
    assert reads == [False] and len(_headers(folder)) == 1
    with open(path, "rb") as stream:
        found = stream.read()
    os.unlink(path)
    monkeypatch.setattr(precompiled, "flags", lambda *_: [])
    msl.compile_source(source % 1)
    assert reads == [False, True]
    with open(path, "rb") as stream:
        assert stream.read() == found


@pytest.mark.full
def test_it_is_compiled_once_it_was_asked_for_often(reads, folder, monkeypatch):
    monkeypatch.setattr(precompiled, "AFTER", 2)
    counts = []
    for number in range(3):
        msl.compile_source(PLAIN % number)
        counts.append(sum(name.endswith(".count") for name in os.listdir(folder)))
    assert reads == [True, False, False] and len(_headers(folder)) == 1
    assert counts == [1, 0, 0]


def test_another_process_uses_it(reads, monkeypatch):
    msl.compile_source(PLAIN % 1)
    monkeypatch.setattr(precompiled, "AFTER", 1000)
    monkeypatch.setattr(precompiled, "_valid", {})
    msl.compile_source(PLAIN % 2)
    assert reads == [False, False]


def test_nobody_waits_for_another_process(reads, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "turn_if_free", _held_by_another)
        msl.compile_source(PLAIN % 1)
    assert reads == [True] and not _headers(folder)


class _held_by_another:
    """turn_if_free() while the lock is held elsewhere."""

    def __init__(self, key, real=cache.turn_if_free):
        self._holder, self._wanted = real(key), real(key)

    def __enter__(self):
        assert self._holder.__enter__()
        return self._wanted.__enter__()

    def __exit__(self, *error):
        self._wanted.__exit__(*error)
        self._holder.__exit__(*error)


@pytest.mark.full
def test_flags_and_compilers_have_headers_of_their_own(folder):
    for options in (msl.Options(), msl.Options(optimize=0), msl.Options(arch="portable")):
        msl.compile_source(PLAIN % 1, options=options)
    assert len(_headers(folder)) == 3


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("cxx")
@pytest.mark.parametrize("is_known", [True, False])
def test_it_is_not_used_when_a_header_has_changed(is_known, reads, tmp_path, monkeypatch):
    copy = tmp_path / "include"
    shutil.copytree(precompiled.HEADERS, copy)
    for module in (precompiled, build):
        monkeypatch.setattr(module, "HEADERS", str(copy))
    precompiled._headers.cache_clear()
    try:
        msl.compile_source(PLAIN % 1)
        monkeypatch.setattr(precompiled, "AFTER", 1000)
        if not is_known:
            precompiled._valid.clear()
        with open(copy / "msl" / "vector.h", "a") as stream:
            stream.write("// changed\n")
        msl.compile_source(PLAIN % 2)
    finally:
        precompiled._headers.cache_clear()
    assert reads == [False, True]


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("cxx")
@pytest.mark.parametrize("damage", [b"", b"gpch", b"CPCH", None])
def test_a_damaged_one_does_not_harm(damage, folder):
    """Damaged behind the back of the check, which reads the whole file once in a process."""
    msl.compile_source(PLAIN % 1)
    (name,) = _headers(folder)
    size = os.path.getsize(folder / name)
    with open(folder / name, "r+b") as stream:
        content = stream.read(100) if damage is None else damage
        stream.truncate(0)
        stream.seek(0)
        stream.write(content.ljust(size, b"\xff"))
    assert os.path.exists(msl.compile_source(PLAIN % 2))


@pytest.mark.usefixtures("cxx")
def test_errors_are_the_same(monkeypatch):
    source = "#include <metal_stdlib>\nkernel void k(device float* out) {\n  out[0] = metal::clamp(1, 2);\n}\n"
    messages = []
    for _ in range(2):
        with pytest.raises(SyntaxError) as caught:
            msl.compile_source(source)
        messages.append((str(caught.value), caught.value.lineno, caught.value.offset))
        monkeypatch.setattr(precompiled, "flags", lambda *_: [])
    assert messages[0] == messages[1] and messages[0][1] == 3


def test_a_small_cache_has_none(folder, reads, monkeypatch):
    first = msl.compile_source(PLAIN % 1)
    monkeypatch.setenv("METALOPS_CACHE_SIZE", "1M")
    second = msl.compile_source(PLAIN % 2)
    assert reads == [False, True] and not _headers(folder)
    assert os.path.exists(first) and os.path.exists(second)


def test_a_full_cache_removes_it_after_older_libraries(folder, monkeypatch):
    old = msl.compile_source(PLAIN % 1)
    os.utime(old, (1e9, 1e9))
    monkeypatch.setattr(cache, "LEAST_SIZE_FOR_HEADERS", 1)
    monkeypatch.setenv("METALOPS_CACHE_SIZE", str(cache.total_size()))
    msl.compile_source(PLAIN % 2)
    assert not os.path.exists(old) and len(_headers(folder)) == 1
    monkeypatch.setenv("METALOPS_CACHE_SIZE", "1")
    msl.compile_source(PLAIN % 3)
    assert not _headers(folder)
