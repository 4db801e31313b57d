// Finds the program's call on the stack, and its line by way of debug information.
#include <csrc/validation/caller.h>

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#ifdef __linux__
#include <fcntl.h>
#include <link.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;
#endif

namespace metalops::validation {
namespace {

std::string_view name_of(const char* path) {
  const std::string_view text = path != nullptr ? path : "";
  return text.substr(text.rfind('/') + 1);
}

// Returns true for libraries between the program and this one.
bool is_in_between(const char* path) {
  constexpr std::string_view kPrefixes[] = {"libtorch",   "libc10",  "libmetalops_host", "_host.",
                                            "libstdc++",  "libc++",  "libc.so",          "libgcc",
                                            "libpthread", "libobjc", "libdispatch",      "python",
                                            "libpython",  "Metal"};
  for (const std::string_view prefix : kPrefixes) {
    if (name_of(path).starts_with(prefix)) return true;
  }
  return false;
}

// Returns true for a return address in the program.
bool is_of_program(void* address) {
  static const void* const own = [] {
    Dl_info info;
    return dladdr(reinterpret_cast<void*>(&caller), &info) != 0 ? info.dli_fbase : nullptr;
  }();
  Dl_info info;
  if (dladdr(address, &info) == 0) return false;
  return info.dli_fbase != own && !is_in_between(info.dli_fname);
}

#ifdef __linux__

// Returns what a program prints, run without the libraries that are preloaded into this process.
std::string output_of(std::vector<const char*> command) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  for (const int end : ends) fcntl(end, F_SETFD, FD_CLOEXEC);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "LD_PRELOAD=", 11) != 0) environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  command.push_back(nullptr);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, command[0], &actions, nullptr,
                                  const_cast<char**>(command.data()), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  char part[1024];
  while (!failed) {
    const ssize_t count = read(ends[0], part, sizeof part);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(part, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  while (!failed && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return text;
}

// Returns "file:line" of the instruction before a return address; "" without debug information.
std::string line_of(const char* library, uintptr_t address) {
  std::array<char, 20> number;
  std::snprintf(number.data(), number.size(), "0x%zx", static_cast<size_t>(address - 1));
  for (const char* reader : {"addr2line", "llvm-addr2line"}) {
    std::string text = output_of({reader, "-e", library, number.data()});
    text = text.substr(0, text.find_first_of(" \n"));
    if (text.empty()) continue;
    return text.starts_with("??") || text.ends_with(":0") || text.ends_with(":?") ? "" : text;
  }
  return "";
}

#endif

std::string hexadecimal(uintptr_t number) {
  std::array<char, 20> text;
  std::snprintf(text.data(), text.size(), "0x%zx", static_cast<size_t>(number));
  return text.data();
}

std::string find_place(const void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0) return "";
  const auto number = reinterpret_cast<uintptr_t>(address);
  const auto base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  const std::string library(name_of(info.dli_fname));
#ifdef __linux__
  link_map* map = nullptr;
  dladdr1(address, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP);
  const std::string line = line_of(info.dli_fname, number - (map != nullptr ? map->l_addr : base));
  if (!line.empty()) return line;
  // The nearest symbol may be another function's, if this one is not exported.
  const ElfW(Sym)* symbol = nullptr;
  dladdr1(address, &info, const_cast<void**>(reinterpret_cast<const void**>(&symbol)),
          RTLD_DL_SYMENT);
  const auto start = reinterpret_cast<uintptr_t>(info.dli_saddr);
  if (symbol == nullptr || number - start > symbol->st_size) info.dli_sname = nullptr;
#endif
  if (info.dli_sname == nullptr) return library + "+" + hexadecimal(number - base);
  char* readable = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, nullptr);
  const std::string function = readable != nullptr ? readable : info.dli_sname;
  std::free(readable);
  return library + ", " + function + "+" +
         hexadecimal(number - reinterpret_cast<uintptr_t>(info.dli_saddr));
}

}  // namespace

const void* caller() {
  constexpr int kFrames = 64;
  std::array<void*, kFrames> frames;
  const int count = backtrace(frames.data(), kFrames);
  for (int i = 1; i < count; ++i) {
    if (is_of_program(frames[static_cast<size_t>(i)])) return frames[static_cast<size_t>(i)];
  }
  return nullptr;
}

std::string place_of(const void* address) {
  if (address == nullptr) return "";
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<const void*, std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  const auto [entry, is_new] = known.try_emplace(address);
  if (is_new) entry->second = find_place(address);
  return entry->second;
}

}  // namespace metalops::validation
