"""Attention on CUDA tensors, without a GPU: what runs for these launches its kernels on the software device here, on tensors of
the CPU, in calls of tests/ops. On a GPU test_attention_launch.py makes them."""

import importlib

import pytest
import torch
from metalops import ops
from metalops.cuda.library import Library
from metalops.msl.source import languages
from metalops.ops._cuda import kernel_file, plan
from metalops.ops._define.arguments import checked

from tests.ops.attention import test_attention as calls
from tests.ops.attention import test_attention_cache as caches
from tests.ops.attention import test_attention_decode as decoding

from .built import launched, use_built_kernels
from .recorded import ARCHITECTURE, needs_nvrtc, needs_software_device

pytestmark = needs_software_device

# Structs of the last one hold another header's.
attention = importlib.import_module("metalops.ops.attention")
paged_attention = importlib.import_module("metalops.ops.paged_attention")
IMPLEMENTATIONS = (
    ("attention_forward", attention._forward_on_cuda),
    ("attention_backward", attention._backward_on_cuda),
    ("paged_attention", paged_attention._paged_on_cuda),
    ("reshape_and_cache", paged_attention._reshape_and_cache_on_cuda),
    ("append_to_cache", paged_attention._append_to_cache_on_cuda),
    ("rotate_tokens", paged_attention._rotate_tokens_on_cuda),
    ("merge_attention", paged_attention._merge_on_cuda),
    ("merge_attention_backward", paged_attention._merge_backward_on_cuda),
)


@pytest.fixture(autouse=True)
def on_the_software_device(monkeypatch):
    """Operators on tensors of the CPU are those of CUDA tensors, as far as kernels take them."""
    use_built_kernels(monkeypatch)
    operators = torch.library.Library("metalops", "IMPL")
    for name, implementation in IMPLEMENTATIONS:
        schema = getattr(torch.ops.metalops, name).default._schema
        names = [argument.name for argument in schema.arguments]
        operators.impl(name, checked(name, names, implementation), "CPU")
    yield
    operators._destroy()


def has_launched(*beginnings):
    return all(any(name.startswith(b) for name in launched) for b in beginnings)


@pytest.mark.full
@pytest.mark.sampled(14)
@pytest.mark.parametrize("body", ["tensor", "simdgroup"])
@pytest.mark.parametrize("seed", range(10))
def test_generated_calls(seed, body, monkeypatch):
    monkeypatch.setenv("METALOPS_MATMUL", body)
    calls.test_generated_calls(seed, "cpu")
    calls.test_generated_packed_sequences(seed, "cpu")
    assert has_launched("attention_grad_query", "attention_grad_key_value", "attention_statistics")


@pytest.mark.sampled(6)
@pytest.mark.full
@pytest.mark.parametrize(
    ("features", "values"), [(1, 1), (40, 24), (2, 5), (64, 128), (96, 96), (255, 129)]
)
def test_head_sizes(features, values):
    calls.test_head_sizes(features, values, "cpu")
    assert len(launched) > 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("features", [32, 64, 80, 128])
def test_halves_are_attended_by_simdgroups(features, dtype):
    """With tiles that are seen as a whole, in part and not at all."""
    tensors = calls.operands(1, 4, 2, 150, 210, features, dtype=dtype)
    for options in ({}, {"is_causal": True}, {"window_size": (70, 20)}):
        calls.check_attention(tensors, "cpu", **options)
    assert has_launched("attention_forward_by_simdgroups")


@pytest.mark.parametrize("length", [1, 40])
def test_one_launch_for_few_queries_and_many(length):
    query = torch.randn(1, 4, length, 16)
    ops.attention(query, *torch.randn(2, 1, 2, 30, 16))
    kernel = "attention_decode_float_float_4_64" if length == 1 else "attention_forward_32_float"
    assert launched == [kernel]


