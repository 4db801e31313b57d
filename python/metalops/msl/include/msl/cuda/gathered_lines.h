// Products of matrices whose elements a kernel finds itself, as a convolution does: packs of 16
// bytes are copied from wherever the kernel says to the staging of matmul2d. Kernels see them where
// __METALOPS_GATHERED_LINES__ is defined, as neither Apple's compiler nor the software device does.
#pragma once

#include <msl/cuda/copy_engine.h>
#include <msl/cuda/staging.h>
#include <msl/cuda/warpgroup.h>

namespace msl::msl_impl {

// An operand of run_gathered(). Source has
//   elements, a pointer in device memory;
//   line(i) and inner(k): where line i of the tile and element k are: a struct with an `offset`, of
//     which the sum is that of their element, and with bits `outside`: the element is zero if both
//     have one of them; of lines and elements that do not exist, that holds for all others;
//   find_lines(count, thread, threads), if it has one, which all threads call before line();
//   in_map(), if it has one, where it is for the copy engine (gathered_maps.h);
//   prepare(k, count), after which inner() is called for elements [k, k + count), at most 64, until
//     prepare() has been called for 4 * count more.
// Its packs begin at multiples of a pack, and all of their elements exist or none does.
template <class T, class Source>
struct GatheredView {
  using Value = T;
  static constexpr bool is_plain = false;
  Source source;
};
template <class Where>
MSL_INLINE bool are_inside(const Where& line, const Where& inner) {
  return (line.outside & inner.outside) == 0;
}

// Copies packs of eight 16-bit elements.
template <class T, class Block, class Source, int Depth, bool IsDeep, int Threads, int Fragments>
struct BlockLoader<T, Block, GatheredView<T, Source>, Depth, IsDeep, Threads, Fragments> {
  using Where = decltype(metal::declval<Source>().line(0));
  static constexpr int all = Block::lines * Block::chunks;
  static constexpr int turns = (all + Threads - 1) / Threads;
  // Turns lie a whole number of lines apart: the packs of a thread have the same place in them.
  static_assert(Threads % Block::chunks == 0);
  const Source& source;
  const int thread;
  const abi::u64 from;
  Where lines[turns];

  MSL_INLINE BlockLoader(const GatheredView<T, Source>& view, int thread_in_scope)
      : source(view.source), thread(thread_in_scope), from(address_of(&view.source.elements[0])) {
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) lines[i] = source.line(row(i));
  }
  MSL_INLINE void prepare(int block) const { source.prepare(block * Depth, Depth); }
  MSL_INLINE void bring(abi::u32 to, int block) const {
    if constexpr (IsDeep) {
      const Where k = source.inner(block * Depth + thread % Block::chunks * 8);
      MSL_UNROLLED
      for (int i = 0; i < turns; ++i) copy(to, i, lines[i], k);
    } else {
      MSL_UNROLLED
      for (int i = 0; i < turns; ++i) {
        copy(to, i, lines[i], source.inner(block * Depth + line(i) % Depth));
      }
    }
  }

 private:
  MSL_INLINE int line(int turn) const { return (thread + turn * Threads) / Block::chunks; }
  MSL_INLINE int row(int turn) const {
    const int chunk = thread % Block::chunks;
    return row_of_line<Fragments>(IsDeep ? line(turn)
                                         : line(turn) / Depth * Block::width + chunk * 8);
  }
  MSL_INLINE void copy(abi::u32 to, int turn, const Where& line_at, const Where& k) const {
    if (all % Threads == 0 || thread + turn * Threads < all) {
      // Nothing is read where no byte is.
      copy_ahead(to + Block::place(line(turn), thread % Block::chunks),
                 from + long(line_at.offset + k.offset) * 2, are_inside(line_at, k) ? 16 : 0);
    }
  }
};

