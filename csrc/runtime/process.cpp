// SPDX-License-Identifier: Apache-2.0
#include "process.h"

#include <pthread.h>

#include <cstring>
#include <string>

namespace anvil {
namespace process {

std::atomic<bool> forked_child{false};
std::atomic<bool> in_use{false};

namespace {

void MarkChild() {
  if (in_use.load(std::memory_order_relaxed)) {
    forked_child.store(true, std::memory_order_relaxed);
  }
}

}  // namespace
}  // namespace process

anvilError_t FailForked() noexcept {
  return Fail(ANVIL_ERROR_FORKED,
              "This process was forked from one that was already using the anvil device, "
              "which does not work in the child. Start workers with the \"spawn\" method "
              "(multiprocessing.set_start_method(\"spawn\"), VLLM_WORKER_MULTIPROC_METHOD=spawn), "
              "or fork before the first use of the device.");
}

anvilError_t WatchForks() noexcept {
  static const int status = pthread_atfork(nullptr, nullptr, process::MarkChild);
  if (status != 0) {
    return Fail(ANVIL_ERROR_SYSTEM,
                std::string("Cannot register a fork handler: ") + std::strerror(status) + ".");
  }
  process::in_use.store(true, std::memory_order_relaxed);
  return ANVIL_SUCCESS;
}

void IgnoreForks() noexcept { process::in_use.store(false, std::memory_order_relaxed); }

}  // namespace anvil

int anvilIsInUse(void) { return anvil::process::in_use.load(std::memory_order_relaxed) ? 1 : 0; }

int anvilIsForkedChild(void) { return anvil::IsForkedChild() ? 1 : 0; }
