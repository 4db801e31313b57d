"""dequantize of tensors that are not quantised."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_result_is_float32(dtype):
    x = torch.tensor([[0, 1], [1, 1]], dtype=dtype)
    found = x.to("mps").T.dequantize()
    assert found.dtype == torch.float32 and found.device.type == "mps"
    assert torch.equal(found.cpu(), x.T.dequantize())


def test_fake_tensors():
    with FakeTensorMode():
        assert torch.empty(3, dtype=torch.float16, device="mps").dequantize().dtype == torch.float32
