// A launch plan: which kernels an operator launches, computed from plain numbers.
//
// A family's plan function (csrc/plans/S/X.h) takes views of the operator's tensors (sizes,
// strides, dtypes, no memory), its options and the limits of the device, and adds steps to a plan:
// launches with the kernel's name, grid, threadgroup, parameters and buffers, and the copies and
// matrix products between them. Whoever has a device runs the steps: csrc/ops/common/run_plan.h on
// mps, python/metalops/ops/_cuda/plan.py on CUDA tensors. So this folder includes neither torch
// (but for <c10/metal/common.h>, which kernels include too) nor Metal nor CUDA.
#pragma once
#include <metalops/launch_grid.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace metalops::plans {

// Dtypes by the numbers of c10::ScalarType, and kNone for an absent tensor.
enum class Type : int32_t {
  kNone = -1,
  kByte = 0,
  kChar = 1,
  kShort = 2,
  kInt = 3,
  kLong = 4,
  kHalf = 5,
  kFloat = 6,
  kComplexHalf = 8,
  kComplexFloat = 9,
  kBool = 11,
  kBfloat16 = 15,
  kFloat8E5m2 = 23,
  kFloat8E4m3 = 24,
  kFloat8E8m0 = 44,
};

// Returns the size of an element in bytes.
inline int64_t size_of(Type type) {
  switch (type) {
    case Type::kShort:
    case Type::kHalf:
    case Type::kBfloat16:
      return 2;
    case Type::kInt:
    case Type::kFloat:
    case Type::kComplexHalf:
      return 4;
    case Type::kLong:
    case Type::kComplexFloat:
      return 8;
    default:
      return 1;
  }
}

// Returns the dtype's name in names of kernels.
inline const char* name_of(Type type) {
  switch (type) {
    case Type::kByte:
      return "uchar";
    case Type::kChar:
      return "char";
    case Type::kShort:
      return "short";
    case Type::kInt:
      return "int";
    case Type::kLong:
      return "long";
    case Type::kHalf:
      return "half";
    case Type::kFloat:
      return "float";
    case Type::kComplexHalf:
      return "half2";
    case Type::kComplexFloat:
      return "float2";
    case Type::kBool:
      return "bool";
    case Type::kBfloat16:
      return "bfloat";
    case Type::kFloat8E5m2:
      return "e5m2";
    case Type::kFloat8E4m3:
      return "e4m3";
    default:
      return "";
  }
}

// A strided tensor in one of the plan's buffers. Sizes, strides and the offset count elements.
struct View {
  static constexpr int32_t kMostDims = 4;
  static constexpr int32_t kMemory = 64;  // the alignment of memory that torch allocates

  int32_t buffer = -1;
  Type type = Type::kNone;
  int32_t dims = 0;
  int32_t alignment = kMemory;  // the buffer's start is a multiple of so many bytes
  bool is_conj = false;         // its elements are the complex conjugates of those in memory
  int64_t offset = 0;
  int64_t sizes[kMostDims] = {};
  int64_t strides[kMostDims] = {};

  explicit operator bool() const { return type != Type::kNone; }

  // A negative dimension counts from the last.
  int64_t size(int32_t dim) const { return sizes[dim < 0 ? dims + dim : dim]; }
  int64_t stride(int32_t dim) const { return strides[dim < 0 ? dims + dim : dim]; }

  int64_t numel() const {
    int64_t count = 1;
    for (int32_t dim = 0; dim < dims; ++dim) {
      count *= sizes[dim];
    }
    return count;
  }

  bool is_contiguous() const {
    int64_t expected = 1;
    for (int32_t dim = dims - 1; dim >= 0; --dim) {
      if (sizes[dim] != 1 && strides[dim] != expected) {
        return numel() == 0;
      }
      expected *= sizes[dim];
    }
    return true;
  }

  // Returns true if the view's start is a multiple of so many bytes.
  bool begins_at_multiple_of(int64_t bytes) const {
    return alignment % bytes == 0 && offset * size_of(type) % bytes == 0;
  }

  View narrow(int32_t dim, int64_t start, int64_t length) const {
    View result = *this;
    result.offset += start * stride(dim);
    result.sizes[dim < 0 ? dims + dim : dim] = length;
    return result;
  }

  View transpose(int32_t first, int32_t second) const {
    View result = *this;
    std::swap(result.sizes[first], result.sizes[second]);
    std::swap(result.strides[first], result.strides[second]);
    return result;
  }

