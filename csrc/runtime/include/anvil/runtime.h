// SPDX-License-Identifier: Apache-2.0
// The accelerator's driver interface: devices, memory, streams, events, parallel regions.
//
// Everything above this header (PyTorch glue, kernels' launchers, collectives) reaches the device
// through it alone, so a vendor brings up hardware by implementing these functions over a real
// driver. C linkage, no exceptions across the boundary, no torch.
//
// Conventions
//   * Every function that can fail returns anvilError_t; anvilGetLastErrorMessage() has the words.
//   * `device` is a visible index: 0 .. anvilGetDeviceCount()-1, after ANVIL_VISIBLE_DEVICES.
//   * Sizes are bytes. Device memory is aligned to 64 bytes, large blocks to the page.
//   * All functions may be called from any thread. The current device is per thread.
//   * The first call that needs devices reads the configuration (ANVIL_DEVICES,
//     ANVIL_VISIBLE_DEVICES, ANVIL_DEVICE_MEMORY, ANVIL_LAUNCH_BLOCKING); it is fixed from then on.
//   * After fork() in a process whose device was initialised, every call in the child
//     returns ANVIL_ERROR_FORKED.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define ANVIL_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------- errors

typedef enum anvilError_t {
  ANVIL_SUCCESS = 0,
  ANVIL_ERROR_INVALID_VALUE = 1,   // an argument is out of range or null
  ANVIL_ERROR_INVALID_DEVICE = 2,  // no such device
  ANVIL_ERROR_CONFIGURATION = 3,   // an ANVIL_* variable cannot be used as it is
  ANVIL_ERROR_OUT_OF_MEMORY = 4,   // the device's limit or the host refuses
  ANVIL_ERROR_NOT_READY = 5,       // query: work is still pending
  ANVIL_ERROR_FORKED = 6,          // the device was initialised before fork()
  ANVIL_ERROR_COMMAND = 7,         // a submitted command failed
  ANVIL_ERROR_SYSTEM = 8,          // the operating system refused (threads, mappings)
} anvilError_t;

// "ANVIL_ERROR_OUT_OF_MEMORY", ...; never null.
ANVIL_API const char* anvilErrorName(anvilError_t error);

// One sentence or more on the calling thread's last failure: what was asked, what stands in the
// way, what to do. Valid until the next failing call on this thread; "" when there was none.
ANVIL_API const char* anvilGetLastErrorMessage(void);

// ---------------------------------------------------------------- devices

#define ANVIL_MAX_DEVICES 64

typedef struct anvilDeviceProperties {
  char name[128];       // "Anvil host device (AMD EPYC, 2 cores)"
  int physical_index;   // index before ANVIL_VISIBLE_DEVICES
  int numa_node;        // -1 when the device spans nodes
  int core_count;       // length of cores
  const int* cores;     // logical CPUs of this device, ascending; owned by the runtime
  size_t total_memory;  // the hard limit, bytes
} anvilDeviceProperties;

ANVIL_API anvilError_t anvilGetDeviceCount(int* count);
ANVIL_API anvilError_t anvilGetDevice(int* device);
ANVIL_API anvilError_t anvilSetDevice(int device);
ANVIL_API anvilError_t anvilGetDeviceProperties(anvilDeviceProperties* properties, int device);
// Waits for every stream of the device; reports the first error of a command since the last wait.
ANVIL_API anvilError_t anvilDeviceSynchronize(int device);
// Whether the configuration has been read and devices exist in this process (never initialises).
ANVIL_API int anvilIsInitialized(void);
// Whether this is a forked child of a process whose device was initialised.
ANVIL_API int anvilIsForkedChild(void);

// ---------------------------------------------------------------- device memory

typedef struct anvilBlock_st* anvilBlock_t;  // handle of one allocation

#define ANVIL_ALLOC_DEFAULT 0u
#define ANVIL_ALLOC_ZEROED 1u  // zero-filled; fresh pages from the OS are not touched

// Allocates from the device's caching pool of the calling thread's current tag. bytes == 0 succeeds
// with *ptr == NULL and *block == NULL. On failure releases cached blocks and tries again once
// before ANVIL_ERROR_OUT_OF_MEMORY.
ANVIL_API anvilError_t anvilMalloc(anvilBlock_t* block, void** ptr, size_t bytes, int device,
                                   unsigned flags);
// Returns the block to its pool. NULL is allowed. Never touches the memory. May be called at any
// time before exit, also after the last use of every other function (static destruction order does
// not matter).
ANVIL_API anvilError_t anvilFree(anvilBlock_t block);
ANVIL_API int anvilBlockDevice(anvilBlock_t block);
ANVIL_API size_t anvilBlockSize(anvilBlock_t block);  // usable bytes, >= what was asked

// Device that owns the address, or ANVIL_ERROR_INVALID_VALUE when it is no device memory.
ANVIL_API anvilError_t anvilPointerGetDevice(int* device, const void* ptr);

// total: the device's hard limit. free: limit minus what is reserved and not cached, bounded by
// what the host can give.
ANVIL_API anvilError_t anvilMemGetInfo(size_t* free_bytes, size_t* total_bytes, int device);
// Returns cached memory to the operating system.
ANVIL_API anvilError_t anvilMemEmptyCache(int device);

typedef struct anvilStat {
  int64_t current, peak, allocated, freed;  // allocated, freed: running totals
} anvilStat;

typedef struct anvilMemoryStats {
  anvilStat allocation;       // blocks handed out
  anvilStat segment;          // mappings from the OS
  anvilStat allocated_bytes;  // rounded sizes of blocks handed out
  anvilStat requested_bytes;  // as asked for
  anvilStat reserved_bytes;   // mapped from the OS
  int64_t num_alloc_retries;  // times the cache was flushed to satisfy a request
  int64_t num_ooms;
} anvilMemoryStats;

