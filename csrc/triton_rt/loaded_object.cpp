// SPDX-License-Identifier: Apache-2.0
#include "loaded_object.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

namespace anvil::triton {
namespace {

using Bytes = std::span<const std::byte>;

[[noreturn]] void refuse(const std::string& words) {
  throw std::invalid_argument("not a kernel's object code: " + words);
}

// Bounds-checked reading of a file that may be damaged.
class File {
 public:
  explicit File(Bytes bytes) : bytes_(bytes) {}

  Bytes slice(uint64_t offset, uint64_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) refuse("it is cut short");
    return bytes_.subspan(offset, size);
  }

  template <typename T>
  std::vector<T> table(uint64_t offset, uint64_t size) const {
    const Bytes raw = slice(offset, size);
    if (raw.size() % sizeof(T) != 0) refuse("a table has a broken entry");
    std::vector<T> entries(raw.size() / sizeof(T));
    if (!entries.empty()) std::memcpy(entries.data(), raw.data(), raw.size());
    return entries;
  }

 private:
  Bytes bytes_;
};

std::string text_at(Bytes strings, uint64_t offset) {
  if (offset >= strings.size()) refuse("a name lies outside of its table");
  const auto* begin = reinterpret_cast<const char*>(strings.data()) + offset;
  return {begin, strnlen(begin, strings.size() - offset)};
}

// What LLVM calls where the kernel's source calls nothing.
void* library_function(std::string_view name) {
  struct Entry {
    std::string_view name;
    void* address;
  };
  static const std::array<Entry, 6> functions = {{
      {"memcpy", reinterpret_cast<void*>(&std::memcpy)},
      {"memmove", reinterpret_cast<void*>(&std::memmove)},
      {"memset", reinterpret_cast<void*>(&std::memset)},
      {"memcmp", reinterpret_cast<void*>(&std::memcmp)},
      {"fmod", reinterpret_cast<void*>(static_cast<double (*)(double, double)>(&std::fmod))},
      {"fmodf", reinterpret_cast<void*>(static_cast<float (*)(float, float)>(&std::fmod))},
  }};
  const auto found = std::find_if(functions.begin(), functions.end(),
                                  [name](const Entry& entry) { return entry.name == name; });
  if (found == functions.end()) {
    refuse("it calls " + std::string(name) + ", which kernels cannot reach");
  }
  return found->address;
}

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Sections are gathered by what may be done with their memory, each group on pages of its own.
enum Group : size_t { kCode, kConstants, kData, kGroups };
constexpr std::array<int, kGroups> kProtection = {PROT_READ | PROT_EXEC, PROT_READ,
                                                  PROT_READ | PROT_WRITE};

struct Layout {
  std::array<uint64_t, kGroups + 1> begin{};  // of each group; the last is the end
  std::vector<uint64_t> section;              // offset of each section, or kAbsent
  uint64_t addresses = 0;                     // one of 8 bytes for each symbol
  uint64_t jumps = 0;                         // one of kJumpBytes for each symbol
};
constexpr uint64_t kAbsent = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kJumpBytes = 8;
constexpr uint64_t kLargest = UINT64_C(1) << 30;

class Linker {
 public:
  explicit Linker(Bytes object) : file_(object) {
    const auto header = file_.table<Elf64_Ehdr>(0, sizeof(Elf64_Ehdr)).front();
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) refuse("it is no ELF file");
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_REL ||
        header.e_machine != EM_X86_64 || header.e_shentsize != sizeof(Elf64_Shdr)) {
      refuse("it is no relocatable ELF object for x86-64");
    }
    sections_ =
        file_.table<Elf64_Shdr>(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr));
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_SYMTAB) continue;
      symbols_ = file_.table<Elf64_Sym>(section.sh_offset, section.sh_size);
      const Elf64_Shdr& strings = section_at(section.sh_link);
      names_ = file_.slice(strings.sh_offset, strings.sh_size);
    }
    place();
  }

  const Layout& layout() const { return layout_; }

  // Writes the object to its place.
  void link(std::byte* base) {
    base_ = base;
    for (size_t i = 0; i < sections_.size(); ++i) {
      if (layout_.section[i] == kAbsent || sections_[i].sh_type == SHT_NOBITS) continue;
      const Bytes content = file_.slice(sections_[i].sh_offset, sections_[i].sh_size);
      std::memcpy(base + layout_.section[i], content.data(), content.size());
    }
    resolve();
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_RELA) continue;
      if (section.sh_info >= sections_.size()) refuse("relocations of no section");
      if (layout_.section[section.sh_info] == kAbsent) continue;  // of debug or unwind tables
      for (const auto& entry : file_.table<Elf64_Rela>(section.sh_offset, section.sh_size)) {
        relocate(entry, section.sh_info);
      }
    }
  }

  std::unordered_map<std::string, void*> functions() const {
    std::unordered_map<std::string, void*> found;
    for (size_t i = 0; i < symbols_.size(); ++i) {
      const Elf64_Sym& symbol = symbols_[i];
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF) continue;
      found.emplace(text_at(names_, symbol.st_name), reinterpret_cast<void*>(values_[i]));
    }
    return found;
  }

 private:
  const Elf64_Shdr& section_at(size_t index) const {
    if (index >= sections_.size()) refuse("it names a section that it does not have");
    return sections_[index];
  }

  std::string section_name(const Elf64_Shdr& section) const {
    const auto header = file_.table<Elf64_Ehdr>(0, sizeof(Elf64_Ehdr)).front();
    const Elf64_Shdr& strings = section_at(header.e_shstrndx);
    return text_at(file_.slice(strings.sh_offset, strings.sh_size), section.sh_name);
  }

  Group group_of(const Elf64_Shdr& section) const {
    if ((section.sh_flags & SHF_EXECINSTR) != 0) return kCode;
    // Constants that hold addresses are written once, here, before the pages are locked.
    const bool relocated_once = section_name(section).starts_with(".data.rel.ro");
    return (section.sh_flags & SHF_WRITE) != 0 && !relocated_once ? kData : kConstants;
  }

  bool is_loaded(const Elf64_Shdr& section) const {
    if ((section.sh_flags & SHF_ALLOC) == 0 || section.sh_size == 0) return false;
    if ((section.sh_flags & SHF_TLS) != 0) refuse("it has thread-local data");
    // Kernels throw nothing, so nobody unwinds through them.
    return section_name(section) != ".eh_frame" && section.sh_type != SHT_NOTE;
  }

  void place() {
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    layout_.section.assign(sections_.size(), kAbsent);
    uint64_t end = 0;
    const auto take = [&end](uint64_t bytes, uint64_t alignment) {
      if (!std::has_single_bit(alignment) || alignment > kLargest || bytes > kLargest) {
        refuse("a section's size or alignment is out of range");
      }
      const uint64_t begin = round_up(end, alignment);
      end = begin + bytes;
      if (end > kLargest) refuse("it is larger than a gigabyte");
      return begin;
    };
    for (size_t group = 0; group < kGroups; ++group) {
      end = layout_.begin[group] = round_up(end, page);
      for (size_t i = 0; i < sections_.size(); ++i) {
        const Elf64_Shdr& section = sections_[i];
        if (!is_loaded(section) || group_of(section) != group) continue;
        layout_.section[i] = take(section.sh_size, std::max<uint64_t>(section.sh_addralign, 1));
      }
      if (group == kCode) layout_.jumps = take(symbols_.size() * kJumpBytes, kJumpBytes);
      if (group == kConstants) layout_.addresses = take(symbols_.size() * 8, 8);
    }
    layout_.begin[kGroups] = std::max(round_up(end, page), page);
  }

  uint64_t address(uint64_t offset) const { return reinterpret_cast<uint64_t>(base_) + offset; }

  // The value of each symbol, its entry in the table of addresses and, for what lies outside, the
  // jump there.
  void resolve() {
    values_.assign(symbols_.size(), 0);
    for (size_t i = 1; i < symbols_.size(); ++i) {
      const Elf64_Sym& symbol = symbols_[i];
      if (symbol.st_shndx == SHN_UNDEF) {
        const std::string name = text_at(names_, symbol.st_name);
        if (name == "_GLOBAL_OFFSET_TABLE_") {
          values_[i] = address(layout_.addresses);
          continue;
        }
        values_[i] = reinterpret_cast<uint64_t>(library_function(name));
      } else if (symbol.st_shndx == SHN_ABS) {
        values_[i] = symbol.st_value;
      } else if (symbol.st_shndx == SHN_COMMON || symbol.st_shndx >= sections_.size()) {
        refuse("a symbol is of a kind that is not handled");
      } else if (layout_.section[symbol.st_shndx] != kAbsent) {
        values_[i] = address(layout_.section[symbol.st_shndx]) + symbol.st_value;
      }
      std::memcpy(base_ + layout_.addresses + i * 8, &values_[i], 8);
      // jmp *address(%rip)
      const uint64_t jump = layout_.jumps + i * kJumpBytes;
      const auto distance = static_cast<int32_t>(layout_.addresses + i * 8 - (jump + 6));
      base_[jump] = std::byte{0xff};
      base_[jump + 1] = std::byte{0x25};
      std::memcpy(base_ + jump + 2, &distance, sizeof distance);
    }
  }

  template <typename T>
  void write(std::byte* place, int64_t value) {
    if (sizeof(T) < 8 && (value < static_cast<int64_t>(std::numeric_limits<T>::min()) ||
                          value > static_cast<int64_t>(std::numeric_limits<T>::max()))) {
      refuse("an address does not fit where the code wants it; compile position-independent code");
    }
    const auto narrow = static_cast<T>(value);
    std::memcpy(place, &narrow, sizeof narrow);
  }

  void relocate(const Elf64_Rela& entry, size_t target) {
    const size_t index = ELF64_R_SYM(entry.r_info);
    const uint64_t type = ELF64_R_TYPE(entry.r_info);
    if (index >= symbols_.size()) refuse("a relocation names no symbol");
    const bool wide = type == R_X86_64_64 || type == R_X86_64_PC64 || type == R_X86_64_GOTOFF64 ||
                      type == R_X86_64_GOTPC64 || type == R_X86_64_GOT64;
    const uint64_t width = wide ? 8 : 4;
    const uint64_t size = sections_[target].sh_size;
    if (entry.r_offset > size || width > size - entry.r_offset) {
      refuse("a relocation lies outside of its section");
    }
    const uint64_t offset = layout_.section[target] + entry.r_offset;
    std::byte* place = base_ + offset;
    const auto here = static_cast<int64_t>(address(offset));
    const auto table = static_cast<int64_t>(address(layout_.addresses));
    const auto value = static_cast<int64_t>(values_[index]) + entry.r_addend;
    const int64_t in_table = static_cast<int64_t>(index) * 8 + entry.r_addend;
    const auto jump = static_cast<int64_t>(address(layout_.jumps + index * kJumpBytes));
    switch (type) {
      case R_X86_64_NONE:
        return;
      case R_X86_64_64:
        return write<int64_t>(place, value);
      case R_X86_64_32:
        return write<uint32_t>(place, value);
      case R_X86_64_32S:
        return write<int32_t>(place, value);
      case R_X86_64_PC64:
        return write<int64_t>(place, value - here);
      case R_X86_64_PC32:
      case R_X86_64_PLT32:
        if (symbols_[index].st_shndx == SHN_UNDEF) {
          return write<int32_t>(place, jump + entry.r_addend - here);
        }
        return write<int32_t>(place, value - here);
      case R_X86_64_GOTPCREL:
      case R_X86_64_GOTPCRELX:
      case R_X86_64_REX_GOTPCRELX:
        return write<int32_t>(place, table + in_table - here);
      case R_X86_64_GOTPC32:
        return write<int32_t>(place, table + entry.r_addend - here);
      case R_X86_64_GOTPC64:
        return write<int64_t>(place, table + entry.r_addend - here);
      case R_X86_64_GOT64:
        return write<int64_t>(place, in_table);
      case R_X86_64_GOTOFF64:
        return write<int64_t>(place, value - table);
      default:
        refuse("it has a relocation of type " + std::to_string(type));
    }
  }

  File file_;
  std::vector<Elf64_Shdr> sections_;
  std::vector<Elf64_Sym> symbols_;
  Bytes names_;
  Layout layout_;
  std::byte* base_ = nullptr;
  std::vector<uint64_t> values_;
};