  // Adds a dimension of size 1.
  View unsqueeze(int32_t dim) const {
    View result = *this;
    std::copy_backward(sizes + dim, sizes + dims, result.sizes + dims + 1);
    std::copy_backward(strides + dim, strides + dims, result.strides + dims + 1);
    result.sizes[dim] = 1;
    result.strides[dim] = dim < dims ? sizes[dim] * strides[dim] : 1;
    ++result.dims;
    return result;
  }

  // Returns the diagonals of matrices, (*, length).
  View diagonal() const {
    View result = *this;
    const auto last = --result.dims;
    result.sizes[last - 1] = std::min(sizes[last - 1], sizes[last]);
    result.strides[last - 1] += strides[last];
    return result;
  }

  // Returns rows of complex float numbers, whose elements are adjacent, as rows of real numbers:
  // the parts of each, real and imaginary, alternately. Those of real numbers are these themselves.
  View real_parts() const {
    View result = *this;
    if (type == Type::kComplexFloat) {
      result.type = Type::kFloat;
      result.offset *= 2;
      for (int32_t dim = 0; dim < dims - 1; ++dim) {
        result.strides[dim] *= 2;
      }
      result.sizes[dims - 1] *= 2;
    }
    return result;
  }

  View mT() const { return transpose(dims - 2, dims - 1); }
  View mH() const {
    View result = mT();
    result.is_conj = !is_conj && (type == Type::kComplexFloat || type == Type::kComplexHalf);
    return result;
  }
};

// An error of plan functions: the sizes of a call are beyond what kernels or launches can take.
class TooLarge : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Limits of the device on which a plan will run.
struct Device {
  int64_t multiprocessors = 0;             // of an NVIDIA GPU; 0: not known
  bool a_thread_for_each_element = false;  // a CPU: see <metalops/launch.h>
  bool has_tensors = false;                // products use the GEMM of Metal 4's tensors
  bool has_warpgroups = false;             // tensors: four simdgroups can multiply together
};

// A kernel's argument. kView: a view, bound at its start. kBytes: `size` bytes.
enum class ArgumentKind : int32_t { kNothing, kView, kBytes, kErrors };
struct Argument {
  ArgumentKind kind = ArgumentKind::kNothing;
  int32_t size = 0;
  const void* value = nullptr;  // the View or the bytes, which the plan owns
};

// The buffer in which kernels report errors.
struct Errors {};
inline constexpr Errors kErrors{};

// A kernel's name in parts, which live as long as the process: see <metalops/kernel_name.h>.
class Name {
 public:
  Name(const char* text) : parts_{text}, count_(1) {}
  Name(Type type) : Name(name_of(type)) {}

  Name operator+(const Name& other) const {
    if (count_ + other.count_ > kMost) {
      throw std::logic_error("a kernel's name has too many parts");
    }
    Name sum = *this;
    for (int32_t i = 0; i < other.count_; ++i) {
      sum.parts_[sum.count_++] = other.parts_[i];
    }
    return sum;
  }

  std::string text() const {
    std::string result;
    for (const auto* part : *this) {
      result += part;
    }
    return result;
  }

  const char* const* begin() const { return parts_.data(); }
  const char* const* end() const { return parts_.data() + count_; }

 private:
  static constexpr int32_t kMost = 8;
  std::array<const char*, kMost> parts_{};
  int32_t count_;
};

// The kernels of a family. has_products: if the device has tensors, those of the library that was
// built with them (<metalops/matmul_library.h>).
struct Library {
  Library(const char* family, bool has_products = false)
      : family(family), has_products(has_products) {}

  const char* family;
  bool has_products;
};

enum class StepKind : int32_t { kLaunch, kCopy, kFill, kProduct };

// One step of a plan. kLaunch: the kernel `name` of a library. kCopy: views[0] takes the
// elements of views[1], converted to its dtype. kFill: views[0] takes `value` everywhere. kProduct:
// views[0] becomes beta views[0] + alpha views[1] views[2], batches of matrices.
struct Step {
  static constexpr int32_t kMostArguments = 31;

  StepKind kind = StepKind::kLaunch;
  int32_t arguments_count = 0;
  Library library = nullptr;
  Name name = "";
  LaunchGrid grid;
  Argument arguments[kMostArguments];
  View views[3];
  double value = 0;
  double alpha = 1;
  double beta = 0;
};

// A buffer of a plan: one of the caller's tensors, or memory that the plan asks for.
struct Buffer {
  Type type = Type::kNone;
  bool is_given = false;
  int64_t elements = 0;
};

