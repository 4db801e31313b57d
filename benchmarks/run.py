"""Times every operator of metalops on the mps device against torch's CPU operators on the same numbers.

    python benchmarks/run.py --json results.json --plot results.png

Ratios (torch's time / ours) are what counts: they hold on any machine. Both sides write to a given output (`out=`)
and use the same number of threads. Where torch has no single operator, the composition of torch operators that a user
would write stands for it and is marked `composed`; where torch's CPU operator refuses a dtype, there is no ratio.
`raw` operators are the plainest kernels there are; they show what the device costs.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import metalops
import torch
import torch.nn.functional as F
from metalops import build

FOLDER = os.path.dirname(os.path.abspath(__file__))
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SIZES = [8, 64, 1024, 16384, 262144, 2**22, 2**24]
LAYOUTS = ["contiguous", "strided"]


@dataclass(frozen=True)
class Operator:
    """ours and theirs are called as f(*inputs, out); low and high bound the inputs. only_dtype: the only one that both sides take."""

    name: str
    ours: Callable
    theirs: Callable
    inputs: int = 1
    composed: bool = False
    halves: bool = False
    low: float = -4
    high: float = 4
    only_dtype: str | None = None


@dataclass
class Result:
    """Times in microseconds; `ratio` is torch_us / device_us. torch's columns are None where torch refuses."""

    operator: str
    dtype: str
    layout: str
    size: int
    composed: bool
    device_us: float
    torch_us: float | None
    ratio: float | None


_FIBERS = (
    "the threads of a group wait for each other, so on the software device they are fibers, each of "
    "which costs as much as adding a hundred numbers"
)
_WINDOWS = (
    "each element finds its window by itself, which torch does once for a row or a plane; and gradients "
    "are gathered, by each element in parallel and without atomics, from all windows that it may be in, "
    "where torch adds that of each window to its elements in turn"
)
_HALVES = "g++ 12 converts numbers of 16 bits one by one"
# Why an operator is less than half as fast as torch's at 4M elements, by the beginning of its name.
REASONS = {
    "segment_reduce": _FIBERS + "; short segments share no vector instructions",
    "adaptive_avg_pool": _WINDOWS,
    "adaptive_max_pool": _WINDOWS,
    "fractional_max_pool": _WINDOWS,
    "hash_tensor": _FIBERS + ", while torch's loop takes 16 elements at once",
    "batch_norm_update_stats": f"{_FIBERS}; and {_HALVES}",
    "embedding_renorm_": _FIBERS,
    "ctc_loss": _FIBERS,
    "put_ and add": "a sum of 16 bits is a loop of compare-and-exchange on the word around it, as GPUs need it",
    "pdist, gradient": "each coordinate sums over all other points, in parallel and without atomics, so each pair is "
    "computed twice",
    "logspace": "computed in pairs of floats, as Metal has no double",
    "_fused_adagrad_": _HALVES,
    "_transform_bias_rescale_qkv": _HALVES,
    "fma": _HALVES,
    "frexp": _HALVES,
    "rrelu": _HALVES,
}
LARGE = 2**22  # what smaller tensors take is mostly launching a kernel


def reasons(results: list[Result]) -> list[str]:
    """A line for each operator that is slow."""
    slow = (r for r in results if r.size >= LARGE and r.ratio is not None and r.ratio < 0.5)
    lines = []
    for operator in dict.fromkeys(r.operator for r in slow):
        known = [reason for name, reason in REASONS.items() if operator.startswith(name)]
        lines.append(f"{operator} is below 0.5: {known[0] if known else 'it is not known why'}.")
    return lines


