"""Functions of torch.compile run uncompiled under metalops.debug.compare(), and so does the comparison itself."""

import metalops
import pytest
import torch
from metalops.debug import compare
from metalops.testing.faults import replaced
from torch import nn

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not metalops._is_software, reason="compiles for the software device"),
]


def test_compiled_functions_run_uncompiled_by_default(fresh_compiler):
    compiled = torch.compile(lambda x: x.sin() * 2)
    x = torch.randn(4, 8, device="mps")
    compiled(x)
    with compare() as comparison:
        compiled(x)
    assert comparison.compared == 2


def test_modules_that_were_compiled_have_their_names(fresh_compiler):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to("mps")
    compiled = torch.compile(model)
    calls = []

    def wrong(kernel, *args, **kwargs):
        calls.append(1)
        return kernel(*args, **kwargs) + len(calls) // 2

    with replaced("addmm", wrong), compare(halt=False) as comparison:
        compiled(torch.randn(4, 8, device="mps"))
    assert [d.module for d in comparison.differences] == ["1"]
