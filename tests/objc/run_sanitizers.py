"""Launches kernels of tests/sanitize/gallery, and their corrected twins, from Objective-C, under the sanitizer of
METALOPS_SANITIZE. Prints what was found, a JSON object a line: {"case": name, "wrong": text, "right": text}. The arguments:
the compiled gallery/sanitizers.mm, stream or queue, and the names of the cases.
"""

from __future__ import annotations

import ctypes
import json
import sys
import warnings
from pathlib import Path

import metalops  # noqa: F401  the device
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "sanitize"))
import gallery  # noqa: E402


def floats(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="mps")


def ints(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int32, device="mps")


def three(size: int | tuple[int, ...]) -> list[int]:
    sizes = [size] if isinstance(size, int) else list(size)
    return [*sizes, 1, 1][:3]


def find(library: ctypes.CDLL, on_own_queue: bool, source: str, expression: str) -> str:
    """What a launch raises or warns of."""

    def raw(tensors, threads, group_size, shared=None):
        pointers = [t.untyped_storage().data_ptr() for t in tensors]
        return library.launch(
            source.encode(),
            (ctypes.c_void_p * len(pointers))(*pointers),
            ctypes.c_ulong(len(pointers)),
            (ctypes.c_ulong * 6)(*three(threads), *three(group_size)),
            ctypes.c_ulong((shared or {}).get(0, 0)),
            on_own_queue,
        ).decode()

    def kernel(*tensors, threads=None, group_size=256):
        return raw(tensors, tensors[0].numel() if threads is None else threads, group_size)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text = eval(expression, {"kernel": kernel, "raw": raw, "floats": floats, "ints": ints})
    return text + "".join(str(one.message) for one in caught)


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    library.launch.restype = ctypes.c_char_p
    for name in sys.argv[3:]:
        case = gallery.read(gallery.FOLDER / f"{name}.metal")
        found = {
            which: find(library, sys.argv[2] == "queue", source, case.launch)
            for which, source in (("wrong", case.source), ("right", case.twin))
        }
        print(json.dumps({"case": name, **found}), flush=True)


if __name__ == "__main__":
    main()
