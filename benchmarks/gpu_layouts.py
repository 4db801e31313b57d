"""Times elementwise operators on an NVIDIA GPU, whose operands are transposed, permuted, broadcast or have gaps: our functor x * y
and torch's product on the same tensors.

    python benchmarks/gpu_layouts.py [--only TEXT]   # needs no compiled part of metalops

A line of a Markdown table for each case: microseconds of ours, in CUDA graphs, the median of several; the share of the rate of
a copy in the same run at which operands and result were read and written, each element once; and torch's time / ours. Results
are compared with torch's before they are timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import metalops
import torch
from metalops import ops
from metalops.trace.replay import CudaDevice, copy_rate
from torch import Tensor

Pair = tuple[Tensor, Tensor]

PRODUCT = metalops.functor(
    "benchmarks::product", "x * y", inputs=("x", "y"), grad=("grad * y", "grad * x")
)
LAST = torch.channels_last


def pairs(new: Callable[..., Tensor]) -> Iterator[tuple[str, Callable[[], Pair]]]:
    """Operands. new: makes a tensor of normal numbers."""
    for n in (4096, 8192):
        yield f"{n}^2 transposed, dense", lambda n=n: (new(n, n).t(), new(n, n))
    yield "4096^2 both transposed", lambda: (new(4096, 4096).t(), new(4096, 4096).t())
    yield "4095 x 4097 transposed, dense", lambda: (new(4097, 4095).t(), new(4095, 4097))
    yield (
        "(16, 128, 96, 80) permuted as 0231, dense",
        lambda: (new(16, 80, 128, 96).permute(0, 2, 3, 1), new(16, 128, 96, 80)),
    )
    yield (
        "(64, 128, 96, 80) permuted as 3120, dense",
        lambda: (new(80, 128, 96, 64).permute(3, 1, 2, 0), new(64, 128, 96, 80)),
    )
    for shape in ((64, 64, 112, 112), (64, 3, 448, 448)):
        yield (
            f"{shape} channels last, dense",
            lambda s=shape: (new(*s).contiguous(memory_format=LAST), new(*s)),
        )
    for count, n in ((4096, 48), (16384, 24)):
        yield (
            f"({count}, {n}, {n}) transposed, dense",
            lambda c=count, n=n: (new(c, n, n).transpose(1, 2), new(c, n, n)),
        )
    yield "8192^2 transposed, a column", lambda: (new(8192, 8192).t(), new(8192, 1))
    yield "8192^2, a column", lambda: (new(8192, 8192), new(8192, 1))
    yield "8192^2, a row", lambda: (new(8192, 8192), new(8192))
    yield (
        "8192 x 4096 column slices",
        lambda: (new(8192, 8192)[:, :4096], new(8192, 8192)[:, 4096:]),
    )
    yield (
        "8192 x 4095 odd column slices",
        lambda: (new(8192, 8193)[:, :4095], new(8192, 8193)[:, 4097:8192]),
    )
    yield "4096^2 every second column, dense", lambda: (new(4096, 8192)[:, ::2], new(4096, 4096))
    yield "2^22 x 3 slices of 4 columns", lambda: (new(2**22, 4)[:, :3], new(2**22, 4)[:, 1:])
    yield "2^26 misaligned", lambda: (new(2**26 + 1)[1:], new(2**26 + 1)[1:])
    yield "2^26 dense", lambda: (new(2**26), new(2**26))


def size(*tensors: Tensor) -> int:
    """Bytes, each element once."""
    total = 0
    for x in tensors:
        count = 1
        for n, stride in zip(x.shape, x.stride(), strict=True):
            count *= n if stride else 1
        total += count * x.element_size()
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    only = parser.parse_args().only
    device = CudaDevice()
    rate = copy_rate(device)
    name = torch.cuda.get_device_name()
    print(
        f"{name}, torch {torch.__version__}; a copy of 1 GiB: {rate / 1e9:.0f} GB/s read and written\n"
    )
    print("| case | us | of a copy | torch's time / ours |\n|---|---:|---:|---:|")

    def report(case: str, ours, theirs, nbytes: int) -> None:
        if only in case:
            us, other = device.seconds(ours) * 1e6, device.seconds(theirs) * 1e6
            share = nbytes / us * 1e6 / rate
            print(f"| {case} | {us:.1f} | {share:.0%} | {other / us:.2f} |", flush=True)

    for dtype, short in ((torch.float32, "f32"), (torch.float16, "f16")):

        def new(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.randn(*shape, device="cuda", dtype=dtype)

        for case, make in pairs(new):
            x, y = make()
            result = PRODUCT(x, y)
            if not torch.equal(result, x * y):
                raise RuntimeError(f"{case}: the result is not torch's")
            nbytes = size(x, y, result)
            del result
            report(
                f"{case}, {short}",
                lambda x=x, y=y: PRODUCT(x, y),
                lambda x=x, y=y: torch.mul(x, y),
                nbytes,
            )
            del x, y
            torch.cuda.empty_cache()
        x, y, grad = new(8192, 8192).t(), new(8192, 8192), new(8192, 8192)
        report(
            f"8192^2 transposed, dense: swiglu (torch: mul), {short}",
            lambda x=x, y=y: ops.swiglu(x, y),
            lambda x=x, y=y: torch.mul(x, y),
            size(x, y, x),
        )
        report(
            f"8192^2 transposed, dense: gradients (torch: two mul), {short}",
            lambda x=x, y=y, g=grad: torch.ops.benchmarks.product_backward(g, x, y, [True, True]),
            lambda x=x, y=y, g=grad: (torch.mul(g, y), torch.mul(g, x)),
            5 * size(x),
        )
        del x, y, grad
    return 0


if __name__ == "__main__":
    sys.exit(main())
