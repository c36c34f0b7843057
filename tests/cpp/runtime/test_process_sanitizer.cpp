// SPDX-License-Identifier: Apache-2.0
// The stream sanitizer through the driver interface: ANVIL_SANITIZE=1, each program in a process of
// its own.
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "child_process.h"

namespace {

constexpr size_t kBytes = 4096;

// Where the program says it is; the executor asks, too.
std::atomic<const char*> place{""};

void UseSanitizer(const char* launch_blocking = "0") {
  UseOneSmallDevice();
  setenv("ANVIL_LAUNCH_BLOCKING", launch_blocking, 1);
  setenv("ANVIL_SANITIZE", "1", 1);
  const auto where = [](char* text, size_t capacity) {
    std::strncpy(text, place.load(), capacity);
  };
  REQUIRE_OK(anvilSanitizerSetCallSite(where));
  REQUIRE_OK(anvilSanitizerSetSignalCallSite(where));
  int count = 0;
  REQUIRE_OK(anvilGetDeviceCount(&count));
  REQUIRE(anvilSanitizerEnabled() == 1);
}

anvilStream_t NewStream() {
  anvilStream_t stream = nullptr;
  REQUIRE_OK(anvilStreamCreate(&stream, 0, 0));
  return stream;
}

anvilEvent_t NewEvent() {
  anvilEvent_t event = nullptr;
  REQUIRE_OK(anvilEventCreate(&event, ANVIL_EVENT_DEFAULT));
  return event;
}

struct Memory {
  anvilBlock_t block = nullptr;
  void* ptr = nullptr;
};

Memory Allocate(anvilStream_t stream) {
  Memory memory;
  REQUIRE_OK(anvilMallocAsync(&memory.block, &memory.ptr, kBytes, stream, ANVIL_ALLOC_DEFAULT));
  return memory;
}

// A command that says what it touches.
void Use(anvilStream_t stream, const char* name, const Memory& memory, unsigned flags,
         const char* where) {
  place = where;
  const anvilAccess access{memory.block, memory.ptr, kBytes, flags};
  const anvilCommand command{name, [](void*) { return ANVIL_SUCCESS; }, nullptr, nullptr, &access,
                             1};
  REQUIRE(anvilStreamWantsAccesses(stream) == 1);
  REQUIRE_OK(anvilStreamSubmit(stream, &command));
}

// Commands behind it in the stream run once it is opened.
class Gate {
 public:
  explicit Gate(anvilStream_t stream) {
    auto* const open = new std::shared_future<void>(promise_.get_future());
    const anvilCommand command{
        "gate",
        [](void* arg) {
          static_cast<std::shared_future<void>*>(arg)->wait();
          return ANVIL_SUCCESS;
        },
        [](void* arg) { delete static_cast<std::shared_future<void>*>(arg); },
        open,
        nullptr,
        0};
    REQUIRE_OK(anvilStreamSubmit(stream, &command));
  }
  void Open() { promise_.set_value(); }

