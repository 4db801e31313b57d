// matmul2d (tile GEMM) and reductions of its destinations on the host: the lanes of a simdgroup
// pass their operands, and one of them computes the simdgroup's part of the tile.
#pragma once

#include <msl/host/tile_product.h>
#include <msl/tensor_ops/layout.h>

namespace msl::msl_support {
template <class T>
class Lanes;
template <class... A>
struct Pack;
}  // namespace msl::msl_support

namespace msl::msl_impl {

// Returns the site that the running thread entered last: calls of member functions take no site of
// their own.
MSL_INLINE abi::Site site_of_call() {
  const abi::Path* const path = msl_support::current_path();
  return {path->depth == 0 ? 0 : path->steps[path->depth - 2], 0};
}

inline void fail_for_scope() {
  msl_runtime->fail(
      "an operation with execution_simdgroups<N> must be run by a threadgroup of N simdgroups");
}
// Checks that an operation of several simdgroups is run by the whole threadgroup.
template <int Simdgroups>
MSL_INLINE void check_scope(const abi::Thread& thread) {
  const abi::Group& group = *thread.group;
  const u32 threads = group.size[0] * group.size[1] * group.size[2];
  if (__builtin_expect(threads != Simdgroups * 32, 0)) fail_for_scope();
}

// Calls f(lane, slot, row, column) for all elements of a tile that is distributed over a simdgroup.
template <class Tile, class F>
MSL_INLINE void for_each_slot(const F& f) {
  for (uint lane = 0; lane < 32; ++lane) {
    for (uint slot = 0; slot < uint(Tile::capacity); ++slot) {
      const TilePlace place = Tile::place(lane, slot);
      if (place.exists) f(lane, slot, place.row, place.column);
    }
  }
}
// Number of consecutive slots that hold adjacent elements of a destination's row.
#if MSL_COOPERATIVE_LAYOUT == 10
constexpr uint kRunOfSlots = 4;
#elif MSL_COOPERATIVE_LAYOUT == 8
constexpr uint kRunOfSlots = 2;
#else
constexpr uint kRunOfSlots = 1;
#endif

// to[i] = from[i] for i < count. The two must not overlap.
template <class To, class From>
MSL_INLINE void copy_run(To* __restrict to, const From* __restrict from, int count) {
  for (int i = 0; i < count; ++i) to[i] = To(from[i]);
}

// Calls f(elements, index, count) for runs of elements of a cooperative destination in the block at
// (i, j) of a part; index is that in the block.
template <class Tile, class Destination, class Part, class F>
MSL_INLINE void visit_slots(const Destination& destination, const Part& part, int i, int down,
                            int j, int across, const F& f) {
  if constexpr (Tile::is_of_thread) {
    for (int r = 0; r < down; ++r) {
      f(&destination(0)[ushort((i + r) * Tile::columns + j)], r * kBlockColumns, across);
    }
  } else {
    using InSimdgroup = typename Tile::Tile;
    for (uint lane = 0; lane < 32; ++lane) {
      auto& to = destination(lane);
      for (uint slot = 0; slot < uint(InSimdgroup::capacity); slot += kRunOfSlots) {
        const TilePlace place = InSimdgroup::place(lane, slot);
        const int r = place.row + part.row - i, c = place.column + part.column - j;
        if (!place.exists || uint(r) >= uint(down) || uint(c) >= uint(across)) continue;
        f(&to[ushort(slot)], r * kBlockColumns + c, int(kRunOfSlots));
      }
    }
  }
}

// A matrix gathered from the lanes of a simdgroup.
template <class E, int Rows, int Columns>
struct GatheredMatrix {
  E elements[Rows * Columns];
  MSL_INLINE MatrixView<E> view() {
    return {Place<E>(elements), Columns, 1, Rows, Columns, {}, true};
  }
};

template <matmul2d_descriptor D, class Scope, class L, class R, class Dst>
struct MatrixProduct {
  static constexpr int simdgroups = ScopeOf<Scope>::simdgroups;
  using E = typename Dst::value_type;
  using Sum = metal::conditional_t<metal::is_same_v<E, int>, int, float>;
  static constexpr bool accumulates =
      D.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate;
  // If everything is in memory, no thread needs other threads' operands, and programs cannot
  // observe which thread computes what: the first one computes all of it, and packs operands once.
  // Instrumented code synchronises, so that the checks see which threads call.
  static constexpr bool is_of_one_thread =
      simdgroups == 0 || (is_tensor<L> && is_tensor<R> && is_tensor<Dst> && !MSL_INSTRUMENTED);
  // Operands of one lane.
  struct Operands {
    L* left;
    R* right;
    Dst* destination;
    uint simdgroup;
  };

