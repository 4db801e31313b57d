// Host side of kernels/attention/attention.metal: FlashAttention, forward and backward, of any
// kind: the kernels never store the matrix of scores.
#include <csrc/ops/attention/attention.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/attention/attention_decode.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/plans/attention/attention_decode.h>
#include <kernels/attention/attention.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
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
using metalops::AttentionMask;
using metalops::AttentionOptions;
using metalops::AttentionParameters;
using metalops::AttentionStrides;
using metalops::MaybeTensor;

constexpr const char* kName = "attention";

// ---- arguments ----------------------------------------------------------------------------------

// The largest size in 32 bits that leaves room for what kernels add to sizes.
constexpr int64_t kLargest = int64_t{1} << 30;

int32_t size_for_kernel(int64_t size, const char* what) {
  return metalops::checked_int32(size, kLargest, kName, ": ", what, " of");
}

int32_t window_for_kernel(int64_t window) {
  return window < 0 ? -1 : static_cast<int32_t>(std::min(window, kLargest / 2));
}

struct Sizes {
  int64_t batch, heads, key_heads, queries, keys, head_size, value_size;
  bool is_packed;
};

void check_shape(bool holds, const char* name, const Tensor& tensor, const char* expected) {
  TORCH_CHECK(holds, kName, ": ", name, " must have sizes ", expected, ", but has ",
              tensor.sizes());
}