 private:
  std::promise<void> promise_;
};

std::string TakeReports(uint64_t* count = nullptr) {
  size_t size = 0;
  uint64_t reports = 0;
  REQUIRE_OK(anvilSanitizerTakeReports(nullptr, 0, &size, &reports));
  std::vector<char> text(size);
  REQUIRE_OK(anvilSanitizerTakeReports(text.data(), size, &size, &reports));
  if (count != nullptr) *count = reports;
  return text.data();
}

// The one report since the last time has all of these words in it.
void RequireReport(std::initializer_list<const char*> words) {
  const std::string text = TakeReports();
  for (const char* part : words) {
    if (text.find(part) != std::string::npos) continue;
    std::fprintf(stderr, "no '%s' in the reports:\n%s\n", part, text.c_str());
    _exit(1);
  }
  REQUIRE(text.find("\n\n") == std::string::npos);
}

void RequireNoReport() {
  const std::string text = TakeReports();
  if (!text.empty()) _exit(2);  // it is on stderr
}

void ExpectInChild(const std::function<void()>& body) {
  EXPECT_EXIT(RunToTheEnd(body), testing::ExitedWithCode(0), "");
}

TEST(SanitizerDeathTest, IsOffUnlessAskedFor) {
  ExpectInChild([] {
    UseOneSmallDevice();
    unsetenv("ANVIL_SANITIZE");
    anvilStream_t a = NewStream(), b = NewStream();
    REQUIRE(anvilSanitizerEnabled() == 0);
    REQUIRE(anvilStreamWantsAccesses(a) == 0);
    const Memory memory = Allocate(a);
    REQUIRE_OK(anvilMemsetAsync(memory.ptr, 1, kBytes, a));
    REQUIRE_OK(anvilMemsetAsync(memory.ptr, 1, kBytes, b));
    RequireNoReport();
  });
}

TEST(SanitizerDeathTest, ReportsAreTakenOnceAndWhole) {
  ExpectInChild([] {
    UseSanitizer();
    anvilStream_t a = NewStream(), b = NewStream();
    const Memory memory = Allocate(a);
    for (int i = 0; i < 3; ++i) {
      Use(a, "produce", memory, ANVIL_ACCESS_WRITE, "step.py:3 in produce");
      Use(b, "consume", memory, ANVIL_ACCESS_READ, "step.py:7 in consume");
    }
    char small[10];
    size_t size = 0;
    uint64_t count = 0;
    REQUIRE_OK(anvilSanitizerTakeReports(small, sizeof small, &size, &count));
    REQUIRE(std::string(small) == "anvil san" && size > sizeof small);
    const std::string text = TakeReports(&count);
    REQUIRE(text.size() + 1 == size);
    // The first read, its successor's write behind it, and that is all, however often it happens.
    REQUIRE(count == 2 && text.find("\n\n") != std::string::npos);
    REQUIRE(TakeReports(&count).empty() && count == 2);
    REQUIRE(anvilSanitizerTakeReports(nullptr, 1, &size, &count) == ANVIL_ERROR_INVALID_VALUE);
    REQUIRE(anvilSanitizerTakeReports(small, 1, nullptr, &count) == ANVIL_ERROR_INVALID_VALUE);
    REQUIRE(anvilSanitizerTakeReports(small, 1, &size, nullptr) == ANVIL_ERROR_INVALID_VALUE);
  });
}

TEST(SanitizerDeathTest, FindsARaceBetweenStreams) {
  ExpectInChild([] {
    UseSanitizer();
    anvilStream_t a = NewStream(), b = NewStream();
    const std::string names[] = {"stream " + std::to_string(anvilStreamId(a)) + " of device 0",
                                 "stream " + std::to_string(anvilStreamId(b)) + " of device 0"};
    place = "model.py:1 in load";
    const Memory memory = Allocate(a);
    Use(a, "produce", memory, ANVIL_ACCESS_WRITE, "step.py:3 in produce");
    Use(b, "consume", memory, ANVIL_ACCESS_READ, "step.py:7 in consume");
    RequireReport({"race", "4096 bytes", "allocated at model.py:1 in load",
                   ("'consume' reads on " + names[1] + ", at step.py:7 in consume").c_str(),
                   ("'produce' writes on " + names[0] + ", at step.py:3 in produce").c_str()});
  });
}

TEST(SanitizerDeathTest, AcceptsEveryWayToEstablishAnOrder) {
  ExpectInChild([] {
    UseSanitizer();
    anvilStream_t a = NewStream(), b = NewStream();
    anvilEvent_t event = NewEvent();
    const Memory memory = Allocate(a);
    const auto on = [&](anvilStream_t stream) {
      Use(stream, "update", memory, ANVIL_ACCESS_READ | ANVIL_ACCESS_WRITE, "step.py:3 in update");
    };
    on(a);
    REQUIRE_OK(anvilEventRecord(event, a));
    REQUIRE_OK(anvilStreamWaitEvent(b, event));
    on(b);
    REQUIRE_OK(anvilStreamSynchronize(b));
    on(a);
    REQUIRE_OK(anvilEventRecord(event, a));
    REQUIRE_OK(anvilEventSynchronize(event));
    on(b);
    REQUIRE_OK(anvilDeviceSynchronize(0));
    on(a);
    while (anvilStreamQuery(a) == ANVIL_ERROR_NOT_READY) {
    }
    on(b);
    REQUIRE_OK(anvilEventRecord(event, b));
    while (anvilEventQuery(event) == ANVIL_ERROR_NOT_READY) {
    }
    on(a);
    REQUIRE_OK(anvilFree(memory.block));
    REQUIRE_OK(anvilDeviceSynchronize(0));
    RequireNoReport();
  });
}

TEST(SanitizerDeathTest, BlocksMayBeFreedAndUsedAgainInTheirOrder) {
  ExpectInChild([] {
    UseSanitizer();
    anvilStream_t a = NewStream(), b = NewStream();
    anvilEvent_t event = NewEvent();
    for (int i = 0; i < 50; ++i) {
      const Memory memory = Allocate(a);
      Use(a, "produce", memory, ANVIL_ACCESS_WRITE, "step.py:1 in step");
      REQUIRE_OK(anvilEventRecord(event, a));
      REQUIRE_OK(anvilStreamWaitEvent(b, event));
      REQUIRE_OK(anvilBlockRecordStream(memory.block, b));
      Use(b, "consume", memory, ANVIL_ACCESS_READ, "step.py:2 in step");
      REQUIRE_OK(anvilFree(memory.block));
    }
    REQUIRE_OK(anvilDeviceSynchronize(0));
    RequireNoReport();
  });
}

TEST(SanitizerDeathTest, FindsMemoryFreedWhileAnotherStreamUsesIt) {
  ExpectInChild([] {
    UseSanitizer();
    anvilStream_t a = NewStream(), b = NewStream();
    const Memory memory = Allocate(a);
    Use(b, "consume", memory, ANVIL_ACCESS_READ, "step.py:2 in step");
    place = "step.py:3 in step";
    REQUIRE_OK(anvilFree(memory.block));
    RequireReport({"freed while another stream may still use it", "freed:   at step.py:3 in step",
                   "'consume' reads", "step.py:2 in step", "record_stream"});
  });
}

TEST(SanitizerDeathTest, FindsUsesAfterAFree) {
  ExpectInChild([] {
    UseSanitizer();
    anvilStream_t a = NewStream();
    const Memory memory = Allocate(a);
    place = "step.py:3 in step";
    REQUIRE_OK(anvilFree(memory.block));
    Use(a, "late", memory, ANVIL_ACCESS_READ, "step.py:4 in step");
    RequireReport({"use after free", "'late' reads", "step.py:4 in step", "at step.py:3 in step"});
  });
}

TEST(SanitizerDeathTest, FindsUsesThatAnotherBlockHasTakenThePlaceOf) {
  ExpectInChild([] {
    UseSanitizer();
    anvilStream_t a = NewStream();
    const Memory first = Allocate(a);
    place = "step.py:3 in step";
    REQUIRE_OK(anvilFree(first.block));
    place = "step.py:4 in step";
    const Memory second = Allocate(a);
    REQUIRE(second.ptr == first.ptr);  // in the stream's order, at once
    Use(a, "new owner", second, ANVIL_ACCESS_WRITE, "step.py:5 in step");
    RequireNoReport();
    REQUIRE_OK(anvilFree(second.block));
    Use(a, "late", first, ANVIL_ACCESS_READ, "step.py:6 in step");
    RequireReport({"use after free", "'late' reads", "step.py:6 in step", "step.py:4 in step"});
  });
}

TEST(SanitizerDeathTest, FindsUsesThatAreNotBehindTheAllocation) {
  ExpectInChild([] {
    UseSanitizer();
    anvilStream_t a = NewStream(), b = NewStream();
    const Memory other = Allocate(a);
    Use(a, "other work", other, ANVIL_ACCESS_WRITE, "step.py:1 in step");
    place = "step.py:2 in step";
    const Memory memory = Allocate(a);
    Use(b, "use", memory, ANVIL_ACCESS_WRITE, "step.py:3 in step");
    RequireReport({"use before allocation", "'use' writes", "step.py:3 in step",
                   "'allocation' gives it out on stream", "step.py:2 in step"});
  });
}

TEST(SanitizerDeathTest, FindsImmediateMemoryFreedInUse) {
  ExpectInChild([] {
    UseSanitizer();
    anvilStream_t a = NewStream();
    Memory memory;
    REQUIRE_OK(anvilMalloc(&memory.block, &memory.ptr, kBytes, 0, ANVIL_ALLOC_DEFAULT));
    Gate gate(a);
    Use(a, "use", memory, ANVIL_ACCESS_WRITE, "step.py:1 in step");
    place = "step.py:2 in step";
    REQUIRE_OK(anvilFree(memory.block));
    RequireReport({"freed while", "'use' writes", "step.py:2 in step"});
    gate.Open();
    REQUIRE_OK(anvilDeviceSynchronize(0));
    REQUIRE_OK(anvilMalloc(&memory.block, &memory.ptr, kBytes, 0, ANVIL_ALLOC_DEFAULT));
    Use(a, "use", memory, ANVIL_ACCESS_WRITE, "step.py:1 in step");
    REQUIRE_OK(anvilStreamSynchronize(a));
    REQUIRE_OK(anvilFree(memory.block));
    RequireNoReport();
  });
}

TEST(SanitizerDeathTest, FindsPinnedMemoryChangedWhileACopyIsQueued) {
  ExpectInChild([] {
    UseSanitizer();
    anvilStream_t a = NewStream();
    const Memory memory = Allocate(a);
    void* pinned = nullptr;
    REQUIRE_OK(anvilHostAlloc(&pinned, kBytes));
    std::memset(pinned, 1, kBytes);
    for (int round = 0; round < 2; ++round) {
      Gate gate(a);
      Use(a, "before", memory, ANVIL_ACCESS_WRITE, "step.py:4 in step");
      place = "step.py:5 in step";
      REQUIRE_OK(anvilMemcpyAsync(memory.ptr, pinned, kBytes, a));
      place = "step.py:6 in step";
      // Once while it is queued, once when it has been waited for.
      if (round == 0) static_cast<volatile char*>(pinned)[100] = 2;
      gate.Open();
      REQUIRE_OK(anvilStreamSynchronize(a));
      static_cast<volatile char*>(pinned)[101] = 2;
      if (round == 0) {
        RequireReport({"pinned memory changed", "the host writes, at step.py:6 in step",
                       "'memcpy' reads", "at step.py:5 in step"});
      }
    }
    RequireNoReport();
    // The device may write it, with another copy from it behind that.
    REQUIRE_OK(anvilMemcpyAsync(pinned, memory.ptr, kBytes, a));
    REQUIRE_OK(anvilMemcpyAsync(memory.ptr, pinned, kBytes, a));
    REQUIRE_OK(anvilStreamSynchronize(a));
    REQUIRE_OK(anvilHostFree(pinned));
    RequireNoReport();
  });
}

TEST(SanitizerDeathTest, WhatACommandKeptAliveIsFreedInItsOrder) {
  ExpectInChild([] {
    UseSanitizer();
    anvilStream_t a = NewStream(), b = NewStream();
    struct Kept {
      Memory memory;
      void* pinned = nullptr;
    };
    for (int i = 0; i < 20; ++i) {
      auto* const kept = new Kept{Allocate(a), nullptr};
      REQUIRE_OK(anvilHostAlloc(&kept->pinned, kBytes));
      const anvilAccess accesses[] = {
          {kept->memory.block, kept->memory.ptr, kBytes, ANVIL_ACCESS_WRITE},
          {nullptr, kept->pinned, kBytes, ANVIL_ACCESS_READ}};
      anvilEvent_t event = NewEvent();
      REQUIRE_OK(anvilEventRecord(event, a));
      REQUIRE_OK(anvilStreamWaitEvent(b, event));
      const anvilCommand command{"owner",
                                 [](void*) { return ANVIL_SUCCESS; },
                                 [](void* arg) {
                                   const std::unique_ptr<Kept> owned(static_cast<Kept*>(arg));
                                   REQUIRE_OK(anvilFree(owned->memory.block));
                                   REQUIRE_OK(anvilHostFree(owned->pinned));
                                 },
                                 kept,
                                 accesses,
                                 2};
      REQUIRE_OK(anvilStreamSubmit(b, &command));
    }
    REQUIRE_OK(anvilDeviceSynchronize(0));
    RequireNoReport();
  });
}

TEST(SanitizerDeathTest, FindsTheSameWhenLaunchesBlock) {
  ExpectInChild([] {
    UseSanitizer("1");
    anvilStream_t a = NewStream(), b = NewStream();
    const Memory memory = Allocate(a);
    Use(a, "produce", memory, ANVIL_ACCESS_WRITE, "step.py:3 in produce");
    Use(b, "consume", memory, ANVIL_ACCESS_READ, "step.py:7 in consume");
    RequireReport({"race", "step.py:7 in consume", "step.py:3 in produce"});
    REQUIRE_OK(anvilFree(memory.block));
    RequireNoReport();  // it has run
  });
}

TEST(SanitizerDeathTest, FindsGraphsWhoseMemoryWasFreed) {
  ExpectInChild([] {
    UseSanitizer();
    anvilStream_t a = NewStream(), b = NewStream();
    anvilGraphPool_t pool = nullptr;
    anvilGraph_t graph = nullptr;
    REQUIRE_OK(anvilGraphPoolCreate(&pool, 0));
    const Memory memory = Allocate(a);
    REQUIRE_OK(anvilStreamBeginCapture(a, pool));
    Use(a, "node", memory, ANVIL_ACCESS_WRITE, "model.py:8 in forward");
    REQUIRE_OK(anvilStreamEndCapture(a, &graph));
    place = "step.py:1 in step";
    REQUIRE_OK(anvilGraphLaunch(graph, a));
    RequireNoReport();
    Use(b, "consume", memory, ANVIL_ACCESS_READ, "step.py:2 in step");
    RequireReport({"race", "step.py:2 in step", "'graph' writes", "step.py:1 in step"});
    REQUIRE_OK(anvilDeviceSynchronize(0));
    place = "step.py:4 in step";
    REQUIRE_OK(anvilFree(memory.block));
    REQUIRE(anvilGraphLaunch(graph, a) == ANVIL_ERROR_INVALID_VALUE);
    RequireReport({"graph uses memory that has been freed", "'node', captured at model.py:8",
                   "freed:   at step.py:4 in step"});
  });
}

}  // namespace
