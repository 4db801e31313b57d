"""Trains a classifier of scikit-learn's digits with DistributedDataParallel on mps, and goes on after a failure.

    torchrun --standalone --nproc-per-node 2 --max-restarts 1 tests/distributed/digits.py FOLDER

FOLDER keeps a checkpoint of every fifth step and the losses of all steps; --fail-at makes the last rank end itself at that step of
the first attempt.
"""

import argparse
import json
import os
import signal
from pathlib import Path

import metalops  # noqa: F401
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

BATCH = 64
EVERY = 5


def digits():
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32).div(16).to("mps"), torch.tensor(labels).to(
        "mps"
    )


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 10)).to(
        "mps"
    )


def batch(step, count):
    """The same images for a step on all ranks and in every attempt."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(step))[:BATCH].to("mps")


def train(steps, folder=None, fail_at=None):
    """Losses of the whole batch, by step. All ranks call it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    images, labels = digits()
    model = make_model()
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, start = {}, 0
    saved = sorted(Path(folder).glob("step-*/.metadata")) if folder else []
    if saved:
        path = saved[-1].parent
        parameters, state = get_state_dict(model, optimizer)
        whole = {"model": parameters, "optimizer": state}
        checkpoint.load(whole, checkpoint_id=path)
        set_state_dict(
            model, optimizer, model_state_dict=whole["model"], optim_state_dict=whole["optimizer"]
        )
        start = int(path.name.removeprefix("step-"))
    for step in range(start, steps):
        if step == fail_at and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        mine = batch(step, len(images))[rank::size]
        optimizer.zero_grad()
        loss = F.cross_entropy(wrapped(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)
        losses[step] = loss.item()
        if folder and (step + 1) % EVERY == 0:
            parameters, state = get_state_dict(model, optimizer)
            whole = {"model": parameters, "optimizer": state}
            checkpoint.save(whole, checkpoint_id=Path(folder) / f"step-{step + 1:04}")
    return losses, model


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--fail-at", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    losses, _ = train(options.steps, options.folder, options.fail_at if first else None)
    if dist.get_rank() == 0:
        path = Path(options.folder) / f"losses-{os.environ['TORCHELASTIC_RESTART_COUNT']}.json"
        path.write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
