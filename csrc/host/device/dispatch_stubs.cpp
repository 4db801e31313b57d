// Entries for mps in torch's DispatchStubs, the tables in which torch's device-independent kernels
// look up the part that each device implements. Such a kernel gets mps tensors when an operator is
// called under another key than MPS: when a package's own kernel on the MPS key passes calls on to
// torch's. torch's Linux build has the tables and leaves the entries for mps empty; here each calls
// the CPU kernel on the same memory. It is the DEFAULT kernel, for every CPU, because the other
// ones depend on how torch was built.
//
// The list is that of torch's macOS build: all stubs that the static initialisers of its *.mm files
// set. Only copy_stub is an addition, because there `copy_` itself handles mps.
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Activation.h>
#include <ATen/native/BatchLinearAlgebra.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/Copy.h>
#include <ATen/native/Cross.h>
#include <ATen/native/Distance.h>
#include <ATen/native/Fill.h>
#include <ATen/native/Histogram.h>
#include <ATen/native/IndexKernel.h>
#include <ATen/native/Lerp.h>
#include <ATen/native/Pow.h>
#include <ATen/native/ReduceOps.h>
#include <ATen/native/TensorAdvancedIndexing.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/native/UnfoldBackward.h>
#include <ATen/native/group_norm.h>
#include <device/aliases.h>
#include <device/copy.h>
#include <device/device.h>
#include <device/dispatch_stubs.h>
#include <device/generator.h>
#include <device/imports.h>
#include <device/recorder.h>
#include <device/stream_work.h>

#include <list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace at::native {
// torch declares these in .cpp files, not in headers.
DECLARE_DISPATCH(Tensor (*)(const Tensor&, IntArrayRef), flatten_indices_stub)
DECLARE_DISPATCH(void (*)(Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&),
                 sparse_mask_intersection_out_stub)
DECLARE_DISPATCH(void (*)(Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&,
                          bool),
                 sparse_mask_projection_out_stub)
}  // namespace at::native

namespace metalops::device {
namespace {

template <class T>
constexpr bool kIsTensor = std::is_base_of_v<at::TensorBase, std::decay_t<T>>;

// Converts arguments for the CPU kernel. An iterator is passed unchanged: kernels take addresses,
// sizes and strides from it, and do not check the device.
class CpuCall {
 public:
  template <class T>
  decltype(auto) argument(T& value) {
    using Plain = std::decay_t<T>;
    if constexpr (kIsTensor<T>) {
      return alias(value);
    } else if constexpr (std::is_same_v<Plain, std::optional<at::Tensor>>) {
      return aliases_.to_cpu(value);
    } else if constexpr (std::is_same_v<Plain, at::TensorList>) {
      return list(value);
    } else if constexpr (std::is_same_v<Plain, std::optional<at::Generator>>) {
      return std::optional<at::Generator>(random_.emplace(value).cpu());
    } else {
      return value;
    }
  }

  void end(int64_t numbers) {
    aliases_.write_back();
    if (random_) random_->advance(numbers);
  }

  at::Tensor to_mps(const at::Tensor& result) {
    return aliases_.saw_mps() ? aliases_.to_mps(result) : result;
  }

 private:
  at::Tensor& alias(const at::TensorBase& tensor) {
    return tensors_.emplace_back(aliases_.to_cpu(at::Tensor(tensor)));
  }

  at::TensorList list(at::TensorList tensors) {
    auto& cpu = lists_.emplace_back();
    for (const at::Tensor& tensor : tensors) cpu.push_back(aliases_.to_cpu(tensor));
    return cpu;
  }

  Aliases aliases_;
  std::list<at::Tensor> tensors_;
  std::list<std::vector<at::Tensor>> lists_;
  std::optional<RandomStream> random_;
};

template <class T>
int64_t elements(const T& argument) {
  if constexpr (kIsTensor<T> || std::is_base_of_v<at::TensorIteratorBase, T>) {
    return argument.numel();
  } else {
    return 1;
  }
}

// The entry for mps of a stub. `name`: as in recordings of stand-ins.
template <auto& stub, class Function>
struct Entry;

template <auto& stub, class Result, class First, class... Others>
struct Entry<stub, Result (*)(First, Others...)> {
  inline static const char* name = nullptr;
  static constexpr const auto& kernel = std::remove_reference_t<decltype(stub)>::DEFAULT;

