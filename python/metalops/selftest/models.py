"""Checks of the building blocks of language models: attention, GEMM and quantised weights, on mps and on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .._torch.internals import pytree
from ..ops._formats import gguf as _gguf_formats
from ..testing import make, to_device
from ..testing.samples import FLOATS
from .check import Check, assert_near, dtype_name

# Bounds relative to the norm of the CPU's result in float32: half precision rounds operands of GEMM, results and sums
# of gradients.
_FORWARD = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
_BACKWARD = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def _float(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda x: x.float() if x.is_floating_point() else x, tree)


def _compare(
    function: Callable[..., Any], args: tuple, dtype: torch.dtype, grad: bool = False
) -> None:
    """Compares the function on mps with operands of the dtype, and on the CPU with the same numbers in float32."""
    args = pytree.tree_map_only(Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, args)
    results = []
    for operands in (to_device(args, "mps"), _float(args)):
        leaves = [x for x in pytree.tree_leaves(operands) if isinstance(x, Tensor)]
        leaves = [x.requires_grad_() for x in leaves if grad and x.is_floating_point()]
        outputs = [x for x in pytree.tree_leaves(function(*operands)) if isinstance(x, Tensor)]
        gradients: tuple[Tensor, ...] = ()
        if grad:
            cotangent = make(outputs[0].shape, torch.float32, seed=5).to(dtype)
            gradients = torch.autograd.grad(outputs[0], leaves, cotangent.to(outputs[0]))
        results.append((outputs, gradients))
    (actual, gradients), (expected, expected_gradients) = results
    for ours, theirs in zip(actual, expected, strict=True):
        assert_near(ours, theirs, _FORWARD[dtype], args)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert_near(ours, theirs, _BACKWARD[dtype], args)


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- attention -----------------------------------------------------------------------------------


def attention() -> Iterator[Check]:
    """Checks masks, windows, grouped heads, odd sizes; packed sequences; a paged cache."""

    def operands(heads=4, groups=2, queries=45, keys=70, features=64):
        yield _normal(2, heads, queries, features)
        yield _normal(2, groups, keys, features, seed=1)
        yield _normal(2, groups, keys, features, seed=2)

    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "causal": {"is_causal": True},
        "causal to the last key": {"is_causal": True, "causal_alignment": "bottom_right"},
        "window and softcap": {"window_size": (16, 4), "softcap": 20.0},
    }
    for dtype in FLOATS:
        for name, chosen in options.items():

            def run(dtype=dtype, chosen=chosen):
                for features in (64, 80, 128):
                    args = tuple(operands(features=features))
                    _compare(
                        lambda q, k, v: ops.attention(q, k, v, **chosen), args, dtype, grad=True
                    )

            yield Check(f"attention, {name}, {dtype_name(dtype)}", run)

        def torchs(dtype=dtype):
            mask = _normal(45, 70, seed=4)

            def function(q, k, v, mask):
                return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

            _compare(function, (*operands(), mask), dtype)

        def packed(dtype=dtype):
            starts = torch.tensor([0, 30, 30, 100], dtype=torch.int32)
            tokens = tuple(_normal(100, 4, 64, seed=i) for i in range(3))
            _compare(
                lambda q, k, v, s: ops.varlen_attention(q, k, v, s, s, 70, 70, is_causal=True),
                (*tokens, starts),
                dtype,
                grad=True,
            )

        def decoding(dtype=dtype):
            caches = [_normal(20, 16, 2, 64, seed=i) for i in range(2)]
            table = torch.tensor([[3, 7, 1, 9], [0, 5, 2, 11]], dtype=torch.int32)
            lengths = torch.tensor([60, 17], dtype=torch.int32)
            new = [_normal(2, 2, 64, seed=i) for i in (5, 6)]
            slots = torch.tensor([9 * 16 + 11, 5 * 16])

            def function(query, keys, values, key, value, slots, table, lengths):
                keys, values = keys.clone(), values.clone()
                ops.reshape_and_cache(key, value, keys, values, slots)
                return ops.paged_attention(query, keys, values, table, lengths)

            args = (_normal(2, 8, 64, seed=9), *caches, *new, slots, table, lengths)
            _compare(function, args, dtype)

        yield Check(f"scaled_dot_product_attention, a mask, {dtype_name(dtype)}", torchs)
        yield Check(f"varlen_attention {dtype_name(dtype)}", packed)
        yield Check(f"paged_attention {dtype_name(dtype)}", decoding)


# ---- products ------------------------------------------------------------------------------------


@contextmanager
def _made_of(kind: str) -> Iterator[None]:
    before = os.environ.get("METALOPS_MATMUL")
    os.environ["METALOPS_MATMUL"] = kind
    try:
        yield
    finally:
        del os.environ["METALOPS_MATMUL"]
        if before is not None:
            os.environ["METALOPS_MATMUL"] = before


def in_both_ways(run: Callable[[], None]) -> Callable[[], None]:
    """Runs with Metal 4's tensors, if the system has them, and with simdgroup matrices."""

    def both() -> None:
        for kind in ("tensor", "simdgroup"):
            with _made_of(kind):
                run()

    return both


