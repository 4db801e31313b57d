// Staging of GEMM operands in shared memory, from which tensor cores take them: several blocks are
// in flight (cp.async) while one is multiplied.
#pragma once

#include <msl/cuda/launch.h>
#include <msl/cuda/tensor_cores.h>
#include <msl/cuda/warpgroup.h>
#include <msl/tensor_ops/element_types.h>
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

// A staged block of Rows x Depth factors of a left operand, or of a transposed right one.
// Lines hold elements that are contiguous in the operand: Depth elements along K (IsDeep), or else
// some rows. The 16-byte chunks of a line are swizzled, so that eight consecutive lines use
// different banks (as wgmma's layouts do).
template <class T, int Rows, int Depth, bool IsDeep>
struct StagedBlock {
  static constexpr int rows = Rows;
  static constexpr int width = IsDeep ? Depth : widest(Rows);
  static constexpr int size = sizeof(T), line_bytes = width * size;
  static constexpr int chunks = line_bytes / 16;  // 16-byte chunks per line
  static constexpr int lines = Rows * Depth / width;
  static constexpr int bytes = Rows * Depth * size;
  // Between columns of lines.
  static constexpr int between_blocks = width * Depth * size;
  static MSL_INLINE constexpr abi::u32 place(int line, int chunk) {
    return abi::u32(line * chunks + (chunk ^ (line / (8 / chunks) & (chunks - 1)))) * 16;
  }

  // Returns the offset in bytes, before swizzling, of a row that is a multiple of 16 and a depth
  // that begins a chunk.
  static MSL_INLINE constexpr int address(int row, int depth) {
    if (IsDeep) return (row * width + depth) * size;
    return (row / width * Depth * width + depth * width + row % width) * size;
  }

  // Loads rows [row, row + 16) and columns [depth, depth + 16) of 16-bit factors as a tensor core
  // fragment. Its four 8 x 8 matrices are ordered down first (IsLeft) or right first.
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
struct alignas(8) PairOfWords {
  abi::u32 first, second;
};
// Returns the bits of a number as a factor.
template <class T>
MSL_INLINE abi::u32 bits_of_factor(float number) {
  if constexpr (same<T, Tf32>) {
    return __builtin_bit_cast(abi::u32, number);
  } else if constexpr (same<T, signed char> || same<T, unsigned char>) {
    return abi::u32(int(number)) & 0xffu;
  } else if constexpr (is_format<T>) {
    return Format<T>::encode(number);
  } else {
    return T(number).bits;
  }
}
// Packs a word of factors, of which of(i) is a number.
template <class T, class F>
MSL_INLINE abi::u32 word_of_factors(const F& of) {
  abi::u32 word = 0;
  MSL_UNROLLED
  for (int i = 0; i < 4 / int(sizeof(T)); ++i) {
    word |= bits_of_factor<T>(of(i)) << (i * int(sizeof(T)) * 8);
  }
  return word;
}
MSL_INLINE void store_chunk(abi::u32 to, const abi::u32 (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

// Stores a chunk of numbers as factors.
template <class T, class F>
MSL_INLINE void store_numbers(abi::u32 to, const F& of) {
  constexpr int in_word = 4 / sizeof(T);
  if constexpr (sizeof(T) == 2) {
    abi::u32 words[4];
    MSL_UNROLLED
    for (int w = 0; w < 4; ++w) {
      words[w] = word_of_factors<T>([&](int i) { return of(w * in_word + i); });
    }
    store_chunk(to, words);
  } else {
    // The compiler takes long for many conversions.
#pragma unroll 1
    for (int w = 0; w < 4; ++w) {
      const abi::u32 word = word_of_factors<T>([&](int i) { return of(w * in_word + i); });
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + w * 4), "r"(word) : "memory");
    }
  }
}

template <class T>
inline constexpr Element element_of_factor = element_of_product<T>;
template <>
inline constexpr Element element_of_factor<Tf32> = Element::kFloat;
// Whether a view's memory is elements as they are. It may have codes of a byte.
template <class View>
inline constexpr bool is_bare = View::is_plain;
// Whether they are factors of type T.
template <class T, class View>
inline constexpr bool are_factors =
    is_bare<View> && element_of_factor<T> == element_of_product<typename View::Value>;

// Copies blocks of an operand to shared memory. View: of the operand, with the tile's rows; it is
// contiguous in memory along a row (IsDeep) or a column. Fragments: see row_of_line().
template <class T, class Block, class View, int Depth, bool IsDeep, int Threads, int Fragments>
struct BlockLoader {
  static constexpr int all = Block::lines * Block::chunks;
  static constexpr int turns = (all + Threads - 1) / Threads;
  static constexpr int size = sizeof(T), in_chunk = 16 / size;
  static constexpr bool is_same = are_factors<T, View>;
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
      is_aligned = (from | abi::u64(stride * size)) % 16 == 0;
      copies = is_aligned && is_global(from) && stride < 1l << 22;
      step = (IsDeep ? Depth : Depth * stride) * size;
      MSL_UNROLLED
      for (int i = 0; i < turns; ++i) {
        const abi::u32 r = abi::u32(row(i)), k = abi::u32(depth(i)), apart = abi::u32(stride);
        offsets[i] = (IsDeep ? r * apart + k : k * apart + r) * size;
      }
    }
  }
  // The 16-byte chunk that this thread copies in a turn: its index in the block, and its first
  // element.
  MSL_INLINE int chunk(int turn) const { return thread + turn * Threads; }
  MSL_INLINE int line(int turn) const { return chunk(turn) / Block::chunks; }
  MSL_INLINE int row(int turn) const {
    const int row =
        IsDeep ? line(turn)
               : line(turn) / Depth * Block::width + chunk(turn) % Block::chunks * in_chunk;
    return row_of_line<Fragments>(row);
  }
  MSL_INLINE int depth(int turn) const {
    return IsDeep ? chunk(turn) % Block::chunks * in_chunk : line(turn) % Depth;
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

 protected:
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
        const int bytes = !exists || left <= 0 ? 0 : left >= in_chunk ? 16 : left * size;
        copy_ahead(to + place(i), bytes != 0 ? from + offsets[i] : from, bytes);
      }
    }
    from += abi::u64(step);
  }
  MSL_INLINE void decode(abi::u32 to, long begin) const {
#pragma unroll 1
    for (int i = 0; i < turns; ++i) {
      if (all % Threads == 0 || chunk(i) < all) {
        put(to + place(i), row(i), begin + depth(i));
      }
    }
  }
  // Copies a chunk.
  MSL_INLINE void put(abi::u32 to, long r, long k) const {
    if constexpr (is_same) {
      const bool is_whole =
          IsDeep ? k + in_chunk <= columns && r < rows : r + in_chunk <= rows && k < columns;
      if (is_aligned && is_whole) {
        const auto first = view.first.shifted(r * view.row_stride + k * view.column_stride);
        store_chunk(to, reinterpret_cast<const Eight*>(first.handle())->words);
        return;
      }
    }
    store_numbers<T>(to,
                     [&](int i) { return IsDeep ? view.value(r, k + i) : view.value(r + i, k); });
  }
};

