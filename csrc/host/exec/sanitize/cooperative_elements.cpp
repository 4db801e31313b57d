// Fill patterns and state of the elements of cooperative tensors.
#include <exec/sanitize/cooperative_elements.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include <exec/sanitize/c_library.h>

namespace metalops::exec {
namespace {

// Patterns of elements of 4, 2 and 1 bytes; the last hexadecimal digit encodes the element's state.
constexpr uint32_t kPattern4 = 0x7febad00;
constexpr uint16_t kPattern2 = 0x7fe0;  // NaN as half and as bfloat
constexpr uint8_t kPattern1 = 0xe0;

template <class State>
uint32_t pattern(uint32_t bytes, State state) {
  const uint32_t base = bytes == 4 ? kPattern4 : bytes == 2 ? kPattern2 : kPattern1;
  return base + uint32_t(state);
}

uint32_t value_at(const void* address, uint32_t bytes) {
  uint32_t value = 0;  // little-endian
  c_library::move(&value, address, bytes);
  return value;
}

}  // namespace

void CooperativeElements::begin(uint32_t thread, void* elements, uint32_t element_bytes,
                                const uint8_t* exists, uint32_t count) {
  Tile tile{thread, element_bytes, std::vector<State>(count)};
  for (uint32_t i = 0; i < count; ++i) {
    tile.state[i] = exists[i] ? kUnwritten : kNoElement;
    const uint32_t value = pattern(element_bytes, tile.state[i]);
    c_library::move(static_cast<char*>(elements) + i * element_bytes, &value, element_bytes);
  }
  add(elements, std::move(tile));
}

void CooperativeElements::copy(uint32_t thread, void* to, const void* from) {
  const auto source = tiles_.find(address_of(from));
  if (source == tiles_.end()) return;
  Tile tile = source->second;
  tile.thread = thread;
  c_library::move(to, from, bytes_of(tile));
  add(to, std::move(tile));
}

// Adds a tile. Variables that now occupy the same stack addresses replace earlier ones.
void CooperativeElements::add(const void* elements, Tile tile) {
  const uintptr_t begin = address_of(elements), end = begin + bytes_of(tile);
  auto first = tiles_.lower_bound(begin);
  if (first != tiles_.begin() &&
      std::prev(first)->first + bytes_of(std::prev(first)->second) > begin) {
    --first;
  }
  tiles_.erase(first, tiles_.lower_bound(end));
  tiles_[begin] = std::move(tile);
}

std::map<uintptr_t, CooperativeElements::Tile>::const_iterator CooperativeElements::find(
    const void* address) const {
  const uintptr_t at = address_of(address);
  auto next = tiles_.upper_bound(at);
  if (next == tiles_.begin()) return tiles_.end();
  const auto tile = std::prev(next);
  return at - tile->first < bytes_of(tile->second) ? tile : tiles_.end();
}

CooperativeElements::Read CooperativeElements::read(const void* address, uint64_t bytes) const {
  const auto found = find(address);
  // A read of more than one element copies all of them, written or not.
  if (found == tiles_.end() || bytes > found->second.element_bytes) return {};
  const auto& [begin, tile] = *found;
  const auto slot = uint32_t((address_of(address) - begin) / tile.element_bytes);
  const State state = tile.state[slot];
  // Compilers do not report all writes, so an element counts as written if its pattern has changed.
  const void* element = reinterpret_cast<const void*>(begin + slot * tile.element_bytes);
  if (state == kWritten ||
      value_at(element, tile.element_bytes) != pattern(tile.element_bytes, state)) {
    return {};
  }
  return {state == kNoElement ? Problem::kNoElement : Problem::kUnwritten, tile.thread, slot};
}

void CooperativeElements::write(const void* address, uint64_t bytes) {
  const auto found = find(address);
  if (found == tiles_.end()) return;
  Tile& tile = tiles_[found->first];
  const uint64_t first = (address_of(address) - found->first) / tile.element_bytes;
  const uint64_t last = (address_of(address) - found->first + bytes - 1) / tile.element_bytes;
  const uint64_t end = std::min<uint64_t>(last + 1, tile.state.size());
  for (uint64_t slot = first; slot < end; ++slot) tile.state[slot] = kWritten;
}

}  // namespace metalops::exec
