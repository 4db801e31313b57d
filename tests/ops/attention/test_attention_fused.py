"""ATen's flash, memory efficient and overrideable attention on mps: csrc/ops/attention/attention_fused.mm."""

import math

import metalops
import pytest
import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import AuxRequest, varlen_attn, varlen_attn_out
from torch.utils.flop_counter import FlopCounterMode

from .helpers import BACKWARD, DTYPES, FORWARD, assert_near, exact

aten = torch.ops.aten
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
LSE = {torch.float32: 1e-4}


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype).to("mps")


def heads_first(x):
    return x.transpose(-3, -2)


def begins(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to("mps")


def gradients_of(function, inputs, direction=None):
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = function(*inputs)
    direction = torch.ones_like(out) if direction is None else direction.to(out)
    return out.detach(), torch.autograd.grad(out, inputs, direction)


def check_gradients(function, definition, *inputs):
    """The result and the gradients of `function`, against those of `definition` in float64."""
    wide = [x.cpu().double() for x in inputs]
    direction = torch.randn_like(definition(*wide)).to(inputs[0].dtype).double()
    expected, expected_gradients = gradients_of(definition, wide, direction)
    out, gradients = gradients_of(function, inputs, direction)
    assert_near(out, expected, FORWARD)
    for a, e in zip(gradients, expected_gradients, strict=True):
        assert_near(a, e, BACKWARD)


def assert_as_meta(operator, *arguments, **keywords):
    """That results have the sizes, strides and dtypes that torch's compiler expects."""
    actual = operator(*arguments, **keywords)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (arguments, keywords))
        expected = operator(*fake[0], **fake[1])
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if a is None or e is None or not isinstance(e, torch.Tensor):
            assert a is None or not isinstance(a, torch.Tensor) or a.numel() == 0 or e is not None
            continue
        assert (a.shape, a.dtype, a.stride()) == (e.shape, e.dtype, e.stride()), i


# ---- flash attention ----------------------------------------------------------------------------


@by_dtype
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("sizes", [(9, 9), (5, 12), (12, 5)], ids=str)
def test_dense_flash_attention_is_causal_from_the_last_key(dtype, is_causal, sizes):
    rows, columns = sizes
    query = normal(2, rows, 4, 8, dtype=dtype)
    key, value = (normal(2, columns, 2, 8, dtype=dtype) for _ in range(2))

    def flash(*inputs):
        return aten._flash_attention_forward(
            *inputs, None, None, rows, columns, 0.0, is_causal, False
        )[0]

    def definition(*inputs):
        options = {"is_causal": is_causal, "bottom_right": True}
        return heads_first(exact(*map(heads_first, inputs), **options).out)

    check_gradients(flash, definition, query, key, value)
    lse = aten._flash_attention_forward(
        query, key, value, None, None, rows, columns, 0.0, is_causal, False
    )[1]
    inputs = map(heads_first, (query, key, value))
    assert_near(lse, exact(*inputs, is_causal=is_causal, bottom_right=True).lse, LSE)


@by_dtype
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_scaled_dot_product_flash_attention(dtype, is_causal):
    inputs = normal(2, 4, 5, 8, dtype=dtype), *(normal(2, 4, 12, 8, dtype=dtype) for _ in range(2))
    options = {"is_causal": is_causal, "bottom_right": True, "scale": 0.3}
    check_gradients(
        lambda *x: aten._scaled_dot_product_flash_attention(*x, 0.0, is_causal, scale=0.3)[0],
        lambda *x: exact(*x, **options).out,
        *inputs,
    )
    lse = aten._scaled_dot_product_flash_attention(*inputs, 0.0, is_causal, scale=0.3)[1]
    assert_near(lse, exact(*inputs, **options).lse, LSE)


@pytest.mark.parametrize("window", [(-1, -1), (3, -1), (-1, 2), (2, 1), (0, 0)], ids=str)
def test_windows(window):
    query, key, value = normal(2, 5, 2, 8), normal(2, 12, 2, 8), normal(2, 12, 2, 8)
    left, right = window

    def flash(*inputs):
        sizes = {"window_size_left": left, "window_size_right": right}
        return aten._flash_attention_forward(
            *inputs, None, None, 5, 12, 0.0, False, False, **sizes
        )[0]

    def definition(*inputs):
        inputs = map(heads_first, inputs)
        return heads_first(exact(*inputs, window=window, bottom_right=True).out)

    check_gradients(flash, definition, query, key, value)