def raw_operators() -> list[Operator]:
    sources = [os.path.join(FOLDER, "raw", name) for name in ("raw.metal", "raw.mm")]
    build.load("metalops_raw", sources)
    operators = []
    for name in ("exp", "sigmoid", "sin", "tanh"):
        ours, theirs = getattr(torch.ops.metalops_raw, name), getattr(torch, name)
        operators.append(
            Operator(
                f"raw {name}",
                lambda x, out, f=ours: f(x, out=out),
                lambda x, out, f=theirs: f(x, out=out),
            )
        )
    operators.append(
        Operator(
            "raw add",
            lambda a, b, out: torch.ops.metalops_raw.add(a, b, out=out),
            lambda a, b, out: torch.add(a, b, out=out),
            inputs=2,
        )
    )
    return operators


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.chunk(2, -1)


def _gated(name: str, activation: Callable, swap: bool = False, arguments: tuple = ()) -> Operator:
    """activation(a) * b of the halves a, b of the last dimension; swap: a * activation(b)."""
    ours = getattr(metalops.ops, name)

    def theirs(x, out):
        a, b = reversed(_halves(x)) if swap else _halves(x)
        return torch.mul(activation(a), b, out=out)

    return Operator(
        name, lambda x, out: ours(x, *arguments, out=out), theirs, halves=True, composed=True
    )


def _swiglu_clamped(a, b, out):
    gate = a.clamp(max=7.0)
    return torch.mul((b.clamp(-7.0, 7.0) + 1) * gate, torch.sigmoid(1.702 * gate), out=out)


def own_operators() -> list[Operator]:
    ours = metalops.ops

    def unary(name, theirs, composed=True, arguments=()):
        operator = getattr(ours, name)
        return Operator(
            name, lambda x, out: operator(x, *arguments, out=out), theirs, composed=composed
        )

    def binary(name, theirs, arguments=()):
        operator = getattr(ours, name)
        return Operator(
            name,
            lambda a, b, out: operator(a, b, *arguments, out=out),
            theirs,
            inputs=2,
            composed=True,
        )

    def gelu_tanh(x, out):
        return torch.ops.aten.gelu.out(x, approximate="tanh", out=out)

    return [
        unary("gelu_new", gelu_tanh, composed=False),
        unary("gelu_fast", gelu_tanh, composed=False),
        unary("gelu_quick", lambda x, out: torch.mul(x, torch.sigmoid(1.702 * x), out=out)),
        unary("relu_squared", lambda x, out: torch.square(F.relu(x), out=out)),
        unary(
            "softcap", lambda x, out: torch.mul(torch.tanh(x / 2.0), 2.0, out=out), arguments=(2.0,)
        ),
        _gated("silu_and_mul", F.silu),
        _gated("gelu_and_mul", F.gelu),
        _gated("gelu_tanh_and_mul", lambda x: F.gelu(x, approximate="tanh")),
        _gated("mul_and_silu", F.silu, swap=True),
        _gated("fatrelu_and_mul", lambda x: F.threshold(x, 0.1, 0.0), arguments=(0.1,)),
        binary("swiglu", lambda a, b, out: torch.mul(F.silu(a), b, out=out)),
        binary("geglu", lambda a, b, out: torch.mul(F.gelu(a), b, out=out)),
        binary("reglu", lambda a, b, out: torch.mul(F.relu(a), b, out=out)),
        binary("swiglu_clamped", _swiglu_clamped, arguments=(7.0,)),
        Operator(
            "fma",
            lambda a, b, c, out: ours.fma(a, b, c, out=out),
            lambda a, b, c, out: torch.addcmul(c, a, b, out=out),
            inputs=3,
        ),
        Operator(
            "lerp_clamped",
            lambda a, b, w, out: ours.lerp_clamped(a, b, w, out=out),
            lambda a, b, w, out: torch.lerp(a, b, w.clamp(0, 1), out=out),
            inputs=3,
            composed=True,
        ),
    ]


@functools.lru_cache(maxsize=4)
def _permutation(shape: torch.Size, device: torch.device) -> torch.Tensor:
    return torch.randperm(math.prod(shape)).view(shape).to(device)


