"""Sparse tensors in COO: what torch has for them on a Mac, against the CPU."""

import copy
import io

import metalops
import pytest
import torch
from metalops._torch import stock

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

COMMON, OTHERS = stock.sparse_overloads()
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.complex64)


def make(sizes, dense_dim=0, count=7, dtype=torch.float32, seed=0, coalesced=False):
    """A sparse tensor on the CPU; without `coalesced` some of its places have two values, in any order."""
    generator = torch.Generator().manual_seed(seed)
    sparse = sizes[: len(sizes) - dense_dim]
    count = 0 if 0 in sizes else count
    indices = torch.stack(
        [torch.randint(0, max(n, 1), (count,), generator=generator) for n in sparse]
    )
    if count > 1 and not coalesced:
        indices[:, -1] = indices[:, 0]
    # Small integers, so that the order of sums does not matter.
    values = torch.randint(-3, 4, (count, *sizes[len(sparse) :]), generator=generator).to(dtype)
    made = torch.sparse_coo_tensor(indices, values, sizes, check_invariants=True)
    return made.coalesce() if coalesced else made


def on_mps(tree):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.to("mps"), tree)


def assert_same(actual, expected, **tolerances):
    assert actual.device.type == "mps"
    assert (actual.layout, actual.dtype, actual.shape) == (expected.layout, expected.dtype, expected.shape)  # fmt: skip
    actual = actual.cpu()
    if expected.is_sparse:
        assert (actual.sparse_dim(), actual.dense_dim()) == (expected.sparse_dim(), expected.dense_dim())  # fmt: skip
        actual, expected = actual.coalesce(), expected.coalesce()
        assert torch.equal(actual.indices(), expected.indices())
        actual, expected = actual.values(), expected.values()
    torch.testing.assert_close(actual, expected, equal_nan=True, **tolerances)


SHAPES = [((5, 4), 0), ((3, 4, 2), 1), ((6,), 0), ((2, 3, 4), 0), ((0, 3), 0), ((3, 0, 2), 1)]

ALONE = {
    **{
        name: getattr(torch, name)
        for name in """abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac isinf isnan isneginf isposinf log1p
        nan_to_num neg rad2deg relu round sgn sign signbit sin sinh sqrt tan tanh trunc clone""".split()
    },
    "coalesce": torch.Tensor.coalesce,
    "to_dense": torch.Tensor.to_dense,
    "double_to_sparse": lambda x: x.to_dense().to_sparse(),
    "sum": torch.sum,
    "sum_0": lambda x: torch.sparse.sum(x, 0),
    "sum_-1": lambda x: torch.sparse.sum(x, -1),
    "norm": torch.norm,
    "any": torch.any,
    "pow": lambda x: x.pow(2),
    "times_2": lambda x: x * 2,
    "over_2": lambda x: x / 2,
    "floor_divide": lambda x: x // 2,
    "flipped": lambda x: x.permute(*range(x.sparse_dim())[::-1], *range(x.sparse_dim(), x.dim())),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "cat": lambda x: torch.cat([x, x], 0),
    "zeros_like": torch.zeros_like,
    "empty_like_and_copy": lambda x: torch.empty_like(x).copy_(x),
    "narrow_copy": lambda x: x.narrow_copy(0, 0, min(x.shape[0], 2)),
    "select": lambda x: x[x.shape[0] - 1] if x.shape[0] else x,
    "index_select": lambda x: x.index_select(
        0, torch.arange(x.shape[0], device=x.device).flip(0).repeat(2)
    ),
    "int": lambda x: x.to(torch.int32),
    "half": torch.Tensor.half,
    "zero_": lambda x: x.clone().zero_(),
    "neg_": lambda x: x.clone().neg_(),
    "round_": lambda x: x.clone().coalesce().round_(),
    "mul_": lambda x: x.clone().mul_(3),
    "resized": lambda x: x.clone().sparse_resize_(
        tuple(n + 1 for n in x.shape[: x.sparse_dim()]) + x.shape[x.sparse_dim() :],
        x.sparse_dim(),
        x.dense_dim(),
    ),
    "cleared": lambda x: x.clone().sparse_resize_and_clear_((4, 3, 2), 2, 1),
    "softmax": lambda x: torch.sparse.softmax(x, 0),
    "log_softmax": lambda x: torch.sparse.log_softmax(x, -1),
}


@pytest.mark.parametrize("name", ALONE)
def test_one_tensor(name):
    for sizes, dense_dim in SHAPES:
        x = make(sizes, dense_dim)
        try:
            expected = ALONE[name](x)
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                ALONE[name](x.to("mps"))
        else:
            assert_same(ALONE[name](x.to("mps")), expected)


