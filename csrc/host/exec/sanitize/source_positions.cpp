// Maps addresses to the Metal source by way of debug information. The front end puts every token of
// the Metal source on a line of its own in the C++ that it emits, and keeps a table of them
// (python/metalops/msl/token_lines.py): a line in the debug information is a position in the Metal
// source.
#include <exec/sanitize/source_positions.h>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>

#include <exec/runtime.h>

extern char** environ;

namespace metalops::exec {
namespace {

std::string& address_reader() {
  static auto* const path = new std::string("addr2line");
  return *path;
}

// Returns a program's output. It runs without the libraries that are preloaded into this process.
std::string output_of(const std::vector<std::string>& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "LD_PRELOAD=", 11) != 0) environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  pid_t child;
  const int failed =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  if (!failed) {
    char part[4096];
    ssize_t count;
    while ((count = read(ends[0], part, sizeof(part))) > 0 || (count < 0 && errno == EINTR)) {
      if (count > 0) text.append(part, size_t(count));
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  close(ends[0]);
  return text;
}

// The token table of a library that was built with a sanitizer.
class Positions {
 public:
  explicit Positions(const void* table) : header_(static_cast<const uint32_t*>(table)) {
    const char* name = reinterpret_cast<const char*>(header_ + 2);
    for (uint32_t file = 0; file < header_[0]; ++file) {
      files_.emplace_back(name);
      name += files_.back().size() + 1;
    }
    const size_t names = size_t(name - reinterpret_cast<const char*>(header_ + 2));
    lines_ = header_ + 2 + (names + 3) / 4;
  }

  // Returns "file:line:column" for a line (from 1) of the emitted text, or "".
  std::string operator[](uint32_t line) const {
    if (line == 0 || line > header_[1]) return "";
    const uint32_t* place = lines_ + 3 * (line - 1);
    if (place[0] == 0 || place[0] > files_.size()) return "";
    std::ostringstream text;
    text << files_[place[0] - 1] << ':' << place[1] << ':' << place[2];
    return std::move(text).str();
  }

 private:
  const uint32_t* header_;
  std::vector<std::string_view> files_;
  const uint32_t* lines_;
};

constexpr std::string_view kEmittedFile = "kernels.cpp:";

// Parses a line of addr2line's output: returns the line number if it is about the emitted text,
// otherwise 0.
uint32_t emitted_line(const std::string& text) {
  const size_t at = text.rfind(kEmittedFile);
  if (at == std::string::npos) return 0;
  return uint32_t(std::strtoul(text.c_str() + at + kEmittedFile.size(), nullptr, 10));
}

}  // namespace

void set_address_reader(std::string path) { address_reader() = std::move(path); }

Stack stack_of(const void* pc, const void* frame) {
  Stack stack = {pc};
  const uintptr_t library = library_base(pc);
  auto* at = static_cast<const uintptr_t*>(frame);
  while (library != 0 && at != nullptr && stack.size() < 32) {
    const auto* above = reinterpret_cast<const uintptr_t*>(at[0]);
    const auto* caller = reinterpret_cast<const void*>(at[1]);
    if (caller == nullptr || library_base(caller) != library) break;
    if (caller != pc || stack.size() > 1) stack.push_back(caller);
    // Frames of one stack are at increasing addresses and close together.
    if (above <= at || above - at > (1 << 20)) break;
    at = above;
  }
  return stack;
}

std::string describe(const Stack& stack) {
  static constexpr const char* kUnknown = "an unknown line";
  if (stack.empty()) return kUnknown;
  const Module module = module_of(stack[0]);
  if (module.positions == nullptr) return kUnknown;
  std::vector<std::string> command = {address_reader(), "-i", "-e", module.file};
  for (const void* address : stack) {
    std::ostringstream offset;
    // The address of the call, one before the return address.
    offset << std::hex << "0x" << reinterpret_cast<uintptr_t>(address) - 1 - module.base;
    command.push_back(offset.str());
  }
  std::istringstream output(output_of(command));
  const Positions positions(module.positions);
  std::vector<std::string> places;
  for (std::string line; std::getline(output, line);) {
    std::string place = positions[emitted_line(line)];
    if (!place.empty() && (places.empty() || places.back() != place)) {
      places.push_back(std::move(place));
    }
  }
  if (places.empty()) return kUnknown;
  std::string text = places[0];
  for (size_t i = 1; i < places.size(); ++i) {
    text += (i == 1 ? " (called at " : ", ") + places[i];
  }
  return places.size() > 1 ? text + ")" : text;
}

}  // namespace metalops::exec
