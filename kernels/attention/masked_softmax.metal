// Masked softmax over rows, forward and backward. Masked elements count as -infinity and their
// results are zero; a fully masked row becomes NaN, as in torch. A mask of numbers is added to the
// elements instead.
//
// A row is processed by a thread if it is short, else by a simdgroup or a threadgroup whose threads
// keep it in registers, so that it is read once. Rows too long for that take a threadgroup that
// reads them twice (online softmax). Threads load vectors of four adjacent elements; the remaining
// elements of a row go to the first threads, one each. Sums are float for all dtypes.
//
// Operations on a vector are written out per element, so that a CPU compiler vectorises the loops
// over threads.
#include <c10/metal/reduction_utils.h>

#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/attention/masked_softmax.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kSimdgroup = c10::metal::simdgroup_size;

// ---- elements -----------------------------------------------------------------------------------

// Returns `instead` if `masked`, else `value`. It has no branch: random masks are badly predicted,
// and loops with branches are not vectorised.
inline float unless_masked(bool masked, float value, float instead) {
  const uint bits = -static_cast<uint>(masked);
  return as_type<float>((as_type<uint>(value) & ~bits) | (as_type<uint>(instead) & bits));
}

inline float with_mask(float score, bool mask) { return unless_masked(mask, score, -INFINITY); }

template <typename T>
inline float with_mask(float score, T mask) {
  return score + static_cast<float>(mask);
}

// Softmax backward of an element: y (g - sum), or zero if it is masked.
template <typename T>
inline T gradient(T y, T g, bool masked, float sum) {
  const float value = static_cast<float>(y) * (static_cast<float>(g) - sum);
  return static_cast<T>(unless_masked(masked, value, 0.0f));
}

inline float larger(float a, float b) { return b > a ? b : a; }

inline float largest_of(float4 pack) {
  return larger(larger(pack.x, pack.y), larger(pack.z, pack.w));
}

inline float sum_of(float4 pack) { return (pack.x + pack.y) + (pack.z + pack.w); }

// ---- vectors of four adjacent elements ----------------------------------------------------------

// kAligned: rows can be loaded as whole vectors.
template <bool kAligned, typename T>
inline vec<T, 4> load(constant T* x) {
  if (kAligned) {
    return *reinterpret_cast<constant vec<T, 4>*>(x);
  }
  return vec<T, 4>(x[0], x[1], x[2], x[3]);
}

template <bool kAligned, typename T>
inline void store(device T* x, vec<T, 4> pack) {
  if (kAligned) {
    *reinterpret_cast<device vec<T, 4>*>(x) = pack;
  } else {
    x[0] = pack.x;
    x[1] = pack.y;
    x[2] = pack.z;
    x[3] = pack.w;
  }
}

template <bool kAligned, typename T, typename Mask>
inline float4 load_scores(constant T* input, constant Mask* mask) {
  const vec<T, 4> x = load<kAligned>(input);
  const vec<Mask, 4> m = load<kAligned>(mask);
  float4 scores;
  scores.x = with_mask(static_cast<float>(x.x), m.x);
  scores.y = with_mask(static_cast<float>(x.y), m.y);
  scores.z = with_mask(static_cast<float>(x.z), m.z);
  scores.w = with_mask(static_cast<float>(x.w), m.w);
  return scores;
}

template <bool kAligned, typename T>
inline float4 load_unless_masked(constant T* values, constant bool* mask) {
  const vec<T, 4> x = load<kAligned>(values);
  const vec<bool, 4> m = load<kAligned>(mask);
  float4 pack;
  pack.x = unless_masked(m.x, static_cast<float>(x.x), 0.0f);
  pack.y = unless_masked(m.y, static_cast<float>(x.y), 0.0f);
  pack.z = unless_masked(m.z, static_cast<float>(x.z), 0.0f);
  pack.w = unless_masked(m.w, static_cast<float>(x.w), 0.0f);
  return pack;
}

// ---- teams: reductions over a simdgroup or a threadgroup ----------------------------------------

// Returns the max that exponentials are relative to: 0 if nothing was seen yet, so that -INFINITY -
// -INFINITY does not occur.
inline float shift_of(float running_max) { return running_max == -INFINITY ? 0.0f : running_max; }

