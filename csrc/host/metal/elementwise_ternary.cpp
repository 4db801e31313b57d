// MetalShaderLibrary::exec_ternary_kernel.
#include <ATen/native/mps/MetalShaderLibrary.h>

#include <metal/elementwise.h>
#include <metal/flavour.h>
#include <metal/rows.h>

namespace metalops {
namespace {

using at::native::mps::scalarToMetalTypeString;
using c10::ScalarType;

struct TernaryCall {
  bool contiguous;
  bool cast;  // the inputs have different dtypes
  ScalarType out;
  std::array<ScalarType, 3> in;

  Signature signature() const {
    return Signature().add(contiguous | cast << 1, 2).add(out).add(in[0]);
  }
};

ElementwiseKernel find_ternary(const CompiledLibrary& library, const std::string& name,
                               const TernaryCall& call) {
  const std::string out = scalarToMetalTypeString(call.out);
  const std::string types =
      call.cast ? "_cast_" + out : "_" + out + "_" + scalarToMetalTypeString(call.in[0]);
  const std::string dense = kernel_name(name, "dense" + types);
  if (call.contiguous) return {&library.kernel(dense)};
  return {&library.kernel(kernel_name(name, "strided" + types)), 0, library.library()->find(dense)};
}

void run_ternary(at::TensorIteratorBase& iter, const ElementwiseKernel& found,
                 const TernaryCall& call) {
  const auto& in = call.in;
  const std::array<uint32_t, 4> sizes{size_of(in[0]), size_of(in[1]), size_of(in[2]), 0};
  const std::array<uint32_t, 4> types{as_number(in[0]), as_number(in[1]), as_number(in[2]),
                                      as_number(call.out)};
  const auto set_dense_arguments = [&](Encoder& encoder) {
    if (!call.cast) return;
    encoder.set_array(4, sizes);
    encoder.set_array(5, types);
  };
  if (found.row && allows_rows(binary_flavour()) && runs_by_rows(iter)) {
    return run_rows(iter, *found.row, set_dense_arguments);
  }
  Encoder encoder;
  set_operands(encoder, iter);
  if (call.contiguous) {
    set_dense_arguments(encoder);
  } else {
    set_strides(encoder, iter, 4, std::array{0, 1, 2, 3});
    encoder.set_value(9, static_cast<uint32_t>(iter.ndim()));
    if (call.cast) encoder.set_array(10, types);
  }
  dispatch_1d(encoder, *found.kernel, iter.numel());
}

}  // namespace
}  // namespace metalops

namespace at::native::mps {

void MetalShaderLibrary::exec_ternary_kernel(TensorIteratorBase& iter, const std::string& name) {
  using namespace metalops;
  check_no_float64_output(iter);
  if (iter.numel() == 0) return;
  if (!iter.can_use_32bit_indexing()) {
    // torch 2.13 passes the parts to exec_binary_kernel, which then finds no kernel; later versions
    // do this.
    for (auto&& part : iter.with_32bit_indexing()) exec_ternary_kernel(part, name);
    return;
  }
  check_dimensions(iter);

  TernaryCall call;
  call.contiguous = iter.is_contiguous();
  call.out = iter.dtype(0);
  call.in = {operand_type(iter, 1), operand_type(iter, 2), operand_type(iter, 3)};
  call.cast = call.in[0] != call.in[1] || call.in[0] != call.in[2];

  auto& library = *static_cast<CompiledLibrary*>(getLibrary());
  const ElementwiseKernel found = library.elementwise(
      name, call.signature().value(), [&] { return find_ternary(library, name, call); });
  run_ternary(iter, found, call);
}

}  // namespace at::native::mps
