"""reshape_and_cache: kernels/attention_cache.metal."""

import math

import pytest
import torch
from metalops import ops
from metalops.testing import no_standins

from .test_attention_decode import CODES, attention, devices, dtypes

OTHERS = ("reshape_and_cache",)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@devices
@dtypes
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_tokens_go_to_their_slots(device, dtype, index):
    key, value = torch.randn(5, 2, 8).to(dtype), torch.randn(5, 2, 6).to(dtype)
    slots = torch.tensor([3, -1, 8, 0, 11], dtype=index)
    caches = [torch.full((3, 4, 2, size), 7.0, dtype=dtype) for size in (8, 6)]
    expected = [cache.clone().flatten(0, 1) for cache in caches]
    caches = [cache.to(device) for cache in caches]
    with no_standins():
        result = ops.reshape_and_cache(key.to(device), value.to(device), *caches, slots.to(device))
    assert result is None
    for cache, rows, tokens in zip(caches, expected, (key, value)):
        for slot, token in zip(slots.tolist(), tokens):
            if slot >= 0:
                rows[slot] = token
        assert torch.equal(cache.flatten(0, 1).cpu(), rows)


@devices
@pytest.mark.parametrize("slot", [-2, 12])
def test_a_slot_that_there_is_not_is_an_error(device, slot):
    tokens = torch.ones(1, 1, 4, device=device)
    cache = torch.zeros(3, 4, 1, 4, device=device)
    with pytest.raises(RuntimeError, match=f"slot_mapping has slot {slot}, but there are 12 slots"):
        ops.reshape_and_cache(tokens, tokens, cache, cache, torch.tensor([slot], device=device))
        cache.cpu()


def stored(device, numbers, dtype, scale):
    """Numbers as one slot of a cache has them."""
    tokens = numbers.reshape(1, 1, -1)
    cache = torch.zeros(1, 1, *tokens.shape[1:], dtype=torch.uint8, device=device).view(dtype)
    slots = torch.zeros(1, dtype=torch.int64, device=device)
    moved = tokens.to(device)
    ops.reshape_and_cache(moved, moved, cache, cache, slots, k_scale=scale, v_scale=scale)
    return cache.view(torch.uint8).cpu().flatten()


@devices
def test_codes_are_those_that_torch_rounds_to(device):
    """All numbers of bfloat16."""
    numbers = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    codes = stored(device, numbers, torch.float8_e4m3fn, 1.0)
    expected = numbers.float().clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    nan = numbers.isnan()
    assert torch.equal(codes[~nan], expected[~nan])
    assert torch.all(codes[nan] & 0x7F == 0x7F)
    codes = stored(device, numbers, torch.int8, 0.5).view(torch.int8)
    expected = (numbers.float() / 0.5).nan_to_num(0, math.inf, -math.inf).round().clamp(-128, 127)
    assert torch.equal(codes, expected.to(torch.int8))


@devices
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_what_is_stored_is_what_is_read(device, codes):
    key, value = torch.randn(20, 2, 32), torch.randn(20, 2, 32)
    sizes = (2, 16, 2, 32)
    caches = [torch.zeros(sizes, dtype=torch.uint8, device=device).view(codes) for _ in range(2)]
    scale = torch.tensor(0.03, device=device)
    slots = torch.arange(20, device=device)
    ops.reshape_and_cache(key.to(device), value.to(device), *caches, slots, k_scale=scale, v_scale=0.03)  # fmt: skip
    query = torch.randn(1, 4, 32)
    table = torch.tensor([[0, 1]], dtype=torch.int32, device=device)
    lengths = torch.tensor([20], dtype=torch.int32, device=device)
    out = ops.paged_attention(query.to(device), *caches, table, lengths, k_scale=scale, v_scale=0.03)  # fmt: skip
    expected, _ = attention(query, key, value, scale=32**-0.5)
    torch.testing.assert_close(out.cpu().double(), expected, rtol=0, atol=0.05)


@devices
def test_opcheck(device):
    tokens = torch.randn(3, 2, 16, device=device)
    slots = torch.tensor([0, -1, 9], device=device)
    cache = torch.zeros(2, 8, 2, 16, device=device)
    args = (tokens, tokens, cache, cache.clone(), slots, None, None, 1.0, 1.0)
    store = torch.ops.metalops.reshape_and_cache.default
    torch.library.opcheck(store, args, test_utils=("test_schema", "test_faketensor"))


def test_compiled_calls_write_to_the_cache():
    def step(query, key, value, key_cache, value_cache, slots, table, lengths):
        ops.reshape_and_cache(key, value, key_cache, value_cache, slots)
        return ops.paged_attention(query, key_cache, value_cache, table, lengths)

    tensors = [torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16)]
    caches = [torch.randn(4, 8, 2, 16) for _ in range(2)]
    numbers = [
        torch.tensor([9, 17]),
        torch.tensor([[0, 1], [3, 2]], dtype=torch.int32),
        torch.tensor([10, 10], dtype=torch.int32),
    ]
    args = [x.to("mps") for x in (*tensors, *caches, *numbers)]
    again = [x.clone() for x in args]
    expected = step(*args)
    found = torch.compile(step, backend="aot_eager", fullgraph=True)(*again)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(again, args)
