"""metalops.build.load: kernels and host stubs built just in time."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from metalops import build

# As PyTorch's own kernels are written: a functor with operator() and a registration line for each dtype.
FUNCTOR = """\
#include <c10/metal/indexing.h>
#include <metal_stdlib>
using namespace metal;

struct NAME_functor {
  template <typename T>
  inline T operator()(const T x) {
    return static_cast<T>(EXPRESSION);
  }
};

REGISTER_UNARY_OP(NAME, float, float);
REGISTER_UNARY_OP(NAME, half, half);
REGISTER_UNARY_OP(NAME, bfloat, bfloat);
"""

STUB = """\
#include <ATen/TensorIterator.h>
#include <metalops/library.h>
#include <torch/library.h>

static at::Tensor NAME(const at::Tensor& self) {
  at::Tensor result;
  auto iterator = at::TensorIterator::unary_op(result, self);
  metalops::library("FAMILY").exec_unary_kernel(iterator, "NAME");
  return iterator.output();
}

TORCH_LIBRARY(EXTENSION, m) {
  m.def("NAME(Tensor self) -> Tensor", NAME);
}
"""


def write_extension(folder, extension, name, expression, family="kernels", library=None):
    """A one-operator extension: `extension`::`name` with its functor in `family`.metal. Returns its sources."""
    folder.mkdir(exist_ok=True)
    metal = folder / f"{family}.metal"
    metal.write_text(FUNCTOR.replace("NAME", name).replace("EXPRESSION", expression))
    stub = folder / f"{family}.mm"
    text = STUB.replace("EXTENSION", extension).replace("FAMILY", library or family)
    stub.write_text(text.replace("NAME", name))
    return [str(metal), str(stub)]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The operator first_extension::twice, whose kernels are in kernels.metal."""
    folder = tmp_path_factory.mktemp("first")
    sources = write_extension(folder, "first_extension", "twice", "x + x")
    path = build.load("first_extension", sources, build_directory=str(folder / "build"))
    return torch.ops.first_extension.twice, path


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_functor_as_in_pytorch_becomes_an_operator(first, dtype):
    twice, _ = first
    x = torch.randn(5, 1000).to("mps", dtype)
    assert torch.equal(twice(x).cpu(), 2 * x.cpu())
    assert torch.equal(twice(x.t()[3:, ::2]).cpu(), 2 * x.cpu().t()[3:, ::2])


@pytest.mark.nightly
def test_equally_named_kernel_files_of_two_extensions_do_not_meet(first, tmp_path):
    twice, _ = first
    sources = write_extension(tmp_path, "second_extension", "twice", "3 * x")
    build.load("second_extension", sources, build_directory=str(tmp_path / "build"))
    x = torch.randn(100, device="mps")
    assert torch.equal(torch.ops.second_extension.twice(x).cpu(), 3 * x.cpu())
    assert torch.equal(twice(x).cpu(), 2 * x.cpu())


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="nm prints ELF symbols this way on Linux only")
def test_an_extension_exports_nothing_that_could_meet_another_extensions(first):
    _, path = first
    symbols = subprocess.run(["nm", "-DC", path], capture_output=True, text=True, check=True).stdout
    exported = [line for line in symbols.splitlines() if " U " not in line]
    assert not [line for line in exported if "metalops::" in line]


@pytest.mark.nightly
def test_an_unknown_kernel_file_is_an_error_that_lists_those_there_are(tmp_path):
    sources = write_extension(tmp_path, "third_extension", "twice", "x + x", library="missing")
    build.load("third_extension", sources, build_directory=str(tmp_path / "build"))
    with pytest.raises(
        RuntimeError, match=r"no kernel file missing\.metal; it was built with kernels"
    ):
        torch.ops.third_extension.twice(torch.ones(3, device="mps"))


def test_a_metal_error_is_a_syntax_error_at_the_users_line(tmp_path):
    sources = write_extension(tmp_path, "fourth_extension", "twice", "x + undeclared_name")
    with pytest.raises(SyntaxError, match="undeclared_name") as caught:
        build.load("fourth_extension", sources, build_directory=str(tmp_path / "build"))
    assert caught.value.filename == sources[0]
    assert caught.value.lineno == 8
    assert "undeclared_name" in caught.value.text


