"""Right calls of operators on CPU tensors: those of torch's OpInfo entries, and of attention and of quantised and scaled products."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from metalops import flash_attn, ops
from metalops.testing.samples import FLOATS
from torch import Tensor

from tests.ops.test_aten_opinfo import OPERATORS

OURS = torch.ops.metalops
ATEN = torch.ops.aten
E4M3 = torch.float8_e4m3fn
E8M0 = torch.float8_e8m0fnu


class Call(NamedTuple):
    name: str
    function: Callable
    args: tuple[Any, ...]
    options: dict[str, Any]


def our_calls(chance: random.Random) -> list[Call]:
    """One or more of each operator of attention and of products."""
    return _of_attention(chance) + _of_products(chance)


def random_call(chance: random.Random) -> Call:
    """Its tensors are drawn from torch's generator."""
    if chance.random() < 0.5:
        return chance.choice(our_calls(chance))
    operator = chance.choice(OPERATORS)
    dtypes = sorted(set(operator.dtypes) - {torch.float64, torch.complex128}, key=str)
    samples = list(operator.sample_inputs("cpu", chance.choice(dtypes), requires_grad=False))
    sample = chance.choice(samples)
    return Call(operator.name, operator.op, (sample.input, *sample.args), dict(sample.kwargs))


def _normal(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(sizes).to(dtype)


def _int32(*numbers) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _codes(*sizes: int, dtype: torch.dtype = torch.int8) -> Tensor:
    return torch.randint(-9 if dtype == torch.int8 else 0, 99, sizes).to(dtype)


def _ones_of_scales(count: int) -> Tensor:
    return torch.full((count,), 127, dtype=torch.uint8).view(E8M0)


def _of_attention(chance: random.Random) -> list[Call]:
    dtype = chance.choice(FLOATS)

    def x(*sizes: int) -> Tensor:
        return _normal(*sizes, dtype=dtype)

    q, k, v = x(2, 4, 5, 16), x(2, 2, 7, 16), x(2, 2, 7, 24)
    tokens, keys = x(9, 4, 16), x(12, 2, 16)
    begins = (_int32(0, 4, 9), _int32(0, 5, 12))
    pages = (x(6, 8, 2, 16), x(6, 8, 2, 16))
    samples = (x(2, 16, 2, 16), x(2, 16, 2, 16))
    new = x(2, 3, 2, 16)
    table, lengths = _int32([0, 1], [2, 3]), _int32(9, 3)
    heads = {"sinks": _normal(4), "alibi_slopes": _normal(4)}
    numbers = (0.1, -1, -1, False, 0.0, 0.0)
    scale = torch.tensor(0.5)
    self_attention = ATEN._scaled_dot_product_fused_attention_overrideable
    calls = [
        (ops.attention, (q, k, v, _normal(2, 1, 5, 7)), {**heads, "softcap": 2.0, "window_size": (2, 1), "dropout_p": 0.1}),
        (OURS.attention_backward, (x(2, 4, 5, 24), _normal(2, 4, 5), q, k, v, x(2, 4, 5, 24), _normal(2, 4, 5), _normal(2, 1, 5, 7), *heads.values(), None, None, None, None, 5, 7, *numbers, [True] * 6), {}),
        (OURS.attention_backward, (tokens, _normal(4, 9), tokens, keys, keys, tokens, _normal(4, 9), None, *heads.values(), *begins, None, None, 5, 7, *numbers, [True] * 6), {}),
        (ops.varlen_attention, (tokens, keys, keys, *begins, 5, 7), {"seqused_k": _int32(3, 7), **heads, "is_causal": True}),
        (ops.varlen_attention, (tokens, *pages, begins[0], _int32(0, 9, 12), 5, 9), {"block_table": table}),
        (ops.paged_attention, (x(2, 3, 4, 16), *pages, table, lengths), {**heads, "k_scale": scale, "v_scale": 0.5}),
        (ops.paged_attention, (x(2, 4, 16), *pages, table, lengths), {"out": x(2, 4, 16)}),
        (ops.paged_attention, (x(2, 40, 4, 16), *pages, table, _int32(16, 3)), {"k_scale": scale}),
        (ops.reshape_and_cache, (keys[:5], keys[5:10], *pages, _int32(0, 5, -1, 47, 3)), {"k_scale": scale}),
        (ops.merge_attention, (x(3, 4, 8), _normal(3, 4), x(3, 4, 8), _normal(3, 4)), {}),
        (flash_attn.flash_attn_with_kvcache, (x(2, 3, 4, 16), *samples, new, new, x(16, 8), x(16, 8), _int32(3, 4)), {"causal": True, "cache_leftpad": _int32(0, 1)}),
        (flash_attn.flash_attn_with_kvcache, (x(2, 3, 4, 16), *pages, new, new), {"cache_seqlens": _int32(3, 4), "block_table": table}),
        (flash_attn.flash_attn_with_kvcache, (x(2, 3, 4, 16), *pages), {"cache_seqlens": _int32(3, 4), "cache_batch_idx": _int32(5, 2)}),
        (ATEN._flash_attention_forward, (tokens, keys, keys, *begins, 5, 7, 0.0, True, False), {"seqused_k": _int32(3, 7)}),
        (ATEN._flash_attention_forward, (tokens, *pages, *begins, 5, 7, 0.0, True, False), {"seqused_k": _int32(3, 7), "block_table": table}),
        (ATEN._flash_attention_backward, (tokens, tokens, keys, keys, tokens, _normal(4, 9), *begins, 5, 7, 0.0, True, torch.zeros(2, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)), {}),
        (ATEN._efficient_attention_forward, (*[q.transpose(1, 2)] * 3, None, None, None, None, None, 0.0, 1, True), {}),
        (ATEN._scaled_dot_product_efficient_attention, (q, q, q, x(2, 4, 5, 5), True), {}),
        (ATEN._scaled_dot_product_flash_attention, (q, q, q), {}),
        (self_attention, (q, q, q, x(2, 4, 5, 5)), {}),
        (torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward, (q, q, q, q, x(2, 4, 5, 5), [True] * 4, q, _normal(2, 4, 5), None, None, 5, 5, 0.0, False, torch.tensor(0), torch.tensor(0)), {}),
        (torch.nn.functional.scaled_dot_product_attention, (q, k, v, _normal(2, 1, 5, 7)), {"enable_gqa": True}),
    ]  # fmt: skip
    return [_named(*call) for call in calls]


def _of_products(chance: random.Random) -> list[Call]:
    dtype = chance.choice(FLOATS)

    def x(*sizes: int) -> Tensor:
        return _normal(*sizes, dtype=dtype)

    weight = x(12, 64)
    packed = ops.quantize(weight, bits=4, group_size=32)
    matrices = ops.quantize(x(3, 12, 64), bits=4, group_size=32)
    q4_k = torch.randint(0, 256, (7, 144), dtype=torch.uint8)
    how = {"bits": 4, "group_size": 32}
    ends = _int32(16, 32)
    narrow = _normal(16, 64).to(E4M3)
    calls = [
        (ops.quantized_linear, (x(3, 64), *packed, x(12)), how),
        (ops.quantized_matmul, (x(3, 12), *packed), {**how, "transpose": False}),
        (ops.gather_quantized_matmul, (x(3, 2, 64), *matrices), {"lhs_indices": _int32(0, 2, 1), "rhs_indices": _int32(0, 1, 1), **how}),
        (ops.quantized_embedding, (_int32(0, 11, 3), *packed), how),
        (ops.quantize, (weight,), how),
        (ops.dequantize, packed, how),
        (OURS.quantized_matmul, (x(3, 2, 64), *matrices, x(12), None, torch.tensor([0, 2, 1]), torch.tensor([0, 1, 1]), True, 4, 32, "affine"), {}),
        (OURS.dequantize, (*packed, None, torch.tensor([0, 2]), 4, 32, "affine", dtype), {}),
        (OURS.quantized_scales_gradient, (weight, *packed[:2], 4, 32, "affine"), {}),
        (ops.int8_linear, (x(3, 40), _codes(7, 40), _normal(7), x(7)), {"dynamic_activation": True}),
        (ops.gguf_linear, (x(3, 256), q4_k, "Q4_K", x(7)), {}),
        (ops.gguf_embedding, (_int32(0, 6), q4_k, "Q4_K"), {}),
        (ops.gguf_dequantize, (q4_k, "Q4_K"), {}),
        (ops.linear_act, (x(3, 64), weight, x(12), "silu_and_mul"), {}),
        (OURS.gguf_linear, (x(3, 256), q4_k, x(7), 12), {}),
        (ops.from_blocked, (torch.zeros(1024), 130, 3), {}),
        (torch._int_mm, (_codes(5, 16), _codes(16, 6)), {}),
        (torch._scaled_mm, (narrow, narrow.mT, _normal(1), _normal(1)), {"bias": _normal(16), "out_dtype": torch.float32}),
        (torch._scaled_mm, (narrow, narrow.mT, _ones_of_scales(512), _ones_of_scales(512)), {"out_dtype": torch.bfloat16}),
        (torch._scaled_mm, (_normal(16, 256).to(E4M3), _normal(256, 16).to(E4M3), _normal(16, 2), _normal(2, 16)), {"out_dtype": torch.bfloat16}),
        (ATEN._scaled_mm_v2, (narrow, narrow.mT, [_ones_of_scales(512)], [3], [1], [_ones_of_scales(512)], [3], [1], None, torch.float32), {}),
        (torch._scaled_grouped_mm, (_normal(32, 64).to(E4M3), _normal(2, 16, 64).to(E4M3).mT, _normal(32), _normal(2, 16)), {"offs": ends, "out_dtype": torch.bfloat16}),
        (ATEN._scaled_grouped_mm_v2, (_normal(32, 64).to(E4M3), _normal(2, 16, 64).to(E4M3).mT, [_normal(32)], [1], [0], [_normal(2, 16)], [1], [0], ends, None, torch.bfloat16), {}),
        (torch._grouped_mm, (x(32, 64), x(2, 64, 16)), {"offs": ends}),
        (torch._grouped_mm, (x(16, 64), x(64, 32)), {"offs": ends}),
        (torch._grouped_mm, (x(2, 16, 64), x(64, 32)), {"offs": ends}),
        (torch._grouped_mm, (x(2, 16, 64), x(2, 64, 32)), {}),
        (torch._weight_int8pack_mm, (x(3, 33), _codes(5, 33), x(5)), {}),
        (torch._convert_weight_to_int4pack, (_codes(16, 32, dtype=torch.uint8), 2), {}),
        (torch._weight_int4pack_mm, (x(3, 64), _codes(2, 2, 32, 1, dtype=torch.int32), 32, x(2, 16, 2)), {}),
        (ATEN._dyn_quant_pack_4bit_weight, (_codes(16, 32, dtype=torch.uint8), _normal(16, 1), _normal(16), 64, 64, 16), {}),
        (ATEN._dyn_quant_matmul_4bit, (_normal(3, 64), _normal(544), 64, 64, 16), {}),
        (ATEN._mixed_dtypes_linear, (_normal(3, 64, dtype=torch.half), _codes(16, 64), _normal(16, dtype=torch.half)), {"bias": _normal(16, dtype=torch.half), "activation": "relu"}),
        (torch.mm, (_normal(3, 8, dtype=torch.half), _normal(8, 5, dtype=torch.half)), {"out_dtype": torch.float32}),
        (torch.baddbmm, (_normal(5, dtype=torch.half), _normal(2, 3, 8, dtype=torch.half), _normal(2, 8, 5, dtype=torch.half)), {"out_dtype": torch.float32}),
        (ATEN.copy_, (_normal(4, 5).to(E4M3), x(4, 5)), {}),
    ]  # fmt: skip
    return [_named(*call) for call in calls]


def _named(function: Callable, args: tuple[Any, ...], options: dict[str, Any]) -> Call:
    return Call(getattr(function, "__name__", str(function)), function, args, options)
