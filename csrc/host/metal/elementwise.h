// Helpers of MetalShaderLibrary's elementwise calls (exec_unary_kernel and its kin). The kernels,
// their names and argument tables are those that c10/metal/indexing.h registers.
#pragma once
#include <ATen/TensorIterator.h>

#include <array>
#include <string>

#include <metal/encoder.h>
#include <metal/pipeline.h>
#include <metal/scalar_types.h>

namespace metalops {

// Packs everything that a choice of kernel depends on into the signature for
// CompiledLibrary::elementwise.
class Signature {
 public:
  Signature& add(unsigned value, unsigned bits) {
    packed_ = packed_ << bits | value;
    return *this;
  }
  Signature& add(c10::ScalarType type) { return add(static_cast<unsigned>(type), 7); }
  uint64_t value() const { return packed_; }

 private:
  uint64_t packed_ =
      1;  // a leading one distinguishes signatures with different numbers of leading zeros
};

// Joins parts of a kernel's name as torch does: {"add", "dense", "float"} -> "add_dense_float".
template <typename... Parts>
std::string kernel_name(const std::string& first, const Parts&... parts) {
  std::string name = first;
  ((name += '_', name += parts), ...);
  return name;
}

// Returns the dtype in which a kernel reads an operand: a 0-d float64 tensor (usually a Python
// number) becomes float32.
inline c10::ScalarType operand_type(const at::TensorIteratorBase& iter, int operand) {
  const c10::ScalarType type = iter.dtype(operand);
  return iter.tensor_base(operand).dim() == 0 ? metal_scalar_type(type) : type;
}

inline uint32_t as_number(c10::ScalarType type) { return static_cast<uint32_t>(type); }
inline uint32_t size_of(c10::ScalarType type) {
  return static_cast<uint32_t>(c10::elementSize(type));
}

void set_operands(Encoder& encoder, at::TensorIteratorBase& iter);

// Binds one number per dimension of an iterator; a 0-d iterator has none, and the kernel reads
// none.
inline void set_dimensions(Encoder& encoder, unsigned index, c10::IntArrayRef numbers) {
  static constexpr int64_t kNone[] = {0};
  encoder.set_array(index, numbers.empty() ? c10::IntArrayRef(kNone) : numbers);
}

// Binds the iterator's shape and then the byte strides of `operands`, from buffer `first` on.
template <size_t n>
void set_strides(Encoder& encoder, const at::TensorIteratorBase& iter, unsigned first,
                 const std::array<int, n>& operands) {
  set_dimensions(encoder, first, iter.shape());
  for (int operand : operands) set_dimensions(encoder, ++first, iter.strides(operand));
}

// Returns true if all operands are dense along the iterator's innermost dimension, and there are
// others: what the "inner_contiguous" flavour takes.
bool is_inner_contiguous(const at::TensorIteratorBase& iter);

// Binds the sizes of all dimensions but the innermost one and then the byte strides of `operands`
// along them, from buffer `first` on.
template <size_t n>
void set_outer_strides(Encoder& encoder, const at::TensorIteratorBase& iter, unsigned first,
                       const std::array<int, n>& operands) {
  set_dimensions(encoder, first, iter.shape().slice(1));
  for (int operand : operands) set_dimensions(encoder, ++first, iter.strides(operand).slice(1));
}

void dispatch_1d(Encoder& encoder, const exec::Kernel& kernel, uint64_t length);
void dispatch_ilp(Encoder& encoder, const exec::Kernel& kernel, uint64_t length);

// Launches a 2-D grid: x runs along the innermost dimension, y over all others collapsed.
void dispatch_strided_2d(Encoder& encoder, const exec::Kernel& kernel,
                         const at::TensorIteratorBase& iter);

// Launches such a grid with ILP_PER_THREAD elements of the innermost dimension per thread.
void dispatch_inner_contiguous(Encoder& encoder, const exec::Kernel& kernel,
                               const at::TensorIteratorBase& iter);

// Launches a 3-D grid: x and y run along the two innermost dimensions, z over all others collapsed.
void dispatch_strided_3d(Encoder& encoder, const exec::Kernel& kernel,
                         const at::TensorIteratorBase& iter);

// Raises for iterators that the kernels cannot index.
void check_dimensions(const at::TensorIteratorBase& iter);
void check_no_float64_output(const at::TensorIteratorBase& iter);

// The number of elements from which torch on a GPU prefers the ILP flavour by default.
constexpr uint32_t kIlpThreshold = 1u << 18;

// The body of MetalShaderLibrary::exec_ternary_kernel.
void exec_ternary(CompiledLibrary& library, at::TensorIteratorBase& iter, const std::string& name,
                  const std::optional<c10::Scalar>& alpha,
                  std::optional<c10::ScalarType> scalar_arg_type);

}  // namespace metalops
