// Products of lines that a kernel decodes itself, as those of quantised weights: a left operand of
// matmul2d that is codes in memory. They are copied ahead to shared memory; lanes decode their
// parts of the tensor cores' fragments to registers while warpgroups (wgmma) multiply those before,
// so that decoded lines are never in memory. Kernels see this where __METALOPS_CODED_LINES__ is
// defined, as neither Apple's compiler nor the software device does.
#pragma once

#include <msl/cuda/copy_engine.h>
#include <msl/cuda/staging.h>
#include <msl/cuda/warpgroup.h>

namespace msl::mpp::tensor_ops {

// How a lane gets the codes that it decodes together. apart: two of an eight, each in a half of a
// word: its own bits of 8; of fewer, both codes. bytes: two of an eight, of 8 bits each, in the low
// half of a word. halves_of_bytes: two of an eight and two of the next one, of 4 bits each, in the
// low half of a word. All other bits are arbitrary.
enum class coded_form { apart, bytes, halves_of_bytes };

// Converts the two codes in the low half of a word.
MSL_INLINE metal::vec<half, 2> halves_of_e4m3(uint codes) {
  uint bits;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(bits) : "h"(static_cast<unsigned short>(codes)));
  return __builtin_bit_cast(metal::vec<half, 2>, bits);
}

// The upper bytes of the halves that codes of e2m1 stand for, whose lower ones are zero, and signs.
struct table_of_e2m1 {
  static constexpr uint below_2 = 0x3e3c3800u, from_2 = 0x46444240u, all_signs = 0x80808080u;
  uint below, from, signs;
};
// Converts four codes of 4 bits, in the low half of a word.
MSL_INLINE void halves_of_e2m1(metal::vec<half, 2> (&to)[2], const table_of_e2m1& table,
                               uint codes) {
  const uint magnitudes = ::__byte_perm(table.below, table.from, codes);  // by three bits of each
  // By all four: for a code whose highest bit is set, the sign of a byte eight times.
  uint signs;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(signs) : "r"(table.signs), "r"(codes));
  const uint bytes = magnitudes | (signs << 1 & 0x80808080u);
  to[0] = __builtin_bit_cast(metal::vec<half, 2>, ::__byte_perm(bytes, 0, 0x1404));
  to[1] = __builtin_bit_cast(metal::vec<half, 2>, ::__byte_perm(bytes, 0, 0x3424));
}

// A table of sixteen halves in registers, as their lower and their upper bytes.
struct table_of_halves {
  uint low[4], high[4];
};
// Returns bytes of the values of four codes. halves: for each, which byte it is of those below
// eight and of the others.
MSL_INLINE uint bytes_of_table(const uint (&table)[4], uint codes, uint halves) {
  const uint below = ::__byte_perm(table[0], table[1], codes);
  return ::__byte_perm(below, ::__byte_perm(table[2], table[3], codes), halves);
}
// Looks up four codes of 4 bits, in the low half of a word.
MSL_INLINE void halves_of_table(metal::vec<half, 2> (&to)[2], const table_of_halves& table,
                                uint codes) {
  const uint halves = (codes >> 1 & 0x4444u) | 0x3210u;
  const uint low = bytes_of_table(table.low, codes, halves);
  const uint high = bytes_of_table(table.high, codes, halves);
  to[0] = __builtin_bit_cast(metal::vec<half, 2>, ::__byte_perm(low, high, 0x5140));
  to[1] = __builtin_bit_cast(metal::vec<half, 2>, ::__byte_perm(low, high, 0x7362));
}

}  // namespace msl::mpp::tensor_ops

namespace msl::msl_impl {

// Elements of K that are decoded at a time.
constexpr int kDepthOfCodes = 64;

// Copies the codes of a warp's 16 lines. See run_coded().
template <class Source>
struct CodeLoader {
  static constexpr int in_line = Source::bits * kDepthOfCodes / 8;  // bytes of a block
  static constexpr int across = in_line / 16, pieces = 16 * across;
  static constexpr int turns = (pieces + 31) / 32;
  abi::u64 from[turns];
  uint lane;

