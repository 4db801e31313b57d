"""_functional_assert_async.msg and _make_dep_token."""

import pytest
import torch
from torch.ops import aten

from ..aten import served_by_us


def test_a_token_is_a_single_value_on_the_device():
    token = aten._make_dep_token(device="mps")
    assert (token.shape, token.dtype, token.device.type) == ((), torch.float32, "mps")
    assert aten._make_dep_token(dtype=torch.int32, device="mps").dtype == torch.int32


@pytest.mark.parametrize("dtype", (torch.float32, torch.bool, torch.int64), ids=str)
def test_an_assertion_that_holds_returns_a_copy_of_the_token(dtype):
    token = torch.tensor(3.0, device="mps")
    result = aten._functional_assert_async.msg(
        torch.ones((), dtype=dtype, device="mps"), "not so", token
    )
    assert result.item() == 3 and result.data_ptr() != token.data_ptr()


def test_an_assertion_that_fails_raises_its_message_when_the_host_waits_at_the_latest():
    with pytest.raises(RuntimeError, match="not so"):
        aten._functional_assert_async.msg(
            torch.zeros((), device="mps"), "not so", torch.zeros((), device="mps")
        )
        torch.mps.synchronize()


def test_no_stand_in():
    one = torch.ones((), device="mps")

    def call():
        token = aten._make_dep_token(device="mps")
        aten._functional_assert_async.msg(one, "not so", token)

    assert served_by_us(call) == []
