// Host side of kernels/attention/attention.metal: FlashAttention, forward and backward, of any
// kind: the kernels never store the matrix of scores.
#include <csrc/ops/attention/attention.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/attention/attention.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/matmul_library.h>
#include <metalops/metal_type.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

using at::Tensor;
using metalops::AttentionGradients;
using metalops::AttentionOptions;
using metalops::MaybeTensor;
using metalops::PlanRun;

constexpr const char* kName = "attention";

// ---- arguments ----------------------------------------------------------------------------------

struct Sizes {
  int64_t batch, heads, queries, keys;
  bool is_packed;
};

void check_shape(bool holds, const char* name, const Tensor& tensor, const char* expected) {
  TORCH_CHECK(holds, kName, ": ", name, " must have sizes ", expected, ", but has ",
              tensor.sizes());
}

// Returns the sizes of a packed call, once they are checked.
Sizes check_packed(const Tensor& query, const Tensor& key, const Tensor& value,
                   const AttentionOptions& options) {
  const auto batch = options.cu_seqlens_q->numel() - 1;
  check_shape(key.size(0) == value.size(0) && key.size(1) == value.size(1), "value", value,
              "(tokens, heads, features) with the tokens and heads of key");
  for (const auto& [tensor, name] : {std::pair{*options.cu_seqlens_q, "cu_seqlens_q"},
                                     std::pair{*options.cu_seqlens_k, "cu_seqlens_k"}}) {
    TORCH_CHECK(tensor.scalar_type() == at::kInt, kName, ": ", name,
                " must have dtype int32, but has ", tensor.scalar_type());
    check_shape(tensor.dim() == 1 && tensor.numel() == batch + 1 && batch >= 0, name, tensor,
                "(sequences + 1,)");
  }
  TORCH_CHECK(!options.attn_mask, kName, ": packed sequences take no attn_mask");
  return {batch, query.size(1), query.size(0), key.size(0), true};
}

// Returns the sizes of queries, keys and values, once they are checked.
Sizes check_tokens(const Tensor& query, const Tensor& key, const Tensor& value,
                   const AttentionOptions& options) {
  metalops::check_same_device(kName, {{query, "query"}, {key, "key"}, {value, "value"}});
  metalops::check_metal_float(kName, query.scalar_type());
  for (const auto& [tensor, name] : {std::pair{key, "key"}, std::pair{value, "value"}}) {
    TORCH_CHECK(tensor.scalar_type() == query.scalar_type(), kName, ": ", name,
                " must have the dtype of query, ", query.scalar_type(), ", but has ",
                tensor.scalar_type());
  }
  const bool is_packed = options.cu_seqlens_q.has_value();
  TORCH_CHECK(is_packed == options.cu_seqlens_k.has_value(), kName,
              ": cu_seqlens_q and cu_seqlens_k must be given together");
  const int64_t rank = is_packed ? 3 : 4;
  for (const auto& [tensor, name] :
       {std::pair{query, "query"}, std::pair{key, "key"}, std::pair{value, "value"}}) {
    TORCH_CHECK(tensor.dim() == rank, kName, ": ", name, " must have ", rank,
                " dimensions, but has sizes ", tensor.sizes());
  }
  if (is_packed) {
    return check_packed(query, key, value, options);
  }
  check_shape(key.size(0) == query.size(0), "key", key,
              "(batch, heads, keys, features) with the batch of query");
  check_shape(
      value.size(0) == key.size(0) && value.size(1) == key.size(1) && value.size(2) == key.size(2),
      "value", value, "(batch, heads, keys, features) with the first three of key");
  return {query.size(0), query.size(1), query.size(2), key.size(2), false};
}

void check_heads(const Tensor& query, const Tensor& key, const Tensor& value) {
  const auto features = query.size(-1);
  TORCH_CHECK(key.size(-1) == features, kName, ": key must have the features of query, ", features,
              ", but has sizes ", key.sizes());
  TORCH_CHECK(features <= 256 && value.size(-1) <= 256, kName,
              ": heads must have at most 256 features, but query has ", features, " and value has ",
              value.size(-1));
  const auto heads = query.size(1);
  const auto key_heads = key.size(1);
  TORCH_CHECK(key_heads > 0 ? heads % key_heads == 0 : heads == 0, kName,
              ": the heads of query must be a multiple of those of key, ", key_heads, ", but are ",
              heads);
}

void check_mask(const Tensor& query, const Tensor& mask, const Sizes& sizes) {
  metalops::check_same_device(kName, {{query, "query"}, {mask, "attn_mask"}});
  const std::array<int64_t, 4> full{sizes.batch, sizes.heads, sizes.queries, sizes.keys};
  bool fits = mask.dim() == 4;
  for (int64_t d = 0; fits && d < 4; ++d) {
    fits = mask.size(d) == 1 || mask.size(d) == full[d];
  }
  TORCH_CHECK(fits, kName, ": attn_mask must have four dimensions that are 1 or those of ",
              at::IntArrayRef(full), ", but has sizes ", mask.sizes());
  TORCH_CHECK(mask.scalar_type() == at::kBool || mask.scalar_type() == at::kFloat ||
                  mask.scalar_type() == query.scalar_type(),
              "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
              "attn_mask.dtype: ",
              mask.scalar_type(), " and  query.dtype: ", query.scalar_type(), " instead.");
}

