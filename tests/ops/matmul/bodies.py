"""Which of the two bodies of products tests take: that of tensors, or that of simdgroup matrices."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

NAMES = ("tensor", "simdgroup")


def with_dtypes(dtypes: Iterable[torch.dtype]) -> pytest.MarkDecorator:
    """A test with the fixture `body` for each dtype and body. Each pair has kernels of its own, which are instantiations of
    the same templates: the nightly tier has half precision with simdgroup matrices."""
    return pytest.mark.parametrize(
        ("dtype", "body"),
        [
            pytest.param(
                *(dtype, name),
                marks=pytest.mark.nightly if dtype.itemsize == 2 and name != NAMES[0] else (),
            )
            for dtype in dtypes
            for name in NAMES
        ],
        indirect=["body"],
        ids=str,
    )


# A test that repeats with simdgroup matrices what others of its file show.
tensors_first = pytest.mark.parametrize(
    "body", [NAMES[0], pytest.param(NAMES[1], marks=pytest.mark.nightly)], indirect=True
)
