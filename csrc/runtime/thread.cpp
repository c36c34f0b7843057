// SPDX-License-Identifier: Apache-2.0
#include "thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>

namespace anvil {

int StartThread(void* (*body)(void*), void* arg) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int status = pthread_create(&thread, &attributes, body, arg);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return status;
}

void SettleThread(const char* name, const std::vector<int>& cores) {
  pthread_setname_np(pthread_self(), name);
  const int capacity = *std::max_element(cores.begin(), cores.end()) + 1;
  cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(capacity));
  if (set == nullptr) return;
  const size_t size = CPU_ALLOC_SIZE(static_cast<size_t>(capacity));
  CPU_ZERO_S(size, set);
  for (int core : cores) CPU_SET_S(static_cast<size_t>(core), size, set);
  // A refusal (a sandbox, cores taken away meanwhile) leaves the process's own affinity.
  pthread_setaffinity_np(pthread_self(), size, set);
  CPU_FREE(set);
}

}  // namespace anvil
