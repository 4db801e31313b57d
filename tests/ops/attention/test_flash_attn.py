"""metalops.flash_attn: FlashAttention-2's functions."""

import inspect
import math

import pytest
import torch
from metalops import flash_attn
from metalops.testing.samples import FLOATS

from .test_attention_decode import GUARD_RAIL, attention

devices = pytest.mark.parametrize("device", ["mps", "cpu"])
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def check(ours, expected, dtype=torch.float32):
    rail = GUARD_RAIL[dtype]
    torch.testing.assert_close(ours.detach().cpu().double(), expected, rtol=rail, atol=rail)


def reference(q, k, v, *, causal=False, window=(-1, -1), scale=None, softcap=0.0, slopes=None):
    """Of (B, L, H, E): the result and its log-sum-exp (B, H, L), in float64."""
    found = [
        attention(
            *tensors,
            scale=q.shape[-1] ** -0.5 if scale is None else scale,
            window=(window[0], 0 if causal else window[1]),
            softcap=softcap,
            slopes=slopes if slopes is None or slopes.dim() == 1 else slopes[i],
        )
        for i, tensors in enumerate(zip(q, k, v))
    ]
    return torch.stack([out for out, _ in found]), torch.stack([lse.T for _, lse in found])


SIGNATURES = {
    "flash_attn_func": "q k v dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 "
    "alibi_slopes=None deterministic=False return_attn_probs=False",
    "flash_attn_kvpacked_func": "q kv dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 "
    "alibi_slopes=None deterministic=False return_attn_probs=False",
    "flash_attn_qkvpacked_func": "qkv dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 "
    "alibi_slopes=None deterministic=False return_attn_probs=False",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p=0.0 softmax_scale=None "
    "causal=False window_size=(-1,-1) softcap=0.0 alibi_slopes=None deterministic=False return_attn_probs=False "
    "block_table=None",
    "flash_attn_varlen_kvpacked_func": "q kv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p=0.0 "
    "softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 alibi_slopes=None deterministic=False "
    "return_attn_probs=False",
    "flash_attn_varlen_qkvpacked_func": "qkv cu_seqlens max_seqlen dropout_p=0.0 softmax_scale=None causal=False "
    "window_size=(-1,-1) softcap=0.0 alibi_slopes=None deterministic=False return_attn_probs=False",
    "flash_attn_with_kvcache": "q k_cache v_cache k=None v=None rotary_cos=None rotary_sin=None cache_seqlens=None "
    "cache_batch_idx=None cache_leftpad=None block_table=None softmax_scale=None causal=False window_size=(-1,-1) "
    "softcap=0.0 rotary_interleaved=True alibi_slopes=None num_splits=0 return_softmax_lse=False",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_of_flash_attention_2(name):
    parameters = inspect.signature(getattr(flash_attn, name)).parameters.values()
    found = [
        p.name if p.default is p.empty else f"{p.name}={p.default}".replace(" ", "")
        for p in parameters
    ]
    assert " ".join(found) == SIGNATURES[name]


# ---- without a cache -------------------------------------------------------------------------------

OPTIONS = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window_size": (7, 3)},
    "scale, softcap": {"softmax_scale": 0.3, "softcap": 2.0, "causal": True},
    "slopes": {"alibi_slopes": True},
}


@devices
@dtypes
@pytest.mark.parametrize("name", OPTIONS)
def test_dense(device, dtype, name):
    options = dict(OPTIONS[name])
    if "alibi_slopes" in options:
        options["alibi_slopes"] = torch.rand(2, 4)
    q = torch.randn(2, 19, 4, 32).to(dtype)
    k, v = (torch.randn(2, 33, 2, 32).to(dtype) for _ in range(2))
    call = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    expected, expected_lse = reference(
        q,
        k,
        v,
        causal=options.get("causal", False),
        window=options.get("window_size", (-1, -1)),
        scale=options.get("softmax_scale"),
        softcap=options.get("softcap", 0.0),
        slopes=options.get("alibi_slopes"),
    )
    q, k, v = (x.to(device) for x in (q, k, v))
    out, lse, none = flash_attn.flash_attn_func(q, k, v, **call, return_attn_probs=True)
    assert none is None and out.dtype == dtype
    check(out, expected, dtype)
    torch.testing.assert_close(lse.cpu().double(), expected_lse, rtol=1e-5, atol=1e-4)
    assert torch.equal(flash_attn.flash_attn_func(q, k, v, **call), out)
    packed = flash_attn.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), **call)
    torch.testing.assert_close(packed, out)


