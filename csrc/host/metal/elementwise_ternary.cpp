// The body of MetalShaderLibrary::exec_ternary_kernel.
#include <ATen/native/TypeProperties.h>
#include <ATen/native/mps/MetalShaderLibrary.h>

#include <metal/elementwise.h>
#include <metal/flavour.h>
#include <metal/rows.h>
#include <torch_internals.h>

namespace metalops {
namespace {

using at::native::mps::scalarToMetalTypeString;
using c10::ScalarType;

struct TernaryCall {
  bool contiguous;
  bool cast;  // the inputs have different dtypes
  ScalarType out;
  ScalarType compute;  // what the kernel's name and its variables have
  std::array<ScalarType, 3> in;
  ScalarType alpha = ScalarType::Undefined;

  Signature signature() const {
    return Signature().add(contiguous | cast << 1, 2).add(out).add(compute).add(in[0]).add(alpha);
  }
};

enum TernaryFlavour { kSameTypes, kCast };

ElementwiseKernel find_ternary(const CompiledLibrary& library, const std::string& name,
                               const TernaryCall& call) {
  const std::string compute = scalarToMetalTypeString(call.compute);
  // An alpha type is the last part of every name.
  const std::string alpha =
      call.alpha == ScalarType::Undefined ? "" : "_" + scalarToMetalTypeString(call.alpha);
  const char* shape = call.contiguous ? "dense" : "strided";
  const std::string same = "_" + scalarToMetalTypeString(call.out) + "_" + compute + alpha;
  const bool cast = call.cast || (internals::kTernaryCastsStoreAnyType &&
                                  !library.has(kernel_name(name, shape + same)));
  const std::string types = cast ? "_cast_" + compute + alpha : same;
  const int flavour = cast ? kCast : kSameTypes;
  const exec::Kernel& kernel = library.kernel(kernel_name(name, shape + types));
  if (call.contiguous) return {&kernel, flavour};
  return {&kernel, flavour, library.find(kernel_name(name, "dense" + types))};
}

void run_ternary(at::TensorIteratorBase& iter, const ElementwiseKernel& found,
                 const TernaryCall& call, const std::optional<c10::Scalar>& alpha) {
  const bool cast = found.flavour == kCast;
  const auto& in = call.in;
  const std::array<uint32_t, 4> sizes{size_of(in[0]), size_of(in[1]), size_of(in[2]),
                                      size_of(call.out)};
  const std::array<uint32_t, 4> types{as_number(in[0]), as_number(in[1]), as_number(in[2]),
                                      as_number(call.out)};
  // Binds what follows the operands; returns the index of the next buffer.
  const auto set_alpha = [&](Encoder& encoder) {
    if (alpha) encoder.set_bytes(4, scalar_bytes(*alpha, call.alpha));
    return alpha ? 5u : 4u;
  };
  const auto set_dense_arguments = [&](Encoder& encoder) {
    const unsigned next = set_alpha(encoder);
    if (!cast) return;
    encoder.set_array(next, sizes);
    encoder.set_array(next + 1, types);
  };
  if (found.row && allows_rows(binary_flavour()) && runs_by_rows(iter)) {
    return run_rows(iter, *found.row, set_dense_arguments);
  }
  Encoder encoder;
  set_operands(encoder, iter);
  if (call.contiguous) {
    set_dense_arguments(encoder);
    return dispatch_1d(encoder, *found.kernel, iter.numel());
  }
  const unsigned next = set_alpha(encoder);
  set_strides(encoder, iter, next, std::array{0, 1, 2, 3});
  encoder.set_value(next + 5, static_cast<uint32_t>(iter.ndim()));
  if (cast) encoder.set_array(next + 6, types);
  if (internals::kTernaryKernelsHave3DGrids) {
    dispatch_strided_3d(encoder, *found.kernel, iter);
  } else {
    dispatch_1d(encoder, *found.kernel, iter.numel());
  }
}

}  // namespace

void exec_ternary(CompiledLibrary& library, at::TensorIteratorBase& iter, const std::string& name,
                  const std::optional<c10::Scalar>& alpha,
                  std::optional<ScalarType> scalar_arg_type) {
  check_no_float64_output(iter);
  if (iter.numel() == 0) return;
  if (!iter.can_use_32bit_indexing()) {
    // torch 2.13 passes the parts to exec_binary_kernel, which then finds no kernel; later versions
    // do this.
    for (auto&& part : iter.with_32bit_indexing()) {
      exec_ternary(library, part, name, alpha, scalar_arg_type);
    }
    return;
  }
  check_dimensions(iter);

  TernaryCall call;
  call.contiguous = iter.is_contiguous();
  call.out = iter.dtype(0);
  call.in = {operand_type(iter, 1), operand_type(iter, 2), operand_type(iter, 3)};
  call.cast = call.in[0] != call.in[1] || call.in[0] != call.in[2];
  call.compute = call.in[0];
  if (call.cast) {
    call.compute = internals::kTernaryCastsStoreAnyType
                       ? metal_scalar_type(at::native::result_type(
                             {iter.tensor(1), iter.tensor(2), iter.tensor(3)}))
                       : call.out;
  }
  if (alpha) call.alpha = scalar_arg_type.value_or(call.compute);

  const ElementwiseKernel found = library.elementwise(
      name, call.signature().value(), [&] { return find_ternary(library, name, call); });
  run_ternary(iter, found, call, alpha);
}

}  // namespace metalops
