"""Attention on a GPU by our kernels, against the formula in float64: the calls of tests/ops.

This needs a GPU and nothing that is compiled: in a source tree,
`PYTHONPATH=python pytest --noconftest tests/cuda/test_attention_launch.py`.
"""

import contextlib
import importlib

import pytest
import torch
from metalops import cuda, flash_attn, ops

from tests.ops.attention import test_attention as calls
from tests.ops.attention import test_attention_cache as caches
from tests.ops.attention import test_attention_decode as decoding

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no NVIDIA GPU, or torch has no CUDA"
)

attention = importlib.import_module("metalops.ops.attention")
paged_attention = importlib.import_module("metalops.ops.paged_attention")


@pytest.fixture(autouse=True)
def nothing_is_composed(monkeypatch):
    torch.manual_seed(0)

    def composed(*args):
        raise AssertionError("kernels were to take this")

    # It is of the software device.
    for module in (calls, caches, decoding):
        monkeypatch.setattr(module, "no_standins", contextlib.nullcontext)
    for module, names in (
        (attention, "_composed _composed_backward"),
        (paged_attention, "_paged _reshape_and_cache _append_to_cache _rotate_tokens"),
    ):
        for name in names.split():
            monkeypatch.setattr(module, name, composed)


@pytest.mark.parametrize("seed", range(30))
def test_generated_calls(seed):
    calls.test_generated_calls(seed, "cuda")


@pytest.mark.parametrize("seed", range(15))
def test_generated_packed_sequences(seed):
    calls.test_generated_packed_sequences(seed, "cuda")


@pytest.mark.parametrize(("queries", "keys"), calls.LENGTHS)
def test_lengths(queries, keys):
    calls.test_lengths_around_those_of_tiles(queries, keys, "cuda")


@pytest.mark.parametrize(
    ("features", "values"),
    [(1, 1), (2, 5), (64, 64), (64, 128), (80, 80), (96, 96), (128, 128), (192, 192), (255, 129)],
)
def test_head_sizes(features, values):
    calls.test_head_sizes(features, values, "cuda")


def test_products_of_simdgroup_matrices(monkeypatch):
    monkeypatch.setenv("METALOPS_MATMUL", "simdgroup")
    calls.test_head_sizes(64, 64, "cuda")


@pytest.mark.parametrize("dtype", calls.FLOATS, ids=str)
@pytest.mark.parametrize("features", [64, 128])
@pytest.mark.parametrize("is_causal", [False, True])
def test_long_sequences(dtype, features, is_causal):
    tensors = calls.operands(1, 4, 2, 700, 1030, features, dtype=dtype)
    calls.check_attention(tensors, "cuda", is_causal=is_causal)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("features", [64, 128])
def test_nothing_is_read_behind_the_keys_of_a_head(features, dtype):
    """Copies of whole tiles would, of a last tile that is not whole."""
    given = [torch.randn(1, 3, 200, features, device="cuda", dtype=dtype) for _ in range(3)]
    expected = ops.attention(*(x[:, 1:2].contiguous() for x in given))
    for x in given[1:]:
        x[:, ::2] = torch.nan
    assert torch.equal(ops.attention(*given)[:, 1:2], expected)


@pytest.mark.parametrize("features", [64, 96, 128])
def test_copies_by_threads_and_by_the_copy_engine_give_the_same(features):
    given = [torch.randn(2, 3, 333, features, device="cuda", dtype=torch.half) for _ in range(3)]
    expected = ops.attention(*given, is_causal=True)
    by_tokens = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    assert torch.equal(ops.attention(*by_tokens, is_causal=True), expected)
    odd = [torch.empty(2, 3, 333, features + 1, device="cuda", dtype=torch.half) for _ in given]
    for among, x in zip(odd, given, strict=True):
        among[..., 1:] = x
    assert torch.equal(ops.attention(*(x[..., 1:] for x in odd), is_causal=True), expected)


def gradients_of(given, grad, **options):
    leaves = [x.detach().requires_grad_() for x in given]
    return torch.autograd.grad(ops.attention(*leaves, **options), leaves, grad)


