// The elements of cooperative tensors that the threads of a group have, and which of them were
// written. They lie on the threads' stacks; those of a variable are known until there are others.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace metalops::exec {

class CooperativeElements {
 public:
  void clear() { tiles_.clear(); }
  bool empty() const { return tiles_.empty(); }

  // See msl::abi::Runtime. begin() fills the elements with a pattern, not a number where they are
  // floating-point numbers.
  void begin(uint32_t thread, void* elements, uint32_t element_bytes, const uint8_t* exists,
             uint32_t count);
  void copy(uint32_t thread, void* to, const void* from);

  // For accesses to the memory of any thread.
  enum class Problem { kNone, kUnwritten, kNoElement };
  struct Read {
    Problem problem = Problem::kNone;
    uint32_t thread = 0;  // that has the element
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
  // The tile that an access begins in; tiles_.end() where there is none.
  std::map<uintptr_t, Tile>::const_iterator find(const void* address) const;

  std::map<uintptr_t, Tile> tiles_;  // by the addresses of their elements
};

}  // namespace metalops::exec
