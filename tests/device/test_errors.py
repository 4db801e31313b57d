"""Errors that a Mac raises: devices, dtypes, dimensions, layouts."""

import pytest
import torch
from torch.nn import functional as F
from torch.torch_version import TorchVersion

FLOAT64 = (
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
    "Please use float32 instead."
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, dtype=torch.float64, device="mps"),
        lambda: torch.empty_strided((2,), (1,), dtype=torch.float64, device="mps"),
        lambda: torch.ones(2, device="mps").double(),
        lambda: torch.ones(2, dtype=torch.float64).to("mps"),
        lambda: torch.ones(2, device="mps").sum(dtype=torch.float64),
        lambda: torch.tensor([1.0], dtype=torch.float64, device="mps"),
        lambda: torch.float_power(torch.ones(2, device="mps"), 2),
        lambda: torch.rand(2, dtype=torch.float64, device="mps"),
    ],
)
def test_float64_is_refused(make):
    with pytest.raises(TypeError) as raised:
        make()
    assert str(raised.value) == FLOAT64


def test_complex128_is_refused():
    with pytest.raises(
        TypeError, match="Trying to convert ComplexDouble to the MPS backend but it does not have"
    ):
        torch.ones(2, dtype=torch.complex128, device="mps")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_moved_and_not_computed_with(dtype):
    error, message = TypeError, "Trying to convert Float8_.* to the MPS backend"
    if dtype == torch.float8_e4m3fn and TorchVersion(torch.__version__) >= (2, 15):
        # It has a name in Metal there, and some operators have kernels for it.
        error, message = (TypeError, NotImplementedError), "Float8_"
    x = torch.ones(2).to(dtype)
    on_mps = x.to("mps")
    assert torch.equal(on_mps.cpu().view(torch.uint8), x.view(torch.uint8))
    for call in (
        lambda: torch.add(on_mps, on_mps),
        lambda: torch.sort(on_mps),
        lambda: torch._foreach_add([on_mps], 1.0),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize(
    ("call", "devices"),
    [
        (lambda m, c: m + c, "mps:0 and cpu"),
        (lambda m, c: c + m, "cpu and mps:0"),
        (lambda m, c: m @ c, "mps:0 and cpu"),
        (lambda m, c: torch.where(m > 0, m, c), "mps:0 and cpu"),
        (lambda m, c: torch.cat([m, c]), "mps:0 and cpu"),
        (lambda m, c: m.add_(c), "mps:0 and cpu"),
        (lambda m, c: F.embedding(torch.tensor([0]), m), "mps:0 and cpu"),
        (lambda m, c: torch.addmm(m, c, m), "mps:0 and cpu"),
    ],
)
def test_mixed_devices(call, devices):
    message = (
        f"Expected all tensors to be on the same device, but found at least two devices, {devices}!"
    )
    with pytest.raises(RuntimeError) as raised:
        call(torch.ones(2, 2, device="mps"), torch.ones(2, 2))
    assert str(raised.value) == message


def test_mixed_devices_in_indexing():
    m, c = torch.ones(3, 3, device="mps"), torch.ones(3, 3)
    message = r"indices should be either on cpu or on the same device .* \(cpu\)"
    with pytest.raises(RuntimeError, match=message):
        c[torch.tensor([0], device="mps")]
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        m[torch.tensor([0, 1])] = c[:2]


def test_mixed_devices_in_linear():
    m, c = torch.ones(2, 2, device="mps"), torch.ones(2, 2)
    with pytest.raises(
        RuntimeError, match="Tensor for argument weight is on cpu but expected on mps"
    ):
        F.linear(m, c)
    with pytest.raises(
        RuntimeError, match="Tensor for argument input is on cpu but expected on mps"
    ):
        F.linear(c, m)
    with pytest.raises(
        RuntimeError, match="Tensor for argument bias is on cpu but expected on mps"
    ):
        F.linear(m, m, c[0])


def test_integers_in_linear():
    x, w = torch.ones(2, 2, device="mps"), torch.ones(2, 2, dtype=torch.int8, device="mps")
    with pytest.raises(
        RuntimeError, match="MPS device does not support linear for non-float weights"
    ):
        F.linear(x, w)
    with pytest.raises(
        RuntimeError, match="MPS device does not support linear for non-float inputs"
    ):
        F.linear(w, x)


def test_mixed_devices_in_convolution():
    message = (
        r"Input type \(MPSFloatType\) and weight type \(torch.FloatTensor\) should be the same"
    )
    with pytest.raises(RuntimeError, match=message):
        torch.nn.Conv2d(2, 2, 1)(torch.ones(1, 2, 3, 3, device="mps"))


def complex_matrix():
    return torch.eye(2, dtype=torch.complex64, device="mps")


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype, device="mps")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: F.conv1d(ones(1, 1, 3, dtype=torch.long), ones(1, 1, 3, dtype=torch.long)),
            "Convolution is supported only for Floating types",
        ),
        (
            lambda: F.conv_transpose3d(ones(1, 1, 2, 2, 2).half(), ones(1, 1, 2, 2, 2).half()),
            "ConvTranspose 3D with BF16 or FP16 types is not supported on MPS",
        ),
        (
            lambda: ones(2, dtype=torch.long).index_reduce(
                0, torch.tensor([0], device="mps"), ones(1, dtype=torch.long), "prod"
            ),
            "index_reduce for MPS does not support torch.long dtype",
        ),
        (
            lambda: complex_matrix().index_reduce(
                0, torch.tensor([0], device="mps"), complex_matrix()[:1], "prod"
            ),
            "index_reduce for MPS does not support torch.cfloat dtype",
        ),
        (
            lambda: torch.addmm(*[complex_matrix()] * 3, alpha=1j),
            "value cannot be converted to type double without overflow",
        ),
        (
            lambda: torch.addr(complex_matrix(), *[complex_matrix()[0]] * 2, beta=1j),
            "value cannot be converted to type double without overflow",
        ),
        (
            lambda: torch.addr(ones(2, 2), ones(2, dtype=torch.int), ones(2)),
            "MPS device does not support addr for non-float input",
        ),
        (
            lambda: torch.renorm(complex_matrix(), 2, 0, 1),
            "Failed to create function state object for: renorm_float2",
        ),
        (
            lambda: F.silu(complex_matrix().t()),
            "Failed to create function state object for: silu_dense_castout_float2",
        ),
        (
            lambda: torch.round(ones(2, dtype=torch.short), decimals=1),
            "Failed to create function state object for: round_decimals_dense_short_short_long",
        ),
        (
            lambda: F.interpolate(ones(1, 1, 2, 2, dtype=torch.uint8), 4, mode="bicubic"),
            "Failed to create function state object for: upsample_bicubic2d_uchar",
        ),
        (
            lambda: F.interpolate(
                ones(1, 1, 2, 2, dtype=torch.uint8), 4, mode="bilinear", antialias=True
            ),
            "_upsample_bilineard2d_aa_out_mps only supports floating-point dtypes",
        ),
        (
            lambda: F.interpolate(
                ones(1, 1, 2, 2, dtype=torch.uint8), 4, mode="bicubic", antialias=True
            ),
            "_upsample_bicubic2d_aa_out_mps only supports floating-point dtypes",
        ),
    ],
)
def test_arguments_that_mps_kernels_refuse(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones([1] * 17, device="mps"),
        lambda: torch.ones([1] * 17).to("mps"),
        lambda: torch.ones(1, device="mps").view([1] * 17) + 1,
        lambda: torch.ones([1] * 16, device="mps").unsqueeze(0).sin(),
    ],
)
def test_more_than_16_dimensions(make):
    with pytest.raises(
        RuntimeError, match="MPS supports tensors with dimensions <= 16, but got 17."
    ):
        make()


