// Stands in for torch's c10 library in programs for a CPU that the installed library is not for: as
// much as those that tests/programs.py builds need.
#include <c10/util/Exception.h>

#include <cstdio>
#include <utility>

namespace c10 {

Error::Error(SourceLocation, std::string msg)
    : msg_(std::move(msg)), what_without_backtrace_(msg_), caller_(nullptr) {}

const char* Error::what() const noexcept { return what_without_backtrace_.c_str(); }

void Error::add_context(std::string msg) { context_.push_back(std::move(msg)); }

ValueError::ValueError(SourceLocation source_location, std::string msg)
    : Error(source_location, std::move(msg)) {}
IndexError::IndexError(SourceLocation source_location, std::string msg)
    : Error(source_location, std::move(msg)) {}
NotImplementedError::NotImplementedError(SourceLocation source_location, std::string msg)
    : Error(source_location, std::move(msg)) {}

Warning::Warning(warning_variant_t type, const SourceLocation& source_location, std::string msg,
                 bool verbatim)
    : type_(type), source_location_(source_location), msg_(std::move(msg)), verbatim_(verbatim) {}

void warn(const Warning&) {}

namespace detail {

void torchCheckFail(const char* function, const char* file, uint32_t line, const std::string& msg) {
  throw Error({function, file, line}, msg);
}
void torchCheckFail(const char* function, const char* file, uint32_t line, const char* msg) {
  throw Error({function, file, line}, msg);
}
void torchInternalAssertFail(const char* function, const char* file, uint32_t line,
                             const char* condition, const char* message) {
  throw Error({function, file, line}, std::string(condition) + message);
}

}  // namespace detail
}  // namespace c10
