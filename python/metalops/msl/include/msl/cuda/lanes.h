// Mapping between lanes of a warp and lanes of a simdgroup.
//
// It is the identity, except in programs with simdgroup matrices (MSL_MATRIX_LANES, which emitted
// code defines): there it makes Apple's distribution of a matrix over a simdgroup
// (simdgroup_matrix.h) that of tensor cores over a warp, row = lane / 4 and column = lane % 4 * 2.
// Bits 3, 2, 1 of a simdgroup lane are bits 1, 3, 2 of the warp lane.
#pragma once

namespace msl::abi {

#if MSL_MATRIX_LANES
constexpr bool kMatrixLanes = true;
#else
constexpr bool kMatrixLanes = false;
#endif

MSL_INLINE constexpr u32 warp_lane_of(u32 lane) {
  if (!kMatrixLanes) return lane;
  return (lane & 17) | (lane & 6) << 1 | (lane & 8) >> 2;
}
MSL_INLINE constexpr u32 lane_of(u32 warp_lane) {
  if (!kMatrixLanes) return warp_lane;
  return (warp_lane & 17) | (warp_lane & 12) >> 1 | (warp_lane & 2) << 2;
}

// Swaps `bits` of a mask with the bits `distance` above them.
MSL_INLINE constexpr u32 with_swapped(u32 mask, u32 bits, u32 distance) {
  const u32 changes = (mask ^ mask >> distance) & bits;
  return mask ^ changes ^ changes << distance;
}
MSL_INLINE constexpr u32 warp_lanes_of(u32 lanes) {
  if (!kMatrixLanes) return lanes;
  return with_swapped(with_swapped(lanes, 0x00f000f0u, 4), 0x0c0c0c0cu, 2);
}
MSL_INLINE constexpr u32 lanes_of(u32 warp_lanes) {
  if (!kMatrixLanes) return warp_lanes;
  return with_swapped(with_swapped(warp_lanes, 0x0c0c0c0cu, 2), 0x00f000f0u, 4);
}

constexpr bool masks_are_of_the_same_lanes() {
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 warp_lane = warp_lane_of(lane);
    if (lane_of(warp_lane) != lane) return false;
    if (warp_lanes_of(1u << lane) != 1u << warp_lane) return false;
    if (lanes_of(1u << warp_lane) != 1u << lane) return false;
  }
  return true;
}
static_assert(masks_are_of_the_same_lanes());

}  // namespace msl::abi
