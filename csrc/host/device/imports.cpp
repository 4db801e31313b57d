// Replaces an entry in the procedure linkage table (PLT) of a loaded ELF library.
#include <device/imports.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace metalops::device {
namespace {

struct Search {
  std::string_view library;
  std::string_view symbol;
  void* replacement;
  void** replaced;
  bool is_done = false;
};

// The parts of a loaded library that name its imports.
struct Imports {
  const ElfW(Rela) * entries = nullptr;
  size_t count = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
};

Imports imports_of(const dl_phdr_info& library, const ElfW(Dyn) * dynamic) {
  // glibc has relocated these addresses; other C libraries leave the values of the file.
  const auto address = [&](ElfW(Addr) value) {
    return value < library.dlpi_addr ? library.dlpi_addr + value : value;
  };
  Imports found;
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    const auto value = dynamic->d_un.d_val;
    if (dynamic->d_tag == DT_JMPREL) {
      found.entries = reinterpret_cast<const ElfW(Rela)*>(address(value));
    } else if (dynamic->d_tag == DT_PLTRELSZ) {
      found.count = value / sizeof(ElfW(Rela));
    } else if (dynamic->d_tag == DT_SYMTAB) {
      found.symbols = reinterpret_cast<const ElfW(Sym)*>(address(value));
    } else if (dynamic->d_tag == DT_STRTAB) {
      found.names = reinterpret_cast<const char*>(address(value));
    }
  }
  return found;
}

// Writes to memory that the linker may have made read-only (RELRO).
bool exchange(void** place, void* value, bool is_read_only) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto* const start = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(place) & ~(page - 1));
  if (is_read_only && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(place, value, __ATOMIC_RELEASE);
  if (is_read_only) mprotect(start, page, PROT_READ);
  return true;
}

int replace_in(dl_phdr_info* library, size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  const std::string_view path(library->dlpi_name);
  if (path.substr(path.rfind('/') + 1) != search.library) return 0;
  const ElfW(Dyn)* dynamic = nullptr;
  ElfW(Addr) read_only_begin = 0;
  ElfW(Addr) read_only_end = 0;
  for (size_t i = 0; i < library->dlpi_phnum; ++i) {
    const auto& part = library->dlpi_phdr[i];
    const auto begin = library->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_DYNAMIC) {
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    } else if (part.p_type == PT_GNU_RELRO) {
      read_only_begin = begin;
      read_only_end = begin + part.p_memsz;
    }
  }
  if (dynamic == nullptr) return 1;
  const Imports imports = imports_of(*library, dynamic);
  for (size_t i = 0; i < imports.count; ++i) {
    const auto& entry = imports.entries[i];
    const auto& symbol = imports.symbols[ELF64_R_SYM(entry.r_info)];
    const std::string_view name(imports.names + symbol.st_name);
    if (name.substr(0, search.symbol.size()) != search.symbol) continue;
    const auto place = library->dlpi_addr + entry.r_offset;
    const bool is_read_only = place >= read_only_begin && place < read_only_end;
    if (search.replaced != nullptr) {
      if (symbol.st_shndx == SHN_UNDEF) return 1;
      *search.replaced = reinterpret_cast<void*>(library->dlpi_addr + symbol.st_value);
    }
    search.is_done = exchange(reinterpret_cast<void**>(place), search.replacement, is_read_only);
    return 1;
  }
  return 1;
}

}  // namespace

bool replace_import(std::string_view library, std::string_view symbol, void* replacement,
                    void** replaced) {
  Search search{library, symbol, replacement, replaced};
  dl_iterate_phdr(&replace_in, &search);
  return search.is_done;
}

}  // namespace metalops::device
