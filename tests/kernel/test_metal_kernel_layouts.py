"""metal_kernel: shapes and strides describe what is bound, whatever the layout of what was passed."""

import random

import metalops
import pytest
import torch

SOURCE = """
  uint elem = thread_position_in_grid.x;
  out[elem] = x[elem_to_loc(elem, x_shape, x_strides, x_ndim)];
  if (elem == 0) {
    for (int d = 0; d < x_ndim; ++d) {
      layout[2 * d] = x_shape[d];
      layout[2 * d + 1] = x_strides[d];
    }
  }
"""
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def read(kernel, x):
    """The elements that a kernel finds through the strides of its input, and the shape and strides that it sees."""
    out, layout = kernel(
        inputs=[on_device(x)],
        output_shapes=[x.shape, (x.dim(), 2)],
        output_dtypes=[x.dtype, torch.int64],
        grid=(x.numel(), 1, 1),
        threadgroup=(64, 1, 1),
    )
    shape, strides = zip(*layout.tolist(), strict=True)
    return out.cpu(), shape, strides


def on_device(view):
    """The same view of a copy of the memory on the device."""
    base = torch.empty(0, dtype=view.dtype).set_(view.untyped_storage()).to("mps")
    return base.as_strided(view.shape, view.stride(), view.storage_offset())


def random_view(rng, dtype):
    """A view of 1 to 5 dimensions that slices, permutes and expands a tensor."""
    rank = rng.randint(1, 4)
    sizes = [rng.choice((1, 2, 3, 5)) for _ in range(rank)]
    x = (torch.arange(torch.Size(sizes).numel()) % 251).reshape(sizes)
    x = x.remainder(2).bool() if dtype == torch.bool else x.to(dtype)
    for _ in range(rng.randint(0, 4)):
        d = rng.randrange(x.dim())
        match rng.choice(("permute", "step", "offset", "new", "expand", "select")):
            case "permute":
                x = x.permute(rng.sample(range(x.dim()), x.dim()))
            case "step":
                x = x[(slice(None),) * d + (slice(rng.randrange(x.shape[d]), None, 2),)]
            case "offset":
                x = x.narrow(d, start := rng.randrange(x.shape[d]), x.shape[d] - start)
            case "new" if x.dim() < 5:
                x = x.unsqueeze(d)
            case "expand" if x.shape[d] == 1:
                x = x.expand([4 if i == d else -1 for i in range(x.dim())])
            case "select" if x.dim() > 1:
                x = x.select(d, rng.randrange(x.shape[d]))
    return x


def check(x, ensure_row_contiguous):
    kernel = metalops.metal_kernel(
        "layout", ["x"], ["out", "layout"], SOURCE, ensure_row_contiguous=ensure_row_contiguous
    )
    found, shape, strides = read(kernel, x)
    bound = x.contiguous() if ensure_row_contiguous else x
    assert torch.equal(found, x)
    assert (shape, strides) == (tuple(bound.shape), bound.stride())


@pytest.mark.parametrize("ensure_row_contiguous", [True, False])
@pytest.mark.parametrize("layout", ["transposed", "sliced", "offset", "expanded", "permuted"])
def test_a_view_is_read_through_its_strides(layout, ensure_row_contiguous):
    x = torch.randn(5, 6)
    view = {
        "transposed": x.t(),
        "sliced": x[:, ::2],
        "offset": x[2:, 1:],
        "expanded": x[:1].expand(4, 6),
        "permuted": x[:, None, :].expand(5, 2, 6).permute(2, 1, 0),
    }[layout]
    check(view, ensure_row_contiguous)


@pytest.mark.parametrize("ensure_row_contiguous", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_views_are_read_through_their_strides(dtype, ensure_row_contiguous):
    rng = random.Random(f"{dtype} {ensure_row_contiguous}")
    for _ in range(60):
        check(random_view(rng, dtype), ensure_row_contiguous)


def test_the_operator_that_torch_compile_records_binds_the_same():
    kernel = metalops.metal_kernel("layout", ["x"], ["out", "layout"], SOURCE)

    def function(x):
        return kernel(
            inputs=[(x + 1).t()],
            output_shapes=[(6, 5), (2, 2)],
            output_dtypes=[x.dtype, torch.int64],
            grid=(30, 1, 1),
            threadgroup=(30, 1, 1),
        )

    x = torch.randn(5, 6)
    out, layout = torch.compile(function, backend="aot_eager", fullgraph=True)(x.to("mps"))
    assert torch.equal(out.cpu(), (x + 1).t())
    assert layout.tolist() == [[6, 5], [5, 1]]


def test_conjugate_views_are_read_through_their_strides():
    kernel = metalops.metal_kernel("layout", ["x"], ["out", "layout"], SOURCE)
    x = torch.randn(3, 4, dtype=torch.complex64)
    out, layout = kernel(
        inputs=[x.to("mps").t().conj()],
        output_shapes=[(4, 3), (2, 2)],
        output_dtypes=[x.dtype, torch.int64],
        grid=(12, 1, 1),
        threadgroup=(12, 1, 1),
    )
    assert torch.equal(out.cpu(), x.t().conj().resolve_conj())
    assert layout.tolist() == [[4, 3], [3, 1]]
