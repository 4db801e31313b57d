#include <csrc/plans/attention/attention_cache.h>
#include <kernels/attention/attention_cache.h>

#include <cstdint>
#include <limits>

namespace metalops::plans {

namespace {

constexpr const char* kCacheFamily = "attention_cache";

int32_t cache_size(int64_t size, const char* what) {
  return checked_int32(size, std::numeric_limits<int32_t>::max(), what);
}

CacheStrides cache_strides(const View& view) {
  return {view.stride(0), view.stride(1), view.stride(2), view.stride(3)};
}

// Returns the parameters of tokens (B, L, H, E) and a cache, both with their own positions.
CacheParameters cache_parameters(const View& tokens, const View& cache) {
  return {.tokens = cache_strides(tokens),
          .cache = cache_strides(cache),
          .table_stride = 0,
          .slots = cache.size(0) * cache.size(1),
          .batch = cache_size(tokens.size(0), "a cache: a batch"),
          .length = cache_size(tokens.size(1), "a cache: tokens"),
          .heads = cache_size(tokens.size(2), "a cache: heads"),
          .features = cache_size(tokens.size(3), "a cache: features"),
          .page_size = cache_size(cache.size(1), "a cache: a page"),
          .pages = cache_size(cache.size(0), "a cache: pages"),
          .places = CachePlaces::kOwn,
          .rotated = 0,
          .angles = 0,
          .scale = 1,
          .has_scale = false,
          .has_wide_slots = false,
          .has_table = false,
          .interleaved = false,
          .advances = true};
}

LaunchGrid cache_grid(const View& tokens) {
  const auto rows = tokens.size(0) * tokens.size(1);
  check_size(rows, std::numeric_limits<uint32_t>::max(), "a cache: tokens");
  return grid_of_elements(tokens.size(3), tokens.size(2), rows);
}

Name cache_types(const View& tokens, const View& cache) {
  return Name(tokens.type) + "_" + cache.type;
}

// The tensors that a kernel that stores reads besides tokens.
struct CacheViews {
  View slots, lengths, table, cosines, sines, scale;
};

void store_in_cache(Plan& plan, const View& cache, const View& tokens, const CacheViews& places,
                    const CacheParameters& parameters) {
  plan.launch(kCacheFamily, Name("attention_cache_store_") + cache_types(tokens, cache),
              cache_grid(tokens), cache, tokens, places.slots, places.lengths, places.table,
              places.cosines, places.sines, places.scale, parameters, kErrors);
}

// Sets the rotation, if there is one.
void set_rotation(Plan& plan, const View& cosines, const View& sines, bool interleaved,
                  CacheViews& places, CacheParameters& parameters) {
  if (!cosines || !sines) {
    return;
  }
  places.cosines = plan.contiguous(cosines);
  places.sines = plan.contiguous(sines);
  parameters.rotated = static_cast<int32_t>(2 * cosines.size(1));
  parameters.angles = cache_size(cosines.size(0), "a cache: angles");
  parameters.interleaved = interleaved;
}

// Returns the block table, contiguous, and sets what kernels know of it.
View set_cache_table(Plan& plan, const View& table, CacheParameters& parameters) {
  const auto given = plan.contiguous(table);
  parameters.has_table = static_cast<bool>(given);
  parameters.table_stride = given ? given.stride(0) : 0;
  return given;
}

}  // namespace

void attention_cache_store_at_slots(Plan& plan, const AttentionCacheStoreAtSlots& call,
                                    const Device&) {
  if (call.tokens.numel() == 0) {
    return;
  }
  const auto tokens = call.tokens.unsqueeze(1);
  auto parameters = cache_parameters(tokens, call.cache);
  parameters.places = CachePlaces::kSlots;
  parameters.has_wide_slots = call.slots.type == Type::kLong;
  parameters.scale = static_cast<float>(call.number);
  parameters.has_scale = static_cast<bool>(call.scale);
  store_in_cache(plan, call.cache, tokens,
                 {.slots = plan.contiguous(call.slots), .scale = call.scale}, parameters);
}

void attention_cache_store_behind(Plan& plan, const AttentionCacheStoreBehind& call,
                                  const Device&) {
  if (call.tokens.numel() == 0) {
    return;
  }
  auto parameters = cache_parameters(call.tokens, call.cache);
  parameters.places = CachePlaces::kBehind;
  CacheViews places{.lengths = plan.contiguous(call.lengths, Type::kInt),
                    .table = set_cache_table(plan, call.table, parameters)};
  parameters.slots = call.cache.size(1) * (call.table ? call.table.size(1) : 1);
  set_rotation(plan, call.cosines, call.sines, call.interleaved, places, parameters);
  store_in_cache(plan, call.cache, call.tokens, places, parameters);
}

void attention_cache_rotate(Plan& plan, const AttentionCacheRotate& call, const Device&) {
  if (call.tokens.numel() == 0) {
    return;
  }
  auto parameters = cache_parameters(call.tokens, call.result);
  parameters.advances = call.advances;
  CacheViews places{.lengths = plan.contiguous(call.lengths, Type::kInt)};
  set_rotation(plan, call.cosines, call.sines, call.interleaved, places, parameters);
  store_in_cache(plan, call.result, call.tokens, places, parameters);
}

void attention_cache_gather(Plan& plan, const AttentionCacheGather& call, const Device&) {
  if (call.tokens.numel() == 0) {
    return;
  }
  auto parameters = cache_parameters(call.tokens, call.cache);
  parameters.scale = static_cast<float>(call.number);
  parameters.has_scale = static_cast<bool>(call.scale);
  const auto table = set_cache_table(plan, call.table, parameters);
  plan.launch(kCacheFamily, Name("attention_cache_gather_") + cache_types(call.tokens, call.cache),
              cache_grid(call.tokens), call.tokens, call.cache,
              plan.contiguous(call.lengths, Type::kInt), table, call.scale, parameters, kErrors);
}

}  // namespace metalops::plans
