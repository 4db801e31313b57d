// Staging of GEMM operands in shared memory, from which tensor cores take them: several blocks are
// in flight (cp.async) while one is multiplied.
#pragma once

#include <msl/cuda/launch.h>
#include <msl/cuda/tensor_cores.h>
#include <msl/tensor_ops/matrix_view.h>

namespace msl::msl_impl {

// Returns the shared memory used by all operations of a program; the emitted code defines its size.
MSL_INLINE abi::u8* staging_pointer() {
  __shared__ __align__(1024) abi::u8 memory[MSL_STAGING_BYTES];
  return memory;
}
MSL_INLINE abi::u32 staging_memory() {
  return abi::u32(::__cvta_generic_to_shared(staging_pointer()));
}

// Returns shared memory that the launch brings, aligned to 1024 bytes: behind the kernel's
// threadgroup arguments. The comment in the kernel's PTX tells the launch how much it needs
// (metalops/cuda/nvrtc.py). All operations of a kernel share it.
template <int Bytes>
MSL_INLINE abi::u32 launched_memory() {
  asm volatile("// msl_launched_memory %0" ::"n"(Bytes + 1024));
  abi::u32 size;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size));
  if (size < abi::u32(Bytes)) ::__trap();
  const abi::u32 first = abi::u32(::__cvta_generic_to_shared(msl_support::threadgroup_memory));
  return (first + size - abi::u32(Bytes)) & ~1023u;
}

constexpr int widest(int rows) { return rows % 64 == 0 ? 64 : rows % 32 == 0 ? 32 : 16; }

// A staged block of Rows x Depth 16-bit elements of a left operand, or of a transposed right one.
// Lines hold elements that are contiguous in the operand: Depth elements along K (IsDeep), or else
// some rows. The 16-byte chunks of a line are swizzled, so that eight consecutive lines use
// different banks (as wgmma's layouts do).
template <class T, int Rows, int Depth, bool IsDeep>
struct StagedBlock {
  static constexpr int rows = Rows;
  static constexpr int width = IsDeep ? Depth : widest(Rows);
  static constexpr int chunks = width / 8;  // 16-byte chunks per line
  static constexpr int lines = Rows * Depth / width;
  static constexpr int bytes = Rows * Depth * 2;
  static MSL_INLINE constexpr abi::u32 place(int line, int chunk) {
    return abi::u32(line * chunks + (chunk ^ (line / (8 / chunks) & (chunks - 1)))) * 16;
  }

  // Returns the offset in bytes, before swizzling, of a row and a depth that are multiples of 16
  // and begin a chunk.
  static MSL_INLINE constexpr int address(int row, int depth) {
    if (IsDeep) return (row * width + depth) * 2;
    return (row / width * Depth * width + depth * width + row % width) * 2;
  }

  // Loads rows [row, row + 16) and columns [depth, depth + 16) as a tensor core fragment. Its four
  // 8 x 8 matrices are ordered down first (IsLeft) or right first.
  template <bool IsLeft>
  static MSL_INLINE void load(abi::u32 (&to)[4], abi::u32 block, int row, int depth, uint lane) {
    const int matrix = int(lane >> 3), in_matrix = int(lane & 7);
    const int r = row + (IsLeft ? matrix & 1 : matrix >> 1) * 8;
    const int k = depth + (IsLeft ? matrix >> 1 : matrix & 1) * 8;
    if constexpr (IsDeep) {
      load_matrices<false>(to, block + place(r + in_matrix, k / 8));
    } else {
      load_matrices<true>(to, block + place(r / width * Depth + k + in_matrix, r % width / 8));
    }
  }
};

// Returns the row of the tile that a staged one is, with Fragments 16-row fragments that each of
// four warps has in sequence (warpgroup.h).
template <int Fragments>
MSL_INLINE constexpr int row_of_line(int line) {
  const int fragment = line / 64 % Fragments, warp = line / (64 * Fragments) * 4 + line / 16 % 4;
  return Fragments == 1 ? line : (warp * Fragments + fragment) * 16 + line % 16;
}