  static void run(const void* const* in, void* const*, u32 mask) {
    const u32 first = u32(__builtin_ctz(mask));
    const Operands* all[32];
    for (u32 lane = 0; lane < 32; ++lane) {
      all[lane] = &operand_of<Operands>(in, (mask >> lane) & 1u ? lane : first);
    }
    with_left(all, [&](const auto& left) {
      with_right(all, [&](const auto& right) {
        compute<false>(left, right, *all[0],
                       [&](u32 lane) -> Dst& { return *all[lane]->destination; });
      });
    });
  }

  // Calls f(view) with the left or the right operand.
  template <class F>
  static MSL_INLINE void with_left(const Operands* const* all, const F& f) {
    if constexpr (is_tensor<L>) {
      f(view_of(*all[0]->left, D.transpose_left));
    } else {
      GatheredMatrix<typename L::element_type, D.m, D.k> gathered;
      for_each_slot<typename L::layout::Tile>([&](uint lane, uint slot, int row, int column) {
        gathered.elements[row * D.k + column] = (*all[lane]->left)[ushort(slot)];
      });
      f(gathered.view());
    }
  }
  template <class F>
  static MSL_INLINE void with_right(const Operands* const* all, const F& f) {
    if constexpr (is_tensor<R>) {
      f(view_of(*all[0]->right, D.transpose_right));
    } else {
      GatheredMatrix<typename R::element_type, D.k, D.n> gathered;
      for_each_slot<typename R::layout::Tile>([&](uint lane, uint slot, int row, int column) {
        gathered.elements[row * D.n + column] = (*all[lane]->right)[ushort(slot)];
      });
      f(gathered.view());
    }
  }

