// From a row-major element number, or a position (x innermost, then y, the rest folded into z), to
// the offset of that element in a strided tensor: the functions that kernels written for MLX call.
// Strides count elements.

template <typename IdxT, typename = enable_if_t<is_integral_v<IdxT>>>
inline IdxT elem_to_loc(IdxT elem, constant const int* shape, constant const int64_t* strides,
                        int ndim) {
  IdxT loc = 0;
  for (int d = ndim - 1; d >= 0; --d) {
    const IdxT extent = IdxT(shape[d]);
    loc += (elem % extent) * IdxT(strides[d]);
    elem /= extent;
  }
  return loc;
}

template <typename IdxT = int64_t>
inline IdxT elem_to_loc(uint3 elem, constant const int* shape, constant const int64_t* strides,
                        int ndim) {
  IdxT loc = IdxT(elem.x) * IdxT(strides[ndim - 1]);
  if (ndim > 1) loc += IdxT(elem.y) * IdxT(strides[ndim - 2]);
  for (int d = ndim - 3; d >= 0; --d) {
    loc += IdxT(elem.z % uint(shape[d])) * IdxT(strides[d]);
    elem.z /= uint(shape[d]);
  }
  return loc;
}

template <typename IdxT = int64_t>
inline IdxT elem_to_loc_1(uint elem, constant const int64_t& stride) {
  return IdxT(elem) * IdxT(stride);
}

template <typename IdxT = int64_t>
inline IdxT elem_to_loc_2(uint2 elem, constant const int64_t* strides) {
  return IdxT(elem.x) * IdxT(strides[1]) + IdxT(elem.y) * IdxT(strides[0]);
}

template <typename IdxT = int64_t>
inline IdxT elem_to_loc_3(uint3 elem, constant const int64_t* strides) {
  return IdxT(elem.x) * IdxT(strides[2]) + IdxT(elem.y) * IdxT(strides[1]) +
         IdxT(elem.z) * IdxT(strides[0]);
}

// Return one position in two and in three tensors of one shape.
template <typename IdxT = int64_t>
inline vec<IdxT, 2> elem_to_loc_2_nd(uint3 elem, constant const int* shape,
                                     constant const int64_t* a_strides,
                                     constant const int64_t* b_strides, int ndim) {
  return vec<IdxT, 2>(elem_to_loc<IdxT>(elem, shape, a_strides, ndim),
                      elem_to_loc<IdxT>(elem, shape, b_strides, ndim));
}

template <typename IdxT = int64_t>
inline vec<IdxT, 3> elem_to_loc_3_nd(uint3 elem, constant const int* shape,
                                     constant const int64_t* a_strides,
                                     constant const int64_t* b_strides,
                                     constant const int64_t* c_strides, int ndim) {
  return vec<IdxT, 3>(elem_to_loc<IdxT>(elem, shape, a_strides, ndim),
                      elem_to_loc<IdxT>(elem, shape, b_strides, ndim),
                      elem_to_loc<IdxT>(elem, shape, c_strides, ndim));
}

// The offsets of elements one after another, beginning at element 0: next() goes on by one or by n
// elements. The parameters are those that MLX's kernels give; DIM and General only choose between
// implementations there.
template <int DIM, typename OffsetT = size_t, bool General = true>
struct LoopedElemToLoc {
  int ndim;
  OffsetT elem = 0;
  OffsetT offset = 0;

  LoopedElemToLoc(int dimensions) : ndim(dimensions) {}

  void next(int n, constant const int* shape, constant const int64_t* strides) {
    elem += OffsetT(n);
    offset = elem_to_loc<OffsetT>(elem, shape, strides, ndim);
  }

  void next(constant const int* shape, constant const int64_t* strides) { next(1, shape, strides); }

  OffsetT location() const { return offset; }
};
