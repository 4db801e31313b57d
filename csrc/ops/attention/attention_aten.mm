// torch.nn.functional.scaled_dot_product_attention on MPS: one function decides for each call
// whether metalops::attention_forward serves it or torch's composition. It makes views only: no
// mask, head or batch is repeated in memory. The derivatives are those of metalops's operator.
#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/attention/attention_aten.h>
#include <csrc/ops/attention/attention_random.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <optional>
#include <tuple>

namespace metalops {
namespace {

std::atomic<AttentionUse> attention_use{AttentionUse::kAlways};

// Returns true if torch.nn.attention.sdpa_kernel allows SDPBackend.MATH only.
bool only_math_is_enabled() {
  const auto& context = at::globalContext();
  return context.userEnabledMathSDP() && !context.userEnabledFlashSDP() &&
         !context.userEnabledMemEfficientSDP() && !context.userEnabledCuDNNSDP() &&
         !context.userEnabledOverrideableSDP();
}

}  // namespace

AttentionUse set_attention_use(AttentionUse use) { return attention_use.exchange(use); }

bool may_serve_attention() {
  return attention_use.load() != AttentionUse::kNever && !only_math_is_enabled();
}

}  // namespace metalops

namespace {

using at::Tensor;
using c10::SymDimVector;
using c10::SymInt;
using metalops::MaybeTensor;

constexpr int64_t kLargestHead = 256;

struct Call {
  const Tensor& query;
  const Tensor& key;
  const Tensor& value;
  const MaybeTensor& mask;
  double dropout;
  bool is_causal;
  std::optional<double> scale;
  bool enable_gqa;

