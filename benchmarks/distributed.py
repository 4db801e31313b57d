"""torch.distributed with mps tensors against the same on CPU tensors, two processes on this machine, over loopback.

    python benchmarks/distributed.py [--markdown FILE]

all_reduce: of 1 KiB to 64 MiB, mps and CPU tensors in turns. Bytes a second are those of the fastest turn; the ratio of process
time, which other programs on the machine hardly change, says how much more a rank has to do. DDP: a training step of a perceptron
on mps with torch's DistributedDataParallel, against the same step without reduction and the reduction of as many bytes alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

SIZES = [1024 * 4**i for i in range(9)]
PLACES = 8  # tensors of a size: where in memory one lies makes up to a third of its time


def turns_and_repeats(size):
    """Turns are short, so that on a shared machine some are left alone; there are more of small tensors."""
    return (1000, 8) if size <= 2**16 else (300, 2) if size <= 2**20 else (100, 1)


def seconds(function, turn=0, repeats=1):
    """Wall time and process time of a call."""
    wall, process = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        function(turn)
    return (time.perf_counter() - wall) / repeats, (time.process_time() - process) / repeats


def fastest(dist, parts, turns, repeats):
    """The least wall time and the least process time of each part, a function of the turn's number; they take turns."""
    best = dict.fromkeys(parts, (float("inf"), float("inf")))
    for turn in range(turns):
        for name in sorted(parts, reverse=turn % 2 == 1):
            dist.barrier()
            taken = seconds(parts[name], turn, repeats)
            if turn >= PLACES:
                best[name] = tuple(map(min, best[name], taken))
    return best


def all_reduce(dist, torch):
    """(bytes, bytes a second of CPU tensors, of mps tensors, process time of the first / of the second) for each size."""
    for size in SIZES:
        tensors = {"cpu": [], "mps": []}
        for _ in range(PLACES):
            for device, places in tensors.items():
                places.append(torch.zeros(size // 4, device=device))
        turns, repeats = turns_and_repeats(size)
        parts = {
            device: lambda turn, of=places: dist.all_reduce(of[turn % PLACES])
            for device, places in tensors.items()
        }
        best = fastest(dist, parts, turns, repeats)
        (cpu, cpu_process), (mps, mps_process) = best["cpu"], best["mps"]
        yield size, size / cpu, size / mps, cpu_process / mps_process


def ddp(dist, torch):
    """(wall time, process time) of a step without reduction, with it, and of the reduction of as many gradients."""
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512),
        torch.nn.GELU(),
        torch.nn.Linear(512, 512),
        torch.nn.GELU(),
        torch.nn.Linear(512, 10),
    ).to("mps")
    x, y = torch.randn(256, 256, device="mps"), torch.randint(10, (256,), device="mps")
    wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    flat = torch.zeros(sum(p.numel() for p in model.parameters()), device="mps")

    def step(turn=0):
        wrapped.zero_grad()
        torch.nn.functional.cross_entropy(wrapped(x), y).backward()
        torch.mps.synchronize()

    def alone(turn):
        with wrapped.no_sync():
            step()

    parts = {
        "without reduction": alone,
        "DistributedDataParallel": step,
        "all_reduce of as many gradients, alone": lambda turn: dist.all_reduce(flat),
    }
    return fastest(dist, parts, 100, 1)


def first_calls(dist, torch):
    """Median seconds of the first and of the second all_reduce of a shape: ranks compare what they call the first time."""
    times = []
    for size in range(1, 41):
        x = torch.zeros(size, 3, device="mps")
        times.append([seconds(lambda turn, x=x: dist.all_reduce(x))[0] for _ in range(2)])
    return [statistics.median(column) for column in zip(*times)]


def text_of_bytes(size):
    return f"{size // 2**20} MiB" if size >= 2**20 else f"{size // 2**10} KiB"


def measure(rank, store, markdown):
    import metalops  # noqa: F401
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    lines = ["| all_reduce of | CPU, MB/s | mps, MB/s | mps / CPU | process time, CPU / mps |"]
    lines.append("|---|---|---|---|---|")
    for size, cpu, mps, ratio in all_reduce(dist, torch):
        speeds = f"{cpu / 1e6:.0f} | {mps / 1e6:.0f} | {mps / cpu:.2f}"
        lines.append(f"| {text_of_bytes(size)} | {speeds} | {ratio:.2f} |")
    lines += ["", "| a training step on mps, 0.4 million parameters | ms | process time, ms |"]
    lines.append("|---|---|---|")
    for name, (wall, process) in ddp(dist, torch).items():
        lines.append(f"| {name} | {wall * 1e3:.2f} | {process * 1e3:.2f} |")
    first, second = (f"{x * 1e3:.2f}" for x in first_calls(dist, torch))
    lines += ["", "| all_reduce of a shape | ms |", "|---|---|"]
    lines += [f"| for the first time | {first} |", f"| again | {second} |"]
    if rank == 0:
        table = "\n".join(lines) + "\n"
        print(table)
        if markdown:
            Path(markdown).write_text(table, encoding="utf-8")
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--markdown", metavar="FILE", help="write the tables there too")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch.multiprocessing as processes

    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(measure, (str(Path(folder) / "store"), options.markdown), nprocs=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
