// Compiles Metal source to a loaded kernel library, through the Python front end.
#pragma once
#include <c10/util/Exception.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <exec/exec.h>

// torch/csrc/Exceptions.h, whose headers of pybind11 few of those who compile need.
struct python_error;

namespace metalops {

// An error in the Metal source. In C++ it is what torch throws on a Mac, a c10::SyntaxError with
// the compiler's text; a Python caller of compile_shader gets the front end's own exception, with
// file, line and column.
class MetalSyntaxError : public c10::SyntaxError {
 public:
  MetalSyntaxError(std::string message, std::shared_ptr<const python_error> raised)
      : c10::SyntaxError({__func__, __FILE__, __LINE__}, std::move(message)),
        raised_(std::move(raised)) {}
  const python_error& raised() const { return *raised_; }

 private:
  std::shared_ptr<const python_error> raised_;
};

// Calls metalops.msl.compile_source, which keeps a cache on disk. Throws MetalSyntaxError; any
// other Python exception is passed on as torch's python_error, and so reaches a Python caller
// unchanged.
std::shared_ptr<exec::Library> compile_metal(const std::string& source);

// Does so as MTLCompileOptions say. `language`: __METAL_VERSION__, 310 for Metal 3.1; 0 leaves it
// to the environment.
std::shared_ptr<exec::Library> compile_metal(const std::string& source, uint32_t language,
                                             bool fast_math);

// Compiles the source of a part of a metallib (deflated by zlib), in that Metal version; `name` is
// what errors call it. Throws as compile_metal does.
std::shared_ptr<exec::Library> compile_part(std::string_view source, uint32_t language,
                                            const std::string& name);

// Fills the parameters {0}, {1}, ... of a source in, where braces are written twice: by Python's
// str.format, whose rules for text are those of fmt::format. Throws python_error.
std::string format_source(const std::string& source, const std::vector<std::string>& parameters);

// Returns false where no Python interpreter runs, which compiling needs.
bool can_compile();

// Calls a function of metalops.trace.capture; returns the error's text, "" if there is none.
std::string call_capture(const char* function, const std::vector<std::string>& arguments);

// Calls metalops.msl.compile_left_out (see exec::compile_left_out). Throws python_error.
std::shared_ptr<exec::Library> compile_left_out(std::string_view source, uint32_t language,
                                                const std::vector<std::string>& kernels,
                                                const char* engines);
// Calls metalops.msl.begin_left_out (see exec::begin_left_out).
void begin_left_out(std::string_view source, uint32_t language,
                    const std::vector<std::string>& kernels);

// Calls metalops._shaders.argument_layout.argument_layout, for the struct in buffer `index` of a
// kernel of this source. Throws python_error, a ValueError if it has only numbers.
std::vector<int64_t> argument_layout(std::string_view source, uint32_t language,
                                     const std::string& kernel, uint32_t index);

}  // namespace metalops