ANVIL_API anvilError_t anvilMemGetStats(anvilMemoryStats* stats, int device);
ANVIL_API anvilError_t anvilMemResetPeakStats(int device);
ANVIL_API anvilError_t anvilMemResetAccumulatedStats(int device);

// Tags name what memory is for ("weights", "kv_cache"); each has a pool of its own, so that freeing
// everything under a tag returns whole mappings. Per thread, a stack; the tag below all others is
// "default".
ANVIL_API anvilError_t anvilMemPushTag(const char* tag);
ANVIL_API anvilError_t anvilMemPopTag(void);

typedef struct anvilTagStats {
  char tag[64];
  size_t allocated_bytes, reserved_bytes;
} anvilTagStats;

// Fills at most `capacity` entries; *count is the number of tags.
ANVIL_API anvilError_t anvilMemGetTagStats(anvilTagStats* stats, size_t capacity, size_t* count,
                                           int device);

// ---------------------------------------------------------------- pinned host memory

ANVIL_API anvilError_t anvilHostAlloc(void** ptr, size_t bytes);
ANVIL_API anvilError_t anvilHostFree(void* ptr);
ANVIL_API anvilError_t anvilHostEmptyCache(void);
ANVIL_API int anvilHostIsPinned(const void* ptr);  // also for addresses inside an allocation

typedef struct anvilHostStats {
  anvilStat allocation, allocated_bytes, reserved_bytes;
} anvilHostStats;
ANVIL_API anvilError_t anvilHostGetStats(anvilHostStats* stats);
ANVIL_API anvilError_t anvilHostResetPeakStats(void);
ANVIL_API anvilError_t anvilHostResetAccumulatedStats(void);

// ---------------------------------------------------------------- streams

typedef struct anvilStream_st* anvilStream_t;

// A command: run() does the work and returns ANVIL_SUCCESS or an error; destroy() (may be NULL)
// releases what the command kept alive, exactly once, also when it never ran. `name` must outlive
// the command (a literal, or owned by arg).
typedef struct anvilCommand {
  const char* name;
  anvilError_t (*run)(void* arg);
  void (*destroy)(void* arg);
  void* arg;
} anvilCommand;

// The default stream (id 0) always exists. Priorities: 0 normal, negative is more urgent.
ANVIL_API anvilError_t anvilStreamCreate(anvilStream_t* stream, int device, int priority);
ANVIL_API anvilError_t anvilStreamDestroy(anvilStream_t stream);
ANVIL_API anvilError_t anvilStreamGetDefault(anvilStream_t* stream, int device);
ANVIL_API int anvilStreamDevice(anvilStream_t stream);
ANVIL_API int anvilStreamPriority(anvilStream_t stream);
ANVIL_API uint64_t anvilStreamId(anvilStream_t stream);
// Commands of a stream run in order. In this version a command runs before submit returns; an error
// is returned by submit and reported again by the next synchronisation.
ANVIL_API anvilError_t anvilStreamSubmit(anvilStream_t stream, const anvilCommand* command);
ANVIL_API anvilError_t anvilStreamQuery(anvilStream_t stream);  // SUCCESS or NOT_READY
ANVIL_API anvilError_t anvilStreamSynchronize(anvilStream_t stream);

// Copies and fills as stream commands; large ones are split over the device's workers. Ranges must
// not overlap.
ANVIL_API anvilError_t anvilMemcpyAsync(void* dst, const void* src, size_t bytes,
                                        anvilStream_t stream);
ANVIL_API anvilError_t anvilMemsetAsync(void* dst, int value, size_t bytes, anvilStream_t stream);

// ---------------------------------------------------------------- events

typedef struct anvilEvent_st* anvilEvent_t;

#define ANVIL_EVENT_DEFAULT 0u
#define ANVIL_EVENT_TIMING 1u

ANVIL_API anvilError_t anvilEventCreate(anvilEvent_t* event, unsigned flags);
ANVIL_API anvilError_t anvilEventDestroy(anvilEvent_t event);
ANVIL_API anvilError_t anvilEventRecord(anvilEvent_t event, anvilStream_t stream);
ANVIL_API anvilError_t anvilEventQuery(anvilEvent_t event);  // an event never recorded is complete
ANVIL_API anvilError_t anvilEventSynchronize(anvilEvent_t event);
ANVIL_API anvilError_t anvilStreamWaitEvent(anvilStream_t stream, anvilEvent_t event);
// Milliseconds between two recorded events that were created with ANVIL_EVENT_TIMING.
ANVIL_API anvilError_t anvilEventElapsedTime(float* milliseconds, anvilEvent_t start,
                                             anvilEvent_t end);

// ---------------------------------------------------------------- parallel regions

typedef void (*anvilRangeFn)(void* arg, int64_t begin, int64_t end, int worker);

// Runs fn over [0, n) split into contiguous ranges of at least `grain`, on the device's workers and
// the calling thread, and returns when all are done. `worker` is 0 .. anvilWorkerCount()-1. Nested
// calls run inline. Workers start at the first region that needs more than one, are bound to the
// device's cores, spin briefly after a region, then sleep.
ANVIL_API anvilError_t anvilParallelFor(int device, int64_t n, int64_t grain, anvilRangeFn fn,
                                        void* arg);
ANVIL_API int anvilWorkerCount(int device);  // threads that take part, the caller included; >= 1

#ifdef __cplusplus
}
#endif
