"""torch.mps.load_metallib: libraries compiled ahead of time."""

import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(
    sys.platform == "darwin", reason="Apple's own libraries are torch's to test"
)

SOURCE = """
kernel void iota(device int* out, constant int& first, uint i [[thread_position_in_grid]]) {
  out[i] = first + i;
}
kernel void zero(device int* out, uint i [[thread_position_in_grid]]) { out[i] = 0; }
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    from metalops import msl

    folder = tmp_path_factory.mktemp("kernels")
    source = folder / "kernels.metal"
    source.write_text(SOURCE)
    library = folder / "kernels.metallib"
    msl.compile_file(str(source), str(library))
    return library


@pytest.mark.reported("a library without a sanitizer")
def test_from_a_path_and_from_bytes(path):
    for library in (path, str(path), path.read_bytes(), bytearray(path.read_bytes())):
        loaded = torch.mps.load_metallib(library)
        assert sorted(dir(loaded)) == ["iota", "zero"]
        out = torch.zeros(5, dtype=torch.int32, device="mps")
        loaded.iota(out, 3, arg_casts="int32")
        assert out.tolist() == [3, 4, 5, 6, 7]
        with pytest.raises(RuntimeError, match="Failed to create function state object for: none"):
            loaded.none  # noqa: B018


@pytest.mark.full
def test_what_the_command_line_compiled_loads_in_another_process(tmp_path):
    source, library = tmp_path / "scaled.metal", tmp_path / "scaled.metallib"
    source.write_text(
        "kernel void iota(device float* out, uint i [[thread_position_in_grid]]) { out[i] = SCALE * i; }"
    )
    command = [sys.executable, "-m", "metalops", "compile", str(source), "-o", str(library)]
    subprocess.run([*command, "-D", "SCALE=0.5f"], check=True, capture_output=True)
    script = (
        "import torch, metalops\n"
        f"library = torch.mps.load_metallib({str(library)!r})\n"
        "out = torch.empty(4, device='mps')\n"
        "library.iota(out)\n"
        "print(dir(library), out.tolist(), library.iota.max_threads_per_threadgroup)\n"
    )
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout
    assert printed == b"['iota'] [0.0, 0.5, 1.0, 1.5] 1024\n"


@pytest.mark.reported("a library without a sanitizer")
def test_a_kernel_outlives_its_library_and_the_file(path, tmp_path):
    copy = tmp_path / "copy.so"
    copy.write_bytes(path.read_bytes())
    zero = torch.mps.load_metallib(copy).zero
    copy.unlink()
    out = torch.ones(5, dtype=torch.int32, device="mps")
    zero(out)
    assert not out.any()


@pytest.mark.parametrize("part", [0.02, 0.5, 0.99])
def test_a_file_that_was_cut_short(path, tmp_path, part):
    """The loader of the system would end the process."""
    data = path.read_bytes()
    short = tmp_path / "short.metallib"
    short.write_bytes(data[: int(part * len(data))])
    for library in (short, short.read_bytes()):
        with pytest.raises(RuntimeError, match="Failed to load metallib.* incomplete"):
            torch.mps.load_metallib(library)


def test_a_missing_file(tmp_path):
    with pytest.raises(
        RuntimeError, match="Failed to load metallib from '.*absent': .*cannot be read"
    ):
        torch.mps.load_metallib(tmp_path / "absent")


def test_a_metallib_for_apple_gpus(tmp_path):
    apple = b"MTLB" + bytes(100)
    (tmp_path / "apple.metallib").write_bytes(apple)
    for library in (apple, tmp_path / "apple.metallib"):
        with pytest.raises(
            RuntimeError, match="it is a metallib for Apple GPUs, which this software"
        ):
            torch.mps.load_metallib(library)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x7fELF" + bytes(1000)])
def test_something_else(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    for library in (content, tmp_path / "file"):
        with pytest.raises(RuntimeError, match="Failed to load metallib"):
            torch.mps.load_metallib(library)


def test_another_type():
    with pytest.raises(TypeError, match="expected bytes or path, got int"):
        torch.mps.load_metallib(3)
