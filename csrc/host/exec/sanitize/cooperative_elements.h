// Tracks which elements of cooperative tensors each thread of a group has written. The elements are
// on the threads' stacks; those of a variable are known until others take their place.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace metalops::exec {

class CooperativeElements {
 public:
  void clear() { tiles_.clear(); }
  bool empty() const { return tiles_.empty(); }

  // See msl::abi::Runtime. begin() fills the elements with a pattern, NaN for floating-point
  // numbers.
  void begin(uint32_t thread, void* elements, uint32_t element_bytes, const uint8_t* exists,
             uint32_t count);
  void copy(uint32_t thread, void* to, const void* from);

  // Check accesses to the memory of any thread.
  enum class Problem { kNone, kUnwritten, kNoElement };
  struct Read {
    Problem problem = Problem::kNone;
    uint32_t thread = 0;  // owner of the element
    uint32_t slot = 0;
  };
  Read read(const void* address, uint64_t bytes) const;
  void write(const void* address, uint64_t bytes);

 private:
  enum State : uint8_t { kWritten, kUnwritten, kNoElement };
  struct Tile {
    uint32_t thread;
    uint32_t element_bytes;
    std::vector<State> state;
  };
  uint64_t bytes_of(const Tile& tile) const { return tile.state.size() * tile.element_bytes; }
  void add(const void* elements, Tile tile);
  static uintptr_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }
  // Returns the tile in which an access begins, or tiles_.end().
  std::map<uintptr_t, Tile>::const_iterator find(const void* address) const;

  std::map<uintptr_t, Tile> tiles_;  // by the address of the first element
};

}  // namespace metalops::exec
