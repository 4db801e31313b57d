"""torch.linalg.matrix_sqrth, square roots of Hermitian matrices: csrc/ops/linalg/eigh.mm."""

import pytest
import torch

from ..aten import assert_refused_as_on_the_cpu
from .linear_algebra import WIDE, dtypes

pytestmark = pytest.mark.skipif(
    not hasattr(torch.linalg, "matrix_sqrth"), reason="torch 2.14 added the function"
)


@dtypes
@pytest.mark.parametrize(
    "shape", [(1, 1), (5, 5), (2, 3, 9, 9), (40, 40), (0, 3, 3), (2, 0, 0)], ids=str
)
def test_square_roots(dtype, shape):
    x = torch.randn(shape, dtype=WIDE[dtype])
    a = (x @ x.mH).to(dtype)
    root = torch.linalg.matrix_sqrth(a.tril().to("mps"))  # what is above the diagonal is not read
    assert torch.equal(root, root.mH) and root.dtype == dtype
    torch.testing.assert_close(
        root.cpu(), torch.linalg.matrix_sqrth(a.to(WIDE[dtype])).to(dtype), rtol=1e-3, atol=1e-3
    )
    torch.testing.assert_close((root @ root).cpu(), a, rtol=1e-4, atol=1e-4)


def test_square_roots_of_matrices_that_are_not_positive_are_those_of_the_cpu():
    for a in (torch.diag(torch.tensor([-1.0, 4.0])), torch.zeros(3, 3)):
        torch.testing.assert_close(
            torch.linalg.matrix_sqrth(a.to("mps")).cpu(), torch.linalg.matrix_sqrth(a)
        )
    assert_refused_as_on_the_cpu(
        [
            lambda move: torch.linalg.matrix_sqrth(move(torch.ones(3))),
            lambda move: torch.linalg.matrix_sqrth(move(torch.ones(2, 3))),
            lambda move: torch.linalg.matrix_sqrth(move(torch.ones(2, 2).half())),
            lambda move: torch.linalg.matrix_sqrth(move(torch.ones(2, 2).int())),
        ],
        RuntimeError,
        NotImplementedError,
    )
