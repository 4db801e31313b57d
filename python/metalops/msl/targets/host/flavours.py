"""Finds the kernels of an elementwise operator that matter for speed on a CPU, by the names that <c10/metal/indexing.h>
gives them. Only the compiler's optimisation effort depends on it."""

from __future__ import annotations

import re
from collections.abc import Collection

_RARE = re.compile(
    r"_strided(?:_|$)|_dense_(?:castout|cast|broadcast|scalar_lhs|scalar_cast)"
    r"|_(?:long|int|short|uchar|char|bool)$"
)


def left_alone(names: Collection[str]) -> set[str]:
    """Returns those of `names` that the software device never picks by itself: the flavours that compute several
    elements per thread, if there is a flavour for one element."""
    siblings = {}
    for name in names:
        if "_dense_ilp" in name:
            siblings[name] = re.sub(r"_dense_ilp\d+", "_dense", name)
        elif "_castout_ilp_" in name:
            siblings[name] = name.replace("_castout_ilp_", "_castout_")
        elif re.search(r"_dense_(?!scalar|cast|broadcast)", name):
            binary = any(name.replace("_dense_", f"_dense_ilp{n}_") in names for n in (2, 4, 8))
            if not binary:
                siblings[name] = name.replace("_dense_", "_dense_scalar_")
    return {name for name, sibling in siblings.items() if sibling in names}


def is_rare(name: str) -> bool:
    """Returns true for a flavour for operands that are strided, cast or broadcast, or for integers."""
    return _RARE.search(name) is not None
