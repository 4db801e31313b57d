"""Times our kernels on an NVIDIA GPU against torch's own CUDA operators on tensors of the same sizes.

    python benchmarks/gpu.py record FOLDER              # here: what operators launch, without running it
    python benchmarks/gpu.py measure FOLDER --json FILE # on a machine with a GPU; needs no compiled part of metalops
    python benchmarks/gpu.py show FILE                  # a table and a plot of what was measured, beside the file

A case is one call of a torch operator (or of one of ours), which `record` makes on the software device and `measure` on
CUDA tensors. Times are those of the kernels, in CUDA graphs on both sides where torch's operator allows it; ours leave
out allocation and what stock operators do beside our kernels. Percentages are of the rate of a copy in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F

aten = torch.ops.aten
LARGE = 2**26
Tensors = dict[str, torch.Tensor]


class Maker:
    """Inputs of a device. On the software device their contents do not matter unless they are places, lengths or masks:
    they are never computed with there."""

    def __init__(self, device: str):
        self.device = device

    def normal(self, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if self.device == "mps":
            return torch.empty(*sizes, dtype=dtype, device="mps")
        return torch.randn(*sizes, dtype=dtype, device=self.device)

    def uniform(self, *sizes: int, high: float = 1.0) -> torch.Tensor:
        """float32 from 0 to high."""
        return (torch.rand(*sizes) * high).to(self.device)

    def mask(self, *sizes: int, share: float = 0.2) -> torch.Tensor:
        return (torch.rand(*sizes) < share).to(self.device)

    def given(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.device)


@dataclass(frozen=True)
class Case:
    """family: of the goal. ours: the call; theirs: what torch is timed with on CUDA, `ours` if it is None. bytes: that must
    be read and written at least."""

    family: str
    name: str
    make: Callable[[Maker], Tensors]
    ours: Callable[[Tensors], object]
    bytes: Callable[[Tensors], int]
    theirs: Callable[[Tensors], object] | None = None
    note: str = ""


CASES: list[Case] = []
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def case(*args, **options) -> None:
    CASES.append(Case(*args, **options))


def size(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


# ---- elementwise ---------------------------------------------------------------------------------


def _pair(make: Maker, dtype: torch.dtype) -> Tensors:
    return {k: make.normal(LARGE, dtype=dtype) for k in ("x", "y", "out")}


def _silu(t: Tensors) -> object:
    return aten.silu.out(t["x"], out=t["out"])


for name, dtype in DTYPES.items():
    case(
        "dense",
        f"heaviside {name} 2^26",
        lambda m, d=dtype: _pair(m, d),
        lambda t: torch.heaviside(t["x"], t["y"], out=t["out"]),
        lambda t: 3 * size(t["x"]),
    )
    case(
        "dense",
        f"gelu_quick {name} 2^26",
        lambda m, d=dtype: {k: m.normal(LARGE, dtype=d) for k in ("x", "out")},
        lambda t: torch.ops.metalops.gelu_quick(t["x"], out=t["out"]),
        lambda t: 2 * size(t["x"]),
        theirs=_silu,
        note="torch: silu",
    )
    case(
        "dense",
        f"swiglu {name} 2^26",
        lambda m, d=dtype: {k: m.normal(2**13, 2**13, dtype=d) for k in ("x", "y")},
        lambda t: torch.ops.metalops.swiglu(t["x"], t["y"]),
        lambda t: 3 * size(t["x"]),
        theirs=lambda t: torch.mul(t["x"], t["y"]),
        note="torch: mul",
    )
for name in ("f32", "f16"):
    case(
        "dense",
        f"lerp_clamped {name} 2^26",
        lambda m, d=DTYPES[name]: {k: m.normal(LARGE, dtype=d) for k in ("x", "y", "w")},
        lambda t: torch.ops.metalops.lerp_clamped(t["x"], t["y"], t["w"]),
        lambda t: 4 * size(t["x"]),
        theirs=lambda t: torch.lerp(t["x"], t["y"], t["w"]),
        note="torch: lerp",
    )
case(
    "frexp",
    "frexp f32 2^26",
    lambda m: {"x": m.normal(LARGE)},
    lambda t: torch.frexp(t["x"]),
    lambda t: 3 * size(t["x"]),
)
for name in ("f32", "f16"):
    dtype = DTYPES[name]
    case(
        "strided",
        f"heaviside {name} column slices 8192x4096",
        lambda m, d=dtype: {
            "x": m.normal(8192, 8192, dtype=d)[:, :4096],
            "y": m.normal(8192, 8192, dtype=d)[:, 4096:],
        },
        lambda t: torch.heaviside(t["x"], t["y"]),
        lambda t: 3 * size(t["x"]),
    )
    case(
        "strided",
        f"heaviside {name} transposed + dense 8192^2",
        lambda m, d=dtype: {
            "x": m.normal(8192, 8192, dtype=d).t(),
            "y": m.normal(8192, 8192, dtype=d),
        },
        lambda t: torch.heaviside(t["x"], t["y"]),
        lambda t: 3 * size(t["x"]),
    )
    case(
        "strided",
        f"heaviside {name} row broadcast 8192^2",
        lambda m, d=dtype: {
            "x": m.normal(8192, 8192, dtype=d),
            "y": m.normal(8192, dtype=d),
        },
        lambda t: torch.heaviside(t["x"], t["y"]),
        lambda t: 2 * size(t["x"]),
    )
    # torch reads the second operand of heaviside in float only where the first is zero, so half of
    # what must be read of these: another operator, which needs both.
    for how, operands in (
        (
            "column slices 8192x4096",
            lambda m, d=dtype: {
                "x": m.normal(8192, 8192, dtype=d)[:, :4096],
                "y": m.normal(8192, 8192, dtype=d)[:, 4096:],
            },
        ),
        (
            "transposed + dense 8192^2",
            lambda m, d=dtype: {
                "x": m.normal(8192, 8192, dtype=d).t(),
                "y": m.normal(8192, 8192, dtype=d),
            },
        ),
    ):
        case(
            "strided",
            f"swiglu {name} {how}",
            operands,
            lambda t: torch.ops.metalops.swiglu(t["x"], t["y"]),
            lambda t: 3 * size(t["x"]),
            theirs=lambda t: torch.mul(t["x"], t["y"]),
            note="torch: mul",
        )
    case(
        "silu_and_mul",
        f"silu_and_mul {name} 8192 x 2*8192",
        lambda m, d=dtype: {"x": m.normal(8192, 16384, dtype=d)},
        lambda t: torch.ops.metalops.silu_and_mul(t["x"]),
        lambda t: size(t["x"]) * 3 // 2,
        theirs=lambda t: F.glu(t["x"], -1),
        note="torch: glu",
    )

# ---- rows ----------------------------------------------------------------------------------------

for length in (512, 1024):
    for name in ("f32", "f16"):
        case(
            "masked_softmax",
            f"masked_softmax {name} (8, 16, {length}, {length})",
            lambda m, d=DTYPES[name], n=length: {
                "x": m.normal(8, 16, n, n, dtype=d),
                "mask": m.mask(n, n),
            },
            lambda t: aten._masked_softmax(t["x"], t["mask"], 3, 0),
            lambda t: 2 * size(t["x"]) + size(t["mask"]),
        )
for name in ("f32", "f16"):
    case(
        "masked_softmax",
        f"masked_softmax {name} 4096x8192, a mask for each row",
        lambda m, d=DTYPES[name]: {"x": m.normal(4096, 8192, dtype=d), "mask": m.mask(4096, 8192)},
        lambda t: aten._masked_softmax(t["x"], t["mask"], 1, 2),
        lambda t: 2 * size(t["x"]) + size(t["mask"]),
    )
case(
    "masked_softmax",
    "masked_softmax f32 128x262144, a mask for each row",
    lambda m: {"x": m.normal(128, 262144), "mask": m.mask(128, 262144)},
    lambda t: aten._masked_softmax(t["x"], t["mask"], 1, 2),
    lambda t: 2 * size(t["x"]) + size(t["mask"]),
)
case(
    "masked_softmax",
    "masked_softmax backward f32 (8, 16, 512, 512)",
    lambda m: {
        "g": m.normal(8, 16, 512, 512),
        "y": m.normal(8, 16, 512, 512),
        "mask": m.mask(8, 16, 512, 512),
    },
    lambda t: aten._masked_softmax_backward(t["g"], t["y"], t["mask"], 3),
    lambda t: 3 * size(t["g"]) + size(t["mask"]),
)
for batch in (32, 128):
    for layout in ("NCHW", "NHWC"):
        case(
            "batch_norm_stats",
            f"batch_norm_update_stats {layout} {batch}x64x56x56",
            lambda m, b=batch, nhwc=layout == "NHWC": {
                "x": m.normal(b, 56, 56, 64).permute(0, 3, 1, 2)
                if nhwc
                else m.normal(b, 64, 56, 56),
                "mean": m.normal(64),
                "variance": m.normal(64),
            },
            lambda t: aten.batch_norm_update_stats(t["x"], t["mean"], t["variance"], 0.1),
            lambda t: size(t["x"]),
        )


def _lengths(kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    if kind == "one of 45,000,000 among 500,000":
        lengths = torch.full((500_000,), 10)
        lengths[250_000] = 45_000_000
        return lengths
    if kind == "1 / rank, 500,000":
        lengths = (5e7 / (13.7 * torch.arange(1, 500_001))).long()
        return lengths[torch.randperm(500_000, generator=generator)]
    if kind == "0 to 200, 500,000":
        return torch.randint(0, 201, (500_000,), generator=generator)
    count, length = map(int, kind.split(" of "))
    return torch.full((count,), length)


for kind in (
    "500000 of 100",
    "50000 of 1000",
    "5000 of 10000",
    "0 to 200, 500,000",
    "1 / rank, 500,000",
    "one of 45,000,000 among 500,000",
):
    case(
        "segment_reduce",
        f"segment_reduce sum f32, segments: {kind}",
        lambda m, k=kind: {
            "x": m.normal(int(_lengths(k).sum())),
            "lengths": m.given(_lengths(k)),
        },
        lambda t: torch.segment_reduce(t["x"], "sum", lengths=t["lengths"], unsafe=True),
        lambda t: size(t["x"], t["lengths"]) + 4 * t["lengths"].numel(),
    )
case(
    "segment_reduce",
    "segment_reduce sum f32 (1000000, 64), segments: 10000 of 100",
    lambda m: {"x": m.normal(1_000_000, 64), "lengths": m.given(torch.full((10_000,), 100))},
    lambda t: torch.segment_reduce(t["x"], "sum", lengths=t["lengths"], unsafe=True),
    lambda t: size(t["x"], t["lengths"]) + 4 * 64 * 10_000,
)
case(
    "hash_tensor",
    "hash_tensor f32 2^26",
    lambda m: {"x": m.normal(LARGE)},
    lambda t: torch.hash_tensor(t["x"]),
    lambda t: size(t["x"]),
)
case(
    "hash_tensor",
    "hash_tensor f32 8192^2 rows",
    lambda m: {"x": m.normal(8192, 8192)},
    lambda t: torch.hash_tensor(t["x"], 1),
    lambda t: size(t["x"]),
)

# ---- pools, places, others -----------------------------------------------------------------------

_POOLS = {
    "avg": F.adaptive_avg_pool3d,
    "max": lambda x, out: F.adaptive_max_pool3d(x, out, return_indices=True),
}
for kind, pool in _POOLS.items():
    for out in ((4, 7, 7), (5, 9, 9)):
        case(
            "pools",
            f"adaptive_{kind}_pool3d f32 (8, 64, 32, 56, 56) to {out}",
            lambda m: {"x": m.normal(8, 64, 32, 56, 56)},
            lambda t, f=pool, o=out: f(t["x"], o),
            lambda t: size(t["x"]),
        )
for kernel, out in ((2, 56), (3, 37)):
    case(
        "fractional_max_pool",
        f"fractional_max_pool2d f32 (32, 64, 112, 112), {kernel} to {out}",
        lambda m: {"x": m.normal(32, 64, 112, 112), "r": m.uniform(32, 64, 2)},
        lambda t, k=kernel, o=out: aten.fractional_max_pool2d(t["x"], [k, k], [o, o], t["r"]),
        lambda t, o=out: size(t["x"]) + 32 * 64 * o * o * 12,
    )


def _ctc(m: Maker) -> Tensors:
    generator = torch.Generator().manual_seed(2)
    return {
        "log_probs": m.given(torch.log_softmax(torch.randn(200, 32, 100, generator=generator), 2)),
        "targets": m.given(torch.randint(1, 100, (32, 50), generator=generator)),
        "grad": m.given(torch.ones(32)),
        "loss": m.given(torch.full((32,), 500.0)),
        "alpha": m.given(torch.full((32, 200, 101), -300.0)),
    }


_INPUTS, _TARGETS = [200] * 32, [50] * 32
case(
    "ctc_loss",
    "ctc_loss f32, 200 steps, 32 samples, 50 of 100 classes",
    _ctc,
    lambda t: aten._ctc_loss(t["log_probs"], t["targets"], _INPUTS, _TARGETS),
    lambda t: size(t["log_probs"], t["alpha"]),
)
case(
    "ctc_loss",
    "ctc_loss backward f32, 200 steps, 32 samples, 50 of 100 classes",
    _ctc,
    lambda t: aten._ctc_loss_backward(
        t["grad"], t["log_probs"], t["targets"], _INPUTS, _TARGETS, t["loss"], t["alpha"], 0
    ),
    lambda t: 2 * size(t["log_probs"], t["alpha"]),
)
case(
    "pdist",
    "pdist f32 1000x64",
    lambda m: {"x": m.normal(1000, 64)},
    lambda t: aten._pdist_forward(t["x"], 2.0),
    lambda t: size(t["x"]) + 4 * 499_500,
)
case(
    "pdist",
    "pdist backward f32 1000x64",
    lambda m: {"x": m.normal(1000, 64), "g": m.normal(499_500), "d": m.uniform(499_500, high=15)},
    lambda t: aten._pdist_backward(t["g"], t["x"], 2.0, t["d"]),
    lambda t: 2 * size(t["x"]) + size(t["g"], t["d"]),
)
for high in (20, 2000):
    case(
        "poisson",
        f"poisson f32 2^24, rates up to {high}",
        lambda m, h=high: {"x": m.uniform(2**24, high=h)},
        lambda t: torch.poisson(t["x"]),
        lambda t: 2 * size(t["x"]),
    )
for distribution in ("uniform", "normal"):
    for name, dtype in DTYPES.items():
        case(
            "philox",
            f"philox_{distribution} {name} 2^26",
            lambda m, d=dtype: {
                "x": m.normal(LARGE, dtype=d),
                "key": m.given(torch.tensor([1, 2], dtype=torch.uint64)),
            },
            lambda t, n=distribution: getattr(aten, f"_philox_{n}_")(t["x"], t["key"]),
            lambda t: size(t["x"]),
            theirs=lambda t, n=distribution: getattr(t["x"], f"{n}_")(),
            note="torch: the generator with a state",
        )
for accumulate in (False, True):
    case(
        "put_",
        f"put_ f32 2^20 places of 2^24{', accumulating' if accumulate else ''}",
        lambda m: {
            "x": m.normal(2**24),
            "i": m.given(torch.randperm(2**24)[: 2**20]),
            "v": m.normal(2**20),
        },
        lambda t, a=accumulate: t["x"].put_(t["i"], t["v"], a),
        lambda t, a=accumulate: 2**20 * (20 if a else 16),
    )
case(
    "fake_quantize",
    "fake_quantize per tensor f32 2^26",
    lambda m: {"x": m.normal(LARGE)},
    lambda t: aten.fake_quantize_per_tensor_affine_cachemask(t["x"], 0.05, 3, -128, 127),
    lambda t: 9 * LARGE,
)
case(
    "fake_quantize",
    "fake_quantize per channel f32 (64, 64, 112, 112)",
    lambda m: {
        "x": m.normal(64, 64, 112, 112),
        "scale": m.given(0.05 + 0.001 * torch.arange(64.0)),
        "zero": m.given((torch.arange(64) % 5).int()),
    },
    lambda t: aten.fake_quantize_per_channel_affine_cachemask(
        t["x"], t["scale"], t["zero"], 1, -128, 127
    ),
    lambda t: 9 * t["x"].numel(),
)
for name in ("f32", "f16"):
    case(
        "attention_projection",
        f"_transform_bias_rescale_qkv {name} (16, 1024, 3 x 1024), 16 heads",
        lambda m, d=DTYPES[name]: {
            "qkv": m.normal(16, 1024, 3072, dtype=d),
            "bias": m.normal(3072, dtype=d),
        },
        lambda t: aten._transform_bias_rescale_qkv(t["qkv"], t["bias"], 16),
        lambda t: 2 * size(t["qkv"]),
    )
_OFFSETS = torch.tensor([0] + [100 + i * 397 % 900 for i in range(64)]).cumsum(0)
_TOTAL = int(_OFFSETS[-1])
case(
    "jagged",
    "jagged to padded f32, 64 of at most 1024, 512 columns",
    lambda m: {"x": m.normal(_TOTAL, 512), "offsets": m.given(_OFFSETS)},
    lambda t: aten._jagged_to_padded_dense_forward(t["x"], [t["offsets"]], [1024], 0.0),
    lambda t: size(t["x"]) + 4 * 64 * 1024 * 512,
)
case(
    "jagged",
    "padded to jagged f32, 64 of at most 1024, 512 columns",
    lambda m: {"x": m.normal(64, 1024, 512), "offsets": m.given(_OFFSETS)},
    lambda t: aten._padded_dense_to_jagged_forward(t["x"], [t["offsets"]], _TOTAL),
    lambda t: 2 * _TOTAL * 512 * 4,
)


def _adagrad(m: Maker) -> dict:
    tensors = {k: [m.normal(2**22) for _ in range(18)] for k in ("params", "grads")}
    tensors["sums"] = [m.uniform(2**22) for _ in range(18)]
    tensors["steps"] = [m.given(torch.tensor(3.0)) for _ in range(18)]
    return tensors


case(
    "adagrad",
    "_fused_adagrad_ f32, 18 tensors of 2^22",
    _adagrad,
    lambda t: torch._fused_adagrad_(
        *t.values(), lr=0.1, lr_decay=0.0, weight_decay=0.1, eps=1e-8, maximize=False
    ),
    lambda t: 5 * size(*t["params"]),
)


# ---- cumulative sums -----------------------------------------------------------------------------

_SUMMED = {
    "rows 2^14 x 4096": (2**14, 4096, 1),
    "columns 4096 x 2^14": (4096, 2**14, 0),
    "row of 2^26": (1, 2**26, 1),
}
for name, (rows, columns, dim) in _SUMMED.items():
    for letter in ("f32", "f16"):
        case(
            "cumulative",
            f"cumsum {letter} {name}",
            lambda m, r=rows, c=columns, t=DTYPES[letter]: {
                k: m.normal(r, c, dtype=t) for k in ("x", "out")
            },
            lambda t, d=dim: torch.cumsum(t["x"], d, out=t["out"]),
            lambda t: 2 * size(t["x"]),
        )

for name, (rows, columns, dim) in _SUMMED.items():
    case(
        "cumulative",
        f"logcumsumexp f32 {name}",
        lambda m, r=rows, c=columns: {k: m.normal(r, c) for k in ("x", "out")},
        lambda t, d=dim: torch.logcumsumexp(t["x"], d, out=t["out"]),
        lambda t: 2 * size(t["x"]),
    )

# ---- reductions ----------------------------------------------------------------------------------

# The shape of the elements, and the dimensions along which they are reduced.
_REDUCED = {
    "all of 2^26": ((2**26,), (0,)),
    "rows 2^16 x 1024": ((2**16, 1024), (1,)),
    "rows 2^22 x 16": ((2**22, 16), (1,)),
    "rows 2^14 x 4097": ((2**14, 4097), (1,)),
    "columns 2^16 x 1024": ((2**16, 1024), (0,)),
    "columns 2^22 x 16": ((2**22, 16), (0,)),
    "channels 64 x 256 x 64 x 64": ((64, 256, 64, 64), (0, 2, 3)),
}


def _reductions() -> dict[str, Callable[..., torch.Tensor]]:
    return {
        "sum": lambda x, d, out: torch.sum(x, d, out=out),
        "amax": lambda x, d, out: torch.amax(x, d, out=out),
        "norm": lambda x, d, out: torch.linalg.vector_norm(x, 2, d, out=out),
        "var": lambda x, d, out: torch.var(x, d),
    }


for operator, function in _reductions().items():
    for name, (shape, dims) in _REDUCED.items():
        if operator != "sum" and name.split()[0] not in ("all", "channels") and "1024" not in name:
            continue
        kept = [n for i, n in enumerate(shape) if i not in dims]
        for letter in ("f32", "f16") if operator in ("sum", "var") else ("f32",):
            case(
                "reduction",
                f"{operator} {letter} {name}",
                lambda m, s=shape, k=kept, t=DTYPES[letter]: {
                    "x": m.normal(*s, dtype=t),
                    "out": m.normal(*k, dtype=t),
                },
                lambda t, d=dims, f=function: f(t["x"], d, t["out"]),
                lambda t: size(t["x"]),
            )

# ---- sorting -------------------------------------------------------------------------------------

# By the fixes "sort" and "median". Bytes: each element read once, a value and an index written.
_SORTED = {
    "rows 2^21 x 8": (2**21, 8, 1),
    "rows 2^14 x 1024": (2**14, 1024, 1),
    "columns 4096 x 4096": (4096, 4096, 0),
    "rows 64 x 2^18": (64, 2**18, 1),
    "row of 2^24": (1, 2**24, 1),
}


def _sorted(t: Tensors, dim: int) -> object:
    return torch.sort(t["x"], stable=True, dim=dim)


for name, (rows, columns, dim) in _SORTED.items():
    case(
        "sorting",
        f"sort f32 {name}",
        lambda m, r=rows, c=columns: {"x": m.normal(r, c)},
        lambda t, d=dim: _sorted(t, d),
        lambda t: 4 * size(t["x"]),
    )
case(
    "sorting",
    "sort f16 rows 2^14 x 1024",
    lambda m: {"x": m.normal(2**14, 1024, dtype=torch.float16)},
    lambda t: _sorted(t, 1),
    lambda t: 6 * size(t["x"]),
)
for k in (8, 1024):
    case(
        "sorting",
        f"topk f32 rows 512 x 2^15, k = {k}",
        lambda m: {"x": m.normal(512, 2**15)},
        lambda t, k=k: torch.topk(t["x"], k),
        lambda t: size(t["x"]),
    )
case(
    "sorting",
    "median f32 rows 2^14 x 1024",
    lambda m: {"x": m.normal(2**14, 1024)},
    lambda t: torch.median(t["x"], 1),
    lambda t: size(t["x"]),
)


# ---- histograms, by the fix "histogram" ----------------------------------------------------------

for bins in (10, 1000, 2**20):
    for letter in ("f32", "f16"):
        case(
            "histogram",
            f"histc {letter} 2^26, {bins} bins",
            lambda m, t=DTYPES[letter]: {"x": m.normal(LARGE, dtype=t)},
            lambda t, b=bins: torch.histc(t["x"], b, -4, 4),
            lambda t, b=bins: size(t["x"]) + 4 * b,
        )
case(
    "histogram",
    "histogram f32 2^22, 100 edges, weights",
    lambda m: {
        "x": m.normal(2**22),
        "w": m.normal(2**22),
        "edges": m.given(torch.linspace(-3, 3, 101)),
    },
    lambda t: torch.histogram(t["x"], t["edges"], weight=t["w"]),
    lambda t: size(t["x"], t["w"]),
    note="torch has none on CUDA",
)

# ---- gathers and scatters, by the fixes "indexing" and "embedding_bag" ---------------------------

# Indices are among what is stored.
_PLACES = 2**20


def _rows_at(m: Maker, dtype: torch.dtype, rows: int, columns: int) -> Tensors:
    return {
        "x": m.normal(2**16, columns, dtype=dtype),
        "i": m.given(torch.randint(2**16, (rows,))),
        "v": m.normal(rows, columns, dtype=dtype),
    }


def _elements_at(m: Maker, elements: int) -> Tensors:
    return {
        "x": m.normal(elements),
        "i": m.given(torch.randint(elements, (_PLACES,))),
        "v": m.normal(_PLACES),
    }


for letter in ("f32", "f16"):
    for name, write in {
        "index_add": lambda t: t["x"].index_add_(0, t["i"], t["v"]),
        "index_copy": lambda t: t["x"].index_copy_(0, t["i"], t["v"]),
        "index_put accumulating": lambda t: t["x"].index_put_((t["i"],), t["v"], True),
    }.items():
        case(
            "indexing",
            f"{name} {letter}, 2^18 rows of 256 to 2^16",
            lambda m, d=DTYPES[letter]: _rows_at(m, d, 2**18, 256),
            lambda t, f=write: f(t),
            lambda t: size(t["v"], t["i"]) + 2 * size(t["x"]),
        )
for elements in (1000, 2**24):
    for name, write in {
        "index_add": lambda t: t["x"].index_add_(0, t["i"], t["v"]),
        "scatter_add": lambda t: t["x"].scatter_add_(0, t["i"], t["v"]),
        "scatter_reduce amax": lambda t: t["x"].scatter_reduce_(0, t["i"], t["v"], "amax"),
        "scatter": lambda t: t["x"].scatter_(0, t["i"], t["v"]),
        "index_fill": lambda t: t["x"].index_fill_(0, t["i"], 1.0),
    }.items():
        case(
            "indexing",
            f"{name} f32, 2^20 elements to {elements}",
            lambda m, n=elements: _elements_at(m, n),
            lambda t, f=write: f(t),
            lambda t: size(t["i"]) + 3 * size(t["v"]),
        )
case(
    "indexing",
    "gather f32, 128 rows of 8192^2",
    lambda m: {"x": m.normal(8192, 8192), "i": m.given(torch.randint(8192, (128, 8192)))},
    lambda t: torch.gather(t["x"], 0, t["i"]),
    lambda t: 2 * size(t["i"]),
)


def _bags(m: Maker, dtype: torch.dtype, length: int) -> Tensors:
    count = _PLACES // 2
    bags = torch.arange(count) // length
    return {
        "weight": m.normal(2**17, 128, dtype=dtype),
        "i": m.given(torch.randint(2**17, (count,))),
        "offsets": m.given(torch.arange(0, count, length)),
        "bags": m.given(bags),
        "sizes": m.given(torch.full((count // length,), length)),
        "grad": m.normal(count // length, 128, dtype=dtype),
        "none": m.given(torch.empty(0, dtype=torch.int64)),
    }


for letter in ("f32", "f16"):
    for mode, name in enumerate(("sum", "mean", "max")):
        case(
            "embedding_bag",
            f"embedding_bag {name} {letter}, 2^14 bags of 32 rows of 128",
            lambda m, d=DTYPES[letter]: _bags(m, d, 32),
            lambda t, n=mode: aten._embedding_bag(t["weight"], t["i"], t["offsets"], False, n),
            lambda t: 32 * size(t["grad"]) + size(t["i"]),
        )
    case(
        "embedding_bag",
        f"embedding_bag sum {letter} backward, 2^14 bags of 32 rows of 128",
        lambda m, d=DTYPES[letter]: _bags(m, d, 32),
        lambda t: aten._embedding_bag_dense_backward(
            t["grad"], t["i"], t["bags"], t["sizes"], t["none"], 2**17, False, 0, None
        ),
        lambda t: 32 * size(t["grad"]) + size(t["i"], t["weight"]),
    )

# ---- images, by the fixes "convolution" and "grid_sample" ----------------------------------------


@dataclass(frozen=True)
class Convolution:
    """sizes: of the input; weight: channels of the result and sides of the filter."""

    sizes: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int = 1
    padding: int = 1
    groups: int = 1

    def tensors(self, m: Maker, dtype: torch.dtype, layout: torch.memory_format) -> Tensors:
        out, *filters = self.weight
        weight = (out, self.sizes[1] // self.groups, *filters)
        sides = [
            (n + 2 * self.padding - k) // self.stride + 1
            for n, k in zip(self.sizes[2:], filters, strict=True)
        ]
        return {
            "x": m.normal(*self.sizes, dtype=dtype).to(memory_format=layout),
            "w": m.normal(*weight, dtype=dtype).to(memory_format=layout),
            "grad": m.normal(self.sizes[0], out, *sides, dtype=dtype).to(memory_format=layout),
        }

    def forward(self, t: Tensors) -> object:
        function = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(self.sizes)]
        return function(t["x"], t["w"], None, self.stride, self.padding, 1, self.groups)

    def backward(self, t: Tensors) -> object:
        every = len(self.sizes) - 2
        return aten.convolution_backward(
            t["grad"], t["x"], t["w"], None, [self.stride] * every, [self.padding] * every, [1] * every,
            False, [0] * every, self.groups, (True, True, False),
        )  # fmt: skip


_CONVOLUTIONS = {
    "ResNet stem 32 x 3 x 224^2, 64 of 7^2": Convolution((32, 3, 224, 224), (64, 7, 7), 2, 3),
    "ResNet 32 x 64 x 56^2, 64 of 3^2": Convolution((32, 64, 56, 56), (64, 3, 3)),
    "ResNet 32 x 256 x 56^2, 64 of 1": Convolution((32, 256, 56, 56), (64, 1, 1), 1, 0),
    "ResNet 32 x 128 x 56^2, 128 of 3^2, stride 2": Convolution((32, 128, 56, 56), (128, 3, 3), 2),
    "ResNet 32 x 512 x 7^2, 512 of 3^2": Convolution((32, 512, 7, 7), (512, 3, 3)),
    "UNet 2 x 320 x 64^2, 320 of 3^2": Convolution((2, 320, 64, 64), (320, 3, 3)),
    "UNet 2 x 1280 x 16^2, 1280 of 3^2": Convolution((2, 1280, 16, 16), (1280, 3, 3)),
    "depthwise 32 x 256 x 56^2, 3^2": Convolution((32, 256, 56, 56), (256, 3, 3), groups=256),
    "volume 1 x 64 x 32^3, 64 of 3^3": Convolution((1, 64, 32, 32, 32), (64, 3, 3, 3)),
    "sound 8 x 512 x 4096, 512 of 3": Convolution((8, 512, 4096), (512, 3)),
}

for name, convolution in _CONVOLUTIONS.items():
    for letter in ("f32", "f16"):
        for layout in (torch.contiguous_format, torch.channels_last):
            if layout == torch.channels_last and len(convolution.sizes) != 4:
                continue
            last = " channels_last" if layout == torch.channels_last else ""
            for what in ("forward", "backward"):
                case(
                    "convolution",
                    f"convolution {what} {letter}{last}, {name}",
                    lambda m, c=convolution, d=DTYPES[letter], o=layout: c.tensors(m, d, o),
                    getattr(convolution, what),
                    lambda t: size(t["x"], t["w"], t["grad"]),
                )


def _image_and_grid(
    m: Maker, dtype: torch.dtype, sizes: tuple[int, ...], points: tuple[int, ...]
) -> Tensors:
    """A grid that turns and shrinks the image."""
    dims = len(points)
    theta = (torch.eye(dims, dims + 1) + 0.1)[None].expand(sizes[0], -1, -1)
    grid = F.affine_grid(theta, [sizes[0], 1, *points], align_corners=False).to(dtype)
    return {
        "x": m.normal(*sizes, dtype=dtype),
        "grid": m.given(grid),
        "grad": m.normal(*sizes[:2], *points, dtype=dtype),
    }


_SAMPLED = {
    "8 x 64 x 128^2 at 128^2": ((8, 64, 128, 128), (128, 128)),
    "1 x 3 x 1024^2 at 512^2": ((1, 3, 1024, 1024), (512, 512)),
    "32 x 256 x 32^2 at 300 x 4": ((32, 256, 32, 32), (300, 4)),
    "1 x 16 x 64^3 at 64^3": ((1, 16, 64, 64, 64), (64, 64, 64)),
}

for name, (sizes, points) in _SAMPLED.items():
    sample = getattr(aten, f"grid_sampler_{len(points)}d")
    sample_backward = getattr(aten, f"grid_sampler_{len(points)}d_backward")
    for letter in ("f32", "f16"):
        for mode, interpolation in enumerate(("bilinear", "nearest", "bicubic")):
            if mode and (letter == "f16" or name != "8 x 64 x 128^2 at 128^2"):
                continue
            case(
                "grid_sample",
                f"grid_sample {interpolation} {letter}, {name}",
                lambda m, d=DTYPES[letter], s=sizes, p=points: _image_and_grid(m, d, s, p),
                lambda t, f=sample, n=mode: f(t["x"], t["grid"], n, 0, False),
                lambda t: size(t["x"], t["grid"], t["grad"]),
            )
            case(
                "grid_sample",
                f"grid_sample {interpolation} {letter} backward, {name}",
                lambda m, d=DTYPES[letter], s=sizes, p=points: _image_and_grid(m, d, s, p),
                lambda t, f=sample_backward, n=mode: f(
                    t["grad"], t["x"], t["grid"], n, 0, False, (True, True)
                ),
                lambda t: 2 * size(t["x"], t["grid"]) + size(t["grad"]),
            )

# ---- normalisation, by the fix "norm" -------------------------------------------------------------

_ROWS = {"8192 x 4096": (8192, 4096), "32 x 4096 x 1024": (32, 4096, 1024)}


def _norm_rows(m: Maker, dtype: torch.dtype, sizes: tuple[int, ...]) -> Tensors:
    tensors = {k: m.normal(*sizes, dtype=dtype) for k in ("x", "grad")}
    tensors |= {k: m.normal(sizes[-1], dtype=dtype) for k in ("w", "b")}
    return tensors | {k: m.normal(*sizes[:-1], 1) for k in ("mean", "rstd")}


for name, sizes in _ROWS.items():
    for letter in ("f32", "f16"):
        for norm, forward, backward in (
            (
                "layer_norm",
                lambda t, n=sizes[-1:]: aten.native_layer_norm(t["x"], n, t["w"], t["b"], 1e-5),
                lambda t, n=sizes[-1:]: aten.native_layer_norm_backward(
                    t["grad"], t["x"], n, t["mean"], t["rstd"], t["w"], t["b"], [True] * 3
                ),
            ),
            (
                "rms_norm",
                lambda t, n=sizes[-1:]: aten._fused_rms_norm(t["x"], n, t["w"], 1e-5),
                lambda t, n=sizes[-1:]: aten._fused_rms_norm_backward(
                    t["grad"], t["x"], n, t["rstd"], t["w"], [True] * 2
                ),
            ),
        ):
            for suffix, call, tensors in (("", forward, 2), (" backward", backward, 3)):
                case(
                    "normalisation",
                    f"{norm} {letter}{suffix} {name}",
                    lambda m, d=DTYPES[letter], s=sizes: _norm_rows(m, d, s),
                    call,
                    lambda t, n=tensors: n * size(t["x"]),
                )


def _norm_channels(m: Maker, dtype: torch.dtype, layout: torch.memory_format) -> Tensors:
    tensors = {
        k: m.normal(64, 256, 56, 56, dtype=dtype).to(memory_format=layout) for k in ("x", "grad")
    }
    # torch's gradients of group_norm take statistics of the input's dtype.
    of_groups = dtype if m.device == "cuda" else torch.float32
    tensors |= {k: m.normal(64, 32, dtype=of_groups) for k in ("group_mean", "group_rstd")}
    tensors |= {k: m.normal(256) for k in ("w", "b", "mean", "rstd", "average", "variance")}
    if m.device == "cuda":  # for cuDNN's gradients
        *_, tensors["reserve"] = aten.cudnn_batch_norm(
            *(tensors[k] for k in ("x", "w", "b", "average", "variance")), True, 0.1, 1e-5
        )
    return tensors


def _batch_norm(t: Tensors) -> object:
    return aten.native_batch_norm(
        t["x"], t["w"], t["b"], t["average"], t["variance"], True, 0.1, 1e-5
    )


def _batch_norm_backward(t: Tensors) -> object:
    of_run = [t[k] for k in ("average", "variance", "mean", "rstd")]
    return aten.native_batch_norm_backward(
        t["grad"], t["x"], t["w"], *of_run, True, 1e-5, [True] * 3
    )


def _cudnn_batch_norm_backward(t: Tensors) -> object:
    of_run = [t[k] for k in ("average", "variance", "mean", "rstd")]
    return aten.cudnn_batch_norm_backward(t["x"], t["grad"], t["w"], *of_run, 1e-5, t["reserve"])


for letter in ("f32", "f16"):
    for layout in (torch.contiguous_format, torch.channels_last):
        last = " channels last" if layout == torch.channels_last else ""
        case(
            "normalisation",
            f"batch_norm {letter}{last} 64 x 256 x 56^2",
            lambda m, d=DTYPES[letter], o=layout: _norm_channels(m, d, o),
            _batch_norm,
            lambda t: 3 * size(t["x"]),
            theirs=lambda t: F.batch_norm(
                t["x"], t["average"], t["variance"], t["w"], t["b"], True, 0.1, 1e-5
            ),
        )
        case(
            "normalisation",
            f"batch_norm {letter} backward{last} 64 x 256 x 56^2",
            lambda m, d=DTYPES[letter], o=layout: _norm_channels(m, d, o),
            _batch_norm_backward,
            lambda t: 5 * size(t["x"]),
            theirs=_cudnn_batch_norm_backward,
        )
    case(
        "normalisation",
        f"group_norm {letter} 64 x 256 x 56^2, 32 groups",
        lambda m, d=DTYPES[letter]: _norm_channels(m, d, torch.contiguous_format),
        lambda t: aten.native_group_norm(
            t["x"], *(t[k].to(t["x"].dtype) for k in "wb"), 64, 256, 56 * 56, 32, 1e-5
        ),
        lambda t: 2 * size(t["x"]),
    )
    case(
        "normalisation",
        f"group_norm {letter} backward 64 x 256 x 56^2, 32 groups",
        lambda m, d=DTYPES[letter]: _norm_channels(m, d, torch.contiguous_format),
        lambda t: aten.native_group_norm_backward(
            t["grad"], t["x"], t["group_mean"], t["group_rstd"],
            t["w"].to(t["x"].dtype), 64, 256, 56 * 56, 32,
            [True] * 3,
        ),
        lambda t: 3 * size(t["x"]),
    )  # fmt: skip

# ---- products of matrices ------------------------------------------------------------------------


def _matmul(t: Tensors, metal_type: str) -> None:
    n = t["c"].shape[0]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "matmul.metal")
    with open(path) as source:
        shader = torch.mps.compile_shader(source.read())
    kernel = getattr(shader, f"matmul_{metal_type}")
    threads = (n // 64 * 128, n // 64)
    kernel(t["a"], t["b"], t["c"], [n] * 4, threads=threads, group_size=(128, 1), arg_casts="int32")


for name, dtype in (("half", torch.float16), ("bfloat", torch.bfloat16)):
    case(
        "matmul",
        f"matmul {name} 4096^3",
        lambda m, d=dtype: {k: m.normal(4096, 4096, dtype=d) for k in "abc"},
        lambda t, n=name: _matmul(t, n),
        lambda t: 3 * size(t["a"]),
        theirs=lambda t: torch.mm(t["a"], t["b"], out=t["c"]),
    )


# ---- recording and measuring ---------------------------------------------------------------------

_STORED = 2**23  # contents of allocations of at most so many bytes: places and lengths


def _file(folder: str, number: int) -> str:
    return os.path.join(folder, f"{number:03}.trace")


def is_chosen(c: Case, only: str) -> bool:
    return any(part == c.family or part in c.name for part in only.split(","))


# Kernels with code of their own for NVIDIA's GPUs, which the source that the software device compiles does not have.
_FOR_GPUS = {"convolution_packed": "kernels/spatial/convolution_packed.metal"}


def for_gpus(path: str) -> None:
    """Replaces the sources of such kernels in a trace by those that metalops.cuda would compile."""
    from metalops import trace
    from metalops.cuda.library import DEFINES
    from metalops.msl.source.preprocess import preprocess

    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    include_dirs = [root, os.path.join(root, "python", "metalops", "include")]
    recorded = trace.load(path)
    for i, event in enumerate(recorded.events):
        for prefix, file in _FOR_GPUS.items():
            if getattr(event, "kernel", "").startswith(prefix):
                text = preprocess(
                    path=os.path.join(root, file), include_dirs=include_dirs, defines=DEFINES
                ).text
                source = recorded.add_blob(text.encode("latin-1"))
                recorded.events[i] = replace(event, source=source)
    os.unlink(path)
    trace.save(recorded, path)


def record(folder: str, only: str) -> None:
    import metalops

    os.makedirs(folder, exist_ok=True)
    metalops.enable_fixes(
        (
            "convolution", "cumulative", "embedding_bag", "grid_sample", "histogram", "indexing", "median", "norm", "reduction",
            "sort",
        )
    )  # fmt: skip
    for number, c in enumerate(CASES):
        if not is_chosen(c, only):
            continue
        tensors = c.make(Maker("mps"))
        path = _file(folder, number)
        with metalops.debug.capture(path, contents=_STORED, execute=False, gpu=True) as trace:
            c.ours(tensors)
        for_gpus(path)
        kernels = ", ".join(launch.kernel for launch in trace.launches)
        print(f"{os.path.getsize(path):9} bytes  {c.name}: {kernels}", flush=True)


@dataclass
class Result:
    """Times in microseconds. share: of the copy rate, of the bytes that must be moved. ratio: torch's time / ours."""

    family: str
    name: str
    note: str
    us: float
    launches_us: list[float]
    share: float
    torch_us: float | None
    ratio: float | None