  MSL_INLINE CodeLoader(const Source& source, int first_line, uint lane_in_warp)
      : lane(lane_in_warp) {
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) {
      from[i] = address_of(&source.line(first_line + piece(i) / across)[0]) +
                abi::u64(piece(i) % across * 16);
    }
  }
  // Starts to copy the next block.
  MSL_INLINE void bring(abi::u32 to) {
    MSL_UNROLLED
    for (int i = 0; i < turns; ++i) {
      if (pieces % 32 == 0 || int(lane) < pieces) copy_ahead(to + abi::u32(piece(i) * 16), from[i]);
      from[i] += in_line;
    }
  }

 private:
  MSL_INLINE int piece(int turn) const {
    return (pieces % 32 == 0 ? int(lane) : int(lane) % pieces) + turn * 32;
  }
};

// Keeps compilers from computing a struct of pointers anew wherever it is used.
template <class Pointers>
MSL_INLINE Pointers kept(const Pointers& pointers) {
  struct Words {
    abi::u64 of[sizeof(Pointers) / 8];
  };
  Words words = __builtin_bit_cast(Words, pointers);
  MSL_UNROLLED
  for (abi::u64& word : words.of) asm volatile("" : "+l"(word));
  return __builtin_bit_cast(Pointers, words);
}

// A lane's part of the fragments of 16 lines and 64 elements of K: of lines lane / 4 and eight
// below, two adjacent elements of each eight, those from lane % 4 * 2 on.
template <class Source>
struct CodedFragments {
  static constexpr int bits = Source::bits, in_line = CodeLoader<Source>::in_line;
  static constexpr int words = in_line / 4;
  static_assert(bits == 2 || bits == 4 || bits == 8, "Codes must be of 2, 4 or 8 bits");
  using Line = decltype(metal::declval<Source>().factors_of_line(0));
  using Factors = decltype(metal::declval<Source>().factors(metal::declval<Line>(), 0));
  const Source& source;
  uint lane;
  Line upper_line, lower_line;
  Factors upper, lower;  // of the two lines, loaded one block ahead

  MSL_INLINE CodedFragments(const Source& of, int first_line, uint lane_in_warp)
      : source(of),
        lane(lane_in_warp),
        upper_line(kept(of.factors_of_line(first_line + int(lane_in_warp >> 2)))),
        lower_line(kept(of.factors_of_line(first_line + int(lane_in_warp >> 2) + 8))) {
    load_factors(0);
  }
  MSL_INLINE void load_factors(int k) {
    upper = source.factors(upper_line, k);
    lower = source.factors(lower_line, k);
  }
  // Decodes a block, and loads the factors of the one that begins at element `following`.
  MSL_INLINE void decode(abi::u32 (&to)[16], abi::u32 codes, int following) {
    const Factors of_upper = upper, of_lower = lower;
    load_factors(following);
    decode_line<0>(to, codes, of_upper);
    decode_line<1>(to, codes, of_lower);
  }