struct Simdgroup {
  static constexpr constant bool kIsThreadgroup = false;
  static void wait() {}
  static float sum(threadgroup float*, float part, uint, uint) { return simd_sum(part); }
};

struct Threadgroup {
  static constexpr constant bool kIsThreadgroup = true;
  static void wait() { threadgroup_barrier(mem_flags::mem_threadgroup); }
  static float sum(threadgroup float* shared, float part, uint lane, uint lanes) {
    return c10::metal::threadgroup_sum(shared, part, lane, lanes);
  }
};

// Rescales a sum of exponentials relative to `running_max` to one relative to `new_max`.
inline float rescaled(float sum, float running_max, float new_max) {
  return sum * precise::exp(running_max - shift_of(new_max));
}

// Returns the max of a row and the sum of its exponentials relative to it, from those of a
// threadgroup's threads. Every simdgroup combines the partial results of all of them, which takes
// one barrier.
template <typename Team>
inline float2 combined(threadgroup float2* shared, float running_max, float total, uint simd_lane,
                       uint simd, uint simds) {
  const float simd_row_max = simd_max(running_max);
  const float simd_total = simd_sum(rescaled(total, running_max, simd_row_max));
  if (simd_lane == 0) {
    shared[simd] = float2(simd_row_max, simd_total);
  }
  Team::wait();
  const float2 part = simd_lane < simds ? shared[simd_lane] : float2(-INFINITY, 0.0f);
  const float row_max = simd_max(part.x);
  return float2(row_max, simd_sum(rescaled(part.y, part.x, row_max)));
}

// ---- rows kept in registers ---------------------------------------------------------------------

template <typename T, typename Mask, typename Team, uint kPacks, bool kAligned>
kernel void masked_softmax_kept_rows(
    device T* results [[buffer(0)]], constant T* inputs [[buffer(1)]],
    constant Mask* masks [[buffer(2)]], constant MaskedSoftmaxParameters& parameters [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]], uint2 groups [[threadgroups_per_grid]],
    uint index [[thread_index_in_threadgroup]], uint simd_lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
  threadgroup float2 shared[kSimdgroup];  // the max, and the sum relative to it
  const int64_t team = static_cast<int64_t>(group.y) * groups.x + group.x;
  const int64_t row = Team::kIsThreadgroup ? team : team * simds + simd;
  if (row >= parameters.rows) {
    return;
  }
  const uint lane = Team::kIsThreadgroup ? index : simd_lane;
  const uint lanes = Team::kIsThreadgroup ? simds * kSimdgroup : kSimdgroup;
  const uint size = static_cast<uint>(parameters.size);
  const uint packs = size / 4;
  const uint remaining = packs * 4 + lane;
  constant T* input = inputs + row * parameters.size;
  const uint mask_row = static_cast<uint>(row) / static_cast<uint>(parameters.repeats) %
                        static_cast<uint>(parameters.mask_rows);
  constant Mask* mask =
      masks + (parameters.mask_rows == parameters.rows ? row : mask_row) * parameters.size;
  device T* result = results + row * parameters.size;

  float4 kept[kPacks];
  float running_max = -INFINITY;
  for (uint i = 0; i < kPacks; ++i) {
    const uint pack = lane + i * lanes;
    kept[i] =
        pack < packs ? load_scores<kAligned>(input + pack * 4, mask + pack * 4) : float4(-INFINITY);
    running_max = larger(running_max, largest_of(kept[i]));
  }
  float last = -INFINITY;
  if (!kAligned && remaining < size) {
    last = with_mask(static_cast<float>(input[remaining]), mask[remaining]);
  }
  running_max = larger(running_max, last);
  float shift = shift_of(running_max);
  if (!Team::kIsThreadgroup) {
    shift = simd_max(running_max);
  }
  float total = 0.0f;
  for (uint i = 0; i < kPacks; ++i) {
    kept[i].x = precise::exp(kept[i].x - shift);
    kept[i].y = precise::exp(kept[i].y - shift);
    kept[i].z = precise::exp(kept[i].z - shift);
    kept[i].w = precise::exp(kept[i].w - shift);
    total += sum_of(kept[i]);
  }
  if (!kAligned) {
    last = precise::exp(last - shift);
    total += last;
  }
  float factor = 0.0f;
  if (Team::kIsThreadgroup) {
    const float2 of_row = combined<Team>(shared, running_max, total, simd_lane, simd, simds);
    factor = precise::exp(running_max - of_row.x) / of_row.y;
  } else {
    factor = 1.0f / simd_sum(total);
  }
  for (uint i = 0; i < kPacks; ++i) {
    const uint pack = lane + i * lanes;
    if (pack < packs) {
      vec<T, 4> y;
      y.x = static_cast<T>(kept[i].x * factor);
      y.y = static_cast<T>(kept[i].y * factor);
      y.z = static_cast<T>(kept[i].z * factor);
      y.w = static_cast<T>(kept[i].w * factor);
      store<kAligned>(result + pack * 4, y);
    }
  }
  if (!kAligned && remaining < size) {
    result[remaining] = static_cast<T>(last * factor);
  }
}

