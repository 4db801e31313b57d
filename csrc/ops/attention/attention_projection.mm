// Host side of kernels/attention/attention_projection.metal: _transform_bias_rescale_qkv, which
// stock MPS lacks.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <kernels/attention/attention_projection.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>

#include <cmath>
#include <tuple>

namespace {

using at::Tensor;

constexpr const char* kName = "transform_bias_rescale_qkv";

// Returns how many features a thread processes at once: a vector of 16 bytes or of four features
// where all tensors are aligned to it, else one.
int64_t features_for(const Tensor& projected, const Tensor& bias, int64_t head_size) {
  if (metalops::a_thread_for_each_element()) {
    return 1;
  }
  for (const int64_t features : {16 / projected.element_size(), metalops::kPack}) {
    if (head_size % features == 0 && projected.storage_offset() % features == 0 &&
        bias.storage_offset() % features == 0) {
      return features;
    }
  }
  return 1;
}

// qkv: the projection of tokens to three times the embedding, of sizes (samples, tokens, 3 D).
std::tuple<Tensor, Tensor, Tensor> transform_bias_rescale_qkv(const Tensor& qkv,
                                                              const Tensor& qkv_bias,
                                                              int64_t num_heads) {
  metalops::check_same_device("_transform_bias_rescale_qkv",
                              {{qkv, "qkv"}, {qkv_bias, "qkv_bias"}});
  const auto samples = qkv.size(0);
  const auto tokens = qkv.size(1);
  const auto width = qkv.size(2) / 3;
  TORCH_CHECK(num_heads > 0 && width % num_heads == 0,
              "Expected D % num_head == 0 to be true, but got false: ", width,
              " features for num_heads = ", num_heads);
  TORCH_CHECK(qkv.dim() == 3 && qkv.size(2) % 3 == 0,
              "Expected _3D % 3 == 0 to be true, but got false: qkv has sizes ", qkv.sizes());
  const auto type = qkv.scalar_type();
  metalops::check_metal_float(kName, type);
  TORCH_CHECK(qkv_bias.scalar_type() == type, "expected scalar type ", type, " but found ",
              qkv_bias.scalar_type());
  TORCH_CHECK(qkv_bias.numel() == qkv.size(2), kName, ": expected qkv_bias to have ", qkv.size(2),
              " elements, but it has sizes ", qkv_bias.sizes());
  const auto head_size = width / num_heads;
  const auto result = at::empty({3, samples, num_heads, tokens, head_size}, qkv.options());
  const metalops::AttentionProjectionParameters parameters{
      tokens,       num_heads,
      head_size,    result.numel() / 3,
      /*share=*/32, static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_size)))};
  const auto projected = qkv.contiguous();
  const auto bias = qkv_bias.contiguous();
  const auto features = features_for(projected, bias, head_size);
  const auto name = features == 1   ? metalops::KernelName("attention_projection_")
                    : features == 4 ? metalops::KernelName("attention_projection_packs_4_")
                                    : metalops::KernelName("attention_projection_packs_8_");
  const auto columns =
      features == 1 ? c10::metal::ceil_div(head_size, parameters.share) : head_size / features;
  const auto rows =
      features == 1 ? tokens : c10::metal::round_up<int64_t>(tokens, metalops::kTokens);
  metalops::launch_rows(metalops::library("attention_projection"),
                        name + metalops::metal_type(type), columns, samples * num_heads * rows,
                        result, projected, bias, parameters);
  return {result[0], result[1], result[2]};
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_transform_bias_rescale_qkv", transform_bias_rescale_qkv);
}

}  // namespace