  std::array<const Tensor*, 3> tensors() const { return {&query, &key, &value}; }
  bool has_mask() const { return mask && mask->defined(); }
};

// ---- sizes --------------------------------------------------------------------------------------

// Returns a size of an operand whose missing dimensions are 1.
SymInt size_of(const Tensor& tensor, int64_t from_the_end) {
  return from_the_end <= tensor.dim() ? tensor.sym_size(-from_the_end) : SymInt(1);
}

bool is_zero(const SymInt& size) { return TORCH_GUARD_OR_FALSE(size.sym_eq(0)); }

// The sizes to which the operands of a call are broadcast.
struct Sizes {
  int64_t rank;        // rank of the result
  SymDimVector batch;  // all dimensions before the heads; at least one
  SymInt query_heads;
  SymInt key_heads;  // divides query_heads
};

std::optional<SymInt> broadcast(const std::array<SymInt, 3>& sizes) {
  SymInt result = 1;
  for (const auto& size : sizes) {
    if (size != 1) {
      if (result != 1 && result != size) {
        return std::nullopt;
      }
      result = size;
    }
  }
  return result;
}

std::array<SymInt, 3> sizes_of(const Call& call, int64_t from_the_end) {
  return {size_of(call.query, from_the_end), size_of(call.key, from_the_end),
          size_of(call.value, from_the_end)};
}

bool find_heads(const Call& call, Sizes& sizes) {
  const auto [query, key, value] = sizes_of(call, 3);
  if (call.enable_gqa) {
    const bool have_heads = call.query.dim() > 2 && call.key.dim() > 2 && call.value.dim() > 2;
    sizes.query_heads = query;
    sizes.key_heads = key;
    return have_heads && key == value && (key == 0 ? query == 0 : query % key == 0);
  }
  const auto heads = broadcast({query, key, value});
  if (!heads) {
    return false;
  }
  sizes.query_heads = *heads;
  sizes.key_heads = key == 1 && value == 1 ? SymInt(1) : *heads;
  return true;
}

bool mask_fits(const Tensor& mask, const Call& call, const Sizes& sizes) {
  const auto fits = [&](int64_t from_the_end, const SymInt& size) {
    const auto of_mask = size_of(mask, from_the_end);
    return of_mask == 1 || of_mask == size;
  };
  if (mask.dim() > sizes.rank || !fits(1, call.key.sym_size(-2)) ||
      !fits(2, call.query.sym_size(-2)) || !fits(3, sizes.query_heads)) {
    return false;
  }
  const auto count = static_cast<int64_t>(sizes.batch.size());
  for (int64_t i = 0; i < count; ++i) {
    if (!fits(3 + count - i, sizes.batch[i])) {
      return false;
    }
  }
  return true;
}

// Returns nothing where the sizes do not match: torch raises its own error then.
std::optional<Sizes> sizes_of(const Call& call) {
  Sizes sizes;
  sizes.rank = 0;
  for (const auto* tensor : call.tensors()) {
    if (tensor->dim() < 2) {
      return std::nullopt;
    }
    sizes.rank = std::max(sizes.rank, tensor->dim());
  }
  if (call.query.sym_size(-1) != call.key.sym_size(-1) ||
      call.key.sym_size(-2) != call.value.sym_size(-2) || !find_heads(call, sizes)) {
    return std::nullopt;
  }
  for (int64_t from_the_end = std::max<int64_t>(sizes.rank, 4); from_the_end > 3; --from_the_end) {
    const auto size = broadcast(sizes_of(call, from_the_end));
    if (!size) {
      return std::nullopt;
    }
    sizes.batch.push_back(*size);
  }
  if (call.has_mask() && !mask_fits(*call.mask, call, sizes)) {
    return std::nullopt;
  }
  return sizes;
}

// ---- who serves a call --------------------------------------------------------------------------

bool is_dense(const Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_nested();
}

bool types_fit(const Call& call) {
  const auto type = call.query.scalar_type();
  if (!metalops::is_metal_float(type)) {
    return false;
  }
  for (const auto* tensor : call.tensors()) {
    if (tensor->scalar_type() != type || tensor->device() != call.query.device() ||
        !is_dense(*tensor)) {
      return false;
    }
  }
  if (!call.has_mask()) {
    return true;
  }
  const auto mask_type = call.mask->scalar_type();
  return (mask_type == at::kBool || mask_type == at::kFloat || mask_type == type) &&
         call.mask->device() == call.query.device() && is_dense(*call.mask);
}

bool needs_gradient(const Call& call) {
  return c10::GradMode::is_enabled() &&
         (call.query.requires_grad() || call.key.requires_grad() || call.value.requires_grad());
}

// Returns true if one of stock MPS's fused kernels serves the call, and correctly: these compute
// offsets in 32 bits. Calls with a mask are not left to them.
bool stock_is_fused(const Call& call) {
  const auto sizes = [](const Tensor& x) { return x.sym_sizes().slice(0, x.dim() - 2); };
  if (call.has_mask() || call.dropout > 0 || needs_gradient(call) ||
      sizes(call.query) != sizes(call.key) || sizes(call.query) != sizes(call.value) ||
      call.query.sym_size(-1) != call.value.sym_size(-1)) {
    return false;
  }
  for (const auto* tensor : call.tensors()) {
    if (tensor->dim() < 3 || tensor->sym_numel() > metalops::kInt32Max) {
      return false;
    }
  }
  const auto is_one_of = [&](std::initializer_list<int64_t> known) {
    const auto size = call.query.sym_size(-1);
    return std::any_of(known.begin(), known.end(), [&](int64_t x) { return size == x; });
  };
  const auto queries = call.query.sym_size(-2);
  return queries <= 8 ? queries <= call.key.sym_size(-2) && is_one_of({64, 96, 128, 256})
                      : is_one_of({32, 64, 72, 80, 96, 128, 256});
}

// Returns true if torch's composition, which stores the scores, is to serve a call on the software
// device. It multiplies matrices by the CPU's library: with gradients it takes a twentieth of the
// time of our kernels for heads of 8 x 8 scores and a third for 512 x 512, so that only the memory
// of the scores speaks against it. For few queries without gradients our kernels are the faster
// ones. Sizes that tracing leaves open are not small: a guard would bound them.
bool is_small(const Call& call, const Sizes& sizes) {
  constexpr int64_t kMostScores = int64_t{1} << 24;
  constexpr int64_t kFewQueries = 8;
  const auto queries = call.query.sym_size(-2);
  auto scores = sizes.query_heads * queries * call.key.sym_size(-2);
  for (const auto& size : sizes.batch) {
    scores *= size;
  }
  return TORCH_STATICALLY_KNOWN_TRUE(scores.sym_le(kMostScores)) &&
         (needs_gradient(call) || TORCH_STATICALLY_KNOWN_TRUE(queries.sym_gt(kFewQueries)));
}

bool may_be_served_by_us(const Call& call) {
  return metalops::may_serve_attention() && types_fit(call);
}

// Returns the sizes of a call that metalops serves, and nothing if torch serves it.
std::optional<Sizes> served_by_us(const Call& call) {
  const auto use = metalops::attention_use.load();
  if (!may_be_served_by_us(call) || !(call.dropout >= 0 && call.dropout <= 1)) {
    return std::nullopt;
  }
  auto sizes = sizes_of(call);
  if (!sizes || is_zero(call.query.sym_size(-1)) || call.query.sym_size(-1) > kLargestHead ||
      call.value.sym_size(-1) > kLargestHead ||
      (use == metalops::AttentionUse::kUnlessFused && stock_is_fused(call)) ||
      (use == metalops::AttentionUse::kUnlessSmall && is_small(call, *sizes))) {
    return std::nullopt;
  }
  return sizes;
}

// ---- the call -----------------------------------------------------------------------------------

using Forward = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                           const MaybeTensor&, const MaybeTensor&,
                                           const MaybeTensor&, const MaybeTensor&,
                                           const MaybeTensor&, const MaybeTensor&,
                                           const MaybeTensor&, SymInt, SymInt, double, SymInt,
                                           SymInt, bool, double, double);