def test_more_scores_than_32_bits_count():
    """Of which the window has few."""
    count = 2**16 + 3
    query, key, value = (normal(1, count, 1, 8) for _ in range(3))
    out, lse, *_ = aten._flash_attention_forward(
        query,
        key,
        value,
        None,
        None,
        count,
        count,
        0.0,
        True,
        False,
        window_size_left=40,
    )
    for end in (100, 40000, count):
        part = [heads_first(x[:, end - 90 : end]) for x in (query, key, value)]
        expected = exact(*part, window=(40, 0), bottom_right=True)
        assert_near(heads_first(out)[:, :, end - 50 : end], expected.out[:, :, 40:], FORWARD)
        assert_near(lse[..., end - 50 : end], expected.lse[..., 40:], LSE)


def test_alibi():
    query, key, value = normal(2, 5, 4, 8), normal(2, 12, 2, 8), normal(2, 12, 2, 8)
    slopes = torch.rand(4).to("mps")
    out, lse, *_ = aten._flash_attention_forward(
        query, key, value, None, None, 5, 12, 0.0, True, False, alibi_slopes=slopes
    )
    inputs = map(heads_first, (query, key, value))
    expected = exact(*inputs, is_causal=True, bottom_right=True, slopes=slopes)
    assert_near(heads_first(out), expected.out, FORWARD)
    assert_near(lse, expected.lse, LSE)


def test_flash_results_are_as_torchs_compiler_expects():
    query, key, value = normal(2, 5, 4, 8), normal(2, 12, 2, 8), normal(2, 12, 2, 8)
    for dropout in (0.0, 0.5):
        tail = (None, None, 5, 12, dropout, True, False)
        assert_as_meta(aten._flash_attention_forward, query, key, value, *tail)
        others = (heads_first(heads_first(x).contiguous()) for x in (query, key, value))
        assert_as_meta(aten._flash_attention_forward, *others, *tail)
    turned = [heads_first(x) for x in (query, key, value)]
    assert_as_meta(aten._scaled_dot_product_flash_attention, *turned)
    assert_as_meta(aten._scaled_dot_product_flash_attention, *(x.contiguous() for x in turned))


def test_a_debug_mask_is_refused():
    x = normal(1, 3, 2, 8)
    with pytest.raises(NotImplementedError, match="return_debug_mask=True is not supported on MPS"):
        aten._flash_attention_forward(x, x, x, None, None, 3, 3, 0.5, False, True)


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_flash_dropout_drops_the_same_backward(packed):
    shape, lengths = ((64, 4, 16), begins(24, 40)) if packed else ((2, 32, 4, 16), None)
    inputs = [normal(*shape).requires_grad_() for _ in range(3)]
    torch.mps.manual_seed(5)
    out, _, state, *_ = aten._flash_attention_forward(
        *inputs, lengths, lengths, 40, 40, 0.5, False, False
    )
    assert state.dtype == torch.uint64 and state.shape == (2,)
    direction = torch.randn_like(out)
    gradients = torch.autograd.grad(out, inputs, direction)
    torch.testing.assert_close(
        (out * direction).sum(), (gradients[2] * inputs[2]).sum(), rtol=1e-4, atol=1e-3
    )
    torch.mps.manual_seed(5)
    again = aten._flash_attention_forward(*inputs, lengths, lengths, 40, 40, 0.5, False, False)[0]
    assert torch.equal(again, out)
    ones = torch.ones_like(inputs[2])
    mean = aten._flash_attention_forward(
        *inputs[:2], ones, lengths, lengths, 40, 40, 0.5, False, False
    )[0].mean()
    assert abs(mean.item() - 1) < 0.2


# ---- torch.nn.attention.varlen -------------------------------------------------------------------

LENGTHS = ((5, 1, 0, 17), (9, 1, 4, 17))


def packed_operands(dtype=torch.float32, heads=(4, 4), lengths=LENGTHS, features=8):
    rows, columns = map(sum, lengths)
    shapes = (
        (rows, heads[0], features),
        (columns, heads[1], features),
        (columns, heads[1], features),
    )
    return [normal(*shape, dtype=dtype) for shape in shapes]