@devices
def test_gradients_of_packed_queries_keys_and_values(device):
    qkv = torch.randn(2, 17, 3, 2, 16)
    ours = qkv.to(device).requires_grad_()
    theirs = qkv.double().detach().requires_grad_()
    grad = torch.randn(2, 17, 2, 16)
    out = flash_attn.flash_attn_qkvpacked_func(ours, causal=True)
    out.backward(grad.to(device))
    expected, _ = reference(*theirs.unbind(2), causal=True)
    expected.backward(grad.double())
    check(out, expected.detach())
    torch.testing.assert_close(ours.grad.cpu().double(), theirs.grad, rtol=1e-4, atol=1e-4)


@devices
def test_packed_sequences(device):
    lengths = [5, 1, 12]
    cu = torch.tensor([0, 5, 6, 18], dtype=torch.int32)
    qkv = torch.randn(18, 3, 2, 16)
    parts = [x.unbind(1) for x in qkv.split(lengths)]
    expected = torch.cat([reference(*(x[None] for x in part), causal=True)[0][0] for part in parts])
    moved, cu = qkv.to(device), cu.to(device)
    check(flash_attn.flash_attn_varlen_qkvpacked_func(moved, cu, 12, causal=True), expected)
    q, kv = moved[:, 0], moved[:, 1:]
    call = (cu, cu, 12, 12)
    check(flash_attn.flash_attn_varlen_kvpacked_func(q, kv, *call, causal=True), expected)
    out, lse, _ = flash_attn.flash_attn_varlen_func(
        q, *kv.unbind(1), *call, causal=True, return_attn_probs=True
    )
    check(out, expected)
    assert lse.shape == (2, 18)


# ---- with a cache ----------------------------------------------------------------------------------


def rotated(x, places, cosines, sines, interleaved):
    """x: (L, H, E), in float64."""
    half = cosines.shape[1]
    x = x.double().clone()
    turned = x[..., : 2 * half]
    first = turned[..., ::2] if interleaved else turned[..., :half]
    second = turned[..., 1::2] if interleaved else turned[..., half:]
    c, s = (t[places].double()[:, None] for t in (cosines, sines))
    a, b = first * c - second * s, second * c + first * s
    first.copy_(a), second.copy_(b)
    return x


@devices
@dtypes
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("way", ["dense", "pages", "samples"])
@pytest.mark.parametrize("rotary", [None, "interleaved", "halves"])
def test_new_tokens_are_appended_and_seen(device, dtype, causal, way, rotary):
    batch, new, size, lengths = 3, 4, 32, [0, 13, 28]
    room = 32
    q = torch.randn(batch, new, 4, size).to(dtype)
    k, v = (torch.randn(batch, new, 2, size).to(dtype) for _ in range(2))
    old = [torch.randn(batch, room, 2, size).to(dtype) for _ in range(2)]
    for x in old:
        for i, length in enumerate(lengths):
            x[i, length:] = math.nan
    call = {}
    caches = [x.clone() for x in old]
    table = None
    if way == "pages":
        table = torch.randperm(batch * 4).reshape(batch, 4).int()
        caches = [torch.empty(batch * 4, 8, 2, size, dtype=dtype) for _ in old]
        for cache, x in zip(caches, old):
            cache[table.long()] = x.unflatten(1, (4, 8))
        call["block_table"] = table.to(device)
    elif way == "samples":
        index = torch.tensor([4, 0, 2], dtype=torch.int32)
        caches = [torch.full((5, room, 2, size), math.nan, dtype=dtype) for _ in old]
        for cache, x in zip(caches, old):
            cache[index.long()] = x
        call["cache_batch_idx"] = index.to(device)
    if rotary is not None:
        angles = torch.rand(room, 12) * 6
        tables = [f(angles).to(dtype) for f in (torch.cos, torch.sin)]
        call["rotary_cos"], call["rotary_sin"] = (x.to(device) for x in tables)
        call["rotary_interleaved"] = rotary == "interleaved"
    caches = [x.to(device) for x in caches]
    out, lse = flash_attn.flash_attn_with_kvcache(
        q.to(device),
        *caches,
        k.to(device),
        v.to(device),
        cache_seqlens=torch.tensor(lengths, dtype=torch.int32, device=device),
        causal=causal,
        return_softmax_lse=True,
        **call,
    )
    for i, length in enumerate(lengths):
        query, key = q[i], k[i]
        if rotary is not None:
            places = length + torch.arange(new)
            key = rotated(key, places, *tables, rotary == "interleaved").to(dtype)
            query = rotated(query, places if causal else places * 0 + length, *tables, rotary == "interleaved").to(dtype)  # fmt: skip
        keys, values = torch.cat([old[0][i, :length], key]), torch.cat([old[1][i, :length], v[i]])
        expected, expected_lse = reference(query[None], keys[None], values[None], causal=causal)
        check(out[i], expected[0], dtype)
        torch.testing.assert_close(lse[i].cpu().double(), expected_lse[0], rtol=1e-4, atol=2e-2 if dtype != torch.float32 else 1e-4)  # fmt: skip
        for cache, rows in zip(caches, (keys, values)):
            if way == "pages":
                cache = cache.cpu()[table[i].long()].flatten(0, 1)
            else:
                cache = cache.cpu()[i if way == "dense" else index[i]]
            torch.testing.assert_close(cache[: length + new], rows, rtol=2e-2, atol=GUARD_RAIL[dtype])  # fmt: skip
            assert cache[length + new :].isnan().all()


