// MetalShaderLibrary::exec_binary_kernel.
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <c10/core/DynamicCast.h>
#include <c10/metal/common.h>

#include <metal/elementwise.h>
#include <metal/flavour.h>
#include <metal/rows.h>

namespace metalops {
namespace {

using at::TensorBase;
using at::TensorIteratorBase;
using at::native::mps::scalarToMetalTypeString;
using c10::ScalarType;

enum BinaryFlavour {
  kDense,
  kDenseIlp,
  kStrided,
  kStridedCastout,
  kScalar,     // one operand is a single number
  kBroadcast,  // one operand repeats along the outer dimensions
  kInnerContiguous,
};

// Everything that the choice of a kernel depends on.
struct BinaryCall {
  BinaryFlavour flavour = kStrided;
  bool first_is_special = false;  // the scalar or broadcast operand is the first one
  bool cast = false;              // the inputs have different dtypes
  bool force_ilp = false;
  bool large = false;  // torch on a GPU would use the ILP flavour
  bool inner = false;  // and the flavour for a dense innermost dimension
  ScalarType out;
  ScalarType in[2];
  ScalarType common = ScalarType::Undefined;   // only where a name depends on it
  ScalarType natural = ScalarType::Undefined;  // only where a name depends on it
  ScalarType alpha = ScalarType::Undefined;