// Softmax backward: y (g - sum of g y), where y is the softmax and g the gradient with respect to
// it; zero for masked elements.
template <typename T, typename Team, uint kPacks, bool kAligned>
kernel void masked_softmax_backward_kept_rows(
    device T* grad_inputs [[buffer(0)]], constant T* grads [[buffer(1)]],
    constant T* results [[buffer(2)]], constant bool* masks [[buffer(3)]],
    constant MaskedSoftmaxParameters& parameters [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]], uint2 groups [[threadgroups_per_grid]],
    uint index [[thread_index_in_threadgroup]], uint simd_lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
  threadgroup float sums[kSimdgroup];
  const int64_t team = static_cast<int64_t>(group.y) * groups.x + group.x;
  const int64_t row = Team::kIsThreadgroup ? team : team * simds + simd;
  if (row >= parameters.rows) {
    return;
  }
  const uint lane = Team::kIsThreadgroup ? index : simd_lane;
  const uint lanes = Team::kIsThreadgroup ? simds * kSimdgroup : kSimdgroup;
  const uint size = static_cast<uint>(parameters.size);
  const uint packs = size / 4;
  const uint remaining = packs * 4 + lane;
  constant T* grad = grads + row * parameters.size;
  constant T* result = results + row * parameters.size;
  constant bool* mask = masks + row * parameters.size;
  device T* grad_input = grad_inputs + row * parameters.size;

  float4 y[kPacks];
  float4 g[kPacks];
  float total = 0.0f;
  for (uint i = 0; i < kPacks; ++i) {
    const uint pack = lane + i * lanes;
    y[i] = pack < packs ? load_unless_masked<kAligned>(result + pack * 4, mask + pack * 4)
                        : float4(0.0f);
    g[i] = pack < packs ? load_unless_masked<kAligned>(grad + pack * 4, mask + pack * 4)
                        : float4(0.0f);
    total += (y[i].x * g[i].x + y[i].y * g[i].y) + (y[i].z * g[i].z + y[i].w * g[i].w);
  }
  float last_y = 0.0f;
  float last_g = 0.0f;
  if (!kAligned && remaining < size) {
    last_y = unless_masked(mask[remaining], static_cast<float>(result[remaining]), 0.0f);
    last_g = unless_masked(mask[remaining], static_cast<float>(grad[remaining]), 0.0f);
    total += last_y * last_g;
  }
  const float sum = Team::sum(sums, total, lane, lanes);
  for (uint i = 0; i < kPacks; ++i) {
    const uint pack = lane + i * lanes;
    if (pack < packs) {
      const vec<bool, 4> m = load<kAligned>(mask + pack * 4);
      vec<T, 4> x;
      x.x = static_cast<T>(unless_masked(m.x, y[i].x * (g[i].x - sum), 0.0f));
      x.y = static_cast<T>(unless_masked(m.y, y[i].y * (g[i].y - sum), 0.0f));
      x.z = static_cast<T>(unless_masked(m.z, y[i].z * (g[i].z - sum), 0.0f));
      x.w = static_cast<T>(unless_masked(m.w, y[i].w * (g[i].w - sum), 0.0f));
      store<kAligned>(grad_input + pack * 4, x);
    }
  }
  if (!kAligned && remaining < size) {
    grad_input[remaining] =
        static_cast<T>(unless_masked(mask[remaining], last_y * (last_g - sum), 0.0f));
  }
}

// ---- long rows ----------------------------------------------------------------------------------

constant constexpr uint kAtOnce = 4;          // vector loads in flight per thread
constant constexpr uint kMostThreads = 1024;  // per threadgroup

