"""Tensors of the device: making, viewing, indexing, copying, printing, saving."""

import copy
import io
import pickle

import numpy
import pytest
import torch
from torch import nn


def test_backend_is_there():
    assert torch.backends.mps.is_available()
    assert torch.backends.mps.is_built()
    assert torch.mps.is_available()
    assert torch.mps.device_count() == 1
    assert torch.backends.mps.is_macos_or_newer(14, 0)
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("mps")
    assert torch.accelerator.device_count() == 1
    torch.accelerator.set_device_index(0)
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()
    torch.mps.synchronize()


def test_print():
    text = repr(torch.arange(6, device="mps").view(2, 3).t())
    assert "device='mps:0'" in text
    assert "[2, 5]" in text


def test_default_device():
    with torch.device("mps"):
        assert torch.ones(2).device.type == "mps"
        assert nn.Linear(2, 2).weight.device.type == "mps"
    torch.set_default_device("mps")
    try:
        assert torch.zeros(3).device.type == "mps"
    finally:
        torch.set_default_device(None)


def test_views_share_memory():
    x = torch.arange(12.0, device="mps").view(3, 4)
    view = x[1:, ::2]
    view.add_(100)
    expected = torch.arange(12.0).view(3, 4)
    expected[1:, ::2] += 100
    torch.testing.assert_close(x.cpu(), expected)
    assert view._base is not None
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert x.t().diagonal().data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.unfold(1, 2, 1),
        lambda x: x.split(2)[1],
        lambda x: x.chunk(2, 1)[1],
        lambda x: x.view(torch.int32),
        lambda x: torch.view_as_complex(x.view(3, 2, 2)).imag,
        lambda x: x.expand(2, 3, 4)[1],
        lambda x: x.movedim(0, 1),
        lambda x: x.narrow(0, 1, 1),
        lambda x: torch.as_strided(x, (2, 2), (1, 4), 3),
        lambda x: x.select(1, 2),
        lambda x: x.unsqueeze(0).squeeze(),
        lambda x: x.reshape(4, 3),
    ],
)
def test_view_agrees_with_the_cpu(view):
    x = torch.arange(12.0).view(3, 4)
    torch.testing.assert_close(view(x.to("mps")).cpu(), view(x))


def test_view_in_place_has_gradients():
    x = torch.ones(4, device="mps", requires_grad=True)
    y = x * 2
    y[1:3].mul_(3)
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), torch.tensor([2.0, 6.0, 6.0, 2.0]))


def test_indexing_agrees_with_the_cpu():
    def work(device):
        x = torch.arange(25.0).view(5, 5).to(device)
        index = torch.tensor([0, 3], device=device)
        x[x > 20] = 0
        x[index] += 1
        x.scatter_add_(0, torch.zeros(1, 5, dtype=torch.long, device=device), x[:1].clone())
        top = x.topk(2)
        return [
            x,
            x[index, index],
            x.nonzero(),
            x.sort(descending=True).values,
            top.values,
            torch.cat([x, x]),
            torch.einsum("ij,jk->ik", x, x),
            torch.where(x > 3, x, -x),
            x.unique(),
            x.cumsum(0),
            x.masked_select(x > 7),
            torch.linalg.solve(x + 10 * torch.eye(5, device=device), x),
        ]

    for actual, expected in zip(work("mps"), work("cpu"), strict=True):
        torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_ldexp_with_integral_exponents(dtype):
    x, exponent = torch.tensor([1, 3, 5]).to(dtype), torch.tensor([0, 2, 5], dtype=torch.int32)
    expected = torch.ldexp(x, exponent)
    torch.testing.assert_close(torch.ldexp(x.to("mps"), exponent.to("mps")).cpu(), expected)
    out = torch.empty(0, dtype=expected.dtype, device="mps")
    torch.testing.assert_close(
        torch.ldexp(x.to("mps"), exponent.to("mps"), out=out).cpu(), expected
    )
    leaf = torch.ones(3, device="mps", requires_grad=True)
    torch.ldexp(leaf, exponent.to("mps")).sum().backward()
    assert leaf.grad.tolist() == [1, 4, 32]


def test_index_of_another_device():
    x = torch.arange(5.0, device="mps")
    assert x[torch.tensor([0, 4])].tolist() == [0, 4]
    x[torch.tensor([1])] = 7
    assert x[1].item() == 7


def test_scalar_of_another_device():
    assert (torch.ones(2, device="mps") + torch.tensor(1.0)).tolist() == [2, 2]


def test_out_argument_grows():
    out = torch.empty(0, device="mps")
    assert torch.cos(torch.zeros(5, device="mps"), out=out) is out
    assert out.tolist() == [1] * 5
    indices = torch.empty(0, dtype=torch.long, device="mps")
    torch.nonzero(torch.ones(4, device="mps"), out=indices)
    assert indices.shape == (4, 1)


def test_resize_keeps_contents():
    x = torch.arange(2.0, device="mps")
    x.resize_(100)
    assert x[:2].tolist() == [0, 1]
    assert x.untyped_storage().nbytes() == 400


