"""torch.nn.functional.scaled_dot_product_attention on mps: csrc/ops/attention/attention_aten.mm."""

import copy
import os
import subprocess
import sys

import metalops
import pytest
import torch
from metalops import _C
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .helpers import BACKWARD, DTYPES, FORWARD, assert_near, exact

by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
by_mode = pytest.mark.parametrize(
    "mode", [torch.enable_grad, torch.no_grad, torch.inference_mode], ids=lambda x: x.__name__
)


class _Record(TorchDispatchMode):
    """The names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


def called(function):
    with _Record() as record:
        function()
    return record.names


def is_ours(*arguments, **keywords):
    return torch._fused_sdp_choice(*arguments, **keywords) == int(SDPBackend.OVERRIDEABLE)


def operands(query=(2, 4, 9, 16), key=None, value=None, dtype=torch.float32, device="mps"):
    shapes = (query, key or query, value or key or query)
    return [torch.randn(shape).to(dtype).to(device) for shape in shapes]


def check(query, key, value, mask=None, **options):
    """Result and gradients against the definition, and that they are ours."""
    keywords = {} if mask is None else {"attn_mask": mask}
    is_gqa = options.pop("enable_gqa", False)
    inputs = [x.detach().requires_grad_() for x in (query, key, value)]
    if mask is not None and mask.is_floating_point():
        keywords["attn_mask"] = mask.detach().requires_grad_()
        inputs.append(keywords["attn_mask"])
    assert is_ours(*inputs[:3], **keywords, **options, enable_gqa=is_gqa)
    out = sdpa(*inputs[:3], **keywords, **options, enable_gqa=is_gqa)
    wide = [x.detach().cpu().double().requires_grad_() for x in inputs]
    if mask is not None and mask.dtype == torch.bool:
        expected = exact(*wide, mask, **options).out
    else:
        expected = exact(*wide, **options).out
    assert out.dtype == query.dtype
    assert_near(out.detach(), expected.detach(), FORWARD)
    weights = torch.randn(out.shape).to(query.dtype)
    gradients = torch.autograd.grad(out, inputs, weights.to("mps"))
    exact_gradients = torch.autograd.grad(expected, wide, weights.double())
    for x, actual, wanted in zip(inputs, gradients, exact_gradients, strict=True):
        assert actual.dtype == x.dtype
        assert_near(actual, wanted, BACKWARD, query.dtype)


# ---- what it computes ----------------------------------------------------------------------------


@by_dtype
@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"scale": 0.5}, {"scale": -1.0, "is_causal": True}],
    ids=str,
)
def test_plain(dtype, options):
    check(*operands(dtype=dtype), **options)


@by_dtype
def test_causal_is_top_left_where_there_are_more_keys_than_queries_or_fewer(dtype):
    check(*operands((1, 2, 5, 8), (1, 2, 11, 8), dtype=dtype), is_causal=True)
    check(*operands((1, 2, 11, 8), (1, 2, 5, 8), dtype=dtype), is_causal=True)


@by_dtype
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_heads(dtype, groups):
    query, key, value = operands((2, 4, 7, 8), (2, 4 // groups, 12, 8), dtype=dtype)
    check(query, key, value, enable_gqa=True)
    check(query, key, value, enable_gqa=True, is_causal=True)


def test_grouped_heads_of_three_dimensions():
    check(*operands((4, 7, 8), (2, 12, 8)), enable_gqa=True)


MASKS = ((9, 12), (12,), (1, 12), (9, 1), (4, 9, 12), (2, 1, 9, 12), (2, 4, 1, 12), (1, 4, 9, 1))


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("kind", ["bool", "float32", "own"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_masks(shape, kind, dtype):
    query, key, value = operands((2, 4, 9, 8), (2, 4, 12, 8), dtype=dtype)
    if kind == "bool":
        mask = (torch.rand(shape) < 0.7).to("mps")
    else:
        mask = torch.randn(shape, dtype=torch.float32 if kind == "float32" else dtype).to("mps")
    check(query, key, value, mask)


@by_dtype
def test_a_mask_and_causal_both_apply(dtype):
    mask = torch.rand(2, 1, 9, 9) < 0.7
    check(*operands(dtype=dtype), mask.to("mps"), is_causal=True)
    check(*operands(dtype=dtype), torch.randn(9, 9).to("mps"), is_causal=True)


def test_a_mask_alone_can_have_a_gradient():
    query, key, value = operands()
    mask = torch.randn(9, 9).to("mps").requires_grad_()
    sdpa(query, key, value, mask).square().sum().backward()
    wide = mask.detach().cpu().double().requires_grad_()
    exact(query, key, value, wide).out.square().sum().backward()
    assert_near(mask.grad, wide.grad, BACKWARD)


def test_expanded_masks_are_taken_as_they_are():
    query, key, value = operands((2, 4, 64, 8))
    mask = (torch.rand(2, 1, 64, 64) < 0.7).to("mps").expand(2, 4, 64, 64)
    with _Record() as record:
        sdpa(query, key, value, mask)
    assert not any(name in record.names for name in ("aten::clone", "aten::masked_fill_"))
    check(query, key, value, mask)


@pytest.mark.parametrize("shape", [(9, 16), (4, 9, 16), (2, 4, 9, 16), (3, 2, 4, 9, 16)], ids=str)
def test_two_to_five_dimensions(shape):
    check(*operands(shape), is_causal=True)
    check(*operands(shape), (torch.rand(9, 9) < 0.7).to("mps"))


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 4, 9, 8), (1, 4, 12, 8)),
        ((1, 4, 9, 8), (2, 4, 12, 8)),
        ((2, 4, 9, 8), (1, 1, 12, 8)),
        ((2, 1, 9, 8), (2, 4, 12, 8)),
        ((2, 4, 9, 8), (2, 1, 12, 8), (2, 4, 12, 8)),
        ((4, 9, 8), (2, 4, 12, 8)),
        ((9, 8), (4, 12, 8)),
        ((3, 1, 4, 9, 8), (2, 1, 12, 8), (3, 2, 4, 12, 8)),
    ],
    ids=str,
)
def test_batches_and_heads_broadcast(shapes):
    check(*operands(*shapes))


def test_a_mask_of_five_dimensions():
    query, key, value = operands((3, 2, 4, 9, 8))
    for shape in ((3, 1, 1, 9, 9), (1, 2, 4, 1, 9), (3, 2, 4, 9, 9), (1, 1, 1, 9, 9)):
        check(query, key, value, torch.randn(shape).to("mps"))


@pytest.mark.parametrize("features", [1, 7, 33, 64, 100, 256])
def test_features(features):
    check(*operands((1, 2, 5, features), (1, 2, 9, features), (1, 2, 9, 13)))


def test_the_result_is_in_the_querys_order_of_dimensions():
    query, key, value = (x.transpose(1, 2) for x in operands((2, 9, 4, 16)))
    out = sdpa(query, key, value)
    assert out.shape == (2, 4, 9, 16)
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4, 8), (2, 3, 0, 8)),
        ((2, 3, 0, 8), (2, 3, 5, 8)),
        ((0, 3, 4, 8), (0, 3, 5, 8)),
        ((2, 3, 4, 0), (2, 3, 5, 0), (2, 3, 5, 8)),
        ((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 0)),
        ((1, 3, 4, 8), (2, 3, 0, 8)),
        ((1, 3, 0, 8), (2, 3, 5, 8)),
        ((1, 3, 4, 8), (0, 3, 5, 8)),
        ((1, 3, 4, 8), (0, 3, 5, 8), (1, 3, 5, 8)),
        ((2, 1, 4, 8), (3, 0, 8), (0, 8)),
        ((4, 8), (2, 3, 0, 8)),
        ((2, 3, 4, 8), (3, 2, 0, 7)),
    ],
    ids=str,
)
def test_empty_operands_give_what_the_cpu_gives(shapes):
    values = operands(*shapes, device="cpu")
    results = []
    for device in ("cpu", "mps"):
        inputs = [x.to(device, copy=True).requires_grad_() for x in values]
        out = sdpa(*inputs)
        out.sum().backward()
        results.append([out.detach().cpu(), *(x.grad.cpu() for x in inputs)])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def outcome(device, shapes, **options):
    """The sizes of the result, or the error."""
    try:
        return sdpa(*operands(*shapes, device=device), **options).shape
    except (IndexError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 8), (5, 8)),
        ((3, 8), (2, 5, 8)),
        ((4, 3, 8), (2, 5, 8), (5, 8)),
        ((3, 8), (0, 8)),
        ((1, 4, 3, 8), (2, 2, 0, 8)),
        ((4, 3, 8), (3, 0, 8)),
        ((1, 4, 3, 8), (1, 0, 5, 8)),
        ((4, 3, 8), (3, 5, 8)),
    ],
    ids=str,
)
def test_grouped_heads_of_any_sizes_give_what_the_cpu_gives(shapes):
    expected, actual = (outcome(device, shapes, enable_gqa=True) for device in ("cpu", "mps"))
    assert actual == expected


def test_infinities_of_unused_operands_stay_out_of_an_empty_result():
    query = torch.full((1, 1, 2, 4), torch.inf, device="mps", requires_grad=True)
    key = torch.zeros(1, 1, 0, 4, device="mps")
    out = sdpa(query, key, key)
    assert out.eq(0).all()
    out.sum().backward()
    assert query.grad.eq(0).all()


# ---- what is wrong with stock's -------------------------------------------------------------------


def test_another_scale_is_another_call():
    query, key, value = operands((1, 2, 16, 64))
    assert_near(
        sdpa(query, key, value, scale=0.1), exact(query, key, value, scale=0.1).out, FORWARD
    )
    assert_near(
        sdpa(query, key, value, scale=1.0), exact(query, key, value, scale=1.0).out, FORWARD
    )


@by_dtype
@pytest.mark.parametrize("keys", [1, 31, 33, 47, 65])
@pytest.mark.parametrize("queries", [1, 3, 17])
def test_nothing_is_read_behind_the_last_key(dtype, keys, queries):
    query = torch.randn(2, 2, queries, 64).to(dtype).to("mps")
    room = torch.full((2, 2, 2, 96, 64), torch.nan, dtype=dtype)
    room[..., :keys, :] = torch.randn(2, 2, 2, keys, 64).to(dtype)
    key, value = room.to("mps")[..., :keys, :]
    assert_near(sdpa(query, key, value), exact(query, key, value).out, FORWARD)


@by_dtype
@pytest.mark.parametrize("order", [(0, 2, 1, 3), (1, 0, 2, 3), (2, 1, 0, 3), (0, 1, 3, 2)], ids=str)
def test_permuted_operands(dtype, order):
    base = [torch.randn([(3, 2, 9, 64)[i] for i in order]) for _ in range(3)]
    back = [order.index(i) for i in range(4)]
    query, key, value = (x.to(dtype).to("mps").permute(back) for x in base)
    assert query.shape == (3, 2, 9, 64)
    check(query, key, value)


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (1, 4, 8, 8), (2, 4, 1, 8)], ids=str)
def test_a_mask_that_broadcasts_in_part(shape):
    check(*operands((2, 4, 8, 64)), (torch.rand(shape) < 0.6).to("mps"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("features", [24, 64])
def test_a_future_token_changes_no_bit_of_the_past(dtype, features):
    inputs = operands((2, 2, 70, features), dtype=dtype)
    before = sdpa(*inputs, is_causal=True)
    for position in (1, 2, 3, 4, 31, 32, 33, 64, 69):
        changed = [x.clone() for x in inputs]
        for x in changed:
            x[..., position:, :] += 3
        after = sdpa(*changed, is_causal=True)
        assert torch.equal(after[..., :position, :], before[..., :position, :])
        assert not torch.equal(after[..., position, :], before[..., position, :])


@by_dtype
def test_rows_that_see_nothing_are_zero_with_zero_gradients(dtype):
    inputs = [x.requires_grad_() for x in operands((1, 2, 5, 8), dtype=dtype)]
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    for hidden in (mask, torch.zeros(5, 5).masked_fill(~mask, -torch.inf)):
        out = sdpa(*inputs, hidden.to("mps"))
        gradients = torch.autograd.grad(out.float().square().sum(), inputs)
        assert out[:, :, 2].eq(0).all()
        assert gradients[0][:, :, 2].eq(0).all()
        assert all(x.isfinite().all() for x in gradients)


def test_products_beyond_the_range_of_half_precision():
    query, key, value = operands((1, 1, 4, 64), dtype=torch.float16)
    query, key = query * 100, key * 100
    out = sdpa(query, key, value)
    assert out.isfinite().all()
    assert_near(out, exact(query, key, value).out, FORWARD)


def test_many_keys_in_half_precision():
    query, key, value = operands((1, 1, 9, 24), (1, 1, 4099, 24), dtype=torch.bfloat16)
    expected = exact(query, key, value).out
    torch.testing.assert_close(
        sdpa(query, key, value).cpu().double(), expected, rtol=0.01, atol=1e-3
    )


def test_values_of_other_features_than_keys():
    check(*operands((1, 2, 3, 64), (1, 2, 40, 64), (1, 2, 40, 48)))


def test_grouped_heads_with_a_mask_of_numbers():
    mask = torch.randn(1, 1, 7, 12).to("mps")
    check(*operands((2, 4, 7, 8), (2, 2, 12, 8)), mask, enable_gqa=True)


@pytest.mark.parametrize("queries", [7, 8, 9, 10])
def test_a_row_does_not_depend_on_how_many_there_are(queries):
    query, key, value = operands((1, 2, queries, 64), (1, 2, 50, 64))
    alone = sdpa(query[..., :1, :], key, value)
    torch.testing.assert_close(sdpa(query, key, value)[..., :1, :], alone, rtol=1e-5, atol=1e-6)


# ---- who serves a call ---------------------------------------------------------------------------


def test_the_operator_is_ours_forward_and_backward():
    inputs = [x.requires_grad_() for x in operands()]
    with metalops.debug.standins() as standins:
        names = called(lambda: sdpa(*inputs, is_causal=True).sum().backward())
    assert "metalops::attention_forward" in names
    assert "metalops::attention_backward" in names
    assert not [name for name in (*names, *standins) if "softmax" in name or "matmul" in name]


def test_what_is_not_taken_is_torchs():
    wide = operands((1, 1, 3, 300))
    assert not is_ours(*wide)
    assert_near(sdpa(*wide), exact(*wide).out, FORWARD)
    query, key, value = operands((1, 4, 3, 8), (1, 2, 5, 8), (1, 1, 5, 8))
    assert not is_ours(query, key, value, enable_gqa=True)
    expected = sdpa(*(x.cpu() for x in (query, key, value)), enable_gqa=True)
    torch.testing.assert_close(sdpa(query, key, value, enable_gqa=True).cpu(), expected)


def test_math_alone_is_torchs():
    inputs = operands()
    with sdpa_kernel(SDPBackend.MATH):
        assert not is_ours(*inputs)
        names = called(lambda: sdpa(*inputs))
        assert "metalops::attention_forward" not in names
    for backends in (SDPBackend.FLASH_ATTENTION, [SDPBackend.MATH, SDPBackend.OVERRIDEABLE]):
        with sdpa_kernel(backends):
            assert is_ours(*inputs)
            assert "metalops::attention_forward" in called(lambda: sdpa(*inputs))


def test_set_attention():
    inputs = operands()
    with metalops.set_attention("stock"):
        assert not is_ours(*inputs)
        with metalops.set_attention("metalops") as choice:
            assert is_ours(*inputs)
            choice.remove()
            assert not is_ours(*inputs)
        assert not is_ours(*inputs)
    assert is_ours(*inputs)
    with pytest.raises(
        ValueError, match="choice must be one of 'metalops', 'stock', 'auto', but is 'ours'"
    ):
        metalops.set_attention("ours")


@pytest.fixture
def as_on_a_mac():
    before = _C.set_attention_use(_C.AttentionUse.UNLESS_FUSED)
    yield
    _C.set_attention_use(before)


@pytest.mark.usefixtures("as_on_a_mac")
def test_what_stock_has_a_fused_kernel_for_stays_stock_on_a_mac():
    for queries, features in ((1, 64), (8, 96), (8, 256), (9, 32), (100, 72), (100, 80), (50, 128)):
        inputs = operands((1, 4, queries, features), (1, 4, 100, features))
        assert not is_ours(*inputs)
        assert not is_ours(*inputs, is_causal=True)
    ours = [
        operands((1, 4, 1, 32), (1, 4, 100, 32)),  # a head that its kernel for few queries lacks
        operands((1, 4, 8, 64), (1, 4, 7, 64)),  # and fewer keys
        operands((1, 4, 100, 192)),
        operands((1, 4, 100, 64), (1, 4, 100, 64), (1, 4, 100, 32)),
        operands((2, 4, 100, 64), (1, 4, 100, 64)),
        operands((100, 64)),
    ]
    assert all(is_ours(*inputs) for inputs in ours)
    inputs = operands((1, 4, 100, 64))
    assert is_ours(*inputs, attn_mask=torch.ones(100, 100, dtype=torch.bool, device="mps"))
    assert is_ours(*inputs, dropout_p=0.5)
    assert is_ours(*operands((1, 4, 100, 64), (1, 2, 100, 64)), enable_gqa=True)
    inputs[1].requires_grad_()
    assert is_ours(*inputs)
    with torch.no_grad():
        assert not is_ours(*inputs)


@pytest.mark.skipif(not metalops._is_software, reason="a Mac has fused kernels of torch")
def test_auto_on_the_software_device_is_the_faster_of_both():
    with metalops.set_attention("auto"):
        inputs = operands((2, 4, 100, 64))
        assert not is_ours(*inputs)
        assert is_ours(*(x.expand(2, 4, 4096, 64) for x in operands((2, 4, 1, 64))))
        few = operands((2, 4, 8, 64), (2, 4, 100, 64))
        assert is_ours(*few)
        few[1].requires_grad_()
        assert not is_ours(*few)
        with torch.no_grad():
            assert is_ours(*few)
        names = called(lambda: sdpa(*inputs))
        assert "metalops::attention_forward" not in names


@pytest.mark.skipif(not metalops._is_software, reason="a Mac has fused kernels of torch")
def test_auto_does_not_bound_lengths_that_tracing_leaves_open():
    with metalops.set_attention("auto"):
        graph = make_fx(sdpa, tracing_mode="symbolic")(*operands((2, 4, 20, 16)))
    assert "metalops.attention_forward" in graph.code


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize(("choice", "backend"), [("metalops", 4), ("stock", 0), ("auto", 4)])
def test_the_environment_variable(choice, backend):
    program = (
        "import torch, metalops; x = torch.zeros(1, 1, 2, 4, device='mps'); "
        "print(torch._fused_sdp_choice(x, x, x))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "METALOPS_ATTENTION": choice},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"{backend}\n"


def test_another_value_of_the_environment_variable():
    result = subprocess.run(
        [sys.executable, "-c", "import metalops"],
        env={**os.environ, "METALOPS_ATTENTION": "ours"},
        capture_output=True,
        text=True,
        check=False,
    )
    message = "ValueError: METALOPS_ATTENTION is 'ours', but must be metalops, stock or auto"
    assert message in result.stderr


def test_torchs_switch_between_implementations_of_flash_attention():
    from torch.nn import attention

    assert "metalops" in attention.list_flash_attention_impls()
    inputs = operands()
    with metalops.set_attention("stock"):
        attention.activate_flash_attention_impl("metalops")
        assert attention.current_flash_attention_impl() == "metalops"
        assert is_ours(*inputs)
        attention.restore_flash_attention_impl()
        assert not is_ours(*inputs)


def _refused():
    q, k, v = operands((2, 4, 3, 8), (2, 2, 5, 8), device="cpu")
    yield (q, k, v), {}
    yield (q, k[:, :, :, :7], v), {}
    yield (q, k[:, :, :4], v), {"enable_gqa": True}
    yield (q[:, :3], k, v), {"enable_gqa": True}
    yield (q, k.half(), v), {"enable_gqa": True}
    yield (q[0, 0, 0], k, v), {}
    yield (q, q, q, torch.zeros(3, 3, dtype=torch.int32)), {}
    yield (q, q, q, torch.zeros(3, 4)), {}
    yield (q, q, q, None, 1.5), {}


@pytest.mark.parametrize("number", range(len(list(_refused()))))
def test_messages_are_torchs(number):
    arguments, options = list(_refused())[number]
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(Exception) as expected:  # noqa: B017
        sdpa(*arguments, **options)
    moved = [x.to("mps") if isinstance(x, torch.Tensor) else x for x in arguments]
    with pytest.raises(type(expected.value)) as actual:
        sdpa(*moved, **options)
    assert str(actual.value) == str(expected.value)


# ---- dropout -------------------------------------------------------------------------------------


def test_dropout_of_nothing_and_of_all():
    inputs = operands()
    torch.testing.assert_close(sdpa(*inputs, dropout_p=0.0), sdpa(*inputs))
    assert sdpa(*inputs, dropout_p=1.0).eq(0).all()


@by_dtype
def test_dropout_keeps_the_mean_and_follows_the_seed(dtype):
    query, key = (torch.randn(8, 8, 64, 16).to(dtype).to("mps") for _ in range(2))
    value = torch.ones_like(key)
    torch.mps.manual_seed(3)
    first = sdpa(query, key, value, dropout_p=0.25)
    second = sdpa(query, key, value, dropout_p=0.25)
    torch.mps.manual_seed(3)
    assert torch.equal(sdpa(query, key, value, dropout_p=0.25), first)
    assert not torch.equal(first, second)
    assert abs(first.float().mean().item() - 1) < 0.02


def test_the_gradient_drops_what_the_result_drops():
    inputs = [x.requires_grad_() for x in operands()]
    torch.mps.manual_seed(3)
    out = sdpa(*inputs, dropout_p=0.5)
    direction = torch.randn_like(out)
    gradients = torch.autograd.grad(out, inputs, direction)
    # The result is linear in the values, and smooth in the rest.
    torch.testing.assert_close(
        (out * direction).sum(), (gradients[2] * inputs[2]).sum(), rtol=1e-4, atol=1e-4
    )
    step = 1e-2
    for i in (0, 1):
        other = torch.randn_like(inputs[i])
        sides = []
        for sign in (1, -1):
            moved = [x.detach() for x in inputs]
            moved[i] = moved[i] + sign * step * other
            torch.mps.manual_seed(3)
            sides.append((sdpa(*moved, dropout_p=0.5) * direction).sum())
        difference = (sides[0] - sides[1]) / (2 * step)
        torch.testing.assert_close((gradients[i] * other).sum(), difference, rtol=1e-2, atol=1e-2)


# ---- transforms, tracing and compiling -----------------------------------------------------------


def test_vmap():
    inputs = [torch.randn(3, 2, 4, 9, 8).to("mps") for _ in range(3)]
    actual = vmap(lambda q, k, v: sdpa(q, k, v, is_causal=True))(*inputs)
    assert_near(actual, exact(*inputs, is_causal=True).out, FORWARD)
    names = called(lambda: vmap(sdpa)(*inputs))
    assert "metalops::attention_forward" in names


def test_vmap_on_the_cpu_is_torchs():
    x = torch.randn(3, 2, 9, 8)
    torch.testing.assert_close(vmap(lambda x: sdpa(x, x, x))(x), sdpa(x, x, x))


def test_vmap_with_dropout_draws_as_randomness_says():
    x = torch.randn(2, 4, 9, 8).to("mps").expand(3, 2, 4, 9, 8)
    attend = lambda x: sdpa(x, x, x, dropout_p=0.5)
    same = vmap(attend, randomness="same")(x)
    assert torch.equal(same[0], same[1])
    different = vmap(attend, randomness="different")(x)
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(attend)(x)


def test_gradients_of_samples():
    layer = nn.Linear(8, 24).to("mps")
    parameters = {name: x.detach() for name, x in layer.named_parameters()}
    x = torch.randn(3, 5, 8).to("mps")

    def loss(parameters, x):
        q, k, v = functional_call(layer, parameters, (x,)).chunk(3, -1)
        return sdpa(q[None], k[None], v[None], is_causal=True).square().sum()

    actual = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(3):
        leaves = {name: x.clone().requires_grad_() for name, x in parameters.items()}
        expected = torch.autograd.grad(loss(leaves, x[i]), list(leaves.values()))
        for a, e in zip(actual.values(), expected, strict=True):
            torch.testing.assert_close(a[i], e, rtol=1e-3, atol=1e-4)


def test_gradient_of_torch_func():
    query, key, value = operands()
    assert "metalops::attention_forward" in called(
        lambda: grad(lambda q: sdpa(q, key, value).sum())(query)
    )
    wide = query.cpu().double().requires_grad_()
    exact(wide, key, value).out.square().sum().backward()
    actual = grad(lambda q: sdpa(q, key, value).square().sum())(query)
    assert_near(actual, wide.grad, BACKWARD)


def test_forward_mode():
    inputs, tangents = operands(), operands()
    wide = [[x.cpu().double() for x in tensors] for tensors in (inputs, tangents)]
    expected = jvp(lambda *x: exact(*x, is_causal=True).out, *map(tuple, wide))
    actual = jvp(lambda *x: sdpa(*x, is_causal=True), tuple(inputs), tuple(tangents))
    for a, e in zip(actual, expected, strict=True):
        assert_near(a, e, BACKWARD)


def test_second_derivatives():
    inputs = operands((1, 2, 5, 4))
    wide = [x.cpu().double().requires_grad_() for x in inputs]
    inputs = [x.requires_grad_() for x in inputs]

    def of(function, inputs):
        first = torch.autograd.grad(function(*inputs).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), inputs)

    expected = of(lambda *x: exact(*x).out, wide)
    for a, e in zip(of(sdpa, inputs), expected, strict=True):
        assert_near(a, e, {torch.float32: 1e-3})


def test_autocast_lowers_the_precision():
    inputs = operands()
    with torch.autocast("mps", dtype=torch.bfloat16):
        out = sdpa(*inputs)
    assert out.dtype == torch.bfloat16
    assert_near(out, exact(*inputs).out, {torch.bfloat16: 5e-2})


@by_mode
def test_fake_tensors(mode):
    with FakeTensorMode(), mode():
        query = torch.empty(2, 9, 4, 16, device="mps").transpose(1, 2)
        key = torch.empty(2, 2, 12, 16, device="mps")
        value = torch.empty(2, 2, 12, 8, device="mps")
        mask = torch.empty(9, 12, dtype=torch.bool, device="mps")
        for options in ({}, {"attn_mask": mask}, {"is_causal": True, "dropout_p": 0.5}):
            out = sdpa(query, key, value, enable_gqa=True, **options)
            assert out.shape == (2, 4, 9, 8)
            assert out.device.type == "mps"
            assert out.transpose(1, 2).is_contiguous()
        assert sdpa(query, key[:, :, :0], value[:, :, :0], enable_gqa=True).shape == (2, 4, 9, 8)


def _block(x, weight):
    query, key, value = (x @ weight).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    return sdpa(query, key, value, is_causal=True).transpose(1, 2).flatten(2).relu()


@pytest.mark.sampled(2)
@by_mode
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_compiled_agrees_with_eager_at_every_length(mode, backend):
    compiled = torch.compile(_block, backend=backend, fullgraph=True, dynamic=True)
    weight = torch.randn(16, 48).to("mps").requires_grad_()
    with mode():
        for length in (9, 20):
            x = torch.randn(2, length, 16).to("mps")
            expected, actual = _block(x, weight), compiled(x, weight)
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
            if mode is torch.enable_grad:
                (e,) = torch.autograd.grad(expected.square().sum(), weight)
                (a,) = torch.autograd.grad(actual.square().sum(), weight)
                torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-3)


@by_mode
@pytest.mark.nightly
@pytest.mark.usefixtures("fresh_compiler")
def test_attention_that_is_written_out_is_compiled_to_ours(mode):
    from torch._dynamo.utils import counters

    def attend(query, key, value):
        return ((query @ key.mT) / 4).softmax(-1) @ value

    inputs = operands((2, 4, 32, 16))
    with mode():
        counters.clear()
        out = torch.compile(attend)(*inputs)
        assert counters["inductor"]["fuse_attention"] == 1
    assert_near(out, exact(*inputs).out, FORWARD)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_program_drops_other_weights_at_each_call():
    compiled = torch.compile(lambda x: sdpa(x, x, x, dropout_p=0.5), backend="aot_eager")
    (x,) = operands()[:1]
    assert not torch.equal(compiled(x), compiled(x))


@pytest.mark.usefixtures("fresh_compiler")
def test_export_with_a_dynamic_length():
    class Attend(nn.Module):
        def forward(self, q, k, v):
            return sdpa(q, k, v, is_causal=True)

    inputs = operands()
    length = {2: torch.export.Dim("length", min=2, max=100)}
    program = torch.export.export(Attend(), tuple(inputs), dynamic_shapes=(length,) * 3)
    for exported in (program, program.run_decompositions()):
        longer = operands((2, 4, 21, 16))
        assert_near(exported.module()(*longer), exact(*longer, is_causal=True).out, FORWARD)


def test_operations_are_counted():
    inputs = [x.requires_grad_() for x in operands()]
    with FlopCounterMode(display=False) as counter:
        out = sdpa(*inputs)
    product = 2 * 2 * 4 * 9 * 9 * 16
    assert counter.get_total_flops() == 2 * product
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 5 * product


# ---- torch.nn ------------------------------------------------------------------------------------


def _agrees_with_the_cpu(module, *inputs, **keywords):
    on_mps = copy.deepcopy(module).to("mps")
    expected = module(*inputs, **keywords)
    moved = {k: v.to("mps") if isinstance(v, torch.Tensor) else v for k, v in keywords.items()}
    with _Record() as record:
        actual = on_mps(*(x.to("mps") for x in inputs), **moved)
    # In inference mode the call is seen as a whole.
    assert {"metalops::attention_forward", "aten::scaled_dot_product_attention"} & {*record.names}
    expected, actual = (x[0] if isinstance(x, tuple) else x for x in (expected, actual))
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
    if expected.requires_grad:
        expected.square().sum().backward()
        with _Record() as record:
            actual.square().sum().backward()
        assert "metalops::attention_backward" in record.names
        for a, e in zip(on_mps.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(a.grad.cpu(), e.grad, rtol=1e-3, atol=1e-3)


@by_mode
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_multi_head_attention(mode, training):
    module = nn.MultiheadAttention(16, 4, batch_first=True).train(training)
    x = torch.randn(2, 9, 16)
    padding = torch.arange(9) >= torch.tensor([[9], [6]])
    with mode():
        _agrees_with_the_cpu(module, x, x, x, need_weights=False)
    with mode():
        module.zero_grad()
        _agrees_with_the_cpu(module, x, x, x, need_weights=False, key_padding_mask=padding)


@by_mode
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_transformer_encoder(mode, training):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    mask = nn.Transformer.generate_square_subsequent_mask(9)
    with mode():
        _agrees_with_the_cpu(module, torch.randn(2, 9, 16), mask=mask)