template <typename T, typename Mask, bool kAligned>
[[max_total_threads_per_threadgroup(kMostThreads)]] kernel void masked_softmax_long_rows(
    device T* results [[buffer(0)]], constant T* inputs [[buffer(1)]],
    constant Mask* masks [[buffer(2)]], constant MaskedSoftmaxParameters& parameters [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]], uint lane [[thread_position_in_threadgroup]],
    uint lanes [[threads_per_threadgroup]]) {
  threadgroup float2 shared[kSimdgroup];  // the max, and the sum relative to it
  const int64_t size = parameters.size;
  const int64_t packs = size / 4;
  const int64_t remaining = packs * 4 + lane;
  constant T* input = inputs + row * size;
  const uint mask_row =
      row / static_cast<uint>(parameters.repeats) % static_cast<uint>(parameters.mask_rows);
  constant Mask* mask = masks + mask_row * size;
  device T* result = results + row * size;

  float4 kept[kAtOnce];
  float running_max = -INFINITY;
  float total = 0.0f;
  for (int64_t first = 0; first < packs; first += kAtOnce * lanes) {
    float next = running_max;
    for (uint i = 0; i < kAtOnce; ++i) {
      const int64_t pack = first + i * lanes + lane;
      kept[i] = pack < packs ? load_scores<kAligned>(input + pack * 4, mask + pack * 4)
                             : float4(-INFINITY);
      next = larger(next, largest_of(kept[i]));
    }
    const float shift = shift_of(next);
    total *= precise::exp(shift_of(running_max) - shift);
    running_max = next;
    for (uint i = 0; i < kAtOnce; ++i) {
      kept[i].x = precise::exp(kept[i].x - shift);
      kept[i].y = precise::exp(kept[i].y - shift);
      kept[i].z = precise::exp(kept[i].z - shift);
      kept[i].w = precise::exp(kept[i].w - shift);
      total += sum_of(kept[i]);
    }
  }
  if (!kAligned && remaining < size) {
    const float score = with_mask(static_cast<float>(input[remaining]), mask[remaining]);
    const float next = larger(running_max, score);
    total = total * precise::exp(shift_of(running_max) - shift_of(next)) +
            precise::exp(score - shift_of(next));
    running_max = next;
  }
  const float2 of_row = combined<Threadgroup>(shared, running_max, total, lane % kSimdgroup,
                                              lane / kSimdgroup, lanes / kSimdgroup);
  const float row_max = of_row.x;
  const float factor = 1.0f / of_row.y;
  for (int64_t first = 0; first < packs; first += kAtOnce * lanes) {
    for (uint i = 0; i < kAtOnce; ++i) {
      const int64_t pack = first + i * lanes + lane;
      kept[i] = pack < packs ? load_scores<kAligned>(input + pack * 4, mask + pack * 4)
                             : float4(-INFINITY);
    }
    for (uint i = 0; i < kAtOnce; ++i) {
      kept[i].x = precise::exp(kept[i].x - row_max);
      kept[i].y = precise::exp(kept[i].y - row_max);
      kept[i].z = precise::exp(kept[i].z - row_max);
      kept[i].w = precise::exp(kept[i].w - row_max);
    }
    for (uint i = 0; i < kAtOnce; ++i) {
      const int64_t pack = first + i * lanes + lane;
      if (pack < packs) {
        vec<T, 4> y;
        y.x = static_cast<T>(kept[i].x * factor);
        y.y = static_cast<T>(kept[i].y * factor);
        y.z = static_cast<T>(kept[i].z * factor);
        y.w = static_cast<T>(kept[i].w * factor);
        store<kAligned>(result + pack * 4, y);
      }
    }
  }
  if (!kAligned && remaining < size) {
    const float score = with_mask(static_cast<float>(input[remaining]), mask[remaining]);
    result[remaining] = static_cast<T>(precise::exp(score - row_max) * factor);
  }
}

