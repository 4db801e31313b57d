// Memory for large tensors, with a cache of freed blocks. It comes directly from the system, whose
// fresh pages cost several times as much as a kernel that fills them; so freed blocks are kept for
// allocations of about their size. The system may reclaim kept blocks when memory runs short.
#pragma once
#include <cstddef>

namespace metalops::device {

// Smaller blocks come from malloc, which reuses them itself.
constexpr size_t kLargeFrom = size_t{32} << 20;

// Returns null when the system has no memory left. The contents are undefined; of a new block only
// the pages that are touched are committed.
void* allocate_large(size_t bytes);

// Keeps a block, and returns others to the system, least recently used first, so that no more than
// `most` bytes are kept. When kernels are sanitized the block itself is returned too, so that uses
// of freed memory are reported.
void free_large(void* memory, size_t most);

// Returns the size that was requested; 0 for memory that does not come from allocate_large().
size_t large_bytes(const void* memory);

// Returns kept blocks to the system until at most `most` bytes are kept.
void release_kept(size_t most);

size_t kept_bytes();

// Returns the bytes of kept blocks plus what blocks in use have beyond the requested size.
size_t large_bytes_beyond_use();

}  // namespace metalops::device
