// ATen's fused attention operators, which torch has for CUDA: flash attention (dense, packed and
// paged), which torch.nn.attention.varlen calls; memory efficient attention; and the operator of
// devices with a fused attention of their own. Results, lse and gradients have the layouts of
// torch's meta functions.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/attention/attention.h>
#include <csrc/ops/attention/attention_decode.h>
#include <csrc/ops/attention/attention_random.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <metalops/library.h>
#include <metalops/stock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

namespace {

using at::Tensor;
using metalops::AttentionGradients;
using metalops::AttentionOptions;
using metalops::MaybeTensor;
using MaybeSize = std::optional<int64_t>;
using c10::SymInt;

// ---- what they share ----------------------------------------------------------------------------

// Returns nothing for an undefined tensor, which is what autograd passes on for an absent argument.
MaybeTensor if_defined(const MaybeTensor& tensor) {
  return tensor && tensor->defined() ? tensor : std::nullopt;
}

double scale_of(const Tensor& query, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(query.size(-1)));
}

// Converts (batch, rows, heads, columns) to (batch, heads, rows, columns), and back.
Tensor swap_heads(const Tensor& tensor) {
  return tensor.defined() ? tensor.transpose(1, 2) : tensor;
}

// Returns the tensor, or a copy of it, with the strides of at::empty_like(like).
Tensor in_layout_of(const Tensor& tensor, const Tensor& like) {
  if (!tensor.defined()) {
    return tensor;
  }
  const auto wanted = at::empty_like(like, like.options().device(at::kMeta));
  return tensor.strides() == wanted.strides() ? tensor : at::empty_like(like).copy_(tensor);
}

// Returns a tensor (batch, heads, rows, columns) that is contiguous as (batch, rows, heads,
// columns).
Tensor rows_before_heads(const Tensor& tensor) {
  return tensor.defined() ? tensor.transpose(1, 2).contiguous().transpose(1, 2) : tensor;
}

// Draws the seed and offset of dropout.
void draw(const Tensor& query, AttentionOptions& options) {
  TORCH_CHECK(options.dropout_p >= 0 && options.dropout_p <= 1,
              "dropout probability has to be between 0 and 1, but got ", options.dropout_p);
  if (options.dropout_p > 0) {
    options.rng = metalops::draw_attention_seed(query);
  }
}

// Returns seed and offset as separate tensors; zeros without dropout.
std::tuple<Tensor, Tensor> seed_and_offset(const Tensor& query, const AttentionOptions& options) {
  const auto numbers = options.rng.value_or(at::zeros({2}, query.options().dtype(at::kLong)));
  return {numbers[0].clone(), numbers[1].clone()};
}

void set_seed_and_offset(AttentionOptions& options, const Tensor& seed, const Tensor& offset) {
  if (options.dropout_p > 0) {
    options.rng = at::stack({seed, offset});
  }
}

void check_has_no_debug_mask(const char* name, bool return_debug_mask) {
  TORCH_CHECK_NOT_IMPLEMENTED(!return_debug_mask, name,
                              ": return_debug_mask=True is not supported on MPS, where the weights "
                              "of attention are never in memory");
}

// ---- flash attention ----------------------------------------------------------------------------

// Returns one tensor of seed and offset, and an unused one.
std::tuple<Tensor, Tensor> flash_state(const Tensor& query, const AttentionOptions& options) {
  const auto numbers = options.rng.value_or(at::zeros({2}, query.options().dtype(at::kLong)));
  return {numbers.view(at::kUInt64), at::empty({}, query.options().dtype(at::kUInt64))};
}

AttentionOptions flash_options(const Tensor& query, double dropout_p, bool is_causal,
                               std::optional<double> scale, MaybeSize window_left,
                               MaybeSize window_right) {
  AttentionOptions options;
  options.scale = scale_of(query, scale);
  options.window_left = std::max<int64_t>(window_left.value_or(-1), -1);
  options.window_right = is_causal ? 0 : std::max<int64_t>(window_right.value_or(-1), -1);
  options.bottom_right = true;
  options.dropout_p = dropout_p;
  return options;
}