// Does not compile if bytes of a value belong to no member. Traces and tests compare launches by
// the bytes of their arguments, and padding holds whatever was there before.
template <class Value>
constexpr bool check_for_padding() {
  if constexpr (alignof(Value) > 1) {
    struct Words {
      uint16_t words[sizeof(Value) / 2];
    };
    // Indeterminate bytes are no constant.
    [[maybe_unused]] constexpr auto kWords = std::bit_cast<Words>(Value{});
  }
  return true;
}

// Memory of values to which arguments point: they stay where they are.
class KeptValues {
 public:
  KeptValues() = default;
  KeptValues(const KeptValues&) = delete;
  KeptValues& operator=(const KeptValues&) = delete;

  template <class Value>
  const Value* keep(const Value& value) {
    static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= kBlock &&
                  alignof(Value) <= kAlignment);
    constexpr auto kBytes = (sizeof(Value) + kAlignment - 1) / kAlignment * kAlignment;
    if (left_ < kBytes) {
      next_ = blocks_.emplace_back(new Block).get()->bytes;
      left_ = kBlock;
    }
    auto* kept = new (next_) Value(value);
    next_ += kBytes;
    left_ -= kBytes;
    return kept;
  }

 private:
  static constexpr size_t kBlock = 4096;
  static constexpr size_t kAlignment = 16;
  struct Block {
    alignas(kAlignment) std::byte bytes[kBlock];
  };

  Block first_;  // most plans need no other
  std::byte* next_ = first_.bytes;
  size_t left_ = kBlock;
  std::vector<std::unique_ptr<Block>> blocks_;
};

// The steps in the order in which they run, and their buffers.
class Plan {
 public:
  Plan() { buffers_.reserve(kUsualBuffers); }

  // Adds a tensor of the caller, and returns the number of its buffer.
  int32_t add_given() {
    buffers_.push_back({Type::kNone, /*is_given=*/true, 0});
    return static_cast<int32_t>(buffers_.size()) - 1;
  }

  // Memory that is asked for during its life serves later requests after it: steps run in order.
  class Scope {
   public:
    explicit Scope(Plan& plan) : plan_(plan), first_(plan.taken_.size()) {}
    ~Scope() {
      const auto first = plan_.taken_.begin() + static_cast<ptrdiff_t>(first_);
      plan_.free_.insert(plan_.free_.end(), first, plan_.taken_.end());
      plan_.taken_.erase(first, plan_.taken_.end());
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Plan& plan_;
    size_t first_;
  };

  // Asks for memory, contiguous. Sizes are those of the view.
  View allocate(Type type, std::initializer_list<int64_t> sizes) {
    View view{.type = type};
    for (const auto size : sizes) {
      view.sizes[view.dims++] = size;
    }
    set_contiguous_strides(view);
    view.buffer = memory_of(type, view.numel());
    return view;
  }

  View zeros(Type type, std::initializer_list<int64_t> sizes) {
    const auto view = allocate(type, sizes);
    fill(view, 0);
    return view;
  }

  // Launches a kernel. arguments: in the order of the kernel's buffers: views (bound at their
  // start; an absent one binds nothing), kErrors, numbers and parameter structs. Throws TooLarge
  // for a side of 2^32 threads.
  template <class... Arguments>
  void launch(const Library& library, const Name& name, const LaunchGrid& grid,
              const Arguments&... arguments) {
    if (grid.is_empty()) {
      return;
    }
    constexpr uint64_t kLongest = (uint64_t{1} << 32) - 1;
    const auto& threads = grid.threads;
    if (std::max({threads[0], threads[1], threads[2]}) > kLongest) {
      throw TooLarge(name.text() + ": a grid of " + std::to_string(threads[0]) + " times " +
                     std::to_string(threads[1]) + " times " + std::to_string(threads[2]) +
                     " threads is too large for MPS");
    }
    static_assert(sizeof...(arguments) <= Step::kMostArguments, "Metal has 31 buffers");
    auto& step = steps_.emplace_back();
    step.library = library;
    step.name = name;
    step.grid = grid;
    (add(step, arguments), ...);
  }

  void copy(const View& to, const View& from) {
    if (to.numel() != 0) {
      auto& step = steps_.emplace_back();
      step.kind = StepKind::kCopy;
      step.views[0] = to;
      step.views[1] = from;
    }
  }

  void fill(const View& view, double value) {
    if (view.numel() != 0) {
      auto& step = steps_.emplace_back();
      step.kind = StepKind::kFill;
      step.views[0] = view;
      step.value = value;
    }
  }

