// The C interface of the plan functions: what python/metalops/ops/_cuda/plan.py loads.
#include <csrc/plans/arguments.h>
#include <csrc/plans/attention/attention.h>
#include <csrc/plans/attention/attention_arguments.h>
#include <csrc/plans/attention/attention_cache.h>
#include <csrc/plans/attention/attention_decode.h>
#include <csrc/plans/entry.h>
#include <csrc/plans/linalg/cholesky.h>
#include <csrc/plans/linalg/eig.h>
#include <csrc/plans/linalg/eig_large.h>
#include <csrc/plans/linalg/eigh.h>
#include <csrc/plans/linalg/lu.h>
#include <csrc/plans/linalg/qr.h>
#include <csrc/plans/linalg/svd.h>
#include <csrc/plans/plan.h>
#include <csrc/plans/quantized/gguf.h>
#include <csrc/plans/quantized/quantized.h>
#include <csrc/plans/quantized/quantized_arguments.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace metalops::plans {
namespace {

#define METALOPS_ATTENTION_INPUTS                                                                  \
  inputs.query, inputs.key, inputs.value, inputs.attn_mask, inputs.sinks, inputs.alibi_slopes,     \
      inputs.cu_seqlens_q, inputs.cu_seqlens_k, inputs.seqused_k, inputs.rng, inputs.max_seqlen_q, \
      inputs.max_seqlen_k, inputs.scale, inputs.window_left, inputs.window_right,                  \
      inputs.bottom_right, inputs.softcap, inputs.dropout_p

#define METALOPS_QUANTIZED_WEIGHTS(weights)                                          \
  weights.codes, weights.scales, weights.biases, weights.global_scale, weights.bits, \
      weights.group_size, weights.mode

#define METALOPS_ATTENTION_ARGUMENTS(inputs)                                                   \
  inputs query, inputs key, inputs value, inputs attn_mask, inputs sinks, inputs alibi_slopes, \
      inputs cu_seqlens_q, inputs cu_seqlens_k, inputs seqused_k, inputs rng, inputs scale,    \
      inputs softcap, inputs dropout_p

#define METALOPS_WEIGHT_ARGUMENTS                                                     \
  weights.packed, weights.scales, weights.biases, weights.global_scale, weights.bits, \
      weights.group_size, weights.mode

#define METALOPS_MERGED_PARTS(parts) parts out_a, parts lse_a, parts out_b, parts lse_b

#define METALOPS_EIG_LARGE_STATE \
  state.h, state.scales, state.exponents, state.sweeps, state.transformations, state.shifts, state.q

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all{
      METALOPS_PLAN_ENTRY(attention_forward, AttentionForward, out, lse, k_scale,
                          METALOPS_ATTENTION_INPUTS),
      METALOPS_PLAN_ENTRY(attention_backward, AttentionBackward, grad_query, grad_key, grad_value,
                          grad_mask, grad_sinks, grad_slopes, grad_out, grad_lse, out, lse,
                          METALOPS_ATTENTION_INPUTS),
      METALOPS_PLAN_ENTRY(attention_cache_store_at_slots, AttentionCacheStoreAtSlots, cache, tokens,
                          slots, scale, number),
      METALOPS_PLAN_ENTRY(attention_cache_store_behind, AttentionCacheStoreBehind, cache, tokens,
                          lengths, table, cosines, sines, interleaved),
      METALOPS_PLAN_ENTRY(attention_cache_rotate, AttentionCacheRotate, result, tokens, lengths,
                          cosines, sines, interleaved, advances),
      METALOPS_PLAN_ENTRY(attention_cache_gather, AttentionCacheGather, tokens, cache, lengths,
                          table, scale, number),
      METALOPS_PLAN_ENTRY(attention_decode, AttentionDecode, out, lse, query, key, value, mask,
                          sinks, slopes, lengths, starts, table, key_scale, value_scale, scale,
                          value_factor, softcap, window_left, window_right, bottom_right),
      METALOPS_PLAN_ENTRY(attention_decode_merge, AttentionDecodeMerge, out, lse, out_a, lse_a,
                          out_b, lse_b),
      METALOPS_PLAN_ENTRY(attention_decode_merge_backward, AttentionDecodeMergeBackward, grad_out_a,
                          grad_lse_a, grad_out_b, grad_lse_b, grad_out, grad_lse, out_a, lse_a,
                          out_b, lse_b),
      METALOPS_PLAN_ENTRY(cholesky, Cholesky, factors, infos, a, upper),
      METALOPS_PLAN_ENTRY(eig, Eig, values, vectors, infos, a),
      METALOPS_PLAN_ENTRY(eig_large_reduce, EigLargeReduce, infos, a, with_vectors),
      METALOPS_PLAN_ENTRY(eig_large_sweep, EigLargeSweep, METALOPS_EIG_LARGE_STATE, infos, windows),
      METALOPS_PLAN_ENTRY(eig_large_results, EigLargeResults, values, vectors,
                          METALOPS_EIG_LARGE_STATE),
      METALOPS_PLAN_ENTRY(eigh, Eigh, values, vectors, infos, a, is_upper),
      METALOPS_PLAN_ENTRY(lu_factor, LuFactor, factors, pivots, infos, a, is_pivoted),
      METALOPS_PLAN_ENTRY(lu_solve, LuSolve, x, factors, pivots, b, is_transposed),
      METALOPS_PLAN_ENTRY(qr, Qr, q, r, a),
      METALOPS_PLAN_ENTRY(svd, Svd, u, values, v_adjoint, infos, a),
      METALOPS_PLAN_ENTRY(gguf_dequantize, GgufDequantize, result, data, indices, qtype),
      METALOPS_PLAN_ENTRY(gguf_linear, GgufLinear, result, x, data, bias, qtype),
      METALOPS_PLAN_ENTRY(quantized_dequantize, QuantizedDequantize, result,
                          METALOPS_QUANTIZED_WEIGHTS(weights), indices),
      METALOPS_PLAN_ENTRY(quantized_matmul, QuantizedMatmul, result, x,
                          METALOPS_QUANTIZED_WEIGHTS(weights), bias, left_index, right_index,
                          transpose),
      METALOPS_PLAN_ENTRY(quantized_quantize, QuantizedQuantize,
                          METALOPS_QUANTIZED_WEIGHTS(results), weight),
      METALOPS_PLAN_ENTRY(check_append_to_cache, AppendToCacheArguments, cache, tokens, seq_lens,
                          block_table, rotary_cos, rotary_sin),
      METALOPS_PLAN_ENTRY(check_attention_backward, AttentionBackwardArguments, grad_out, grad_lse,
                          out, lse, METALOPS_ATTENTION_ARGUMENTS(inputs.), output_mask),
      METALOPS_PLAN_ENTRY(check_attention_forward, AttentionForwardArguments,
                          METALOPS_ATTENTION_ARGUMENTS()),
      METALOPS_PLAN_ENTRY(check_dequantize, DequantizeArguments, METALOPS_WEIGHT_ARGUMENTS, indices,
                          dtype),
      METALOPS_PLAN_ENTRY(check_gguf_dequantize, GgufDequantizeArguments, data, indices, qtype,
                          dtype),
      METALOPS_PLAN_ENTRY(check_gguf_linear, GgufLinearArguments, x, data, bias, qtype),
      METALOPS_PLAN_ENTRY(check_merge_attention, MergeAttentionArguments, METALOPS_MERGED_PARTS()),
      METALOPS_PLAN_ENTRY(check_merge_attention_backward, MergeAttentionBackwardArguments, grad_out,
                          grad_lse, METALOPS_MERGED_PARTS(parts.)),
      METALOPS_PLAN_ENTRY(check_paged_attention, PagedAttentionArguments, query, key_cache,
                          value_cache, block_table, seq_lens, seq_starts, sinks, alibi_slopes,
                          k_scale, v_scale, scale, softcap),
      METALOPS_PLAN_ENTRY(check_quantize, QuantizeArguments, weight, global_scale, bits, group_size,
                          mode),
      METALOPS_PLAN_ENTRY(check_quantized_matmul, QuantizedMatmulArguments, x,
                          METALOPS_WEIGHT_ARGUMENTS, bias, left_index, right_index, transpose),
      METALOPS_PLAN_ENTRY(check_quantized_scales_gradient, QuantizedScalesGradientArguments, grad,
                          packed, scales, bits, group_size, mode),
      METALOPS_PLAN_ENTRY(check_reshape_and_cache, ReshapeAndCacheArguments, key, value, key_cache,
                          value_cache, slot_mapping, k_scale, v_scale),
      METALOPS_PLAN_ENTRY(check_rotate_tokens, RotateTokensArguments, tokens, seq_lens, rotary_cos,
                          rotary_sin),
  };
  return all;
}

