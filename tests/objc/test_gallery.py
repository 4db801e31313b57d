"""The Objective-C runtime and Apple's API on the software device, used as programs for a Mac use them. Each file of the gallery
is a subject; each TEST in it is a case here."""

import ctypes
import struct
import sys

import pytest
import torch
from metalops.trace import Launch, load

from .common import names_in

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the API itself"),
]

FILES = [
    "runtime",
    "arc",
    "blocks",
    "dispatch",
    "foundation",
    "buffers",
    "argument_buffers",
    "heaps",
    "textures",
    "library",
    "encoders",
    "queues",
    "operation_utils",
    "captures",
    "system",
]


# It includes torch's headers, which takes as long as all the others.
LONG = {"operation_utils"}


@pytest.mark.parametrize(
    "name, test",
    [
        pytest.param(name, test, marks=[pytest.mark.nightly] if name in LONG else [])
        for name in FILES
        for test in names_in(name)
    ],
)
def test_gallery(run, tmp_path, name, test):
    path = str(tmp_path / "x.trace").encode()
    run(name, test, lambda library: library.set_path(path) if name == "captures" else None)


@pytest.mark.parametrize(
    "test, factors", [("a_capture_of_the_device", [2]), ("a_capture_of_a_scope", [3, 4])]
)
def test_captures_are_traces(run, tmp_path, test, factors):
    path = tmp_path / "x.trace"
    run("captures", test, lambda library: library.set_path(str(path).encode()))
    launches = [event for event in load(path).events if isinstance(event, Launch)]
    assert [launch.kernel for launch in launches] == ["scale"] * len(factors)
    values = [bytes.fromhex(launch.arguments[2].value) for launch in launches]
    assert [struct.unpack("f", value)[0] for value in values] == factors


def pointer(tensor):
    return ctypes.c_void_p(tensor.untyped_storage().data_ptr())


@pytest.mark.parametrize("test", names_in("torch_stream"))
def test_torch_stream(run, test):
    x, out = torch.arange(8.0, device="mps"), torch.zeros(8, device="mps")
    run("torch_stream", test, lambda library: library.set_tensors(pointer(x), pointer(out)))


def length_of(library, tensor):
    library.length_of.restype = ctypes.c_uint64
    return library.length_of(pointer(tensor))


@pytest.mark.parametrize("count", [1, 3, 1000, 9_000_000])
def test_memory_of_every_origin_is_a_buffer_of_its_length(gallery, count):
    library = gallery("torch_stream")
    made = torch.empty(count, device="mps")
    assert length_of(library, made) == 4 * count
    assert length_of(library, made[count // 2 :]) == 4 * count
    results = [torch.linalg.vector_norm(made, dim=0, keepdim=True), made.cumsum(0), made.sort()[0]]
    for result in results:
        assert length_of(library, result) == 4 * result.numel()


def test_memory_of_numpy_that_is_not_aligned(gallery):
    numpy = pytest.importorskip("numpy")
    library = gallery("torch_stream")
    for shift in (4, 16, 32):
        bytes_ = numpy.zeros(4096 + shift, dtype=numpy.uint8)
        array = bytes_[shift:].view(numpy.float32)
        for tensor in (torch.from_numpy(array).to("mps"), torch.tensor(array, device="mps")):
            assert tensor.untyped_storage().data_ptr() % 64 == 0
            assert length_of(library, tensor) == 4096


def error_of_length(library, memory):
    library.error_of_length.restype = ctypes.c_char_p
    return library.error_of_length(memory).decode()


def test_memory_of_a_cpu_tensor_is_no_buffer(gallery):
    library = gallery("torch_stream")
    tensor = torch.zeros(1000)  # alive: the address of freed memory may be given to the device
    message = error_of_length(library, pointer(tensor))
    assert "-[MTLBuffer length]: the memory at 0x" in message
    assert "is not of the mps device; is it that of a CPU tensor?" in message


# A block's size stands in front of it; malloc gives the same bytes to CPU tensors.
def test_memory_of_a_freed_tensor_is_no_buffer(gallery):
    library = gallery("torch_stream")
    tensors = [torch.empty(1000, device="mps") for _ in range(100)]
    blocks = [pointer(tensor) for tensor in tensors]
    assert not any(error_of_length(library, block) for block in blocks)
    del tensors
    assert all(error_of_length(library, block) for block in blocks)
