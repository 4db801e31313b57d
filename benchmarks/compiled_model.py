"""Times a model of a few fused kernels under torch.compile against its eager execution, on the mps device.

    python benchmarks/compiled_model.py --json results.json

Ratios (eager time / compiled time) are what counts: they hold on any machine. The model is a stack of residual blocks,
x + swiglu(rms_norm(x) W1, rms_norm(x) W2) W3; its norm and its gate are metal_kernels, which torch.compile calls as
they are, while it fuses the pointwise operations between them.
"""

from __future__ import annotations

import argparse
import json

import metalops
import torch
from interfaces import microseconds
from torch import nn

BLOCKS = 4

rms_norm = metalops.metal_kernel(
    "rms_norm",
    ["x", "weight"],
    ["out"],
    """
    const uint row = threadgroup_position_in_grid.y, lane = thread_index_in_simdgroup;
    const int width = x_shape[x_ndim - 1];
    float sum = 0;
    for (int i = lane; i < width; i += 32) sum += x[row * width + i] * x[row * width + i];
    const float scale = metal::precise::rsqrt(simd_sum(sum) / width + 1e-5f);
    for (int i = lane; i < width; i += 32) out[row * width + i] = x[row * width + i] * scale * weight[i];
    """,
)
swiglu = metalops.metal_kernel(
    "swiglu",
    ["gate", "up"],
    ["out"],
    """
    const uint i = thread_position_in_grid.x;
    out[i] = gate[i] / (1.0f + metal::exp(-gate[i])) * up[i];
    """,
)


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.Parameter(torch.ones(width))
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (normal,) = rms_norm(
            inputs=[x, self.norm],
            output_shapes=[x.shape],
            output_dtypes=[x.dtype],
            grid=(32, x.shape[0], 1),
            threadgroup=(32, 1, 1),
        )
        gate, up = self.gate(normal), self.up(normal)
        (gated,) = swiglu(
            inputs=[gate, up],
            output_shapes=[gate.shape],
            output_dtypes=[gate.dtype],
            grid=(gate.numel(), 1, 1),
            threadgroup=(256, 1, 1),
        )
        # Pointwise operations of torch's, for the compiler to fuse.
        return x + torch.tanh(self.down(gated) * 0.5) * 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", help="where to write the results")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--width", type=int, default=64)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(arguments.width) for _ in range(BLOCKS)]).to("mps")
    compiled = torch.compile(model, fullgraph=True)
    results = []
    with torch.no_grad():
        for rows in arguments.rows:
            x = torch.randn(rows, arguments.width, device="mps")
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
            eager_us = microseconds(lambda x=x: model(x), rounds=10, calls=30)
            compiled_us = microseconds(lambda x=x: compiled(x), rounds=10, calls=30)
            results.append(
                {
                    "rows": rows,
                    "eager_us": eager_us,
                    "compiled_us": compiled_us,
                    "ratio": eager_us / compiled_us,
                }
            )
            print(
                "{rows:5} rows  eager {eager_us:9.1f} us  compiled {compiled_us:9.1f} us  {ratio:5.2f}x".format(
                    **results[-1]
                ),
                flush=True,
            )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