def test_16_dimensions():
    assert torch.ones([1] * 16, device="mps").sin().dim() == 16


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc], ids=str)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_compressed_sparse_tensors_are_refused(layout):
    for make in (
        lambda: torch.eye(3).to_sparse(layout=layout).to("mps"),
        lambda: torch.empty(2, 2, layout=layout, device="mps"),
        lambda: torch.eye(3, device="mps").to_sparse(layout=layout),
    ):
        with pytest.raises(
            NotImplementedError,
            match="_to_sparse_cs.*MPS|new_compressed_tensor|sparse compressed tensors on the MPS",
        ):
            make()


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors_are_refused():
    x = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    with pytest.raises(NotImplementedError, match="quantized tensors on the MPS device"):
        x.to("mps")
    with pytest.raises(NotImplementedError, match="quantized tensors on the MPS device"):
        torch.empty(3, dtype=torch.quint8, device="mps")


def test_pinned_device_memory_is_refused():
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device="mps", pin_memory=True)


def test_errors_of_the_cpu_kernel_pass_through():
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        torch.ones(2, device="mps") + torch.ones(3, device="mps")
    with pytest.raises(IndexError, match="out of bounds"):
        torch.ones(2, device="mps")[torch.tensor([5], device="mps")]
    with pytest.raises(RuntimeError, match="with two bool tensors is not supported"):
        torch.ones(2, device="mps").bool() - torch.ones(2, device="mps").bool()
