// Opens compiled Metal libraries.
#include <metal/metallib.h>

#include <c10/util/Exception.h>

#include <array>
#include <cstring>
#include <fstream>
#include <sstream>

#include <metal/compile.h>

namespace metalops {
namespace {

using Parts = std::vector<std::shared_ptr<exec::Library>>;

constexpr std::string_view kApple = "MTLB";
constexpr std::string_view kContainer = "METALOPS";
constexpr uint32_t kVersion = 1;

bool begins_with(std::string_view data, std::string_view magic) {
  return data.substr(0, magic.size()) == magic;
}

// Apple's compiled libraries hold GPU code, which no CPU runs.
void reject_apples(std::string_view data) {
  TORCH_CHECK(
      !begins_with(data, kApple),
      "it is a metallib for Apple GPUs, which this software Metal device cannot run. Compile "
      "its Metal source with torch.mps.compile_shader, `python -m metalops compile` or "
      "`python -m metalops build-mac`");
}

// Reads what a container consists of, checking its bounds.
class Reader {
 public:
  explicit Reader(std::string_view data) : rest_(data) {}
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view bytes(uint64_t size) {
    TORCH_CHECK(size <= rest_.size(), "the metallib is incomplete. Build it again.");
    const std::string_view found = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return found;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

std::shared_ptr<exec::Library> open_part(Reader& reader) {
  const auto language = reader.number<uint32_t>();
  std::array<uint64_t, 4> sizes;
  for (uint64_t& size : sizes) size = reader.number<uint64_t>();
  const std::string name(reader.bytes(sizes[0]));
  reader.bytes(sizes[1]);  // the names of the kernels, which the library has, too
  const std::string_view source = reader.bytes(sizes[2]), library = reader.bytes(sizes[3]);
  try {
    return exec::Library::from_bytes(library.data(), library.size());
  } catch (const c10::Error&) {
    if (!can_compile()) throw;
  }
  return compile_part(source, language, name);
}

Parts read_container(std::string_view data) {
  Reader reader(data);
  reader.bytes(kContainer.size());
  const auto version = reader.number<uint32_t>();
  TORCH_CHECK(version == kVersion, "the metallib has version ", version,
              " of the format; this metalops reads version ", kVersion, ". Build it again.");
  const auto count = reader.number<uint32_t>();
  Parts parts;
  for (uint32_t i = 0; i < count; ++i) parts.push_back(open_part(reader));
  TORCH_CHECK(!parts.empty() && reader.at_end(), "the metallib is damaged. Build it again.");
  return parts;
}

}  // namespace

Parts read_metallib(std::string_view data) {
  reject_apples(data);
  if (begins_with(data, kContainer)) return read_container(data);
  return {exec::Library::from_bytes(data.data(), data.size())};
}

Parts open_metallib(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string begin(kContainer.size(), '\0');
  TORCH_CHECK(file && (file.read(begin.data(), begin.size()), !file.bad()),
              "the file cannot be read");
  begin.resize(file.gcount());
  reject_apples(begin);
  // Not read into memory: a library that lies in a file is shared by processes.
  if (begin != kContainer) return {exec::Library::open(path)};
  std::ostringstream rest;
  rest << file.rdbuf();
  return read_container(begin + std::move(rest).str());
}

}  // namespace metalops
