"""The flavours of elementwise kernels: those that c10/metal/indexing.h of the installed torch registers are those that
the software device can ask for, each with the arguments that it takes."""

import re
from pathlib import Path

import metalops
import pytest
import torch

from .common import software_device_only

HEADER = Path(torch.__file__).parent / "include/c10/metal/indexing.h"
# Macro -> its arguments after the functor's name; a kernel's name holds the same types.
MACROS = {
    "REGISTER_UNARY_OP": "float, float",
    "REGISTER_UNARY_ALPHA_OP": "float, half, float",
    "REGISTER_BINARY_OP_": "float, float, float",
    "REGISTER_BINARY_OP": "float, float",
    "REGISTER_OPMATH_BINARY_OP": "float, float",
    "REGISTER_BINARY_CASTOUT_OP": "float, float",
    "REGISTER_BINARY_ALPHA_OP": "float, half, float",
    "REGISTER_TERNARY_OP_": "float, float, float",
    "REGISTER_TERNARY_OP": "float, float",
    "REGISTER_OPMATH_TERNARY_OP": "float, float",
    "REGISTER_TERNARY_ALPHA_OP_": "float, half, float, float",
    "REGISTER_TERNARY_ALPHA_OP": "float, half, float",
    "REGISTER_OPMATH_TERNARY_ALPHA_OP": "float, half, float",
}
TYPES = re.compile("(_(float|half|int|bool|AffineParams))+$")

FUNCTOR = """#include <c10/metal/indexing.h>
struct op_functor {
  template <typename... T>
  inline float operator()(const T... x) { return (float(x) + ...); }
};
"""


def macros() -> dict[str, int]:
    """Returns the macros that register kernels, with their numbers of arguments."""
    found = re.findall(r"#define (REGISTER_\w+)\(([^)]*)\)", HEADER.read_text())
    return {name: arguments.count(",") + 1 for name, arguments in found}


def flavour(kernel: str) -> str:
    """Returns the part of a kernel's name between the functor's name and the types."""
    return TYPES.sub("", kernel).split("_", 1)[1]


def registered(macro: str) -> set[str]:
    lines = FUNCTOR + f"{macro}(op, {MACROS[macro]});\n"
    return {flavour(name) for name in dir(torch.mps.compile_shader(lines)) if name[:3] == "op_"}


def test_the_macros_are_known():
    for name, count in macros().items():
        assert name in MACROS, f"torch has a new macro {name}; the device has to know its kernels"
        assert count == MACROS[name].count(",") + 2, f"the arguments of {name} are others"


def whole(*shape, dtype=torch.float32):
    return torch.randint(-8, 9, shape, device="mps").to(dtype)


def strided(*shape):
    return whole(*shape[:-1], 2 * shape[-1])[..., ::2]


def pairs(rows: int = 6, columns: int = 7):
    """Pairs of operands whose layouts differ in what a choice of kernels looks at."""
    half = torch.float16
    dense = whole(rows, columns)
    yield dense, whole(rows, columns)
    yield dense, whole(rows, columns, dtype=half)
    for other in (strided(rows, columns), whole(rows, 9)[:, :columns], whole(rows, 1)):
        yield dense, other
        yield other, dense
        yield other, whole(rows, columns, dtype=half)
    for other in (whole(columns), whole(1), torch.tensor(3.0, device="mps")):
        for one in (other, other.to(half)):
            yield dense, one
            yield one, dense


def launch_all(ops, flavours):
    """Runs every elementwise call on operands of all kinds, compares the results with torch's on the CPU, and yields the
    group of macros of each call."""
    library = "metal_tests"
    for pinned in ("", "scalar", "ilp", "strided", "gpu"):
        flavours(pinned, pinned)
        for out_type in (torch.float32, torch.int32):
            for x in (whole(6, 7), whole(9, 9)[:6, :7], strided(6, 7), whole(2, 3, 9)[:, :, :7]):
                for threshold in (None, 8):
                    out = torch.empty_like(x, dtype=out_type)
                    ops.unary(out, x, library, "triple", ilp_threshold=threshold)
                    assert torch.equal(out.cpu(), (3 * x.cpu()).to(out_type))
                    if out_type != torch.float32:
                        continue
                    ops.unary_affine(out, x, 2.0, 3.0, threshold)
                    assert torch.equal(out.cpu(), 2 * x.cpu() + 3)
                ops.unary(out.float(), x, library, "scale", alpha=2)
        for a, b in pairs():
            shape = torch.broadcast_shapes(a.shape, b.shape)
            for out in (whole(*shape), strided(*shape), whole(6, 9)[:, :7]):
                for threshold in (None, 8):
                    ops.binary(out, a, b, library, "minus_twice", ilp_threshold=threshold)
                    assert torch.equal(out.cpu(), (a.cpu() - 2 * b.cpu()).float())
                ops.binary(out, a, b, library, "minus_scaled", alpha=3)
                assert torch.equal(out.cpu(), (a.cpu() - 3 * b.cpu()).float())
                c = whole(6, 7)
                ops.ternary(out, c, a, b, library, "select_sum")
                if "REGISTER_TERNARY_ALPHA_OP" in macros():
                    ops.ternary(out, c, a, b, library, "scaled_sum", alpha=2.0)
                    assert torch.equal(out.cpu(), (c.cpu() + 2 * a.cpu() + 10 * b.cpu()).float())
            natural = torch.empty(shape, device="mps")
            ops.binary(natural, a.float(), b.float(), library, "less", natural=torch.bool)


# The flavours of the functors in metal_tests.metal, by their macros.
FUNCTORS = {
    "triple": "REGISTER_UNARY_OP",
    "affine": "REGISTER_UNARY_ALPHA_OP",
    "scale": "REGISTER_UNARY_ALPHA_OP",
    "minus_twice": "REGISTER_BINARY_OP",
    "less": "REGISTER_BINARY_CASTOUT_OP",
    "minus_scaled": "REGISTER_BINARY_ALPHA_OP",
    "select_sum": "REGISTER_TERNARY_OP",
    "scaled_sum": "REGISTER_TERNARY_ALPHA_OP",
}


@software_device_only
@pytest.mark.nightly
def test_every_registered_flavour_is_asked_for(metal_tests, flavours, tmp_path):
    with metalops.debug.capture(tmp_path / "launches.trace", contents=False) as trace:
        launch_all(metal_tests, flavours)
    launched = {}
    for name in {launch.kernel for launch in trace.launches}:
        functor = next((f for f in FUNCTORS if name.startswith(f + "_")), None)
        if functor is not None:
            found = launched.setdefault(FUNCTORS[functor], set())
            found.add(flavour(name.removeprefix(functor)))
    known = {macro for macro in FUNCTORS.values() if macro in macros()}
    assert launched.keys() == known
    for macro in known:
        assert registered(macro) == launched[macro], macro
