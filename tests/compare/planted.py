"""Faults for tests: other kernels in the place of those for mps."""

import contextlib

import torch
from metalops._torch.internals import remove_library


@contextlib.contextmanager
def planted(name, wrong):
    """In the block an operator of aten ("mm", "add.Tensor") is computed on mps by wrong(right, *args, **kwargs), where
    right(*args, **kwargs) is the kernel that it has."""
    kernel = torch.library.get_kernel(f"aten::{name}", "MPS")

    def call(keys, *args, **kwargs):
        return wrong(lambda *a, **k: kernel.call_boxed(keys, *a, **k), *args, **kwargs)

    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl(name, call, "MPS", with_keyset=True, allow_override=True)
        yield
    finally:
        remove_library(library)


def doubled(right, *args, **kwargs):
    return right(*args, **kwargs) * 2
