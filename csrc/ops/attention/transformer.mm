// The composed operators of nn.TransformerEncoder's inference fast path: GEMMs of stock MPS,
// kernels/attention/attention_projection.metal, and kernels/attention/attention.metal or, where the
// weights are returned too, kernels/attention/masked_softmax.metal. Formulas and messages are those
// of torch's own operators. There are no nested tensors.
#include <ATen/ops/_addmm_activation.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_transform_bias_rescale_qkv.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <csrc/ops/attention/attention.h>
#include <csrc/ops/attention/masked_softmax.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>

#include <tuple>

namespace {

using at::Tensor;
using metalops::MaybeTensor;

// ---- attention ----------------------------------------------------------------------------------

// The input projection without its bias, of sizes (samples, tokens, 3 embed_dim).
Tensor project(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& weight) {
  if (query.is_same(key) && key.is_same(value)) {
    return at::matmul(query, weight.t());
  }
  const auto weights = weight.chunk(3);
  return at::cat({at::matmul(query, weights[0].t()), at::matmul(key, weights[1].t()),
                  at::matmul(value, weights[2].t())},
                 2);
}

// Returns the softmax of the scores. A floating-point mask is added to the scores, which is what it
// means everywhere else. torch's CPU and CUDA operators convert it to bool, and so compute wrong
// results unless it is 0 or -infinity.
Tensor attention_weights(const Tensor& scores, const MaybeTensor& mask,
                         std::optional<int64_t> mask_type) {
  if (!mask.has_value()) {
    return at::_softmax(scores, 3, /*half_to_float=*/false);
  }
  const auto type = mask->is_floating_point() ? scores.scalar_type() : at::kBool;
  return metalops::masked_softmax(scores, mask->to(type), 3, mask_type);
}

bool has_sizes_of_type(const Tensor& mask, std::optional<int64_t> mask_type, const Tensor& query) {
  const auto samples = query.size(0), heads = query.size(1), tokens = query.size(2);
  switch (mask_type.value_or(-1)) {
    case 0:
      return mask.sizes().equals({tokens, tokens});
    case 1:
      return mask.sizes().equals({samples, tokens});
    case 2:
      return mask.sizes().equals({samples, heads, tokens, tokens});
    default:
      return false;
  }
}

// Returns true if attention of (samples, heads, tokens, features) can run without the matrix of
// weights. masked_softmax() reports errors of a mask.
bool needs_no_weights(const Tensor& query, const MaybeTensor& mask,
                      std::optional<int64_t> mask_type) {
  constexpr int64_t kLargestHead = 256;
  return metalops::is_metal_float(query.scalar_type()) && query.size(3) <= kLargestHead &&
         (!mask || has_sizes_of_type(*mask, mask_type, query));
}

// Computes attention without the matrix of weights. queries are scaled already.
Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
              std::optional<int64_t> mask_type) {
  metalops::AttentionOptions options;
  options.max_seqlen_q = query.size(2);
  options.max_seqlen_k = key.size(2);
  if (mask) {
    const auto of_weights = mask_type == 1   ? mask->unsqueeze(1).unsqueeze(1)
                            : mask_type == 0 ? mask->unsqueeze(0).unsqueeze(0)
                                             : *mask;
    // attention_forward() takes a bool mask that is true for the keys that are seen.
    options.attn_mask = mask->is_floating_point() ? of_weights.to(query.scalar_type())
                                                  : of_weights.to(at::kBool).logical_not();
  }
  return std::get<0>(metalops::attention_forward(query, key, value, options));
}

