// MetalShaderLibrary::exec_unary_kernel and exec_unary_kernel_raw.
#include <ATen/native/mps/MetalShaderLibrary.h>

#include <metal/elementwise.h>
#include <metal/flavour.h>
#include <metal/rows.h>
#include <torch_internals.h>

namespace metalops {
namespace {

using at::native::mps::scalarToMetalTypeString;
using c10::ScalarType;

enum UnaryFlavour {
  kDenseScalar,
  kDenseIlp,
  kDenseAlpha,
  kStrided,
  kStridedAlpha,
  kDenseCastout,
  kDenseCastoutIlp,
  kStridedCastout,
  kInnerContiguous,
  kInnerContiguousAlpha,
  kInnerContiguousCastout,
};

// Everything that the choice of a kernel depends on.
struct UnaryCall {
  ScalarType out;
  ScalarType in;
  ScalarType alpha = ScalarType::Undefined;
  bool contiguous;
  bool force_ilp;
  bool force_scalar;
  bool as_on_gpu;
  bool large;          // torch on a GPU would use the ILP flavour
  bool large_castout;  // and the ILP flavour of castout
  bool inner;          // and the flavour for a dense innermost dimension

  Signature signature() const {
    return Signature()
        .add(contiguous | force_ilp << 1 | force_scalar << 2 | as_on_gpu << 3 | large << 4 |
                 large_castout << 5 | inner << 6,
             7)
        .add(out)
        .add(in)
        .add(alpha);
  }
};

ElementwiseKernel find_unary(const CompiledLibrary& library, const std::string& name,
                             const UnaryCall& call) {
  const std::string out = scalarToMetalTypeString(call.out);
  const std::string in = scalarToMetalTypeString(call.in);
  if (call.alpha != ScalarType::Undefined) {
    const std::string alpha = scalarToMetalTypeString(call.alpha);
    const std::string dense = kernel_name(name, "dense", out, in, alpha);
    if (call.contiguous) return {&library.kernel(dense), kDenseAlpha};
    if (call.inner) {
      const auto* inner = library.find(kernel_name(name, "inner_contiguous", out, in, alpha));
      if (inner) return {inner, kInnerContiguousAlpha};
    }
    return {&library.kernel(kernel_name(name, "strided", out, in, alpha)), kStridedAlpha,
            library.find(dense)};
  }
  const auto first_of = [&](std::initializer_list<std::pair<const char*, UnaryFlavour>> flavours) {
    for (const auto& [suffix, flavour] : flavours) {
      if (const exec::Kernel* kernel = library.find(kernel_name(name, suffix, out, in))) {
        return ElementwiseKernel{kernel, flavour};
      }
    }
    return ElementwiseKernel{};
  };
  ElementwiseKernel direct;
  if (call.inner) direct = first_of({{"inner_contiguous", kInnerContiguous}});
  if (direct.kernel) return direct;
  if (!call.contiguous) {
    direct = first_of({{"strided", kStrided}});
    direct.row = first_of({{"dense_scalar", kDenseScalar}}).kernel;
  } else if (call.force_ilp || (call.as_on_gpu && call.large)) {
    direct = first_of({{"dense", kDenseIlp}});
  } else if (call.large && !call.force_scalar) {
    direct = first_of({{"dense_scalar", kDenseScalar}, {"dense", kDenseIlp}});
  } else {
    direct = first_of({{"dense_scalar", kDenseScalar}});
  }
  if (direct.kernel) return direct;
  // No kernel produces this output dtype: compute in the input's dtype and convert results as they
  // are stored.
  const std::string dense_castout = kernel_name(name, "dense_castout", in);
  const std::string ilp_castout = kernel_name(name, "dense_castout_ilp", in);
  if (call.inner) {
    const auto* inner = library.find(kernel_name(name, "inner_contiguous_castout", in));
    if (inner) return {inner, kInnerContiguousCastout};
  }
  if (!call.contiguous) {
    return {&library.kernel(kernel_name(name, "strided_castout", in)), kStridedCastout,
            library.find(dense_castout)};
  }
  const bool ilp =
      call.force_ilp || (call.large_castout && (call.as_on_gpu || !library.has(dense_castout)));
  if (ilp) return {&library.kernel(ilp_castout), kDenseCastoutIlp};
  return {&library.kernel(dense_castout), kDenseCastout};
}

void set_castout(Encoder& encoder, ScalarType out, uint32_t length, bool ilp) {
  if (ilp) {
    encoder.set_array(2, std::array<uint32_t, 4>{size_of(out), as_number(out), length, 0});
  } else {
    encoder.set_array(2, std::array<uint32_t, 2>{size_of(out), as_number(out)});
  }
}

void run_unary(at::TensorIteratorBase& iter, const ElementwiseKernel& found,
               const std::optional<c10::Scalar>& alpha, ScalarType alpha_type) {
  const exec::Kernel& kernel = *found.kernel;
  const auto length = static_cast<uint32_t>(iter.numel());
  const auto ndim = static_cast<uint32_t>(iter.ndim());
  const ScalarType out = iter.dtype(0);
  const auto flavour = static_cast<UnaryFlavour>(found.flavour);
  if (found.row && allows_rows(unary_flavour()) && runs_by_rows(iter)) {
    return run_rows(iter, *found.row, [&](Encoder& row) {
      if (flavour == kStridedAlpha) row.set_bytes(2, scalar_bytes(*alpha, alpha_type));
      if (flavour == kStridedCastout) set_castout(row, out, length, /*ilp=*/false);
    });
  }
  Encoder encoder;
  set_operands(encoder, iter);
  switch (flavour) {
    case kDenseScalar:
      return dispatch_1d(encoder, kernel, length);
    case kDenseIlp:
      encoder.set_value(2, length);
      return dispatch_ilp(encoder, kernel, length);
    case kDenseAlpha:
      encoder.set_bytes(2, scalar_bytes(*alpha, alpha_type));
      return dispatch_1d(encoder, kernel, length);
    case kStrided:
      set_strides(encoder, iter, 2, std::array{1, 0});
      encoder.set_value(5, ndim);
      return dispatch_strided_2d(encoder, kernel, iter);
    case kStridedAlpha:
      set_strides(encoder, iter, 2, std::array{1, 0});
      encoder.set_value(5, ndim);
      encoder.set_bytes(6, scalar_bytes(*alpha, alpha_type));
      return dispatch_strided_2d(encoder, kernel, iter);
    case kDenseCastout:
      set_castout(encoder, out, length, /*ilp=*/false);
      return dispatch_1d(encoder, kernel, length);
    case kDenseCastoutIlp:
      set_castout(encoder, out, length, /*ilp=*/true);
      return dispatch_ilp(encoder, kernel, length);
    case kStridedCastout:
      set_strides(encoder, iter, 2, std::array{1, 0});
      encoder.set_array(5, std::array<uint32_t, 2>{ndim, as_number(out)});
      return dispatch_strided_2d(encoder, kernel, iter);
    case kInnerContiguous:
    case kInnerContiguousAlpha:
    case kInnerContiguousCastout: {
      const auto inner = static_cast<uint32_t>(iter.shape()[0]);
      set_outer_strides(encoder, iter, 2, std::array{1, 0});
      if (flavour == kInnerContiguousCastout) {
        encoder.set_array(5,
                          std::array<uint32_t, 4>{ndim - 1, inner, size_of(out), as_number(out)});
      } else {
        encoder.set_array(5, std::array<uint32_t, 2>{ndim - 1, inner});
      }
      if (flavour == kInnerContiguousAlpha) encoder.set_bytes(6, scalar_bytes(*alpha, alpha_type));
      return dispatch_inner_contiguous(encoder, kernel, iter);
    }
  }
}

}  // namespace
}  // namespace metalops

