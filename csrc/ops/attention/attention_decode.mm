// Host side of kernels/attention/attention_decode.metal: attention of few queries over contiguous
// or paged keys, with split-KV (flash decoding).
#include <ATen/ops/empty.h>
#include <ATen/ops/logaddexp.h>
#include <csrc/ops/attention/attention.h>
#include <csrc/ops/attention/attention_cache.h>
#include <csrc/ops/attention/attention_decode.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/attention/attention_decode.h>
#include <metalops/autograd.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>

#include <algorithm>
#include <array>

namespace {

using at::Tensor;
using metalops::AttentionDecodeMask;
using metalops::AttentionDecodeOptions;
using metalops::AttentionDecodeParameters;
using metalops::MaybeTensor;

constexpr const char* kPagedAttention = "paged_attention";

// Returns the strides of a tensor (B, H, L, E), or of pages (pages, H, page size, E).
metalops::AttentionDecodeStrides decode_strides(const Tensor& tensor) {
  return {tensor.stride(0), tensor.stride(2), tensor.stride(1)};
}

int32_t decode_size(int64_t size, const char* what) {
  constexpr int64_t kLargest = metalops::kInt32Max - 4096;
  return metalops::checked_int32(size, kLargest, kPagedAttention, ": ", what, " of size");
}

// Returns the window, -1 if it is so large that it stands for "all keys".
int32_t decode_window(int64_t size) {
  return size > metalops::kInt32Max / 2 ? -1 : static_cast<int32_t>(size);
}

// Returns true if all rows of a tensor are whole, aligned vectors of `bytes`.
bool is_in_packs(const Tensor& tensor, int64_t bytes) {
  const auto pack = bytes / tensor.element_size();
  if (tensor.storage_offset() % pack != 0 || tensor.size(-1) % pack != 0) {
    return false;
  }
  for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) % pack != 0) {
      return false;
    }
  }
  return true;
}

// The rows (queries times query heads that share a key head) of a threadgroup.
struct DecodeRows {
  const char* name;
  int64_t count;
};
DecodeRows decode_rows(int64_t rows, bool are_codes) {
  if (are_codes) {
    return {"_4", 4};
  }
  return rows <= 1 ? DecodeRows{"_1", 1} : rows <= 4 ? DecodeRows{"_4", 4} : DecodeRows{"_8", 8};
}

// Returns the number of KV splits: enough to keep a device busy, and none too short.
int64_t decode_splits(int64_t keys, int64_t tasks, bool alone) {
  const int64_t kEnough = alone ? 64 : 1024;
  const int64_t kShortest = alone ? 512 : 256;
  return std::clamp<int64_t>(c10::metal::ceil_div(kEnough, tasks), 1,
                             std::max<int64_t>(1, keys / kShortest));
}