 private:
  template <int H>
  MSL_INLINE void decode_line(abi::u32 (&to)[16], abi::u32 codes, const Factors& factors) const {
    using T = typename Source::element;
    using mpp::tensor_ops::coded_form;
    abi::u32 of_line[words];
    MSL_UNROLLED
    for (int i = 0; i < words; i += 4) {
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(of_line[i]), "=r"(of_line[i + 1]), "=r"(of_line[i + 2]),
                     "=r"(of_line[i + 3])
                   : "r"(codes + abi::u32((int(lane >> 2) + H * 8) * in_line + i * 4))
                   : "memory");
    }
    MSL_UNROLLED
    for (int eight = 0; eight < 8; eight += Source::form == coded_form::halves_of_bytes ? 2 : 1) {
      metal::vec<T, 2> values[2];
      if constexpr (Source::form == coded_form::halves_of_bytes) {
        source.four(values, bytes_of_two(of_line[eight], of_line[eight + 1]), factors, eight);
        to[(eight + 1) * 2 + H] = __builtin_bit_cast(abi::u32, values[1]);
      } else {
        values[0] = source.two(of_pair(of_line, eight), factors, eight);
      }
      to[eight * 2 + H] = __builtin_bit_cast(abi::u32, values[0]);
    }
  }
  // Returns the lane's byte of each word, of codes of 4 bits.
  MSL_INLINE abi::u32 bytes_of_two(abi::u32 first, abi::u32 second) const {
    return ::__byte_perm(first, second, (lane & 3) * 0x11 + 0x40);
  }
  // Returns the lane's two codes of an eight.
  MSL_INLINE abi::u32 of_pair(const abi::u32 (&of_line)[words], int eight) const {
    const abi::u32 q = lane & 3;
    if constexpr (bits == 8) {
      constexpr bool are_apart = Source::form == mpp::tensor_ops::coded_form::apart;
      const abi::u32 which = are_apart ? q * 0x202 + 0x100 : q * 0x22 + 0x10;
      return ::__byte_perm(of_line[2 * eight], of_line[2 * eight + 1], which);
    } else if constexpr (bits == 4) {
      return ::__byte_perm(of_line[eight], 0, q * 0x101 + 0x4040);
    } else {
      const abi::u32 byte = (q >> 1) + abi::u32(eight % 2 * 2);
      return ::__byte_perm(of_line[eight / 2], 0, byte * 0x101 + 0x4040) >> ((q & 1) * 4);
    }
  }
};

// Adds the sums of all scopes of a threadgroup to those of the first.
template <int Splits, int Capacity, int Threads>
MSL_INLINE void add_scopes(abi::u32 memory, int scope, int thread, float* sums) {
  const auto at = [&](int of, int slot) {
    return memory + abi::u32(((of - 1) * Capacity + slot) * Threads + thread) * 4;
  };
  ::__syncthreads();
  if (scope > 0) {
    MSL_UNROLLED
    for (int slot = 0; slot < Capacity; ++slot) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(at(scope, slot)), "f"(sums[slot]) : "memory");
    }
  }
  ::__syncthreads();
  if (scope == 0) {
#pragma unroll 1
    for (int of = 1; of < Splits; ++of) {
      MSL_UNROLLED
      for (int slot = 0; slot < Capacity; ++slot) {
        float other;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(other) : "r"(at(of, slot)) : "memory");
        sums[slot] += other;
      }
    }
  }
}

// Computes the tile of a scope's warpgroups. Each warp copies and decodes the codes of its own 16
// lines. Splits: scopes in the threadgroup, whose memory lies one behind the other.
template <class T, int M, int N, int Simdgroups, int Splits, class Source>
struct CodedProduct {
  using Codes = CodeLoader<Source>;
  using Fragments = CodedFragments<Source>;
  using B = StagedBlock<T, N, kDepthOfCodes, true>;
  static constexpr int capacity = WarpTile<16, N>::capacity;
  static constexpr int bytes = B::bytes + M * Codes::in_line;
  // Two threadgroups of one warpgroup share a multiprocessor; and what is left is the L1 cache,
  // which keeps the lines' factors until the next blocks need those beside them.
  static constexpr int room_of_scopes = Splits > 1 ? 130 : Simdgroups == 4 ? 112 : 162;  // KiB
  static constexpr int room = (room_of_scopes / Splits - 1) * 1024;
  static constexpr int count = room / bytes < 12 ? room / bytes : 12;
  static constexpr int all_bytes = count * bytes + 1024;  // barriers are behind the stages
  static_assert(M == Simdgroups * 16 && count >= 3);

  abi::u32 memory;
  int scope, thread, blocks;  // thread: in the scope
  float* sums;