def measure(folder: str, only: str) -> dict:
    from metalops import trace
    from metalops.trace.replay import CudaDevice, copy_rate, replay

    torch.backends.cudnn.allow_tf32 = False
    device = CudaDevice()
    rate = copy_rate(device)
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, a copy of 1 GiB: {rate / 1e9:.0f} GB/s", flush=True)
    results = []
    for number, c in enumerate(CASES):
        if not is_chosen(c, only) or not os.path.exists(_file(folder, number)):
            continue
        try:
            rows = list(replay(trace.load(_file(folder, number)), device, timed=True))
        except Exception as error:  # a case that fails is told, and the others go on
            print(f"FAILED {c.name}: {type(error).__name__}: {error}", flush=True)
            continue
        times = [row.seconds * 1e6 for row in rows]
        torch.cuda.empty_cache()
        tensors = c.make(Maker("cuda"))
        theirs = _torch_time(device, lambda f=c.theirs or c.ours, t=tensors: f(t))
        us = sum(times)
        share = c.bytes(tensors) / (us * 1e-6) / rate
        ratio = theirs / us if theirs else None
        results.append(Result(c.family, c.name, c.note, us, times, share, theirs, ratio))
        print(_line(results[-1]), flush=True)
        del tensors
        torch.cuda.empty_cache()
    return {
        "device": name,
        "torch": torch.__version__,
        "copy_GB/s": rate / 1e9,
        "results": [asdict(r) for r in results],
    }


