// Lines of matrices, such as keys and values, that are staged in shared memory ahead of their use,
// and products with them by warpgroups (wgmma), of compute capability 9.0. Kernels see them where
// __METALOPS_STAGED_LINES__ is defined, as neither Apple's compiler nor the software device does.
#pragma once

#include <msl/cuda/copy_engine.h>
#include <msl/cuda/staging.h>
#include <msl/cuda/warpgroup.h>
#include <msl/tensor_ops/matrix_view.h>

namespace msl::mpp::tensor_ops {

// Returns true if this GPU multiplies by staged lines.
inline constexpr bool has_staged_lines = MSL_WARPGROUPS && MSL_COOPERATIVE_LAYOUT == 16;

// Lines of Features 16-bit elements in shared memory, a right operand of matmul2d. Its operation
// has the scope of one simdgroup and 16 rows; all simdgroups of a threadgroup, a multiple of four,
// run it together with the same lines: each four of them multiply 64 rows. The left operand is a
// cooperative tensor, or lines, 16 for each simdgroup: their memory is that of the four
// simdgroups'. The columns of the lines are in panels, each laid out as the tensor cores read it.
template <class T, int Lines, int Features>
struct staged_lines {
  using value_type = T;
  static constexpr int width = msl_impl::widest(Features), chunks = Features / 8;
  static constexpr int bytes = Lines * Features * 2;
  using Panel = msl_impl::StagedBlock<T, Lines, width, true>;
  static_assert(Features % 32 == 0 && Lines % 16 == 0 && sizeof(T) == 2);
  abi::u32 memory;

  static MSL_INLINE constexpr abi::u32 place(int line, int chunk) {
    constexpr int across = width / 8;
    return abi::u32(chunk / across * Panel::bytes) + Panel::place(line, chunk % across);
  }
};

}  // namespace msl::mpp::tensor_ops

namespace msl::msl_impl {

using mpp::tensor_ops::staged_lines;

template <class T, int Lines, int Features>
inline constexpr bool is_staged<staged_lines<T, Lines, Features>> = true;
template <class T, int Lines, int Features>
struct element_of_operand<staged_lines<T, Lines, Features>> {
  typedef T type;
};

// Copies tiles of lines. Each of Threads threads copies the same chunks of 16 bytes of every tile.
template <class T, int Lines, int Features, int Threads>
struct LineLoader {
  using Tile = staged_lines<T, Lines, Features>;
  static constexpr int all = Lines * Tile::chunks, turns = (all + Threads - 1) / Threads;
  // Turns lie a whole number of lines apart, a multiple of eight: their places are, too.
  static constexpr bool is_regular = Threads % Tile::chunks == 0 && Threads / Tile::chunks % 8 == 0;
  const T* from;
  long stride;
  int features;
  int thread;
  bool is_aligned;

  MSL_INLINE int line(int turn) const { return (thread + turn * Threads) / Tile::chunks; }
  MSL_INLINE int chunk(int turn) const { return (thread + turn * Threads) % Tile::chunks; }
  MSL_INLINE bool has(int turn) const {
    return all % Threads == 0 || thread + turn * Threads < all;
  }
  MSL_INLINE abi::u32 place(int turn) const {
    if constexpr (is_regular) {
      constexpr int lines = Threads / Tile::chunks;
      return Tile::place(line(0), chunk(0)) + abi::u32(turn * lines * Tile::width * 2);
    } else {
      return Tile::place(line(turn), chunk(turn));
    }
  }
  // Starts to copy lines from `first` on, of which `lines` exist. All others, and features that do
  // not exist, become zeros.
  MSL_INLINE void bring(abi::u32 to, int first, int lines) const {
    if (!is_aligned) {
      copy_elements(to, from + first * stride, lines);
      return;
    }
    const abi::u64 begin = address_of(from) + abi::u64(first * stride) * 2;
    const bool is_whole = lines >= Lines && features == Features;
    if constexpr (is_regular) {
      if (is_whole) {
        const abi::u64 at = begin + abi::u64(line(0) * stride + chunk(0) * 8) * 2;
        const abi::u64 apart = abi::u64(Threads / Tile::chunks * stride) * 2;
        MSL_UNROLLED
        for (int i = 0; i < turns; ++i) {
          if (has(i)) copy_ahead(to + place(i), at + i * apart);
        }
        return;
      }
    }
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) {
      if (!has(i)) break;
      const int left = features - chunk(i) * 8;
      const int bytes = line(i) >= lines || left <= 0 ? 0 : left >= 8 ? 16 : left * 2;
      const abi::u64 apart = abi::u64(line(i) * stride + chunk(i) * 8) * 2;
      copy_ahead(to + place(i), bytes != 0 ? begin + apart : begin, bytes);
    }
  }