@devices
def test_keys_from_the_left_padding_on_count(device):
    q = torch.randn(2, 1, 2, 16)
    k, v = torch.randn(2, 20, 2, 16), torch.randn(2, 20, 2, 16)
    pads = [3, 0]
    for i, pad in enumerate(pads):
        k[i, :pad] = math.nan
    out = flash_attn.flash_attn_with_kvcache(
        *(x.to(device) for x in (q, k, v)),
        cache_seqlens=17,
        cache_leftpad=torch.tensor(pads, dtype=torch.int32, device=device),
        causal=True,
    )
    for i, pad in enumerate(pads):
        part = slice(pad, 17)
        check(out[i : i + 1], reference(q[i : i + 1], k[i : i + 1, part], v[i : i + 1, part])[0])


@devices
@pytest.mark.parametrize("window_size", [(-1, -1), (6, 2)])
def test_many_queries_of_a_cache(device, window_size):
    q = torch.randn(2, 40, 4, 16)
    k, v = torch.randn(2, 64, 2, 16), torch.randn(2, 64, 2, 16)
    out = flash_attn.flash_attn_with_kvcache(
        *(x.to(device) for x in (q, k, v)), window_size=window_size, softcap=4.0
    )
    check(out, reference(q, k, v, window=window_size, softcap=4.0)[0])


@devices
def test_no_room_in_the_cache_is_an_error(device):
    tokens = torch.ones(1, 2, 1, 4, device=device)
    caches = [torch.zeros(1, 8, 1, 4, device=device) for _ in range(2)]
    with pytest.raises(
        RuntimeError, match="cache_seqlens puts a key at 8, but there is room for 8"
    ):
        flash_attn.flash_attn_with_kvcache(tokens, *caches, tokens, tokens, cache_seqlens=7).cpu()


@devices
def test_nothing_is_stored_where_keys_or_values_are_refused(device):
    tokens = torch.ones(1, 2, 1, 4, device=device)
    caches = [torch.zeros(1, 8, 1, 4, device=device) for _ in range(2)]
    for k, v, argument in (
        (tokens, tokens[..., :3], "v"),
        (tokens, tokens[:, :1], "v"),
        (tokens, tokens.half(), "v"),
        (tokens[0], tokens[0], "k"),
    ):
        with pytest.raises(RuntimeError, match=f"flash_attn_with_kvcache: {argument} must have sizes"):  # fmt: skip
            flash_attn.flash_attn_with_kvcache(tokens, *caches, k, v, cache_seqlens=1)
        assert not any(cache.any() for cache in caches)


@devices
def test_places_without_angles_are_an_error(device):
    tokens = torch.ones(1, 2, 1, 4, device=device)
    caches = [torch.zeros(1, 8, 1, 4, device=device) for _ in range(2)]
    angles = torch.ones(3, 2, device=device)
    with pytest.raises(RuntimeError, match="puts a token at 3, but rotary_cos has 3 places"):
        flash_attn.flash_attn_with_kvcache(
            tokens, *caches, tokens, tokens, angles, angles, cache_seqlens=2
        ).cpu()


def test_arguments_that_need_or_exclude_one_another():
    tokens = torch.ones(1, 1, 1, 4)
    caches = [torch.zeros(1, 8, 1, 4) for _ in range(2)]
    index = torch.zeros(1, dtype=torch.int32)
    for message, call in (
        ("k and v must be given together", {"k": tokens}),
        ("k needs cache_seqlens", {"k": tokens, "v": tokens}),
        ("rotary_cos needs k", {"rotary_cos": tokens, "rotary_sin": tokens}),
        ("exclude each other", {"block_table": index[:, None], "cache_batch_idx": index}),
        ("window_size must be two numbers, but is", {"window_size": (1,)}),
    ):
        with pytest.raises(ValueError, match="flash_attn_with_kvcache: .*" + message):
            flash_attn.flash_attn_with_kvcache(tokens, *caches, **call)
