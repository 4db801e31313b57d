#include <csrc/plans/attention/attention_arguments.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

namespace metalops::plans {

namespace {

constexpr int64_t kMostFeatures = 256;

bool is_index(Type type) { return type == Type::kInt || type == Type::kLong; }

// Returns true if a cache of this dtype is quantised and therefore has a scale.
bool is_cache_code(Type type) {
  return type == Type::kChar || type == Type::kFloat8E4m3 || type == Type::kFloat8E5m2;
}

// Checks numbers that kernels take in float32.
void check_scores(const char* name, double scale, double softcap) {
  constexpr double kMost = std::numeric_limits<float>::max();
  check_value(std::abs(scale) <= kMost, name, ": scale must be a finite number of float32, but is ",
              scale);
  check_value(softcap >= 0 && softcap <= kMost, name,
              ": softcap must be a finite number of float32 that is not negative, but is ",
              softcap);
}

// ---- attention_forward and attention_backward ---------------------------------------------------

constexpr const char* kAttentionName = "attention";

void check_shape(bool holds, const char* argument, const Operand& x, const char* expected) {
  check(holds, kAttentionName, ": ", argument, " must have sizes ", expected, ", but has ",
        x.sizes());
}

void check_integers(const char* argument, const Operand& x, int64_t count, const char* expected) {
  check(x.type == Type::kInt, kAttentionName, ": ", argument, " must have dtype int32, but has ",
        x.type);
  check_shape(x.has_sizes({count}), argument, x, expected);
}

// The sizes of scores; packed sequences have the tokens of all as queries and keys.
struct ScoreSizes {
  int64_t batch, heads, queries, keys;
};

ScoreSizes check_tokens(const AttentionForwardArguments& given) {
  const auto& [query, key, value, mask, sinks, slopes, begins, key_begins, used, rng, scale,
               softcap, dropout] = given;
  check_metal_float(kAttentionName, query.type);
  for (const auto& [x, name] : {std::pair{key, "key"}, std::pair{value, "value"}}) {
    check(x.type == query.type, kAttentionName, ": ", name, " must have the dtype of query, ",
          query.type, ", but has ", x.type);
  }
  const bool is_packed = static_cast<bool>(begins);
  check(is_packed == static_cast<bool>(key_begins), kAttentionName,
        ": cu_seqlens_q and cu_seqlens_k must be given together");
  const int32_t rank = is_packed ? 3 : 4;
  for (const auto& [x, name] :
       {std::pair{query, "query"}, std::pair{key, "key"}, std::pair{value, "value"}}) {
    check(x.dims == rank, kAttentionName, ": ", name, " must have ", rank,
          " dimensions, but has sizes ", x.sizes());
  }
  const bool has_keys_of_value =
      std::ranges::equal(key.sizes().first(rank - 1), value.sizes().first(rank - 1));
  if (!is_packed) {
    check_shape(key.size(0) == query.size(0), "key", key,
                "(batch, heads, keys, features) with the batch of query");
    check_shape(has_keys_of_value, "value", value,
                "(batch, heads, keys, features) with the first three of key");
    return {query.size(0), query.size(1), query.size(2), key.size(2)};
  }
  check_shape(has_keys_of_value, "value", value,
              "(tokens, heads, features) with the tokens and heads of key");
  const auto batch = std::max<int64_t>(begins.numel() - 1, 0);
  check_integers("cu_seqlens_q", begins, batch + 1, "(sequences + 1,)");
  check_integers("cu_seqlens_k", key_begins, batch + 1, "(sequences + 1,)");
  check(!mask, kAttentionName, ": packed sequences take no attn_mask");
  return {batch, query.size(1), query.size(0), key.size(0)};
}

void check_heads(const Operand& query, const Operand& key, const Operand& value) {
  const auto features = query.size(-1);
  check(key.size(-1) == features, kAttentionName, ": key must have the features of query, ",
        features, ", but has sizes ", key.sizes());
  check(features <= kMostFeatures && value.size(-1) <= kMostFeatures, kAttentionName,
        ": heads must have at most ", kMostFeatures, " features, but query has ", features,
        " and value has ", value.size(-1));
  const auto heads = query.size(1);
  const auto key_heads = key.size(1);
  check(key_heads > 0 ? heads % key_heads == 0 : heads == 0, kAttentionName,
        ": the heads of query must be a multiple of those of key, ", key_heads, ", but are ",
        heads);
}

void check_mask(const Operand& mask, Type query, const ScoreSizes& sizes) {
  const std::array full{sizes.batch, sizes.heads, sizes.queries, sizes.keys};
  bool fits = mask.dims == 4;
  for (int32_t dim = 0; fits && dim < 4; ++dim) {
    fits = mask.size(dim) == 1 || mask.size(dim) == full[dim];
  }
  check(fits, kAttentionName, ": attn_mask must have four dimensions that are 1 or those of ", full,
        ", but has sizes ", mask.sizes());
  check(mask.type == Type::kBool || mask.type == Type::kFloat || mask.type == query,
        "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
        "attn_mask.dtype: ",
        mask.type, " and  query.dtype: ", query, " instead.");
}

ScoreSizes check_attention(const AttentionForwardArguments& given) {
  const auto sizes = check_tokens(given);
  const auto type = given.query.type;
  check_heads(given.query, given.key, given.value);
  if (given.attn_mask) {
    check_mask(given.attn_mask, type, sizes);
  }
  if (const auto& sinks = given.sinks) {
    check(sinks.type == Type::kFloat || sinks.type == type, kAttentionName,
          ": sinks must have dtype Float or ", type, ", but has ", sinks.type);
    check_shape(sinks.has_sizes({sizes.heads}), "sinks", sinks, "(heads of query,)");
  }
  if (const auto& slopes = given.alibi_slopes) {
    check(slopes.type == Type::kFloat, kAttentionName,
          ": alibi_slopes must have dtype Float, but has ", slopes.type);
    check_shape(slopes.has_sizes({sizes.heads}) || slopes.has_sizes({sizes.batch, sizes.heads}),
                "alibi_slopes", slopes, "(heads of query,) or (batch, heads of query)");
  }
  if (given.seqused_k) {
    check_integers("seqused_k", given.seqused_k, sizes.batch, "(batch,)");
  }
  check_value(given.dropout_p >= 0 && given.dropout_p <= 1, kAttentionName,
              ": dropout_p must be between 0 and 1, but is ", given.dropout_p);
  check_scores(kAttentionName, given.scale, given.softcap);
  if (given.dropout_p > 0) {
    const auto& rng = given.rng;
    check(static_cast<bool>(rng), kAttentionName, ": dropout needs rng");
    check(rng.type == Type::kLong && rng.has_sizes({2}), kAttentionName,
          ": rng must be two numbers of int64, but has dtype ", rng.type, " and sizes ",
          rng.sizes());
  }
  return sizes;
}

// ---- caches -------------------------------------------------------------------------------------

void check_cache_dtype(const char* name, const char* argument, const Operand& cache,
                       const char* tokens, Type type) {
  check(cache.type == type || is_cache_code(cache.type), name, ": ", argument,
        " must have the dtype of ", tokens, ", ", type,
        ", or int8, float8_e4m3fn or float8_e5m2, but has ", cache.type);
}

void check_cache_scale(const char* name, const char* argument, const Operand& scale) {
  check(!scale || (scale.numel() == 1 && scale.type == Type::kFloat), name, ": ", argument,
        " must be one float32, but is ", scale.type, " of sizes ", scale.sizes());
}

// Checks the lengths of sequences, and what rotates tokens behind them.
void check_rotation(const char* name, const Operand& tokens, const Operand& lengths,
                    const Operand& cosines, const Operand& sines) {
  check(is_index(lengths.type), name, ": seq_lens must be integers, but are ", lengths.type);
  check(static_cast<bool>(cosines) == static_cast<bool>(sines), name,
        ": rotary_cos and rotary_sin must be given together");
  if (!cosines) {
    return;
  }
  check(cosines.dims == 2 && cosines.has_sizes(sines.sizes()) &&
            2 * cosines.size(1) <= tokens.size(3),
        name, ": rotary_cos and rotary_sin must have sizes (places, at most ", tokens.size(3) / 2,
        "), but have ", cosines.sizes(), " and ", sines.sizes());
  check(cosines.type == tokens.type && sines.type == tokens.type, name,
        ": rotary_cos and rotary_sin must have dtype ", tokens.type, ", but have ", cosines.type,
        " and ", sines.type);
}

// ---- paged_attention and merge_attention --------------------------------------------------------

constexpr const char* kPaged = "paged_attention";

void check_caches(const Operand& query, const Operand& key, const Operand& value) {
  check_metal_float(kPaged, query.type);
  check(query.dims == 4 && key.dims == 4 && value.dims == 4, kPaged,
        ": query, key_cache and value_cache must have 4 dimensions, but have sizes ", query.sizes(),
        ", ", key.sizes(), " and ", value.sizes());
  check_cache_dtype(kPaged, "key_cache", key, "query", query.type);
  check(value.type == key.type, kPaged, ": value_cache must have the dtype of key_cache, ",
        key.type, ", but has ", value.type);
  check(std::ranges::equal(key.sizes().first(3), value.sizes().first(3)), kPaged,
        ": key_cache and value_cache must have the same pages, tokens and heads, but have sizes ",
        key.sizes(), " and ", value.sizes());
  check(key.size(3) == query.size(3), kPaged, ": key_cache must have as many features as query, ",
        query.size(3), ", but has sizes ", key.sizes());
  check(query.size(3) <= kMostFeatures && value.size(3) <= kMostFeatures && value.size(3) > 0,
        kPaged, ": heads have at most ", kMostFeatures,
        " features and values at least one, but query and value_cache have sizes ", query.sizes(),
        " and ", value.sizes());
  check(key.size(2) > 0 && query.size(2) % key.size(2) == 0, kPaged,
        ": query must have a multiple of the heads of key_cache, ", key.size(2), ", but has sizes ",
        query.sizes());
}

void check_parts(const char* name, const MergeAttentionArguments& parts) {
  const auto& [out_a, lse_a, out_b, lse_b] = parts;
  check_metal_float(name, out_a.type);
  check(out_a.dims > 0 && out_a.has_sizes(out_b.sizes()) && out_a.type == out_b.type, name,
        ": out_a and out_b must have the same sizes and dtype, but have ", out_a.sizes(), " of ",
        out_a.type, " and ", out_b.sizes(), " of ", out_b.type);
  const auto rows = out_a.sizes().first(out_a.dims - 1);
  check(lse_a.has_sizes(rows) && lse_b.has_sizes(rows) && lse_a.type == Type::kFloat &&
            lse_b.type == Type::kFloat,
        name, ": lse_a and lse_b must be float32 of sizes ", rows, ", but are ", lse_a.type,
        " of sizes ", lse_a.sizes(), " and ", lse_b.type, " of sizes ", lse_b.sizes());
}

}  // namespace

void check_attention_forward(const AttentionForwardArguments& arguments) {
  check_attention(arguments);
}

void check_attention_backward(const AttentionBackwardArguments& arguments) {
  const auto& [grad_out, grad_lse, out, lse, inputs, wanted] = arguments;
  const auto sizes = check_attention(inputs);
  check_metal_float(kAttentionName, grad_out.type);
  check_metal_float(kAttentionName, grad_lse ? grad_lse.type : Type::kFloat);
  const auto& query = inputs.query;
  std::vector<int64_t> of_out(query.sizes().begin(), query.sizes().end());
  of_out.back() = inputs.value.size(-1);
  check(out.has_sizes(of_out) && out.type == query.type, kAttentionName, ": out must be ",
        query.type, " of sizes ", of_out, ", but is ", out.type, " of sizes ", out.sizes());
  check(grad_out.has_sizes(of_out), kAttentionName, ": grad_out must have the sizes of out, ",
        of_out, ", but has ", grad_out.sizes());
  std::vector<int64_t> rows{sizes.heads, sizes.queries};
  if (!inputs.cu_seqlens_q) {
    rows.insert(rows.begin(), sizes.batch);
  }
  check(lse.has_sizes(rows) && lse.type == Type::kFloat, kAttentionName,
        ": lse must be Float of sizes ", rows, ", but is ", lse.type, " of sizes ", lse.sizes());
  check(!grad_lse || grad_lse.has_sizes(rows), kAttentionName,
        ": grad_lse must have the sizes of lse, ", rows, ", but has ", grad_lse.sizes());
  check(!wanted[3] || inputs.attn_mask.type != Type::kBool, kAttentionName,
        ": a mask of bool has no gradient");
}

void check_paged_attention(const PagedAttentionArguments& arguments) {
  const auto& [query, key, value, table, lengths, starts, sinks, slopes, k_scale, v_scale, scale,
               softcap] = arguments;
  check_caches(query, key, value);
  const auto batch = query.size(0);
  const auto heads = query.size(2);
  check(lengths.has_sizes({batch}) && is_index(lengths.type), kPaged,
        ": seq_lens must be integers of sizes [", batch, "], but are ", lengths.type, " of sizes ",
        lengths.sizes());
  check(!table || (table.dims == 2 && table.size(0) == batch && table.type == Type::kInt), kPaged,
        ": block_table must be int32 of sizes [", batch, ", pages], but is ", table.type,
        " of sizes ", table.sizes());
  check(table || key.size(0) == batch, kPaged, ": key_cache must have as many samples as query, ",
        batch, ", but has sizes ", key.sizes());
  check(!starts || (starts.has_sizes({batch}) && is_index(starts.type)), kPaged,
        ": seq_starts must be integers of sizes [", batch, "], but are ", starts.type, " of sizes ",
        starts.sizes());
  check(!sinks ||
            (sinks.has_sizes({heads}) && (sinks.type == Type::kFloat || sinks.type == query.type)),
        kPaged, ": sinks must be Float or ", query.type, " of sizes [", heads, "], but are ",
        sinks.type, " of sizes ", sinks.sizes());
  check(!slopes || (slopes.type == Type::kFloat &&
                    (slopes.has_sizes({heads}) || slopes.has_sizes({batch, heads}))),
        kPaged, ": alibi_slopes must be Float of sizes [", heads, "] or [", batch, ", ", heads,
        "], but are ", slopes.type, " of sizes ", slopes.sizes());
  check_cache_scale(kPaged, "k_scale", k_scale);
  check_cache_scale(kPaged, "v_scale", v_scale);
  check_scores(kPaged, scale, softcap);
}

void check_reshape_and_cache(const ReshapeAndCacheArguments& arguments) {
  constexpr const char* kName = "reshape_and_cache";
  const auto& [key, value, key_cache, value_cache, slots, k_scale, v_scale] = arguments;
  check(slots.dims == 1 && is_index(slots.type), kName,
        ": slot_mapping must be integers of one dimension, but is ", slots.type, " of sizes ",
        slots.sizes());
  const auto count = slots.size(0);
  const auto check_one = [&](const char* name, const Operand& tokens, const char* cache_name,
                             const Operand& cache, const char* scale_name, const Operand& scale) {
    check_metal_float(kName, tokens.type);
    check_cache_dtype(kName, cache_name, cache, "the tokens", tokens.type);
    check(tokens.dims == 3 && tokens.size(0) == count, kName, ": ", name, " must have sizes (",
          count, ", heads, features), but has ", tokens.sizes());
    check(cache.dims == 4 && std::ranges::equal(cache.sizes().last(2), tokens.sizes().last(2)),
          kName, ": ", cache_name, " must have sizes (pages, page size, ", tokens.size(1), ", ",
          tokens.size(2), "), but has ", cache.sizes());
    check_cache_scale(kName, scale_name, scale);
  };
  check_one("key", key, "key_cache", key_cache, "k_scale", k_scale);
  check_one("value", value, "value_cache", value_cache, "v_scale", v_scale);
}

void check_append_to_cache(const AppendToCacheArguments& arguments) {
  constexpr const char* kName = "append_to_cache";
  const auto& [cache, tokens, lengths, table, cosines, sines] = arguments;
  check_metal_float(kName, tokens.type);
  check_cache_dtype(kName, "cache", cache, "the tokens", tokens.type);
  check(tokens.dims == 4 && cache.dims == 4 &&
            std::ranges::equal(cache.sizes().last(2), tokens.sizes().last(2)),
        kName,
        ": tokens (B, L, heads, features) and cache must have the same heads and features, but "
        "have sizes ",
        tokens.sizes(), " and ", cache.sizes());
  const auto batch = tokens.size(0);
  check(lengths.has_sizes({batch}), kName, ": seq_lens must have sizes [", batch, "], but has ",
        lengths.sizes());
  check(table ? table.dims == 2 && table.size(0) == batch && table.type == Type::kInt
              : cache.size(0) == batch,
        kName, ": block_table must be int32 of sizes [", batch,
        ", pages], or cache have as many samples");
  check_rotation(kName, tokens, lengths, cosines, sines);
}

void check_rotate_tokens(const RotateTokensArguments& arguments) {
  constexpr const char* kName = "rotate_tokens";
  const auto& [tokens, lengths, cosines, sines] = arguments;
  check_metal_float(kName, tokens.type);
  check(tokens.dims == 4 && lengths.has_sizes({tokens.size(0)}), kName,
        ": tokens must have 4 dimensions and seq_lens as many elements as samples, but they have "
        "sizes ",
        tokens.sizes(), " and ", lengths.sizes());
  check_rotation(kName, tokens, lengths, cosines, sines);
}

void check_merge_attention(const MergeAttentionArguments& arguments) {
  check_parts("merge_attention", arguments);
}

void check_merge_attention_backward(const MergeAttentionBackwardArguments& arguments) {
  constexpr const char* kName = "merge_attention_backward";
  const auto& [grad_out, grad_lse, parts] = arguments;
  check_parts(kName, parts);
  for (const auto& [name, grad, of] : {std::tuple{"grad_out", grad_out, parts.out_a},
                                       std::tuple{"grad_lse", grad_lse, parts.lse_a}}) {
    check(grad.has_sizes(of.sizes()) && grad.type == of.type, kName, ": ", name, " must be ",
          of.type, " of sizes ", of.sizes(), ", but is ", grad.type, " of sizes ", grad.sizes());
  }
}

}  // namespace metalops::plans
