"""c10d's operations on mps tensors give what they give on CPU tensors."""

import os

import pytest
import torch
import torch.distributed as dist

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.complex64,
]


def make(shape, dtype, device, shift=0):
    """The same numbers for every device, others for each rank."""
    values = torch.arange(1 + shift, 1 + shift + torch.Size(shape).numel()).reshape(shape) * 7 % 23
    values = values + 3 * dist.get_rank()
    if dtype.is_complex:
        values = torch.complex(values.float(), 1 - values.float())
    return (values % 2 if dtype == torch.bool else values).to(dtype).to(device)


def layouts(shape, dtype, device):
    """Tensors with the same elements, in memory in every way."""
    x = make(shape, dtype, device)
    yield "contiguous", x.clone()
    yield "transposed", x.mT.contiguous().mT
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=dtype, device=device)
    wide[..., ::2] = x
    yield "strided", wide[..., ::2]
    padded = torch.zeros(x.numel() + 8, dtype=dtype, device=device)
    padded[3 : 3 + x.numel()] = x.flatten()
    yield "bucket view", padded[3 : 3 + x.numel()].view(shape)


def broadcast(x):
    dist.broadcast(x, 1)
    return x


def all_reduce(x):
    dist.all_reduce(x)
    return x


def reduce(x):
    dist.reduce(x, 1)
    return x if dist.get_rank() == 1 else None


def outputs(x, count=2):
    return [torch.empty_like(x) for _ in range(count)]


def all_gather(x):
    out = outputs(x)
    dist.all_gather(out, x)
    return out


def all_gather_into_tensor(x):
    out = torch.empty(2 * x.shape[0], *x.shape[1:], dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(out, x)
    return out


def gather(x):
    out = outputs(x) if dist.get_rank() == 1 else None
    dist.gather(x, out, 1)
    return out


def scatter(x):
    out = torch.empty_like(x)
    dist.scatter(out, [x, x.flip(0)] if dist.get_rank() == 0 else None, 0)
    return out


def reduce_scatter(x):
    out = torch.empty_like(x)
    dist.reduce_scatter(out, [x, x.flip(0)])
    return out


def reduce_scatter_tensor(x):
    out = torch.empty(x.shape[0] // 2, *x.shape[1:], dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(out, x)
    return out


def all_to_all(x):
    out = outputs(x)
    dist.all_to_all(out, [x, x.flip(0)])
    return out


def all_to_all_single(x):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


def all_to_all_single_uneven(x):
    mine = [1, 3] if dist.get_rank() == 0 else [2, 2]
    theirs = [1, 2] if dist.get_rank() == 0 else [3, 2]
    out = torch.empty(sum(theirs), *x.shape[1:], dtype=x.dtype, device=x.device)
    dist.all_to_all_single(out, x, theirs, mine)
    return out


def send_and_recv(x):
    out = torch.empty_like(x)
    if dist.get_rank() == 0:
        dist.send(x, 1, tag=5)
        source = dist.recv(out, tag=6)
    else:
        source = dist.recv(out, 0, tag=5)
        dist.send(x, 0, tag=6)
    assert source == 1 - dist.get_rank()
    return out


def batched_send_and_recv(x):
    out = torch.empty_like(x)
    other = 1 - dist.get_rank()
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, out, other)]
    )
    for work in works:
        work.wait()
    return out


OPERATIONS = [
    broadcast,
    all_reduce,
    reduce,
    all_gather,
    all_gather_into_tensor,
    gather,
    scatter,
    reduce_scatter,
    reduce_scatter_tensor,
    all_to_all,
    all_to_all_single,
    all_to_all_single_uneven,
    send_and_recv,
    batched_send_and_recv,
]

# Gloo's own kernels do not take these on the CPU, so the reference is that of another dtype.
WIDER = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
    torch.complex64: torch.float32,
}


def reference(operation, x):
    """What Gloo does with CPU tensors."""
    dtype = x.dtype
    if dtype.is_complex:
        parts = [operation(y.contiguous()) for y in (x.real, x.imag)]
        if parts[0] is None:
            return None
        if isinstance(parts[0], list):
            return [torch.complex(*pair) for pair in zip(*parts)]
        return torch.complex(*parts)
    result = operation(x.to(WIDER.get(dtype, dtype)).contiguous())
    if isinstance(result, list):
        return [y.to(dtype) for y in result]
    return result if result is None else result.to(dtype)


def check(operation, dtype):
    expected = reference(operation, make((4, 3), dtype, "cpu"))
    for name, x in layouts((4, 3), dtype, "mps"):
        torch.testing.assert_close(
            operation(x),
            expected,
            rtol=0,
            atol=0,
            check_device=False,
            msg=lambda text: f"{dtype} {name}: {text}",  # noqa: B023
        )


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_every_dtype_and_layout(pair, operation):
    for dtype in DTYPES:
        pair.run(check, operation, dtype)


def check_private(operation, dtype):
    os.environ["METALOPS_PRIVATE_BUFFERS"] = "1"
    try:
        check(operation, dtype)
    finally:
        del os.environ["METALOPS_PRIVATE_BUFFERS"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_memory_that_the_host_cannot_reach_is_copied(pair, operation):
    for dtype in (torch.float32, torch.int16, torch.complex64):
        pair.run(check_private, operation, dtype)


def coalesced(device):
    """Several at once, as torch.distributed's own users of them do it."""
    x, y = (make((4, 3), torch.float32, device, shift) for shift in (0, 5))
    with dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(y)
    gathered = [torch.empty(8, 3, device=device) for _ in range(2)]
    with dist._coalescing_manager():
        for out, part in zip(gathered, (x, y)):
            dist.all_gather_into_tensor(out, part)
    scattered = [torch.empty(2, 3, device=device) for _ in range(2)]
    with dist._coalescing_manager(async_ops=True) as works:
        for out, part in zip(scattered, (x, y)):
            dist.reduce_scatter_tensor(out, part)
    works.wait()
    return [z.cpu() for z in (x, y, *gathered, *scattered)]


def check_coalesced():
    torch.testing.assert_close(coalesced("mps"), coalesced("cpu"), rtol=0, atol=0)


def test_coalesced_operations(pair):
    pair.run(check_coalesced)