@functools.lru_cache(maxsize=4)
def _ones(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def indexing_operators() -> list[Operator]:
    def same(name, function):
        return Operator(name, function, function)

    return [
        same("take", lambda x, out: torch.take(x, _permutation(x.shape, x.device), out=out)),
        same("put_", lambda x, out: out.put_(_permutation(x.shape, x.device), x)),
        same("put_ and add", lambda x, out: out.put_(_permutation(x.shape, x.device), x, True)),
        same("channel_shuffle", lambda x, out: torch.channel_shuffle(x.unflatten(1, (4, -1)), 2)),
        same("narrow_copy", lambda x, out: torch.narrow_copy(x, 1, 0, x.shape[1], out=out)),
        same(
            "embedding_renorm_",
            lambda x, out: torch.embedding_renorm_(
                out.copy_(x), _permutation(x.shape[:1], x.device), 1.0, 2.0
            ),
        ),
    ]


def random_operators() -> list[Operator]:
    """With inversion for the small means and rejection for the large ones."""

    def same(name, function, low, high):
        return Operator(name, function, function, low=low, high=high)

    def binomial(x, out):
        return torch.binomial(x, torch.full_like(x, 0.3))

    return [
        same("poisson of small rates", lambda x, out: torch.poisson(x), 0, 10),
        same("poisson of large rates", lambda x, out: torch.poisson(x), 10, 1000),
        same("binomial of small counts", binomial, 1, 30),
        same("binomial of large counts", binomial, 40, 1000),
    ]


@functools.lru_cache(maxsize=4)
def _bytes(x: torch.Tensor) -> torch.Tensor:
    return (32 * x + 128).to(torch.uint8)


def resize_operators() -> list[Operator]:
    """Lanczos resizing of one image to a quarter, and the gradients of resizing to it from a quarter."""

    def half(n):
        return max(1, n // 2)

    def lanczos(x):
        return torch.ops.aten._upsample_lanczos2d_aa(x[None, None], list(map(half, x.shape)), False)

    def backward(mode):
        operator = getattr(torch.ops.aten, f"_upsample_{mode}2d_aa_backward")

        def call(x, out):
            return operator(x[None, None], x.shape, [1, 1, *map(half, x.shape)], False)

        return Operator(f"{mode}, antialiased, gradient", call, call, only_dtype="float32")

    return [
        Operator(
            "lanczos", lambda x, out: lanczos(x), lambda x, out: lanczos(x), only_dtype="float32"
        ),
        Operator(
            "lanczos of bytes",
            lambda x, out: lanczos(_bytes(x)),
            lambda x, out: lanczos(_bytes(x)),
            only_dtype="float32",
        ),
        *map(backward, ("bilinear", "bicubic", "lanczos")),
    ]


def training_operators() -> list[Operator]:
    """Quantisation-aware training, forward-mode differentiation, optimisers."""

    def same(name, function, **properties):
        return Operator(name, function, function, **properties)

    def per_channel(x, out):
        scale = _ones(len(x), dtype=torch.float32, device=x.device)
        zero_point = _ones(len(x), dtype=torch.int32, device=x.device)
        return torch.fake_quantize_per_channel_affine(x, scale, zero_point, 0, -128, 127)

    def adagrad(x, out):
        sums = _ones(*x.shape, dtype=x.dtype, device=x.device)
        step = _ones(dtype=torch.float32, device=x.device)
        options = {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
        torch._fused_adagrad_([out], [x], [sums], [step], **options)

    def combine(x, out):
        coefficients = _ones(4, 4, dtype=x.dtype, device=x.device)
        return torch._compute_linear_combination(x.reshape(4, -1), coefficients)

    return [
        same(
            "fake_quantize", lambda x, out: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7)
        ),
        same("fake_quantize per channel", per_channel),
        same("glu_jvp", lambda x, out: torch.ops.aten.glu_jvp(out, x, x, -1), halves=True),
        same(
            "kaiser_window",
            lambda x, out: torch.kaiser_window(
                out.numel(), False, 12.0, dtype=out.dtype, device=out.device
            ),
        ),
        same("_fused_adagrad_", adagrad),
        same("_compute_linear_combination", combine),
    ]


@functools.lru_cache(maxsize=4)
def _half_masked(shape: torch.Size, device: torch.device) -> torch.Tensor:
    return (torch.rand(shape) > 0.5).to(device)


@functools.lru_cache(maxsize=4)
def _offsets(rows: int, device: torch.device) -> torch.Tensor:
    """Where sequences of up to 16 rows begin, and where the last one ends."""
    return torch.tensor([*range(0, rows, 16), rows]).to(device)


def transformer_operators() -> list[Operator]:
    """What nn.TransformerEncoder's inference fast path is made of, and other operators of transformers."""

    def project(x, out):
        width = 192 if x.numel() >= 192 else 6
        tokens = x.numel() // width
        qkv = x.reshape(-1)[: tokens * width].view(1, tokens, width)
        bias = _ones(width, dtype=x.dtype, device=x.device)
        return torch._transform_bias_rescale_qkv(qkv, bias, 2)

    def to_padded(x, out):
        values = x.reshape(-1, min(64, x.numel()))
        offsets = _offsets(len(values), x.device)
        return torch.ops.aten._jagged_to_padded_dense_forward(values, [offsets], [16])

    def to_jagged(x, out):
        width = min(64, x.numel())
        length = min(16, x.numel() // width)
        padded = x.reshape(-1, length, width)
        offsets = _offsets(len(padded) * length, x.device)
        return torch.ops.aten._padded_dense_to_jagged_forward(
            padded, [offsets], len(padded) * length
        )

    def softmax(x):
        return torch._masked_softmax(x, _half_masked(x.shape, x.device), x.dim() - 1)

    both = _and_gradient(softmax)
    return [
        Operator("_masked_softmax", lambda x, out: softmax(x), lambda x, out: softmax(x)),
        Operator("_masked_softmax, gradient", both, both),
        Operator("_transform_bias_rescale_qkv", project, project),
        Operator("_jagged_to_padded_dense_forward", to_padded, to_padded),
        Operator("_padded_dense_to_jagged_forward", to_jagged, to_jagged),
        Operator(
            "_add_relu",
            lambda a, b, out: torch._add_relu(a, b, out=out),
            lambda a, b, out: torch._add_relu(a, b, out=out),
            inputs=2,
            only_dtype="float32",
        ),
    ]


def aten_operators() -> list[Operator]:
    """Ordinary torch functions that reach our kernels on the device and torch's on the CPU."""

    def same(name, function, **properties):
        return Operator(name, function, function, **properties)

    special = torch.special
    return [
        same("special.airy_ai", lambda x, out: special.airy_ai(x, out=out)),
        same("special.ndtri", lambda x, out: special.ndtri(x, out=out), low=0.001, high=0.999),
        same("special.log_ndtr", lambda x, out: special.log_ndtr(x, out=out)),
        same(
            "special.laguerre_polynomial_l",
            lambda x, out: special.laguerre_polynomial_l(x, 5, out=out),
        ),
        same(
            "special.legendre_polynomial_p",
            lambda x, out: special.legendre_polynomial_p(x, 5, out=out),
            low=-1,
            high=1,
        ),
        same("heaviside", lambda a, b, out: torch.heaviside(a, b, out=out), inputs=2),
        same("frexp", lambda x, out: torch.frexp(x)),
        same("logit_", lambda x, out: out.copy_(x).logit_(), low=0.01, high=0.99),
        same("logspace", lambda x, out: torch.logspace(0, 1, out.numel(), out=out.view(-1))),
        same("rrelu", lambda x, out: F.rrelu(x)),
    ]


@functools.cache
def _classes(rows: int, columns: int, count: int, device: torch.device) -> torch.Tensor:
    """`count` random classes for each row of `columns` values; one alone without a dimension."""
    shape = (rows,) if count == 1 else (rows, count)
    return torch.randint(columns, shape).to(device)


@functools.cache
def _label_lists(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Targets of multilabel_margin_loss: four classes for each row."""
    lists = torch.full((rows, columns), -1)
    lists[:, :4] = torch.randint(columns, (rows, min(4, columns)))
    return lists.to(device)


def _points(x: torch.Tensor) -> torch.Tensor:
    """As many points of up to 16 coordinates as have about as many distances as x has elements."""
    points = max(2, math.isqrt(2 * x.numel()))
    columns = min(16, x.numel() // points)
    return x.reshape(-1)[: points * columns].view(points, columns)


def _ctc(x: torch.Tensor) -> torch.Tensor:
    """Samples of up to 64 steps and 32 labels, with targets a quarter as long."""
    labels = min(32, x.numel() // 2)
    steps = min(64, x.numel() // labels)
    batch = x.numel() // (labels * steps)
    log_probs = x.reshape(steps, batch, labels)
    length = steps // 4
    targets = _classes(batch, labels, max(2, length), x.device)
    return F.ctc_loss(log_probs, targets, [steps] * batch, [length] * batch, reduction="sum")


def _and_gradient(function: Callable) -> Callable:
    """`function` forward and backward."""

    def both(x, out):
        x = x.detach().requires_grad_()
        result = function(x)
        return torch.autograd.grad(result, x, torch.ones_like(result))

    return both


def loss_operators() -> list[Operator]:
    """Losses of all elements, forward alone and with the gradient."""

    def multi_margin(x):
        return F.multi_margin_loss(x, _classes(len(x), x.shape[1], 1, x.device))

    def multilabel_margin(x):
        return F.multilabel_margin_loss(x, _label_lists(len(x), x.shape[1], x.device))

    operators = []
    for name, function in (
        ("multi_margin_loss", multi_margin),
        ("multilabel_margin_loss", multilabel_margin),
        ("pdist", lambda x: torch.pdist(_points(x))),
        ("ctc_loss", _ctc),
    ):
        forward, both = (lambda x, out, f=function: f(x)), _and_gradient(function)
        bounds = {"low": -6, "high": -2}
        only = None if "margin" in name else "float32"
        operators.append(Operator(name, forward, forward, only_dtype=only, **bounds))
        operators.append(Operator(f"{name}, gradient", both, both, only_dtype=only, **bounds))
    return operators


@functools.lru_cache(maxsize=4)
def _lengths(count: int, total: int, device: torch.device) -> torch.Tensor:
    """Of `count` segments that cover `total` elements and differ by one at most."""
    return torch.arange(total, total + count).div(count, rounding_mode="floor").to(device)


def reduction_operators() -> list[Operator]:
    """Reductions of all elements, or of rows."""

    def segments(x, length, reduce="sum", columns=1):
        x = x.reshape(-1, columns)
        lengths = _lengths(max(1, len(x) // length), len(x), x.device)
        return torch.segment_reduce(x, reduce, lengths=lengths, unsafe=True)

    def batch_norm_stats(x):
        """Of 64 channels and up to 32 x 32 pixels."""
        images = x.reshape(-1, min(64, x.numel()), min(1024, max(1, x.numel() // 64)))
        return torch.batch_norm_update_stats(images, None, None, 0.1)

    operators = []
    for name, function in (
        ("segment_reduce", lambda x: segments(x, 4096)),
        ("segment_reduce, short segments", lambda x: segments(x, 8)),
        ("segment_reduce max, columns", lambda x: segments(x, 256, "max", min(8, x.numel()))),
    ):
        forward, both = (lambda x, out, f=function: f(x)), _and_gradient(function)
        operators.append(Operator(name, forward, forward))
        operators.append(Operator(f"{name}, gradient", both, both))
    for name, function in (
        ("batch_norm_update_stats", batch_norm_stats),
        ("mode", torch.mode),
        ("hash_tensor", torch.hash_tensor),
        ("hash_tensor, rows", lambda x: torch.hash_tensor(x, 1)),
    ):
        forward = lambda x, out, f=function: f(x)
        operators.append(Operator(name, forward, forward))
    return operators


def _images(x: torch.Tensor, dimensions: int) -> torch.Tensor:
    """As many planes of 64 x 64 or 16 x 16 x 16 elements as there are; a smaller one of few elements."""
    edge = 2 ** min(6 if dimensions == 2 else 4, (x.numel().bit_length() - 1) // dimensions)
    return x.reshape(1, -1, *[edge] * dimensions)


@functools.lru_cache(maxsize=4)
def _random_samples(
    planes: int, dimensions: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.rand(1, planes, dimensions).to(device, dtype)


def pooling_operators() -> list[Operator]:
    """To windows of about 2.3 elements in each dimension, and of about 7."""

    def adaptive(function, dimensions, part):
        def pool(x):
            x = _images(x, dimensions)
            return function(x, max(1, round(x.shape[-1] / part)))

        return pool

    def fractional(function, dimensions):
        def pool(x):
            x = _images(x, dimensions)
            samples = _random_samples(x.shape[1], dimensions, x.dtype, x.device)
            size = max(1, x.shape[-1] * 3 // 7)
            return function(x, min(2, x.shape[-1] - size), size, _random_samples=samples)

        return pool

    operators = []
    for name, function in (
        ("adaptive_avg_pool2d", adaptive(F.adaptive_avg_pool2d, 2, 2.3)),
        ("adaptive_avg_pool2d, few", adaptive(F.adaptive_avg_pool2d, 2, 7)),
        ("adaptive_avg_pool3d", adaptive(F.adaptive_avg_pool3d, 3, 2.3)),
        ("adaptive_max_pool3d", adaptive(F.adaptive_max_pool3d, 3, 2.3)),
        ("adaptive_max_pool3d, few", adaptive(F.adaptive_max_pool3d, 3, 7)),
        ("fractional_max_pool2d", fractional(F.fractional_max_pool2d, 2)),
        ("fractional_max_pool3d", fractional(F.fractional_max_pool3d, 3)),
    ):
        forward, both = (lambda x, out, f=function: f(x)), _and_gradient(function)
        operators.append(Operator(name, forward, forward))
        operators.append(Operator(f"{name}, gradient", both, both))
    return operators


def make_inputs(
    operator: Operator, dtype: torch.dtype, layout: str, size: int
) -> list[torch.Tensor]:
    """Inputs of `size` elements each on the CPU; strided ones take every second element of a row."""
    columns = min(size, 4096)
    shape = (size // columns, columns if layout == "contiguous" else 2 * columns)
    inputs = []
    for _ in range(operator.inputs):
        values = torch.empty(shape).uniform_(operator.low, operator.high).to(dtype)
        inputs.append(values if layout == "contiguous" else values[:, ::2])
    return inputs


def to_device(x: torch.Tensor) -> torch.Tensor:
    """The same numbers with the same strides."""
    result = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="mps")
    return result.copy_(x)


def best_time(function: Callable[[], object], minimum: float) -> float:
    """Microseconds a call: the best of several blocks that each take at least `minimum` seconds."""
    function()
    torch.mps.synchronize()
    calls = 1
    while True:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        torch.mps.synchronize()
        elapsed = time.perf_counter() - start
        if elapsed >= minimum:
            break
        calls = max(calls + 1, math.ceil(calls * min(10.0, 1.2 * minimum / max(elapsed, 1e-9))))
    best = elapsed / calls
    for _ in range(4):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        torch.mps.synchronize()
        best = min(best, (time.perf_counter() - start) / calls)
    return 1e6 * best


def measure(operator: Operator, dtype_name: str, layout: str, size: int, minimum: float) -> Result:
    dtype = DTYPES[dtype_name]
    inputs = make_inputs(operator, dtype, layout, size)
    shape = list(inputs[0].shape)
    if operator.halves:
        shape[-1] //= 2
    on_device = [to_device(x) for x in inputs]
    out = torch.empty(shape, dtype=dtype, device="mps")
    device_us = best_time(lambda: operator.ours(*on_device, out), minimum)
    cpu_out = torch.empty(shape, dtype=dtype)
    try:
        torch_us = best_time(lambda: operator.theirs(*inputs, cpu_out), minimum)
    except NotImplementedError:
        torch_us = None
    except RuntimeError as error:
        if "not implemented for" not in str(error):
            raise
        torch_us = None
    ratio = None if torch_us is None else torch_us / device_us
    return Result(
        operator.name, dtype_name, layout, size, operator.composed, device_us, torch_us, ratio
    )


def plot(results: list[Result], path: str) -> None:
    """One small diagram for each operator: ratio over size, a line for each dtype, dashed where strided."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(result.operator for result in results))
    columns = 6
    rows = math.ceil(len(names) / columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(3 * columns, 2.2 * rows), squeeze=False)
    colours = dict(zip(DTYPES, ("C0", "C1", "C2"), strict=True))
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    for axis, name in zip(axes.flat, names, strict=False):
        for dtype, colour in colours.items():
            for layout, style in zip(LAYOUTS, ("-", "--"), strict=True):
                points = [
                    (result.size, result.ratio)
                    for result in results
                    if (result.operator, result.dtype, result.layout) == (name, dtype, layout)
                    and result.ratio is not None
                ]
                if points:
                    axis.plot(
                        *zip(*points, strict=True), style, color=colour, label=f"{dtype} {layout}"
                    )
        axis.axhline(1, color="grey", linewidth=0.5)
        axis.set(xscale="log", yscale="log", title=name)
    axes[0][0].legend(fontsize="xx-small")
    figure.supylabel("torch's CPU time / our time")
    figure.supxlabel("elements")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--plot", metavar="FILE", help="write a diagram there (needs matplotlib)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument(
        "--minimum", type=float, default=0.01, help="seconds for each block of calls"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    operators = [
        *raw_operators(),
        *own_operators(),
        *aten_operators(),
        *loss_operators(),
        *indexing_operators(),
        *training_operators(),
        *reduction_operators(),
        *pooling_operators(),
        *transformer_operators(),
        *random_operators(),
        *resize_operators(),
    ]
    results = []
    print(
        f"{'operator':30} {'dtype':9} {'layout':10} {'size':>9} {'device us':>12} {'torch us':>12} {'ratio':>7}"
    )
    for operator in operators:
        if options.only not in operator.name:
            continue
        for dtype in options.dtypes:
            if operator.only_dtype not in (None, dtype):
                continue
            for layout in options.layouts:
                for size in options.sizes:
                    result = measure(operator, dtype, layout, size, options.minimum)
                    results.append(result)
                    torch_us = "-" if result.torch_us is None else f"{result.torch_us:12.2f}"
                    ratio = "-" if result.ratio is None else f"{result.ratio:7.2f}"
                    print(
                        f"{operator.name:30} {dtype:9} {layout:10} {size:9} {result.device_us:12.2f} {torch_us:>12} {ratio:>7}",
                        flush=True,
                    )
    explained = reasons(results)
    for line in explained:
        print(line)
    if options.json:
        record = {
            "metalops": importlib.metadata.version("metalops"),
            "torch": torch.__version__,
            "device": torch.backends.mps.get_name(),
            "threads": options.threads,
            "results": [asdict(result) for result in results],
            "reasons": explained,
        }
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(record, f, indent=1)
    if options.plot:
        plot(results, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
