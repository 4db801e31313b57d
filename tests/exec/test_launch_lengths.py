"""No launch of a factorisation lasts long on a GPU, however large a matrix is and however many there are.

What a kernel does is counted in basic blocks, of all threads together, by kernels that the host's compiler has instrumented. As clang
makes them, an H100 runs 1.7e11 of those of kernels/linalg/svd.metal a second (16,384 matrices of 64 rows), and 1e8 of those of one simdgroup
that walks down a matrix of 1,024 rows (kernels/linalg/eig_large.metal). LAUNCH is what a GPU of a 25th of its size does in 50 ms, GROUP what
one group does in 40. g++ makes up to 1.8 times as many blocks.
"""

import ctypes
import math
import subprocess
import zlib
from unittest import mock

import pytest
import torch
from metalops import _host, msl
from metalops.msl.source import compiler

from ..ops.aten import skip_unless_ours

_ROOM = {"clang": 1, "gnu": 1.8}[compiler.find().kind]
LAUNCH = 3.5e8 * _ROOM
GROUP = 4e6 * _ROOM

COUNTER = """
extern "C" {
unsigned long long msl_blocks;
void __sanitizer_cov_trace_pc() { __atomic_fetch_add(&msl_blocks, 1, __ATOMIC_RELAXED); }
}
"""


def _symmetric(a):
    return a + a.mT


def _positive(a):
    return a @ a.mT / a.shape[-1] + torch.eye(a.shape[-1])


def _same(a):
    return a


# What is made of random matrices, and what is done with that.
FUNCTIONS = {
    "eigh": (_symmetric, torch.linalg.eigh),
    "eigvalsh": (_symmetric, torch.linalg.eigvalsh),
    "svd": (_same, torch.linalg.svd),
    "svdvals": (_same, torch.linalg.svdvals),
    "eig": (_same, torch.linalg.eig),
    "qr": (_same, torch.linalg.qr),
    "lu_factor": (_same, torch.linalg.lu_factor),
    "inv": (_same, torch.linalg.inv),
    "cholesky": (_positive, torch.linalg.cholesky),
    "ldl_factor": (_symmetric, torch.linalg.ldl_factor),
    "matrix_exp": (lambda a: a / a.shape[-1] ** 0.5, torch.linalg.matrix_exp),
}

# Those that a later torch has kernels for.
LATER_TORCHS = {
    "eigh": "aten::_linalg_eigh.eigenvalues",
    "eigvalsh": "aten::_linalg_eigh.eigenvalues",
    "svd": "aten::_linalg_svd.U",
    "svdvals": "aten::_linalg_svd.U",
    "matrix_exp": "aten::linalg_matrix_exp",
}


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    """(the library with which kernels are linked, its number)"""
    folder = tmp_path_factory.mktemp("counter")
    source, output = folder / "counter.cpp", folder / "libcounter.so"
    source.write_text(COUNTER)
    command = [*compiler.find().command, "-O1", "-fPIC", "-shared", str(source), "-o", str(output)]
    subprocess.run(command, check=True)
    return str(output), ctypes.c_ulonglong.in_dll(ctypes.CDLL(str(output)), "msl_blocks")


class Counts:
    """Launches while it is the hook: (kernel, blocks, groups) of each."""

    def __init__(self, counter):
        self.path, self.number = counter
        self.launches = []
        self.libraries = {}

    def library(self, source, name):
        if (source, name) not in self.libraries:
            flags = "-fsanitize-coverage=trace-pc", "-Wl,--no-as-needed", self.path
            options = msl.Options(kernels=(name,), optimize=1, flags=flags)
            # What a kernel library may ask for does not include the counter.
            with mock.patch("metalops.msl.build._check_object"):
                path = msl.compile_source(zlib.decompress(source).decode(), options=options)
            self.libraries[source, name] = _host.Library(path)
        return self.libraries[source, name]

    def __call__(self, launch):
        _host.set_launch_hook(None)  # what follows is a launch, too
        try:
            library = self.library(launch.source, launch.name)
            if launch.constants:
                library = library.specialise(launch.constants)
            before = self.number.value
            library.launch(
                launch.name,
                _arguments(launch),
                launch.grid,
                launch.group,
                launch.threadgroup_bytes,
            )
            sizes = zip(launch.grid, launch.group, strict=True)
            groups = math.prod(-(-grid // group) for grid, group in sizes)
            self.launches.append((launch.name, self.number.value - before, groups))
        finally:
            _host.set_launch_hook(self)


def _arguments(launch):
    bound = launch.arguments
    arguments = [None] * (1 + max(one["index"] for one in bound))
    for one in bound:
        if one["is_value"]:
            arguments[one["index"]] = ctypes.string_at(one["begin"], one["bytes"])
        elif one["address"] and one["bytes"]:
            rest = one["begin"] + one["bytes"] - one["address"]
            memory = (ctypes.c_uint8 * rest).from_address(one["address"])
            arguments[one["index"]] = torch.frombuffer(memory, dtype=torch.uint8)
    return arguments


@pytest.mark.nightly
@pytest.mark.sampled(24)
@pytest.mark.parametrize("shape", [(1100, 60), (1, 512), (300, 16)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_launches_are_short(name, shape, counter):
    if name in LATER_TORCHS:
        skip_unless_ours(LATER_TORCHS[name])
    check_launches(name, shape, counter)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["cholesky", "qr", "lu_factor", "ldl_factor"])
def test_launches_for_very_many_matrices_are_short(name, counter):
    check_launches(name, (40_000, 20), counter)


def check_launches(name, shape, counter):
    torch.manual_seed(0)
    make, function = FUNCTIONS[name]
    batch, n = shape
    a = make(torch.randn(batch, n, n)).to("mps")
    counts = Counts(counter)
    before = _host.set_launch_hook(counts)
    try:
        function(a)
    finally:
        _host.set_launch_hook(before)
    assert counts.launches
    for kernel, blocks, groups in counts.launches:
        assert blocks <= LAUNCH, f"{kernel}: {blocks:.2g} blocks"
        assert blocks / groups <= GROUP, f"{kernel}: {blocks / groups:.2g} blocks a group"
