// The calling convention of emitted kernels: arguments from a Launch, builtins from positions, rows
// of the grid for kernels that run as plain loops. Used only by the thunks that the front end
// emits.
#pragma once

#include <msl/rewrite.h>
#include <msl/signature.h>

// Threads of a launch are independent of each other, so the iterations of a work-item loop are
// independent too. Emitted only before loops over kernels that keep no indexed memory of their own.
#ifdef __clang__
#define MSL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define MSL_INDEPENDENT _Pragma("GCC ivdep")
#endif

// The loop over threads that run as vector lanes, whose indices wrap: it runs rarely, and takes
// little time to compile.
#ifdef __clang__
#define MSL_RARE_LANES _Pragma("clang loop vectorize(disable) unroll(disable)")
#else
#define MSL_RARE_LANES _Pragma("GCC unroll 1")
#endif

// The work-item loop over a part of a launch's threads.
#define MSL_LOOP(name)                                                              \
  static void name(const ::msl::abi::Launch* msl_launch, ::msl::abi::u64 msl_begin, \
                   ::msl::abi::u64 msl_end)
#define MSL_COLD_LOOP(name) MSL_COLD MSL_LOOP(name)

// Functions that matter for speed are compiled a second time for CPUs with wider registers, unless
// the library is for this CPU only. Rarely run code takes less time to compile.
#if !defined(MSL_PORTABLE)
#define MSL_HOT_LOOP(name) MSL_LOOP(name)
#elif defined(__clang__)
// With target_clones clang forgets the inline functions that nothing else calls.
#define MSL_HOT_LOOP(name)                                                                        \
  __attribute__((always_inline)) inline MSL_LOOP(name##_body);                                    \
  __attribute__((target("arch=x86-64-v4"))) MSL_LOOP(name##_wide) {                               \
    name##_body(msl_launch, msl_begin, msl_end);                                                  \
  }                                                                                               \
  MSL_LOOP(name##_narrow) { name##_body(msl_launch, msl_begin, msl_end); }                        \
  MSL_LOOP(name) {                                                                                \
    (::msl::msl_support::has_wide_registers() ? name##_wide : name##_narrow)(msl_launch,          \
                                                                             msl_begin, msl_end); \
  }                                                                                               \
  __attribute__((always_inline)) inline MSL_LOOP(name##_body)
#else
#define MSL_HOT_LOOP(name) \
  __attribute__((target_clones("arch=x86-64-v4", "default"))) MSL_LOOP(name)
#endif
#define MSL_COLD __attribute__((cold))

namespace msl::msl_support {

using abi::Launch;
using abi::u32;
using abi::u64;
using abi::u8;

// ---- the last values of variables that are shuffled ---------------------------------------------

// Sets a variable that is declared without a value to zero.
template <class T>
MSL_INLINE void clear(T& variable) {
  if constexpr (__is_trivially_constructible(T)) {
    __builtin_memset(static_cast<void*>(&variable), 0, sizeof(T));
  }
}

// RAII: the scope of a variable of the running thread, whose last value shuffles take when the
// thread takes no part.
template <class T>
class Declared {
  typedef metal::remove_cv_t<T> Value;
  static constexpr bool kIsShuffled = metal::__is_valid_simdgroup_type<Value>::value;

 public:
  MSL_INLINE Declared(u32 number, T& variable) : number_(number) {
    if constexpr (kIsShuffled) {
      constexpr u32 kind = u32(msl_impl::element_kind<Value>) * 256 + u32(sizeof(Value));
      msl_runtime->declare(number, kind, &variable, sizeof(Value));
    }
  }
  Declared(const Declared&) = delete;
  MSL_INLINE ~Declared() {
    if constexpr (kIsShuffled) msl_runtime->leave_scope(number_);
  }

 private:
  const u32 number_;
};

// Waits for the lanes of the simdgroup that are at earlier points of the program, as a GPU does
// where lanes reconverge: they may take last values of variables that are about to be changed.
MSL_INLINE void reconverge(u32 site) {
  msl_runtime->simd({site, 0}, nullptr, nullptr, [](const void* const*, void* const*, u32) {});
}
// `(Reconverge(site), x)` is x, after which lanes reconverge.
struct Reconverge {
  MSL_INLINE explicit Reconverge(u32 site) : site(site) {}
  const u32 site;
};
template <class T>
MSL_INLINE T operator,(Reconverge&& here, T&& value) {
  reconverge(here.site);
  return static_cast<T&&>(value);
}

constexpr u32 kSimdMask = abi::kSimdWidth - 1;

// Instruction set extensions that this translation unit may use.
constexpr u32 kCpuFeatures = 0
#ifdef __AVX__
                             | abi::kAvx
#endif
#ifdef __AVX2__
                             | abi::kAvx2
#endif
#ifdef __FMA__
                             | abi::kFma
#endif
#ifdef __F16C__
                             | abi::kF16c
#endif
#ifdef __BMI2__
                             | abi::kBmi2
#endif
#ifdef __AVX512F__
                             | abi::kAvx512f
#endif
#ifdef __AVX512BW__
                             | abi::kAvx512bw
#endif
#ifdef __AVX512VL__
                             | abi::kAvx512vl
#endif
#ifdef __AVX512DQ__
                             | abi::kAvx512dq
#endif
#ifdef __AVX512VNNI__
                             | abi::kAvx512vnni
#endif
#ifdef __AVX512BF16__
                             | abi::kAvx512bf16
#endif
#ifdef __AVX512FP16__
                             | abi::kAvx512fp16
#endif
#ifdef __AVX512VBMI__
                             | abi::kAvx512vbmi
#endif
    ;

template <class T>
T made_up();  // a value in unevaluated operands

constexpr bool kUnused = false;  // Argument::is_used of an argument that a kernel never uses

// ---- arguments ----------------------------------------------------------------------------------

// A kernel argument in buffer `index`. A pointer is the bound address, a reference refers to the
// memory there. Read-only references are read once, by value, so that compilers keep them in
// registers over a loop.
template <class P>
struct buffer_argument {
  static_assert(sizeof(P) == 0, "a kernel's buffer argument is a pointer or a reference");
};
template <class T>
struct buffer_argument<T*> {
  T* pointer;
  inline __attribute__((always_inline)) buffer_argument(const Launch* launch, u32 index)
      : pointer(static_cast<T*>(launch->buffers[index])) {}
  inline __attribute__((always_inline)) T* get() const { return pointer; }
};
template <class T>
struct buffer_argument<T* const> : buffer_argument<T*> {
  using buffer_argument<T*>::buffer_argument;
};
template <class T>
struct buffer_argument<T&> {
  T* pointer;
  inline __attribute__((always_inline)) buffer_argument(const Launch* launch, u32 index)
      : pointer(static_cast<T*>(launch->buffers[index])) {}
  inline __attribute__((always_inline)) T& get() const { return *pointer; }
};
template <class T>
struct value_argument {
  union {
    T value;
  };
  inline __attribute__((always_inline)) value_argument(const Launch* launch, u32 index) {
    const void* from = launch->buffers[index];
    const u64 bytes = launch->buffer_bytes[index];
    if (bytes >= sizeof(T)) {
      __builtin_memcpy(static_cast<void*>(&value), from, sizeof(T));
    } else {  // less was bound than the kernel declares; it may use what there is
      __builtin_memset(static_cast<void*>(&value), 0, sizeof(T));
      if (from) __builtin_memcpy(static_cast<void*>(&value), from, bytes);
    }
  }
  inline __attribute__((always_inline)) const T& get() const { return value; }
};
#ifdef MSL_SANITIZE_ADDRESS
// Read in place, so that reads beyond the bound memory are detected where they happen.
template <class T>
struct buffer_argument<const T&> {
  const T* pointer;
  inline __attribute__((always_inline)) buffer_argument(const Launch* launch, u32 index)
      : pointer(static_cast<const T*>(launch->buffers[index])) {}
  inline __attribute__((always_inline)) const T& get() const { return *pointer; }
};
#else
template <class T>
struct buffer_argument<const T&> : value_argument<T> {
  using value_argument<T>::value_argument;
};
#endif

// An argument that a function constant may switch off, which then has no memory: C++ has no
// reference to none.
template <class P>
struct optional_argument : buffer_argument<P> {
  using buffer_argument<P>::buffer_argument;
};
template <class T>
struct optional_argument<const T&> : value_argument<T> {
  using value_argument<T>::value_argument;
};
template <class T>
struct optional_argument<T&> {
  union {
    T none;
  };
  T* pointer;
  inline __attribute__((always_inline)) optional_argument(const Launch* launch, u32 index)
      : pointer(static_cast<T*>(launch->buffers[index])) {}
  inline __attribute__((always_inline)) T& get() const {
    return pointer != nullptr ? *pointer : const_cast<T&>(none);
  }
};

// An argument whose address the kernel takes: a read-only reference that must refer to the buffer.
template <class P>
struct placed_argument : buffer_argument<P> {
  using buffer_argument<P>::buffer_argument;
};
template <class T>
struct placed_argument<const T&> {
  const T* pointer;
  inline __attribute__((always_inline)) placed_argument(const Launch* launch, u32 index)
      : pointer(static_cast<const T*>(launch->buffers[index])) {}
  inline __attribute__((always_inline)) const T& get() const { return *pointer; }
};

template <class P>
struct threadgroup_argument;
template <class T>
struct threadgroup_argument<T*> {
  static inline __attribute__((always_inline)) T* get(const abi::Group* group, u32 index) {
    return static_cast<T*>(group->dynamic_memory[index]);
  }
};
template <class T>
struct threadgroup_argument<T* const> : threadgroup_argument<T*> {};
template <class T>
struct threadgroup_argument<T&> {
  static inline __attribute__((always_inline)) T& get(const abi::Group* group, u32 index) {
    return *static_cast<T*>(group->dynamic_memory[index]);
  }
};

// Converts a builtin to the scalar or vector type of the parameter.
template <class P>
struct builtin {
  static inline __attribute__((always_inline)) P make(u32 x, u32 = 0, u32 = 0) {
    return static_cast<P>(x);
  }
};
template <class P>
struct builtin<const P> : builtin<P> {};
template <class P>
struct builtin<P&> : builtin<P> {};
template <class T>
struct builtin<metal::vec<T, 2>> {
  static inline __attribute__((always_inline)) metal::vec<T, 2> make(u32 x, u32 y = 0, u32 = 0) {
    return metal::vec<T, 2>(static_cast<T>(x), static_cast<T>(y));
  }
};
template <class T>
struct builtin<metal::vec<T, 3>> {
  static inline __attribute__((always_inline)) metal::vec<T, 3> make(u32 x, u32 y = 0, u32 z = 0) {
    return metal::vec<T, 3>(static_cast<T>(x), static_cast<T>(y), static_cast<T>(z));
  }
};

// Returns true if the buffers with the indices `written` share no memory with each other and with
// the others. indices: those of all buffers.
template <int Written, int All>
inline bool are_apart(const Launch* launch, const int (&written)[Written],
                      const int (&indices)[All]) {
  for (const int i : written) {
    const u8* begin = static_cast<const u8*>(launch->buffers[i]);
    for (const int j : indices) {
      const u8* other = static_cast<const u8*>(launch->buffers[j]);
      if (j != i && begin < other + launch->buffer_bytes[j] &&
          other < begin + launch->buffer_bytes[i]) {
        return false;
      }
    }
  }
  return true;
}

// Returns the position of a thread that is `lane` threads further in x.
template <class T>
inline __attribute__((always_inline)) T next_thread(T position, u32 lane) {
  return static_cast<T>(position + lane);
}
template <class T, int N>
inline __attribute__((always_inline)) metal::vec<T, N> next_thread(metal::vec<T, N> position,
                                                                   u32 lane) {
  position.x = static_cast<T>(position.x + lane);
  return position;
}

// The values of a variable of threads that run as vector lanes. Those of a component of vectors are
// adjacent.
template <class T, u32 Width>
struct LaneValues {
  T values[Width];
  inline __attribute__((always_inline)) T get(u32 lane) const { return values[lane]; }
  inline __attribute__((always_inline)) void set(u32 lane, T value) { values[lane] = value; }
};
template <class T, u32 Width>
struct LaneValues<metal::vec<T, 2>, Width> {
  T x[Width], y[Width];
  inline __attribute__((always_inline)) metal::vec<T, 2> get(u32 lane) const {
    return metal::vec<T, 2>(x[lane], y[lane]);
  }
  inline __attribute__((always_inline)) void set(u32 lane, const metal::vec<T, 2>& value) {
    x[lane] = value.x;
    y[lane] = value.y;
  }
};
template <class T, u32 Width>
struct LaneValues<metal::vec<T, 3>, Width> {
  T x[Width], y[Width], z[Width];
  inline __attribute__((always_inline)) metal::vec<T, 3> get(u32 lane) const {
    return metal::vec<T, 3>(x[lane], y[lane], z[lane]);
  }
  inline __attribute__((always_inline)) void set(u32 lane, const metal::vec<T, 3>& value) {
    x[lane] = value.x;
    y[lane] = value.y;
    z[lane] = value.z;
  }
};
template <class T, u32 Width>
struct LaneValues<metal::vec<T, 4>, Width> {
  T x[Width], y[Width], z[Width], w[Width];
  inline __attribute__((always_inline)) metal::vec<T, 4> get(u32 lane) const {
    return metal::vec<T, 4>(x[lane], y[lane], z[lane], w[lane]);
  }
  inline __attribute__((always_inline)) void set(u32 lane, const metal::vec<T, 4>& value) {
    x[lane] = value.x;
    y[lane] = value.y;
    z[lane] = value.z;
    w[lane] = value.w;
  }
};

// Returns 1 for a lane that takes part and for which a condition holds. Of other lanes the
// condition may be computed from anything: clang must not see that as part of the result, whereas
// g++ makes no vector code of the choice.
inline __attribute__((always_inline)) unsigned holds_too(unsigned mask, bool holds) {
#ifdef __clang__
  return mask ? unsigned(holds) : 0u;
#else
  return mask & unsigned(holds);
#endif
}

// Returns the new value of a lane's variable: of lanes that do not take part the old one.
template <class T>
inline __attribute__((always_inline)) T chosen(unsigned mask, const T& changed, const T& old) {
  return mask ? changed : old;
}
template <class T>
inline __attribute__((always_inline)) metal::vec<T, 2> chosen(unsigned mask,
                                                              const metal::vec<T, 2>& changed,
                                                              const metal::vec<T, 2>& old) {
  return metal::vec<T, 2>(mask ? changed.x : old.x, mask ? changed.y : old.y);
}
template <class T>
inline __attribute__((always_inline)) metal::vec<T, 3> chosen(unsigned mask,
                                                              const metal::vec<T, 3>& changed,
                                                              const metal::vec<T, 3>& old) {
  return metal::vec<T, 3>(mask ? changed.x : old.x, mask ? changed.y : old.y,
                          mask ? changed.z : old.z);
}
template <class T>
inline __attribute__((always_inline)) metal::vec<T, 4> chosen(unsigned mask,
                                                              const metal::vec<T, 4>& changed,
                                                              const metal::vec<T, 4>& old) {
  return metal::vec<T, 4>(mask ? changed.x : old.x, mask ? changed.y : old.y,
                          mask ? changed.z : old.z, mask ? changed.w : old.w);
}

// ---- facts that depend on a kernel's template arguments -----------------------------------------

// Lays out threadgroup variables consecutively, each on a multiple of 16 bytes.
constexpr u32 place(u32 used, u64 bytes) { return used + static_cast<u32>((bytes + 15) / 16 * 16); }

template <u32 StaticBytes, u32 MaxThreads, abi::i32... Indices>
struct facts {
  static constexpr u32 static_bytes = StaticBytes;
  static constexpr u32 max_threads = MaxThreads;
  static constexpr abi::i32 indices[sizeof...(Indices) + 1] = {Indices..., -1};
};

// ---- rows of the grid ---------------------------------------------------------------------------

// Threads [begin, end) of the flattened grid (x fastest), as runs of threads that are consecutive
// in x.
struct rows {
  const Launch* launch;
  u64 begin, end;
  u32 first = 0, last = 0, y = 0, z = 0;

  inline __attribute__((always_inline)) rows(const Launch* l, u64 b, u64 e)
      : launch(l), begin(b), end(e) {}

  inline __attribute__((always_inline)) bool next() {
    if (begin >= end) return false;
    const u64 width = launch->grid[0];
    const u64 row = begin / width;
    first = static_cast<u32>(begin - row * width);
    z = static_cast<u32>(row / launch->grid[1]);
    y = static_cast<u32>(row - u64(z) * launch->grid[1]);
    const u64 left = end - begin;
    last = left < width - first ? static_cast<u32>(first + left) : static_cast<u32>(width);
    begin += last - first;
    return true;
  }
};

// Like rows, but split where a threadgroup ends, with the position in the threadgroup.
struct group_rows {
  rows row;
  u32 first = 0, last = 0, y = 0, z = 0;
  u32 group[3] = {};  // threadgroup_position_in_grid
  u32 size[3] = {};   // threads_per_threadgroup: smaller at the grid's end
  u32 origin = 0;     // x of the threadgroup's first thread
  u32 local_y = 0, local_z = 0;
  u32 index = 0;  // thread_index_in_threadgroup of the thread at x = origin

  inline __attribute__((always_inline)) group_rows(const Launch* l, u64 b, u64 e) : row(l, b, e) {}

  static inline __attribute__((always_inline)) u32 smaller(u32 a, u32 b) { return a < b ? a : b; }

  inline __attribute__((always_inline)) bool next() {
    const Launch* launch = row.launch;
    if (last == row.last) {
      if (!row.next()) return false;
      first = row.first;
      y = row.y;
      z = row.z;
      group[1] = y / launch->group[1];
      group[2] = z / launch->group[2];
      local_y = y - group[1] * launch->group[1];
      local_z = z - group[2] * launch->group[2];
      for (int i = 1; i < 3; i++) {
        size[i] = smaller(launch->group[i], launch->grid[i] - group[i] * launch->group[i]);
      }
    } else {
      first = last;
    }
    group[0] = first / launch->group[0];
    origin = group[0] * launch->group[0];
    size[0] = smaller(launch->group[0], launch->grid[0] - origin);
    last = smaller(row.last, origin + size[0]);
    index = size[0] * (local_y + size[1] * local_z);
    return true;
  }
};

inline __attribute__((always_inline)) u32 divide_up(u32 count, u32 by) {
  return (count + by - 1) / by;
}
inline __attribute__((always_inline)) u32 volume(const u32* size) {
  return size[0] * size[1] * size[2];
}

// Returns the flattened index of a thread that runs by itself.
inline u64 flat_position(const Launch* launch, const abi::Thread* thread) {
  u64 at[3];
  for (int i = 0; i < 3; i++) {
    at[i] = u64(thread->group->position[i]) * launch->group[i] + thread->position[i];
  }
  return at[0] + launch->grid[0] * (at[1] + launch->grid[1] * at[2]);
}

}  // namespace msl::msl_support