 private:
  MSL_INLINE void copy_elements(abi::u32 to, const T* begin, int lines) const {
#pragma unroll 1
    for (int i = 0; i < turns; ++i) {
      if (!has(i)) break;
      const int left = line(i) < lines ? features - chunk(i) * 8 : 0;
      const T* const at = begin + line(i) * stride + chunk(i) * 8;
      abi::u32 words[4];
      MSL_UNROLLED
      for (int w = 0; w < 4; ++w) {
        words[w] = abi::u32(2 * w < left ? at[2 * w].bits : 0) |
                   abi::u32(2 * w + 1 < left ? at[2 * w + 1].bits : 0) << 16;
      }
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + place(i)), "r"(words[0]),
                   "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
  }
};

// Copies whole tiles of lines by the copy engine, if they are in a matrix that has a map.
template <class T, int Lines, int Features>
struct LineBoxes {
  using Tile = staged_lines<T, Lines, Features>;
  static constexpr bool are_possible = Tile::width == 64 && Lines % 64 == 0;
  const abi::CopyMap* map = nullptr;
  int x = 0, y = 0;  // of the first line

  // Finds the matrix of `count` lines; each lane tries one. Called by whole warps, with the same
  // lines, after a barrier.
  MSL_INLINE bool find(const T* from, long stride, int features, int count) {
    const msl_support::MapsOfLaunch& all = msl_support::maps_of_launch();
    const uint m = warp_lane() % abi::kMaps;
    const abi::MappedMatrix in = all.matrices[m];
    const abi::u64 apart = address_of(from) - in.first;
    // Rows are multiples of 16 bytes apart, and matrices less than 64 GiB.
    const abi::u32 row = abi::u32(apart >> 4) / abi::u32(in.stride >> 4);
    const abi::u32 column = abi::u32(apart - row * in.stride) / 2;
    const bool is_it = m < all.count && in.stride == abi::u64(stride) * 2 && apart < (1ul << 36) &&
                       lie_in(column, features, features == Features, in.columns) &&
                       lie_in(row, count, true, in.rows);
    const abi::u32 finders = ::__ballot_sync(~0u, is_it);
    if (finders == 0) return false;
    const int finder = ::__ffs(int(finders)) - 1;
    map = &all.maps->of_64_rows[finder];
    x = ::__shfl_sync(~0u, int(column), finder);
    y = ::__shfl_sync(~0u, int(row), finder);
    return true;
  }
  // Starts to copy lines from `first` on, all of which exist. Called by one thread.
  MSL_INLINE void bring(abi::u32 to, int first, abi::u32 barrier) const {
    MSL_UNROLLED
    for (int feature = 0; feature < Features; feature += 64) {
      MSL_UNROLLED
      for (int line = 0; line < Lines; line += 64) {
        copy_box(to + abi::u32((feature * Lines + line * 64) * 2), map, x + feature,
                 y + first + line, barrier);
      }
    }
  }
};

// Left operands of 16 rows of each simdgroup: in registers, or staged lines, those of the first
// simdgroup first. multiply() is for columns [k, k + 16).
template <class T, int K>
struct LeftInRegisters {
  abi::u32 fragments[K / 16][4];
  template <class Tensor>
  MSL_INLINE explicit LeftInRegisters(const Tensor& of) {
    LeftInLanes<16, K, T> operand{{}, whole_simdgroup(), 0};
    to_warp_from<16, K>(of, operand.elements);
    MSL_UNROLLED
    for (int k = 0; k < K; k += 16) operand.template fragment<T>(fragments[k / 16], 0, k);
    // Registers that are written once products have begun keep these from running together.
    MSL_UNROLLED
    for (int k = 0; k < K / 16; ++k) {
      MSL_UNROLLED
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(fragments[k][i])::"memory");
    }
  }
  template <int N, bool RightDeep>
  MSL_INLINE void multiply(float* sums, int k, abi::u64 right, bool adds) const {
    multiply_registers_in_warpgroup<T, N, RightDeep>(sums, fragments[k / 16], right, adds);
  }
};
template <class Lines>
struct LeftInLines {
  using Panel = typename Lines::Panel;
  abi::u64 first;
  MSL_INLINE explicit LeftInLines(const Lines& lines) {
    abi::u32 memory = lines.memory;
    asm volatile("" : "+r"(memory));  // the compiler keeps it rather than several descriptors
    first = matrix_at(matrix_in_memory<Lines::width * 2>(0, Lines::width * 16), memory);
  }
  template <int N, bool RightDeep>
  MSL_INLINE void multiply(float* sums, int k, abi::u64 right, bool adds) const {
    const int at = k / Lines::width * Panel::bytes + k % Lines::width * 2;
    multiply_in_warpgroup<typename Lines::value_type, N, true, RightDeep>(
        sums, first + abi::u64(at / 16), right, adds);
  }
};

