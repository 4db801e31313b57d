// convolution2d on the host: implicit GEMM of pixels and filters. K runs over the positions of the
// filter, and over the channels within each.
#pragma once

#include <msl/host/matmul2d.h>

namespace msl::msl_impl {

template <convolution2d_descriptor D, class A, class W>
struct ConvolutionBlocks {
  static constexpr bool are_bytes = false;
  template <class>
  static constexpr u32 amx_instruction = 0;
  A activations;
  W weights;
  int2 offsets;
  int channels;

  MSL_INLINE long blocks_of_place() const { return (channels + kBlockInner - 1) / kBlockInner; }
  MSL_INLINE long count() const { return blocks_of_place() * D.kernel[0] * D.kernel[1]; }

  BlockOperands bring(long block, float* a, int row, int rows, float* b, int column,
                      int columns) const {
    const long place = block / blocks_of_place();
    const int channel = int(block % blocks_of_place()) * kBlockInner;
    const int kx = int(place % D.kernel[0]), ky = int(place / D.kernel[0]);
    const int depth = int(clamped(channels - channel, kBlockInner));
    const int width = activations.get_extent(1), height = activations.get_extent(2);
    for (int i = 0; i < filled_rows(rows); ++i) {
      const int pixel = row + i;
      const int n = pixel / (D.destination[1] * D.destination[2]);
      const int x = source_of<D, 0>(pixel % D.destination[1], kx, offsets.x);
      const int y = source_of<D, 1>(pixel / D.destination[1] % D.destination[2], ky, offsets.y);
      float* const line = a + i * kBlockInner;
      const bool exists =
          i < rows && n < activations.get_extent(3) && x >= 0 && x < width && y >= 0 && y < height;
      if (!exists) {
        for (int c = 0; c < depth; ++c) line[c] = 0.0f;
        continue;
      }
      const auto* const from = &activations.msl_place().at(
          long(x) * activations.get_stride(1) + long(y) * activations.get_stride(2) +
          long(n) * activations.get_stride(3) + channel);
      for (int c = 0; c < depth; ++c) line[c] = float(from[c]);
    }
    const int across = int(clamped(weights.get_extent(0) - column, columns));
    for (int c = 0; c < depth; ++c) {
      float* const line = b + c * kBlockColumns;
      const bool exists = channel + c < weights.get_extent(1);
      const auto* const from = &weights.msl_place().at(long(channel + c) * weights.get_stride(1) +
                                                       long(kx) * weights.get_stride(2) +
                                                       long(ky) * weights.get_stride(3) + column);
      for (int o = 0; o < filled_columns(columns); ++o)
        line[o] = exists && o < across ? float(from[o]) : 0.0f;
    }
    return {a, kBlockInner, 1, b, kBlockColumns, depth};
  }
};

template <convolution2d_descriptor D, class Scope, class A, class W, class Dst>
struct Convolution {
  static constexpr int simdgroups = ScopeOf<Scope>::simdgroups;
  using E = typename Dst::value_type;
  static constexpr bool accumulates =
      D.convolution2d_mode == convolution2d_descriptor::mode::multiply_accumulate;
  struct Operands {
    const A* activations;
    const W* weights;
    Dst* destination;
    int2 offsets;
    uint simdgroup;
  };

  static void run(const void* const* in, void* const*, u32 mask) {
    const u32 first = u32(__builtin_ctz(mask));
    compute(operand_of<Operands>(in, first), [&](u32 lane) -> Dst& {
      return *operand_of<Operands>(in, (mask >> lane) & 1u ? lane : first).destination;
    });
  }

  template <class Destination>
  static MSL_INLINE void compute(const Operands& operands, const Destination& destination) {
    const int channels = D.source[0] > 0 ? D.source[0] : operands.activations->get_extent(0);
    const ConvolutionBlocks<D, A, W> blocks{*operands.activations, *operands.weights,
                                            operands.offsets, channels};
    const auto part = TilePart<pixels_of(D), D.destination[0], simdgroups>(operands.simdgroup);
    if (part.is_empty()) return;
    const auto visit = [&](int i, int down, int j, int across, const auto& f) {
      if constexpr (is_tensor<Dst>) {
        const Dst& to = destination(0);
        for (int r = 0; r < down; ++r) {
          const int pixel = i + r;
          const int x = pixel % D.destination[1], y = pixel / D.destination[1] % D.destination[2];
          const int n = pixel / (D.destination[1] * D.destination[2]);
          if (x >= to.get_extent(1) || y >= to.get_extent(2) || n >= to.get_extent(3)) continue;
          const long at =
              long(x) * to.get_stride(1) + long(y) * to.get_stride(2) + long(n) * to.get_stride(3);
          f(&to.msl_place().at(at + j), r * kBlockColumns,
            int(clamped(to.get_extent(0) - j, across)));
        }
      } else {
        visit_slots<typename Dst::layout::Tile>(destination, part, i, down, j, across, f);
      }
    };
    multiply<float>(
        blocks, part.row, part.rows, part.column, part.columns,
        [&](float* sums, int i, int down, int j, int across) {
          if constexpr (accumulates) {
            visit(i, down, j, across,
                  [&](const E* from, int at, int count) { copy_run(sums + at, from, count); });
          }
        },
        [&](const float* sums, int i, int down, int j, int across) {
          visit(i, down, j, across,
                [&](E* to, int at, int count) { copy_run(to, sums + at, count); });
        });
  }
};

template <convolution2d_descriptor D, class Scope, class A, class W, class Dst>
MSL_INLINE void convolve_tile(A& activations, W& weights, Dst& destination, int2 offsets) {
  using Operation = Convolution<D, Scope, metal::remove_cv_t<A>, metal::remove_cv_t<W>, Dst>;
  check_stride(activations, "activations");
  check_stride(weights, "weights");
  check_extent(activations, "activations", 0, D.source[0], true);
  if constexpr (is_tensor<Dst>) check_stride(destination, "destination");
  check_scope_operation<Operation>(Operation::simdgroups, "run", site_of_call().id);
  typename Operation::Operands operands{&activations, &weights, &destination, offsets, 0};
  if constexpr (ScopeOf<Scope>::simdgroups == 0) {
    Operation::compute(operands, [&](u32) -> Dst& { return destination; });
  } else {
    operands.simdgroup = simdgroup_of_scope<Scope>();
    together<Operation, char>(site_of_call(), operands);
  }
}

}  // namespace msl::msl_impl