std::tuple<Tensor, Tensor> native_multi_head_attention(
    const Tensor& query, const Tensor& key, const Tensor& value, int64_t embed_dim,
    int64_t num_head, const Tensor& qkv_weight, const Tensor& qkv_bias, const Tensor& proj_weight,
    const Tensor& proj_bias, const MaybeTensor& mask, bool need_weights, bool average_attn_weights,
    std::optional<int64_t> mask_type) {
  metalops::check_same_device("_native_multi_head_attention", {{query, "query"},
                                                               {key, "key"},
                                                               {value, "value"},
                                                               {qkv_weight, "qkv_weight"},
                                                               {qkv_bias, "qkv_bias"},
                                                               {proj_weight, "proj_weight"},
                                                               {proj_bias, "proj_bias"}});
  TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
  TORCH_CHECK(query.size(2) == embed_dim, "passed-in embed_dim ", embed_dim,
              " didn't match last dim of query ", query.size(2));
  TORCH_CHECK(key.dim() == 3, "expected 3-D `key`, got ", key.dim(), "-D tensor");
  TORCH_CHECK(value.dim() == 3, "expected 3-D `value`, got ", value.dim(), "-D tensor");
  TORCH_CHECK(query.sizes() == key.sizes() && key.sizes() == value.sizes(),
              "expected `query`/`key`/`value` shapes to match");
  TORCH_CHECK(qkv_weight.dim() == 2, "expected 2-D `qkv_weight`, got ", qkv_weight.dim(),
              "-D tensor");
  TORCH_CHECK(qkv_weight.size(0) == 3 * embed_dim,
              "expected `qkv_weight` first dim to be 3x embed_dim");
  TORCH_CHECK(qkv_weight.size(1) == embed_dim, "expected `qkv_weight` second dim to be embed_Dim");
  TORCH_CHECK(qkv_bias.dim() == 1, "expected 1-D `qkv_bias`, got ", qkv_bias.dim(), "-D tensor");
  TORCH_CHECK(qkv_bias.size(0) == 3 * embed_dim,
              "expected `qkv_bias` first dim and first dim of query to be equal");
  TORCH_CHECK(num_head > 0 && embed_dim % num_head == 0,
              "`embed_dim` must divide evenly by `num_heads`");
  const auto projected = project(query, key, value, qkv_weight);
  if (projected.numel() == 0) {
    return {at::empty_like(query), Tensor()};
  }

  const auto [q, k, v] = at::_transform_bias_rescale_qkv(projected, qkv_bias, num_head);
  const auto project_back = [&](const Tensor& heads) {
    return at::linear(heads.transpose(1, 2).flatten(2), proj_weight, proj_bias);
  };
  if (!need_weights && needs_no_weights(q, mask, mask_type)) {
    return {project_back(attend(q, k, v, mask, mask_type)), Tensor()};
  }
  const auto of_scores = {q.size(0), q.size(1), q.size(2), q.size(2)};
  const auto scores = at::bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)).view(of_scores);
  const auto weights = attention_weights(scores, mask, mask_type);
  const auto heads = at::bmm(weights.flatten(0, 1), v.flatten(0, 1)).view(q.sizes());
  const auto result = project_back(heads);
  if (!need_weights) {
    return {result, Tensor()};
  }
  return {result, average_attn_weights ? weights.sum(1).div_(num_head) : weights};
}

// ---- an encoder layer ---------------------------------------------------------------------------

Tensor transformer_encoder_layer(const Tensor& src, int64_t embed_dim, int64_t num_heads,
                                 const Tensor& qkv_weight, const Tensor& qkv_bias,
                                 const Tensor& proj_weight, const Tensor& proj_bias, bool use_gelu,
                                 bool norm_first, double eps, const Tensor& norm_weight_1,
                                 const Tensor& norm_bias_1, const Tensor& norm_weight_2,
                                 const Tensor& norm_bias_2, const Tensor& ffn_weight_1,
                                 const Tensor& ffn_bias_1, const Tensor& ffn_weight_2,
                                 const Tensor& ffn_bias_2, const MaybeTensor& mask,
                                 std::optional<int64_t> mask_type) {
  if (src.numel() == 0) {
    return src.clone();
  }
  const auto first_norm = [&](const Tensor& x) {
    return at::layer_norm(x, {embed_dim}, norm_weight_1, norm_bias_1, eps);
  };
  const auto second_norm = [&](const Tensor& x) {
    return at::layer_norm(x, {embed_dim}, norm_weight_2, norm_bias_2, eps);
  };
  const auto attention = [&](const Tensor& x) {
    return std::get<0>(native_multi_head_attention(
        x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask,
        /*need_weights=*/false, /*average_attn_weights=*/true, mask_type));
  };
  const auto feed_forward = [&](const Tensor& x) {
    TORCH_CHECK(ffn_weight_1.dim() == 2 && ffn_weight_2.dim() == 2, "2d weights expected");
    const auto hidden = at::_addmm_activation(ffn_bias_1, x.flatten(0, 1), ffn_weight_1.t(),
                                              /*beta=*/1, /*alpha=*/1, use_gelu);
    const auto result = at::addmm(ffn_bias_2, hidden, ffn_weight_2.t());
    return result.view({x.size(0), x.size(1), -1});
  };
  if (norm_first) {
    const auto x = attention(first_norm(src)).add_(src);
    return feed_forward(second_norm(x)).add_(x);
  }
  const auto x = first_norm(attention(src).add_(src));
  return second_norm(feed_forward(x).add_(x));
}

// ---- padding ------------------------------------------------------------------------------------

// Returns true if in no row of the mask (true for tokens, false for padding) a token comes after
// padding. nn.TransformerEncoder calls this on every padding mask, also where it then goes on
// without a nested tensor because the device has none.
bool mask_is_left_aligned(const Tensor& t, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Expected mask to be of ScalarType Bool, but got ",
              mask.scalar_type(), " instead.");
  TORCH_CHECK(mask.dim() == 2, "Padding mask should be 2D");
  TORCH_CHECK(t.dim() == 3, "Input should be a 3D tensor, N * L * D");
  TORCH_CHECK(t.size(0) == mask.size(0) && t.size(1) == mask.size(1),
              "Mask size should match input size");
  if (mask.size(1) == 0) {
    return true;
  }
  const auto token = mask.narrow(1, 1, mask.size(1) - 1);
  const auto padding_before = mask.narrow(1, 0, mask.size(1) - 1).logical_not();
  return !token.logical_and(padding_before).any().item<bool>();
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_native_multi_head_attention", native_multi_head_attention);
  m.impl("_transformer_encoder_layer_fwd", transformer_encoder_layer);
  m.impl("_nested_tensor_from_mask_left_aligned", mask_is_left_aligned);
}

}  // namespace
