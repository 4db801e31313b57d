// Host side of kernels/attention/attention.metal: FlashAttention, forward and backward, of any
// kind: the kernels never store the matrix of scores.
#include <csrc/ops/attention/attention.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <csrc/ops/common/arguments.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/attention/attention.h>
#include <csrc/plans/attention/attention_arguments.h>
#include <metalops/library.h>
#include <metalops/matmul_library.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace {

using at::Tensor;
using metalops::AttentionGradients;
using metalops::AttentionOptions;
using metalops::MaybeTensor;
using metalops::PlanRun;

constexpr const char* kName = "attention";

// ---- arguments ----------------------------------------------------------------------------------

metalops::plans::AttentionForwardArguments arguments_of(metalops::Operands& of, const Tensor& query,
                                                        const Tensor& key, const Tensor& value,
                                                        const AttentionOptions& options) {
  return {of(query, "query"),
          of(key, "key"),
          of(value, "value"),
          of(options.attn_mask, "attn_mask"),
          of(options.sinks, "sinks"),
          of(options.alibi_slopes, "alibi_slopes"),
          of(options.cu_seqlens_q, "cu_seqlens_q"),
          of(options.cu_seqlens_k, "cu_seqlens_k"),
          of(options.seqused_k, "seqused_k"),
          of(options.rng, "rng"),
          options.scale,
          options.softcap,
          options.dropout_p};
}

Tensor empty_lse(const Tensor& query, bool is_packed) {
  auto sizes = query.sizes().slice(0, query.dim() - 1).vec();
  if (is_packed) {
    std::swap(sizes[0], sizes[1]);
  }
  return at::empty(sizes, query.options().dtype(at::kFloat));
}

// ---- plans --------------------------------------------------------------------------------------

metalops::plans::AttentionInputs inputs_of(PlanRun& run, const Tensor& query, const Tensor& key,
                                           const Tensor& value, const AttentionOptions& options) {
  return {.query = run.view(query),
          .key = run.view(key),
          .value = run.view(value),
          .attn_mask = run.view(options.attn_mask),
          .sinks = run.view(options.sinks),
          .alibi_slopes = run.view(options.alibi_slopes),
          .cu_seqlens_q = run.view(options.cu_seqlens_q),
          .cu_seqlens_k = run.view(options.cu_seqlens_k),
          .seqused_k = run.view(options.seqused_k),
          .rng = run.view(options.rng),
          .max_seqlen_q = options.max_seqlen_q,
          .max_seqlen_k = options.max_seqlen_k,
          .scale = options.scale,
          .window_left = options.window_left,
          .window_right = options.window_right,
          .bottom_right = options.bottom_right,
          .softcap = options.softcap,
          .dropout_p = options.dropout_p};
}

metalops::plans::Device device() { return metalops::plan_device_of(kName); }

}  // namespace

// ---- the operators ------------------------------------------------------------------------------

namespace metalops {

Tensor empty_in_order(const Tensor& like, int64_t features) {
  at::DimVector sizes(like.sizes());
  sizes.back() = features;
  const auto rows = static_cast<size_t>(like.dim() - 1);
  auto strides =
      at::infer_dense_strides(like.sizes().slice(0, rows), like.strides().slice(0, rows));
  for (auto& stride : strides) {
    stride *= std::max<int64_t>(features, 1);
  }
  strides.push_back(1);
  return at::empty_strided(sizes, strides, like.options());
}

std::tuple<Tensor, Tensor> attention_forward(const Tensor& query, const Tensor& key,
                                             const Tensor& value, const AttentionOptions& options) {
  Operands of(kName);
  check_arguments(plans::check_attention_forward, arguments_of(of, query, key, value, options));
  const auto out = empty_in_order(query, value.size(-1));
  const auto lse = empty_lse(query, options.cu_seqlens_q.has_value());
  PlanRun run;
  const plans::AttentionForward call{.out = run.view(out),
                                     .lse = run.view(lse),
                                     .k_scale = run.view(options.k_scale),
                                     .inputs = inputs_of(run, query, key, value, options)};
  plans::attention_forward(run.plan(), call,
                           is_for_few_queries(call.inputs) ? plan_device() : device());
  run.run();
  return {out, lse};
}

AttentionGradients attention_backward(const Tensor& grad_out, const MaybeTensor& grad_lse,
                                      const Tensor& query, const Tensor& key, const Tensor& value,
                                      const Tensor& out, const Tensor& lse,
                                      const AttentionOptions& options, std::array<bool, 6> wanted) {
  Operands of(kName);
  check_arguments(plans::check_attention_backward,
                  {of(grad_out, "grad_out"), of(grad_lse, "grad_lse"), of(out, "out"),
                   of(lse, "lse"), arguments_of(of, query, key, value, options), wanted});
  const auto of_tokens = [&](size_t number, const Tensor& tokens) {
    return wanted[number] ? empty_in_order(tokens, tokens.size(-1)) : Tensor();
  };
  // Absent arguments have no gradient.
  const auto of_option = [&](size_t number, const MaybeTensor& option) {
    return wanted[number] && option ? at::empty(option->sizes(), option->options()) : Tensor();
  };
  const auto grad_query = of_tokens(0, query);
  const auto grad_key = of_tokens(1, key);
  const auto grad_value = of_tokens(2, value);
  const auto grad_mask = of_option(3, options.attn_mask);
  const auto grad_sinks = of_option(4, options.sinks);
  const auto grad_slopes = of_option(5, options.alibi_slopes);
  PlanRun run;
  plans::attention_backward(run.plan(),
                            {.grad_query = run.view(grad_query),
                             .grad_key = run.view(grad_key),
                             .grad_value = run.view(grad_value),
                             .grad_mask = run.view(grad_mask),
                             .grad_sinks = run.view(grad_sinks),
                             .grad_slopes = run.view(grad_slopes),
                             .grad_out = run.view(grad_out),
                             .grad_lse = run.view(grad_lse),
                             .out = run.view(out),
                             .lse = run.view(lse),
                             .inputs = inputs_of(run, query, key, value, options)},
                            device());
  run.run();
  return {grad_query, grad_key, grad_value, grad_mask, grad_sinks, grad_slopes};
}

}  // namespace metalops