  // Waits for all threads of the scope.
  MSL_INLINE void meet() const {
    if constexpr (Splits == 1) {
      ::__syncthreads();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(scope + 1), "n"(Simdgroups * 32) : "memory");
    }
  }
  MSL_INLINE abi::u32 stage_at(int stage) const { return memory + abi::u32(stage * bytes); }
  MSL_INLINE abi::u32 codes_at(int stage) const {
    return stage_at(stage) + abi::u32(B::bytes + thread / 32 * 16 * Codes::in_line);
  }
  MSL_INLINE void multiply(int stage, abi::u32 (&a)[16]) const {
    constexpr abi::u64 right =
        matrix_in_memory<B::line_bytes>(B::between_blocks, B::line_bytes * 8);
    const abi::u64 description = matrix_at(right, stage_at(stage));
    // Registers that are written once products have begun keep these from running together.
    MSL_UNROLLED
    for (int i = 0; i < 16; ++i) asm volatile("" : "+r"(a[i])::"memory");
    pin_sums<capacity>(sums);
    begin_products();
    MSL_UNROLLED
    for (int s = 0; s < 4; ++s) {
      const abi::u32 fragment[4] = {a[s * 4], a[s * 4 + 1], a[s * 4 + 2], a[s * 4 + 3]};
      multiply_registers_in_warpgroup<T, N, true>(
          sums, fragment, description + abi::u64(B::address(0, s * 16) / 16), true);
    }
    end_products();
    pin_sums<capacity>(sums);
  }
  static MSL_INLINE int following(int stage) { return stage + 1 == count ? 0 : stage + 1; }

  // The right operand's copies, by threads and by the copy engine: bring() starts one, enter()
  // waits for one, and leave() tells that a product is done. `ahead`: how many blocks are copied
  // before one is multiplied.
  struct ByThreads {
    // A stage is filled anew when all warpgroups have finished its product, which they know when
    // they meet next.
    static constexpr int ahead = count - 2;
    const CodedProduct& of;
    abi::u64 from;
    long stride;  // of lines, in bytes
    int lines;
    MSL_INLINE void begin() const {}
    MSL_INLINE void bring(int block, int stage) const {
#pragma unroll 1
      for (int at = of.thread; at < B::lines * B::chunks; at += Simdgroups * 32) {
        const int line = at / B::chunks, chunk = at % B::chunks;
        const abi::u64 apart = abi::u64(line * stride + block * B::line_bytes + chunk * 16);
        copy_ahead(of.stage_at(stage) + B::place(line, chunk), line < lines ? from + apart : from,
                   line < lines ? 16 : 0);
      }
    }
    MSL_INLINE void enter(int, abi::u32) const {
      show_to_tensor_cores();
      of.meet();
    }
    MSL_INLINE void leave(int) const {}
    MSL_INLINE void wait_to_bring(int, abi::u32) const {}
    MSL_INLINE void end() const {}
  };
  struct ByMaps {
    static constexpr int ahead = count - 1, box = N % 64 == 0 ? 64 : 16;
    static_assert(N / box <= Simdgroups);  // each of the first simdgroups copies a box
    const CodedProduct& of;
    MappedOperand operand;
    MSL_INLINE abi::u32 full(int stage) const {
      return of.memory + abi::u32(count * bytes + 8 * stage);
    }
    MSL_INLINE abi::u32 empty(int stage) const { return full(stage) + 8 * count; }
    MSL_INLINE bool brings() const { return of.thread % 32 == 0 && of.thread < N / box * 32; }
    MSL_INLINE void begin() const {
      if (of.thread == 0) {
        MSL_UNROLLED
        for (int stage = 0; stage < count; ++stage) {
          begin_barrier(full(stage), 1);
          begin_barrier(empty(stage), Simdgroups);
        }
        show_to_copy_engine();
      }
      of.meet();
    }
    MSL_INLINE void bring(int block, int stage) const {
      if (brings()) {
        const int line = of.thread / 32 * box;
        // Bytes may arrive before they are expected: until then, the barrier waits for this
        // arrival.
        if (of.thread == 0) expect_bytes(full(stage), B::bytes);
        copy_box(of.stage_at(stage) + abi::u32(line * B::line_bytes),
                 box == 64 ? operand.of_64_rows : operand.of_16_rows,
                 operand.x + block * kDepthOfCodes, operand.y + line, full(stage));
      }
    }
    MSL_INLINE void enter(int stage, abi::u32 parity) const { wait_at(full(stage), parity); }
    MSL_INLINE void leave(int stage) const {
      if (warp_lane() == 0) arrive_at(empty(stage));
    }
    MSL_INLINE void wait_to_bring(int stage, abi::u32 parity) const {
      if (brings()) wait_at(empty(stage), parity);
    }
    MSL_INLINE void end() const {
      of.meet();
      if (of.thread == 0) {
        MSL_UNROLLED
        for (int b = 0; b < 2 * count; ++b) end_barrier(full(b));
      }
      ::__syncwarp();
    }
  };

  template <class Right>
  MSL_INLINE void run(const Source& source, const Right& right) const {
    constexpr int ahead = Right::ahead;
    const uint lane = warp_lane();
    const int first_line = thread / 32 * 16;
    Codes codes(source, first_line, lane);
    Fragments fragments(source, first_line, lane);
    right.begin();
#pragma unroll 1
    for (int block = 0; block < ahead; ++block) {
      if (block < blocks) {
        right.bring(block, block);
        codes.bring(codes_at(block));
      }
      end_of_copies();
    }
    const int last = (blocks - 1) * kDepthOfCodes;
    const auto decode = [&](int block, int stage, abi::u32(&to)[16]) {
      wait_for_copies<ahead - 1>();
      ::__syncwarp();
      fragments.decode(to, codes_at(stage), metal::min((block + 1) * kDepthOfCodes, last));
    };
    abi::u32 even[16], odd[16];
    decode(0, 0, even);
    int stage = 0, before = count - 1, next = ahead;
    abi::u32 parity = 0, parity_before = 1;
    const auto step = [&](int block, abi::u32(&now)[16], abi::u32(&later)[16]) {
      right.enter(stage, parity);
      multiply(stage, now);
      wait_for_products<1>();
      if (block > 0) right.leave(before);
      if (block + ahead < blocks) {
        if (block > 0) right.wait_to_bring(before, parity_before);
        right.bring(block + ahead, next);
        codes.bring(codes_at(next));
      }
      end_of_copies();
      before = stage;
      parity_before = parity;
      stage = following(stage);
      next = following(next);
      if (stage == 0) parity ^= 1;
      // Behind the last block, what is decoded is not used.
      decode(block + 1, stage, later);
    };
    int block = 0;
#pragma unroll 1
    for (; block + 1 < blocks; block += 2) {
      step(block, even, odd);
      step(block + 1, odd, even);
    }
    if (block < blocks) step(block, even, odd);
    wait_for_products<0>();
    pin_sums<capacity>(sums);
    wait_for_copies<0>();
    right.end();
  }
};

