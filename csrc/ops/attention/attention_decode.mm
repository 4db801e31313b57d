// Host side of kernels/attention/attention_decode.metal: attention of few queries over contiguous
// or paged keys, with split-KV (flash decoding).
#include <ATen/ops/empty.h>
#include <ATen/ops/logaddexp.h>
#include <csrc/ops/attention/attention.h>
#include <csrc/ops/attention/attention_cache.h>
#include <csrc/ops/attention/attention_decode.h>
#include <csrc/ops/common/arguments.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/attention/attention_arguments.h>
#include <csrc/plans/attention/attention_decode.h>
#include <metalops/autograd.h>
#include <metalops/library.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using metalops::AttentionDecodeOptions;
using metalops::MaybeTensor;

// Writes the output to out, (B, Hq, L, Ev), whose features are contiguous, and its lse.
void decode_to(const Tensor& out, const Tensor& lse, const Tensor& query, const Tensor& key,
               const Tensor& value, const AttentionDecodeOptions& options) {
  metalops::PlanRun run;
  metalops::plans::attention_decode(run.plan(),
                                    {.out = run.view(out),
                                     .lse = run.view(lse),
                                     .query = run.view(query),
                                     .key = run.view(key),
                                     .value = run.view(value),
                                     .mask = run.view(options.attn_mask),
                                     .sinks = run.view(options.sinks),
                                     .slopes = run.view(options.alibi_slopes),
                                     .lengths = run.view(options.seqused_k),
                                     .starts = run.view(options.first_k),
                                     .table = run.view(options.block_table),
                                     .key_scale = run.view(options.k_scale),
                                     .value_scale = run.view(options.v_scale),
                                     .scale = options.scale,
                                     .value_factor = options.value_scale,
                                     .softcap = options.softcap,
                                     .window_left = options.window_left,
                                     .window_right = options.window_right,
                                     .bottom_right = options.bottom_right},
                                    metalops::plan_device());
  run.run();
}

Tensor decode_lse(const Tensor& query) {
  return at::empty({query.size(0), query.size(1), query.size(2)},
                   query.options().dtype(at::kFloat));
}

}  // namespace

std::tuple<Tensor, Tensor> metalops::attention_decode(const Tensor& query, const Tensor& key,
                                                      const Tensor& value,
                                                      const AttentionDecodeOptions& options) {
  const auto out = empty_in_order(query, value.size(3));
  const auto lse = decode_lse(query);
  decode_to(out, lse, query, key, value, options);
  return {out, lse};
}

