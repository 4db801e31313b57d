// exec_unary_kernel_with_params and exec_binary_kernel_with_params: elementwise kernels with a
// struct of parameters. torch has their bodies as templates in OperationUtils.h; ours forward to
// these functions.
#include <ATen/native/mps/OperationUtils.h>
#include <metal/elementwise.h>
#include <metal/flavour.h>

namespace at::native::mps {
using namespace metalops;

namespace {

enum CallWithParams { kUnaryWithParams, kBinaryWithParams, kBinaryCastWithParams };

}  // namespace

void exec_unary_kernel_with_params_(MTLLibrary_t handle, TensorIteratorBase& iter,
                                    const std::string& name, const KernelParams& params,
                                    std::optional<uint32_t> ilp_threshold) {
  if (!iter.can_use_32bit_indexing()) {
    for (auto&& part : iter.with_32bit_indexing()) {
      exec_unary_kernel_with_params_(handle, part, name, params, ilp_threshold);
    }
    return;
  }
  if (iter.numel() == 0) return;
  check_dimensions(iter);
  auto& library = *static_cast<CompiledLibrary*>(handle);
  const bool contiguous = iter.is_contiguous();
  const ScalarType out = iter.dtype(0);
  const ScalarType in = iter.dtype(1);
  const auto length = static_cast<uint32_t>(iter.numel());
  // One element per thread is the faster choice here (flavour.h).
  const Flavour forced = unary_flavour();
  const bool ilp = contiguous && ilp_threshold && length >= *ilp_threshold &&
                   (forced == Flavour::kIlp || forced == Flavour::kGpu);
  const uint64_t signature =
      Signature().add(kUnaryWithParams, 2).add(contiguous | ilp << 1, 2).add(out).add(in).value();
  const ElementwiseKernel found = library.elementwise(name, params.type_name, signature, [&] {
    return ElementwiseKernel{&library.kernel(
        kernel_name(name,
                    ilp          ? "dense_ilp"
                    : contiguous ? "dense"
                                 : "strided",
                    scalarToMetalTypeString(out), scalarToMetalTypeString(in), params.type_name))};
  });
  const exec::Kernel& kernel = *found.kernel;
  Encoder encoder;
  set_operands(encoder, iter);
  if (contiguous) {
    encoder.set_bytes(2, params.data, params.size);
    if (!ilp) return dispatch_1d(encoder, kernel, length);
    encoder.set_value(3, length);
    dispatch_ilp(encoder, kernel, length);
  } else {
    set_strides(encoder, iter, 2, std::array{1, 0});
    encoder.set_value(5, static_cast<uint32_t>(iter.ndim()));
    encoder.set_bytes(6, params.data, params.size);
    dispatch_strided_2d(encoder, kernel, iter);
  }
}

void exec_binary_kernel_with_params_(MTLLibrary_t handle, TensorIteratorBase& iter,
                                     const std::string& name, const KernelParams& params) {
  check_no_float64_output(iter);
  if (iter.numel() == 0) return;
  if (!iter.can_use_32bit_indexing()) {
    for (auto&& part : iter.with_32bit_indexing()) {
      exec_binary_kernel_with_params_(handle, part, name, params);
    }
    return;
  }
  check_dimensions(iter);
  auto& library = *static_cast<CompiledLibrary*>(handle);
  const bool contiguous = iter.is_contiguous();
  const ScalarType out = iter.dtype(0);
  const ScalarType in[2] = {operand_type(iter, 1), operand_type(iter, 2)};
  const bool cast = in[0] != in[1];
  const uint64_t signature = Signature()
                                 .add(cast ? kBinaryCastWithParams : kBinaryWithParams, 2)
                                 .add(contiguous, 1)
                                 .add(out)
                                 .add(in[0])
                                 .value();
  const ElementwiseKernel found = library.elementwise(name, params.type_name, signature, [&] {
    const std::string out_name = scalarToMetalTypeString(out);
    const char* shape = contiguous ? "dense" : "strided";
    return ElementwiseKernel{
        &library.kernel(cast ? kernel_name(name, shape, "cast", out_name, params.type_name)
                             : kernel_name(name, shape, out_name, scalarToMetalTypeString(in[0]),
                                           params.type_name))};
  });
  const exec::Kernel& kernel = *found.kernel;
  Encoder encoder;
  set_operands(encoder, iter);
  encoder.set_bytes(3, params.data, params.size);
  if (contiguous) {
    if (cast) {
      encoder.set_array(4, std::array<uint32_t, 4>{size_of(in[0]), size_of(in[1]), as_number(in[0]),
                                                   as_number(in[1])});
    }
  } else {
    set_strides(encoder, iter, 4, std::array{0, 1, 2});
    encoder.set_array(8,
                      std::array<uint32_t, 4>{static_cast<uint32_t>(iter.ndim()), as_number(in[0]),
                                              as_number(in[1]), as_number(out)});
  }
  dispatch_1d(encoder, kernel, iter.numel());
}

}  // namespace at::native::mps
