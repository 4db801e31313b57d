// Compiled Metal libraries, as files or in memory: what newLibraryWithURL, newLibraryWithData and
// torch.mps.load_metallib open.
//
// A metallib is a kernel library (exec::Library), or a container of several, one for each file that
// it was linked from (python/metalops/_metallib.py writes it and documents the format). The parts
// of a container that this process cannot run, because they were built for another CPU, another
// version of the kernel interface or without its sanitizer, are compiled again from the Metal
// source that lies beside them.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <exec/exec.h>

namespace metalops {

// Both throw c10::Error, whose text says why it cannot be opened, and is worded to follow "Failed
// to load ...: ". A part that is compiled again may throw what compile_metal throws.
std::vector<std::shared_ptr<exec::Library>> open_metallib(const std::string& path);
std::vector<std::shared_ptr<exec::Library>> read_metallib(std::string_view data);

}  // namespace metalops