namespace {

// ---- the operators ------------------------------------------------------------------------------

// query: (B, L, Hq, E). Caches: (pages or samples, tokens, Hkv, E or Ev).
std::tuple<Tensor, Tensor> paged_attention(const Tensor& query, const Tensor& key_cache,
                                           const Tensor& value_cache,
                                           const MaybeTensor& block_table, const Tensor& seq_lens,
                                           const MaybeTensor& seq_starts, const MaybeTensor& sinks,
                                           const MaybeTensor& alibi_slopes,
                                           const MaybeTensor& k_scale, const MaybeTensor& v_scale,
                                           double scale, double value_scale, int64_t window_left,
                                           int64_t window_right, double softcap) {
  metalops::Operands of("paged_attention");
  metalops::check_arguments(
      metalops::plans::check_paged_attention,
      {of(query, "query"), of(key_cache, "key_cache"), of(value_cache, "value_cache"),
       of(block_table, "block_table"), of(seq_lens, "seq_lens"), of(seq_starts, "seq_starts"),
       of(sinks, "sinks"), of(alibi_slopes, "alibi_slopes"), of(k_scale, "k_scale"),
       of(v_scale, "v_scale"), scale, softcap});
  const auto rows = query.size(1) * (query.size(2) / key_cache.size(2));
  if (rows > metalops::plans::kMostDecodeRows && !seq_starts) {
    const auto type = query.scalar_type();
    const auto lengths = seq_lens.to(at::kInt);
    // Quantised keys are exact in the query's dtype. Their products with k_scale would be rounded:
    // the kernel applies k_scale instead.
    const auto key = metalops::gather_cache(key_cache, block_table, lengths, std::nullopt, 1, type);
    const auto value =
        metalops::gather_cache(value_cache, block_table, lengths, v_scale, value_scale, type);
    const auto [result, lse] = metalops::attention_forward(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
        {.sinks = sinks,
         .alibi_slopes = alibi_slopes,
         .seqused_k = lengths,
         .max_seqlen_q = query.size(1),
         .max_seqlen_k = key.size(1),
         .scale = scale,
         .window_left = window_left,
         .window_right = window_right,
         .bottom_right = true,
         .softcap = softcap,
         .k_scale = k_scale});
    return {result.transpose(1, 2).contiguous(), lse};
  }
  const auto lse = decode_lse(query.transpose(1, 2));
  const auto out = at::empty({query.size(0), query.size(1), query.size(2), value_cache.size(3)},
                             query.options());
  decode_to(out.transpose(1, 2), lse, query.transpose(1, 2), key_cache.transpose(1, 2),
            value_cache.transpose(1, 2),
            {.sinks = sinks,
             .alibi_slopes = alibi_slopes,
             .seqused_k = seq_lens,
             .first_k = seq_starts,
             .block_table = block_table,
             .k_scale = k_scale,
             .v_scale = v_scale,
             .scale = scale,
             .value_scale = value_scale,
             .window_left = window_left,
             .window_right = window_right,
             .softcap = softcap});
  return {out, lse};
}

metalops::plans::MergeAttentionArguments parts_of(metalops::Operands& of, const Tensor& out_a,
                                                  const Tensor& lse_a, const Tensor& out_b,
                                                  const Tensor& lse_b) {
  return {of(out_a, "out_a"), of(lse_a, "lse_a"), of(out_b, "out_b"), of(lse_b, "lse_b")};
}

// Returns (..., E) as contiguous rows, and (...) as a contiguous vector.
Tensor flat_rows(const Tensor& tensor) {
  return tensor.reshape({tensor.size(-1) == 0 ? 0 : -1, tensor.size(-1)}).contiguous();
}
Tensor flat(const Tensor& tensor) { return tensor.reshape({-1}).contiguous(); }

// out: (..., E). lse: (...).
std::tuple<Tensor, Tensor> merge_attention(const Tensor& out_a, const Tensor& lse_a,
                                           const Tensor& out_b, const Tensor& lse_b) {
  metalops::Operands of("merge_attention");
  metalops::check_arguments(metalops::plans::check_merge_attention,
                            parts_of(of, out_a, lse_a, out_b, lse_b));
  const auto out = at::empty(out_a.sizes(), out_a.options());
  if (out.size(-1) == 0) {
    return {out, at::logaddexp(lse_a, lse_b)};
  }
  const auto lse = at::empty(lse_a.sizes(), lse_a.options());
  metalops::PlanRun run;
  metalops::plans::attention_decode_merge(run.plan(),
                                          {.out = run.view(flat_rows(out)),
                                           .lse = run.view(flat(lse)),
                                           .out_a = run.view(flat_rows(out_a)),
                                           .lse_a = run.view(flat(lse_a)),
                                           .out_b = run.view(flat_rows(out_b)),
                                           .lse_b = run.view(flat(lse_b))},
                                          metalops::plan_device());
  run.run();
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> merge_attention_backward(
    const Tensor& grad_out, const Tensor& grad_lse, const Tensor& out_a, const Tensor& lse_a,
    const Tensor& out_b, const Tensor& lse_b) {
  metalops::Operands of("merge_attention_backward");
  metalops::check_arguments(metalops::plans::check_merge_attention_backward,
                            {of(grad_out, "grad_out"), of(grad_lse, "grad_lse"),
                             parts_of(of, out_a, lse_a, out_b, lse_b)});
  const auto grad_a = at::empty(out_a.sizes(), out_a.options());
  const auto grad_b = at::empty(out_a.sizes(), out_a.options());
  const auto grad_lse_a = at::empty(lse_a.sizes(), lse_a.options());
  const auto grad_lse_b = at::empty(lse_a.sizes(), lse_a.options());
  metalops::PlanRun run;
  metalops::plans::attention_decode_merge_backward(run.plan(),
                                                   {.grad_out_a = run.view(flat_rows(grad_a)),
                                                    .grad_lse_a = run.view(flat(grad_lse_a)),
                                                    .grad_out_b = run.view(flat_rows(grad_b)),
                                                    .grad_lse_b = run.view(flat(grad_lse_b)),
                                                    .grad_out = run.view(flat_rows(grad_out)),
                                                    .grad_lse = run.view(flat(grad_lse)),
                                                    .out_a = run.view(flat_rows(out_a)),
                                                    .lse_a = run.view(flat(lse_a)),
                                                    .out_b = run.view(flat_rows(out_b)),
                                                    .lse_b = run.view(flat(lse_b))},
                                                   metalops::plan_device());
  run.run();
  return {grad_a, grad_lse_a, grad_b, grad_lse_b};
}

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  m.def("metalops::paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, "
        "Tensor? block_table, Tensor seq_lens, Tensor? seq_starts, Tensor? sinks, "
        "Tensor? alibi_slopes, Tensor? k_scale, Tensor? v_scale, float scale, float value_scale, "
        "SymInt window_left, SymInt window_right, float softcap) -> (Tensor, Tensor)",
        {at::Tag::pt2_compliant_tag});
  m.impl("paged_attention", torch::dispatch(c10::DispatchKey::MPS, TORCH_FN(paged_attention)));
  m.def("metalops::merge_attention(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b) -> "
        "(Tensor, Tensor)",
        {at::Tag::pt2_compliant_tag});
  m.def("metalops::merge_attention_backward(Tensor grad_out, Tensor grad_lse, Tensor out_a, "
        "Tensor lse_a, Tensor out_b, Tensor lse_b) -> (Tensor, Tensor, Tensor, Tensor)",
        {at::Tag::pt2_compliant_tag});
  m.impl("merge_attention", torch::dispatch(c10::DispatchKey::MPS, TORCH_FN(merge_attention)));
  m.impl("merge_attention_backward",
         torch::dispatch(c10::DispatchKey::MPS, TORCH_FN(merge_attention_backward)));
  metalops::autograd::implement_not_differentiable(
      m, "metalops::paged_attention",
      "derivative for metalops::paged_attention is not implemented: caches are for inference",
      /*inplace=*/false);
}

}  // namespace