// Checks the options of heads and of samples.
void check_vectors(const Tensor& query, const AttentionOptions& options, const Sizes& sizes) {
  if (options.sinks) {
    metalops::check_same_device(kName, {{query, "query"}, {*options.sinks, "sinks"}});
    check_shape(options.sinks->dim() == 1 && options.sinks->size(0) == sizes.heads, "sinks",
                *options.sinks, "(heads of query,)");
  }
  if (options.alibi_slopes) {
    const auto& slopes = *options.alibi_slopes;
    metalops::check_same_device(kName, {{query, "query"}, {slopes, "alibi_slopes"}});
    check_shape((slopes.dim() == 1 || (slopes.dim() == 2 && slopes.size(0) == sizes.batch)) &&
                    slopes.size(-1) == sizes.heads,
                "alibi_slopes", slopes, "(heads of query,) or (batch, heads of query)");
  }
  if (options.seqused_k) {
    metalops::check_same_device(kName, {{query, "query"}, {*options.seqused_k, "seqused_k"}});
    TORCH_CHECK(options.seqused_k->scalar_type() == at::kInt, kName,
                ": seqused_k must have dtype int32, but has ", options.seqused_k->scalar_type());
    check_shape(options.seqused_k->dim() == 1 && options.seqused_k->size(0) == sizes.batch,
                "seqused_k", *options.seqused_k, "(batch,)");
  }
}

Sizes check(const Tensor& query, const Tensor& key, const Tensor& value,
            const AttentionOptions& options) {
  const auto sizes = check_tokens(query, key, value, options);
  check_heads(query, key, value);
  if (options.attn_mask) {
    check_mask(query, *options.attn_mask, sizes);
  }
  check_vectors(query, options, sizes);
  TORCH_CHECK_VALUE(options.dropout_p >= 0 && options.dropout_p <= 1, kName,
                    ": dropout_p must be between 0 and 1, but is ", options.dropout_p);
  metalops::check_attention_numbers(kName, options.scale, options.softcap);
  if (options.dropout_p > 0) {
    TORCH_CHECK(options.rng.has_value(), kName, ": dropout needs rng");
    TORCH_CHECK(options.rng->scalar_type() == at::kLong && options.rng->numel() == 2, kName,
                ": rng must be two numbers of int64, but has dtype ", options.rng->scalar_type(),
                " and sizes ", options.rng->sizes());
  }
  return sizes;
}

// Returns the sizes of the lse.
at::DimVector rows_of(const Sizes& sizes) {
  return sizes.is_packed ? at::DimVector{sizes.heads, sizes.queries}
                         : at::DimVector{sizes.batch, sizes.heads, sizes.queries};
}

void check_results(const Tensor& grad_out, const MaybeTensor& grad_lse, const Tensor& query,
                   const Tensor& value, const Tensor& out, const Tensor& lse, const Sizes& sizes) {
  metalops::check_same_device(
      kName, {{query, "query"}, {grad_out, "grad_out"}, {out, "out"}, {lse, "lse"}});
  at::DimVector of_out(query.sizes());
  of_out.back() = value.size(-1);
  TORCH_CHECK(out.sizes() == at::IntArrayRef(of_out) && out.scalar_type() == query.scalar_type(),
              kName, ": out must be ", query.scalar_type(), " of sizes ", of_out, ", but is ",
              out.scalar_type(), " of sizes ", out.sizes());
  TORCH_CHECK(grad_out.sizes() == out.sizes(), kName, ": grad_out must have the sizes of out, ",
              out.sizes(), ", but has ", grad_out.sizes());
  const auto rows = rows_of(sizes);
  TORCH_CHECK(lse.sizes() == at::IntArrayRef(rows) && lse.scalar_type() == at::kFloat, kName,
              ": lse must be Float of sizes ", rows, ", but is ", lse.scalar_type(), " of sizes ",
              lse.sizes());
  TORCH_CHECK(!grad_lse || grad_lse->sizes() == at::IntArrayRef(rows), kName,
              ": grad_lse must have the sizes of lse, ", rows, ", but has ", grad_lse->sizes());
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

metalops::plans::Device device() {
  return metalops::plan_device(
      /*has_tensors=*/&metalops::matmul_library(kName) != &metalops::library(kName));
}

}  // namespace

// ---- the operators ------------------------------------------------------------------------------

namespace metalops {

void check_attention_numbers(const char* name, double scale, double softcap) {
  constexpr double kMost = std::numeric_limits<float>::max();
  TORCH_CHECK_VALUE(std::abs(scale) <= kMost, name,
                    ": scale must be a finite number of float32, but is ", scale);
  TORCH_CHECK_VALUE(softcap >= 0 && softcap <= kMost, name,
                    ": softcap must be a finite number of float32 that is not negative, but is ",
                    softcap);
}

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
  const auto sizes = check(query, key, value, options);
  const auto out = empty_in_order(query, value.size(-1));
  const auto lse = at::empty(rows_of(sizes), query.options().dtype(at::kFloat));
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
  const auto sizes = check(query, key, value, options);
  check_results(grad_out, grad_lse, query, value, out, lse, sizes);
  TORCH_CHECK(!wanted[3] || !options.attn_mask || options.attn_mask->is_floating_point(), kName,
              ": a mask of bool has no gradient");
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