// Returns the tensor as (batch, heads, rows, columns), expanded to `batch` and `heads`.
Tensor four_dimensional(const Tensor& tensor, const SymDimVector& batch, const SymInt& heads) {
  SymDimVector sizes(batch.begin(), batch.end());
  sizes.insert(sizes.end(), {heads, size_of(tensor, 2), size_of(tensor, 1)});
  const auto expanded = tensor.expand_symint(sizes);
  return batch.size() == 1 ? expanded : expanded.flatten(0, -4);
}

// Returns the mask in four dimensions. It is expanded only where the batch has several dimensions
// and the mask has some of them, but not all.
Tensor four_dimensional(const Tensor& mask, const SymDimVector& batch) {
  const auto leading = std::max<int64_t>(mask.dim() - 3, 0);
  const auto sizes = mask.sym_sizes().slice(0, leading);
  const bool is_of_all =
      std::all_of(sizes.begin(), sizes.end(), [](const SymInt& size) { return size == 1; });
  if (batch.size() > 1 && !is_of_all) {
    return four_dimensional(mask, batch, size_of(mask, 3));
  }
  SymDimVector own(batch.size(), SymInt(1));
  std::copy(sizes.begin(), sizes.end(), own.end() - leading);
  return four_dimensional(mask, own, size_of(mask, 3));
}

// Returns zeros that depend on all operands as far as autograd is concerned.
Tensor of_nothing(const Call& call, SymDimVector sizes) {
  auto result = at::zeros_symint(sizes, call.query.options());
  if (needs_gradient(call)) {
    for (const auto* tensor : call.tensors()) {
      result = result + tensor->narrow(-1, 0, 0).sum();
    }
  }
  return result;
}

bool is_empty(const Tensor& tensor) { return is_zero(tensor.sym_numel()); }

// Without queries or values, torch's CPU operator returns the query's sizes and checks no others.
MaybeTensor without_queries_or_values(const Call& call) {
  const auto tensors = call.tensors();
  if (std::any_of(tensors.begin(), tensors.end(), [](const auto* x) { return x->dim() < 2; }) ||
      !(is_zero(call.query.sym_size(-2)) || is_empty(call.value)) || !may_be_served_by_us(call)) {
    return std::nullopt;
  }
  SymDimVector sizes(call.query.sym_sizes().begin(), call.query.sym_sizes().end());
  sizes.back() = call.value.sym_size(-1);
  return of_nothing(call, sizes);
}

Tensor attention_of(const Call& call, const Sizes& sizes) {
  SymDimVector result_sizes;
  if (sizes.rank > 3) {
    result_sizes.append(sizes.batch.begin(), sizes.batch.end());
  }
  if (sizes.rank > 2) {
    result_sizes.push_back(sizes.query_heads);
  }
  result_sizes.append({call.query.sym_size(-2), call.value.sym_size(-1)});
  if (is_empty(call.query) || is_empty(call.key) || is_empty(call.value)) {
    return of_nothing(call, result_sizes);
  }

  const auto scale =
      call.scale.value_or(1 / std::sqrt(call.query.sym_size(-1).guard_int(__FILE__, __LINE__)));
  MaybeTensor mask;
  if (call.has_mask()) {
    mask = four_dimensional(*call.mask, sizes.batch);
  }
  MaybeTensor rng;
  if (call.dropout > 0) {
    rng = metalops::draw_attention_seed(call.query);
  }
  static const auto forward = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow("metalops::attention_forward", "")
                                  .typed<Forward>();
  const auto result = std::get<0>(forward.call(
      four_dimensional(call.query, sizes.batch, sizes.query_heads),
      four_dimensional(call.key, sizes.batch, sizes.key_heads),
      four_dimensional(call.value, sizes.batch, sizes.key_heads), mask, /*sinks=*/std::nullopt,
      /*alibi_slopes=*/std::nullopt, /*cu_seqlens_q=*/std::nullopt, /*cu_seqlens_k=*/std::nullopt,
      /*seqused_k=*/std::nullopt, rng, call.query.sym_size(-2), call.key.sym_size(-2), scale,
      /*window_left=*/-1, /*window_right=*/call.is_causal ? 0 : -1, /*bottom_right=*/false,
      /*softcap=*/0, call.dropout));
  return sizes.rank == 4 ? result : result.reshape_symint(result_sizes);
}

