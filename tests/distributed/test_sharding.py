"""The operators of metalops on DTensors give what they give on whole tensors, sharded in every way that they can be."""

import itertools

import gguf
import metalops
import pytest
import torch
import torch.nn.functional as F
from metalops.ops._define.pointwise import declared
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


def pointwise_out(names):
    """out= keeps its placement, whatever that of the operands is."""
    for name in names:
        operator = declared[name]
        function = getattr(metalops.ops, name)
        numbers = {"cap": 3.0} if name == "softcap" else {}
        tensors = [torch.rand(4, 6, device="mps") for _ in range(operator.operands)]
        expected = function(*tensors, **numbers)
        for of_inputs, of_out in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=2):
            out = shard(torch.zeros_like(expected), of_out)
            result = function(*(shard(x, of_inputs) for x in tensors), **numbers, out=out)
            assert result is out and out.placements == (of_out,)
            torch.testing.assert_close(whole(out), expected)


def out_of_other_sizes():
    x = shard(torch.rand(4, 6, device="mps"), Shard(0))
    with pytest.raises(RuntimeError, match=r"gelu_quick.*sizes \[4, 3\].*not resized to \[4, 6\]"):
        metalops.ops.gelu_quick(x, out=shard(torch.zeros(4, 3, device="mps"), Shard(0)))


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


def packed_attention():
    """Sequences one behind the other, over heads."""
    query, key, value = (torch.randn(9, heads, 8, device="mps") for heads in (4, 2, 2))
    starts = torch.tensor([0, 4, 9], dtype=torch.int32, device="mps")
    sinks = torch.randn(4, device="mps")

    def operation(q, k, v, starts, sinks):
        return metalops.ops.varlen_attention(
            q, k, v, starts, starts, 5, 5, is_causal=True, sinks=sinks
        )

    expected = metalops.ops.varlen_attention(
        query, key, value, starts, starts, 5, 5, sinks=sinks, return_lse=True
    )
    heads, same = Shard(1), Replicate()
    of_starts = shard(starts, same)
    found = metalops.ops.varlen_attention(
        *(shard(x, heads) for x in (query, key, value)),
        of_starts,
        of_starts,
        5,
        5,
        sinks=shard(sinks, same),
        return_lse=True,
    )
    for result, x, placement in zip(found, expected, (Shard(1), Shard(0))):
        assert result.placements == (placement,)
        torch.testing.assert_close(whole(result), x)

    def without_sinks(q, k, v, starts):
        return metalops.ops.varlen_attention(q, k, v, starts, starts, 5, 5, is_causal=True)

    for placement, kept in ((heads, heads), (Shard(0), None)):
        compare(without_sinks, [query, key, value, starts], [placement] * 3 + [same], kept)
        compare(operation, [query, key, value, starts, sinks], [placement] * 3 + [same] * 2)


def caches():
    """Keys and values are stored in caches over heads, whose placement stays; then attention is over heads."""
    key, value = (torch.randn(6, 4, 8, device="mps") for _ in range(2))
    whole_caches = [torch.zeros(5, 4, 4, 8, device="mps") for _ in range(2)]
    slots = torch.tensor([3, 9, -1, 0, 19, 12], device="mps")
    scale = torch.tensor(2.0, device="mps")
    empty = [x.clone() for x in whole_caches]
    metalops.ops.reshape_and_cache(key, value, *whole_caches, slots, k_scale=scale)
    for of_caches, of_tokens in itertools.product(
        (Shard(2), Replicate()), (Shard(1), Shard(0), Replicate())
    ):
        sharded = [shard(x, of_caches) for x in empty]
        tokens = [shard(x, of_tokens) for x in (key, value)]
        metalops.ops.reshape_and_cache(
            *tokens, *sharded, shard(slots, Replicate()), k_scale=shard(scale, Replicate())
        )
        for x, expected in zip(sharded, whole_caches):
            assert x.placements == (of_caches,)
            torch.testing.assert_close(whole(x), expected)
    pages = [shard(x, Shard(0)) for x in empty]
    tokens = [shard(x, Replicate()) for x in (key, value)]
    with pytest.raises(NotImplementedError, match="replicated or sharded over heads"):
        metalops.ops.reshape_and_cache(*tokens, *pages, shard(slots, Replicate()))
    with pytest.raises(RuntimeError, match="all have to be DTensors"):
        metalops.ops.reshape_and_cache(*tokens, *pages, slots)


