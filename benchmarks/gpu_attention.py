"""Times attention on an NVIDIA GPU by our kernels, beside torch's own and beside what stores its scores.

    python benchmarks/gpu_attention.py [--json FILE]   # needs no compiled part of metalops

A line for each case: milliseconds of ours and of torch, how many times torch's speed ours has, and what that is of the GPU's
arithmetic or of the rate of a copy in the same run. torch's own is FlashAttention-2 (SDPBackend.FLASH_ATTENTION), forward and
backward. Times are of the kernels alone: of several calls in one CUDA graph, on both sides, the least of several replays.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

import metalops  # noqa: F401 declares the operators
import torch
from metalops import ops
from metalops.trace.replay import CudaDevice, copy_rate
from torch import Tensor

ours = torch.ops.metalops
aten = torch.ops.aten


CALLS = 8  # of a graph, whose own launch takes microseconds too


def milliseconds(function: Callable[[], object], repeat: int = 10) -> float:
    """The least of several times of a call, as one of CALLS of a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            function()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / CALLS)
    return min(times)


def normal(*sizes: int, dtype: torch.dtype = torch.half) -> Tensor:
    return torch.randn(*sizes, device="cuda", dtype=dtype)


results: list[dict] = []


def report(name: str, mine: float, theirs: float, share: str) -> None:
    results.append({"name": name, "ours": mine, "torch": theirs, "share": share})
    print(f"{name:56} {mine:9.3f} {theirs:9.3f} {theirs / mine:6.2f}  {share}", flush=True)


def options(length: int, keys: int, features: int, is_causal: bool) -> tuple:
    scale = features**-0.5
    return (*[None] * 7, length, keys, scale, -1, 0 if is_causal else -1, False, 0.0, 0.0)


def decode(batch: int, heads: int, key_heads: int, keys: int, features: int, rate: float) -> None:
    query = normal(batch, heads, 1, features)
    key, value = (normal(batch, key_heads, keys, features) for _ in range(2))
    given = options(1, keys, features, False)
    mine = milliseconds(lambda: ours.attention_forward(query, key, value, *given), 30)

    def flash():
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, enable_gqa=True
            )

    theirs = milliseconds(flash, 30)
    share = f"{(key.nbytes + value.nbytes) / mine / rate:.0%} of the copy's rate"
    report(f"decode {batch} x {heads}/{key_heads} x {keys} x {features} f16", mine, theirs, share)
    page = 64
    pages = batch * keys // page
    caches = [x.transpose(1, 2).reshape(pages, page, key_heads, features) for x in (key, value)]
    table = torch.randperm(pages, device="cuda", dtype=torch.int32).reshape(batch, -1)
    lengths = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    mine = milliseconds(lambda: ops.paged_attention(query[:, :, 0], *caches, table, lengths), 30)
    share = f"{(key.nbytes + value.nbytes) / mine / rate:.0%} of the copy's rate"
    report(f"  the same in pages of {page}", mine, theirs, share)


def training(batch: int, heads: int, length: int, features: int, is_causal: bool) -> None:
    given = [normal(batch, heads, length, features) for _ in range(3)]
    grad = normal(batch, heads, length, features)
    rest = options(length, length, features, is_causal)
    causal = "causal" if is_causal else "full"
    products = 4 * batch * heads * length**2 * features / (2 if is_causal else 1)
    name = f"{causal}, {batch} x {heads} x {length} x {features} f16"
    mine = milliseconds(lambda: ours.attention_forward(*given, *rest))
    flash = aten._scaled_dot_product_flash_attention
    theirs = milliseconds(lambda: flash(*given, 0.0, is_causal))
    report(f"forward, {name}", mine, theirs, f"{products / mine / 1e9:.0f} TFLOPS")
    out, lse = ours.attention_forward(*given, *rest)
    wanted = [True] * 3 + [False] * 3
    mine = milliseconds(
        lambda: ours.attention_backward(grad, None, *given, out, lse, *rest, wanted)
    )
    of_flash = flash(*given, 0.0, is_causal)
    result, statistics, *others = of_flash[:8]
    backward = aten._scaled_dot_product_flash_attention_backward
    theirs = milliseconds(
        lambda: backward(
            *(grad, *given, result, statistics, *others[:4], 0.0, is_causal, *others[4:6])
        )
    )
    report(f"backward, {name}", mine, theirs, f"{2.5 * products / mine / 1e9:.0f} TFLOPS")
    difference = (out.float() - result.float()).abs().max().item()
    print(f"  largest difference from torch: {difference:.1e}")


def materialised(heads: int, length: int, features: int, dtype: torch.dtype) -> None:
    given = [normal(1, heads, length, features, dtype=dtype) for _ in range(3)]
    rest = options(length, length, features, False)

    def stored():
        query, key, value = given
        return torch.softmax(query @ key.mT * features**-0.5, -1) @ value

    mine = milliseconds(lambda: ours.attention_forward(*given, *rest), 5)
    name = f"forward, {heads} x {length} x {features} {str(dtype)[6:]}, torch: scores stored"
    report(name, mine, milliseconds(stored, 5), "")
    torch.cuda.empty_cache()


def memory(heads: int, length: int, features: int) -> None:
    given = [normal(1, heads, length, features).requires_grad_() for _ in range(3)]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = ops.attention(*given)
    torch.autograd.grad(out, given, torch.ones_like(out))
    taken = torch.cuda.max_memory_allocated() - before
    times = taken / sum(x.nbytes for x in given)
    results.append({"name": "memory", "times": times})
    print(f"forward and backward, {heads} x {length} x {features}: {times:.1f} times the inputs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="where to write the figures")
    parser.add_argument("--only", default="", help="decode, training, materialised or memory")
    arguments = parser.parse_args()
    rate = copy_rate(CudaDevice()) / 1e3  # bytes in a millisecond
    print(f"{torch.cuda.get_device_name()}: a copy moves {rate / 1e9:.2f} TB/s")
    print(f"{'milliseconds':56} {'ours':>9} {'torch':>9} {'times':>6}")

    def is_wanted(part: str) -> bool:
        return arguments.only in ("", part)

    if is_wanted("decode"):
        decode(1, 32, 8, 32768, 128, rate)
        decode(16, 32, 8, 4096, 128, rate)
        decode(1, 32, 32, 8192, 64, rate)
    for features in (128, 64):
        for is_causal in (False, True):
            if is_wanted("training"):
                training(4, 16, 4096, features, is_causal)
    if is_wanted("materialised"):
        for length in (4096, 16384):
            materialised(16, length, 64, torch.half)
        materialised(16, 4096, 64, torch.float32)
    if is_wanted("memory"):
        memory(4, 8192, 64)
    if arguments.json:
        with open(arguments.json, "w") as stream:
            json.dump({"device": torch.cuda.get_device_name(), "copy": rate, "cases": results}, stream, indent=1)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
