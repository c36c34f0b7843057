// SPDX-License-Identifier: Apache-2.0
//
// Memory for tests of kernels whose neighbours cannot be touched: what is read or written one
// element too far ends the process there, in any build.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>

namespace anvil::kernels {

// Address space without access. Parts of it can be opened; the rest costs no memory.
class AddressSpace {
 public:
  explicit AddressSpace(size_t bytes) : bytes_(bytes) {
    void* mapped =
        ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<char*>(mapped);
  }
  ~AddressSpace() { ::munmap(data_, bytes_); }
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  char* data() const { return data_; }
  // Makes the pages accessible on which [offset, offset + bytes) lies; new ones hold zeros.
  char* open(size_t offset, size_t bytes) {
    const size_t first = offset / page() * page();
    if (::mprotect(data_ + first, whole_pages(offset + bytes) - first, PROT_READ | PROT_WRITE)) {
      throw std::runtime_error("mprotect: too many mappings?");
    }
    return data_ + offset;
  }

  static size_t page() {
    static const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    return size;
  }
  static size_t whole_pages(size_t bytes) { return (bytes + page() - 1) / page() * page(); }

 private:
  size_t bytes_;
  char* data_;
};

enum class Place {
  kBeforeGuard,  // the last byte lies before a page without access
  kBehindGuard,  // the first byte lies behind one
  kHeap,         // AddressSanitizer watches both ends
};
constexpr Place kPlaces[] = {Place::kBeforeGuard, Place::kBehindGuard, Place::kHeap};

// Bytes at a place, all of them 0xff: a NaN in every floating type.
class GuardedMemory {
 public:
  // Where `bytes` is no multiple of the alignment, some bytes lie between the end and the guard.
  GuardedMemory(size_t bytes, Place place, size_t alignment = 4)
      : bytes_(bytes),
        alignment_(alignment),
        heap_(place == Place::kHeap),
        pages_(AddressSpace::whole_pages(bytes)),
        space_(heap_ ? AddressSpace::page() : pages_ + 2 * AddressSpace::page()) {
    if (heap_) {
      data_ = static_cast<char*>(::operator new(bytes, std::align_val_t{alignment}));
      std::memset(data_, 0xff, bytes);
      return;
    }
    inside_ = pages_ > 0 ? space_.open(AddressSpace::page(), pages_)
                         : space_.data() + AddressSpace::page();
    std::memset(inside_, 0xff, pages_);
    const size_t slack = (pages_ - bytes) / alignment * alignment;
    data_ = inside_ + (place == Place::kBeforeGuard ? slack : 0);
  }
  ~GuardedMemory() {
    if (heap_) ::operator delete(data_, std::align_val_t{alignment_});
  }

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

  // From now on writing to it ends the process. Not on the heap.
  void make_read_only() {
    if (!heap_ && pages_ > 0) ::mprotect(inside_, pages_, PROT_READ);
  }

  // Whether the rest of the pages is as it was.
  bool surroundings_are_intact() const {
    if (heap_) return true;
    for (const char* byte = inside_; byte < inside_ + pages_; ++byte) {
      if ((byte < data_ || byte >= data_ + bytes_) && *byte != '\xff') return false;
    }
    return true;
  }

 private:
  size_t bytes_, alignment_;
  bool heap_;
  size_t pages_;
  AddressSpace space_;
  char* inside_ = nullptr;
  char* data_ = nullptr;
};

// Rows at equal distances, each of which lies before a page without access of its own.
class GuardedRows {
 public:
  GuardedRows(size_t rows, size_t row_bytes)
      : pages_(AddressSpace::whole_pages(row_bytes)),
        first_(pages_ - row_bytes),
        space_(rows * stride() + 1) {
    for (size_t row = 0; row < rows; ++row) {
      std::memset(space_.open(row * stride(), pages_), 0xff, pages_);
    }
  }

  char* data() const { return space_.data() + first_; }
  size_t stride() const { return pages_ + AddressSpace::page(); }

 private:
  size_t pages_, first_;
  AddressSpace space_;
};

}  // namespace anvil::kernels