def cache_of_flash_attention():
    """New tokens are rotated and appended to caches of sequences, over heads and over sequences."""
    from metalops.flash_attn import flash_attn_with_kvcache

    query, key, value = (torch.randn(2, 3, 4, 16, device="mps") for _ in range(3))
    empty = torch.zeros(2, 2, 12, 4, 16, device="mps")
    lengths = torch.tensor([2, 5], dtype=torch.int32, device="mps")
    cosines, sines = torch.rand(2, 12, 8, device="mps")

    def attend(place_caches, place):
        cached = [place_caches(x.clone()) for x in empty]
        split = [place(x) for x in (query, key, value)]
        others = [
            x if place is identity else shard(x, Replicate()) for x in (lengths, cosines, sines)
        ]
        out = flash_attn_with_kvcache(
            split[0],
            *cached,
            *split[1:],
            others[1],
            others[2],
            cache_seqlens=others[0],
            causal=True,
        )
        return [out, *cached]

    def identity(x):
        return x

    expected = attend(identity, identity)
    for placement in (Shard(2), Shard(0), Replicate()):

        def place(x):
            return shard(x, placement)  # noqa: B023

        for x, y in zip(attend(place, place), expected):
            assert x.placements == (placement,)
            torch.testing.assert_close(whole(x), y)


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


def gradients_of_scales(mode):
    """Those of scales, biases, bias and input, with rows, columns and the batch sharded."""
    x, w = torch.randn(6, 128, device="mps"), torch.randn(64, 128, device="mps")
    bias = torch.randn(64, device="mps")
    options = {"bits": 4, "group_size": 64, "mode": mode}
    parts = [y for y in metalops.ops.quantize(w, **options) if y is not None]
    floats = [x, *parts[1:], bias]

    def gradients(x, packed, *others):
        leaves = [y.detach().requires_grad_() for y in (x, *others)]
        scales, biases, bias = [*leaves[1:-1], None][:2] + leaves[-1:]
        y = metalops.ops.quantized_linear(leaves[0], packed, scales, biases, bias, **options)
        return torch.autograd.grad((y * y).sum(), leaves)

    expected = gradients(x, parts[0], *floats[1:])
    for of_x, of_w, of_bias in (
        (Shard(0), Replicate(), Replicate()),
        (Replicate(), Shard(0), Shard(0)),
        (Shard(1), Shard(1), Replicate()),
    ):
        scales = [shard(y, of_w) for y in floats[1:-1]]
        found = gradients(shard(x, of_x), shard(parts[0], of_w), *scales, shard(bias, of_bias))
        for result, y in zip(found, expected):
            torch.testing.assert_close(whole(result), y, rtol=1e-3, atol=2e-2)


def dequantize(mode):
    w = torch.randn(8, 128, device="mps")
    options = {"bits": 4, "group_size": 32, "mode": mode}
    indices = torch.tensor([[3, 0, 7], [1, 1, 2]], device="mps")
    for placement in (Shard(0), Shard(1), Replicate()):
        parts = metalops.ops.quantize(w, **options)
        sharded = metalops.ops.quantize(shard(w, placement), **options)
        parts, sharded = ([x for x in found if x is not None] for found in (parts, sharded))
        for x, y in zip(sharded, parts):
            assert x.placements == (placement,)
            torch.testing.assert_close(whole(x), y, rtol=0, atol=0)
        result = metalops.ops.dequantize(*sharded, **options)
        assert result.placements == (placement,)
        torch.testing.assert_close(whole(result), metalops.ops.dequantize(*parts, **options))
        rows = metalops.ops.quantized_embedding(indices, *parts, **options)
        for of_indices in (Shard(0), Shard(1), Replicate()):
            result = metalops.ops.quantized_embedding(
                shard(indices, of_indices), *sharded, **options
            )
            torch.testing.assert_close(whole(result), rows)
    assert metalops.ops.quantized_embedding(
        shard(indices, Shard(0)), *(shard(x, Replicate()) for x in parts), **options
    ).placements == (Shard(0),)


def groups_that_do_not_divide():
    """Rows of three groups: columns cannot be split between two ranks, and the result is right all the same."""
    x, w = torch.randn(6, 96, device="mps"), torch.randn(8, 96, device="mps")
    for group_size in (32, 64):
        options = {"bits": 4, "group_size": group_size}
        parts = metalops.ops.quantize(w, **options)
        expected = metalops.ops.quantized_linear(x, *parts, **options)
        columns = [shard(y, Shard(1)) for y in (x, *parts)]
        result = metalops.ops.quantized_linear(*columns, **options)
        torch.testing.assert_close(whole(result), expected, rtol=1e-4, atol=1e-4)
        result = metalops.ops.dequantize(*columns[1:], **options)
        torch.testing.assert_close(whole(result), metalops.ops.dequantize(*parts, **options))