TOGETHER = {
    "add": torch.add,
    "sub": lambda x, y: torch.sub(x, y, alpha=2),
    "mul": torch.mul,
    "add_": lambda x, y: x.clone().add_(y),
    "mul_": lambda x, y: x.clone().mul_(y),
    "dense_add": lambda x, y: x.to_dense() + y,
    "dense_add_": lambda x, y: x.to_dense().add_(y, alpha=3),
    "dense_mul": lambda x, y: x.to_dense() * y,
    "mul_dense": lambda x, y: x * y.to_dense(),
    "mask": lambda x, y: x.sparse_mask(y.coalesce()),
    "mask_dense": lambda x, y: x.to_dense().sparse_mask(y.coalesce()),
    "out_add": lambda x, y: torch.add(x, y, out=torch.empty_like(x)),
    "out_mul": lambda x, y: torch.mul(x, y, out=torch.empty_like(x)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("name", TOGETHER)
def test_two_tensors(name, dtype):
    """torch's CPU has no sums in half precision."""
    for sizes, dense_dim in SHAPES:
        x, y = (make(sizes, dense_dim, seed=seed, count=9) for seed in (1, 2))
        expected = TOGETHER[name](x, y).to(dtype)
        assert_same(TOGETHER[name](*on_mps((x.to(dtype), y.to(dtype)))), expected)


def test_sums_and_products_of_sparse_tensors_are_coalesced_as_on_a_mac():
    x, y = on_mps((make((5, 4), seed=1), make((5, 4), seed=2)))
    assert not x.is_coalesced()
    for result in (x + y, x * y, x.clone().add_(y), x.clone().mul_(y)):
        assert result.is_coalesced()
    assert not (x + torch.zeros_like(y)).is_coalesced()


PRODUCTS = {
    "mm": (torch.sparse.mm, (5, 4), (4, 3)),
    "matmul": (torch.matmul, (5, 4), (4, 3)),
    "mv": (torch.mv, (5, 4), (4,)),
    "bmm": (torch.bmm, (3, 5, 4), (3, 4, 2)),
    "smm": (lambda x, y: x @ y.to_sparse(), (5, 4), (4, 3)),
    "addmm": (lambda x, y: torch.addmm(y[:1] + 1, x, y, beta=2, alpha=3), (5, 4), (4, 3)),
    "sparse.addmm": (lambda x, y: torch.sparse.addmm(y.new_ones(5, 3), x, y), (5, 4), (4, 3)),
    "dense first": (lambda x, y: y.T @ x.t(), (5, 4), (4, 3)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, dtype):
    function, sizes, others = PRODUCTS[name]
    for seed in range(3):
        x = make(sizes, count=8 * seed, seed=seed)
        y = torch.randint(-3, 4, others).float()
        expected = function(x, y).to(dtype)
        assert_same(function(*on_mps((x.to(dtype), y.to(dtype)))), expected)


def test_indices_and_values_are_views_of_device_memory():
    x = make((5, 4), coalesced=True).to("mps")
    assert x.indices().device.type == x.values().device.type == "mps"
    x.values().fill_(7)
    assert (x.to_dense().cpu() == 7).sum() == x._nnz()
    values = torch.ones(2, device="mps")
    made = torch.sparse_coo_tensor(torch.tensor([[0, 1]], device="mps"), values, (3,), is_coalesced=True)  # fmt: skip
    values.mul_(5)
    assert made.to_dense().tolist() == [5, 5, 0]
    assert made.values().data_ptr() == values.data_ptr()
    assert made.clone().values().data_ptr() != values.data_ptr()


def test_a_kernel_that_stands_in_takes_the_same_memory_and_leaves_its_arguments():
    x = make((50, 40), count=300, coalesced=True).to("mps")
    y = torch.ones(40, 3, device="mps")
    before = x.values(), x.indices()
    with metalops.debug.standins() as served:
        torch.sparse.mm(x, y)
        x.detach().mul(x.detach())
    assert {"aten::addmm", "aten::mul.out"} <= set(served)
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(before, (x.values(), x.indices())))


def test_what_is_torchs_for_every_device_is_no_stand_in():
    x = make((5, 4)).to("mps")
    with metalops.debug.standins() as served:
        x._nnz(), x.is_coalesced(), x.sparse_dim(), x._indices(), x._values(), x.t()
    assert served == {}
    with metalops.debug.standins() as served:
        x.sin()
    assert "aten::_coalesce" in served and "aten::sin" in served


def test_what_can_be_made():
    indices, values = torch.tensor([[0, 2], [1, 0]]), torch.tensor([1.0, 2.0])
    expected = torch.sparse_coo_tensor(indices, values, (3, 2))
    for made in (
        torch.sparse_coo_tensor(indices, values, (3, 2), device="mps"),
        torch.sparse_coo_tensor(indices, values, device="mps"),
        torch.sparse_coo_tensor(indices.to("mps"), values.to("mps"), check_invariants=True),
        torch.sparse_coo_tensor([[0, 2], [1, 0]], [1.0, 2.0], (3, 2), device="mps"),
        expected.to("mps"),
        expected.to_dense().to("mps").to_sparse(),
        expected.to_dense().to("mps").to_sparse(2),
        copy.deepcopy(expected.to("mps")),
    ):
        assert_same(made, expected)
    assert_same(torch.empty(2, 3, layout=torch.sparse_coo, device="mps"), torch.zeros(2, 3).to_sparse())  # fmt: skip
    assert_same(torch.zeros(2, 3, layout=torch.sparse_coo, device="mps"), torch.zeros(2, 3).to_sparse())  # fmt: skip
    assert_same(expected.to_dense().to("mps").to_sparse(1), expected.to_dense().to_sparse(1))
    with torch.device("mps"):
        made = torch.sparse_coo_tensor([[0, 2], [1, 0]], [1.0, 2.0], (3, 2))
    assert_same(made, expected)
    assert not expected.to("mps").is_pinned()


def test_copies_between_devices():
    x = make((5, 4))
    assert_same(torch.empty_like(x, device="mps").copy_(x), x)
    back = torch.empty_like(x).copy_(x.to("mps"))
    assert back.device.type == "cpu" and torch.equal(back.to_dense(), x.to_dense())
    assert_same(x.to("mps", torch.float16), x.half())


def test_it_is_saved_loaded_and_shown():
    x = make((5, 4), coalesced=True).to("mps")
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    assert_same(torch.load(file)["x"], x.cpu())
    text = repr(x)
    assert "device='mps:0'" in text and f"nnz={x._nnz()}, layout=torch.sparse_coo" in text


GRADIENTS = {
    "to_dense": lambda x, y: x.to_dense().pow(2),
    "mm": torch.sparse.mm,
    "values": lambda x, y: x.coalesce().values().pow(3),
    "sum": lambda x, y: torch.sparse.sum(x, 0).to_dense(),
    "sum of all": lambda x, y: torch.sparse.sum(x) ** 2,
    "mul": lambda x, y: (x * x.detach().sin()).to_dense(),
    "add": lambda x, y: (y.new_ones(x.shape) * 2 + x) ** 2,
    "softmax": lambda x, y: torch.sparse.softmax(x, 1).to_dense() ** 2,
    "log_softmax": lambda x, y: torch.sparse.log_softmax(x, 1).to_dense(),
    "addmm": lambda x, y: torch.sparse.addmm(y.new_ones(5, 3), x, y) ** 2,
    "sparse mm": lambda x, y: torch.sparse.mm(x, x.t()).to_dense(),
}


def gradients(function, indices, values, y, device):
    indices, values, y = (t.to(device) for t in (indices, values, y))
    values, y = values.requires_grad_(), y.requires_grad_()
    result = function(torch.sparse_coo_tensor(indices, values, (5, 4)), y)
    (
        result * torch.arange(1.0, result.numel() + 1, device=device).view(result.shape)
    ).sum().backward()
    return [t.grad for t in (values, y) if t.grad is not None]


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    x, y = make((5, 4), count=11), torch.randn(4, 3)
    given = GRADIENTS[name], x._indices(), x._values(), y
    found, expected = gradients(*given, "mps"), gradients(*given, "cpu")
    assert len(found) == len(expected)
    for actual, right in zip(found, expected):
        assert_same(actual, right, rtol=1e-5, atol=1e-5)


def test_gradients_of_sparse_leaves_and_of_embeddings_are_sparse():
    x = make((5, 4), coalesced=True)
    found = {}
    for device in ("cpu", "mps"):
        leaf = x.to(device, copy=True).requires_grad_()
        torch.sparse.mm(leaf, torch.ones(4, 3, device=device)).sum().backward()
        embedding = torch.nn.Embedding.from_pretrained(torch.ones(6, 2), freeze=False, sparse=True)
        embedding = embedding.to(device)
        optimizer = torch.optim.SparseAdam(embedding.parameters())
        embedding(torch.tensor([1, 3, 1], device=device)).sum().backward()
        gradient = embedding.weight.grad.detach().clone()
        optimizer.step()
        found[device] = leaf.grad, gradient, embedding.weight.detach()
    for actual, right in zip(found["mps"], found["cpu"]):
        assert_same(actual, right)


def test_dtypes_that_mps_lacks():
    for dtype, message in ((torch.float64, "float64"), (torch.complex128, "ComplexDouble")):
        x = make((3, 3)).to(dtype)
        for call in (
            lambda x, dtype: x.to("mps"),
            lambda x, dtype: torch.empty_like(x, device="mps"),
            lambda x, dtype: torch.sparse_coo_tensor(x._indices(), x._values(), device="mps"),
            lambda x, dtype: make((3, 3)).to("mps").to(dtype),
        ):
            with pytest.raises(TypeError, match=message):
                call(x, dtype)


def test_what_a_mac_refuses():
    x, c = make((5, 4)).to("mps"), make((5, 4))
    dense = torch.ones(5, 4, device="mps")
    for message, error, call in (
        (r"sizes must match exactly \(no broadcasting\): \[4\] vs \[5, 4\]", RuntimeError, lambda: x * dense[0]),
        ("sparse sizes must match exactly", RuntimeError, lambda: x * x.narrow_copy(0, 0, 2)),
        ("must have same sparse_dim, got 2 vs 1", RuntimeError, lambda: x * dense.to_sparse(1)),
        (r"add\(sparse, dense\) is not supported", RuntimeError, lambda: x + dense),
        ("on the same device", RuntimeError, lambda: x + c),
        ("on the same device", RuntimeError, lambda: torch.sparse.mm(x, torch.ones(4, 2))),
        ("must match backend of values", RuntimeError, lambda: torch.sparse_coo_tensor(c._indices(), x._values())),
        ("uncoalesced", RuntimeError, lambda: x.values()),
        ("found negative index -1 for dim 0", RuntimeError, lambda: torch.sparse_coo_tensor([[-1]], [1.0], (2,), device="mps", check_invariants=True)),
        ("Could not run 'aten::_to_sparse_csr' with arguments from the 'SparseMPS' backend", NotImplementedError, lambda: x.to_sparse_csr()),
        ("Could not run 'aten::exp' with arguments from the 'SparseMPS' backend", NotImplementedError, lambda: x.exp()),
        ("Could not run 'aten::_to_sparse_csr'|is not currently implemented for the MPS device", NotImplementedError, lambda: dense.to_sparse_csr()),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            call()


def test_an_out_tensor_keeps_what_a_failed_call_left():
    x, y = on_mps((make((5, 4), seed=1), make((5, 4), seed=2)))
    out = make((5, 4), seed=3).to("mps")
    before = out.to_dense().cpu()
    with pytest.raises(RuntimeError, match="can't be cast|Can't convert"):
        torch.add(x, y, out=out.to(torch.int32))
    assert torch.equal(out.to_dense().cpu(), before)


def test_a_sparse_result_of_two_strided_tensors_is_an_error():
    for call in (torch.mul, torch.add):
        x = torch.ones(2, 2)
        errors = []
        for device in ("cpu", "mps"):
            out = torch.empty(2, 2, layout=torch.sparse_coo, device=device)
            with pytest.raises(RuntimeError) as raised:
                call(x.to(device), x.to(device), out=out)
            errors.append(str(raised.value).replace("MPS", "CPU"))
        assert errors[0] == errors[1]


def test_the_list_of_sparse_operators_follows_the_yaml_format():
    text = """
- func: sin(Tensor self) -> Tensor
  dispatch:
    SparseCPU, SparseCUDA, SparseMPS: sin_sparse
    SparseCsrCPU, SparseCsrMPS: sin_sparse_csr
- func: bmm(Tensor self, Tensor mat2) -> Tensor
  dispatch:
    CPU: bmm_cpu
    SparseCPU: bmm_sparse_cpu
    SparseMPS: bmm_sparse_mps
- func: hspmm(Tensor mat1, Tensor mat2) -> Tensor
  dispatch:
    SparseCPU: hspmm_sparse_cpu
- func: sparse_mask(Tensor self, Tensor mask) -> Tensor
  dispatch:
    SparseCPU, SparseMPS: sparse_mask
"""
    assert stock.parse_sparse(text) == ({"aten::sin"}, {"aten::bmm", "aten::sparse_mask"})


def test_every_stock_operator_of_sparse_tensors_is_served():
    assert {"aten::sin", "aten::values", "aten::_sparse_coo_tensor_with_dims"} <= COMMON
    assert {"aten::bmm", "aten::addmm.out", "aten::_coalesce", "aten::sparse_mask"} <= OTHERS
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    assert not [name for name in COMMON | OTHERS if not has_kernel(name, "SparseMPS")]
