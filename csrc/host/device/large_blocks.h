// Memory for large tensors. It comes straight from the system, whose fresh pages cost several times
// what a kernel that fills them takes; so freed blocks are kept for the next allocations of about
// their size. What is kept may be reclaimed by the system when memory runs short.
#pragma once
#include <cstddef>

namespace metalops::device {

// Smaller blocks are the C library's, which reuses them itself.
constexpr size_t kLargeFrom = size_t{32} << 20;

// Null when the system has no memory left. The contents are undefined; of a new block only those
// pages are committed that are touched.
void* allocate_large(size_t bytes);

// Keeps a block, and gives others back to the system, the longest unused first, so that no more
// than `most` bytes are kept; that block too when kernels are sanitized, which report uses of freed
// memory.
void free_large(void* memory, size_t most);

// The size that was asked for; 0 for memory that allocate_large() did not supply.
size_t large_bytes(const void* memory);

// Gives kept blocks back until at most `most` bytes are kept.
void release_kept(size_t most);

size_t kept_bytes();

// What is kept, and what blocks in use have beyond what was asked for.
size_t large_bytes_beyond_use();

}  // namespace metalops::device