def int8_linear():
    x, weight = torch.randn(6, 32, device="mps"), torch.randint(-127, 128, (8, 32), device="mps")
    weight, scale = weight.to(torch.int8), torch.rand(8, device="mps")
    expected = metalops.ops.int8_linear(x, weight, scale)
    for of_x, of_w in ((Shard(0), Replicate()), (Replicate(), Shard(0)), (Shard(1), Replicate())):
        result = metalops.ops.int8_linear(shard(x, of_x), shard(weight, of_w), shard(scale, of_w))
        torch.testing.assert_close(whole(result), expected, rtol=1e-4, atol=1e-3)


def linear_out():
    x, w = torch.randn(6, 16, device="mps"), torch.randn(8, 16, device="mps")
    expected = metalops.ops.linear_act(x, w, None, "gelu")
    out = shard(torch.zeros_like(expected), Shard(1))
    metalops.ops.linear_act(shard(x, Shard(0)), shard(w, Replicate()), None, "gelu", out=out)
    assert out.placements == (Shard(1),)
    torch.testing.assert_close(whole(out), expected)


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
    x, w = torch.randn(6, 128, device="mps"), torch.randn(8, 128)
    kind = gguf.GGMLQuantizationType.Q8_0
    data = torch.from_numpy(gguf.quantize(w.numpy(), kind)).to("mps")
    bias = torch.randn(8, device="mps")
    expected = metalops.ops.gguf_linear(x, data, kind, bias)
    for of_x, of_w, of_bias, kept in (
        (Shard(0), Replicate(), Replicate(), Shard(0)),
        (Replicate(), Shard(0), Shard(0), Shard(1)),
        (Shard(1), Shard(1), Replicate(), Partial()),
    ):
        result = metalops.ops.gguf_linear(
            shard(x, of_x), shard(data, of_w), kind, shard(bias, of_bias)
        )
        assert result.placements == (kept,)
        torch.testing.assert_close(whole(result), expected, rtol=1e-4, atol=1e-4)
        compare(
            lambda x, data, bias: metalops.ops.gguf_linear(x, data, kind, bias),
            [x.clone(), data, bias.clone()],
            [of_x, of_w, of_bias],
        )


def gguf_rows():
    """Dequantised and as an embedding; three blocks a row cannot be split between two ranks."""
    kind = gguf.GGMLQuantizationType.Q4_0
    indices = torch.tensor([[3, 0], [7, 1]], device="mps")
    for columns in (128, 96):
        w = torch.randn(8, columns)
        data = torch.from_numpy(gguf.quantize(w.numpy(), kind)).to("mps")
        expected = metalops.ops.gguf_dequantize(data, kind)
        rows = metalops.ops.gguf_embedding(indices, data, kind)
        for placement in (Shard(0), Shard(1), Replicate()):
            result = metalops.ops.gguf_dequantize(shard(data, placement), kind)
            stays = columns == 128 or placement != Shard(1)
            assert result.placements == (placement,) or not stays
            torch.testing.assert_close(whole(result), expected)
            for of_indices in (Shard(0), Replicate()):
                found = metalops.ops.gguf_embedding(
                    shard(indices, of_indices), shard(data, placement), kind
                )
                torch.testing.assert_close(whole(found), rows)


FAMILIES = sorted({operator.function.__module__ for operator in declared.values()})


@pytest.mark.parametrize("family", FAMILIES)
def test_pointwise_operators(pair, family):
    names = [name for name, operator in declared.items() if operator.function.__module__ == family]
    pair.run(pointwise_family, names)


def test_pointwise_operators_in_place(pair):
    pair.run(pointwise_in_place)


@pytest.mark.parametrize("family", FAMILIES)
def test_pointwise_operators_into_given_tensors(pair, family):
    names = [name for name, operator in declared.items() if operator.function.__module__ == family]
    pair.run(pointwise_out, names)


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_dequantize(pair, mode):
    pair.run(dequantize, mode)


@pytest.mark.parametrize("mode", ["affine", "nf4"])
def test_gradients_of_scales(pair, mode):
    pair.run(gradients_of_scales, mode)


CASES = [
    out_of_other_sizes,
    packed_attention,
    caches,
    cache_of_flash_attention,
    groups_that_do_not_divide,
    int8_linear,
    linear_out,
    gguf_rows,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_case(pair, case):
    pair.run(case)


OPERATORS = {
    name.removeprefix("metalops::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("metalops::")
}


def operators_without_rules():
    propagator = DTensor._op_dispatcher.sharding_propagator
    known = {*propagator.op_strategy_funcs, *DTensor._op_dispatcher._custom_op_handlers}
    missing = []
    for name in OPERATORS:
        packet, _, overload = name.partition(".")
        if getattr(getattr(torch.ops.metalops, packet), overload or "default") not in known:
            missing.append(name)
    return sorted(missing)


def test_every_operator_has_a_rule(pair):
    assert pair.run(operators_without_rules) == [[], []]


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
