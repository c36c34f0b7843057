// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of a group share, and what lies where in it.
//
// It is a memfd: it has no name in any file system, so that it meets no other engine's, takes
// nothing of /dev/shm, is this user's alone, and is gone with the last process that holds it,
// however that ends. Others attach through /proc/PID/fd of the process that made it, which works
// where they see the same processes; ranks that do not cannot share memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace anvil::comm {

inline constexpr int kMaxRanks = 64;

// Flags that different ranks write lie on lines of their own; two of 64 bytes each, since
// processors fetch lines in pairs.
inline constexpr size_t kLine = 128;

// How far a rank has got on the board, which all ranks step through together; see board.h.
struct RankState {
  enum : uint32_t { kAbsent, kJoined, kLeft, kFailed };

  alignas(kLine) std::atomic<uint64_t> published;  // steps whose slots may be read
  alignas(kLine) std::atomic<uint64_t> consumed;   // steps of which nothing will be read any more
  alignas(kLine) std::atomic<uint32_t> bell;       // changes for a rank that sleeps on it
  alignas(kLine) std::atomic<uint32_t> asleep;
  alignas(kLine) std::atomic<uint32_t> presence;
  int32_t pid;
  char words[1024];  // why it failed
};

// Messages from one rank to another; see channel.h.
struct ChannelState {
  alignas(kLine) std::atomic<uint64_t> sent;
  alignas(kLine) std::atomic<uint64_t> taken;
};

// What the writer of a slot says about it.
struct alignas(kLine) SlotHeader {
  uint64_t words[4];
};

class Segment {
 public:
  static constexpr uint64_t kSlots = 8;         // of a rank on the board
  static constexpr uint64_t kChannelSlots = 4;  // of a channel

  // Memory for `ranks` ranks (at most kMaxRanks). `slot_bytes` is what a slot holds, a multiple of
  // kLine. Throws CommError where the system refuses.
  static std::shared_ptr<Segment> Create(int ranks, size_t slot_bytes);
  // The segment that another process, or this one, has made, by its address. Throws CommError, with
  // the reason, where it cannot be reached from here.
  static std::shared_ptr<Segment> Attach(const std::string& address);

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  // What Attach takes. Ends with close_entrance().
  const std::string& address() const { return address_; }
  // Once all ranks have attached: nobody else can.
  void close_entrance();

  int ranks() const { return ranks_; }
  size_t slot_bytes() const { return slot_bytes_; }

  RankState& rank(int rank) const;
  SlotHeader& slot_header(int rank, uint64_t step) const;
  std::byte* slot(int rank, uint64_t step) const;
  ChannelState& channel(int from, int to) const;
  SlotHeader& channel_header(int from, int to, uint64_t index) const;
  std::byte* channel_slot(int from, int to, uint64_t index) const;

 private:
  struct Header;

  Segment(int file, void* memory, size_t bytes);
  static size_t BytesFor(int ranks, size_t slot_bytes);

  int file_;
  std::byte* const memory_;
  const size_t bytes_;
  std::string address_;
  int ranks_ = 0;
  size_t slot_bytes_ = 0;
};

}  // namespace anvil::comm