def test_dropout():
    """The elements that the composition drops."""
    q, k, v = (torch.randn(2, 2, 40, 16, requires_grad=True) for _ in range(3))
    torch.manual_seed(3)
    rng = torch.randint(2**62, (2,), dtype=torch.int64)
    options = (*[None] * 6, rng, 40, 40, 0.25, -1, 0, False, 0.0, 0.3)
    ours = torch.ops.metalops.attention_forward(q, k, v, *options)
    expected = attention._composed(attention.Call(q, k, v, *options))
    grads = torch.autograd.grad((ours[0] ** 2).sum() + ours[1].sum(), (q, k, v))
    others = torch.autograd.grad((expected[0] ** 2).sum() + expected[1].sum(), (q, k, v))
    for x, y in zip((*ours, *grads), (*expected, *others), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_strided_and_broadcast_tensors():
    x = torch.randn(2, 40, 3, 2, 24)
    query, key, value = (x[:, :, i].transpose(1, 2) for i in range(3))
    given = (query[..., ::2], key[:1].expand(2, -1, -1, -1)[..., 1::2], value[:, :1, :, 3:])
    out, lse = ops.attention(*given, return_lse=True)
    expected, expected_lse = calls.reference(*(g.expand(2, 2, 40, -1).double() for g in given))
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-4, atol=1e-5)
    assert out.stride() == (2 * 40 * 21, 21, 2 * 21, 1) and launched


def test_what_is_too_large_for_kernels_is_composed(monkeypatch):
    def refused(*args, **arguments):
        raise plan.TooLarge

    monkeypatch.setattr(plan, "run", refused)
    calls.test_generated_calls(0, "cpu")
    decoding.test_pages_of_any_size("cpu", 16)
    caches.test_tokens_go_to_their_slots("cpu", torch.float16, torch.int64)
    assert launched == []


@pytest.mark.parametrize("size", [1, 16, 13])
def test_pages(size):
    decoding.test_pages_of_any_size("cpu", size)
    assert has_launched("attention_decode_float_float_4_64")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("queries", [1, 3, 40])
@pytest.mark.parametrize("name", ["window", "softcap", "sinks", "slopes"])
def test_options_of_pages(name, queries):
    decoding.test_options("cpu", torch.float16, queries, name)
    assert has_launched(
        "attention_decode_half" if queries < 17 else "attention_forward_by_simdgroups_64"
    )


@pytest.mark.nightly
def test_caches_of_codes():
    for codes in decoding.CODES:
        for as_tensor in (False, True):
            decoding.test_caches_of_codes("cpu", codes, torch.bfloat16, (64, 32), as_tensor)
            caches.test_what_is_stored_is_what_is_read("cpu", codes)
        caches.test_many_queries_round_no_products_of_codes_and_their_scale(
            "cpu", torch.half, codes
        )
    for codes in decoding.CODES.values():
        assert has_launched(f"attention_cache_store_float_{codes}")
        assert has_launched(f"attention_cache_gather_half_{codes}")
        assert has_launched(f"attention_decode_bfloat_{codes}")


def test_long_sequences_in_parts_and_results_put_together():
    decoding.test_long_sequences_in_parts("cpu", 1)
    assert has_launched("attention_decode_combine_simdgroup_float")
    decoding.test_results_over_other_keys_are_put_together("cpu", torch.float16)
    decoding.test_what_has_seen_nothing_takes_no_part("cpu")
    decoding.test_gradients_of_what_is_put_together("cpu")
    assert has_launched(
        "attention_decode_merge_pair_half", "attention_decode_merge_pair_backward_float"
    )


def test_tokens_go_to_their_slots():
    for index in (torch.int32, torch.int64):
        caches.test_tokens_go_to_their_slots("cpu", torch.float16, index)
    assert {*launched} == {"attention_cache_store_half_half"}


def test_errors_name_the_operator_and_the_argument():
    decoding.test_a_page_that_there_is_not_is_an_error("cpu", 99)
    decoding.test_errors_name_the_operator_and_the_argument("cpu")
    for length in (-1, 3, 2**31 - 1):
        caches.test_a_place_without_angles_is_an_error("cpu", length)
    for slot in (-2, 12):
        caches.test_a_slot_that_there_is_not_is_an_error("cpu", slot)


@needs_nvrtc
@pytest.mark.nightly
@pytest.mark.parametrize("type", ["float", "half"])
def test_kernels_with_products_of_simdgroup_matrices_compile(type):
    """tests/cuda/test_compile.py compiles those of tensors."""
    kernels = [f"attention_{x}_64_{type}" for x in ("forward", "grad_query", "grad_key_value")]
    text = kernel_file.text_of("attention")
    found = Library(text, "attention", kernels=kernels, language=languages.FLOOR)
    code = found.compile(ARCHITECTURE, debug=True).decode()
    assert code.count(".entry msl_kernel_") == 3