template <typename T, bool kAligned>
[[max_total_threads_per_threadgroup(kMostThreads)]] kernel void masked_softmax_backward_long_rows(
    device T* grad_inputs [[buffer(0)]], constant T* grads [[buffer(1)]],
    constant T* results [[buffer(2)]], constant bool* masks [[buffer(3)]],
    constant MaskedSoftmaxParameters& parameters [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]], uint lane [[thread_position_in_threadgroup]],
    uint lanes [[threads_per_threadgroup]]) {
  threadgroup float sums[kSimdgroup];
  const int64_t size = parameters.size;
  const int64_t packs = size / 4;
  const int64_t remaining = packs * 4 + lane;
  constant T* grad = grads + row * size;
  constant T* result = results + row * size;
  constant bool* mask = masks + row * size;
  device T* grad_input = grad_inputs + row * size;

  float total = 0.0f;
  for (int64_t pack = lane; pack < packs; pack += lanes) {
    const float4 y = load_unless_masked<kAligned>(result + pack * 4, mask + pack * 4);
    const float4 g = load_unless_masked<kAligned>(grad + pack * 4, mask + pack * 4);
    total += (y.x * g.x + y.y * g.y) + (y.z * g.z + y.w * g.w);
  }
  if (!kAligned && remaining < size) {
    const float product =
        static_cast<float>(result[remaining]) * static_cast<float>(grad[remaining]);
    total += unless_masked(mask[remaining], product, 0.0f);
  }
  const float sum = c10::metal::threadgroup_sum(sums, total, lane, lanes);
  for (int64_t pack = lane; pack < packs; pack += lanes) {
    const vec<T, 4> y = load<kAligned>(result + pack * 4);
    const vec<T, 4> g = load<kAligned>(grad + pack * 4);
    const vec<bool, 4> m = load<kAligned>(mask + pack * 4);
    vec<T, 4> x;
    x.x = gradient<T>(y.x, g.x, m.x, sum);
    x.y = gradient<T>(y.y, g.y, m.y, sum);
    x.z = gradient<T>(y.z, g.z, m.z, sum);
    x.w = gradient<T>(y.w, g.w, m.w, sum);
    store<kAligned>(grad_input + pack * 4, x);
  }
  if (!kAligned && remaining < size) {
    grad_input[remaining] = gradient<T>(result[remaining], grad[remaining], mask[remaining], sum);
  }
}

// ---- short rows ---------------------------------------------------------------------------------

constant constexpr uint kBlock = 16;  // elements per CPU vector operation

template <uint kCount>
inline float largest_of(thread const float (&values)[kCount]) {
  float parts[kBlock];
  for (uint i = 0; i < kBlock; ++i) {
    parts[i] = values[i];
  }
  for (uint i = kBlock; i < kCount; ++i) {
    parts[i % kBlock] = larger(parts[i % kBlock], values[i]);
  }
  for (uint half_of = kBlock / 2; half_of > 0; half_of /= 2) {
    for (uint i = 0; i < half_of; ++i) {
      parts[i] = larger(parts[i], parts[i + half_of]);
    }
  }
  return parts[0];
}

template <uint kCount>
inline float sum_of(thread const float (&values)[kCount]) {
  float parts[kBlock];
  for (uint i = 0; i < kBlock; ++i) {
    parts[i] = values[i];
  }
  for (uint i = kBlock; i < kCount; ++i) {
    parts[i % kBlock] += values[i];
  }
  for (uint half_of = kBlock / 2; half_of > 0; half_of /= 2) {
    for (uint i = 0; i < half_of; ++i) {
      parts[i] += parts[i + half_of];
    }
  }
  return parts[0];
}

// Returns the row of the mask for `row`. Divides in 32 bits where possible: a 64-bit division is
// slow on a GPU.
inline int64_t mask_row(int64_t row, constant MaskedSoftmaxParameters& parameters) {
  if (parameters.mask_rows == parameters.rows) {
    return row;
  }
  if (parameters.rows <= 0xffffffff) {
    return static_cast<uint>(row) / static_cast<uint>(parameters.repeats) %
           static_cast<uint>(parameters.mask_rows);
  }
  return row / parameters.repeats % parameters.mask_rows;
}

// kCount: at least the number of elements of a row; kFull: exactly that number.
template <uint kCount, bool kFull, typename T, typename Mask>
inline void softmax(device T* result, constant T* input, constant Mask* mask, uint size) {
  float kept[kCount];
  for (uint i = 0; i < kCount; ++i) {
    kept[i] = kFull || i < size ? with_mask(static_cast<float>(input[i]), mask[i]) : -INFINITY;
  }
  const float row_max = largest_of(kept);
  for (uint i = 0; i < kCount; ++i) {
    kept[i] = precise::exp(kept[i] - row_max);
  }
  const float factor = 1.0f / sum_of(kept);
  for (uint i = 0; i < kCount; ++i) {
    if (kFull || i < size) {
      result[i] = static_cast<T>(kept[i] * factor);
    }
  }
}