// Copies blocks of an operand that is contiguous in memory along a column to lines along K. Threads
// turn patches of four rows and a chunk's depth: they load those of the next block to registers
// while one is multiplied.
template <class T, class Block, class View, int Depth, int Threads, int Fragments>
struct TurningLoader {
  static constexpr int size = sizeof(T), in_chunk = 16 / size;
  static constexpr int across = Block::rows / 4;
  static constexpr int all = across * Block::chunks, turns = (all + Threads - 1) / Threads;
  static constexpr bool is_same = are_factors<T, View>, loads_ahead = true;
  static_assert(size == 1 || size == 4);
  const View& view;
  const int thread;
  const int rows, columns;
  bool is_aligned = false;
  abi::u32 words[turns][16];

  MSL_INLINE TurningLoader(const View& of, int thread_in_scope)
      : view(of), thread(thread_in_scope), rows(int(of.rows)), columns(int(of.columns)) {
    if constexpr (is_same) {
      const abi::u64 from = address_of(view.first.handle());
      is_aligned = (from | abi::u64(view.column_stride * size)) % (4 * size) == 0 && rows % 4 == 0;
      if (is_aligned) fetch(0);
    }
  }
  // Copies block number `block` to shared memory; called with consecutive blocks.
  MSL_INLINE void bring(abi::u32 to, int block) {
    if constexpr (is_same) {
      if (is_aligned) {
        put(to);
        fetch((block + 1) * Depth);
        return;
      }
    }
    decode(to, long(block) * Depth);
  }