// Returns the pages of all sequences, one after the other. Entries of the table that are no page
// are clamped; their tokens are never read.
Tensor gather_pages(const Tensor& cache, const Tensor& block_table) {
  TORCH_CHECK(cache.dim() == 4,
              "_flash_attention_forward: with block_table, key and value must be "
              "(pages, page size, heads, features), but have sizes ",
              cache.sizes());
  const auto pages = block_table.flatten().clamp(0, cache.size(0) - 1);
  return cache.index_select(0, pages).flatten(0, 1);
}

struct Packed {
  Tensor key;
  Tensor value;
};

Packed set_lengths(const Tensor& key, const Tensor& value, const Tensor& cum_seq_q,
                   const MaybeTensor& cum_seq_k, int64_t max_q, int64_t max_k,
                   const MaybeTensor& seqused_k, const MaybeTensor& block_table,
                   AttentionOptions& options) {
  options.cu_seqlens_q = cum_seq_q;
  options.cu_seqlens_k = cum_seq_k;
  options.seqused_k = seqused_k;
  options.max_seqlen_q = max_q;
  options.max_seqlen_k = max_k;
  if (!block_table) {
    TORCH_CHECK(cum_seq_k, "_flash_attention_forward: cum_seq_k must be given with cum_seq_q, "
                           "unless block_table is");
    return {key, value};
  }
  TORCH_CHECK(seqused_k, "_flash_attention_forward: block_table needs seqused_k");
  TORCH_CHECK(block_table->dim() == 2 && block_table->size(0) == cum_seq_q.numel() - 1,
              "_flash_attention_forward: block_table must have a row for each sequence, ",
              cum_seq_q.numel() - 1, ", but has sizes ", block_table->sizes());
  const auto length = block_table->size(1) * key.size(1);
  options.cu_seqlens_k = at::arange(cum_seq_q.numel(), cum_seq_q.options()).mul_(length);
  return {gather_pages(key, *block_table), gather_pages(value, *block_table)};
}

// Attention of one query of each sequence over pages, which are not gathered.
std::tuple<Tensor, Tensor> flash_of_pages(const Tensor& query, const Tensor& key,
                                          const Tensor& value, const AttentionOptions& options,
                                          const Tensor& block_table) {
  metalops::AttentionDecodeOptions of_pages;
  of_pages.alibi_slopes = options.alibi_slopes;
  of_pages.seqused_k = options.seqused_k;
  of_pages.block_table = block_table;
  of_pages.scale = options.scale;
  of_pages.window_left = options.window_left;
  of_pages.window_right = options.window_right;
  const auto [out, lse] =
      metalops::attention_decode(query.unsqueeze(2), swap_heads(key), swap_heads(value), of_pages);
  return {in_layout_of(out.squeeze(2), query), lse.squeeze(2).t().contiguous()};
}