def check_gradients(given, grad, left=-1, right=-1, **options):
    """Compares with float64. Gradients of scores are differences: errors are relative to what is subtracted."""
    found = gradients_of(given, grad, **options)
    query, key, value = wide = [x.double().requires_grad_() for x in given]
    group = query.shape[1] // key.shape[1]
    keys, values = (x.repeat_interleave(group, 1) for x in (key, value))
    scores = query @ keys.mT * query.shape[-1] ** -0.5
    apart = (
        torch.arange(keys.shape[2], device="cuda")
        - torch.arange(query.shape[2], device="cuda")[:, None]
    )
    hidden = ((apart > right) & (right >= 0)) | ((apart < -left) & (left >= 0))
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, 0)
    expected = torch.autograd.grad(weights @ values, wide, grad.double())
    terms = (weights * (grad.double() @ values.mT)).abs() * query.shape[-1] ** -0.5
    of_keys = (terms.mT @ query.abs()).unflatten(1, (-1, group)).sum(2)
    most = 2e-3 if grad.dtype == torch.half else 1.2e-2
    for x, y, of in zip(found, expected, (terms @ keys.abs(), of_keys, expected[2]), strict=True):
        assert (x - y).norm() <= most * of.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("features", [40, 64, 128])
@pytest.mark.parametrize(
    ("left", "right"), [(-1, -1), (-1, 0), (90, 37), (70, 0)], ids=lambda x: str(x)
)
def test_gradients_of_more_tiles_than_multiprocessors(dtype, features, left, right):
    """Other calls have small tiles."""
    query, grad = torch.randn(2, 3, 16, 333, features, device="cuda", dtype=dtype)
    key, value = torch.randn(2, 3, 8, 390, features, device="cuda", dtype=dtype)
    check_gradients((query, key, value), grad, left, right, window_size=(left, right))


