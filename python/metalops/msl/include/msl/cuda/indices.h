// Subscripts with several indices, as emitted code calls them.
#pragma once

#include <msl/array.h>

namespace msl::msl_support {

template <class... I>
MSL_INLINE constexpr metal::array<long, sizeof...(I)> indices(I... values) {
  return {{long(values)...}};
}

}  // namespace msl::msl_support