namespace {

AttentionOptions options_of(const MaybeTensor& attn_mask, const MaybeTensor& sinks,
                            const MaybeTensor& alibi_slopes, const MaybeTensor& cu_seqlens_q,
                            const MaybeTensor& cu_seqlens_k, const MaybeTensor& seqused_k,
                            const MaybeTensor& rng, int64_t max_seqlen_q, int64_t max_seqlen_k,
                            double scale, int64_t window_left, int64_t window_right,
                            bool bottom_right, double softcap, double dropout_p) {
  return {attn_mask,   sinks,        alibi_slopes, cu_seqlens_q, cu_seqlens_k,
          seqused_k,   rng,          max_seqlen_q, max_seqlen_k, scale,
          window_left, window_right, bottom_right, softcap,      dropout_p};
}

std::tuple<Tensor, Tensor> forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const MaybeTensor& attn_mask, const MaybeTensor& sinks,
                                   const MaybeTensor& alibi_slopes, const MaybeTensor& cu_seqlens_q,
                                   const MaybeTensor& cu_seqlens_k, const MaybeTensor& seqused_k,
                                   const MaybeTensor& rng, int64_t max_seqlen_q,
                                   int64_t max_seqlen_k, double scale, int64_t window_left,
                                   int64_t window_right, bool bottom_right, double softcap,
                                   double dropout_p) {
  return metalops::attention_forward(
      query, key, value,
      options_of(attn_mask, sinks, alibi_slopes, cu_seqlens_q, cu_seqlens_k, seqused_k, rng,
                 max_seqlen_q, max_seqlen_k, scale, window_left, window_right, bottom_right,
                 softcap, dropout_p));
}

AttentionGradients backward(const Tensor& grad_out, const MaybeTensor& grad_lse,
                            const Tensor& query, const Tensor& key, const Tensor& value,
                            const Tensor& out, const Tensor& lse, const MaybeTensor& attn_mask,
                            const MaybeTensor& sinks, const MaybeTensor& alibi_slopes,
                            const MaybeTensor& cu_seqlens_q, const MaybeTensor& cu_seqlens_k,
                            const MaybeTensor& seqused_k, const MaybeTensor& rng,
                            int64_t max_seqlen_q, int64_t max_seqlen_k, double scale,
                            int64_t window_left, int64_t window_right, bool bottom_right,
                            double softcap, double dropout_p, std::array<bool, 6> output_mask) {
  return metalops::attention_backward(
      grad_out, grad_lse, query, key, value, out, lse,
      options_of(attn_mask, sinks, alibi_slopes, cu_seqlens_q, cu_seqlens_k, seqused_k, rng,
                 max_seqlen_q, max_seqlen_k, scale, window_left, window_right, bottom_right,
                 softcap, dropout_p),
      output_mask);
}

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  const std::string options =
      "Tensor? attn_mask, Tensor? sinks, Tensor? alibi_slopes, Tensor? cu_seqlens_q, "
      "Tensor? cu_seqlens_k, Tensor? seqused_k, Tensor? rng, SymInt max_seqlen_q, "
      "SymInt max_seqlen_k, float scale, SymInt window_left, SymInt window_right, "
      "bool bottom_right, float softcap, float dropout_p";
  m.def(("metalops::attention_forward(Tensor query, Tensor key, Tensor value, " + options +
         ") -> (Tensor out, Tensor lse)")
            .c_str(),
        tags);
  m.def(("metalops::attention_backward(Tensor grad_out, Tensor? grad_lse, Tensor query, "
         "Tensor key, Tensor value, Tensor out, Tensor lse, " +
         options + ", bool[6] output_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
            .c_str(),
        tags);
  m.impl("attention_forward", torch::dispatch(c10::DispatchKey::MPS, TORCH_FN(forward)));
  m.impl("attention_backward", torch::dispatch(c10::DispatchKey::MPS, TORCH_FN(backward)));
}

}  // namespace