struct alignas(16) Eight {
  abi::u32 words[4];
};
// Copies blocks of an operand to shared memory. View: of the operand, with the tile's rows; it is
// contiguous in memory along a row (IsDeep) or a column. Fragments: see row_of_line().
template <class T, class Block, class View, int Depth, bool IsDeep, int Threads, int Fragments>
struct BlockLoader {
  static constexpr int all = Block::lines * Block::chunks;
  static constexpr int turns = (all + Threads - 1) / Threads;
  static constexpr bool is_same = View::is_plain && same<typename View::Value, T>;
  const View& view;
  const int thread;
  const int rows, columns;  // of the operand
  bool is_aligned = false;
  bool copies = false;      // aligned, and in global memory: cp.async
  abi::u64 from = 0;        // address of the next block
  abi::u32 offsets[turns];  // in it, in bytes
  long step = 0;            // in bytes, from one block to the next

  MSL_INLINE BlockLoader(const View& of, int thread_in_scope)
      : view(of), thread(thread_in_scope), rows(int(of.rows)), columns(int(of.columns)) {
    if constexpr (is_same) {
      const long stride = IsDeep ? view.row_stride : view.column_stride;
      from = address_of(view.first.handle());
      is_aligned = (from | abi::u64(stride * 2)) % 16 == 0;
      copies = is_aligned && is_global(from) && stride < 1l << 22;
      step = (IsDeep ? Depth : Depth * stride) * 2;
      MSL_UNROLLED
      for (int i = 0; i < turns; ++i) {
        const abi::u32 r = abi::u32(row(i)), k = abi::u32(depth(i)), apart = abi::u32(stride);
        offsets[i] = (IsDeep ? r * apart + k : k * apart + r) * 2;
      }
    }
  }
  // The 16-byte chunk that this thread copies in a turn: its index in the block, and its first
  // element.
  MSL_INLINE int chunk(int turn) const { return thread + turn * Threads; }
  MSL_INLINE int line(int turn) const { return chunk(turn) / Block::chunks; }
  MSL_INLINE int row(int turn) const {
    const int row =
        IsDeep ? line(turn) : line(turn) / Depth * Block::width + chunk(turn) % Block::chunks * 8;
    return row_of_line<Fragments>(row);
  }
  MSL_INLINE int depth(int turn) const {
    return IsDeep ? chunk(turn) % Block::chunks * 8 : line(turn) % Depth;
  }

  // Copies block number `block` to shared memory; called with consecutive blocks.
  MSL_INLINE void bring(abi::u32 to, int block) {
    if constexpr (is_same) {
      if (copies) {
        copy(to, block * Depth);
        return;
      }
    }
    decode(to, long(block) * Depth);
  }

 private:
  MSL_INLINE abi::u32 place(int turn) const {
    return Block::place(line(turn), chunk(turn) % Block::chunks);
  }
  MSL_INLINE void copy(abi::u32 to, int begin) {
    if (all % Threads == 0 && rows >= Block::rows && begin + Depth <= columns) {
      MSL_UNROLLED
      for (int i = 0; i < turns; ++i) copy_ahead(to + place(i), from + offsets[i]);
      from += abi::u64(step);
      return;
    }
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) {
      if (all % Threads == 0 || chunk(i) < all) {
        const int k = begin + depth(i);
        const int left = IsDeep ? columns - k : rows - row(i);
        const bool exists = IsDeep ? row(i) < rows : k < columns;
        const int bytes = !exists || left <= 0 ? 0 : left >= 8 ? 16 : left * 2;
        copy_ahead(to + place(i), bytes != 0 ? from + offsets[i] : from, bytes);
      }
    }
    from += abi::u64(step);
  }
  MSL_INLINE void decode(abi::u32 to, long begin) const {
#pragma unroll 1
    for (int i = 0; i < turns; ++i) {
      if (all % Threads == 0 || chunk(i) < all) {
        abi::u32 words[4];
        get(words, row(i), begin + depth(i));
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + place(i)), "r"(words[0]),
                     "r"(words[1]), "r"(words[2]), "r"(words[3])
                     : "memory");
      }
    }
  }
  // Loads eight elements as four words.
  MSL_INLINE void get(abi::u32 (&words)[4], long r, long k) const {
    if constexpr (is_same) {
      const bool is_whole = IsDeep ? k + 8 <= columns && r < rows : r + 8 <= rows && k < columns;
      if (is_aligned && is_whole) {
        const Eight& eight = reinterpret_cast<const Eight&>(
            view.first.at(r * view.row_stride + k * view.column_stride));
        MSL_UNROLLED
        for (int w = 0; w < 4; ++w) words[w] = eight.words[w];
        return;
      }
    }
    MSL_UNROLLED
    for (int w = 0; w < 8; w += 2) {
      words[w / 2] = IsDeep ? pair_of<T>(view.value(r, k + w), view.value(r, k + w + 1))
                            : pair_of<T>(view.value(r + w, k), view.value(r + w + 1, k));
    }
  }
};