@pytest.mark.parametrize("features", [64, 96, 128])
def test_gradients_are_the_same_for_all_strides_and_runs(features):
    given = [torch.randn(2, 3, 333, features, device="cuda", dtype=torch.half) for _ in range(3)]
    grad = torch.randn_like(given[0])
    expected = gradients_of(given, grad, is_causal=True)
    by_tokens = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    odd = torch.empty(4, 2, 3, 333, features + 1, device="cuda", dtype=torch.half)[..., 1:]
    odd.copy_(torch.stack([*given, grad]))
    for tensors, of_out in ((given, grad), (by_tokens, grad), (odd[:3].unbind(), odd[3])):
        for x, y in zip(gradients_of(tensors, of_out, is_causal=True), expected, strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("features", [64, 128])
def test_gradients_take_nothing_from_other_heads(features, dtype):
    given = [torch.randn(1, 3, 200, features, device="cuda", dtype=dtype) for _ in range(3)]
    grad = torch.randn_like(given[0])
    expected = gradients_of([x[:, 1:2].contiguous() for x in given], grad[:, 1:2].contiguous())
    for x in (*given, grad):
        x[:, ::2] = torch.nan
    for x, y in zip(gradients_of(given, grad), expected, strict=True):
        assert torch.equal(x[:, 1:2], y)


@pytest.mark.parametrize("size", [6, 12, 40])
@pytest.mark.parametrize("right", [-1, 0])
def test_gradients_of_large_scores(size, right):
    """Their lse is beyond what digits of float32 allow kernels to subtract at first."""
    query, key, value, grad = torch.randn(4, 1, 2, 300, 64, device="cuda").half()
    given = query * size, key * size, value
    check_gradients(given, grad, right=right, window_size=(-1, right))


def test_dropout_is_that_of_the_composition():
    given = [torch.randn(2, 2, 70, 32, device="cuda", requires_grad=True) for _ in range(3)]
    rng = torch.randint(2**62, (2,), dtype=torch.int64, device="cuda")
    options = (*[None] * 6, rng, 70, 70, 0.25, -1, 0, False, 0.0, 0.3)
    ours = torch.ops.metalops.attention_forward(*given, *options)
    expected = attention._result(attention.Call(*given, *options))
    grads, others = (
        torch.autograd.grad((out**2).sum() + lse.sum(), given) for out, lse in (ours, expected)
    )
    for x, y in zip((*ours, *grads), (*expected, *others), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def test_memory_grows_with_the_tokens():
    given = [torch.randn(1, 4, 8192, 64, device="cuda", requires_grad=True) for _ in range(3)]
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = ops.attention(*given)
        torch.autograd.grad(out, given, torch.ones_like(out))
        del out
    taken = torch.cuda.max_memory_allocated() - before
    assert taken < 9 * given[0].nbytes * 3


def test_cuda_graphs():
    given = [torch.randn(2, 4, 100, 64, device="cuda", dtype=torch.half) for _ in range(3)]
    ops.attention(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.attention(*given)
    given[0].copy_(torch.randn_like(given[0]))
    graph.replay()
    torch.testing.assert_close(out, ops.attention(*given))


# ---- caches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", calls.FLOATS, ids=str)
@pytest.mark.parametrize("heads", [(1, 1), (8, 2), (12, 1)])
def test_heads_in_groups(dtype, heads):
    decoding.test_heads_in_groups("cuda", dtype, *heads)


@pytest.mark.parametrize("size", [8, 24, 64])
def test_pages(size):
    decoding.test_pages_of_any_size("cuda", size)


@pytest.mark.parametrize("sizes", [(7, 5), (72, 80), (128, 64), (192, 128), (256, 256)])
def test_features(sizes):
    decoding.test_features_of_any_number("cuda", *sizes)


@pytest.mark.parametrize("queries", [1, 2, 8, 17])
def test_the_last_tokens(queries):
    decoding.test_the_last_tokens_see_what_is_not_behind_them("cuda", queries)


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("name", decoding.OPTIONS)
def test_options_of_pages(name, queries):
    decoding.test_options("cuda", torch.bfloat16, queries, name)


@pytest.mark.parametrize("codes", decoding.CODES, ids=str)
def test_caches_of_codes(codes):
    decoding.test_caches_of_codes("cuda", codes, torch.float16, (64, 32), True)
    decoding.test_caches_of_codes("cuda", codes, torch.float32, (21, 13), False)
    caches.test_what_is_stored_is_what_is_read("cuda", codes)


def test_codes_are_those_that_torch_rounds_to():
    caches.test_codes_are_those_that_torch_rounds_to("cuda")


def test_parts():
    for queries in (1, 2):
        decoding.test_long_sequences_in_parts("cuda", queries)
    decoding.test_strided_tensors("cuda")
    decoding.test_results_over_other_keys_are_put_together("cuda", torch.float16)
    decoding.test_what_has_seen_nothing_takes_no_part("cuda")
    decoding.test_gradients_of_what_is_put_together("cuda")
    decoding.test_halves_of_the_keys_make_the_whole("cuda")


def test_slots():
    caches.test_tokens_go_to_their_slots("cuda", torch.float16, torch.int64)
    caches.test_tokens_go_to_their_slots("cuda", torch.float32, torch.int32)


@pytest.mark.parametrize("pages", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_flash_attn_with_kvcache(pages, interleaved, causal, monkeypatch):
    """As on the CPU, where operators of torch do it."""
    monkeypatch.undo()  # of what fails on the CPU too
    sizes = (6, 8, 2, 32) if pages else (2, 24, 2, 32)
    angles = torch.rand(40, 12) * 6
    tensors = {
        "q": torch.randn(2, 3, 4, 32),
        "k_cache": torch.randn(sizes),
        "v_cache": torch.randn(sizes),
        "k": torch.randn(2, 3, 2, 32),
        "v": torch.randn(2, 3, 2, 32),
        "rotary_cos": angles.cos(),
        "rotary_sin": angles.sin(),
        "cache_seqlens": torch.tensor([4, 17], dtype=torch.int32),
    }
    if pages:
        tensors["block_table"] = torch.tensor([[3, 0, 5], [1, 4, 2]], dtype=torch.int32)
    options = {"rotary_interleaved": interleaved, "causal": causal, "return_softmax_lse": True}
    found = []
    for device in ("cpu", "cuda"):
        given = {name: x.to(device, copy=True) for name, x in tensors.items()}
        found.append(flash_attn.flash_attn_with_kvcache(**given, **options))
        found[-1] += (given["k_cache"], given["v_cache"])
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_what_caches_do_not_have_is_reported():
    cache = torch.zeros(3, 4, 1, 4, device="cuda")
    tokens = torch.ones(1, 1, 4, device="cuda")
    with pytest.raises(RuntimeError, match="slot_mapping has slot 12, but there are 12 slots"):
        ops.reshape_and_cache(tokens, tokens, cache, cache, torch.tensor([12], device="cuda"))
        cuda.synchronize()
    query = torch.randn(1, 1, 4, device="cuda")
    table = torch.tensor([[0, 99]], dtype=torch.int32, device="cuda")
    ops.paged_attention(query, cache, cache, table, torch.tensor([9], device="cuda"))
    with pytest.raises(RuntimeError, match="block_table has page 99, but there are 3 pages"):
        cuda.synchronize()