  Signature signature() const {
    return Signature()
        .add(flavour, 3)
        .add(first_is_special | cast << 1 | force_ilp << 2 | large << 3 | inner << 4, 5)
        .add(out)
        .add(in[0])
        .add(in[1])
        .add(common)
        .add(natural)
        .add(alpha);
  }
};

// Returns true if `from` broadcasts to `into` by repetition: equal trailing dimensions, ones (or
// nothing) before them.
bool repeats_into(const TensorBase& from, const TensorBase& into) {
  if (!from.is_contiguous() || !into.is_contiguous()) return false;
  bool only_ones_left = false;
  for (int64_t back = 1; back <= from.dim(); ++back) {
    if (only_ones_left) {
      if (from.size(-back) != 1) return false;
    } else {
      only_ones_left = from.size(-back) != into.size(-back);
    }
  }
  return true;
}

// Returns true if operand `operand` is dense along the iterator's only dimension, or the first of
// two.
bool walks_densely(const TensorIteratorBase& iter, int operand) {
  const c10::IntArrayRef strides = iter.strides(operand);
  const int64_t size = iter.element_size(operand);
  return strides[0] == size && (iter.ndim() < 2 || strides[1] == size * iter.shape()[0]);
}

// Returns true, and sets call.flavour, if operand `special` is a number or a repeating block and
// operand `full` is dense.
bool classify(const TensorIteratorBase& iter, int special, int full, BinaryCall& call) {
  const TensorBase& out = iter.tensor_base(0);
  const TensorBase& from = iter.tensor_base(special);
  const TensorBase& other = iter.tensor_base(full);
  const int64_t out_numel = out.numel();
  if (from.numel() == out_numel || other.numel() != out_numel) return false;
  if (!other.is_contiguous() || !repeats_into(from, out)) return false;
  const bool is_number = from.numel() == 1;
  if (iter.numel() != out_numel) {
    // For a part of a larger iterator the tensors describe the whole; the part may begin or end
    // within a row.
    if (!walks_densely(iter, 0) || !walks_densely(iter, full)) return false;
    const c10::IntArrayRef strides = iter.strides(special);
    const bool part_fits = is_number
                               ? iter.ndim() == 1 && strides[0] == 0
                               : iter.ndim() == 2 && iter.shape()[0] == from.numel() &&
                                     strides[0] == iter.element_size(special) && strides[1] == 0;
    if (!part_fits) return false;
  }
  call.flavour = is_number ? kScalar : kBroadcast;
  call.first_is_special = special == 1;
  return true;
}

// Returns true if torch converts an integer combined with a float32 (or complex64) tensor
// beforehand, which is exact, and so avoids the cast kernel. Narrower types keep the cast kernel,
// which rounds differently.
bool converts_beforehand(const BinaryCall& call, ScalarType common) {
  const ScalarType tensor = call.in[call.first_is_special ? 1 : 0];
  const ScalarType number = call.in[call.first_is_special ? 0 : 1];
  return tensor == common && c10::isIntegralType(number, /*includeBool=*/true) &&
         c10::toRealValueType(common) == ScalarType::Float;
}

ScalarBytes converted(const void* number, ScalarType type, ScalarType to) {
  if (c10::isComplexType(to)) {
    const auto value = c10::fetch_and_cast<c10::complex<float>>(type, number);
    return scalar_bytes(&value, to);
  }
  const auto value = c10::fetch_and_cast<float>(type, number);
  return scalar_bytes(&value, to);
}

ElementwiseKernel find_binary(const CompiledLibrary& library, const std::string& name,
                              const BinaryCall& call) {
  const std::string out = scalarToMetalTypeString(call.out);
  // An alpha type is the last part of every name.
  const std::string alpha =
      call.alpha == ScalarType::Undefined ? "" : "_" + scalarToMetalTypeString(call.alpha);
  if (call.flavour == kStridedCastout) {
    return {
        &library.kernel(kernel_name(name, "strided_castout", scalarToMetalTypeString(call.natural),
                                    scalarToMetalTypeString(call.common)) +
                        alpha),
        kStridedCastout};
  }
  const char* shape = "dense";
  int dense_operand = 0;
  if (call.flavour == kScalar) {
    shape = call.first_is_special ? "dense_scalar_lhs" : "dense_scalar";
    dense_operand = call.first_is_special ? 1 : 0;
  } else if (call.flavour == kBroadcast) {
    shape = call.first_is_special ? "dense_broadcast_rhs"
                                  : "dense_broadcast";  // names the dense operand's side
    dense_operand = call.first_is_special ? 1 : 0;
  }
  // The second type is that of the computation. With a cast it is the output's, except for
  // comparisons.
  const ScalarType compute = !call.cast                     ? call.in[dense_operand]
                             : call.out == ScalarType::Bool ? call.common
                                                            : call.out;
  const std::string types = out + "_" + scalarToMetalTypeString(compute) + alpha;
  const std::string cast = call.cast ? "_cast_" : "_";
  const std::string dense = kernel_name(name, shape + cast + types);
  if (call.flavour == kStrided) {
    if (call.inner && !call.cast && alpha.empty()) {
      const auto* inner = library.find(kernel_name(name, "inner_contiguous_" + types));
      if (inner) return {inner, kInnerContiguous};
    }
    return {&library.kernel(kernel_name(name, "strided" + cast + types)), kStrided,
            library.find(dense)};
  }
  if (call.flavour == kDense && !call.cast && alpha.empty()) {
    const std::string ilp = kernel_name(name, "dense_ilp" C10_METAL_ILP_PER_THREAD_STR "_" + types);
    if (call.force_ilp || (call.large && !library.has(dense) && library.has(ilp))) {
      return {&library.kernel(ilp), kDenseIlp};
    }
  }
  return {&library.kernel(dense), call.flavour};
}

void run_binary(TensorIteratorBase& iter, const ElementwiseKernel& found, const BinaryCall& call,
                const std::optional<c10::Scalar>& alpha, const std::optional<ScalarBytes>& number) {
  const exec::Kernel& kernel = *found.kernel;
  const auto length = static_cast<uint32_t>(iter.numel());
  const auto flavour = static_cast<BinaryFlavour>(found.flavour);
  const std::array<uint32_t, 4> sizes_types{size_of(call.in[0]), size_of(call.in[1]),
                                            as_number(call.in[0]), as_number(call.in[1])};
  const std::array<uint32_t, 4> ndim_types{static_cast<uint32_t>(iter.ndim()),
                                           as_number(call.in[0]), as_number(call.in[1]),
                                           as_number(call.out)};
  // Binds the arguments of dense kernels after their operands, from buffer `next` on.
  const auto set_dense_arguments = [&](Encoder& encoder, unsigned next) {
    if (alpha) encoder.set_bytes(next++, scalar_bytes(*alpha, call.alpha));
    if (call.cast) encoder.set_array(next++, sizes_types);
  };
  if (found.row && allows_rows(binary_flavour()) && runs_by_rows(iter)) {
    return run_rows(iter, *found.row, [&](Encoder& row) { set_dense_arguments(row, 3); });
  }
  Encoder encoder;
  set_operands(encoder, iter);
  unsigned next = 3;
  switch (flavour) {
    case kDenseIlp:
      encoder.set_value(next, length);
      return dispatch_ilp(encoder, kernel, length);
    case kStrided:
    case kStridedCastout:
      if (alpha && flavour == kStrided) encoder.set_bytes(next++, scalar_bytes(*alpha, call.alpha));
      set_strides(encoder, iter, next, std::array{0, 1, 2});
      encoder.set_array(next + 4, ndim_types);
      return dispatch_1d(encoder, kernel, length);
    case kInnerContiguous:
      set_outer_strides(encoder, iter, next, std::array{0, 1, 2});
      encoder.set_array(next + 4, std::array<uint32_t, 2>{ndim_types[0] - 1,
                                                          static_cast<uint32_t>(iter.shape()[0])});
      return dispatch_inner_contiguous(encoder, kernel, iter);
    case kBroadcast:
      encoder.set_value(next++, iter.tensor_base(call.first_is_special ? 1 : 2).numel());
      break;
    case kScalar:
      if (number) encoder.set_bytes(call.first_is_special ? 1 : 2, *number);
      break;
    case kDense:
      break;
  }
  set_dense_arguments(encoder, next);
  dispatch_1d(encoder, kernel, length);
}

}  // namespace
}  // namespace metalops