// Packs of four words, in the interface of StagedLines.
template <class Source, int Rows, int Depth, bool IsDeep, int Threads>
struct GatheredLines {
  using Where = decltype(metal::declval<Source>().line(0));
  static constexpr int pitch = Rows + 2, size = pitch * Depth;
  static constexpr int all = Rows * Depth / 4, turns = (all + Threads - 1) / Threads;
  static constexpr int across = (IsDeep ? Depth : Rows) / 4;  // packs of a line
  static_assert(Threads % across == 0);
  const Source& source;
  int thread;
  Where lines[turns];
  Eight packs[turns];

  MSL_INLINE GatheredLines(const Source& of, int thread_in_scope)
      : source(of), thread(thread_in_scope) {
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) lines[i] = source.line(row(i));
  }
  MSL_INLINE int line(int turn) const { return (thread + turn * Threads) / across; }
  MSL_INLINE int row(int turn) const { return IsDeep ? line(turn) : thread % across * 4; }
  MSL_INLINE int depth(int turn) const { return IsDeep ? thread % across * 4 : line(turn); }
  MSL_INLINE bool has(int turn) const {
    return all % Threads == 0 || thread + turn * Threads < all;
  }
  MSL_INLINE void fetch(int begin) {
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) {
      packs[i] = {};
      if (!has(i)) continue;
      const Where k = source.inner(begin + depth(i));
      if (are_inside(lines[i], k)) {
        packs[i] = reinterpret_cast<const Eight&>(source.elements[lines[i].offset + k.offset]);
      }
    }
  }
  MSL_INLINE void put(abi::u32* to) const {
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) {
      if (!has(i)) continue;
      MSL_UNROLLED
      for (int w = 0; w < 4; ++w) {
        const int r = row(i) + (IsDeep ? 0 : w), k = depth(i) + (IsDeep ? w : 0);
        to[k * pitch + r] = packs[i].words[w];
      }
    }
  }
};

// Likewise add_staged_products().
template <int M, int N, int Simdgroups, bool LeftDeep, bool RightDeep, class Left, class Right>
MSL_INLINE void add_gathered_products(const Left& left, const Right& right, int inner,
                                      float* sums) {
  using Part = Bands<M, N, Simdgroups>;
  using Tile = WarpTile<Part::rows, Part::columns>;
  constexpr int depth = 16, threads = Simdgroups * 32;
  static_assert(M % 16 == 0 && N % 16 == 0 && Part::rows % 16 == 0 && Part::columns % 16 == 0);
  using A = GatheredLines<Left, M, depth, LeftDeep, threads>;
  using B = GatheredLines<Right, N, depth, RightDeep, threads>;
  const uint lane = warp_lane(), thread = (index_in_threadgroup() & ~31u) | lane;
  const int row = Part::first_row(thread / 32) + Tile::row_of_lane(lane);
  const int column = Part::first_column(thread / 32) + Tile::column_of_lane(lane);
  const abi::u32 shared = launched_memory<2 * (A::size + B::size) * 4>();
  float* const memory = static_cast<float*>(::__cvta_shared_to_generic(shared));
  const auto put = [&](const A& a, const B& b, float* to) {
    a.put(reinterpret_cast<abi::u32*>(to));
    b.put(reinterpret_cast<abi::u32*>(to + A::size));
  };
  find_lines<M, N, threads>(GatheredView<float, Left>{left}, GatheredView<float, Right>{right});
  left.prepare(0, depth);
  right.prepare(0, depth);
  left.prepare(depth, depth);
  right.prepare(depth, depth);
  ::__syncthreads();  // an earlier operation may still be reading
  A a(left, int(thread));
  B b(right, int(thread));
  a.fetch(0);
  b.fetch(0);
  put(a, b, memory);
#pragma unroll 1
  for (int k = 0; k < inner; k += depth) {
    float* const here = memory + (k / depth & 1) * (A::size + B::size);
    float* const next = memory + ((k / depth + 1) & 1) * (A::size + B::size);
    ::__syncthreads();
    if (k + depth < inner) {
      a.fetch(k + depth);
      b.fetch(k + depth);
      left.prepare(k + 2 * depth, depth);
      right.prepare(k + 2 * depth, depth);
    }
#pragma unroll 2
    for (int i = 0; i < depth; ++i) {
      add_products<Tile>(LeftLine<float>{here + i * A::pitch + row},
                         RightLine<float>{here + A::size + i * B::pitch + column}, 0, sums);
    }
    if (k + depth < inner) put(a, b, next);
  }
}