// Begins to multiply a left operand by staged lines: transposed, the lines are the columns of the
// product. Products are added to the sums, or replace them.
template <bool IsTransposed, bool Accumulates, class Left, class T, int Lines, int Features>
MSL_INLINE void begin_to_multiply_by_lines(const Left& left,
                                           const staged_lines<T, Lines, Features>& right,
                                           float* sums) {
  using Right = staged_lines<T, Lines, Features>;
  using Panel = typename Right::Panel;
  constexpr int inner = IsTransposed ? Features : Lines, columns = IsTransposed ? Lines : Features;
  constexpr int width = widest_instruction(columns);
  // Between panels, if an instruction reads several; between eight lines.
  constexpr abi::u64 description =
      matrix_in_memory<Right::width * 2>(Panel::bytes, Right::width * 16);
  const abi::u64 first = matrix_at(description, right.memory);
  pin_sums<columns / 2>(sums);
  begin_products();
  MSL_UNROLLED
  for (int k = 0; k < inner; k += 16) {
    MSL_UNROLLED
    for (int j = 0; j < columns; j += width) {
      const int line = IsTransposed ? j : k, feature = IsTransposed ? k : j;
      const int at = feature / Right::width * Panel::bytes + Panel::address(line, 0) +
                     feature % Right::width * 2;
      left.template multiply<width, IsTransposed>(sums + j / 2, k, first + abi::u64(at / 16),
                                                  Accumulates || k > 0);
    }
  }
  end_products();
}

// A product of which the operation D is a part: see staged_lines.
template <matmul2d_descriptor D, class L, class R, class Dst>
struct ProductOfLines {
  static_assert(is_cooperative<Dst>, "Products of staged lines go to cooperative tensors");
  static_assert(is_staged<L> || is_cooperative<L>,
                "Staged lines are multiplied by them, or cooperative tensors");
  static_assert(D.m == 16 && !D.transpose_left, "M must be 16 with staged lines");
  static constexpr int lines = D.transpose_right ? D.n : D.k;
  static constexpr int features = D.transpose_right ? D.k : D.n;
  using T = element_of_operand_t<R>;
  static_assert(same<R, staged_lines<T, lines, features>>, "Staged lines must be of this shape");
  static_assert(same<element_of_operand_t<L>, T> && same<typename Dst::value_type, float>,
                "Staged lines are multiplied by elements of the same type, to float");
  static constexpr bool accumulates =
      D.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate;
  using Left = metal::conditional_t<is_staged<L>, LeftInLines<L>, LeftInRegisters<T, D.k>>;
  Left left;
  const R& right;
  float sums[D.n / 2];  // the first products replace them if they are not added

  MSL_INLINE ProductOfLines(const L& left_operand, const R& right_operand, const Dst& destination)
      : left(left_operand), right(right_operand) {
    if constexpr (accumulates) to_warp_from<16, D.n>(destination, sums);
  }
  MSL_INLINE void begin() {
    begin_to_multiply_by_lines<D.transpose_right, accumulates>(left, right, sums);
  }
  // Called after a wait for products.
  MSL_INLINE void end(Dst& destination) {
    pin_sums<D.n / 2>(sums);
    MSL_UNROLLED
    for (int slot = 0; slot < D.n / 2; ++slot) destination[ushort(slot)] = sums[slot];
  }
};
template <matmul2d_descriptor D, class L, class R, class Dst>
MSL_INLINE void multiply_staged_lines(const L& left, const R& right, Dst& destination) {
  ProductOfLines<D, L, R, Dst> product(left, right, destination);
  product.begin();
  wait_for_products<0>();
  product.end(destination);
}

}  // namespace msl::msl_impl

