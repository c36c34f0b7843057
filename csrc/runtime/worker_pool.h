// SPDX-License-Identifier: Apache-2.0
// The threads of one device, and parallel regions over them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "anvil/runtime.h"

namespace anvil {

// A region is cut into one part for each thread that takes part. Every other thread is offered its
// part and takes it when it gets to it; the caller runs the first part, then those that nobody has
// taken yet. A thread that is asleep, late or could not be started therefore delays nothing, and
// the cut, which fixes what is computed where, depends on nothing but the sizes.
//
// Never destroyed: its threads are detached and end with the process.
class WorkerPool {
 public:
  // `cores`: logical CPUs, one for each thread that takes part, the caller included.
  WorkerPool(int device, std::vector<int> cores);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // See anvilParallelFor. A region that is asked for while another thread's is running runs on its
  // caller alone: two at once would put more threads to work than the device has cores.
  // Fails with ANVIL_ERROR_COMMAND when `fn` throws.
  anvilError_t Run(int64_t n, int64_t grain, anvilRangeFn fn, void* arg);

  // Threads that share regions, the caller included: one for each core unless set otherwise.
  int size() const { return size_.load(std::memory_order_relaxed); }

  // Fails with ANVIL_ERROR_INVALID_VALUE for a count below 1 or above capacity(). Waits for a
  // region that is running; not to be called within one.
  anvilError_t Resize(int count);

  int capacity() const { return capacity_; }

  struct Region {
    anvilRangeFn fn = nullptr;
    void* arg = nullptr;
    int64_t n = 0;
    int64_t parts = 0;
  };

 private:
  // What a thread is offered; on a cache line of its own, since it spins on it.
  struct alignas(64) Offer {
    std::atomic<uint32_t> state{0};
  };

  void StartThreads(int count);
  void Acquire();
  void WorkerLoop(int worker);
  static void* ThreadMain(void* arg);
  void RunPart(const Region& region, int64_t part);
  void RunOffered(int64_t part);
  void WaitForOthers();
  anvilError_t TakeError();

  const int device_;
  const std::vector<int> cores_;
  const int capacity_;
  std::atomic<int> size_;
  std::atomic<bool> busy_{false};  // a region is running; the holder is the only one to write below
  int threads_ = 1;                // that have started, the caller included
  bool refused_ = false;           // the system would start no more
  std::unique_ptr<Offer[]> offers_;  // by worker
  Region region_;  // written while no offer is open, read by whoever has taken one
  alignas(64) std::atomic<uint32_t> unfinished_{0};  // parts, and whether the caller sleeps
  std::mutex error_mutex_;
  std::string error_;  // of the region's first part that threw; empty: none did
};

}  // namespace anvil
