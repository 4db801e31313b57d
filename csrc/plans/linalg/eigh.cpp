#include <csrc/plans/linalg/eigh.h>
#include <csrc/plans/linalg/eigh_large.h>
#include <csrc/plans/linalg/squares.h>

namespace metalops::plans {

void eigh(Plan& plan, const Eigh& call, const Device& device) {
  const auto a = plan.resolved(call.a);
  const auto p = squares_of(a, call.is_upper, static_cast<bool>(call.vectors));
  const auto classes = a.type == Type::kComplexFloat
                           ? SquareClasses{"eigh", 48, "_simdgroup_48_", 2}
                           : SquareClasses{"eigh", 64, "_simdgroup_64_", 2};
  if (a.size(1) > classes.most) {
    eigh_of_large(plan, call, a, p);
  } else {
    launch_squares(plan, device, classes, a.type, p, call.values, call.vectors, call.infos, a);
  }
}

}  // namespace metalops::plans