// A plan as callers read it.
struct Result {
  Plan plan;
  std::vector<const Step*> steps;
  std::vector<std::string> names;  // of the steps' kernels
};

thread_local std::string error;
thread_local int32_t error_kind;

// Returns the number of an error's exception: an ErrorKind, or -1 for TooLarge.
int32_t kind_of(const std::exception& problem) {
  if (dynamic_cast<const TooLarge*>(&problem) != nullptr) {
    return -1;
  }
  const auto* wrong = dynamic_cast<const ArgumentError*>(&problem);
  return static_cast<int32_t>(wrong != nullptr ? wrong->kind() : ErrorKind::kRuntimeError);
}

}  // namespace
}  // namespace metalops::plans

using metalops::plans::Device;
using metalops::plans::Entry;
using metalops::plans::Result;

#define METALOPS_C_INTERFACE extern "C" __attribute__((visibility("default")))

METALOPS_C_INTERFACE const Entry* metalops_plan_entries(int64_t* count) {
  const auto& all = metalops::plans::entries();
  *count = static_cast<int64_t>(all.size());
  return all.data();
}

// Returns the sizes of the structs that callers read: View, Argument, Step, Buffer, Device.
METALOPS_C_INTERFACE const int64_t* metalops_plan_sizes() {
  using namespace metalops::plans;
  static const int64_t sizes[] = {sizeof(View), sizeof(Argument), sizeof(Step), sizeof(Buffer),
                                  sizeof(Device)};
  return sizes;
}