def of_sequences(lengths, **options):
    """The definition for each sequence."""

    def definition(query, key, value):
        outs = []
        for q, k, v in zip(query.split(lengths[0]), key.split(lengths[1]), value.split(lengths[1])):
            outs.append(
                heads_first(exact(*map(heads_first, (q, k, v)), bottom_right=True, **options).out)
            )
        return torch.cat(outs)

    return definition


@by_dtype
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=str)
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 0), (2, 2)], ids=str)
def test_packed_sequences(dtype, heads, window):
    limits = [begins(*lengths) for lengths in LENGTHS]
    check_gradients(
        lambda *x: varlen_attn(*x, *limits, 17, 17, window_size=window, enable_gqa=True, scale=0.4),
        of_sequences(LENGTHS, window=window, scale=0.4),
        *packed_operands(dtype, heads),
    )


def test_log_sum_exps_of_packed_sequences():
    query, key, value = packed_operands(heads=(4, 2))
    limits = [begins(*lengths) for lengths in LENGTHS]
    _, lse = varlen_attn(
        query, key, value, *limits, 17, 17, enable_gqa=True, return_aux=AuxRequest(lse=True)
    )
    expected = [
        exact(*map(heads_first, (q, k, v))).lse
        for q, k, v in zip(query.split(LENGTHS[0]), key.split(LENGTHS[1]), value.split(LENGTHS[1]))
    ]
    assert_near(lse, torch.cat(expected, -1), LSE)


@by_dtype
def test_packed_sequences_into_a_given_tensor(dtype):
    inputs = packed_operands(dtype)
    limits = [begins(*lengths) for lengths in LENGTHS]
    expected = varlen_attn(*inputs, *limits, 17, 17)
    out = torch.empty_like(inputs[0])
    result = varlen_attn_out(out, *inputs, *limits, 17, 17)
    assert result is out
    assert torch.equal(out, expected)


@pytest.mark.parametrize("page", [4, 16])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 0)], ids=str)
@pytest.mark.parametrize("rows", [(1, 1, 1), (3, 1, 5)], ids=str)
@pytest.mark.parametrize("splits", [None, 1])
def test_pages_of_a_cache(page, window, rows, splits):
    used = (7, 1, 16)
    count = 16 // page
    table = torch.randperm(3 * count).view(3, count)
    key, value = (normal(3 * count, page, 2, 8) for _ in range(2))
    query = normal(sum(rows), 4, 8)
    out, lse = varlen_attn(
        query,
        key,
        value,
        begins(*rows),
        None,
        max(rows),
        16,
        window_size=window,
        enable_gqa=True,
        return_aux=AuxRequest(lse=True),
        num_splits=splits,
        seqused_k=torch.tensor(used, dtype=torch.int32).to("mps"),
        block_table=table.to(torch.int32).to("mps"),
    )
    packed = [
        torch.cat([x.cpu()[table[i]].flatten(0, 1)[: used[i]] for i in range(3)])
        for x in (key, value)
    ]
    expected = of_sequences((rows, used), window=window)(query.cpu(), *packed)
    assert_near(out, expected, FORWARD)
    assert lse.shape == (4, sum(rows)) and lse.is_contiguous()
    last = [heads_first(x[-used[-1] :]) for x in packed]
    begin = sum(rows[:-1])
    options = {"window": window, "bottom_right": True}
    of_last = exact(heads_first(query[begin:]), *last, **options).lse
    assert_near(lse[:, begin:], of_last, LSE)


def test_pages_are_read_where_they_are_by_one_query_of_each_sequence():
    cache, limits = normal(6, 4, 2, 8), begins(1, 1, 1)
    used = torch.tensor([5, 8, 1], dtype=torch.int32).to("mps")
    table = torch.arange(6, dtype=torch.int32).view(3, 2).to("mps")
    options = {"enable_gqa": True, "seqused_k": used, "block_table": table}
    results, gathers = [], []
    for splits in (None, 1):
        torch.manual_seed(0)
        query = normal(3, 4, 8)
        with metalops.debug.standins() as served:
            results.append(
                varlen_attn(query, cache, cache, limits, None, 1, 8, num_splits=splits, **options)
            )
        gathers.append("aten::index_select" in served)
    assert gathers == [False, True]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_pages_that_are_not_there_are_not_read():
    key = torch.full((4, 4, 1, 8), torch.nan, device="mps")
    key[2] = 1.0
    table = torch.tensor([[2, -1, 1000]], dtype=torch.int32).to("mps")
    query = normal(1, 1, 8)
    used = torch.tensor([4], dtype=torch.int32).to("mps")
    out = varlen_attn(query, key, key, begins(1), None, 1, 12, seqused_k=used, block_table=table)
    assert_near(out, torch.ones(1, 1, 8, dtype=torch.float64), FORWARD)