  static Result call(First first, Others... others) {
    record_stand_in(name);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, std::decay_t<First>>) {
      if (is_stream_work()) check_iterator(name, first);
    }
    CpuCall call;
    if constexpr (std::is_void_v<Result>) {
      kernel(call.argument(first), call.argument(others)...);
      call.end(elements(first));
    } else if constexpr (std::is_reference_v<Result>) {  // returns the first argument
      kernel(call.argument(first), call.argument(others)...);
      call.end(elements(first));
      return first;
    } else {
      const auto result = kernel(call.argument(first), call.argument(others)...);
      call.end(elements(first));
      return call.to_mps(result);
    }
  }
};

template <auto& stub>
void enter(const char* name) {
  using Function = typename std::remove_reference_t<decltype(stub)>::FnPtr;
  using Own = Entry<stub, Function>;
  Own::name = name;
  stub.set_mps_dispatch_ptr(&Own::call);
}

// Copies between mps and CPU tensors also arrive here.
void copy_entry(at::TensorIterator& iterator, bool non_blocking) {
  streams::before_direct_work();
  if (is_stream_work()) check_iterator("aten::copy_", iterator);
  if (!iterator.device(0).is_mps()) before_copy_to_host();
  std::remove_reference_t<decltype(at::native::copy_stub)>::DEFAULT(iterator, non_blocking);
}

std::vector<std::string> enter_all() {
  std::vector<std::string> names;
#define ENTER(stub)                         \
  names.emplace_back("at::native::" #stub); \
  enter<at::native::stub>("at::native::" #stub)
  // ActivationKernel.mm
  ENTER(GeluBackwardKernel);
  ENTER(GeluKernel);
  ENTER(elu_backward_stub);
  ENTER(elu_stub);
  ENTER(hardshrink_stub);
  ENTER(hardsigmoid_backward_stub);
  ENTER(hardsigmoid_stub);
  ENTER(hardswish_backward_stub);
  ENTER(hardswish_stub);
  ENTER(leaky_relu_backward_stub);
  ENTER(leaky_relu_stub);
  ENTER(shrink_backward_stub);
  ENTER(silu_backward_stub);
  ENTER(silu_stub);
  ENTER(softshrink_stub);
  // BinaryKernel.mm
  ENTER(atan2_stub);
  ENTER(bitwise_and_stub);
  ENTER(bitwise_or_stub);
  ENTER(bitwise_xor_stub);
  ENTER(chebyshev_polynomial_t_stub);
  ENTER(chebyshev_polynomial_u_stub);
  ENTER(chebyshev_polynomial_v_stub);
  ENTER(chebyshev_polynomial_w_stub);
  ENTER(complex_stub);
  ENTER(copysign_stub);
  ENTER(div_floor_stub);
  ENTER(div_true_stub);
  ENTER(div_trunc_stub);
  ENTER(eq_stub);
  ENTER(fmax_stub);
  ENTER(fmin_stub);
  ENTER(fmod_stub);
  ENTER(gcd_stub);
  ENTER(ge_stub);
  ENTER(gt_stub);
  ENTER(hermite_polynomial_h_stub);
  ENTER(hermite_polynomial_he_stub);
  ENTER(hypot_stub);
  ENTER(igamma_stub);
  ENTER(igammac_stub);
  ENTER(lcm_stub);
  ENTER(le_stub);
  ENTER(lerp_kernel_scalar_weight);
  ENTER(lerp_kernel_tensor_weight);
  ENTER(logaddexp2_stub);
  ENTER(logaddexp_stub);
  ENTER(lshift_stub);
  ENTER(lt_stub);
  ENTER(maximum_stub);
  ENTER(minimum_stub);
  ENTER(mul_stub);
  ENTER(ne_stub);
  ENTER(nextafter_stub);
  ENTER(polar_stub);
  ENTER(remainder_stub);
  ENTER(rshift_stub);
  ENTER(shifted_chebyshev_polynomial_t_stub);
  ENTER(shifted_chebyshev_polynomial_u_stub);
  ENTER(shifted_chebyshev_polynomial_v_stub);
  ENTER(shifted_chebyshev_polynomial_w_stub);
  ENTER(xlog1py_stub);
  ENTER(xlogy_stub);
  ENTER(zeta_stub);
  // ConstantOps.mm
  ENTER(fill_stub);
  // CrossKernel.mm
  ENTER(cross_stub);
  // Distance.mm
  ENTER(cdist_backward_stub);
  ENTER(cdist_stub);
  // Distributions.mm
  ENTER(bernoulli_scalar_stub);
  ENTER(bernoulli_tensor_stub);
  ENTER(cauchy_stub);
  ENTER(exponential_stub);
  ENTER(geometric_stub);
  ENTER(log_normal_stub);
  ENTER(multinomial_with_replacement_stub);
  ENTER(normal_stub);
  ENTER(random_from_to_stub);
  ENTER(random_full_64_bits_range_stub);
  ENTER(random_stub);
  ENTER(uniform_stub);
  // FlattenIndices.mm
  ENTER(flatten_indices_stub);
  // GroupNorm.mm
  ENTER(GroupNormBackwardKernel);
  ENTER(GroupNormKernel);
  // HistogramKernel.mm
  ENTER(histogram_select_outer_bin_edges_stub);
  ENTER(histogramdd_linear_stub);
  ENTER(histogramdd_stub);
  // Indexing.mm
  ENTER(index_fill_stub);
  ENTER(index_put_stub);
  ENTER(index_stub);
  // LinearAlgebra.mm
  ENTER(cholesky_inverse_stub);
  ENTER(cholesky_stub);
  ENTER(orgqr_stub);
  ENTER(unpack_pivots_stub);
  // ReduceOps.mm
  ENTER(aminmax_allreduce_stub);
  ENTER(aminmax_stub);
  ENTER(and_stub);
  ENTER(max_values_stub);
  ENTER(mean_stub);
  ENTER(min_values_stub);
  ENTER(nansum_stub);
  ENTER(norm_stub);
  ENTER(or_stub);
  ENTER(sum_stub);
  // ScatterGather.mm
  ENTER(gather_stub);
  ENTER(scatter_add_stub);
  ENTER(scatter_fill_stub);
  ENTER(scatter_reduce_stub);
  ENTER(scatter_reduce_two_stub);
  ENTER(scatter_scalar_reduce_stub);
  ENTER(scatter_stub);
  // SparseMPSTensorMath.mm
  ENTER(sparse_mask_intersection_out_stub);
  ENTER(sparse_mask_projection_out_stub);
  // SpecialOps.mm
  ENTER(i0_stub);
  ENTER(special_bessel_j0_stub);
  ENTER(special_bessel_j1_stub);
  ENTER(special_bessel_y0_stub);
  ENTER(special_bessel_y1_stub);
  ENTER(special_entr_stub);
  ENTER(special_i0e_stub);
  ENTER(special_i1_stub);
  ENTER(special_i1e_stub);
  ENTER(special_modified_bessel_i0_stub);
  ENTER(special_modified_bessel_i1_stub);
  ENTER(special_modified_bessel_k0_stub);
  ENTER(special_modified_bessel_k1_stub);
  ENTER(special_scaled_modified_bessel_k0_stub);
  ENTER(special_scaled_modified_bessel_k1_stub);
  ENTER(special_spherical_bessel_j0_stub);
  // TensorCompare.mm
  ENTER(clamp_max_scalar_stub);
  ENTER(clamp_min_scalar_stub);
  ENTER(clamp_scalar_stub);
  ENTER(clamp_stub);
  ENTER(isneginf_stub);
  ENTER(isposinf_stub);
  ENTER(where_kernel);
  // UnaryKernel.mm
  ENTER(abs_stub);
  ENTER(acos_stub);
  ENTER(angle_stub);
  ENTER(asin_stub);
  ENTER(atan_stub);
  ENTER(bitwise_not_stub);
  ENTER(cos_stub);
  ENTER(cosh_stub);
  ENTER(digamma_stub);
  ENTER(erf_stub);
  ENTER(erfc_stub);
  ENTER(erfinv_stub);
  ENTER(exp2_stub);
  ENTER(exp_stub);
  ENTER(expm1_stub);
  ENTER(lgamma_stub);
  ENTER(log10_stub);
  ENTER(log1p_stub);
  ENTER(log2_stub);
  ENTER(log_stub);
  ENTER(neg_stub);
  ENTER(polygamma_stub);
  ENTER(pow_tensor_scalar_stub);
  ENTER(reciprocal_stub);
  ENTER(round_decimals_stub);
  ENTER(round_stub);
  ENTER(rsqrt_stub);
  ENTER(sigmoid_stub);
  ENTER(sin_stub);
  ENTER(sinc_stub);
  ENTER(sinh_stub);
  ENTER(special_erfcx_stub);
  ENTER(sqrt_stub);
  ENTER(tan_stub);
  ENTER(tanh_stub);
  // UnaryOps.mm
  ENTER(ceil_stub);
  ENTER(floor_stub);
  ENTER(trunc_stub);
  // UnfoldBackward.mm
  ENTER(unfold_backward_stub);
#undef ENTER
  at::native::copy_stub.set_mps_dispatch_ptr(&copy_entry);
  return names;
}

const std::vector<std::string> entered = enter_all();

// ---- how torch finds the entries ----------------------------------------------------------------

// DispatchStubImpl::try_get_call_ptr as a function. The number of pointers depends on torch's
// build; all are passed in registers.
using FindKernel = at::native::DispatchResult (*)(at::native::DispatchStubImpl*, c10::DeviceType,
                                                  void*, void*, void*, void*);

FindKernel find_of_torch = nullptr;

// Returns the entry for mps, which torch's Linux build does not look up.
at::native::DispatchResult find_kernel(at::native::DispatchStubImpl* stub, c10::DeviceType device,
                                       void* a, void* b, void* c, void* d) {
  if (device != c10::DeviceType::MPS) return find_of_torch(stub, device, a, b, c, d);
  if (stub->mps_dispatch_ptr == nullptr) return at::native::ErrorType::MissingDeviceKernel;
  return stub->mps_dispatch_ptr;
}

// If torch was linked so that its import cannot be replaced, its device-independent kernels keep
// rejecting mps tensors.
const bool found_by_torch =
    replace_import("libtorch_cpu.so", "_ZN2at6native16DispatchStubImpl16try_get_call_ptrE",
                   reinterpret_cast<void*>(&find_kernel), reinterpret_cast<void**>(&find_of_torch));

}  // namespace

const std::vector<std::string>& dispatch_stubs() { return entered; }

}  // namespace metalops::device