// Returns the plan of a call, or null if it raised an error, which metalops_plan_error() tells.
// given: the number of the call's tensors, whose views have the buffers 0, 1, 2 and so on.
METALOPS_C_INTERFACE Result* metalops_plan_make(const Entry* entry, const void* call, int64_t given,
                                                const Device* device) {
  try {
    auto result = std::make_unique<Result>();
    for (int64_t i = 0; i < given; ++i) {
      result->plan.add_given();
    }
    entry->add_steps(result->plan, call, *device);
    for (const auto& step : result->plan.steps()) {
      result->steps.push_back(&step);
      result->names.push_back(step.name.text());
    }
    return result.release();
  } catch (const std::exception& problem) {
    metalops::plans::error = problem.what();
    metalops::plans::error_kind = metalops::plans::kind_of(problem);
    return nullptr;
  }
}

// Returns the kind of this thread's last error.
METALOPS_C_INTERFACE int32_t metalops_plan_error_kind() { return metalops::plans::error_kind; }

METALOPS_C_INTERFACE const char* metalops_plan_error() { return metalops::plans::error.c_str(); }

METALOPS_C_INTERFACE void metalops_plan_free(Result* result) { delete result; }

METALOPS_C_INTERFACE int64_t metalops_plan_steps_count(const Result* result) {
  return static_cast<int64_t>(result->steps.size());
}
METALOPS_C_INTERFACE const metalops::plans::Step* metalops_plan_step(const Result* result,
                                                                     int64_t number) {
  return result->steps[number];
}
METALOPS_C_INTERFACE const char* metalops_plan_kernel(const Result* result, int64_t number) {
  return result->names[number].c_str();
}
METALOPS_C_INTERFACE int64_t metalops_plan_buffers_count(const Result* result) {
  return static_cast<int64_t>(result->plan.buffers().size());
}
METALOPS_C_INTERFACE const metalops::plans::Buffer* metalops_plan_buffers(const Result* result) {
  return result->plan.buffers().data();
}
METALOPS_C_INTERFACE int64_t metalops_plan_results_count(const Result* result) {
  return static_cast<int64_t>(result->plan.results().size());
}
METALOPS_C_INTERFACE const metalops::plans::View* metalops_plan_results(const Result* result) {
  return result->plan.results().data();
}