namespace msl::mpp::tensor_ops {

// Runs an operation by staged lines for two destinations: both products are in flight together.
template <class Operation, class Left, class Right, class Destination>
MSL_INLINE void run_together(const Operation&, const Left& left, const Right& right,
                             Destination& destination, const Left& second_left,
                             const Right& second_right, Destination& second_destination) {
  using Product = msl_impl::ProductOfLines<Operation::descriptor, Left, Right, Destination>;
  Product first(left, right, destination);
  Product second(second_left, second_right, second_destination);
  first.begin();
  second.begin();
  msl_impl::wait_for_products<0>();
  first.end(destination);
  second.end(second_destination);
}

// Two matrices' tiles of lines, such as keys and values: one pair of tiles is multiplied while the
// next is copied; and 16 lines of each of Others other matrices for each simdgroup, such as
// queries. For each pair the threads call, in this order: take() or take_boxes(); multiply by
// first(); leave_first(); enter_second(); multiply by second(). Where it KeepsFirst, they multiply
// by first() until they take the next pair, and do not call leave_first().
//
// Threads do not meet for tiles that the copy engine copies: warps tell by barriers which tiles
// they have multiplied by, for the one that starts the copies.
template <class T, int Lines, int Features, int Simdgroups, int Others = 1, bool KeepsFirst = false>
class line_ring {
  template <int Count>
  using Loader = msl_impl::LineLoader<T, Count, Features, Simdgroups * 32>;
  using Boxes = msl_impl::LineBoxes<T, Lines, Features>;
  static constexpr int stages = 2;

 public:
  using lines = staged_lines<T, Lines, Features>;
  using rows = staged_lines<T, Simdgroups * 16, Features>;
  static constexpr int bytes = Others * rows::bytes + 2 * stages * lines::bytes;
  static_assert(Simdgroups % 4 == 0);

  // first, second: the matrices' first lines; of those, and of their features, as many exist.
  // Called by all threads.
  MSL_INLINE line_ring(const T* first, long first_stride, int first_features, const T* second,
                       long second_stride, int second_features, int count)
      : first_{first, first_stride, first_features, thread(), false},
        second_{second, second_stride, second_features, thread(), false},
        memory_(msl_impl::launched_memory<bytes + 2 * 2 * stages * 8>()),
        count_(count) {
    open();
  }
  // Goes on with two other matrices of the same sizes after the last tiles of these: begin() is
  // next. Called by all threads.
  MSL_INLINE void go_on_with(const T* first, const T* second) {
    ::__syncthreads();
    if constexpr (Boxes::are_possible) {
      if (is_leader()) {
        MSL_UNROLLED
        for (int i = 0; i < 2 * 2 * stages; ++i) msl_impl::end_barrier(full(i / 2, i % 2));
      }
    }
    first_.from = first;
    second_.from = second;
    turn_ = -1;
    open();
  }

  // Starts to copy lines of another matrix, before any tiles: `count` from `from` on.
  template <int Other = 0>
  MSL_INLINE rows bring_rows(const T* from, long stride, int features, int count) const {
    static_assert(Other < Others);
    const abi::u32 memory = memory_ + Other * rows::bytes;
    const Loader<Simdgroups * 16> loader{from, stride, features, thread(),
                                         is_aligned(from, stride)};
    loader.bring(memory, 0, count);
    msl_impl::end_of_copies();
    // The warpgroup has its own lines, at an address in uniform registers.
    return {memory + abi::u32(::__shfl_sync(~0u, thread() / 128, 0) * rows::Panel::address(64, 0))};
  }
  // Begins with the tiles at line `at`, a multiple of Lines, after bring_rows(). end: of the lines
  // that are wanted.
  MSL_INLINE void begin(int at, int end) {
    if (at < end) {
      if (are_boxes(at)) {
        bring_box(0, at);
        bring_box(1, at);
      } else {
        bring(at);
      }
    }
    msl_impl::wait_for_copies<0>();
    msl_impl::show_to_tensor_cores();
    ::__syncthreads();
  }
  // Returns the line before which tiles may be taken by take_boxes(), with the same `end`.
  MSL_INLINE int end_of_boxes(int end) const {
    return end_of_boxes_ >= end ? end : end_of_boxes_ - Lines;
  }
  // take() for tiles that the copy engine copies, as it does the next.
  MSL_INLINE void take_boxes(int at, int end) {
    if constexpr (Boxes::are_possible) {
      next_turn();
      wait_for_box(0);
      if (!KeepsFirst && at + Lines < end) bring_box(0, at + Lines);
    }
  }
  // Waits for the first of the tiles at line `at`. Called by all threads.
  MSL_INLINE void take(int at, int end) {
    if (Boxes::are_possible && at < end_of_boxes(end)) {
      take_boxes(at, end);
      return;
    }
    next_turn();
    if (are_boxes(at)) {
      wait_for_box(0);
    } else {
      msl_impl::wait_for_copies<0>();
      msl_impl::show_to_tensor_cores();
    }
    ::__syncthreads();
    if (at + Lines < end) bring(at + Lines);
  }
  // Called after the product with first().
  MSL_INLINE void leave_first() const {
    static_assert(!KeepsFirst);
    leave(0);
  }
  // Waits for the second of the tiles at line `at`.
  MSL_INLINE void enter_second(int at, int end) const {
    const int next = at + Lines;
    if (next < end && are_boxes(next)) {
      if (KeepsFirst) bring_box(0, next);
      bring_box(1, next);
    }
    if (are_boxes(at)) wait_for_box(1);
  }
  MSL_INLINE lines first() const { return {tile(stage(), 0)}; }
  MSL_INLINE lines second() const { return {tile(stage(), 1)}; }

