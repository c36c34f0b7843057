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
  static anvilGraphPool_t pool;
  return {
      {"anvilGetDeviceCount", [] { return anvilGetDeviceCount(&number); }},
      {"anvilSetDevice", [] { return anvilSetDevice(0); }},
      {"anvilGetDeviceProperties", [] { return anvilGetDeviceProperties(&properties, 0); }},
      {"anvilDeviceSynchronize", [] { return anvilDeviceSynchronize(0); }},
      {"anvilMalloc", [] { return anvilMalloc(&block, &pointer, 64, 0, 0); }},
      {"anvilMalloc of nothing", [] { return anvilMalloc(&block, &pointer, 0, 0, 0); }},
      {"anvilGraphPoolCreate", [] { return anvilGraphPoolCreate(&pool, 0); }},
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
  anvilGraphPool_t pool = nullptr;
  anvilGraph_t graph = nullptr;
};

inline std::vector<NamedCall> CallsOnHandles(const Handles& handles) {
  static int number;
  static float milliseconds;
  static anvilHostStats stats;
  static size_t size, other_size;
  static uint64_t dropped;
  static anvilBlock_t block;
  static void* pointer;
  static anvilGraph_t captured;
  static anvilCommand command{
      "nothing", [](void*) { return ANVIL_SUCCESS; }, nullptr, nullptr, nullptr, 0};
  return {
      {"anvilGetDevice", [] { return anvilGetDevice(&number); }},
      {"anvilPointerGetDevice", [=] { return anvilPointerGetDevice(&number, handles.pointer); }},
      {"anvilMallocAsync",
       [=] { return anvilMallocAsync(&block, &pointer, 64, handles.stream, 0); }},
      {"anvilMallocAsync of nothing",
       [=] { return anvilMallocAsync(&block, &pointer, 0, handles.stream, 0); }},
      {"anvilBlockRecordStream",
       [=] { return anvilBlockRecordStream(handles.block, handles.stream); }},
      {"anvilGraphPoolGetInfo",
       [=] { return anvilGraphPoolGetInfo(handles.pool, &size, &other_size); }},
      {"anvilMemPushTag", [] { return anvilMemPushTag("tag"); }},
      {"anvilMemPopTag", [] { return anvilMemPopTag(); }},
      {"anvilHostEmptyCache", [] { return anvilHostEmptyCache(); }},
      {"anvilHostGetStats", [] { return anvilHostGetStats(&stats); }},
      {"anvilHostResetPeakStats", [] { return anvilHostResetPeakStats(); }},
      {"anvilHostResetAccumulatedStats", [] { return anvilHostResetAccumulatedStats(); }},
      {"anvilStreamSubmit", [=] { return anvilStreamSubmit(handles.stream, &command); }},
      {"anvilStreamSynchronize", [=] { return anvilStreamSynchronize(handles.stream); }},
      {"anvilStreamQuery", [=] { return anvilStreamQuery(handles.stream); }},
      {"anvilMemcpyAsync",
       [=] { return anvilMemcpyAsync(handles.pointer, handles.pinned, 16, handles.stream); }},
      {"anvilMemsetAsync",
       [=] { return anvilMemsetAsync(handles.pointer, 0, 16, handles.stream); }},
      {"anvilEventRecord", [=] { return anvilEventRecord(handles.event, handles.stream); }},
      {"anvilEventSynchronize", [=] { return anvilEventSynchronize(handles.event); }},
      {"anvilEventQuery", [=] { return anvilEventQuery(handles.event); }},
      {"anvilStreamWaitEvent", [=] { return anvilStreamWaitEvent(handles.stream, handles.event); }},
      {"anvilEventElapsedTime",
       [=] { return anvilEventElapsedTime(&milliseconds, handles.event, handles.event); }},
      {"anvilStreamBeginCapture",
       [=] { return anvilStreamBeginCapture(handles.stream, handles.pool); }},
      {"anvilStreamEndCapture", [=] { return anvilStreamEndCapture(handles.stream, &captured); }},
      {"anvilGraphLaunch", [=] { return anvilGraphLaunch(handles.graph, handles.stream); }},
      {"anvilGraphGetNodes", [=] { return anvilGraphGetNodes(handles.graph, nullptr, 0, &size); }},
      {"anvilTraceStart", [] { return anvilTraceStart(1); }},
      {"anvilTraceStop", [] { return anvilTraceStop(); }},
      {"anvilTraceTake", [=] { return anvilTraceTake(nullptr, 0, &size, &dropped); }},
      {"anvilGraphSetTiming", [=] { return anvilGraphSetTiming(handles.graph, 0); }},
      {"anvilGraphDestroy", [=] { return anvilGraphDestroy(handles.graph); }},
      {"anvilFree", [=] { return anvilFree(handles.block); }},
      {"anvilGraphPoolDestroy", [=] { return anvilGraphPoolDestroy(handles.pool); }},
      {"anvilHostFree", [=] { return anvilHostFree(handles.pinned); }},
      {"anvilEventDestroy", [=] { return anvilEventDestroy(handles.event); }},
      {"anvilStreamDestroy", [=] { return anvilStreamDestroy(handles.stream); }},
  };
}
