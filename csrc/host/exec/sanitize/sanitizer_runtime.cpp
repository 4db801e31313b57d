// Looks up sanitizer functions and silences their reports.
#include <exec/sanitize/sanitizer_runtime.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace metalops::exec {
namespace {

using SetReportDescriptor = void (*)(void*);

// Each runtime has its own report destination; g++ has one runtime per sanitizer.
std::vector<SetReportDescriptor> find_report_descriptors() {
  std::vector<SetReportDescriptor> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        const char* name = std::strrchr(info->dlpi_name, '/');
        if (name == nullptr) return 0;
        bool runtime = false;
        for (const char* part : {"asan", "ubsan", "tsan"}) {
          runtime |= std::strstr(name, part) != nullptr;
        }
        if (!runtime) return 0;
        void* handle = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
        if (handle == nullptr) return 0;
        void* function = dlsym(handle, "__sanitizer_set_report_fd");
        dlclose(handle);
        if (function != nullptr) {
          static_cast<std::vector<SetReportDescriptor>*>(result)->push_back(
              reinterpret_cast<SetReportDescriptor>(function));
        }
        return 0;
      },
      &found);
  return found;
}

void send_reports_to(int descriptor) {
  static const auto* const all = new std::vector<SetReportDescriptor>(find_report_descriptors());
  for (const SetReportDescriptor set : *all) set(reinterpret_cast<void*>(intptr_t(descriptor)));
}

}  // namespace

void* find_sanitizer_symbol(const char* name) { return dlsym(RTLD_DEFAULT, name); }

QuietSanitizers::QuietSanitizers() { silence(); }

void QuietSanitizers::silence() {
  static const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  send_reports_to(nowhere);
}

QuietSanitizers::~QuietSanitizers() { send_reports_to(STDERR_FILENO); }

}  // namespace metalops::exec
