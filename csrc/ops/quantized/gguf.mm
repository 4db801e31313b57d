// Host side of kernels/quantized/gguf.metal: weights of GGUF files (ggml's block formats).
#include <ATen/ops/empty.h>
#include <csrc/ops/common/arguments.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/quantized/gguf.h>
#include <csrc/plans/quantized/quantized_arguments.h>
#include <kernels/quantized/gguf.h>
#include <metalops/library.h>
#include <torch/library.h>

#include <algorithm>

namespace {

using at::Tensor;
using metalops::GgufLayout;
using metalops::MaybeTensor;

// Returns the layout of data that has been checked. Raises RuntimeError for rows that are too long.
GgufLayout gguf_layout(const char* name, const Tensor& data, int64_t type) {
  const auto bytes = data.size(-1);
  const auto layout = metalops::plans::gguf_layout(bytes == 0 ? 0 : data.numel() / bytes, bytes,
                                                   static_cast<metalops::GgufType>(type));
  const auto inner = bytes / layout.block_bytes << layout.block_shift;
  TORCH_CHECK(inner <= metalops::kLargestTiledSize, name, ": rows of ", inner,
              " elements are too long for MPS");
  return layout;
}

// Dequantises data, (..., bytes); with indices, the rows of (rows, bytes) that they name.
Tensor gguf_dequantize(const Tensor& data, const MaybeTensor& indices, int64_t type,
                       at::ScalarType dtype) {
  constexpr const char* kName = "gguf_dequantize";
  metalops::Operands of(kName);
  metalops::check_arguments(
      metalops::plans::check_gguf_dequantize,
      {of(data, "data"), of(indices, "indices"), type, static_cast<metalops::plans::Type>(dtype)});
  const auto layout = gguf_layout(kName, data, type);
  at::DimVector sizes(data.sizes());
  if (indices) {
    sizes = at::DimVector(indices->sizes());
    sizes.push_back(0);
  }
  sizes.back() = layout.inner;
  const auto result = at::empty(sizes, data.options().dtype(dtype));
  if (result.numel() != 0) {
    metalops::PlanRun run;
    metalops::plans::gguf_dequantize(
        run.plan(),
        {.result = run.view(result.view({-1, layout.inner})),
         .data = run.view(data.reshape({-1, layout.line_bytes})),
         .indices = indices ? run.view(indices->reshape({-1})) : metalops::plans::View{},
         .qtype = type},
        metalops::plan_device());
    run.run();
  }
  return result;
}

// Returns x W^T, (M, N). x: (M, K). data: the rows of W, (N, bytes).
Tensor gguf_linear(const Tensor& x, const Tensor& data, const MaybeTensor& bias, int64_t type) {
  constexpr const char* kName = "gguf_linear";
  metalops::Operands of(kName);
  metalops::check_arguments(metalops::plans::check_gguf_linear,
                            {of(x, "x"), of(data, "data"), of(bias, "bias"), type});
  const auto layout = gguf_layout(kName, data, type);
  const auto columns = data.size(0);
  TORCH_CHECK(std::max(x.size(0), columns) <= metalops::kLargestTiledSize, kName, ": sizes ",
              x.sizes(), " and ", data.sizes(), " are too large for MPS");
  const auto result = at::empty({x.size(0), columns}, x.options());
  if (result.numel() == 0) {
    return result;
  }
  if (layout.inner == 0) {
    return bias ? result.copy_(bias->expand(result.sizes())) : result.zero_();
  }
  metalops::PlanRun run;
  metalops::plans::gguf_linear(run.plan(),
                               {.result = run.view(result),
                                .x = run.view(x),
                                .data = run.view(data),
                                .bias = run.view(bias),
                                .qtype = type},
                               metalops::plan_device());
  run.run();
  return result;
}

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  m.def("metalops::gguf_dequantize(Tensor data, Tensor? indices, int qtype, ScalarType dtype) -> "
        "Tensor",
        tags);
  m.def("metalops::gguf_linear(Tensor x, Tensor data, Tensor? bias, int qtype) -> Tensor", tags);
  m.impl("gguf_dequantize", torch::dispatch(c10::DispatchKey::MPS, TORCH_FN(gguf_dequantize)));
  m.impl("gguf_linear", torch::dispatch(c10::DispatchKey::MPS, TORCH_FN(gguf_linear)));
}

}  // namespace