  // IsWhole: true for the whole tile, false for the part of operands.simdgroup. destination(i): the
  // destination of a lane, or of a thread of the scope if IsWhole.
  template <bool IsWhole, class Left, class Right, class Destination>
  static MSL_INLINE void compute(const Left& left, const Right& right, const Operands& operands,
                                 const Destination& destination) {
    const TilePart<D.m, D.n, IsWhole ? 0 : simdgroups> part(operands.simdgroup);
    if (part.is_empty()) return;
    const auto visit = [&](int i, int down, int j, int across, const auto& f) {
      if constexpr (is_tensor<Dst>) {
        const auto view = view_of(destination(0), false);
        const int rows = int(clamped(view.rows - i, down));
        const int columns = int(clamped(view.columns - j, across));
        for (int r = 0; r < rows; ++r) {
          f(&view.first.at((i + r) * view.row_stride + j), r * kBlockColumns, columns);
        }
      } else if constexpr (IsWhole && simdgroups > 1) {
        for (uint s = 0; s < uint(simdgroups); ++s) {
          const TilePart<D.m, D.n, simdgroups> of(s);
          if (of.row >= i + down || of.row + of.rows <= i) continue;
          if (of.column >= j + across || of.column + of.columns <= j) continue;
          visit_slots<typename Dst::layout::Tile>(
              [&](uint lane) -> Dst& { return destination(s * 32 + lane); }, of, i, down, j, across,
              f);
        }
      } else {
        visit_slots<typename Dst::layout::Tile>(destination, part, i, down, j, across, f);
      }
    };
    multiply<Sum>(
        MatrixBlocks<Left, Right>{left, right, inner_size<D>(*operands.left, *operands.right)},
        part.row, part.rows, part.column, part.columns,
        [&](Sum* sums, int i, int down, int j, int across) {
          if constexpr (accumulates) {
            visit(i, down, j, across,
                  [&](const E* from, int at, int count) { copy_run(sums + at, from, count); });
          }
        },
        [&](const Sum* sums, int i, int down, int j, int across) {
          visit(i, down, j, across,
                [&](E* to, int at, int count) { copy_run(to, sums + at, count); });
        });
  }
  // Computes the whole tile of operands in memory. Not inlined: engines share it.
  struct OneDestination {
    Dst* to;
    MSL_INLINE Dst& operator()(u32) const { return *to; }
  };
  template <class Destination>
  static __attribute__((noinline)) void compute_whole(const Operands& operands,
                                                      const Destination& destination) {
    compute<true>(view_of(*operands.left, D.transpose_left),
                  view_of(*operands.right, D.transpose_right), operands, destination);
  }
};

// Returns the index of the running simdgroup in the scope.
template <class Scope>
MSL_INLINE uint simdgroup_of_scope() {
  if constexpr (ScopeOf<Scope>::simdgroups > 1) {
    const abi::Thread& thread = *msl_runtime->thread();
    check_scope<ScopeOf<Scope>::simdgroups>(thread);
    return thread.index / 32;
  } else {
    return 0;
  }
}

// Checks that an operand has the extents that the operation requires.
template <class T>
MSL_INLINE void check_operand(const T& operand, const char* name, int columns, int rows,
                              bool is_transposed, int inner) {
  if constexpr (is_tensor<T>) {
    check_stride(operand, name);
    if (columns >= 0) check_extent(operand, name, is_transposed ? 1 : 0, columns, inner == 0);
    if (rows >= 0) check_extent(operand, name, is_transposed ? 0 : 1, rows, inner == 1);
  }
}

template <matmul2d_descriptor D, class Scope, class L, class R, class Dst>
MSL_INLINE void multiply_tiles(L& left, R& right, Dst& destination) {
  using Operation = MatrixProduct<D, Scope, L, R, Dst>;
  constexpr int k = has_dynamic_k(D) ? -1 : D.k;
  check_operand(left, "left operand", k, D.m, D.transpose_left, 0);
  check_operand(right, "right operand", D.n, k, D.transpose_right, 1);
  check_operand(destination, "destination", D.n, D.m, false, -1);
  check_scope_operation<Operation>(Operation::simdgroups, "run", site_of_call().id);
  typename Operation::Operands operands{&left, &right, &destination, simdgroup_of_scope<Scope>()};
  if constexpr (!Operation::is_of_one_thread) {
    together<Operation, char>(site_of_call(), operands);
  } else if (thread_in_scope(Operation::simdgroups) == 0) {
    Operation::compute_whole(operands, typename Operation::OneDestination{&destination});
  }
}

// ---- all threads of a group ---------------------------------------------------------------------

// A cooperative tensor of type T for each thread of a mask; finish(tensor, thread) completes it.
template <class T, class Threads, class M, class F>
MSL_INLINE auto create_in_group(const Threads& threads, const M& mask, const F& finish) {
  constexpr int simdgroups = T::layout::simdgroups;
  msl_support::Lanes<T> created(threads);
  for (u32 s = 0; s < threads.simdgroups(); ++s) {
    for_lanes(mask.word(threads, s), [&](u32 lane) {
      const u32 thread = s * 32 + lane;
      T& tensor = created[thread];
      tensor = T::msl_of_thread(simdgroups == 0 ? 0 : simdgroups == 1 ? lane : thread);
      finish(tensor, thread);
    });
  }
  return created;
}

// Runs Operation::run for each simdgroup with threads of the mask. operands(thread, simdgroup):
// those of a thread.
template <class Operation, class Threads, class M, class F>
MSL_INLINE void run_for_simdgroups(const Threads& threads, const M& mask, const F& operands) {
  for (u32 s = 0; s < threads.simdgroups(); ++s) {
    const u32 lanes = mask.word(threads, s);
    if (lanes == 0) continue;
    typename Operation::Operands all[32];
    const void* in[32];
    for_lanes(lanes, [&](u32 lane) {
      all[lane] = operands(s * 32 + lane, s);
      in[lane] = &all[lane];
    });
    Operation::run(in, nullptr, lanes);
  }
}

// multiply_tiles() of all threads of a mask. If they are the threads of the scope, which have it in
// common, one computes the whole tile and packs operands once.
template <matmul2d_descriptor D, class Scope, class L, class R, class Dst, class Threads, class M,
          class P>
MSL_INLINE void multiply_tiles_in_group(const Threads& threads, const M& mask, const P& pack) {
  using Operation = MatrixProduct<D, Scope, L, R, Dst>;
  constexpr u32 simdgroups = Operation::simdgroups;
  const auto lefts = pack.template get<0>();
  const auto rights = pack.template get<1>();
  const auto destinations = pack.template get<2>();
  const auto operands = [&](u32 thread, u32 simdgroup) {
    return typename Operation::Operands{&lefts[thread], &rights[thread], &destinations[thread],
                                        simdgroups > 1 ? simdgroup : 0};
  };
  if constexpr (simdgroups > 1) {
    if (__builtin_expect(threads.count != simdgroups * 32, 0)) fail_for_scope();
    bool is_whole = true;
    for (u32 s = 0; s < simdgroups; ++s) is_whole &= mask.word(threads, s) == ~0u;
    if constexpr (!Operation::is_of_one_thread) {
      if (is_whole) {
        Operation::compute_whole(operands(0, 0),
                                 [&](u32 thread) -> Dst& { return destinations[thread]; });
        return;
      }
    }
  }
  if constexpr (Operation::is_of_one_thread) {
    for (u32 s = 0; s < threads.simdgroups(); ++s) {
      for_lanes(mask.word(threads, s) & (simdgroups == 0 ? ~0u : u32(simdgroups == 1 || s == 0)),
                [&](u32 lane) {
                  const u32 thread = s * 32 + lane;
                  Operation::compute_whole(operands(thread, 0), typename Operation::OneDestination{
                                                                    &destinations[thread]});
                });
    }
  } else {
    run_for_simdgroups<Operation>(threads, mask, operands);
  }
}

// ---- reductions ---------------------------------------------------------------------------------

template <int Dimension, class Source, class Destination>
struct TileReduction {
  using E = typename Source::element_type;
  struct Operands {
    const Source* source;
    Destination* destination;
    mpp::tensor_ops::reduction_operation operation;
    E identity;
  };
  static void run(const void* const* in, void* const*, u32 mask) {
    using mpp::tensor_ops::reduction_operation;
    using From = typename Source::layout;
    using To = typename Destination::layout;
    const u32 first = u32(__builtin_ctz(mask));
    const Operands& mine = operand_of<Operands>(in, first);
    constexpr int rows = From::descriptor.m, columns = From::descriptor.n;
    E tile[rows * columns];
    for_each_slot<typename From::Tile>([&](uint lane, uint slot, int row, int column) {
      const u32 from = (mask >> lane) & 1u ? lane : first;
      tile[row * columns + column] = (*operand_of<Operands>(in, from).source)[ushort(slot)];
    });
    constexpr int length = Dimension == 0 ? rows : columns;
    constexpr int other = Dimension == 0 ? columns : rows;
    using Wide = metal::conditional_t<metal::is_same_v<E, int>, int, float>;
    E results[length];
    for (int i = 0; i < length; ++i) {
      Wide result = Wide(mine.identity);
      for (int j = 0; j < other; ++j) {
        const Wide value = Wide(Dimension == 0 ? tile[i * columns + j] : tile[j * columns + i]);
        result = mine.operation == reduction_operation::sum ? msl_impl::Sum::combine(result, value)
                 : mine.operation == reduction_operation::max ? metal::max(result, value)
                                                              : metal::min(result, value);
      }
      results[i] = E(result);
    }
    for_lanes(mask, [&](u32 lane) {
      Destination& to = *operand_of<Operands>(in, lane).destination;
      for (int slot = 0; slot < To::capacity; ++slot) {
        const Coordinates c = To::coordinates(lane, uint(slot));
        if (c.exists) to[ushort(slot)] = results[c.at[0]];
      }
    });
  }
};

template <int Dimension, class Source, class Destination, class Operation, class E>
MSL_INLINE void reduce_tile(Source& source, Destination& destination, Operation operation,
                            E identity) {
  using Reduction = TileReduction<Dimension, Source, Destination>;
  check_scope_operation<Reduction>(1, Dimension == 0 ? "reduce_rows" : "reduce_columns",
                                   site_of_call().id);
  together<Reduction, char>(
      site_of_call(), typename Reduction::Operands{&source, &destination, operation, identity});
}

// reduce_tile() of all threads of a mask.
template <int Dimension, class Threads, class M, class P, class Source, class Destination,
          class... Others>
MSL_INLINE void reduce_tiles_in_group(const Threads& threads, const M& mask, const P& pack, Source&,
                                      Destination&, const Others&...) {
  using Reduction = TileReduction<Dimension, Source, Destination>;
  using E = typename Source::element_type;
  using mpp::tensor_ops::reduction_operation;
  const auto sources = pack.template get<0>();
  const auto destinations = pack.template get<1>();
  run_for_simdgroups<Reduction>(threads, mask, [&](u32 thread, u32) {
    typename Reduction::Operands operands{&sources[thread], &destinations[thread],
                                          reduction_operation::sum, E(0)};
    if constexpr (sizeof...(Others) > 0) operands.operation = pack.template get<2>()[thread];
    if constexpr (sizeof...(Others) > 1) operands.identity = E(pack.template get<3>()[thread]);
    return operands;
  });
}

}  // namespace msl::msl_impl
