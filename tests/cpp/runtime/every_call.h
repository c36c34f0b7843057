// SPDX-License-Identifier: Apache-2.0
// Every function of the driver interface that can fail, for what all of them have in common.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "anvil/runtime.h"

using NamedCall = std::pair<std::string, std::function<anvilError_t()>>;

// Those that need devices whatever they are given.
inline std::vector<NamedCall> CallsThatNeedDevices() {
  static int number;
  static size_t size, other_size;
  static void* pointer;
  static anvilBlock_t block;
  static anvilStream_t stream;
  static anvilEvent_t event;
  static anvilDeviceProperties properties;
  static anvilMemoryStats stats;
  return {
      {"anvilGetDeviceCount", [] { return anvilGetDeviceCount(&number); }},
      {"anvilSetDevice", [] { return anvilSetDevice(0); }},
      {"anvilGetDeviceProperties", [] { return anvilGetDeviceProperties(&properties, 0); }},
      {"anvilDeviceSynchronize", [] { return anvilDeviceSynchronize(0); }},
      {"anvilMalloc", [] { return anvilMalloc(&block, &pointer, 64, 0, 0); }},
      {"anvilMalloc of nothing", [] { return anvilMalloc(&block, &pointer, 0, 0, 0); }},
      {"anvilMemGetInfo", [] { return anvilMemGetInfo(&size, &other_size, 0); }},
      {"anvilMemEmptyCache", [] { return anvilMemEmptyCache(0); }},
      {"anvilMemGetStats", [] { return anvilMemGetStats(&stats, 0); }},
      {"anvilMemResetPeakStats", [] { return anvilMemResetPeakStats(0); }},
      {"anvilMemResetAccumulatedStats", [] { return anvilMemResetAccumulatedStats(0); }},
      {"anvilMemGetTagStats", [] { return anvilMemGetTagStats(nullptr, 0, &size, 0); }},
      {"anvilHostAlloc", [] { return anvilHostAlloc(&pointer, 64); }},
      {"anvilStreamCreate", [] { return anvilStreamCreate(&stream, 0, 0); }},
      {"anvilStreamGetDefault", [] { return anvilStreamGetDefault(&stream, 0); }},
      {"anvilEventCreate", [] { return anvilEventCreate(&event, 0); }},
      {"anvilParallelFor",
       [] { return anvilParallelFor(0, 1, 1, [](void*, int64_t, int64_t, int) {}, nullptr); }},
  };
}

// What the others are called with: made before, where devices exist. Called in order they end the
// handles' lives.
struct Handles {
  anvilBlock_t block = nullptr;
  void* pointer = nullptr;
  void* pinned = nullptr;
  anvilStream_t stream = nullptr;
  anvilEvent_t event = nullptr;
};

inline std::vector<NamedCall> CallsOnHandles(const Handles& handles) {
  static int number;
  static float milliseconds;
  static anvilHostStats stats;
  static anvilCommand command{"nothing", [](void*) { return ANVIL_SUCCESS; }, nullptr, nullptr};
  return {
      {"anvilGetDevice", [] { return anvilGetDevice(&number); }},
      {"anvilPointerGetDevice", [=] { return anvilPointerGetDevice(&number, handles.pointer); }},
      {"anvilMemPushTag", [] { return anvilMemPushTag("tag"); }},
      {"anvilMemPopTag", [] { return anvilMemPopTag(); }},
      {"anvilHostEmptyCache", [] { return anvilHostEmptyCache(); }},
      {"anvilHostGetStats", [] { return anvilHostGetStats(&stats); }},
      {"anvilHostResetPeakStats", [] { return anvilHostResetPeakStats(); }},
      {"anvilHostResetAccumulatedStats", [] { return anvilHostResetAccumulatedStats(); }},
      {"anvilStreamSubmit", [=] { return anvilStreamSubmit(handles.stream, &command); }},
      {"anvilStreamQuery", [=] { return anvilStreamQuery(handles.stream); }},
      {"anvilStreamSynchronize", [=] { return anvilStreamSynchronize(handles.stream); }},
      {"anvilMemcpyAsync",
       [=] { return anvilMemcpyAsync(handles.pointer, handles.pinned, 16, handles.stream); }},
      {"anvilMemsetAsync",
       [=] { return anvilMemsetAsync(handles.pointer, 0, 16, handles.stream); }},
      {"anvilEventRecord", [=] { return anvilEventRecord(handles.event, handles.stream); }},
      {"anvilEventQuery", [=] { return anvilEventQuery(handles.event); }},
      {"anvilEventSynchronize", [=] { return anvilEventSynchronize(handles.event); }},
      {"anvilStreamWaitEvent", [=] { return anvilStreamWaitEvent(handles.stream, handles.event); }},
      {"anvilEventElapsedTime",
       [=] { return anvilEventElapsedTime(&milliseconds, handles.event, handles.event); }},
      {"anvilFree", [=] { return anvilFree(handles.block); }},
      {"anvilHostFree", [=] { return anvilHostFree(handles.pinned); }},
      {"anvilEventDestroy", [=] { return anvilEventDestroy(handles.event); }},
      {"anvilStreamDestroy", [=] { return anvilStreamDestroy(handles.stream); }},
  };
}