def _torch_time(device, call: Callable[[], object]) -> float | None:
    """Microseconds; of eager calls where the operator waits for the GPU, None where torch lacks it."""
    try:
        call()
    except (RuntimeError, AttributeError) as error:
        print(f"  torch: {str(error).splitlines()[0]}")
        return None
    try:
        return device.seconds(call) * 1e6
    except RuntimeError:
        torch.cuda.synchronize()
        return statistics.median(device.timed(call) for _ in range(7)) * 1e6


def _line(r: Result) -> str:
    parts = " + ".join(f"{t:.1f}" for t in r.launches_us) if len(r.launches_us) > 1 else ""
    ratio = f"{r.ratio:6.2f}" if r.ratio else "     -"
    line = f"{r.us:10.1f} us {r.share:6.0%} of copy  torch/ours {ratio}  {r.name}"
    return line + (f" ({r.note})" if r.note else "") + (f" [{parts}]" if parts else "")


def plot(measured: dict, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    results = [Result(**r) for r in measured["results"]][::-1]
    figure, (left, right) = pyplot.subplots(1, 2, sharey=True, figsize=(14, 0.28 * len(results)))
    names = [r.name for r in results]
    left.barh(names, [r.share * 100 for r in results], color="tab:blue")
    left.axvline(100, color="black", linewidth=0.8)
    left.set_xlabel("% of the copy rate")
    right.barh(names, [r.ratio or 0 for r in results], color="tab:orange")
    right.axvline(1, color="black", linewidth=0.8)
    right.set_xscale("log")
    right.set_xlabel("torch's time / ours")
    figure.suptitle(f"{measured['device']}, torch {measured['torch']}")
    figure.tight_layout()
    figure.savefig(path, dpi=70)


def table(measured: dict) -> str:
    """Markdown."""
    lines = [
        f"{measured['device']}, torch {measured['torch']}; a copy of 1 GiB: {measured['copy_GB/s']:.0f} GB/s read and written",
        "",
        "| case | us | of a copy | torch's time / ours |",
        "|---|---:|---:|---:|",
    ]
    for r in (Result(**r) for r in measured["results"]):
        name = r.name + (f" ({r.note})" if r.note else "")
        ratio = f"{r.ratio:.2f}" if r.ratio else ""
        lines.append(f"| {name} | {r.us:.1f} | {r.share:.0%} | {ratio} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["record", "measure", "show"])
    parser.add_argument("path", help="the folder of traces; the JSON file to show")
    parser.add_argument(
        "--only",
        default="",
        help="cases of these families, or with one of these in their names: a,b",
    )
    parser.add_argument("--json", help="where results are written")
    options = parser.parse_args()
    if options.step == "record":
        record(options.path, options.only)
    elif options.step == "measure":
        measured = measure(options.path, options.only)
        if options.json:
            with open(options.json, "w") as stream:
                json.dump(measured, stream, indent=1)
    else:
        with open(options.path) as stream:
            measured = json.load(stream)
        beside = os.path.splitext(options.path)[0]
        with open(f"{beside}.md", "w") as stream:
            stream.write(table(measured))
        plot(measured, f"{beside}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