 private:
  // The patch of a turn: its first line, and its chunk of them. Neighbours load what is adjacent.
  // With factors of four bytes every second neighbour has the same lines, so that their stores use
  // different banks.
  static constexpr int near = Block::chunks < 4 ? Block::chunks : 4;
  MSL_INLINE int patch(int turn) const { return thread + turn * Threads; }
  MSL_INLINE bool has(int turn) const { return all % Threads == 0 || patch(turn) < all; }
  MSL_INLINE int line(int turn) const {
    const int p = patch(turn);
    if (size == 1) return p % across * 4;
    return (p / (2 * near) % (across / 2) * 2 + p % 2) * 4;
  }
  MSL_INLINE int chunk(int turn) const {
    const int p = patch(turn);
    if (size == 1) return p / across;
    return p / (2 * near) / (across / 2) * near + p / 2 % near;
  }
  MSL_INLINE void fetch(int begin) {
    if (all % Threads == 0 && rows >= Block::rows && begin + Depth <= columns) {
      fetch_where(begin, [](int, int) { return true; });
    } else {
      fetch_where(begin, [&](int row, int k) { return row < rows && k < columns; });
    }
  }
  template <class Exists>
  MSL_INLINE void fetch_where(int begin, const Exists& exists) {
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) {
      const int row = has(i) ? row_of_line<Fragments>(line(i)) : rows;
      const int first = begin + chunk(i) * in_chunk;
      const auto at = view.first.shifted(row + first * view.column_stride);
      const abi::u8* from = reinterpret_cast<const abi::u8*>(at.handle());
      MSL_UNROLLED
      for (int k = 0; k < in_chunk; ++k) {
        load(words[i] + k * size, from, exists(row, first + k));
        from += view.column_stride * size;
      }
    }
  }
  // Loads four elements of a row of memory.
  static MSL_INLINE void load(abi::u32* to, const abi::u8* from, bool exists) {
    if constexpr (size == 1) {
      to[0] = exists ? *reinterpret_cast<const abi::u32*>(from) : 0;
    } else {
      const Eight four = exists ? *reinterpret_cast<const Eight*>(from) : Eight{};
      MSL_UNROLLED
      for (int w = 0; w < 4; ++w) to[w] = four.words[w];
    }
  }
  MSL_INLINE void put(abi::u32 to) const {
    // The first line of bytes that a thread stores: eight neighbours have all eight banks.
    const abi::u32 a = abi::u32(thread) / 2 & 3, b = (a + 1) & 3;
    const abi::u32 one = (a | b << 8) * 0x11 + 0x4040, other = one ^ 0x2222;
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) {
      if (!has(i)) continue;
      abi::u32 lines[4][4];
      MSL_UNROLLED
      for (int w = 0; w < 4; ++w) {
        const abi::u32* const of = words[i] + w * 4;
        if constexpr (size == 1) {
          turn_bytes(lines[0][w], lines[1][w], of, one);
          turn_bytes(lines[2][w], lines[3][w], of, other);
        } else {
          MSL_UNROLLED
          for (int r = 0; r < 4; ++r) lines[r][w] = words[i][w * 4 + r];
        }
      }
      MSL_UNROLLED
      for (int r = 0; r < 4; ++r) {
        const int in_patch = size == 1 ? int(a + r) & 3 : r;
        store_chunk(to + Block::place(line(i) + in_patch, chunk(i)), lines[r]);
      }
    }
  }
  // Two bytes of each of four words, one after the other.
  static MSL_INLINE void turn_bytes(abi::u32& first, abi::u32& second, const abi::u32* of,
                                    abi::u32 selected) {
    const abi::u32 low = ::__byte_perm(of[0], of[1], selected);
    const abi::u32 high = ::__byte_perm(of[2], of[3], selected);
    first = ::__byte_perm(low, high, 0x5410);
    second = ::__byte_perm(low, high, 0x7632);
  }
  MSL_INLINE void decode(abi::u32 to, long begin) const {
#pragma unroll 1
    for (int i = 0; i < turns * 4; ++i) {
      if (!has(i / 4)) continue;
      const int at = line(i / 4) + i % 4;
      const long row = row_of_line<Fragments>(at), first = begin + chunk(i / 4) * in_chunk;
      store_numbers<T>(to + Block::place(at, chunk(i / 4)),
                       [&](int k) { return view.value(row, first + k); });
    }
  }
};
// Two factors of 16 bits of which the lower half of a word has the codes.
template <class T, class Code>
MSL_INLINE abi::u32 widened(abi::u32 codes) {
  abi::u32 result;
  if constexpr (same<T, half> && same<Code, metal::metal_fp8_e4m3_format>) {
    asm("{.reg .b16 h, x; mov.b32 {h, x}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}"
        : "=r"(result)
        : "r"(codes));
    return result;
  } else if constexpr (same<T, half> && same<Code, metal::metal_fp8_e5m2_format>) {
    return ::__byte_perm(codes, 0, 0x1404);
  } else if constexpr (is_format<Code>) {
    return pair_of<T>(Format<Code>::decode(codes & 0xffu),
                      Format<Code>::decode(codes >> 8 & 0xffu));
  } else {
    return pair_of<T>(float(Code(codes)), float(Code(codes >> 8)));
  }
}
// Copies blocks of an operand of bytes as factors of 16 bits. Threads load those of the next block
// to registers while one is multiplied.
template <class T, class Block, class View, int Depth, bool IsDeep, int Threads, int Fragments>
struct WideningLoader : BlockLoader<T, Block, View, Depth, IsDeep, Threads, Fragments> {
  using Base = BlockLoader<T, Block, View, Depth, IsDeep, Threads, Fragments>;
  using Code = typename View::Value;
  using Base::all, Base::turns, Base::view, Base::rows, Base::columns;
  static constexpr bool loads_ahead = true;
  bool is_whole;  // packs of eight bytes, of which all exist or none does
  abi::u32 packs[turns][2];