 private:
  static MSL_INLINE bool is_aligned(const T* from, long stride) {
    return (msl_impl::address_of(from) | abi::u64(stride * 2)) % 16 == 0;
  }
  MSL_INLINE void open() {
    first_.is_aligned = is_aligned(first_.from, first_.stride);
    second_.is_aligned = is_aligned(second_.from, second_.stride);
    if constexpr (Boxes::are_possible) {
      if (is_leader()) {
        MSL_UNROLLED
        for (int i = 0; i < 2 * stages; ++i) {
          msl_impl::begin_barrier(full(i / 2, i % 2), 1);
          msl_impl::begin_barrier(empty(i / 2, i % 2), Simdgroups);
        }
        msl_impl::show_to_copy_engine();
      }
      ::__syncthreads();
      const bool has_first = first_boxes_.find(first_.from, first_.stride, first_.features, count_);
      const bool has_second =
          second_boxes_.find(second_.from, second_.stride, second_.features, count_);
      end_of_boxes_ = has_first && has_second ? count_ / Lines * Lines : 0;
    }
  }
  static MSL_INLINE int thread() {
    return int((msl_impl::index_in_threadgroup() & ~31u) | msl_impl::warp_lane());
  }
  static MSL_INLINE bool is_leader() { return thread() == 0; }
  MSL_INLINE abi::u32 tile(int stage, int matrix) const {
    return memory_ + abi::u32(Others * rows::bytes + (stage * 2 + matrix) * lines::bytes);
  }
  // The barriers of a tile's copy, and of the warps that have multiplied by it.
  MSL_INLINE abi::u32 full(int stage, int matrix) const {
    return memory_ + abi::u32(bytes + (stage * 2 + matrix) * 8);
  }
  MSL_INLINE abi::u32 empty(int stage, int matrix) const {
    return full(stage, matrix) + 2 * stages * 8;
  }
  MSL_INLINE bool are_boxes(int at) const { return Boxes::are_possible && at < end_of_boxes_; }
  MSL_INLINE int stage() const { return turn_ % stages; }
  MSL_INLINE void next_turn() {
    if (turn_ >= 0) {
      if (KeepsFirst) leave(0);
      leave(1);
    }
    ++turn_;
  }
  // The threads' copies of the tiles at line `at`, which the next turn takes.
  MSL_INLINE void bring(int at) const {
    const int next = (turn_ + 1) % stages;
    first_.bring(tile(next, 0), at, count_ - at);
    second_.bring(tile(next, 1), at, count_ - at);
    msl_impl::end_of_copies();
  }
  // The copy engine's copy of one of them, over that of an earlier turn.
  MSL_INLINE void bring_box(int matrix, int at) const {
    if (is_leader()) {
      const int turn = turn_ + 1, next = turn % stages;
      msl_impl::wait_at(empty(next, matrix), (turn / stages & 1) ^ 1);
      msl_impl::expect_bytes(full(next, matrix), lines::bytes);
      (matrix == 0 ? first_boxes_ : second_boxes_)
          .bring(tile(next, matrix), at, full(next, matrix));
    }
    ::__syncwarp();
  }
  // Boxes come before all other tiles: those of each turn have been copied to their stage.
  MSL_INLINE void wait_for_box(int matrix) const {
    msl_impl::wait_at(full(stage(), matrix), turn_ / stages & 1);
  }
  // A warp has multiplied by a tile.
  MSL_INLINE void leave(int matrix) const {
    if constexpr (Boxes::are_possible) {
      if (msl_impl::warp_lane() == 0) msl_impl::arrive_at(empty(stage(), matrix));
    }
  }
  Loader<Lines> first_, second_;
  Boxes first_boxes_, second_boxes_;
  int end_of_boxes_ = 0;  // of the lines that the copy engine copies
  abi::u32 memory_;
  int count_, turn_ = -1;  // of the pair of tiles that is multiplied
};

}  // namespace msl::mpp::tensor_ops
