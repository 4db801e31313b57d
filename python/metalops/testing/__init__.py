"""Tools for tests of operators: sample tensors in every layout, checks against references on the CPU, one tolerance
policy, and OpInfo entries.

Everything is made on the CPU and copied to the device with its layout, so the tests run unchanged on a Mac. This
package is for other packages' operators as much as for those of metalops: a test calls ``check_forward(op, reference,
case, device)`` for each of ``elementwise_cases(...)``.
"""

from __future__ import annotations

from . import faults
from .checks import (
    assert_close,
    check_forward,
    check_gradient,
    check_inplace,
    check_out,
    in_float64,
    no_host_copies,
    no_standins,
)
from .operators import Operator
from .samples import Case, elementwise_cases, layouts, make, special_values, to_device
from .tolerances import tolerance

__all__ = [
    "Case",
    "Operator",
    "assert_close",
    "check_forward",
    "check_gradient",
    "check_inplace",
    "check_out",
    "elementwise_cases",
    "faults",
    "in_float64",
    "layouts",
    "make",
    "no_host_copies",
    "no_standins",
    "opinfo",
    "special_values",
    "to_device",
    "tolerance",
]


def __getattr__(name: str):
    # torch.testing._internal costs seconds to import, and only OpInfo entries need it.
    if name == "opinfo":
        from .opinfos import opinfo

        return opinfo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