template <uint kCount, bool kFull, typename T>
inline void softmax_backward(device T* grad_input, constant T* grad, constant T* result,
                             constant bool* mask, uint size) {
  float products[kCount];
  for (uint i = 0; i < kCount; ++i) {
    products[i] = 0.0f;
    if (kFull || i < size) {
      const float product = static_cast<float>(result[i]) * static_cast<float>(grad[i]);
      products[i] = unless_masked(mask[i], product, 0.0f);
    }
  }
  const float sum = sum_of(products);
  for (uint i = 0; i < kCount; ++i) {
    if (kFull || i < size) {
      const float value = static_cast<float>(result[i]) * (static_cast<float>(grad[i]) - sum);
      grad_input[i] = static_cast<T>(unless_masked(mask[i], value, 0.0f));
    }
  }
}

template <typename T, typename Mask, uint kCount>
kernel void masked_softmax_short_rows(device T* results [[buffer(0)]],
                                      constant T* inputs [[buffer(1)]],
                                      constant Mask* masks [[buffer(2)]],
                                      constant MaskedSoftmaxParameters& parameters [[buffer(3)]],
                                      uint2 position [[thread_position_in_grid]],
                                      uint2 grid [[threads_per_grid]]) {
  const int64_t row = thread_index(position, grid);
  if (row >= parameters.rows) {
    return;
  }
  const uint size = static_cast<uint>(parameters.size);
  constant T* input = inputs + row * parameters.size;
  constant Mask* mask = masks + mask_row(row, parameters) * parameters.size;
  device T* result = results + row * parameters.size;
  if (size == kCount) {
    softmax<kCount, true>(result, input, mask, size);
  } else {
    softmax<kCount, false>(result, input, mask, size);
  }
}