namespace at::native::mps {

void MetalShaderLibrary::exec_unary_kernel(TensorIteratorBase& iter, const std::string& name,
                                           const std::optional<c10::Scalar> alpha,
                                           const std::optional<c10::ScalarType> scalar_arg_type,
                                           const std::optional<uint32_t> ilp_threshold) {
  using namespace metalops;
  if (!iter.can_use_32bit_indexing()) {
    for (auto&& part : iter.with_32bit_indexing()) {
      exec_unary_kernel(part, name, alpha, scalar_arg_type, ilp_threshold);
    }
    return;
  }
  const auto length = static_cast<uint32_t>(iter.numel());
  if (length == 0) return;
  check_dimensions(iter);

  const Flavour forced = unary_flavour();
  UnaryCall call{.out = iter.dtype(0), .in = iter.dtype(1)};
  if (alpha) call.alpha = scalar_arg_type ? *scalar_arg_type : iter.common_dtype();
  call.contiguous = iter.is_contiguous();
  call.force_ilp = forced == Flavour::kIlp;
  call.force_scalar = forced == Flavour::kScalar;
  call.as_on_gpu = forced == Flavour::kGpu;
  call.large = (c10::isFloatingType(call.out) || ilp_threshold) &&
               length >= ilp_threshold.value_or(kIlpThreshold);
  call.large_castout = ilp_threshold && length >= *ilp_threshold;
  call.inner = call.as_on_gpu && !call.contiguous && is_inner_contiguous(iter);

  auto& library = *static_cast<CompiledLibrary*>(getLibrary());
  const ElementwiseKernel found = library.elementwise(
      name, call.signature().value(), [&] { return find_unary(library, name, call); });
  run_unary(iter, found, alpha, call.alpha);
}

void MetalShaderLibrary::exec_unary_kernel_raw(metalops::internals::KernelName name,
                                               MTLBuffer_t src_buf, uint32_t src_offs_bytes,
                                               c10::ScalarType src_dtype, MTLBuffer_t dst_buf,
                                               uint32_t dst_offs_bytes, c10::ScalarType dst_dtype,
                                               uint32_t numel,
                                               const std::optional<uint32_t> ilp_threshold) {
  using namespace metalops;
  if (numel == 0) return;
  const bool ilp = unary_flavour() == Flavour::kIlp && ilp_threshold && numel >= *ilp_threshold;
  const auto& library = *static_cast<CompiledLibrary*>(getLibrary());
  const exec::Kernel& kernel =
      library.kernel(kernel_name(std::string(name), ilp ? "dense_castout_ilp" : "dense_castout",
                                 scalarToMetalTypeString(src_dtype)));
  // Here a buffer is the address of its memory (getMTLBufferStorage: the storage's data).
  Encoder encoder;
  encoder.set_buffer(0, static_cast<char*>(dst_buf) + dst_offs_bytes,
                     uint64_t{numel} * c10::elementSize(dst_dtype));
  encoder.set_buffer(1, static_cast<char*>(src_buf) + src_offs_bytes,
                     uint64_t{numel} * c10::elementSize(src_dtype));
  set_castout(encoder, dst_dtype, numel, ilp);
  if (ilp) {
    dispatch_ilp(encoder, kernel, numel);
  } else {
    dispatch_1d(encoder, kernel, numel);
  }
}

}  // namespace at::native::mps