def test_complex_numbers():
    x = torch.randn(8, device="mps", requires_grad=True)
    y = torch.fft.rfft(x)
    torch.testing.assert_close(y.detach().cpu(), torch.fft.rfft(x.detach().cpu()))
    y.abs().sum().backward()
    assert x.grad.device.type == "mps"
    conjugate = y.detach().conj()
    assert conjugate.is_conj()
    torch.testing.assert_close((conjugate + 1).cpu(), y.detach().cpu().conj() + 1)
    torch.testing.assert_close(conjugate.imag.cpu(), -y.detach().cpu().imag)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies(dtype, non_blocking):
    x = torch.arange(6).view(2, 3).to(dtype)
    on_mps = x.to("mps", non_blocking=non_blocking)
    torch.testing.assert_close(on_mps.cpu(), x)
    target = torch.empty(3, 2, dtype=torch.float32)
    target.t().copy_(on_mps, non_blocking=non_blocking)
    torch.testing.assert_close(target.t(), x.float())
    back = torch.zeros(2, 3, device="mps")
    back.copy_(x, non_blocking=non_blocking)
    torch.testing.assert_close(back.cpu(), x.float())
    back[0].copy_(torch.tensor(5))
    assert back[0].tolist() == [5, 5, 5]


def test_copy_between_overlapping_views():
    x = torch.arange(6.0, device="mps")
    y = torch.empty_like(x).copy_(x.flip(0))
    assert y.tolist() == [5, 4, 3, 2, 1, 0]


def test_numpy_needs_the_cpu():
    x = torch.ones(2, dtype=torch.float16, device="mps")
    assert numpy.array_equal(x.cpu().numpy(), numpy.ones(2, dtype=numpy.float16))
    with pytest.raises(TypeError, match="convert mps:0 device type tensor to numpy"):
        x.numpy()


def test_pinned_memory():
    pinned = torch.ones(3).pin_memory()
    assert pinned.is_pinned()
    assert not torch.ones(3).is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert pinned[1:].is_pinned()
    assert pinned.to("mps", non_blocking=True).tolist() == [1, 1, 1]


def test_save_and_load():
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(3.0, device="mps")}, buffer)
    for location, device in ((None, "mps"), ("cpu", "cpu"), ("mps", "mps")):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=location)["a"]
        assert loaded.device.type == device
        assert loaded.tolist() == [0, 1, 2]
    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer)
    buffer.seek(0)
    assert torch.load(buffer, map_location="mps").device.type == "mps"


def test_state_dict_across_devices():
    on_cpu = nn.Linear(2, 2)
    on_mps = nn.Linear(2, 2, device="mps")
    on_mps.load_state_dict(on_cpu.state_dict())
    torch.testing.assert_close(on_mps.weight.cpu(), on_cpu.weight)
    assert nn.Linear(2, 2, device="meta").to_empty(device="mps").weight.device.type == "mps"


def test_deepcopy_and_pickle():
    x = torch.randn(2, device="mps")
    for twin in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert twin.device.type == "mps"
        assert twin.data_ptr() != x.data_ptr()
        torch.testing.assert_close(twin, x)
    parameter = copy.deepcopy(nn.Parameter(x))
    assert isinstance(parameter, nn.Parameter)
    assert parameter.device.type == "mps"


def test_storages():
    storage = torch.arange(4, dtype=torch.uint8, device="mps").untyped_storage()
    assert storage.device.type == "mps"
    assert storage.nbytes() == 4
    assert storage[3] == 3
    assert storage.cpu().device.type == "cpu"
    assert storage.mps().device.type == "mps"
    twin = storage.clone()
    twin.resize_(32)
    assert twin.nbytes() == 32
    assert [twin[i] for i in range(4)] == [0, 1, 2, 3]
    twin.resize_(2)
    assert (twin.nbytes(), twin[1]) == (2, 1)
    assert storage.nbytes() == 4
    assert torch.UntypedStorage(5, device="mps").nbytes() == 5


def test_resized_storage_under_a_tensor():
    x = torch.arange(4.0, device="mps")
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    x.untyped_storage().resize_(16)
    x.fill_(2)
    assert x.tolist() == [2] * 4


def test_storage_refuses_a_negative_size():
    with pytest.raises(RuntimeError, match="non-negative size"):
        torch.empty(1, device="mps").untyped_storage().resize_(-1)


def test_host_alias_shares_memory():
    x = torch.zeros(4, device="mps")
    alias = torch.mps._host_alias_storage(x.untyped_storage())
    assert alias.device.type == "cpu"
    on_cpu = torch.empty(0).set_(alias, 0, (4,))
    on_cpu.fill_(3)
    assert x.tolist() == [3] * 4
    del x
    assert on_cpu.tolist() == [3] * 4
    with pytest.raises(RuntimeError, match="expected an MPS storage"):
        torch.mps._host_alias_storage(torch.zeros(1).untyped_storage())


def test_dlpack():
    x = torch.ones(3, device="mps")
    assert torch.from_dlpack(x).device.type == "mps"


def test_zero_tensor_of_forward_derivatives():
    x = torch._efficientzerotensor(3, device="mps")
    assert x._is_zerotensor()
    assert (x + torch.ones(3, device="mps")).tolist() == [1, 1, 1]


def test_deterministic_fill_of_new_memory():
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device="mps").isnan().all()
        assert (torch.empty_strided((2,), (1,), dtype=torch.int32, device="mps") == 2**31 - 1).all()
    finally:
        torch.use_deterministic_algorithms(False)