std::runtime_error system_error(const char* what) {
  return std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

LoadedObject::LoadedObject(std::span<const std::byte> object) {
  Linker linker(object);
  const Layout& layout = linker.layout();
  bytes_ = layout.begin[kGroups];
  void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw system_error("the host refused memory for a kernel's code");
  // From here on the destructor does not run on its own.
  std::unique_ptr<void, std::function<void(void*)>> guard(
      mapped, [this](void* memory) { munmap(memory, bytes_); });
  linker.link(static_cast<std::byte*>(mapped));
  for (size_t group = 0; group < kGroups; ++group) {
    const size_t size = layout.begin[group + 1] - layout.begin[group];
    if (size == 0) continue;
    void* begin = static_cast<std::byte*>(mapped) + layout.begin[group];
    if (mprotect(begin, size, kProtection[group]) != 0) {
      throw system_error("the host does not let a kernel's memory be made executable");
    }
  }
  functions_ = linker.functions();
  mapping_ = static_cast<std::byte*>(guard.release());
}

LoadedObject::~LoadedObject() { munmap(mapping_, bytes_); }

void* LoadedObject::function(std::string_view name) const {
  const auto found = functions_.find(std::string(name));
  if (found == functions_.end()) {
    throw std::invalid_argument("the object code defines no function " + std::string(name));
  }
  return found->second;
}

}  // namespace anvil::triton