template <typename T, uint kCount>
kernel void masked_softmax_backward_short_rows(
    device T* grad_inputs [[buffer(0)]], constant T* grads [[buffer(1)]],
    constant T* results [[buffer(2)]], constant bool* masks [[buffer(3)]],
    constant MaskedSoftmaxParameters& parameters [[buffer(4)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const int64_t row = thread_index(position, grid);
  if (row >= parameters.rows) {
    return;
  }
  const uint size = static_cast<uint>(parameters.size);
  const int64_t first = row * parameters.size;
  if (size == kCount) {
    softmax_backward<kCount, true>(grad_inputs + first, grads + first, results + first,
                                   masks + first, size);
  } else {
    softmax_backward<kCount, false>(grad_inputs + first, grads + first, results + first,
                                    masks + first, size);
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_SHORT_ROWS(T, MASK, COUNT)                                                        \
  REGISTER_KERNEL("masked_softmax_short_rows_" #T "_" #MASK "_" #COUNT, masked_softmax_short_rows, \
                  T, MASK, COUNT)

#define REGISTER_KEPT_ROWS(T, MASK, NAME, TEAM, PACKS, ALIGNED)                               \
  REGISTER_KERNEL("masked_softmax_" NAME "_" #T "_" #MASK, masked_softmax_kept_rows, T, MASK, \
                  TEAM, PACKS, ALIGNED)

#define REGISTER_LONG_ROWS(T, MASK, NAME, ALIGNED)                                            \
  REGISTER_KERNEL("masked_softmax_" NAME "_" #T "_" #MASK, masked_softmax_long_rows, T, MASK, \
                  ALIGNED)

#define REGISTER_MASKED_SOFTMAX(T, MASK)                                     \
  REGISTER_SHORT_ROWS(T, MASK, 16);                                          \
  REGISTER_SHORT_ROWS(T, MASK, 32);                                          \
  REGISTER_KEPT_ROWS(T, MASK, "simd_rows_1", Simdgroup, 1, true);            \
  REGISTER_KEPT_ROWS(T, MASK, "simd_rows_2", Simdgroup, 2, true);            \
  REGISTER_KEPT_ROWS(T, MASK, "simd_rows_4", Simdgroup, 4, true);            \
  REGISTER_KEPT_ROWS(T, MASK, "simd_rows_8", Simdgroup, 8, true);            \
  REGISTER_KEPT_ROWS(T, MASK, "group_rows_8", Threadgroup, 8, true);         \
  REGISTER_LONG_ROWS(T, MASK, "long_rows", true);                            \
  REGISTER_KEPT_ROWS(T, MASK, "ragged_simd_rows_1", Simdgroup, 1, false);    \
  REGISTER_KEPT_ROWS(T, MASK, "ragged_simd_rows_2", Simdgroup, 2, false);    \
  REGISTER_KEPT_ROWS(T, MASK, "ragged_simd_rows_4", Simdgroup, 4, false);    \
  REGISTER_KEPT_ROWS(T, MASK, "ragged_simd_rows_8", Simdgroup, 8, false);    \
  REGISTER_KEPT_ROWS(T, MASK, "ragged_group_rows_8", Threadgroup, 8, false); \
  REGISTER_LONG_ROWS(T, MASK, "ragged_long_rows", false)

#define REGISTER_BACKWARD_SHORT_ROWS(T, COUNT)                         \
  REGISTER_KERNEL("masked_softmax_backward_short_rows_" #T "_" #COUNT, \
                  masked_softmax_backward_short_rows, T, COUNT)

#define REGISTER_BACKWARD_KEPT_ROWS(T, NAME, TEAM, PACKS, ALIGNED)                              \
  REGISTER_KERNEL("masked_softmax_backward_" NAME "_" #T, masked_softmax_backward_kept_rows, T, \
                  TEAM, PACKS, ALIGNED)

#define REGISTER_BACKWARD_LONG_ROWS(T, NAME, ALIGNED)                                           \
  REGISTER_KERNEL("masked_softmax_backward_" NAME "_" #T, masked_softmax_backward_long_rows, T, \
                  ALIGNED)

#define REGISTER_MASKED_SOFTMAX_BACKWARD(T)                                     \
  REGISTER_BACKWARD_SHORT_ROWS(T, 16);                                          \
  REGISTER_BACKWARD_SHORT_ROWS(T, 32);                                          \
  REGISTER_BACKWARD_KEPT_ROWS(T, "simd_rows_1", Simdgroup, 1, true);            \
  REGISTER_BACKWARD_KEPT_ROWS(T, "simd_rows_2", Simdgroup, 2, true);            \
  REGISTER_BACKWARD_KEPT_ROWS(T, "simd_rows_4", Simdgroup, 4, true);            \
  REGISTER_BACKWARD_KEPT_ROWS(T, "simd_rows_8", Simdgroup, 8, true);            \
  REGISTER_BACKWARD_KEPT_ROWS(T, "group_rows_8", Threadgroup, 8, true);         \
  REGISTER_BACKWARD_LONG_ROWS(T, "long_rows", true);                            \
  REGISTER_BACKWARD_KEPT_ROWS(T, "ragged_simd_rows_1", Simdgroup, 1, false);    \
  REGISTER_BACKWARD_KEPT_ROWS(T, "ragged_simd_rows_2", Simdgroup, 2, false);    \
  REGISTER_BACKWARD_KEPT_ROWS(T, "ragged_simd_rows_4", Simdgroup, 4, false);    \
  REGISTER_BACKWARD_KEPT_ROWS(T, "ragged_simd_rows_8", Simdgroup, 8, false);    \
  REGISTER_BACKWARD_KEPT_ROWS(T, "ragged_group_rows_8", Threadgroup, 8, false); \
  REGISTER_BACKWARD_LONG_ROWS(T, "ragged_long_rows", false)

REGISTER_MASKED_SOFTMAX(float, bool);
REGISTER_MASKED_SOFTMAX(half, bool);
REGISTER_MASKED_SOFTMAX(bfloat, bool);
REGISTER_MASKED_SOFTMAX(float, float);
REGISTER_MASKED_SOFTMAX(half, half);
REGISTER_MASKED_SOFTMAX(bfloat, bfloat);
REGISTER_MASKED_SOFTMAX_BACKWARD(float);
REGISTER_MASKED_SOFTMAX_BACKWARD(half);
REGISTER_MASKED_SOFTMAX_BACKWARD(bfloat);