def test_kernel_files_of_the_same_name_in_one_extension_are_refused(tmp_path):
    one = write_extension(tmp_path / "one", "fifth_extension", "twice", "x + x")
    two = write_extension(tmp_path / "two", "fifth_extension", "thrice", "3 * x")
    with pytest.raises(Exception, match="have the same name kernels in one extension"):
        build.load("fifth_extension", [*one, *two], build_directory=str(tmp_path / "build"))


def test_a_missing_source_file_is_named(tmp_path):
    with pytest.raises(Exception, match=r"the source file .*absent\.metal does not exist"):
        build.load("sixth_extension", [str(tmp_path / "absent.metal")])


RUN_FIRST = """\
import metalops, torch
torch.ops.load_library({path!r})
x = torch.randn(100, device="mps")
assert torch.equal(torch.ops.first_extension.twice(x).cpu(), 2 * x.cpu())
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "darwin", reason="load makes no prebuilt library on macOS")
@pytest.mark.parametrize("damage", ["removed", "overwritten"])
def test_the_embedded_source_serves_when_the_prebuilt_library_does_not(first, tmp_path, damage):
    _, path = first
    copy = tmp_path / "extension"
    shutil.copytree(os.path.dirname(path), copy)
    prebuilt = copy / "first_extension.kernels" / "kernels.so"
    if damage == "removed":
        prebuilt.unlink()
    else:
        prebuilt.write_text("not a library")
    script = RUN_FIRST.format(path=str(copy / os.path.basename(path)))
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.full
def test_loading_again_compiles_nothing(first, tmp_path):
    _, path = first
    folder = os.path.dirname(path)
    before = {
        entry.path: entry.stat().st_mtime_ns
        for entry in os.scandir(folder)
        if entry.name.endswith((".o", ".so"))
    }
    sources = [
        os.path.join(os.path.dirname(folder), name) for name in ("kernels.metal", "kernels.mm")
    ]
    script = f"import metalops.build\nmetalops.build.load('first_extension', {sources!r}, build_directory={folder!r})"
    subprocess.run([sys.executable, "-c", script], check=True)
    after = {
        entry.path: entry.stat().st_mtime_ns for entry in os.scandir(folder) if entry.path in before
    }
    assert before and after == before


@pytest.mark.parametrize(
    "name",
    ["../../outside", "/outside", "a/b", "..", ".hidden", "-x", "", "a b", "a\0", "a\n", None, 3],
)
def test_names_that_would_leave_the_folder_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    with pytest.raises(ValueError, match="extension's name"):
        build.load(name, [])
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from torch.utils import cpp_extension
from torch.utils.file_baton import FileBaton

def load(name, sources, build_directory, **others):
    FileBaton(os.path.join(build_directory, "lock")).try_acquire()
    os.kill(os.getpid(), signal.SIGKILL)

cpp_extension.load = load
from metalops import build
build.load("killed", [sys.argv[1]], build_directory=sys.argv[2])
"""


@pytest.mark.nightly
def test_a_build_that_was_killed_keeps_no_other_from_building(tmp_path, monkeypatch):
    """It was killed holding our lock and torch's."""
    from torch.utils import cpp_extension
    from torch.utils.file_baton import FileBaton

    source = tmp_path / "a.cpp"
    source.write_text("int a;")
    folder = tmp_path / "build"
    killed = subprocess.run([sys.executable, "-c", KILLED, source, folder])
    assert killed.returncode == -9
    assert (folder / "lock").exists()

    def load(name, sources, build_directory, **others):
        baton = FileBaton(os.path.join(build_directory, "lock"))
        assert baton.try_acquire()
        baton.release()
        return "loaded"

    monkeypatch.setattr(cpp_extension, "load", load)
    assert build.load("killed", [str(source)], build_directory=str(folder)) == "loaded"