// Returns true if autograd or a transform of torch.func has to see the call of our operator, whose
// kernels for these are written in Python.
bool is_watched(const Call& call) {
  constexpr c10::DispatchKeySet kTransforms(
      {c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched});
  const auto is_watched = [&](const Tensor& x) {
    return (c10::GradMode::is_enabled() && x.requires_grad()) ||
           torch::autograd::isFwGradDefined(x) || x.key_set().has_any(kTransforms);
  };
  return is_watched(call.query) || is_watched(call.key) || is_watched(call.value) ||
         (call.has_mask() && is_watched(*call.mask));
}

const metalops::StockKernel& stock() {
  static const metalops::StockKernel kernel("aten::scaled_dot_product_attention", "");
  return kernel;
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const MaybeTensor& attn_mask, double dropout_p, bool is_causal,
                 std::optional<double> scale, bool enable_gqa) {
  const Call call{query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa};
  if (const auto zeros = without_queries_or_values(call)) {
    return *zeros;
  }
  if (const auto sizes = served_by_us(call)) {
    std::optional<at::AutoDispatchBelowAutograd> guard;
    if (!is_watched(call)) {
      guard.emplace();
    }
    return attention_of(call, *sizes);
  }
  return stock()(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
}

int64_t fused_sdp_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                         const MaybeTensor& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  const Call call{query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa};
  return static_cast<int64_t>(served_by_us(call) ? at::SDPBackend::overrideable
                                                 : at::SDPBackend::math);
}

constexpr const char* kReason =
    "it materialises the scores, on the way to gradients, with masks and for grouped heads";

// ---- transforms of torch.func -------------------------------------------------------------------

// The dispatch keys that tensors of every device have: that of torch.vmap, which calls torch's
// composition itself, and that of tensors wrapped by torch.func.grad, which do not tell that they
// are on MPS.
template <c10::DispatchKey Key>
const metalops::StockKernel& stock_of_all_devices() {
  static const metalops::StockKernel kernel("aten::scaled_dot_product_attention", "", Key);
  return kernel;
}

template <c10::DispatchKey Key>
Tensor attention_of_all_devices(const Tensor& query, const Tensor& key, const Tensor& value,
                                const MaybeTensor& attn_mask, double dropout_p, bool is_causal,
                                std::optional<double> scale, bool enable_gqa) {
  if (query.is_mps()) {
    return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
  }
  return stock_of_all_devices<Key>()(query, key, value, attn_mask, dropout_p, is_causal, scale,
                                     enable_gqa);
}

template <c10::DispatchKey Key>
void implement_for_all_devices(torch::Library& library) {
  stock_of_all_devices<Key>();
  metalops::AtenKernels m(library, Key);
  m.replace("scaled_dot_product_attention", TORCH_FN(attention_of_all_devices<Key>), kReason);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  stock();
  metalops::AtenKernels m(library);
  m.replace("scaled_dot_product_attention", attention, kReason);
  m.impl("_fused_sdp_choice", fused_sdp_choice);
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, library) {
  metalops::AtenKernels m(library, c10::DispatchKey::AutogradMPS);
  m.replace("scaled_dot_product_attention", attention, kReason);
}

TORCH_LIBRARY_IMPL(aten, AutogradOther, library) {
  implement_for_all_devices<c10::DispatchKey::AutogradOther>(library);
}

TORCH_LIBRARY_IMPL(aten, FuncTorchVmapMode, library) {
  implement_for_all_devices<c10::DispatchKey::FuncTorchVmapMode>(library);
}

}  // namespace
