"""reshape_and_cache: kernels/attention/attention_cache.metal."""

import math

import pytest
import torch
from metalops import ops
from metalops.testing import no_standins

from .test_attention_decode import CODES, Cache, attention, check, devices, dtypes

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
@pytest.mark.parametrize("codes", [None, *CODES], ids=str)
def test_features_may_lie_apart(device, codes):
    """Of tokens and of the caches that they go to and come from."""
    tokens = torch.randn(5, 2, 8, device=device).mT.contiguous().mT
    slots = torch.tensor([3, -1, 8, 0, 11], device=device)
    storage = torch.zeros(2, 3, 2, 8, 4, dtype=torch.uint8 if codes else torch.float32)
    storage = storage.to(device).view(codes or torch.float32)
    apart = [cache.permute(0, 3, 1, 2) for cache in storage]
    together = [torch.zeros_like(cache, memory_format=torch.contiguous_format) for cache in apart]
    for caches in (apart, together):
        with no_standins():
            ops.reshape_and_cache(tokens, tokens, *caches, slots)
    assert apart[0].stride(-1) != 1
    for found, expected in zip(apart, together):
        assert torch.equal(found.float(), expected.float())
    assert found.float().any(-1).any(-1).sum() == 4
    table = torch.tensor([[2, 0]], dtype=torch.int32, device=device)
    lengths = torch.tensor([7], dtype=torch.int32, device=device)
    for queries in (1, 40):
        query = torch.randn(1, queries, 4, 8, device=device)
        found, expected = (
            ops.paged_attention(query, *caches, table, lengths) for caches in (apart, together)
        )
        assert torch.equal(found, expected)


@devices
@pytest.mark.parametrize("slot", [-2, 12])
def test_a_slot_that_there_is_not_is_an_error(device, slot):
    tokens = torch.ones(1, 1, 4, device=device)
    cache = torch.zeros(3, 4, 1, 4, device=device)
    with pytest.raises(RuntimeError, match=f"slot_mapping has slot {slot}, but there are 12 slots"):
        ops.reshape_and_cache(tokens, tokens, cache, cache, torch.tensor([slot], device=device))
        cache.cpu()


@devices
def test_nothing_is_stored_where_an_argument_is_refused(device):
    tokens = torch.ones(2, 1, 4, device=device)
    slots = torch.arange(2, device=device)
    keys, values = torch.zeros(2, 3, 4, 1, 4, device=device)
    for value, cache in ((tokens[..., :3], values), (tokens, values.int()), (tokens[:1], values)):
        with pytest.raises(RuntimeError, match="reshape_and_cache: value"):
            ops.reshape_and_cache(tokens, value, keys, cache, slots)
        assert not keys.any()


def test_a_scale_on_another_device_is_refused():
    tokens = torch.ones(1, 1, 4, device="mps")
    cache = torch.zeros(3, 4, 1, 4, dtype=torch.int8, device="mps")
    slots = torch.zeros(1, dtype=torch.int64, device="mps")
    with pytest.raises(RuntimeError, match="same device"):
        ops.reshape_and_cache(tokens, tokens, cache, cache, slots, v_scale=torch.tensor(2.0))
    assert not cache.any()


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
    nan = numbers.isnan()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        codes = stored(device, numbers, dtype, 1.0)
        most = torch.finfo(dtype).max
        expected = numbers.float().clamp(-most, most).to(dtype)
        assert torch.equal(codes[~nan], expected.view(torch.uint8)[~nan])
        assert codes[nan].view(dtype).isnan().all()
    codes = stored(device, numbers, torch.int8, 0.5).view(torch.int8)
    expected = (numbers.float() / 0.5).nan_to_num(0, math.inf, -math.inf).round().clamp(-128, 127)
    assert torch.equal(codes, expected.to(torch.int8))