Sizes check(const Tensor& query, const Tensor& key, const Tensor& value,
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
  Sizes sizes;
  sizes.is_packed = is_packed;
  if (is_packed) {
    // No sequence is longer than all of them together, whatever max_seqlen says.
    sizes = {options.cu_seqlens_q->numel() - 1,
             query.size(1),
             key.size(1),
             std::clamp<int64_t>(options.max_seqlen_q, 0, query.size(0)),
             std::clamp<int64_t>(options.max_seqlen_k, 0, key.size(0)),
             query.size(2),
             value.size(2),
             true};
    check_shape(key.size(0) == value.size(0) && key.size(1) == value.size(1), "value", value,
                "(tokens, heads, features) with the tokens and heads of key");
    for (const auto& [tensor, name] : {std::pair{*options.cu_seqlens_q, "cu_seqlens_q"},
                                       std::pair{*options.cu_seqlens_k, "cu_seqlens_k"}}) {
      TORCH_CHECK(tensor.scalar_type() == at::kInt, kName, ": ", name,
                  " must have dtype int32, but has ", tensor.scalar_type());
      check_shape(tensor.dim() == 1 && tensor.numel() == sizes.batch + 1 && sizes.batch >= 0, name,
                  tensor, "(sequences + 1,)");
    }
    TORCH_CHECK(!options.attn_mask, kName, ": packed sequences take no attn_mask");
  } else {
    sizes = {query.size(0), query.size(1), key.size(1),   query.size(2),
             key.size(2),   query.size(3), value.size(3), false};
    check_shape(key.size(0) == sizes.batch, "key", key,
                "(batch, heads, keys, features) with the batch of query");
    check_shape(value.size(0) == sizes.batch && value.size(1) == sizes.key_heads &&
                    value.size(2) == sizes.keys,
                "value", value, "(batch, heads, keys, features) with the first three of key");
  }
  const auto features = query.size(-1);
  TORCH_CHECK(key.size(-1) == features, kName, ": key must have the features of query, ", features,
              ", but has sizes ", key.sizes());
  TORCH_CHECK(features <= 256 && sizes.value_size <= 256, kName,
              ": heads must have at most 256 features, but query has ", features, " and value has ",
              sizes.value_size);
  TORCH_CHECK(sizes.key_heads > 0 ? sizes.heads % sizes.key_heads == 0 : sizes.heads == 0, kName,
              ": the heads of query must be a multiple of those of key, ", sizes.key_heads,
              ", but are ", sizes.heads);
  if (options.attn_mask) {
    const auto& mask = *options.attn_mask;
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

// Returns true if queries are so few that loading keys and values is nearly all of the work:
// kernels/attention/attention_decode.metal serves such calls.
bool is_for_few_queries(const Sizes& sizes, const AttentionOptions& options) {
  constexpr int64_t kFew = 8;
  return !sizes.is_packed && options.dropout_p == 0 && sizes.queries <= kFew &&
         sizes.key_heads > 0 &&
         sizes.queries * sizes.heads <= metalops::plans::kMostDecodeRows * sizes.key_heads;
}

// ---- what kernels take --------------------------------------------------------------------------

// Returns true if kernels can read the tensor as it is: features are contiguous and rows are at
// most 2^31 - 1 elements apart.
bool is_readable(const Tensor& x) {
  const auto rows = x.dim() == 4 ? 2 : 0;
  return (x.size(-1) <= 1 || x.stride(-1) == 1) &&
         (x.size(rows) <= 1 ||
          (x.stride(rows) >= x.size(-1) && x.stride(rows) <= metalops::kInt32Max));
}

Tensor readable(const Tensor& x) { return is_readable(x) ? x : x.contiguous(); }

// Returns true if every row consists of whole, aligned vectors of 16 bytes.
bool is_in_packs(const Tensor& x) {
  const auto pack = 16 / x.element_size();
  bool result = x.storage_offset() % pack == 0 && x.size(-1) % pack == 0;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) {
    result = result && (x.size(d) <= 1 || x.stride(d) % pack == 0);
  }
  return result;
}

AttentionStrides strides_of(const Tensor& x) {
  const auto row = [&](int64_t d) {
    return x.size(d) <= 1 ? std::max<int64_t>(x.size(-1), 1) : x.stride(d);
  };
  return x.dim() == 4 ? AttentionStrides{x.stride(0), x.stride(1), row(2)}
                      : AttentionStrides{0, x.stride(1), row(0)};
}

// The kernels' arguments. Absent optional tensors are bound to a dummy buffer.
struct Inputs {
  Tensor query, key, value, mask, sinks, slopes, cu_queries, cu_keys, lengths, random, key_scale;
  AttentionParameters parameters;
};

Inputs inputs_of(const Tensor& query, const Tensor& key, const Tensor& value, const Sizes& sizes,
                 const AttentionOptions& options) {
  Inputs in;
  in.query = readable(query);
  in.key = readable(key);
  in.value = readable(value);
  const auto contiguous = [&](const MaybeTensor& tensor, at::ScalarType type) {
    return tensor ? tensor->to(type).contiguous() : in.query;
  };
  in.mask = options.attn_mask.value_or(in.query);
  in.sinks = contiguous(options.sinks, at::kFloat);
  in.slopes = contiguous(options.alibi_slopes, at::kFloat);
  in.cu_queries = contiguous(options.cu_seqlens_q, at::kInt);
  in.cu_keys = contiguous(options.cu_seqlens_k, at::kInt);
  in.lengths = contiguous(options.seqused_k, at::kInt);
  in.random = contiguous(options.rng, at::kLong);
  in.key_scale = options.k_scale.value_or(in.query);
  auto& p = in.parameters;
  p = {};
  p.query = strides_of(in.query);
  p.key = strides_of(in.key);
  p.value = strides_of(in.value);
  p.batch = size_for_kernel(sizes.batch, "a batch");
  p.heads = size_for_kernel(sizes.heads, "a number of heads");
  p.heads_of_a_key = static_cast<int32_t>(sizes.heads / std::max<int64_t>(sizes.key_heads, 1));
  p.queries = size_for_kernel(sizes.queries, "a number of queries");
  p.keys = size_for_kernel(sizes.keys, "a number of keys");
  p.all_queries = size_for_kernel(sizes.is_packed ? query.size(0) : sizes.queries, "queries");
  p.all_keys = size_for_kernel(sizes.is_packed ? key.size(0) : sizes.keys, "keys");
  p.head_size = static_cast<int32_t>(query.size(-1));
  p.value_size = static_cast<int32_t>(sizes.value_size);
  p.lse_batch = sizes.is_packed ? 0 : sizes.heads * sizes.queries;
  p.lse_head = sizes.is_packed ? query.size(0) : sizes.queries;
  p.slopes_batch = options.alibi_slopes && options.alibi_slopes->dim() == 2 ? sizes.heads : 0;
  p.window_left = window_for_kernel(options.window_left);
  p.window_right = window_for_kernel(options.window_right);
  if (options.attn_mask) {
    const auto& mask = *options.attn_mask;
    for (int d = 0; d < 4; ++d) {
      p.mask[d] = mask.size(d) == 1 ? 0 : mask.stride(d);
      p.mask_sizes[d] = static_cast<int32_t>(mask.size(d));
    }
    p.mask_kind = mask.scalar_type() == at::kBool    ? AttentionMask::kBool
                  : mask.scalar_type() == at::kFloat ? AttentionMask::kFloat
                                                     : AttentionMask::kSame;
  }
  p.scale = static_cast<float>(options.scale);
  p.softcap = metalops::plans::softcap_for_kernel(options.softcap);
  p.drops = options.dropout_p > 0;
  p.drops_all = options.dropout_p >= 1;
  p.keep_scale = p.drops_all ? 1.0f : static_cast<float>(1 / (1 - options.dropout_p));
  p.dropout_threshold = static_cast<uint32_t>(
      std::min(std::round(options.dropout_p * 0x1p32), static_cast<double>(0xffffffffu)));
  p.bottom_right = options.bottom_right;
  p.is_packed = sizes.is_packed;
  p.has_lengths = options.seqused_k.has_value();
  if (query.size(-1) == 0) {
    // As in torch, queries without features attend to no key.
    in.lengths = at::zeros({sizes.batch}, query.options().dtype(at::kInt));
    p.has_lengths = true;
  }
  p.has_sinks = options.sinks.has_value();
  p.has_slopes = options.alibi_slopes.has_value();
  p.has_key_scale = options.k_scale.has_value();
  p.is_aligned = is_in_packs(in.key) && is_in_packs(in.value);
  return in;
}

// Returns the sizes of the lse.
at::DimVector rows_of(const Tensor& query, const Sizes& sizes) {
  return sizes.is_packed ? at::DimVector{sizes.heads, query.size(0)}
                         : at::DimVector{sizes.batch, sizes.heads, sizes.queries};
}

// The kernels that are compiled for at most so many features.
struct Features {
  int64_t most;
  const char* name;
};

Features compiled_for(int64_t features) {
  constexpr std::array<Features, 5> kCompiled{
      {{32, "32_"}, {64, "64_"}, {96, "96_"}, {128, "128_"}, {256, "256_"}}};
  return *std::find_if(kCompiled.begin(), kCompiled.end(),
                       [&](const Features& compiled) { return features <= compiled.most; });
}

Features backward_compiled_for(int64_t features) {
  const auto compiled = compiled_for(features);
  return compiled.most == 96 ? Features{128, "128_"} : compiled;
}

constexpr auto kTileQueries = static_cast<int64_t>(metalops::AttentionTile::kRows);
constexpr auto kTileKeys = static_cast<int64_t>(metalops::AttentionTile::kColumns);

uint64_t tiles_of(int64_t length, int64_t rows) {
  return static_cast<uint64_t>(c10::metal::ceil_div<int64_t>(length, rows));
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
  if (is_for_few_queries(sizes, options)) {
    return attention_decode(query, key, value,
                            {.attn_mask = options.attn_mask,
                             .sinks = options.sinks,
                             .alibi_slopes = options.alibi_slopes,
                             .seqused_k = options.seqused_k,
                             .k_scale = options.k_scale,
                             .scale = options.scale,
                             .window_left = options.window_left,
                             .window_right = options.window_right,
                             .bottom_right = options.bottom_right,
                             .softcap = options.softcap});
  }
  auto in = inputs_of(query, key, value, sizes, options);
  auto& p = in.parameters;
  const auto out = empty_in_order(query, sizes.value_size);
  constexpr auto kNothing = -std::numeric_limits<float>::infinity();
  const auto lse = at::empty(rows_of(query, sizes), query.options().dtype(at::kFloat));
  if (sizes.is_packed) {
    // Tokens that belong to no sequence keep these values.
    out.zero_();
    lse.fill_(kNothing);
  }
  p.out = strides_of(out);
  auto& kernels = matmul_library(kName);
  const bool has_tensors = &kernels != &library(kName);
  constexpr auto kMost = static_cast<int64_t>(AttentionTile::kMostFeatures);
  const auto tile =
      static_cast<int64_t>(has_tensors && sizes.value_size <= kMost ? AttentionTile::kRowsOfTensors
                                                                    : AttentionTile::kRows);
  const auto most = std::max(query.size(-1), sizes.value_size);
  const bool by_simdgroups = has_tensors && most <= kMost && query.scalar_type() != at::kFloat &&
                             !a_thread_for_each_element();
  const auto groups = tiles_of(sizes.queries, tile) * sizes.heads * sizes.batch;
  TORCH_CHECK(groups < (uint64_t{1} << 32), kName, ": ", sizes.batch, " times ", sizes.heads,
              " heads of ", sizes.queries, " queries are too many for MPS");
  launch_threadgroups(
      kernels,
      KernelName(by_simdgroups ? "attention_forward_by_simdgroups_" : "attention_forward_") +
          compiled_for(by_simdgroups ? most : sizes.value_size).name +
          metal_type(query.scalar_type()),
      groups, /*size=*/128, out, lse, in.query, in.key, in.value, in.mask, in.sinks, in.slopes,
      in.cu_queries, in.cu_keys, in.lengths, in.random, in.key_scale, p);
  return {out, lse};
}

AttentionGradients attention_backward(const Tensor& grad_out, const MaybeTensor& grad_lse,
                                      const Tensor& query, const Tensor& key, const Tensor& value,
                                      const Tensor& out, const Tensor& lse,
                                      const AttentionOptions& options, std::array<bool, 6> wanted) {
  const auto sizes = check(query, key, value, options);
  metalops::check_same_device(
      kName, {{query, "query"}, {grad_out, "grad_out"}, {out, "out"}, {lse, "lse"}});
  at::DimVector of_out(query.sizes());
  of_out.back() = sizes.value_size;
  TORCH_CHECK(out.sizes() == at::IntArrayRef(of_out) && out.scalar_type() == query.scalar_type(),
              kName, ": out must be ", query.scalar_type(), " of sizes ", of_out, ", but is ",
              out.scalar_type(), " of sizes ", out.sizes());
  TORCH_CHECK(grad_out.sizes() == out.sizes(), kName, ": grad_out must have the sizes of out, ",
              out.sizes(), ", but has ", grad_out.sizes());
  const auto rows = rows_of(query, sizes);
  TORCH_CHECK(lse.sizes() == at::IntArrayRef(rows) && lse.scalar_type() == at::kFloat, kName,
              ": lse must be Float of sizes ", rows, ", but is ", lse.scalar_type(), " of sizes ",
              lse.sizes());
  TORCH_CHECK(!grad_lse || grad_lse->sizes() == at::IntArrayRef(rows), kName,
              ": grad_lse must have the sizes of lse, ", rows, ", but has ", grad_lse->sizes());
  // Absent arguments have no gradient.
  wanted[3] = wanted[3] && options.attn_mask;
  wanted[4] = wanted[4] && options.sinks;
  wanted[5] = wanted[5] && options.alibi_slopes;
  auto in = inputs_of(query, key, value, sizes, options);
  auto& p = in.parameters;
  const auto result = readable(out);
  const auto grad = readable(grad_out.to(query.scalar_type()));
  p.out = strides_of(result);
  p.grad_out = strides_of(grad);
  p.has_grad_lse = grad_lse.has_value();
  const auto sums = lse.contiguous();
  const auto of_lse = grad_lse ? grad_lse->to(at::kFloat).contiguous() : sums;
  const auto type = metal_type(query.scalar_type());
  auto& kernels = matmul_library(kName);

  const auto statistics = at::empty({sums.numel(), 2}, sums.options());
  launch_simdgroups(kernels, KernelName("attention_statistics_") + type, sums.numel(), statistics,
                    result, grad, of_lse, in.query, in.key, sums, in.mask, in.sinks, in.slopes,
                    in.cu_queries, in.cu_keys, in.lengths, p);
  AttentionGradients gradients;
  const auto groups_of = [&](int64_t length, int64_t tile, int64_t heads) {
    const auto groups = tiles_of(length, tile) * heads * sizes.batch;
    TORCH_CHECK(groups < (uint64_t{1} << 32), kName, ": ", sizes.batch, " times ", heads,
                " heads of ", length, " tokens are too many for MPS");
    return groups;
  };
  // The gradients of tokens that no kernel visits are zero.
  const bool has_others = sizes.is_packed || p.has_lengths || sizes.heads == 0;
  const auto gradient_of = [&](const Tensor& x) {
    const auto gradient = empty_in_order(x, x.size(-1));
    if (has_others) {
      gradient.zero_();
    }
    return gradient;
  };
  if (wanted[0] || wanted[5]) {
    const auto grad_query = gradient_of(query);
    p.grad_query = strides_of(grad_query);
    const auto groups = groups_of(sizes.queries, kTileQueries, sizes.heads);
    const auto slope_sums =
        at::empty({options.alibi_slopes ? static_cast<int64_t>(groups) : 0}, sums.options());
    launch_threadgroups(
        kernels,
        KernelName("attention_grad_query_") + backward_compiled_for(query.size(-1)).name + type,
        groups, /*size=*/128, grad_query, slope_sums, in.query, in.key, in.value, grad, sums,
        statistics, in.mask, in.slopes, in.cu_queries, in.cu_keys, in.lengths, in.random, p);
    if (wanted[0]) {
      std::get<0>(gradients) = grad_query;
    }
    if (wanted[5]) {
      const auto grad_slopes = at::empty(options.alibi_slopes->sizes(), sums.options());
      const auto tiles = static_cast<int32_t>(tiles_of(sizes.queries, kTileQueries));
      launch_threadgroups(kernels, KernelName("attention_grad_slopes"), grad_slopes.numel(),
                          /*size=*/128, grad_slopes, slope_sums, p, tiles);
      std::get<5>(gradients) = grad_slopes.to(options.alibi_slopes->scalar_type());
    }
  }
  if (wanted[1] || wanted[2]) {
    const auto grad_key = gradient_of(key);
    const auto grad_value = gradient_of(value);
    p.grad_key = strides_of(grad_key);
    p.grad_value = strides_of(grad_value);
    const auto features = std::max(query.size(-1), sizes.value_size);
    const bool has_tensors = &kernels != &library(kName);
    const auto tile = static_cast<int64_t>(has_tensors ? AttentionTile::kColumnsOfTensors
                                                       : AttentionTile::kColumns);
    const auto key_heads = sizes.heads == 0 ? 0 : sizes.key_heads;
    launch_threadgroups(
        kernels,
        KernelName("attention_grad_key_value_") + backward_compiled_for(features).name + type,
        groups_of(sizes.keys, tile, key_heads),
        /*size=*/128, grad_key, grad_value, in.query, in.key, in.value, grad, sums, statistics,
        in.mask, in.slopes, in.cu_queries, in.cu_keys, in.lengths, in.random, p);
    if (wanted[1]) {
      std::get<1>(gradients) = grad_key;
    }
    if (wanted[2]) {
      std::get<2>(gradients) = grad_value;
    }
  }
  if (wanted[3]) {
    const auto& mask = *options.attn_mask;
    TORCH_CHECK(mask.is_floating_point(), kName, ": a mask of bool has no gradient");
    const auto grad_mask = at::empty(mask.sizes(), mask.options());
    for (int d = 0; d < 4; ++d) {
      p.grad_mask[d] = grad_mask.stride(d);
    }
    const auto down = mask.size(2) == 1 ? 1 : tiles_of(sizes.queries, kTileQueries);
    const auto across = mask.size(3) == 1 ? 1 : tiles_of(sizes.keys, kTileKeys);
    launch_threadgroups(kernels, KernelName("attention_grad_mask_") + type,
                        grad_mask.numel() == 0 ? 0 : mask.size(0) * mask.size(1) * down * across,
                        /*size=*/128, grad_mask, in.query, in.key, in.value, grad, sums, statistics,
                        in.mask, in.slopes, in.lengths, in.random, grad_mask, p);
    std::get<3>(gradients) = grad_mask;
  }
  if (wanted[4]) {
    const auto grad_sinks = at::empty(options.sinks->sizes(), sums.options());
    launch_threadgroups(kernels, KernelName("attention_grad_sinks"), grad_sinks.numel(),
                        /*size=*/128, grad_sinks, in.sinks, sums, statistics, p);
    std::get<4>(gradients) = grad_sinks.to(options.sinks->scalar_type());
  }
  return gradients;
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
