// Host side of kernels/creation/window.metal: kaiser_window. torch composes it from an operator
// that stock MPS lacks.
#include <ATen/ops/empty.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/creation/window.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/stock.h>

namespace {

using at::Tensor;

Tensor kaiser_window_beta(int64_t window_length, bool periodic, double beta,
                          std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                          std::optional<at::Device> device, std::optional<bool> pin_memory) {
  const auto options =
      at::TensorOptions().dtype(dtype).layout(layout).device(device).pinned_memory(pin_memory);
  const auto type = c10::typeMetaToScalarType(options.dtype());
  TORCH_CHECK(options.layout() != at::kSparse,
              "kaiser_window is not implemented for sparse types, got: ", options);
  TORCH_CHECK(at::isFloatingType(type) || at::isComplexType(type),
              "kaiser_window expects floating point dtypes, got: ", options);
  TORCH_CHECK(window_length >= 0,
              "kaiser_window requires non-negative window_length, got "
              "window_length=",
              window_length);
  const auto window = at::empty({window_length}, options);
  metalops::check_not_complex("kaiser_window", type);
  if (window_length == 1) {
    return window.fill_(1);
  }
  const metalops::KaiserWindowParameters parameters{
      window_length, periodic ? window_length : window_length - 1, static_cast<float>(beta)};
  metalops::launch_threads(metalops::library("window"),
                           metalops::typed_kernel("window_kaiser_", type), window_length, window,
                           parameters);
  return window;
}

Tensor kaiser_window_periodic(int64_t window_length, bool periodic,
                              std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                              std::optional<at::Device> device, std::optional<bool> pin_memory) {
  constexpr double kBeta = 12;
  return kaiser_window_beta(window_length, periodic, kBeta, dtype, layout, device, pin_memory);
}

Tensor kaiser_window(int64_t window_length, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<at::Device> device,
                     std::optional<bool> pin_memory) {
  return kaiser_window_periodic(window_length, /*periodic=*/true, dtype, layout, device,
                                pin_memory);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("kaiser_window", kaiser_window);
  m.impl("kaiser_window.periodic", kaiser_window_periodic);
  m.impl("kaiser_window.beta", kaiser_window_beta);
}

}  // namespace