template <class T, int M, int N, int Simdgroups, int Splits, class Source, class Right>
MSL_INLINE void multiply_coded(const Source& source, const Right& right, int inner, float* sums) {
  using Product = CodedProduct<T, M, N, Simdgroups, Splits, Source>;
  constexpr int threads = Simdgroups * 32;
  // Uniform in a warp, as the compiler can see.
  const int warp = ::__shfl_sync(~0u, int(index_in_threadgroup() / 32), 0);
  const int scope = warp / Simdgroups, thread = warp % Simdgroups * 32 + int(warp_lane());
  const abi::u32 memory = launched_memory<Splits * Product::all_bytes>();
  show_to_copy_engine();
  ::__syncthreads();  // an earlier operation may still be reading
  const Product product{memory + abi::u32(scope * Product::all_bytes), scope, thread,
                        inner / kDepthOfCodes, sums};
  if (product.blocks > 0) {
    const MappedOperand b = mapped<sizeof(T), true>(right, N, inner);
    if (b.exists) {
      const typename Product::ByMaps boxes{product, b};
      product.run(source, boxes);
    } else {
      const typename Product::ByThreads copies{product, address_of(right.first.handle()),
                                               right.row_stride * long(sizeof(T)), int(right.rows)};
      product.run(source, copies);
    }
  }
  if constexpr (Splits > 1) {
    static_assert((Splits - 1) * Product::capacity * threads * 4 <= Splits * Product::all_bytes);
    add_scopes<Splits, Product::capacity, threads>(memory, scope, thread, sums);
  }
}