// Returns the tensor, or a copy of it, with contiguous features.
Tensor with_features_together(const Tensor& tensor) {
  return tensor.size(-1) <= 1 || tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

// Writes the output to out, (B, Hq, L, Ev), whose features are contiguous, and its lse.
void decode_to(const Tensor& out, const Tensor& lse, const Tensor& query, const Tensor& given_key,
               const Tensor& given_value, const AttentionDecodeOptions& options) {
  const auto key = with_features_together(given_key);
  const auto value = with_features_together(given_value);
  const auto q = with_features_together(query);
  const auto batch = query.size(0);
  const auto heads = key.size(1);
  const auto queries = query.size(2);
  const auto group = heads == 0 ? 0 : query.size(1) / heads;
  const auto features = value.size(3);
  if (lse.numel() == 0) {
    return;
  }
  const bool alone = metalops::a_thread_for_each_element();
  const bool paged = options.block_table.has_value();
  // As in torch, queries without features attend to no key.
  const auto keys = query.size(3) == 0 ? 0
                    : paged            ? options.block_table->size(1) * key.size(2)
                                       : key.size(2);
  const auto rows = decode_rows(queries * group, key.scalar_type() != query.scalar_type());
  const auto row_blocks = c10::metal::ceil_div(queries * group, rows.count);
  // Without features of the values there is only the lse, which no kernel would combine over
  // splits.
  const auto splits = features == 0 ? 1 : decode_splits(keys, batch * heads * row_blocks, alone);
  const auto page_size = paged ? key.size(2) : 0;
  const bool power = page_size > 0 && (page_size & (page_size - 1)) == 0;
  AttentionDecodeParameters parameters{
      .query = decode_strides(q),
      .key = decode_strides(key),
      .value = decode_strides(value),
      .out = decode_strides(out),
      .lse = {lse.stride(0), lse.stride(2), lse.stride(1)},
      .mask = {0, 0, 0, 0},
      .table_stride = paged ? options.block_table->stride(0) : 0,
      .slopes_batch = options.alibi_slopes && options.alibi_slopes->dim() == 2
                          ? options.alibi_slopes->size(1)
                          : 0,
      .batch = decode_size(batch, "a batch"),
      .heads = decode_size(heads, "heads"),
      .group = decode_size(group, "heads"),
      .queries = decode_size(queries, "queries"),
      .keys = decode_size(keys, "keys"),
      .head_size = decode_size(query.size(3), "a head"),
      .value_size = decode_size(features, "a head"),
      .splits = decode_size(splits, "splits"),
      .row_blocks = decode_size(row_blocks, "queries"),
      .page_size = decode_size(page_size, "pages"),
      .page_shift = power ? static_cast<int32_t>(__builtin_ctzll(page_size)) : -1,
      .pages = paged ? decode_size(key.size(0), "pages") : 0,
      .window_left = decode_window(options.window_left),
      .window_right = decode_window(options.window_right),
      .mask_kind = AttentionDecodeMask::kNone,
      .scale = static_cast<float>(options.scale),
      .value_scale = static_cast<float>(options.value_scale),
      .softcap = metalops::softcap_for_kernel(options.softcap),
      .bottom_right = options.bottom_right,
      .has_lengths = options.seqused_k.has_value(),
      .has_starts = options.first_k.has_value(),
      .has_sinks = options.sinks.has_value(),
      .has_slopes = options.alibi_slopes.has_value(),
      .has_key_scale = options.k_scale.has_value(),
      .has_value_scale = options.v_scale.has_value(),
      .is_aligned = false};
  const int64_t pack_bytes = alone ? 16 * key.element_size() : key.element_size() == 1 ? 8 : 16;
  parameters.is_aligned = is_in_packs(key, pack_bytes) && is_in_packs(value, pack_bytes);
  if (options.attn_mask) {
    const auto& mask = *options.attn_mask;
    parameters.mask_kind = mask.scalar_type() == at::kBool    ? AttentionDecodeMask::kBool
                           : mask.scalar_type() == at::kFloat ? AttentionDecodeMask::kFloat
                                                              : AttentionDecodeMask::kSame;
    for (int64_t dim = 0; dim < 4; ++dim) {
      parameters.mask[dim] = mask.size(dim) == 1 ? 0 : mask.stride(dim);
    }
  }
  const auto floats = query.options().dtype(at::kFloat);
  const auto all_rows = batch * heads * queries * group;
  const auto part_outs = splits > 1 ? at::empty({all_rows, splits, features}, floats) : lse;
  const auto part_sums = splits > 1 ? at::empty({all_rows, splits, 2}, floats) : lse;
  const auto contiguous = [&](const MaybeTensor& given, at::ScalarType type) {
    return given ? given->to(type).contiguous() : lse;
  };
  const auto table =
      paged && options.block_table->stride(1) != 1 && options.block_table->size(1) > 1
          ? options.block_table->contiguous()
          : options.block_table.value_or(lse);
  if (paged) {
    parameters.table_stride = table.stride(0);
  }
  const auto lengths = contiguous(options.seqused_k, at::kInt);
  const auto starts = contiguous(options.first_k, at::kInt);
  const auto sinks = contiguous(options.sinks, at::kFloat);
  const auto slopes = contiguous(options.alibi_slopes, at::kFloat);
  const auto key_scale = options.k_scale.value_or(lse);
  const auto value_scale = options.v_scale.value_or(lse);
  auto& library = metalops::library("attention_decode");
  const metalops::KernelName type = metalops::metal_type(query.scalar_type());
  const auto types = type + "_" + metalops::cache_type(key.scalar_type()) + rows.name;
  const auto tasks = static_cast<uint64_t>(batch * heads * splits * row_blocks);
  const auto mask = options.attn_mask.value_or(lse);
  if (alone) {
    metalops::launch_threads(library, metalops::KernelName("attention_decode_alone_") + types,
                             tasks, out, lse, part_outs, part_sums, q, key, value, table, starts,
                             lengths, mask, sinks, slopes, key_scale, value_scale, parameters,
                             metalops::kErrorBuffer);
  } else {
    constexpr uint64_t kThreads = 128;
    const auto size = std::max(query.size(3), features);
    metalops::launch_threadgroups(library,
                                  metalops::KernelName("attention_decode_") + types +
                                      (size <= 64    ? "_64"
                                       : size <= 128 ? "_128"
                                                     : "_256"),
                                  tasks, kThreads, out, lse, part_outs, part_sums, q, key, value,
                                  table, starts, lengths, mask, sinks, slopes, key_scale,
                                  value_scale, parameters, metalops::kErrorBuffer);
  }
  if (splits > 1 && !alone) {
    metalops::launch_simdgroups(library,
                                metalops::KernelName("attention_decode_combine_simdgroup_") + type,
                                all_rows * c10::metal::ceil_div<int64_t>(features, 32), out, lse,
                                part_outs, part_sums, sinks, value_scale, parameters);
  } else if (splits > 1) {
    metalops::launch_rows(library, metalops::KernelName("attention_decode_combine_") + type,
                          features, all_rows, out, lse, part_outs, part_sums, sinks, value_scale,
                          parameters);
  }
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

void check_paged(const Tensor& query, const Tensor& key, const Tensor& value,
                 const MaybeTensor& table, const Tensor& lengths) {
  metalops::check_same_device(
      kPagedAttention,
      {{query, "query"}, {key, "key_cache"}, {value, "value_cache"}, {lengths, "seq_lens"}});
  metalops::check_metal_float(kPagedAttention, query.scalar_type());
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4, kPagedAttention,
              ": query, key_cache and value_cache must have 4 dimensions, but have sizes ",
              query.sizes(), ", ", key.sizes(), " and ", value.sizes());
  const auto type = key.scalar_type();
  TORCH_CHECK(type == query.scalar_type() || metalops::is_cache_code(type), kPagedAttention,
              ": key_cache must have the dtype of query, ", query.scalar_type(),
              ", or int8, float8_e4m3fn or float8_e5m2, but has ", type);
  TORCH_CHECK(value.scalar_type() == type, kPagedAttention,
              ": value_cache must have the dtype of key_cache, ", type, ", but has ",
              value.scalar_type());
  TORCH_CHECK(
      key.size(0) == value.size(0) && key.size(1) == value.size(1) && key.size(2) == value.size(2),
      kPagedAttention,
      ": key_cache and value_cache must have the same pages, tokens and heads, but "
      "have sizes ",
      key.sizes(), " and ", value.sizes());
  TORCH_CHECK(key.size(3) == query.size(3), kPagedAttention,
              ": key_cache must have as many features as query, ", query.size(3),
              ", but has sizes ", key.sizes());
  TORCH_CHECK(query.size(3) <= 256 && value.size(3) <= 256 && value.size(3) > 0, kPagedAttention,
              ": heads have at most 256 features and values at least one, but query and "
              "value_cache have sizes ",
              query.sizes(), " and ", value.sizes());
  TORCH_CHECK(key.size(2) > 0 && query.size(2) % key.size(2) == 0, kPagedAttention,
              ": query must have a multiple of the heads of key_cache, ", key.size(2),
              ", but has sizes ", query.sizes());
  const auto batch = query.size(0);
  TORCH_CHECK(lengths.dim() == 1 && lengths.size(0) == batch &&
                  (lengths.scalar_type() == at::kInt || lengths.scalar_type() == at::kLong),
              kPagedAttention, ": seq_lens must be integers of sizes [", batch, "], but are ",
              lengths.scalar_type(), " of sizes ", lengths.sizes());
  if (table) {
    TORCH_CHECK(table->dim() == 2 && table->size(0) == batch && table->scalar_type() == at::kInt,
                kPagedAttention, ": block_table must be int32 of sizes [", batch,
                ", pages], but is ", table->scalar_type(), " of sizes ", table->sizes());
  } else {
    TORCH_CHECK(key.size(0) == batch, kPagedAttention,
                ": key_cache must have as many samples as query, ", batch, ", but has sizes ",
                key.sizes());
  }
}

void check_paged_options(const Tensor& query, const Tensor& key, const MaybeTensor& table,
                         const MaybeTensor& starts, const MaybeTensor& sinks,
                         const MaybeTensor& slopes, const MaybeTensor& k_scale,
                         const MaybeTensor& v_scale) {
  const auto batch = query.size(0);
  const auto heads = query.size(2);
  const auto check_device = [&](const char* argument, const MaybeTensor& given) {
    if (given) {
      metalops::check_same_device(kPagedAttention, {{query, "query"}, {*given, argument}});
    }
  };
  check_device("block_table", table);
  check_device("seq_starts", starts);
  check_device("sinks", sinks);
  check_device("alibi_slopes", slopes);
  TORCH_CHECK(
      !starts || (starts->dim() == 1 && starts->size(0) == batch &&
                  (starts->scalar_type() == at::kInt || starts->scalar_type() == at::kLong)),
      kPagedAttention, ": seq_starts must be integers of sizes [", batch, "], but are ",
      starts->scalar_type(), " of sizes ", starts->sizes());
  TORCH_CHECK(!sinks || (sinks->dim() == 1 && sinks->size(0) == heads &&
                         (sinks->scalar_type() == at::kFloat ||
                          sinks->scalar_type() == query.scalar_type())),
              kPagedAttention, ": sinks must be Float or ", query.scalar_type(), " of sizes [",
              heads, "], but are ", sinks->scalar_type(), " of sizes ", sinks->sizes());
  TORCH_CHECK(!slopes || (slopes->scalar_type() == at::kFloat && slopes->dim() > 0 &&
                          slopes->size(-1) == heads &&
                          (slopes->dim() == 1 || (slopes->dim() == 2 && slopes->size(0) == batch))),
              kPagedAttention, ": alibi_slopes must be Float of sizes [", heads, "] or [", batch,
              ", ", heads, "], but are ", slopes->scalar_type(), " of sizes ", slopes->sizes());
  metalops::check_cache_scale(kPagedAttention, "k_scale", key, k_scale);
  metalops::check_cache_scale(kPagedAttention, "v_scale", key, v_scale);
}

// query: (B, L, Hq, E). Caches: (pages or samples, tokens, Hkv, E or Ev).
std::tuple<Tensor, Tensor> paged_attention(const Tensor& query, const Tensor& key_cache,
                                           const Tensor& value_cache,
                                           const MaybeTensor& block_table, const Tensor& seq_lens,
                                           const MaybeTensor& seq_starts, const MaybeTensor& sinks,
                                           const MaybeTensor& alibi_slopes,
                                           const MaybeTensor& k_scale, const MaybeTensor& v_scale,
                                           double scale, double value_scale, int64_t window_left,
                                           int64_t window_right, double softcap) {
  check_paged(query, key_cache, value_cache, block_table, seq_lens);
  check_paged_options(query, key_cache, block_table, seq_starts, sinks, alibi_slopes, k_scale,
                      v_scale);
  metalops::check_attention_numbers(kPagedAttention, scale, softcap);
  const auto rows = query.size(1) * (query.size(2) / key_cache.size(2));
  if (rows > metalops::kMostDecodeRows && !seq_starts) {
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

void check_parts(const char* name, const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b,
                 const Tensor& lse_b) {
  metalops::check_same_device(
      name, {{out_a, "out_a"}, {lse_a, "lse_a"}, {out_b, "out_b"}, {lse_b, "lse_b"}});
  metalops::check_metal_float(name, out_a.scalar_type());
  TORCH_CHECK(out_a.dim() > 0 && out_a.sizes() == out_b.sizes() &&
                  out_a.scalar_type() == out_b.scalar_type(),
              name, ": out_a and out_b must have the same sizes and dtype, but have ",
              out_a.sizes(), " of ", out_a.scalar_type(), " and ", out_b.sizes(), " of ",
              out_b.scalar_type());
  const auto rows = out_a.sizes().slice(0, out_a.dim() - 1);
  TORCH_CHECK(lse_a.sizes() == rows && lse_b.sizes() == rows && lse_a.scalar_type() == at::kFloat &&
                  lse_b.scalar_type() == at::kFloat,
              name, ": lse_a and lse_b must be float32 of sizes ", rows, ", but are ",
              lse_a.scalar_type(), " of sizes ", lse_a.sizes(), " and ", lse_b.scalar_type(),
              " of sizes ", lse_b.sizes());
}

// out: (..., E). lse: (...).
std::tuple<Tensor, Tensor> merge_attention(const Tensor& out_a, const Tensor& lse_a,
                                           const Tensor& out_b, const Tensor& lse_b) {
  check_parts("merge_attention", out_a, lse_a, out_b, lse_b);
  const auto out = at::empty(out_a.sizes(), out_a.options());
  if (out.size(-1) == 0) {
    return {out, at::logaddexp(lse_a, lse_b)};
  }
  const auto lse = at::empty(lse_a.sizes(), lse_a.options());
  metalops::launch_rows(metalops::library("attention_decode"),
                        metalops::typed_kernel("attention_decode_merge_pair_", out), out.size(-1),
                        lse.numel(), out, lse, out_a.contiguous(), lse_a.contiguous(),
                        out_b.contiguous(), lse_b.contiguous());
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> merge_attention_backward(
    const Tensor& grad_out, const Tensor& grad_lse, const Tensor& out_a, const Tensor& lse_a,
    const Tensor& out_b, const Tensor& lse_b) {
  check_parts("merge_attention_backward", out_a, lse_a, out_b, lse_b);
  const auto grad_a = at::empty(out_a.sizes(), out_a.options());
  const auto grad_b = at::empty(out_a.sizes(), out_a.options());
  const auto grad_lse_a = at::empty(lse_a.sizes(), lse_a.options());
  const auto grad_lse_b = at::empty(lse_a.sizes(), lse_a.options());
  metalops::launch_simdgroups(
      metalops::library("attention_decode"),
      metalops::typed_kernel("attention_decode_merge_pair_backward_", out_a), lse_a.numel(), grad_a,
      grad_lse_a, grad_b, grad_lse_b, grad_out.contiguous(), grad_lse.contiguous(),
      out_a.contiguous(), lse_a.contiguous(), out_b.contiguous(), lse_b.contiguous(), lse_a.numel(),
      static_cast<int32_t>(out_a.size(-1)));
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
