"""The operators of metalops on DTensors give what they give on whole tensors, sharded in every way that they can be."""

import itertools

import gguf
import metalops
import pytest
import torch
import torch.nn.functional as F
from metalops.ops._pointwise import declared
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor


def mesh():
    return init_device_mesh("mps", (2,))


def shard(tensor, placement):
    return distribute_tensor(tensor, mesh(), [placement])


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placements(tensor):
    return [Replicate(), *(Shard(dim) for dim in range(tensor.dim()))]


def compare(operation, tensors, shardings, kept=None):
    """operation(*tensors) and gradients, with each tensor sharded. kept: what the result's placement has to be."""
    tensors = [x.requires_grad_(x.is_floating_point()) for x in tensors]
    expected = operation(*tensors)
    wanted = [x for x in tensors if x.requires_grad]
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * weights).sum(), wanted, allow_unused=True)
    sharded = [
        shard(x.detach(), p).requires_grad_(x.requires_grad) for x, p in zip(tensors, shardings)
    ]
    result = operation(*sharded)
    assert kept is None or result.placements == (kept,), f"{shardings} gave {result.placements}"
    torch.testing.assert_close(whole(result), expected, rtol=1e-4, atol=1e-5)
    total = (result * shard(weights, Replicate())).sum()
    wanted = [x for x in sharded if x.requires_grad]
    for ours, theirs in zip(torch.autograd.grad(total, wanted, allow_unused=True), gradients):
        if theirs is not None:
            torch.testing.assert_close(whole(ours), theirs, rtol=1e-4, atol=1e-5)


def pointwise(name):
    operator = declared[name]
    function = getattr(metalops.ops, name)
    numbers = {"cap": 3.0} if name == "softcap" else {}
    shapes = [(4, 6), (4, 6), (6,)][: operator.operands]
    tensors = [torch.rand(shape, device="mps") for shape in shapes]
    for choice in itertools.product(*(placements(x) for x in tensors[:2])):
        rest = [Replicate()] * (len(tensors) - len(choice))
        compare(lambda *xs: function(*xs, **numbers), tensors, [*choice, *rest])
    # Nothing moves that need not.
    rows = [Shard(0) if x.dim() == 2 else Replicate() for x in tensors]
    compare(lambda *xs: function(*xs, **numbers), tensors, rows, kept=Shard(0))


def pointwise_family(names):
    for name in names:
        pointwise(name)


def pointwise_in_place():
    x = torch.randn(4, 6, device="mps")
    y = shard(x, Shard(1))
    assert metalops.ops.gelu_quick_(y) is y
    assert y.placements == (Shard(1),)
    torch.testing.assert_close(whole(y), metalops.ops.gelu_quick(x))


def attention(query_heads, key_heads):
    query = torch.randn(2, query_heads, 5, 8, device="mps")
    key, value = (torch.randn(2, key_heads, 7, 8, device="mps") for _ in range(2))

    def ours(q, k, v):
        return metalops.ops.attention(q, k, v, is_causal=True)

    def torchs(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=query_heads != key_heads)

    for operation in (ours, torchs):
        for dim in range(4):
            stays = dim == 0 or (dim == 1 and key_heads % 2 == 0)
            kept = Shard(dim) if stays else None
            compare(operation, [query, key, value], [Shard(dim)] * 3, kept)


def attention_with_extras():
    query, key, value = (torch.randn(2, 4, 5, 8, device="mps") for _ in range(3))
    mask = torch.randn(2, 1, 5, 5, device="mps")
    sinks, slopes = torch.randn(4, device="mps"), torch.rand(4, device="mps")
    for dim in (0, 1):
        for extras in ({"attn_mask": mask}, {"sinks": sinks}, {"alibi_slopes": slopes}):
            expected = metalops.ops.attention(query, key, value, **extras)
            result = metalops.ops.attention(
                *(shard(x, Shard(dim)) for x in (query, key, value)),
                **{name: shard(x, Replicate()) for name, x in extras.items()},
            )
            assert result.placements == (Shard(dim),)
            torch.testing.assert_close(whole(result), expected)


def paged_attention():
    query = torch.randn(4, 3, 4, 8, device="mps")
    caches = [torch.randn(9, 4, 2, 8, device="mps") for _ in range(2)]
    table = torch.arange(8, dtype=torch.int32, device="mps").reshape(4, 2)
    lengths = torch.tensor([8, 3, 5, 7], dtype=torch.int32, device="mps")
    same, first, heads = Replicate(), Shard(0), Shard(2)
    for name, sizes in (("sinks", (4,)), ("alibi_slopes", (4,)), ("alibi_slopes", (4, 4))):
        extra = torch.rand(sizes, device="mps")
        expected = metalops.ops.paged_attention(query, *caches, table, lengths, return_lse=True, **{name: extra})  # fmt: skip
        for of_query, of_cache, of_table, kept in (
            (first, same, first, (first, first)),
            (heads, heads, same, (heads, heads)),
        ):
            found = metalops.ops.paged_attention(
                shard(query, of_query),
                *(shard(x, of_cache) for x in caches),
                *(shard(x, of_table) for x in (table, lengths)),
                return_lse=True,
                **{name: shard(extra, same)},
            )
            for result, x, placement in zip(found, expected, kept):
                assert result.placements == (placement,)
                torch.testing.assert_close(whole(result), x)