// Stores four elements, of which `left` exist.
template <class T>
MSL_INLINE void store_four(T* to, abi::u32 low, abi::u32 high, bool are_aligned, int left) {
  if (are_aligned && left >= 4) {
    asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(low), "r"(high) : "memory");
    return;
  }
  MSL_UNROLLED
  for (int e = 0; e < 4; ++e) {
    const abi::u32 two = e < 2 ? low : high;
    if (e < left) to[e] = __builtin_bit_cast(T, ushort(e % 2 ? two >> 16 : two & 0xffffu));
  }
}

}  // namespace msl::msl_impl

namespace msl::mpp::tensor_ops {

// Adds the product of coded lines and of a transposed right operand to a cooperative tensor.
// Splits: scopes of the operation in the threadgroup, each with a part of K; the first has the sum.
// K, a multiple of 64, is `inner`. The right operand is in device memory, with rows at multiples of
// 16 bytes. Source has
//   element, the type of factors: half or bfloat;
//   bits, of a code: 2, 4 or 8; and form, in which codes are given (coded_form);
//   line(i), a pointer to the codes of line i of the tile in device memory, a multiple of 16 bytes;
//   factors_of_line(i), and factors(of_line, k), what else its elements [k, k + 64) are decoded
//     from;
//   two(codes, factors, eight): two adjacent elements of the given eight of 64; or, of halves of
//     bytes, four(to, codes, factors, eight), two of it and two of the next one.
template <int Splits, class Operation, class Source, class Right, class Destination>
MSL_INLINE void run_coded(const Operation&, const Source& left, const Right& right, int inner,
                          Destination& destination) {
  using namespace msl_impl;
  constexpr matmul2d_descriptor D = Operation::descriptor;
  constexpr int simdgroups = ScopeOf<typename Operation::scope>::simdgroups;
  using T = typename Source::element;
  static_assert(simdgroups % 4 == 0 && D.m == simdgroups * 16 && D.transpose_right,
                "M must be 16 for each simdgroup of warpgroups, and the right operand transposed");
  with_sums<D.m, D.n, simdgroups, true>(destination, [&](const auto&, uint, float* sums) {
    const auto by_column = tile_view(view_of(right, false), D.n, inner);
    multiply_coded<T, D.m, D.n, simdgroups, Splits>(left, by_column, inner, sums);
  });
}

// Stores a cooperative tensor of sums to a matrix of 16-bit elements whose columns are the tensor's
// rows. to: of its first element; rows, columns: as many of the tensor exist. finish.of_row(i):
// what finish.value(sum, of_row) takes, which returns the element.
template <class Sums, class T, class Finish>
MSL_INLINE void store_turned(const Sums& sums, T* to, long stride, int rows, int columns,
                             const Finish& finish) {
  using namespace msl_impl;
  constexpr int n = Sums::layout::descriptor.n;
  const uint lane = warp_lane(), q = lane & 3;
  const int first = int(index_in_threadgroup() / 32) * 16, upper = first + int(lane >> 2);
  const auto of_upper = finish.of_row(upper), of_lower = finish.of_row(upper + 8);
  const auto word = [&](int slot, const auto& of_row) {
    return abi::u32(T(finish.value(sums[ushort(slot)], of_row)).bits) |
           abi::u32(T(finish.value(sums[ushort(slot + 1)], of_row)).bits) << 16;
  };
  // Lanes turn matrices of 8 x 8, and have four adjacent elements once they have exchanged two.
  const int row = first + int(q & 1) * 8 + int(q & 2) * 2;
  const bool are_aligned = (address_of(to) | abi::u64(stride * 2)) % 8 == 0;
  MSL_UNROLLED
  for (int j = 0; j < n / 8; ++j) {
    const int slot = j / 2 * 8 + j % 2 * 2, column = j * 8 + int(lane >> 2);
    ::__syncwarp();
    abi::u32 low = transposed(word(slot, of_upper)), high = transposed(word(slot + 4, of_lower));
    exchange_words(low, high, q & 1, 1);
    if (column < columns) {
      store_four(to + column * stride + row, low, high, are_aligned, rows - row);
    }
  }
}

}  // namespace msl::mpp::tensor_ops
