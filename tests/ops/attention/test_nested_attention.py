"""F.scaled_dot_product_attention of jagged nested tensors: python/metalops/_torch/nested_attention.py."""

import metalops
import pytest
import torch
import torch.nn.functional as F
from metalops.debug import standins
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = pytest.mark.full  # nested tensors take seconds to import

LENGTHS = (3, 70, 1, 33)


def _sequences(lengths=LENGTHS, heads=4, size=16, dtype=torch.float32):
    return [torch.randn(length, heads, size, dtype=dtype) for length in lengths]


def _nested(sequences, requires_grad=True):
    """Returns (batch, heads, lengths, size), and the leaf that it is a view of."""
    leaf = torch.nested.nested_tensor(
        [x.to("mps") for x in sequences], layout=torch.jagged, requires_grad=requires_grad
    )
    return leaf.transpose(1, 2), leaf


def _one_by_one(queries, keys, values, **options):
    """Returns the results of the sequences in float64, and the gradients of their sum of sines."""
    leaves = [[x.double().requires_grad_() for x in xs] for xs in (queries, keys, values)]
    results = [
        F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in three), **options).transpose(
            0, 1
        )
        for three in zip(*leaves)
    ]
    sum(x.sin().sum() for x in results).backward()
    return results, [torch.cat([x.grad for x in xs]) for xs in leaves]


def _check(queries, keys, values, dtype=torch.float32, **options):
    expected, gradients = _one_by_one(queries, keys, values, **options)
    tensors, leaves = zip(*(_nested(x) for x in (queries, keys, values)))
    with standins() as served:
        result = F.scaled_dot_product_attention(*tensors, **options).transpose(1, 2)
        result.values().sin().sum().backward()
    assert not any("softmax" in name or "bmm" in name for name in served)
    error = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    close = {"rtol": error, "atol": error}
    for found, right in zip(result.unbind(), expected):
        torch.testing.assert_close(found.cpu().double(), right, **close)
    for leaf, right in zip(leaves, gradients):
        torch.testing.assert_close(leaf.grad.values().cpu().double(), right, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_results_and_gradients(dtype, is_causal):
    _check(*(_sequences(dtype=dtype) for _ in range(3)), dtype=dtype, is_causal=is_causal)


def test_keys_of_other_lengths_and_values_of_other_sizes():
    lengths = (5, 2, 40, 8)
    _check(_sequences(), _sequences(lengths), _sequences(lengths, size=24), scale=0.3)


def test_heads_that_share_keys():
    keys, values = _sequences(heads=2), _sequences(heads=2)
    _check(_sequences(), keys, values, enable_gqa=True)
    three = [_nested(x)[0] for x in (_sequences(), keys, values)]
    with pytest.raises(RuntimeError, match="as many heads or, with enable_gqa, a divisor"):
        F.scaled_dot_product_attention(*three)


def test_sequences_with_gaps_between_them():
    values = torch.randn(12, 2, 8, device="mps", requires_grad=True)
    offsets, lengths = (
        torch.tensor([0, 5, 9, 12], device="mps"),
        torch.tensor([2, 4, 1], device="mps"),
    )
    nested = torch.nested.nested_tensor_from_jagged(values, offsets, lengths)
    heads = nested.transpose(1, 2)
    result = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2)
    assert result.size(1) == nested.size(1)
    result.values().sum().backward()
    expected = torch.zeros(12, 2, 8, dtype=torch.float64)
    for begin, length in ((0, 2), (5, 4), (9, 1)):
        x = values.detach().cpu().double()[begin : begin + length].transpose(0, 1)
        expected[begin : begin + length] = F.scaled_dot_product_attention(x, x, x).transpose(0, 1)
    torch.testing.assert_close(result.values().detach().cpu().double(), expected, rtol=1e-5, atol=1e-5)  # fmt: skip
    assert bool((values.grad[2:5] == 0).all()) and bool((values.grad[5:9] != 0).any())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_and_dropout(dtype):
    tensors = [_nested(_sequences())[0] for _ in range(3)]
    with torch.autocast("mps", dtype):
        assert F.scaled_dot_product_attention(*tensors).dtype == dtype
    torch.manual_seed(0)
    ones = _nested([torch.ones(n, 4, 16) for n in LENGTHS], requires_grad=False)[0]
    dropped = F.scaled_dot_product_attention(tensors[0], tensors[1], ones, dropout_p=0.5)
    assert 0.8 < float(dropped.detach().transpose(1, 2).values()[3:73].mean()) < 1.2
    assert not torch.equal(dropped.values(), torch.ones_like(dropped.values()))


def test_what_is_rejected_and_who_serves_the_rest():
    a, b, c = (_nested(_sequences(x))[0] for x in (LENGTHS, LENGTHS, LENGTHS[::-1]))
    with pytest.raises(RuntimeError, match="is_causal of nested tensors needs queries and keys"):
        F.scaled_dot_product_attention(a, c, c, is_causal=True)
    with pytest.raises(RuntimeError, match="key and value must have sequences of the same"):
        F.scaled_dot_product_attention(a, a, c)
    with pytest.raises(ValueError, match="same dtype"):
        F.scaled_dot_product_attention(a, b.half(), b.half())
    for stock in (metalops.set_attention("stock"), sdpa_kernel(SDPBackend.MATH)):
        with stock, pytest.raises(RuntimeError, match="NestedTensorImpl"):
            F.scaled_dot_product_attention(a, b, b)
