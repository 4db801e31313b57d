#include <csrc/plans/linalg/eig.h>
#include <csrc/plans/linalg/squares.h>
#include <kernels/linalg/eig.h>

#include <algorithm>

namespace metalops::plans {

bool is_large_for_eig(int64_t rows) { return rows > int64_t{kMostOfEigDevice}; }

void eig(Plan& plan, const Eig& call, const Device& device) {
  const auto a = plan.resolved(call.a);
  const auto n = a.size(1);
  const auto p =
      squares_of(a, /*is_upper=*/false, /*with_vectors=*/static_cast<bool>(call.vectors));
  const auto of_simdgroup = a.type == Type::kComplexFloat
                                ? SquareClasses{"eig", 40, "_simdgroup_40_", 6}
                                : SquareClasses{"eig", 56, "_simdgroup_56_", 6};
  const SquareClasses of_device{"eig", kMostOfEigDevice, "_device_64_", 6};
  if (n <= of_simdgroup.most) {
    launch_squares(plan, device, of_simdgroup, a.type, p, call.values, call.vectors, call.infos, a);
    return;
  }
  const auto pack = 16 / size_of(a.type);
  const auto matrices = std::min(a.size(0), of_device.a_launch(n, device));
  const auto columns = plan.allocate(a.type, {matrices, 2 * n, of_device.most + pack});
  launch_squares(plan, device, of_device, a.type, p, call.values, call.vectors, call.infos, a,
                 columns);
}

}  // namespace metalops::plans