// Returns the output and the lse: (batch, heads, rows), or (heads, rows) of packed sequences.
std::tuple<Tensor, Tensor> flash(const Tensor& query, const Tensor& key, const Tensor& value,
                                 const MaybeTensor& cum_seq_q, const MaybeTensor& cum_seq_k,
                                 int64_t max_q, int64_t max_k, const MaybeTensor& seqused_k,
                                 const MaybeTensor& block_table, MaybeSize num_splits,
                                 AttentionOptions& options) {
  // With split-KV, where the keys are split may depend on the other sequences of the batch.
  const bool may_split = num_splits != 1;
  if (may_split && cum_seq_q && block_table && seqused_k && max_q == 1 && options.dropout_p == 0 &&
      key.dim() == 4 && block_table->dim() == 2 && block_table->size(0) == query.size(0)) {
    options.seqused_k = seqused_k;
    return flash_of_pages(query, key, value, options, *block_table);
  }
  if (cum_seq_q) {
    const auto packed = set_lengths(key, value, *cum_seq_q, cum_seq_k, max_q, max_k, seqused_k,
                                    block_table, options);
    const auto [out, lse] = metalops::attention_forward(query, packed.key, packed.value, options);
    return {in_layout_of(out, query), lse};
  }
  TORCH_CHECK(!block_table, "_flash_attention_forward: block_table needs cum_seq_q");
  options.seqused_k = seqused_k;
  options.max_seqlen_q = query.size(1);
  options.max_seqlen_k = key.size(1);
  const auto [out, lse] =
      metalops::attention_forward(swap_heads(query), swap_heads(key), swap_heads(value), options);
  return {in_layout_of(swap_heads(out), query), lse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_attention_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& cum_seq_q,
    const MaybeTensor& cum_seq_k, int64_t max_q, int64_t max_k, double dropout_p, bool is_causal,
    bool return_debug_mask, std::optional<double> scale, MaybeSize window_size_left,
    MaybeSize window_size_right, const MaybeTensor& seqused_k, const MaybeTensor& alibi_slopes,
    const MaybeTensor& block_table, MaybeSize num_splits) {
  check_has_no_debug_mask("_flash_attention_forward", return_debug_mask);
  auto options =
      flash_options(query, dropout_p, is_causal, scale, window_size_left, window_size_right);
  options.alibi_slopes = alibi_slopes;
  draw(query, options);
  const auto [out, lse] = flash(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, seqused_k,
                                block_table, num_splits, options);
  const auto [state, unused] = flash_state(query, options);
  return {out, lse, state, unused, at::empty({0}, query.options())};
}

Tensor flash_attention_forward_no_dropout_inplace(
    Tensor& out, const Tensor& query, const Tensor& key, const Tensor& value,
    const MaybeTensor& cum_seq_q, const MaybeTensor& cum_seq_k, int64_t max_q, int64_t max_k,
    double dropout_p, bool is_causal, bool return_debug_mask, std::optional<double> scale,
    MaybeSize window_size_left, MaybeSize window_size_right, const MaybeTensor& seqused_k,
    const MaybeTensor& alibi_slopes, const MaybeTensor& block_table, MaybeSize num_splits) {
  constexpr const char* kName = "_flash_attention_forward_no_dropout_inplace";
  check_has_no_debug_mask(kName, return_debug_mask);
  TORCH_CHECK(dropout_p == 0, kName, ": dropout_p must be 0, but is ", dropout_p);
  TORCH_CHECK(out.sizes() == query.sizes() && out.scalar_type() == query.scalar_type(), kName,
              ": out must have query's sizes and dtype, ", query.sizes(), " and ",
              query.scalar_type(), ", but has ", out.sizes(), " and ", out.scalar_type());
  auto options =
      flash_options(query, dropout_p, is_causal, scale, window_size_left, window_size_right);
  options.alibi_slopes = alibi_slopes;
  const auto [result, lse] = flash(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, seqused_k,
                                   block_table, num_splits, options);
  out.copy_(result);
  return lse;
}

constexpr std::array<bool, 6> kOfInputs{true, true, true, false, false, false};

std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& out, const Tensor& logsumexp, const Tensor& cum_seq_q, const Tensor& cum_seq_k,
    int64_t max_q, int64_t max_k, double dropout_p, bool is_causal, const Tensor& rng_state,
    const Tensor& unused, std::optional<double> scale, MaybeSize window_size_left,
    MaybeSize window_size_right) {
  if (!grad_out.defined()) {
    return {};
  }
  auto options =
      flash_options(query, dropout_p, is_causal, scale, window_size_left, window_size_right);
  if (dropout_p > 0) {
    options.rng = rng_state.view(at::kLong);
  }
  options.cu_seqlens_q = if_defined(cum_seq_q);
  options.cu_seqlens_k = if_defined(cum_seq_k);
  const bool is_packed = cum_seq_q.defined();
  options.max_seqlen_q = is_packed ? max_q : query.size(1);
  options.max_seqlen_k = is_packed ? max_k : key.size(1);
  const auto turn = [&](const Tensor& x) { return is_packed ? x : swap_heads(x); };
  const auto gradients =
      metalops::attention_backward(turn(grad_out), std::nullopt, turn(query), turn(key),
                                   turn(value), turn(out), logsumexp, options, kOfInputs);
  return {in_layout_of(turn(std::get<0>(gradients)), query),
          in_layout_of(turn(std::get<1>(gradients)), key),
          in_layout_of(turn(std::get<2>(gradients)), value)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor>
scaled_dot_product_flash_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                   double dropout_p, bool is_causal, bool return_debug_mask,
                                   std::optional<double> scale) {
  const auto [out, lse, state, unused, debug_mask] = flash_attention_forward(
      swap_heads(query), swap_heads(key), swap_heads(value), std::nullopt, std::nullopt,
      query.size(2), key.size(2), dropout_p, is_causal, return_debug_mask, scale, std::nullopt,
      std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
  return {in_layout_of(swap_heads(out), query),
          lse,
          Tensor(),
          Tensor(),
          query.size(2),
          key.size(2),
          state,
          unused,
          debug_mask};
}

std::tuple<Tensor, Tensor, Tensor> scaled_dot_product_flash_attention_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& out, const Tensor& logsumexp, const Tensor& cum_seq_q, const Tensor& cum_seq_k,
    int64_t max_q, int64_t max_k, double dropout_p, bool is_causal, const Tensor& philox_seed,
    const Tensor& philox_offset, std::optional<double> scale) {
  const auto gradients = flash_attention_backward(
      swap_heads(grad_out), swap_heads(query), swap_heads(key), swap_heads(value), swap_heads(out),
      logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed,
      philox_offset, scale, std::nullopt, std::nullopt);
  return {in_layout_of(swap_heads(std::get<0>(gradients)), query),
          in_layout_of(swap_heads(std::get<1>(gradients)), key),
          in_layout_of(swap_heads(std::get<2>(gradients)), value)};
}

// ---- memory efficient attention -----------------------------------------------------------------

constexpr int64_t kLogSumExpPadding = 32;
constexpr int64_t kBiasAlignment = 16;

int64_t round_up(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

enum class MaskType : int64_t { kNone, kTopLeft, kBottomRight };

AttentionOptions efficient_options(const Tensor& query, const MaybeTensor& bias, double dropout_p,
                                   int64_t custom_mask_type, std::optional<double> scale,
                                   MaybeSize window_size) {
  TORCH_CHECK(custom_mask_type >= 0 && custom_mask_type <= 2,
              "invalid value for `custom_mask_type`: ", custom_mask_type);
  const auto type = static_cast<MaskType>(custom_mask_type);
  const bool has_window = window_size.value_or(0) > 0;
  TORCH_CHECK(!has_window || type != MaskType::kNone, "custom_mask_type not supported");
  AttentionOptions options;
  options.attn_mask = bias;
  options.scale = scale_of(query, scale);
  options.window_left = has_window ? *window_size - 1 : -1;
  options.window_right = type == MaskType::kNone ? -1 : 0;
  options.bottom_right = type == MaskType::kBottomRight;
  options.dropout_p = dropout_p;
  return options;
}

// Pads an lse (batch, heads, rows) with infinity to as many rows as CUDA's kernels return; to none
// unless `is_wanted`.
Tensor padded(const Tensor& lse, bool is_wanted) {
  const auto rows = lse.size(2);
  auto sizes = lse.sizes().vec();
  sizes[2] = is_wanted ? round_up(rows, kLogSumExpPadding) : 0;
  if (sizes[2] == rows) {
    return lse;
  }
  auto result = at::full(sizes, std::numeric_limits<double>::infinity(), lse.options());
  if (is_wanted) {
    result.narrow(2, 0, rows).copy_(lse);
  }
  return result;
}

// Converts an lse (heads, rows of all sequences) to (sequences, heads, padded rows of one).
Tensor unpacked(const Tensor& lse, const Tensor& cu_seqlens, int64_t longest, bool is_wanted) {
  const auto sequences = cu_seqlens.numel() - 1;
  const auto rows = is_wanted ? round_up(longest, kLogSumExpPadding) : 0;
  if (rows == 0 || lse.numel() == 0) {
    return at::full({sequences, lse.size(0), rows}, std::numeric_limits<double>::infinity(),
                    lse.options());
  }
  const auto begins = cu_seqlens.narrow(0, 0, sequences).unsqueeze(1);
  const auto ends = cu_seqlens.narrow(0, 1, sequences).unsqueeze(1);
  const auto places = begins + at::arange(rows, cu_seqlens.options());
  const auto found = lse.index_select(1, places.clamp_max(lse.size(1) - 1).flatten());
  return found.view({lse.size(0), sequences, rows})
      .transpose(0, 1)
      .masked_fill(places.ge(ends).unsqueeze(1), std::numeric_limits<double>::infinity());
}

// The inverse of unpacked().
Tensor packed(const Tensor& lse, const Tensor& cu_seqlens, int64_t rows) {
  const auto row = at::arange(rows, cu_seqlens.options());
  const auto ends = cu_seqlens.narrow(0, 1, cu_seqlens.numel() - 1);
  const auto sequence = at::searchsorted(ends, row, /*out_int32=*/false, /*right=*/true);
  const auto in_sequence = row - cu_seqlens.index_select(0, sequence);
  const auto places = sequence * lse.size(2) + in_sequence;
  return lse.transpose(0, 1).flatten(1).index_select(1, places);
}

void check_has_no_bias(const char* name, const MaybeTensor& bias) {
  TORCH_CHECK_NOT_IMPLEMENTED(!bias, name, ": a bias of packed sequences is not supported on MPS");
}

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt> efficient_attention_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& bias,
    const MaybeTensor& cu_seqlens_q, const MaybeTensor& cu_seqlens_k, MaybeSize max_seqlen_q,
    MaybeSize max_seqlen_k, double dropout_p, int64_t custom_mask_type, bool compute_log_sumexp,
    std::optional<double> scale, const MaybeTensor& seqlen_k, MaybeSize window_size) {
  constexpr const char* kName = "_efficient_attention_forward";
  auto options = efficient_options(query, bias, dropout_p, custom_mask_type, scale, window_size);
  options.seqused_k = seqlen_k;
  options.max_seqlen_q = query.size(1);
  options.max_seqlen_k = max_seqlen_k.value_or(key.size(1));
  draw(query, options);
  Tensor out, lse;
  if (cu_seqlens_q) {
    check_has_no_bias(kName, bias);
    TORCH_CHECK(cu_seqlens_k && max_seqlen_q, kName,
                ": cu_seqlens_k and max_seqlen_q must be given with cu_seqlens_q");
    options.cu_seqlens_q = cu_seqlens_q;
    options.cu_seqlens_k = cu_seqlens_k;
    options.max_seqlen_q = *max_seqlen_q;
    const auto [result, of_rows] =
        metalops::attention_forward(query.squeeze(0), key.squeeze(0), value.squeeze(0), options);
    out = result.unsqueeze(0).contiguous();
    lse = unpacked(of_rows, *cu_seqlens_q, *max_seqlen_q, compute_log_sumexp);
  } else {
    const auto [result, of_rows] =
        metalops::attention_forward(swap_heads(query), swap_heads(key), swap_heads(value), options);
    out = swap_heads(result).contiguous();
    lse = padded(of_rows, compute_log_sumexp);
  }
  const auto [seed, offset] = seed_and_offset(query, options);
  return {out, lse, seed, offset, options.max_seqlen_q, options.max_seqlen_k};
}

// Returns a tensor whose rows begin at multiples of 16 elements.
Tensor aligned_bias(const Tensor& gradient) {
  if (!gradient.defined()) {
    return gradient;
  }
  auto sizes = gradient.sizes().vec();
  const auto columns = sizes.back();
  sizes.back() = round_up(columns, kBiasAlignment);
  return at::empty(sizes, gradient.options()).narrow(-1, 0, columns).copy_(gradient);
}

// Makes the three tensors neighbours in one tensor (..., 3, heads, columns).
void share_storage(Tensor& query, Tensor& key, Tensor& value) {
  TORCH_CHECK(query.sizes() == key.sizes() && key.sizes() == value.sizes(),
              "`shared_storage_dqdkdv` is only supported when query, key and value have the same "
              "sizes");
  const auto all = at::stack({query, key, value}, -3);
  query = all.select(-3, 0);
  key = all.select(-3, 1);
  value = all.select(-3, 2);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const MaybeTensor& maybe_bias, const Tensor& out, const MaybeTensor& cu_seqlens_q,
    const MaybeTensor& cu_seqlens_k, int64_t max_seqlen_q, int64_t max_seqlen_k,
    const Tensor& logsumexp, double dropout_p, const Tensor& philox_seed,
    const Tensor& philox_offset, int64_t custom_mask_type, bool bias_requires_grad,
    std::optional<double> scale, MaybeSize num_splits_key, MaybeSize window_size,
    bool shared_storage_dqdkdv) {
  if (!grad_out.defined()) {
    return {};
  }
  const auto bias = if_defined(maybe_bias);
  auto options = efficient_options(query, bias, dropout_p, custom_mask_type, scale, window_size);
  set_seed_and_offset(options, philox_seed, philox_offset);
  options.cu_seqlens_q = if_defined(cu_seqlens_q);
  options.cu_seqlens_k = if_defined(cu_seqlens_k);
  options.max_seqlen_q = max_seqlen_q;
  options.max_seqlen_k = max_seqlen_k;
  const bool is_packed = options.cu_seqlens_q.has_value();
  Tensor lse;
  if (is_packed) {
    check_has_no_bias("_efficient_attention_backward", bias);
    lse = packed(logsumexp, *cu_seqlens_q, query.size(1));
  } else {
    lse = logsumexp.narrow(2, 0, query.size(1)).contiguous();
  }
  const auto turn = [&](const Tensor& x) { return is_packed ? x.squeeze(0) : swap_heads(x); };
  const auto back = [&](const Tensor& x) { return is_packed ? x.unsqueeze(0) : swap_heads(x); };
  const bool wants_bias = bias && bias_requires_grad;
  const auto gradients = metalops::attention_backward(
      turn(grad_out), std::nullopt, turn(query), turn(key), turn(value), turn(out), lse, options,
      {true, true, true, wants_bias, false, false});
  auto of_query = in_layout_of(back(std::get<0>(gradients)), query);
  auto of_key = in_layout_of(back(std::get<1>(gradients)), key);
  auto of_value = in_layout_of(back(std::get<2>(gradients)), value);
  if (shared_storage_dqdkdv) {
    share_storage(of_query, of_key, of_value);
  }
  return {of_query, of_key, of_value, aligned_bias(std::get<3>(gradients))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> scaled_dot_product_efficient_attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& attn_bias,
    bool compute_log_sumexp, double dropout_p, bool is_causal, std::optional<double> scale) {
  const auto type = is_causal ? MaskType::kTopLeft : MaskType::kNone;
  const auto [out, lse, seed, offset, max_q, max_k] = efficient_attention_forward(
      swap_heads(query), swap_heads(key), swap_heads(value), attn_bias, std::nullopt, std::nullopt,
      std::nullopt, std::nullopt, dropout_p, static_cast<int64_t>(type), compute_log_sumexp, scale,
      std::nullopt, std::nullopt);
  return {swap_heads(out), lse, seed, offset};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> scaled_dot_product_efficient_attention_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& attn_bias, const Tensor& out, const Tensor& logsumexp, const Tensor& philox_seed,
    const Tensor& philox_offset, double dropout_p, std::array<bool, 4> grad_input_mask,
    bool is_causal, std::optional<double> scale) {
  if (!grad_out.defined()) {
    return {};
  }
  const auto type = is_causal ? MaskType::kTopLeft : MaskType::kNone;
  auto options = efficient_options(query, if_defined(attn_bias), dropout_p,
                                   static_cast<int64_t>(type), scale, std::nullopt);
  set_seed_and_offset(options, philox_seed, philox_offset);
  options.max_seqlen_q = query.size(2);
  options.max_seqlen_k = key.size(2);
  const auto [q, k, v, bias] = grad_input_mask;
  const auto gradients =
      metalops::attention_backward(grad_out, std::nullopt, query, key, value, out,
                                   logsumexp.narrow(2, 0, query.size(2)).contiguous(), options,
                                   {q, k, v, bias && attn_bias.defined(), false, false});
  return {rows_before_heads(std::get<0>(gradients)), rows_before_heads(std::get<1>(gradients)),
          rows_before_heads(std::get<2>(gradients)), aligned_bias(std::get<3>(gradients))};
}

// ---- devices with a fused attention of their own ------------------------------------------------

// Returns a view with dimensions of size 1 in front.
Tensor four_dimensional(Tensor tensor) {
  while (tensor.defined() && tensor.dim() < 4) {
    tensor = tensor.unsqueeze(0);
  }
  return tensor;
}

AttentionOptions overrideable_options(const Tensor& query, const Tensor& key,
                                      const MaybeTensor& attn_bias, double dropout_p,
                                      bool is_causal, std::optional<double> scale) {
  TORCH_CHECK(query.dim() == 3 || query.dim() == 4,
              "_scaled_dot_product_fused_attention_overrideable: query must have 3 or 4 "
              "dimensions, but has sizes ",
              query.sizes());
  AttentionOptions options;
  if (attn_bias) {
    options.attn_mask = four_dimensional(*attn_bias);
  }
  options.scale = scale_of(query, scale);
  options.window_right = is_causal ? 0 : -1;
  options.dropout_p = dropout_p;
  options.max_seqlen_q = query.size(-2);
  options.max_seqlen_k = key.size(-2);
  return options;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor>
fused_attention_overrideable(const Tensor& query, const Tensor& key, const Tensor& value,
                             const MaybeTensor& attn_bias, double dropout_p, bool is_causal,
                             bool return_debug_mask, std::optional<double> scale) {
  check_has_no_debug_mask("_scaled_dot_product_fused_attention_overrideable", return_debug_mask);
  auto options = overrideable_options(query, key, attn_bias, dropout_p, is_causal, scale);
  draw(query, options);
  const auto [out, lse] = metalops::attention_forward(
      four_dimensional(query), four_dimensional(key), four_dimensional(value), options);
  const auto [seed, offset] = seed_and_offset(query, options);
  return {query.dim() == 3 ? out.squeeze(0) : out,
          lse,
          Tensor(),
          Tensor(),
          query.size(-2),
          key.size(-2),
          seed,
          offset,
          Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> fused_attention_overrideable_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& attn_bias, std::array<bool, 4> grad_input_mask, const Tensor& out,
    const Tensor& logsumexp, const Tensor& cum_seq_q, const Tensor& cum_seq_k, int64_t max_q,
    int64_t max_k, double dropout_p, bool is_causal, const Tensor& philox_seed,
    const Tensor& philox_offset, std::optional<double> scale) {
  if (!grad_out.defined()) {
    return {};
  }
  auto options =
      overrideable_options(query, key, if_defined(attn_bias), dropout_p, is_causal, scale);
  set_seed_and_offset(options, philox_seed, philox_offset);
  const auto [q, k, v, bias] = grad_input_mask;
  const auto gradients = metalops::attention_backward(
      four_dimensional(grad_out), std::nullopt, four_dimensional(query), four_dimensional(key),
      four_dimensional(value), four_dimensional(out), logsumexp, options,
      {q, k, v, bias && attn_bias.defined(), false, false});
  const auto as = [](const Tensor& gradient, const Tensor& like) {
    return gradient.defined() ? in_layout_of(gradient.view(like.sizes()), like) : gradient;
  };
  return {as(std::get<0>(gradients), query), as(std::get<1>(gradients), key),
          as(std::get<2>(gradients), value), as(std::get<3>(gradients), attn_bias)};
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_flash_attention_forward", flash_attention_forward);
  m.impl("_flash_attention_forward_no_dropout_inplace", flash_attention_forward_no_dropout_inplace);
  m.impl("_flash_attention_backward", flash_attention_backward);
  m.impl("_scaled_dot_product_flash_attention", scaled_dot_product_flash_attention);
  m.impl("_scaled_dot_product_flash_attention_backward",
         scaled_dot_product_flash_attention_backward);
  m.impl("_efficient_attention_forward", efficient_attention_forward);
  m.impl("_efficient_attention_backward", efficient_attention_backward);
  m.impl("_scaled_dot_product_efficient_attention", scaled_dot_product_efficient_attention);
  m.impl("_scaled_dot_product_efficient_attention_backward",
         scaled_dot_product_efficient_attention_backward);
  m.impl("_scaled_dot_product_fused_attention_overrideable", fused_attention_overrideable);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward",
         fused_attention_overrideable_backward);
}

}  // namespace