def test_only_the_keys_in_use_count():
    query, key, value = packed_operands(lengths=((2, 3), (8, 8)))
    used = torch.tensor([5, 8], dtype=torch.int32).to("mps")
    out = varlen_attn(query, key, value, begins(2, 3), begins(8, 8), 3, 8, seqused_k=used)
    chosen = [torch.cat([x[:5], x[8:]]).cpu() for x in (key, value)]
    assert_near(out, of_sequences(((2, 3), (5, 8)))(query.cpu(), *chosen), FORWARD)


def test_a_sequence_does_not_depend_on_those_beside_it():
    inputs = packed_operands(lengths=((6, 40), (6, 40)))
    alone = varlen_attn(*(x[:6] for x in inputs), begins(6), begins(6), 6, 6, num_splits=1)
    both = varlen_attn(*inputs, begins(6, 40), begins(6, 40), 40, 40, num_splits=1)
    assert torch.equal(both[:6], alone)


def test_heads_have_to_match_unless_they_are_grouped():
    query, key, value = packed_operands(heads=(4, 2))
    limits = [begins(*lengths) for lengths in LENGTHS]
    with pytest.raises(ValueError, match="enable_gqa=True"):
        varlen_attn(query, key, value, *limits, 17, 17)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_compiled_packed_sequences(backend):
    limits = [begins(*lengths) for lengths in LENGTHS]

    def attend(query, key, value):
        return varlen_attn(query * 2, key, value, *limits, 17, 17, window_size=(-1, 0)).sin()

    inputs = packed_operands()
    expected, expected_gradients = gradients_of(attend, inputs)
    compiled = torch.compile(attend, backend=backend, fullgraph=True)
    actual, actual_gradients = gradients_of(compiled, inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    for a, e in zip(actual_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-4)


# ---- memory efficient attention -----------------------------------------------------------------


@pytest.mark.sampled(2)
@by_dtype
@pytest.mark.parametrize("mask_type", [0, 1, 2])
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_efficient_attention(dtype, mask_type, with_bias):
    inputs = [normal(2, n, 4, 8, dtype=dtype) for n in (5, 12, 12)]
    if with_bias:
        inputs.append(normal(2, 4, 5, 12, dtype=dtype))
    options = {"is_causal": mask_type > 0, "bottom_right": mask_type == 2, "scale": 0.3}

    def efficient(query, key, value, bias=None):
        tail = (None, None, None, None, 0.0, mask_type, True)
        return aten._efficient_attention_forward(query, key, value, bias, *tail, scale=0.3)[0]

    def definition(query, key, value, bias=None):
        return heads_first(exact(*map(heads_first, (query, key, value)), bias, **options).out)

    check_gradients(efficient, definition, *inputs)


@pytest.mark.parametrize("rows", [5, 32, 33])
def test_log_sum_exps_of_efficient_attention_are_padded(rows):
    query, key = normal(2, rows, 4, 8), normal(2, 12, 4, 8)
    tail = (None, None, None, None, None, 0.0, 0)
    lse = aten._efficient_attention_forward(query, key, key, *tail, True)[1]
    assert lse.shape == (2, 4, math.ceil(rows / 32) * 32)
    assert_near(lse[..., :rows], exact(*map(heads_first, (query, key, key))).lse, LSE)
    assert lse[..., rows:].eq(torch.inf).all()
    assert aten._efficient_attention_forward(query, key, key, *tail, False)[1].shape == (2, 4, 0)


@pytest.mark.parametrize("mask_type", [0, 1, 2])
def test_packed_sequences_of_efficient_attention(mask_type):
    lengths = ((5, 1, 17), (9, 4, 17))
    inputs = [x[None] for x in packed_operands(lengths=lengths)]
    limits = [begins(*x) for x in lengths]
    tail = (None, *limits, 17, 17, 0.0, mask_type, True)

    def definition(query, key, value):
        parts = zip(
            query[0].split(lengths[0]), key[0].split(lengths[1]), value[0].split(lengths[1])
        )
        options = {"is_causal": mask_type > 0, "bottom_right": mask_type == 2}
        outs = [exact(*map(heads_first, part), **options) for part in parts]
        return torch.cat([heads_first(x.out) for x in outs])[None]

    check_gradients(lambda *x: aten._efficient_attention_forward(*x, *tail)[0], definition, *inputs)
    lse = aten._efficient_attention_forward(*inputs, *tail)[1]
    assert lse.shape == (3, 4, 32)
    assert lse[1, :, 1:].eq(torch.inf).all()


def test_windows_and_lengths_of_efficient_attention():
    query, key = normal(2, 9, 2, 8), normal(2, 9, 2, 8)
    tail = (None, None, None, None, None, 0.0, 1)
    out = aten._efficient_attention_forward(query, key, key, *tail, window_size=3)[0]
    expected = exact(*map(heads_first, (query, key, key)), window=(2, 0)).out
    assert_near(heads_first(out), expected, FORWARD)
    used = torch.tensor([4, 9], dtype=torch.int32).to("mps")
    tail = (None, None, None, None, None, 0.0, 0)
    out = aten._efficient_attention_forward(query, key, key, *tail, seqlen_k=used)[0]
    mask = (torch.arange(9) < torch.tensor([[4], [9]]))[:, None, None]
    assert_near(heads_first(out), exact(*map(heads_first, (query, key, key)), mask).out, FORWARD)
    with pytest.raises(RuntimeError, match="custom_mask_type"):
        aten._efficient_attention_forward(query, key, key, *tail, window_size=3)
    with pytest.raises(RuntimeError, match="custom_mask_type"):
        aten._efficient_attention_forward(query, key, key, *tail[:-1], 3)


@by_dtype
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_scaled_dot_product_efficient_attention_is_causal_from_the_first_key(dtype, is_causal):
    inputs = [normal(2, 4, n, 8, dtype=dtype) for n in (5, 12, 12)]
    inputs.append(normal(2, 4, 5, 12, dtype=dtype))
    check_gradients(
        lambda *x: aten._scaled_dot_product_efficient_attention(*x, True, 0.0, is_causal)[0],
        lambda *x: exact(*x, is_causal=is_causal).out,
        *inputs,
    )


def test_efficient_results_are_as_torchs_compiler_expects():
    query, key, value = normal(2, 4, 5, 8), normal(2, 4, 12, 8), normal(2, 4, 12, 6)
    bias = normal(2, 4, 5, 12)
    operator = aten._scaled_dot_product_efficient_attention
    assert_as_meta(operator, query, key, value, bias, True)
    assert_as_meta(operator, query, key, value, None, False)
    out, lse, seed, offset = operator(query, key, value, bias, True)
    backward = aten._scaled_dot_product_efficient_attention_backward
    state = (out, lse, seed, offset, 0.0, [True] * 4)
    assert_as_meta(backward, out, query, key, value, bias, *state)
    query, key, value = (x.transpose(1, 2).contiguous() for x in (query, key, value))
    tail = (None, None, None, None, None, 0.0, 0, True)
    assert_as_meta(aten._efficient_attention_forward, query, key, value, *tail)


def test_gradients_of_efficient_attention_can_share_storage():
    x = [normal(2, 5, 4, 8) for _ in range(3)]
    tail = (None, None, None, None)
    out, lse, seed, offset, *_ = aten._efficient_attention_forward(*x, None, *tail, 0.0, 0, True)
    arguments = (out, *x, None, out, None, None, 5, 5, lse, 0.0, seed, offset, 0, False)
    apart = aten._efficient_attention_backward(*arguments)
    shared = aten._efficient_attention_backward(*arguments, shared_storage_dqdkdv=True)
    for a, e in zip(shared[:3], apart[:3], strict=True):
        assert torch.equal(a, e)
    assert len({a.untyped_storage().data_ptr() for a in shared[:3]}) == 1


# ---- that of devices with one of their own ------------------------------------------------------


@by_dtype
@pytest.mark.parametrize("shape", [(2, 4), (4,)], ids=["four dimensions", "three"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_overrideable_attention(dtype, shape, is_causal):
    inputs = [normal(*shape, n, 8, dtype=dtype) for n in (5, 12, 12)]
    operator = aten._scaled_dot_product_fused_attention_overrideable
    for bias in ((), (normal(*shape, 5, 12, dtype=dtype),), (normal(5, 12, dtype=dtype),)):
        check_gradients(
            lambda *x: operator(*x[:3], x[3] if len(x) > 3 else None, 0.0, is_causal)[0],
            lambda *x: exact(*x, is_causal=is_causal).out,
            *inputs,
            *bias,
        )
    lse = operator(*inputs, None, 0.0, is_causal)[1]
    assert_near(lse.view(*shape, 5), exact(*inputs, is_causal=is_causal).lse, LSE)


def test_overrideable_results_are_as_torchs_compiler_expects():
    operator = aten._scaled_dot_product_fused_attention_overrideable
    backward = aten._scaled_dot_product_fused_attention_overrideable_backward
    for turned in (False, True):
        shapes = [(2, 4, n, m) for n, m in ((5, 8), (12, 8), (12, 6))]
        inputs = [normal(*shape) for shape in shapes]
        if turned:
            inputs = [heads_first(heads_first(x).contiguous()) for x in inputs]
        bias = normal(2, 1, 5, 12)
        assert_as_meta(operator, *inputs, bias)
        out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = operator(*inputs, bias)
        state = (out, lse, cum_q, cum_k, max_q, max_k, 0.0, False, seed, offset)
        assert_as_meta(backward, torch.randn_like(out), *inputs, bias, [True] * 4, *state)


@pytest.mark.parametrize("name", ["efficient", "overrideable"])
def test_dropout_drops_the_same_backward(name):
    inputs = [normal(2, 4, 32, 16).requires_grad_() for _ in range(3)]
    if name == "efficient":
        call = lambda: aten._scaled_dot_product_efficient_attention(*inputs, None, True, 0.5)[0]
    else:
        call = lambda: aten._scaled_dot_product_fused_attention_overrideable(*inputs, None, 0.5)[0]
    torch.mps.manual_seed(5)
    out = call()
    direction = torch.randn_like(out)
    gradients = torch.autograd.grad(out, inputs, direction)
    torch.testing.assert_close(
        (out * direction).sum(), (gradients[2] * inputs[2]).sum(), rtol=1e-4, atol=1e-3
    )
    torch.mps.manual_seed(5)
    assert torch.equal(call(), out)


# ---- what torch counts ---------------------------------------------------------------------------


def _four(*shape):
    return [normal(*shape).requires_grad_() for _ in range(3)]


def _packed(call):
    limits = begins(4, 5)
    return lambda: call(*_four(9, 2, 8), limits)


PRODUCT = 2 * 2 * 2 * 9 * 9 * 8
OF_PACKED = 2 * 2 * (16 + 25) * 8
# Not of dense _flash_attention_forward and _efficient_attention_forward: torch takes their rows for heads.
COUNTED = {
    "flash": (
        _packed(
            lambda q, k, v, x: aten._flash_attention_forward(q, k, v, x, x, 5, 5, 0.0, False, False)
        ),
        OF_PACKED,
    ),
    "sdpa flash": (lambda: aten._scaled_dot_product_flash_attention(*_four(2, 2, 9, 8)), PRODUCT),
    "varlen": (_packed(lambda q, k, v, x: varlen_attn(q, k, v, x, x, 5, 5)), OF_PACKED),
    "efficient": (
        _packed(
            lambda q, k, v, x: aten._efficient_attention_forward(
                q[None], k[None], v[None], None, x, x, 5, 5, 0.0, 0, True
            )
        ),
        OF_PACKED,
    ),
    "sdpa efficient": (
        lambda: aten._scaled_dot_product_efficient_attention(*_four(2, 2, 9, 8), None, True),
        PRODUCT,
    ),
    "overrideable": (
        lambda: aten._scaled_dot_product_fused_attention_overrideable(*_four(2, 2, 9, 8)),
        PRODUCT,
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_operations_are_counted(name):
    call, product = COUNTED[name]
    with FlopCounterMode(display=False) as counter:
        out = call()
        out = out[0] if isinstance(out, tuple) else out
    assert counter.get_total_flops() == 2 * product
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 5 * product