def merge_attention():
    out_a, out_b = torch.randn(2, 4, 6, 8, device="mps")
    lse_a, lse_b = torch.randn(2, 4, 6, device="mps")
    for dim in (0, 1):
        compare(lambda *parts: metalops.ops.merge_attention(*parts)[0], [out_a, lse_a, out_b, lse_b], [Shard(dim)] * 4, kept=Shard(dim))  # fmt: skip


def quantized_linear(mode, with_bias):
    x, w = torch.randn(6, 128, device="mps"), torch.randn(32, 128, device="mps")
    bias = torch.randn(32, device="mps") if with_bias else None
    options = {"bits": 4, "group_size": 32, "mode": mode}
    parts = metalops.ops.quantize(w, **options)
    packed, scales, biases = [*parts, None][:3]
    expected = metalops.ops.quantized_linear(x, packed, scales, biases, bias, **options)
    cases = {
        "rows": (Shard(0), Replicate(), Replicate(), Shard(0)),
        "columns of the weights": (Shard(1), Shard(1), Replicate(), Partial()),
        "rows of the weights": (Replicate(), Shard(0), Shard(0), Shard(1)),
    }
    for name, (of_x, of_w, of_bias, kept) in cases.items():
        result = metalops.ops.quantized_linear(
            shard(x, of_x),
            shard(packed, of_w),
            shard(scales, of_w),
            None if biases is None else shard(biases, of_w),
            None if bias is None else shard(bias, of_bias),
            **options,
        )
        assert result.placements == (kept,), f"{name}: {result.placements}"
        torch.testing.assert_close(whole(result), expected, rtol=1e-4, atol=1e-4)


def gradient_of_quantized_linear():
    x, w = torch.randn(6, 128, device="mps"), torch.randn(64, 128, device="mps")
    packed, scales, biases = metalops.ops.quantize(w, bits=4, group_size=32)

    def gradient(x, *weights):
        x = x.detach().requires_grad_()
        y = metalops.ops.quantized_linear(x, *weights, bits=4, group_size=32)
        return torch.autograd.grad((y * y).sum(), x)[0]

    expected = gradient(x, packed, scales, biases)
    for of_x, of_w in ((Shard(0), Replicate()), (Replicate(), Shard(0)), (Shard(1), Shard(1))):
        result = gradient(shard(x, of_x), *(shard(y, of_w) for y in (packed, scales, biases)))
        torch.testing.assert_close(whole(result), expected, rtol=1e-4, atol=1e-3)


def linear_act():
    x, w, b = (torch.randn(s, device="mps") for s in ((6, 16), (8, 16), (8,)))
    for activation in ("none", "gelu"):
        expected = metalops.ops.linear_act(x, w, b, activation)
        for of_x, of_w, of_b in (
            (Shard(0), Replicate(), Replicate()),
            (Replicate(), Shard(0), Shard(0)),
            (Shard(1), Shard(1), Replicate()),
        ):
            result = metalops.ops.linear_act(
                shard(x, of_x), shard(w, of_w), shard(b, of_b), activation
            )
            torch.testing.assert_close(whole(result), expected, rtol=1e-4, atol=1e-5)
            compare(
                lambda *xs: metalops.ops.linear_act(*xs, activation),  # noqa: B023
                [x.clone(), w.clone(), b.clone()],
                [of_x, of_w, of_b],
            )


def gguf_linear():
    x, w = torch.randn(6, 64, device="mps"), torch.randn(8, 64)
    kind = gguf.GGMLQuantizationType.Q8_0
    data = torch.from_numpy(gguf.quantize(w.numpy(), kind)).to("mps")
    bias = torch.randn(8, device="mps")
    expected = metalops.ops.gguf_linear(x, data, kind, bias)
    for of_x, of_w, of_bias, kept in (
        (Shard(0), Replicate(), Replicate(), Shard(0)),
        (Replicate(), Shard(0), Shard(0), Shard(1)),
    ):
        result = metalops.ops.gguf_linear(
            shard(x, of_x), shard(data, of_w), kind, shard(bias, of_bias)
        )
        assert result.placements == (kept,)
        torch.testing.assert_close(whole(result), expected, rtol=1e-4, atol=1e-4)


FAMILIES = sorted({operator.function.__module__ for operator in declared.values()})


@pytest.mark.parametrize("family", FAMILIES)
def test_pointwise_operators(pair, family):
    names = [name for name, operator in declared.items() if operator.function.__module__ == family]
    pair.run(pointwise_family, names)


def test_pointwise_operators_in_place(pair):
    pair.run(pointwise_in_place)


@pytest.mark.parametrize(("query_heads", "key_heads"), [(4, 4), (4, 2), (2, 1)])
def test_attention_over_batch_and_heads(pair, query_heads, key_heads):
    pair.run(attention, query_heads, key_heads)


def test_attention_with_masks_sinks_and_slopes(pair):
    pair.run(attention_with_extras)


def test_attention_over_pages(pair):
    pair.run(paged_attention)


def test_attention_put_together(pair):
    pair.run(merge_attention)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_quantized_linear_over_rows_and_columns(pair, mode, with_bias):
    pair.run(quantized_linear, mode, with_bias)


def test_gradient_of_quantized_linear(pair):
    pair.run(gradient_of_quantized_linear)


def test_linear_act(pair):
    pair.run(linear_act)


def test_gguf_linear(pair):
    pair.run(gguf_linear)