def products() -> Iterator[Check]:
    """Checks linear layers with activations, grouped GEMM, GEMM of int8 and of 8-bit floats."""
    weight, bias, x = _normal(72, 80, seed=1) / 9, _normal(72, seed=2), _normal(100, 80)
    experts, ends = _normal(3, 80, 48, seed=3) / 9, torch.tensor([10, 10, 100], dtype=torch.int32)
    for dtype in FLOATS:
        for activation in ("none", "gelu", "silu_and_mul"):

            def linear(dtype=dtype, activation=activation):
                def function(x, weight, bias):
                    return ops.linear_act(x, weight, bias, activation=activation)

                _compare(function, (x, weight, bias), dtype, grad=True)

            yield Check(f"linear_act, {activation}, {dtype_name(dtype)}", in_both_ways(linear))

        def grouped(dtype=dtype):
            _compare(
                torch.ops.aten._grouped_mm, (x, experts, ends), dtype, grad=dtype == torch.bfloat16
            )

        yield Check(f"grouped_mm {dtype_name(dtype)}", in_both_ways(grouped))

    def wide():
        for dtype in (torch.float16, torch.bfloat16):
            a, b = x.to(dtype), weight.t().to(dtype)
            actual = torch.mm(a.to("mps"), b.to("mps"), out_dtype=torch.float32)
            assert_near(actual, a.float() @ b.float(), 2e-6, (a, b))

    def bytes_():
        a, b = make((70, 64), torch.int8), make((48, 64), torch.int8, seed=1).t()
        exact = torch.ops.aten._int_mm(a, b)
        assert_near(torch.ops.aten._int_mm(a.to("mps"), b.to("mps")), exact, 0, (a, b))

    def scaled():
        a, b = x[:96].to(torch.float8_e4m3fn), weight[:64].to(torch.float8_e4m3fn).t()
        scale = torch.tensor(0.5)
        args = to_device((a, b, scale, scale), "mps")
        actual = torch.ops.aten._scaled_mm(*args, out_dtype=torch.float32)
        assert_near(actual, a.float() @ b.float() / 4, 2e-6, (a, b))

    def scaled_groups():
        a, b = x.to(torch.float8_e4m3fn), experts.mT.contiguous().to(torch.float8_e4m3fn)
        rows, columns = torch.rand(100) + 0.5, torch.rand(3, 48) + 0.5
        args = to_device((a, b.mT, rows, columns, ends), "mps")
        args = (args[0], b.to("mps").mT, *args[2:])
        actual = torch.ops.aten._scaled_grouped_mm(*args, out_dtype=torch.bfloat16)
        expected = []
        for i, (first, last) in enumerate(((0, 10), (10, 10), (10, 100))):
            product = a[first:last].float() @ b[i].float().t()
            expected.append(product * rows[first:last, None] * columns[i])
        assert_near(actual, torch.cat(expected), 4e-3, (a, b, rows, columns, ends))

    for name, run in (
        ("mm with out_dtype", wide),
        ("_int_mm", bytes_),
        ("_scaled_mm", scaled),
        ("_scaled_grouped_mm", scaled_groups),
    ):
        yield Check(name, in_both_ways(run))


# ---- quantised weights ---------------------------------------------------------------------------

_MODES = (
    *(("affine", bits, 64) for bits in range(1, 9)),
    ("mxfp4", 4, 32),
    ("mxfp8", 8, 32),
    ("nvfp4", 4, 16),
    ("nf4", 4, 64),
    ("fp4", 4, 64),
)


def quantised() -> Iterator[Check]:
    """Checks packing, unpacking, and GEMM of small and large batches, in every mode and type."""
    weight = _normal(96, 256, seed=1) / 16
    for mode, bits, group in _MODES:
        for dtype in FLOATS:

            def run(mode=mode, bits=bits, group=group, dtype=dtype):
                options = {"mode": mode, "bits": bits, "group_size": group}
                packed = ops.quantize(weight.to(dtype), **options)
                ours = ops.quantize(weight.to("mps", dtype), **options)
                for a, b in zip(ours, packed, strict=True):
                    same = b is None or torch.equal(a.cpu().view(torch.uint8), b.view(torch.uint8))
                    assert same, "other bytes than on the CPU"
                unpacked = ops.dequantize(*packed, **options, dtype=torch.float32)
                for rows in (1, 5, 70):
                    x = _normal(rows, 256, seed=rows).to(dtype)
                    args = (x, *packed)
                    actual = ops.quantized_linear(*to_device(args, "mps"), **options)
                    assert_near(actual, x.float() @ unpacked.t(), _FORWARD[dtype], args)

            yield Check(f"{mode} of {bits} bits, {dtype_name(dtype)}", in_both_ways(run))

    for name, known in _gguf_formats.TYPES.items():

        def blocks(name=name, known=known):
            generator = torch.Generator().manual_seed(3)
            shape = (64, 512 // known.size, known.bytes)
            data = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
            # Wherever scales are in a block, these bytes make them small: pairs in half precision, and the power of two
            # that MXFP4 begins with.
            data[..., 1::2] &= 0x2F
            data[..., 0] = 120
            data = data.flatten(1)
            unpacked = ops.gguf_dequantize(data, name, dtype=torch.float32)
            for rows in (1, 40):
                x = _normal(rows, 512, seed=rows)
                actual = ops.gguf_linear(x.to("mps"), data.to("mps"), name)
                assert_near(actual, x @ unpacked.t(), 2e-6, (x, data))

        yield Check(f"GGUF {name}", blocks)
