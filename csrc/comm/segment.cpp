// SPDX-License-Identifier: Apache-2.0
#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "error.h"

namespace anvil::comm {
namespace {

constexpr char kMagic[] = "anvil-comm-1";
constexpr size_t kNonceDigits = 32;

constexpr size_t RoundUp(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

std::string RandomDigits() {
  unsigned char bytes[kNonceDigits / 2];
  if (getrandom(bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes))) {
    throw CommError("The system gives no random numbers to tell a shared segment by: " +
                    std::string(std::strerror(errno)) + ".");
  }
  std::string digits;
  for (const unsigned char byte : bytes) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", byte);
    digits += two;
  }
  return digits;
}

class File {
 public:
  explicit File(int file) : file_(file) {}
  ~File() {
    if (file_ >= 0) close(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return file_; }
  int release() { return std::exchange(file_, -1); }

 private:
  int file_;
};

void* Map(int file, size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) {
    throw CommError("The system refused to map a segment of " + std::to_string(bytes) +
                    " bytes between ranks: " + std::strerror(errno) + ".");
  }
  return memory;
}

}  // namespace

struct Segment::Header {
  char magic[16];
  char nonce[kNonceDigits];
  uint64_t ranks;
  uint64_t slot_bytes;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);

// One after the other: header, ranks, channels, the board's slots, the channels' slots. What is
// never touched takes no memory.
size_t Segment::BytesFor(int ranks, size_t slot_bytes) {
  const size_t count = static_cast<size_t>(ranks);
  const size_t slot = sizeof(SlotHeader) + slot_bytes;
  return RoundUp(sizeof(Header), kLine) + count * sizeof(RankState) +
         count * count * sizeof(ChannelState) + count * kSlots * slot +
         count * count * kChannelSlots * slot;
}

Segment::Segment(int file, void* memory, size_t bytes)
    : file_(file), memory_(static_cast<std::byte*>(memory)), bytes_(bytes) {}

Segment::~Segment() {
  close_entrance();
  munmap(memory_, bytes_);
}

std::shared_ptr<Segment> Segment::Create(int ranks, size_t slot_bytes) {
  if (ranks < 1 || ranks > kMaxRanks || slot_bytes == 0 || slot_bytes % kLine != 0) {
    throw CommError("A shared segment is for 1 to " + std::to_string(kMaxRanks) + " ranks, not " +
                    std::to_string(ranks) + ".");
  }
  const std::string nonce = RandomDigits();
  const std::string name = std::string(kMagic) + "-" + nonce;
  File file(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const size_t bytes = BytesFor(ranks, slot_bytes);
  // Of a size that nobody can change: no rank faults on memory that another has cut off.
  if (file.get() < 0 || fchmod(file.get(), 0600) != 0 ||
      ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw CommError("The system refused a segment of " + std::to_string(bytes) +
                    " bytes between ranks: " + std::strerror(errno) + ".");
  }
  void* const memory = Map(file.get(), bytes);
  std::shared_ptr<Segment> segment(new Segment(file.release(), memory, bytes));
  auto* const header = static_cast<Header*>(memory);
  header->ranks = static_cast<uint64_t>(ranks);
  header->slot_bytes = slot_bytes;
  std::memcpy(header->nonce, nonce.data(), kNonceDigits);
  std::memcpy(header->magic, kMagic, sizeof(kMagic));
  segment->ranks_ = ranks;
  segment->slot_bytes_ = slot_bytes;
  segment->address_ = std::to_string(getpid()) + "/" + std::to_string(segment->file_) + "/" + nonce;
  return segment;
}

std::shared_ptr<Segment> Segment::Attach(const std::string& address) {
  int pid = 0, number = 0;
  char nonce[kNonceDigits + 1] = {};
  if (std::sscanf(address.c_str(), "%d/%d/%32[0-9a-f]", &pid, &number, nonce) != 3) {
    throw CommError("'" + address + "' is no address of a shared segment.");
  }
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  const auto refuse = [&](const std::string& why) {
    return CommError("process " + std::to_string(getpid()) + " cannot share memory with process " +
                     std::to_string(pid) + " (" + path + ": " + why +
                     "): it runs on another host, in another process namespace, or as another "
                     "user");
  };
  // By its name first: opening whatever else has this number here could have effects.
  char target[128] = {};
  if (readlink(path.c_str(), target, sizeof(target) - 1) < 0) throw refuse(std::strerror(errno));
  if (std::strstr(target, nonce) == nullptr) throw refuse("that is another file");
  File file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat facts = {};
  if (file.get() < 0 || fstat(file.get(), &facts) != 0) throw refuse(std::strerror(errno));
  const size_t bytes = static_cast<size_t>(facts.st_size);
  if (bytes < sizeof(Header)) throw refuse("that is another file");
  void* const memory = Map(file.get(), bytes);
  std::shared_ptr<Segment> segment(new Segment(-1, memory, bytes));
  const auto* const header = static_cast<const Header*>(memory);
  const int ranks = static_cast<int>(header->ranks);
  if (std::memcmp(header->magic, kMagic, sizeof(kMagic)) != 0 ||
      std::memcmp(header->nonce, nonce, kNonceDigits) != 0 || ranks < 1 || ranks > kMaxRanks ||
      bytes != BytesFor(ranks, header->slot_bytes)) {
    throw refuse("that is another version's segment");
  }
  segment->ranks_ = ranks;
  segment->slot_bytes_ = header->slot_bytes;
  return segment;
}

void Segment::close_entrance() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

RankState& Segment::rank(int rank) const {
  return reinterpret_cast<RankState*>(memory_ + RoundUp(sizeof(Header), kLine))[rank];
}

ChannelState& Segment::channel(int from, int to) const {
  return reinterpret_cast<ChannelState*>(&rank(ranks_))[from * ranks_ + to];
}

SlotHeader& Segment::slot_header(int rank, uint64_t step) const {
  std::byte* const slots = reinterpret_cast<std::byte*>(&channel(ranks_, 0));
  const size_t index = static_cast<size_t>(rank) * kSlots + step % kSlots;
  return *reinterpret_cast<SlotHeader*>(slots + index * (sizeof(SlotHeader) + slot_bytes_));
}

std::byte* Segment::slot(int rank, uint64_t step) const {
  return reinterpret_cast<std::byte*>(&slot_header(rank, step) + 1);
}

SlotHeader& Segment::channel_header(int from, int to, uint64_t index) const {
  std::byte* const slots = reinterpret_cast<std::byte*>(&slot_header(ranks_, 0));
  const size_t place = static_cast<size_t>(from * ranks_ + to) * kChannelSlots;
  return *reinterpret_cast<SlotHeader*>(slots + (place + index % kChannelSlots) *
                                                    (sizeof(SlotHeader) + slot_bytes_));
}

std::byte* Segment::channel_slot(int from, int to, uint64_t index) const {
  return reinterpret_cast<std::byte*>(&channel_header(from, to, index) + 1);
}

}  // namespace anvil::comm
