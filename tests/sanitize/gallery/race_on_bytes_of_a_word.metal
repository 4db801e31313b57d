// mode: thread
// launch: kernel(ints(16), threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

// Four threads set a byte each of one word, by reading and writing the word.
kernel void set_bytes(device uint* words, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  reinterpret_cast<device uchar*>(words)[i] = uchar(i);
#else
  const uint shift = i % 4 * 8;
  words[i / 4] = (words[i / 4] & ~(0xffu << shift)) | (i << shift);
//^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ data-race
#endif
}