@devices
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_what_is_stored_is_what_is_read(device, codes):
    key, value = (torch.randn(20, 2, 32).clamp(-3.8, 3.8) for _ in range(2))
    sizes = (2, 16, 2, 32)
    caches = [torch.zeros(sizes, dtype=torch.uint8, device=device).view(codes) for _ in range(2)]
    scale = torch.tensor(0.03, device=device)
    slots = torch.arange(20, device=device)
    ops.reshape_and_cache(key.to(device), value.to(device), *caches, slots, k_scale=scale, v_scale=0.03)  # fmt: skip
    query = torch.randn(1, 4, 32)
    table = torch.tensor([[0, 1]], dtype=torch.int32, device=device)
    lengths = torch.tensor([20], dtype=torch.int32, device=device)
    out = ops.paged_attention(query.to(device), *caches, table, lengths, k_scale=scale, v_scale=0.03)  # fmt: skip
    read = [0.03 * x.view(torch.uint8).cpu().view(codes).double().flatten(0, 1)[:20] for x in caches]  # fmt: skip
    half_a_digit = {torch.int8: 0, torch.float8_e4m3fn: 1 / 16, torch.float8_e5m2: 1 / 8}[codes]
    for found, tokens in zip(read, (key, value)):
        torch.testing.assert_close(found, tokens.double(), rtol=half_a_digit, atol=0.0151)
    expected, _ = attention(query, *read, scale=32**-0.5)
    torch.testing.assert_close(out.cpu().double(), expected, rtol=0, atol=1e-5)


# ---- tokens behind those of a sequence -------------------------------------------------------------


def turned(token, angles, interleaved):
    """A token's features (H, E) rotated by the cosines and sines of its place, in float64."""
    cosines, sines = (x.double() for x in angles)
    half = len(cosines)
    result = token.double()
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, half + i)
        x, y = token[:, a].double(), token[:, b].double()
        result[:, a] = x * cosines[i] - y * sines[i]
        result[:, b] = y * cosines[i] + x * sines[i]
    return result