  // Makes matrices, (*, rows, columns), identities.
  void fill_identity(const View& matrices) {
    fill(matrices, 0);
    fill(matrices.diagonal(), 1);
  }

  // result = beta result + alpha a b.
  void product(const View& result, const View& a, const View& b, double alpha, double beta) {
    if (result.numel() != 0) {
      auto& step = steps_.emplace_back();
      step.kind = StepKind::kProduct;
      step.views[0] = result;
      step.views[1] = a;
      step.views[2] = b;
      step.alpha = alpha;
      step.beta = beta;
    }
  }

  // Returns a contiguous copy with this dtype; the view itself where it is that already, or absent.
  View contiguous(const View& view, Type type) {
    return !view || (view.type == type && view.is_contiguous() && !view.is_conj)
               ? view
               : copied(view, type);
  }
  View contiguous(const View& view) { return contiguous(view, view.type); }

  // Returns a contiguous copy.
  View copied(const View& view, Type type) {
    View result = view;
    result.buffer = memory_of(type, view.numel());
    result.type = type;
    result.alignment = View::kMemory;
    result.is_conj = false;
    result.offset = 0;
    set_contiguous_strides(result);
    copy(result, view);
    return result;
  }

  // Returns a view of the same elements, none of which is the conjugate of the one in memory.
  View resolved(const View& view) { return view.is_conj ? copied(view, view.type) : view; }

  // Hands memory that the plan asked for, outside scopes, to the caller.
  void add_result(const View& view) { results_.push_back(view); }

  const std::vector<View>& results() const { return results_; }
  const std::deque<Step>& steps() const { return steps_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }

 private:
  // Returns a buffer of at least so many elements: of the free ones the smallest that suffices, or
  // else the largest, which grows.
  int32_t memory_of(Type type, int64_t elements) {
    auto best = free_.end();
    for (auto free = free_.begin(); free != free_.end(); ++free) {
      const auto& buffer = buffers_[*free];
      if (buffer.type != type) {
        continue;
      }
      const auto known = best == free_.end() ? -1 : buffers_[*best].elements;
      if (known < elements ? buffer.elements > known
                           : buffer.elements >= elements && buffer.elements < known) {
        best = free;
      }
    }
    auto& number = taken_.emplace_back(static_cast<int32_t>(buffers_.size()));
    if (best == free_.end()) {
      buffers_.push_back({type, /*is_given=*/false, elements});
    } else {
      number = *best;
      free_.erase(best);
      buffers_[number].elements = std::max(buffers_[number].elements, elements);
    }
    return number;
  }

  static void set_contiguous_strides(View& view) {
    int64_t stride = 1;
    for (int32_t dim = view.dims - 1; dim >= 0; --dim) {
      view.strides[dim] = stride;
      stride *= std::max<int64_t>(view.sizes[dim], 1);
    }
  }

  void add(Step& step, const View& view) {
    if (view) {
      step.arguments[step.arguments_count] = {ArgumentKind::kView, 0, kept_.keep(view)};
    }
    ++step.arguments_count;
  }
  void add(Step& step, Errors) {
    step.arguments[step.arguments_count++].kind = ArgumentKind::kErrors;
  }
  template <class Value>
  void add(Step& step, const Value& value) {
    static_assert(std::is_trivially_copyable_v<Value> && !std::is_same_v<Value, double> &&
                  !std::is_pointer_v<Value> && check_for_padding<Value>());
    step.arguments[step.arguments_count++] = {ArgumentKind::kBytes, sizeof(value),
                                              kept_.keep(value)};
  }

  static constexpr size_t kUsualBuffers = 16;

  std::deque<Step> steps_;
  std::vector<Buffer> buffers_;
  std::vector<View> results_;
  std::vector<int32_t> taken_;  // the buffers that the plan asks for, in order, but for the free
  std::vector<int32_t> free_;   // those of scopes that have ended
  KeptValues kept_;
};

// Throws TooLarge if a size is larger than `largest`. what: names it, as in
// "paged_attention: keys".
inline void check_size(int64_t size, int64_t largest, const char* what) {
  if (size > largest) {
    throw TooLarge(std::string(what) + " of size " + std::to_string(size) +
                   " is too large for MPS");
  }
}

// Returns a size that check_size() lets pass.
inline int32_t checked_int32(int64_t size, int64_t largest, const char* what) {
  check_size(size, largest, what);
  return static_cast<int32_t>(size);
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace metalops::plans