// Eight adjacent elements.
template <class T>
struct alignas(16) EightOf {
  T of[8];
};

}  // namespace msl::msl_impl

namespace msl::mpp::tensor_ops {

// Adds the product of gathered lines to a cooperative tensor. Left::element: of both operands.
// meanwhile() is what each thread does once, best while it waits for elements.
template <class Operation, class Left, class Right, class Destination,
          class Meanwhile = msl_impl::Nothing>
MSL_INLINE void run_gathered(const Operation&, const Left& left, const Right& right, int inner,
                             Destination& destination, const Meanwhile& meanwhile = {}) {
  using namespace msl_impl;
  constexpr matmul2d_descriptor D = Operation::descriptor;
  constexpr int simdgroups = ScopeOf<typename Operation::scope>::simdgroups;
  constexpr bool left_deep = !D.transpose_left, right_deep = D.transpose_right;
  using T = typename Left::element;
  with_sums<D.m, D.n, simdgroups, true>(destination, [&](const auto&, uint, float* sums) {
    const GatheredView<T, Left> a{left};
    const GatheredView<T, Right> b{right};
    if constexpr (same<T, float>) {
      meanwhile();
      add_gathered_products<D.m, D.n, simdgroups, left_deep, right_deep>(left, right, inner, sums);
    } else if constexpr (is_for_warpgroups<D.m, D.n, simdgroups>()) {
      multiply_by_warpgroups<T, D.m, D.n, 0, simdgroups, left_deep, right_deep>(a, b, inner, sums,
                                                                                meanwhile);
    } else {
      meanwhile();
      multiply_staged<T, D.m, D.n, simdgroups, left_deep, right_deep>(a, b, inner, sums);
    }
  });
}

// Stores the sums of a cooperative tensor as elements of 16 bits: of(row, column, sum) is one, and
// put(row, column, eight) stores eight, which are adjacent in a row or, if ByColumns, in a column.
// Called by all threads of the operation.
template <bool ByColumns, class Operation, class Sums, class Of, class Put>
MSL_INLINE void store_in_eights(const Operation&, const Sums& sums, const Of& of, const Put& put) {
  using namespace msl_impl;
  constexpr matmul2d_descriptor D = Operation::descriptor;
  constexpr int threads = ScopeOf<typename Operation::scope>::simdgroups * 32;
  constexpr int lines = ByColumns ? D.n : D.m, along = ByColumns ? D.m : D.n, pitch = along + 8;
  using T = decltype(of(0, 0, 0.0f));
  static_assert(sizeof(T) == 2 && along % 8 == 0);
  T* const memory =
      static_cast<T*>(::__cvta_shared_to_generic(launched_memory<lines * pitch * 2>()));
  ::__syncthreads();  // an earlier operation may still be reading
  MSL_UNROLLED
  for (int i = 0; i < int(Sums::layout::capacity); i += 2) {
    const auto at = sums.get_multidimensional_index(ushort(i));
    const int row = at[1], column = at[0];
    const T first = of(row, column, sums[ushort(i)]);
    const T second = of(row, column + 1, sums[ushort(i + 1)]);
    if constexpr (ByColumns) {
      memory[column * pitch + row] = first;
      memory[(column + 1) * pitch + row] = second;
    } else {
      reinterpret_cast<PairOf<T>&>(memory[row * pitch + column]) = {first, second};
    }
  }
  ::__syncthreads();
  const int thread = int((index_in_threadgroup() & ~31u) | warp_lane());
#pragma unroll 4
  for (int run = thread; run < lines * along / 8; run += threads) {
    const int line = run / (along / 8), at = run % (along / 8) * 8;
    put(ByColumns ? at : line, ByColumns ? line : at,
        reinterpret_cast<const EightOf<T>&>(memory[line * pitch + at]));
  }
}

}  // namespace msl::mpp::tensor_ops
