"""What a replay asks of a kernel on a GPU, without a GPU."""

from types import SimpleNamespace

from metalops.cuda.function import Argument, Function
from metalops.trace.replay import Buffer, _CudaLibrary


def test_buffers_are_those_of_the_kernel():
    arguments = (
        Argument("buffer", 0, 4, True),
        Argument("threadgroup", 0, 4, True),
        Argument("tensor", 3, 2, False),
    )
    function = Function("k", (None, None, None), 0, arguments, True, False, {})
    library = SimpleNamespace(function=lambda device, name: function, launch=None)
    assert _CudaLibrary(library, 0).buffers_of("k") == [Buffer(0, "", 0), Buffer(3, "", 0)]
