"""Kernels that compute a matrix product with matmul2d, a tile for each threadgroup, and the same product in float64."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from metalops import msl
from metalops.msl.source import languages

from .elements import ELEMENTS

HEADER = """
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
"""


def build(source: str, language: str = "4.0", layout: str = "apple10", optimize: int = 1):
    """The kernel library of a source, of which HEADER comes first, for all engines."""
    from metalops import _host

    number = languages.number_of(language)
    options = msl.Options(
        optimize=optimize, language=number, cooperative_layout=layout, engines="all"
    )
    return _host.Library(str(msl.compile_source(HEADER + source, options=options)))


def fill(source: str, **values) -> str:
    """The source with values in the place of words, which are the names in capital letters."""
    words = "|".join(name.upper() for name in values)
    return re.sub(rf"\b({words})\b", lambda m: str(values[m[0].lower()]), source)


@dataclass(frozen=True)
class Product:
    """The product of a matrix of `left` and one of `right`, in tiles of m x n, each in steps of k (0: at once).

    simdgroups: of the scope; 0 for one thread. cooperative: whether the destination is a cooperative tensor, which is
    then stored; else a tensor. accumulates: whether the result is added to what is there. inputs: which operands are loaded
    into cooperative tensors, "left", "right", both or none. relaxed: whether the precision may be.
    """

    left: str = "float"
    right: str = "float"
    result: str = "float"
    m: int = 16
    n: int = 32
    k: int = 0
    transpose_left: bool = False
    transpose_right: bool = False
    simdgroups: int = 1
    cooperative: bool = True
    accumulates: bool = False
    inputs: tuple[str, ...] = ()
    relaxed: bool = False

    @property
    def name(self) -> str:
        parts = [self.left, self.right, self.result, self.m, self.n, self.k, self.simdgroups]
        parts += [int(f) for f in (self.transpose_left, self.transpose_right)]
        parts += [int(f) for f in (self.cooperative, self.accumulates)]
        return "_".join(map(str, ["product", *parts, *self.inputs, *["relaxed"] * self.relaxed]))

    @property
    def threads(self) -> int:
        return max(32 * self.simdgroups, 1)

    def text(self) -> str:
        left, right, result = ELEMENTS[self.left], ELEMENTS[self.right], ELEMENTS[self.result]
        scope = (
            f"execution_simdgroups<{self.simdgroups}>" if self.simdgroups else "execution_thread"
        )
        flags = [str(f).lower() for f in (self.transpose_left, self.transpose_right, self.relaxed)]
        a_shape = "M, K" if self.transpose_left else "K, M"
        b_shape = "K, N" if self.transpose_right else "N, K"
        is_added = self.accumulates or self.k
        mode = "multiply_accumulate" if is_added else "multiply"
        inner = self.k or "static_cast<int>(dynamic_extent)"
        at_a = "row, at" if self.transpose_left else "at, row"
        at_b = "at, column" if self.transpose_right else "column, at"
        elements = f"{left.metal}, {right.metal}, {result.metal}"
        loads = {
            side: f"""
  auto {name} = op.get_{side}_input_cooperative_tensor<{elements}>();
  {name}.load(tensor_{name});"""
            if side in self.inputs
            else f"\n  auto& {name} = tensor_{name};"
            for side, name in (("left", "a"), ("right", "b"))
        }
        operands = f"""
  auto tensor_a = ta.slice({at_a});
  auto tensor_b = tb.slice({at_b});{loads["left"]}{loads["right"]}"""
        if self.cooperative:
            begin = f"""
  auto sum = op.get_destination_cooperative_tensor<remove_reference_t<decltype(a)>, remove_reference_t<decltype(b)>,
                                                   {result.metal}>();
  {"sum.load(c);" if self.accumulates else "for (auto it = sum.begin(); it != sum.end(); ++it) *it = 0;"}"""
            end = "sum.store(c);"
        else:
            begin, end = "auto& sum = c;", ""
        return f"""
kernel void {self.name}(device {left.pointer}* A, device {right.pointer}* B, device {result.pointer}* C,
                        constant int& M, constant int& N, constant int& K,
                        uint2 tile [[threadgroup_position_in_grid]]) {{
  tensor<device {left.metal}, dextents<int, 2>, tensor_inline> ta(A, dextents<int, 2>({a_shape}));
  tensor<device {right.metal}, dextents<int, 2>, tensor_inline> tb(B, dextents<int, 2>({b_shape}));
  tensor<device {result.metal}, dextents<int, 2>, tensor_inline> tc(C, dextents<int, 2>(N, M));
  constexpr auto d = matmul2d_descriptor({self.m}, {self.n}, {inner}, {flags[0]}, {flags[1]}, {flags[2]},
                                         matmul2d_descriptor::mode::{mode});
  matmul2d<d, {scope}> op;
  const int row = tile.y * {self.m}, column = tile.x * {self.n};
  auto c = tc.slice(column, row);
  int at = 0;
  {operands}
  {begin}
  op.run(a, b, sum);
  for (at = {self.k or "K"}; at < K; at += {self.k or "K"}) {{
    {operands}
    op.run(a, b, sum);
  }}
  {end}
}}
"""

    def check(self, library, rows: int, columns: int, inner: int, seed: int = 0) -> None:
        """Runs the kernel on random matrices and compares its result with float64."""
        left, right, result = ELEMENTS[self.left], ELEMENTS[self.right], ELEMENTS[self.result]
        generator = torch.Generator().manual_seed(seed)
        a = left.codes(generator, rows, inner)
        b = right.codes(generator, inner, columns)
        c = result.codes(generator, rows, columns)
        if self.relaxed:
            c = c.round()
        is_added = self.accumulates or (self.k and not self.cooperative)
        before = result.values(c) if is_added else torch.zeros(())
        buffers = [
            left.pack(a.t() if self.transpose_left else a),
            right.pack(b.t() if self.transpose_right else b),
            result.pack(c.clone()),
            *(torch.tensor([size], dtype=torch.int32) for size in (rows, columns, inner)),
        ]
        groups = (-(-columns // self.n) * self.threads, -(-rows // self.m), 1)
        library.launch(self.name, buffers, groups, (self.threads, 1, 1))
        found = result.values(buffers[2])
        expected = left.values(a) @ right.values(b) + before
        if self.result == "int":  # modulo 2^32
            assert torch.equal(found, (expected + 2**31) % 2**32 - 2**31)
            return
        # Sums of float32, then one rounding (after each step, where the destination is the tensor).
        size = left.values(a).abs() @ right.values(b).abs() + before.abs()
        steps = 1 if not self.k else -(-inner // self.k)
        error = torch.finfo(buffers[2].dtype).eps / 2 * size * steps + 1e-6 * size + 1e-30
        if self.relaxed and self.left == "float":  # GPUs drop 13 bits of its elements (TF32)
            error += 2.0**-9 * size
        assert ((found - expected).abs() <= error).all(), (self, (found - expected).abs().max())
