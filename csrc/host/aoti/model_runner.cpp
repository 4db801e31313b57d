// Models that AOTInductor compiled for mps: torch's loader of packages finds here what runs them.
// On a Mac torch registers a class of its own.
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

#include <memory>
#include <string>

namespace metalops::aoti {
namespace {

using torch::inductor::AOTIModelContainerRunner;

class ModelRunner final : public AOTIModelContainerRunner {
 public:
  ModelRunner(const std::string& library, size_t models, const std::string& device,
              const std::string& folder, bool run_single_threaded)
      : AOTIModelContainerRunner(library, models, device, folder, run_single_threaded) {}
};

const torch::inductor::RegisterAOTIModelRunner registration(
    "mps",
    [](const std::string& library, size_t models, const std::string& device,
       const std::string& folder,
       bool run_single_threaded) -> std::unique_ptr<AOTIModelContainerRunner> {
      return std::make_unique<ModelRunner>(library, models, device, folder, run_single_threaded);
    });

}  // namespace
}  // namespace metalops::aoti