// Parameters of staging for warpgroups, in a ring of blocks, of which three at least are needed:
// one is multiplied, an earlier one is still being multiplied, and a later one is on its way. Lines
// are of 128 bytes where three blocks fit. Two threadgroups share a multiprocessor, of 227 KiB,
// where each has three blocks. Inner: K, if it is known at compile time; otherwise 0.
template <int M, int N, int Inner>
struct RingOf {
  static constexpr int most = (227 - 32 - 1) * 1024;  // a kernel's own memory is at most 32 KiB
  static constexpr int bytes_of(int deep) { return (M + N) * deep * 2; }
  static constexpr bool fits(int deep) {
    return bytes_of(deep) * 3 <= most && (Inner == 0 || Inner % deep == 0);
  }
  static constexpr int depth = fits(64) ? 64 : fits(32) ? 32 : 16;
  static constexpr int bytes = bytes_of(depth);
  static constexpr int half = 112 * 1024 / bytes, whole = most / bytes;
  static constexpr int fitting = half >= 3 ? half : whole;
  static constexpr int count = fitting > 4 ? 4 : fitting;
  static constexpr bool is_possible = count >= 3;
};

// Parameters of an operation's staging; depth is 0 (no staging) if two blocks do not fit. Parts may
// begin at any multiple of 8, and are read in multiples of 16.
template <int M, int N, int Simdgroups>
struct StagesOf {
  using Part = Bands<M, N, Simdgroups>;
  static constexpr int rows = round_up(M + Part::rows % 16, 16);
  static constexpr int columns = round_up(N + Part::columns % 16, 16);
  static constexpr int fitting(int deep) {
    return MSL_STAGING_BYTES / ((rows + columns) * deep * 2);
  }
  static constexpr int depth = fitting(32) >= 2 ? 32 : fitting(16) >= 2 ? 16 : 0;
  static constexpr int count =
      fitting(depth == 0 ? 16 : depth) > 4 ? 4 : fitting(depth == 0 ? 16 : depth);
  static constexpr int bytes = (rows + columns) * depth * 2;
  // Size of two buffers of 32-bit words; see StagedLines.
  static constexpr int bytes_of_words(int deep) { return (rows + columns + 4) * deep * 4 * 2; }
  static constexpr int depth_of_words = bytes_of_words(16) <= MSL_STAGING_BYTES  ? 16
                                        : bytes_of_words(8) <= MSL_STAGING_BYTES ? 8
                                                                                 : 0;
};

// A staged block of Rows x Depth words: one line of rows for each k, with a stride that avoids bank
// conflicts of lines and of groups of eight columns.
template <class Word, int Rows, int Depth, bool IsDeep, int Threads>
struct StagedLines {
  static constexpr int pitch = Rows + 2, size = pitch * Depth;
  static constexpr int all = Rows * Depth, turns = (all + Threads - 1) / Threads;
  int thread;
  Word words[turns];

  MSL_INLINE explicit StagedLines(int thread_in_scope) : thread(thread_in_scope) {}
  // Adjacent threads load adjacent elements (coalesced).
  MSL_INLINE int row(int turn) const {
    const int word = thread + turn * Threads;
    return IsDeep ? word / Depth : word % Rows;
  }
  MSL_INLINE int depth(int turn) const {
    const int word = thread + turn * Threads;
    return IsDeep ? word % Depth : word / Rows;
  }
  template <class View>
  MSL_INLINE void fetch(const View& view, int begin) {
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) words[i] = Word(view.value(row(i), begin + depth(i)));
  }
  MSL_INLINE void put(Word* to) const {
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) {
      if (all % Threads == 0 || thread + i * Threads < all)
        to[depth(i) * pitch + row(i)] = words[i];
    }
  }
};
// A lane's rows and columns in a staged line, with the interface of LeftInMemory and RightInMemory.
template <class Word>
struct LeftLine {
  const Word* first;
  MSL_INLINE Word row(int i, int) const { return first[i * 8]; }
};
template <class Word>
struct RightLine {
  const Word* first;
  MSL_INLINE Word column(int, int j) const { return first[j / 2 * 8 + j % 2]; }
};

}  // namespace msl::msl_impl
