// What the elementwise calls of MetalShaderLibrary (exec_unary_kernel and its kin) have in common.
// The kernels they look for, with names and argument tables, are those that c10/metal/indexing.h
// registers.
#pragma once
#include <ATen/TensorIterator.h>

#include <array>
#include <string>

#include <metal/encoder.h>
#include <metal/pipeline.h>
#include <metal/scalar_types.h>

namespace metalops {

// Packs what a choice of kernel depends on into the signature that CompiledLibrary::elementwise
// wants.
class Signature {
 public:
  Signature& add(unsigned value, unsigned bits) {
    packed_ = packed_ << bits | value;
    return *this;
  }
  Signature& add(c10::ScalarType type) { return add(static_cast<unsigned>(type), 7); }
  uint64_t value() const { return packed_; }

 private:
  uint64_t packed_ = 1;  // the leading one keeps signatures apart that differ in leading zeros
};

// Parts of a kernel's name joined as torch joins them: {"add", "dense", "float"} ->
// "add_dense_float".
template <typename... Parts>
std::string kernel_name(const std::string& first, const Parts&... parts) {
  std::string name = first;
  ((name += '_', name += parts), ...);
  return name;
}

// The dtype of an operand as a kernel reads it: a 0-d float64 tensor (a Python number, usually)
// becomes float32.
inline c10::ScalarType operand_type(const at::TensorIteratorBase& iter, int operand) {
  const c10::ScalarType type = iter.dtype(operand);
  return iter.tensor_base(operand).dim() == 0 ? metal_scalar_type(type) : type;
}

inline uint32_t as_number(c10::ScalarType type) { return static_cast<uint32_t>(type); }
inline uint32_t size_of(c10::ScalarType type) {
  return static_cast<uint32_t>(c10::elementSize(type));
}

void set_operands(Encoder& encoder, at::TensorIteratorBase& iter);

// Binds one number for each dimension of an iterator; a 0-d one has none, and the kernel reads
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

void dispatch_1d(Encoder& encoder, const exec::Kernel& kernel, uint64_t length);
void dispatch_ilp(Encoder& encoder, const exec::Kernel& kernel, uint64_t length);

// x runs along the innermost dimension, y over all others together.
void dispatch_strided_2d(Encoder& encoder, const exec::Kernel& kernel,
                         const at::TensorIteratorBase& iter);

// Raises for iterators that the kernels cannot index.
void check_dimensions(const at::TensorIteratorBase& iter);
void check_no_float64_output(const at::TensorIteratorBase& iter);

// Number of elements from which torch's GPU prefers the ILP flavour when a caller says nothing
// else.
constexpr uint32_t kIlpThreshold = 1u << 18;

}  // namespace metalops