@devices
@dtypes
@pytest.mark.parametrize("interleaved", [True, False, None], ids=["pairs", "halves", "unrotated"])
@pytest.mark.parametrize("has_table", [True, False], ids=["pages", "samples"])
def test_tokens_go_behind_those_of_their_sequence(device, dtype, interleaved, has_table):
    """On pages of 4, of which the last place of the last sequence is taken; 6 of 10 features are rotated."""
    tokens = torch.randn(3, 5, 2, 10).to(dtype)
    lengths = torch.tensor([0, 2, 7], dtype=torch.int32)
    table = torch.tensor([[4, 1, 0], [2, 6, 3], [5, 8, 7]], dtype=torch.int32)
    cache = torch.full((9, 4, 2, 10) if has_table else (3, 12, 2, 10), 7.0).to(dtype)
    angles = [torch.randn(12, 3).to(dtype) for _ in range(2)]
    expected = cache.double()
    for i, length in enumerate(lengths.tolist()):
        for t in range(5):
            place = length + t
            token = tokens[i, t]
            if interleaved is not None:
                token = turned(token, [x[place] for x in angles], interleaved)
            page, slot = (table[i, place // 4], place % 4) if has_table else (i, place)
            expected[page, slot] = token.double()
    written = cache.to(device)
    given = [None, None] if interleaved is None else [x.to(device) for x in angles]
    with no_standins():
        torch.ops.metalops.append_to_cache(
            *(written, tokens.to(device), lengths.to(device)),
            *(table.to(device) if has_table else None, *given, bool(interleaved)),
        )
    tolerance = torch.finfo(dtype).eps * (4 if dtype == torch.float32 else 1)
    if interleaved is None:
        tolerance = 0
    torch.testing.assert_close(written.cpu().double(), expected, rtol=tolerance, atol=tolerance)


@devices
@dtypes
@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs", "halves"])
@pytest.mark.parametrize("advances", [True, False])
def test_queries_are_rotated_by_the_angles_of_their_places(device, dtype, interleaved, advances):
    tokens = torch.randn(2, 3, 8, 2).to(dtype).mT  # features apart
    lengths = torch.tensor([4, 0], dtype=torch.int32)
    angles = [torch.randn(7, 4).to(dtype) for _ in range(2)]
    result = torch.ops.metalops.rotate_tokens(
        *(x.to(device) for x in (tokens, lengths, *angles)), interleaved, advances
    )
    tolerance = torch.finfo(dtype).eps * (4 if dtype == torch.float32 else 1)
    for i, length in enumerate(lengths.tolist()):
        for t in range(3):
            place = length + (t if advances else 0)
            expected = turned(tokens[i, t], [x[place] for x in angles], interleaved)
            actual = result[i, t].cpu().double()
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@devices
@pytest.mark.parametrize("length", [-1, 3, 2**31 - 1])
def test_a_place_without_angles_is_an_error(device, length):
    tokens = torch.ones(1, 2, 1, 4, device=device)
    lengths = torch.tensor([length], dtype=torch.int32, device=device)
    angles = torch.ones(4, 2, device=device)
    places = "|".join(str(place) for place in (length, length + 1) if not 0 <= place < 4)
    message = f"puts a token at ({places}), but rotary_cos has 4 places"
    with pytest.raises(RuntimeError, match=message):
        torch.ops.metalops.rotate_tokens(tokens, lengths, angles, angles, True, True).cpu()
    cache = torch.zeros(1, 8, 1, 4, device=device)
    with pytest.raises(RuntimeError, match="puts a (token|key) at"):
        torch.ops.metalops.append_to_cache(cache, tokens, lengths, None, angles, angles, True)
        cache.cpu()


@devices
@pytest.mark.parametrize("length", [-1, 7, 8])
def test_no_room_behind_a_sequence_is_an_error(device, length):
    cache = torch.zeros(2, 8, 1, 4, device=device)
    tokens = torch.ones(2, 2, 1, 4, device=device)
    lengths = torch.tensor([0, length], dtype=torch.int32, device=device)
    # Threads come to their tokens in any order.
    places = "|".join(str(place) for place in (length, length + 1) if not 0 <= place < 8)
    message = f"puts a key at ({places}), but there is room for 8 keys"
    with pytest.raises(RuntimeError, match=message):
        torch.ops.metalops.append_to_cache(cache, tokens, lengths, None, None, None, False)
        cache.cpu()


@devices
@pytest.mark.parametrize("page", [-1, 3])
def test_a_page_that_there_is_not_is_an_error(device, page):
    cache = torch.zeros(3, 4, 1, 4, device=device)
    tokens = torch.ones(1, 2, 1, 4, device=device)
    lengths = torch.tensor([3], dtype=torch.int32, device=device)
    table = torch.tensor([[2, page]], dtype=torch.int32, device=device)
    with pytest.raises(RuntimeError, match=f"block_table has page {page}, but there are 3 pages"):
        torch.ops.metalops.append_to_cache(cache, tokens, lengths, table, None, None, False)
        cache.cpu()


# ---- the tokens of a cache side by side ------------------------------------------------------------


@devices
@dtypes
@pytest.mark.parametrize("codes", [None, *CODES], ids=str)
def test_many_queries_see_the_tokens_on_the_pages(device, dtype, codes):
    """So many that the cache is unpacked for them."""
    scale = None if codes is None else 0.03
    cache = Cache([53, 0, 41], 2, (16, 24), 8, codes or dtype, scale=scale)
    query = torch.randn(3, 40, 4, 16).to(dtype)
    tolerance = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    check(device, query, cache, tolerance=tolerance * (4 if codes else 1))


@devices
@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_many_queries_round_no_products_of_codes_and_their_scale(device, dtype, codes):
    """Scores of some hundreds, of which such a rounding would be seen in the first decimal."""
    cache = Cache([57], 2, (128, 8), 8, codes, scale=0.07)
    cache.scale = torch.tensor(0.07, device=device)
    query = torch.randn(1, 40, 4, 128).to(dtype)
    _, lse = ops.paged_attention(query.to(device), *cache.to(device), scale=1.0, k_scale=cache.scale, return_lse=True)  # fmt: skip
    key, value = (numbers[0] for numbers in cache.numbers)
    _, expected = attention(query[0], key, value, scale=1.0, window=(-1, 0))
    torch.testing.assert_close(lse[0].cpu().double(), expected, rtol=2e-6, atol=1e-4)


@devices
@pytest.mark.parametrize("page", [-1, 12])
def test_a_page_of_many_queries_that_there_is_not_is_an_error(device, page):
    cache = torch.zeros(12, 4, 1, 8, device=device)
    table = torch.arange(10, dtype=torch.int32, device=device)[None].clone()
    table[0, 9] = page
    lengths = torch.tensor([40], dtype=torch.int32, device=device)
    query = torch.ones(1, 40, 1, 8, device=device)
    with pytest.raises(RuntimeError, match=f"block_table has page {page}, but there are 12 pages"):
        ops.paged_attention(query, cache, cache, table, lengths).cpu()


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