namespace at::native::mps {

void MetalShaderLibrary::exec_binary_kernel(
    TensorIteratorBase& iter, const std::string& name, const std::optional<c10::Scalar> alpha,
    const std::optional<c10::ScalarType> scalar_arg_type,
    const std::optional<c10::ScalarType> natural_output_dtype,
    const std::optional<uint32_t> ilp_threshold) {
  using namespace metalops;
  check_no_float64_output(iter);
  if (iter.numel() == 0) return;
  if (!iter.can_use_32bit_indexing()) {
    for (auto&& part : iter.with_32bit_indexing()) {
      exec_binary_kernel(part, name, alpha, scalar_arg_type, natural_output_dtype, ilp_threshold);
    }
    return;
  }
  check_dimensions(iter);

  BinaryCall call{.out = iter.dtype(0), .in = {operand_type(iter, 1), operand_type(iter, 2)}};
  call.cast = call.in[0] != call.in[1];
  std::optional<ScalarBytes> number;
  if (natural_output_dtype && *natural_output_dtype != call.out) {
    // Only the strided flavour converts to an output dtype other than the kernel's own.
    call.flavour = kStridedCastout;
    call.natural = *natural_output_dtype;
    call.common = iter.common_dtype();
  } else if (iter.is_contiguous()) {
    call.flavour = kDense;
  } else if ((classify(iter, 1, 2, call) || classify(iter, 2, 1, call)) &&
             call.flavour == kScalar && call.cast) {
    const ScalarType common = iter.common_dtype();
    if (converts_beforehand(call, common)) {
      const int side = call.first_is_special ? 0 : 1;
      number = converted(iter.data_ptr(side + 1), call.in[side], common);
      call.in[side] = common;
      call.cast = false;
    }
  }
  if (call.cast && call.out == kBool) call.common = iter.common_dtype();
  if (alpha) {
    call.alpha = scalar_arg_type ? *scalar_arg_type : call.cast ? call.out : iter.common_dtype();
  }
  if (call.flavour == kDense && !call.cast && !alpha) {
    const Flavour forced = binary_flavour();
    const bool large =
        iter.numel() >=
        ilp_threshold.value_or(c10::isFloatingType(call.out) ? kIlpThreshold : UINT32_MAX);
    call.large = large && forced == Flavour::kAutomatic;
    call.force_ilp = forced == Flavour::kIlp || (large && forced == Flavour::kGpu);
  }

  call.inner = call.flavour == BinaryFlavour::kStrided && binary_flavour() == Flavour::kGpu &&
               is_inner_contiguous(iter);

  auto& library = *static_cast<CompiledLibrary*>(getLibrary());
  const ElementwiseKernel found = library.elementwise(
      name, call.signature().value(), [&] { return find_binary(library, name, call); });
  run_binary(iter, found, call, alpha, number);
}

}  // namespace at::native::mps