  MSL_INLINE WideningLoader(const View& of, int thread_in_scope) : Base(of, thread_in_scope) {
    const long stride = IsDeep ? view.row_stride : view.column_stride;
    const abi::u64 from = address_of(view.first.handle());
    is_whole = (from | abi::u64(stride) | abi::u64(IsDeep ? columns : rows)) % 8 == 0;
    if (is_whole) fetch(0);
  }
  // Copies block number `block` to shared memory; called with consecutive blocks.
  MSL_INLINE void bring(abi::u32 to, int block) {
    if (!is_whole) {
      this->decode(to, long(block) * Depth);
      return;
    }
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) {
      if (!has(i)) continue;
      abi::u32 words[4];
      MSL_UNROLLED
      for (int w = 0; w < 4; ++w) words[w] = widened<T, Code>(packs[i][w / 2] >> (w % 2 * 16));
      store_chunk(to + this->place(i), words);
    }
    fetch((block + 1) * Depth);
  }

 private:
  MSL_INLINE bool has(int turn) const { return all % Threads == 0 || this->chunk(turn) < all; }
  MSL_INLINE void fetch(int begin) {
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) {
      const int row = this->row(i), k = begin + this->depth(i);
      packs[i][0] = packs[i][1] = 0;
      if (has(i) && row < rows && k < columns) {
        const auto at = view.first.shifted(row * view.row_stride + k * view.column_stride);
        const auto* const from = reinterpret_cast<const PairOfWords*>(at.handle());
        packs[i][0] = from->first;
        packs[i][1] = from->second;
      }
    }
  }
};
template <class T, class View>
constexpr bool is_widened() {
  return is_read_across<T> && is_bare<View> && sizeof(typename View::Value) == 1;
}

template <class T, class Block, class View, int Depth, bool IsDeep, int Threads, int Fragments>
struct LoaderOf {
  typedef BlockLoader<T, Block, View, Depth, IsDeep, Threads, Fragments> type;
};
template <class T, class Block, class View, int Depth, int Threads, int Fragments>
  requires(!is_read_across<T>)
struct LoaderOf<T, Block, View, Depth, false, Threads, Fragments> {
  typedef TurningLoader<T, Block, View, Depth, Threads, Fragments> type;
};
template <class T, class Block, class View, int Depth, bool IsDeep, int Threads, int Fragments>
  requires(is_widened<T, View>())
struct LoaderOf<T, Block, View, Depth, IsDeep, Threads, Fragments> {
  typedef WideningLoader<T, Block, View, Depth, IsDeep, Threads, Fragments> type;
};

// Parameters of staging for warpgroups, in a ring of blocks, of which three at least are needed:
// one is multiplied, an earlier one is still being multiplied, and a later one is on its way. Lines
// are of 128 bytes where three blocks fit. Two threadgroups share a multiprocessor, of 227 KiB,
// where each has three blocks. Size: of a factor, in bytes. Inner: K, if it is known at compile
// time; otherwise 0.
template <int Size, int M, int N, int Inner>
struct RingOf {
  static constexpr int most = (227 - 32 - 1) * 1024;  // a kernel's own memory is at most 32 KiB
  static constexpr int bytes_of(int deep) { return (M + N) * deep * Size; }
  static constexpr bool fits(int deep) {
    return bytes_of(deep) * 3 <= most && (Inner == 0 || Inner % deep == 0);
  }
  static constexpr int depth = fits(128 / Size)  ? 128 / Size
                               : fits(64 / Size) ? 64 / Size
                                                 : 32 / Size;
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
