// SPDX-License-Identifier: Apache-2.0
#include "pinned_pages.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace anvil::sanitizer {
namespace {

std::atomic<PinnedPages*> instance{nullptr};
struct sigaction previous_action;

uintptr_t PageSize() {
  static const uintptr_t size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return size;
}

uintptr_t PageOf(uintptr_t address) { return address & ~(PageSize() - 1); }

// A fault that is none of ours is for whoever handled it before.
void PassOn(int signal, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    return previous_action.sa_sigaction(signal, info, context);
  }
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    return previous_action.sa_handler(signal);
  }
  // The instruction faults again and ends the process, as it would have done without us.
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  if (info->si_code <= 0) raise(signal);  // sent by somebody: nothing will fault again
}

void OnSignal(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  const bool ours = info->si_code == SEGV_ACCERR &&
                    instance.load()->HandleFault(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = saved;
  if (!ours) PassOn(signal, info, context);
}

}  // namespace

class PinnedPages::Lock {
 public:
  explicit Lock(PinnedPages* pages) : pages_(pages) {
    while (pages_->locked_.test_and_set(std::memory_order_acquire)) sched_yield();
  }
  ~Lock() { pages_->locked_.clear(std::memory_order_release); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  PinnedPages* const pages_;
};

PinnedPages& PinnedPages::Get() {
  static PinnedPages& pages = *[] {
    PageSize();  // the handler must not be the first to ask
    instance.store(new PinnedPages);
    return instance.load();
  }();
  return pages;
}

bool PinnedPages::OwnsSignal() {
  static const bool installed = [] {
    struct sigaction action{};
    action.sa_sigaction = OnSignal;
    // On the thread's alternate stack where it has one: handlers before ours may need that.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGSEGV, &action, &previous_action) == 0;
  }();
  struct sigaction current{};
  return installed && sigaction(SIGSEGV, nullptr, &current) == 0 &&
         (current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == OnSignal;
}

// Calls change(page) for each page around [begin, end) that is known; where it returns true, the
// page becomes read-only or writable. Neighbours in one call of the system.
template <typename Change>
void PinnedPages::SetAccess(uintptr_t begin, uintptr_t end, bool read_only, Change&& change) {
  uintptr_t from = 0, to = 0;
  const auto flush = [&] {
    if (from == to) return;
    const int access = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    const bool done = mprotect(reinterpret_cast<void*>(from), to - from, access) == 0;
    for (uintptr_t at = from; at < to; at += PageSize()) pages_[at].read_only = read_only && done;
  };
  for (uintptr_t at = PageOf(begin); at < end; at += PageSize()) {
    const auto found = pages_.find(at);
    if (found == pages_.end() || !change(found->second)) continue;
    if (at != to) {
      flush();
      from = at;
    }
    to = at + PageSize();
  }
  flush();
}

void PinnedPages::Protect(uintptr_t begin, uintptr_t end) {
  const bool enforce = OwnsSignal();
  const Lock lock(this);
  for (uintptr_t at = PageOf(begin); at < end; at += PageSize()) ++pages_[at].reasons;
  SetAccess(begin, end, true, [enforce](Page& page) { return enforce && !page.read_only; });
}

void PinnedPages::Release(uintptr_t begin, uintptr_t end) {
  const Lock lock(this);
  SetAccess(begin, end, false, [](Page& page) {
    if (page.reasons > 0) --page.reasons;
    return page.reasons == 0 && page.read_only;
  });
}

void PinnedPages::Open(uintptr_t begin, uintptr_t end) {
  const Lock lock(this);
  SetAccess(begin, end, false, [](Page& page) { return page.read_only; });
}

void PinnedPages::Forget(uintptr_t begin, uintptr_t end) {
  Open(begin, end);
  const Lock lock(this);
  for (uintptr_t at = PageOf(begin); at < end; at += PageSize()) pages_.erase(at);
}

bool PinnedPages::HandleFault(uintptr_t address) {
  {
    const Lock lock(this);
    const auto found = pages_.find(PageOf(address));
    if (found == pages_.end()) return false;
    if (!found->second.read_only) return true;  // meanwhile writable: the write tries again
  }
  // Without the lock, it is another's code. Until the page is writable, the command that reads it
  // cannot finish unseen after the write: it comes first or the fault is remembered.
  Fault fault{address, ""};
  if (const auto call_site = call_site_.load()) call_site(fault.where, sizeof fault.where);
  fault.where[sizeof fault.where - 1] = '\0';
  const Lock lock(this);
  const auto found = pages_.find(PageOf(address));
  if (found == pages_.end() || !found->second.read_only) return true;
  const size_t count = fault_count_.load();
  if (count < faults_.size()) {
    std::memcpy(&faults_[count], &fault, sizeof fault);
    fault_count_.store(count + 1);
  }
  const bool writable =
      mprotect(reinterpret_cast<void*>(PageOf(address)), PageSize(), PROT_READ | PROT_WRITE) == 0;
  found->second.read_only = !writable;
  return writable;
}

std::vector<PinnedPages::Fault> PinnedPages::TakeFaults() {
  if (fault_count_.load() == 0) return {};
  const Lock lock(this);
  std::vector<Fault> faults(faults_.begin(), faults_.begin() + fault_count_.load());
  fault_count_.store(0);
  return faults;
}

}  // namespace anvil::sanitizer
