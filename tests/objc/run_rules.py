"""Runs every case of gallery/rules.mm and its twin, and prints what was raised or warned of, a JSON object a line:
{"case": name, "wrong": text, "right": text}. The arguments: the compiled file, and the names of the cases.
"""

from __future__ import annotations

import ctypes
import json
import sys

import metalops  # noqa: F401  the device
import torch

SOURCE = "kernel void twice(device float* x, uint i [[thread_position_in_grid]]) { x[i] *= 2; }"


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.untyped_storage().data_ptr())


# What torch does before and after a case, by the case's name.
BEFORE = {
    "second_encoder": lambda tensors: torch.mps.compile_shader(SOURCE).twice(tensors["x"]),
    "unsynchronised_queue__after_torch": lambda tensors: tensors["x"].mul_(2),
}
AFTER = {
    "encoder_not_ended__on_torchs_buffer": lambda tensors: tensors["x"] + 1,
    "freed_in_flight": lambda tensors: tensors.pop("out"),
    "unsynchronised_queue": lambda tensors: tensors["out"] + 1,
    "unsynchronised_queue__texture": lambda tensors: tensors["out"] + 1,
    "unsynchronised_queue__event": lambda tensors: tensors["out"] + 1,
}


def nothing(tensors: dict[str, torch.Tensor]) -> None:
    pass


def run(library: ctypes.CDLL, name: str, which: str) -> str:
    """What a case raises or warns of, in itself, in what torch does afterwards or when the host waits."""
    tensors = {
        "x": torch.arange(64.0, device="mps"),
        "out": torch.zeros(64, device="mps"),
    }
    torch.mps.synchronize()
    library.set_tensors(pointer(tensors["x"]), pointer(tensors["out"]))
    BEFORE.get(name, nothing)(tensors)
    function = library[f"{which}_{name}"]
    function.restype = ctypes.c_char_p
    text = function().decode()
    try:
        AFTER.get(name, nothing)(tensors)
    except RuntimeError as error:
        text += f"torch raised: {error}"
    library.end_case.restype = ctypes.c_char_p
    text += library.end_case().decode()
    try:
        torch.mps.synchronize()
    except RuntimeError as error:
        text += f"it raised later: {error}"
    return text


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    for name in sys.argv[2:]:
        found = {which: run(library, name, which) for which in ("wrong", "right")}
        print(json.dumps({"case": name, **found}), flush=True)


if __name__ == "__main__":
    main()
