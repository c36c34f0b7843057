// SPDX-License-Identifier: Apache-2.0
// The accelerator's driver interface: devices, memory, streams, events, graphs, parallel regions.
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
//     ANVIL_VISIBLE_DEVICES, ANVIL_DEVICE_MEMORY, ANVIL_LAUNCH_BLOCKING, ANVIL_SANITIZE,
//     ANVIL_DEBUG_DELAY, ANVIL_DEBUG_POISON); it is fixed from then on.
//   * Streams are asynchronous: a call that takes a stream returns when the work is queued. Work
//     runs on a thread of the device, its executor, which serves all of the device's streams.
//   * After fork() in a process that used a device, every call in the child returns
//     ANVIL_ERROR_FORKED. To count devices, read properties or choose one is not yet use.
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
  ANVIL_ERROR_FORKED = 6,          // the device was in use before fork()
  ANVIL_ERROR_COMMAND = 7,         // a submitted command failed
  ANVIL_ERROR_SYSTEM = 8,          // the operating system refused (threads, mappings)
  ANVIL_ERROR_CAPTURE = 9,         // not possible while a graph is captured, or the capture failed
} anvilError_t;

// "ANVIL_ERROR_OUT_OF_MEMORY", ...; never null.
ANVIL_API const char* anvilErrorName(anvilError_t error);

// One sentence or more on the calling thread's last failure: what was asked, what stands in the
// way, what to do. Valid until the next failing call on this thread; "" when there was none.
ANVIL_API const char* anvilGetLastErrorMessage(void);
// For the body of a command: makes `message` the calling thread's last error and returns `error`.
ANVIL_API anvilError_t anvilReportError(anvilError_t error, const char* message);

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
// Whether commands run when they are submitted, on the calling thread (ANVIL_LAUNCH_BLOCKING=1).
ANVIL_API int anvilIsLaunchBlocking(void);
// Whether a device has been used in this process, so that a fork would leave the child without.
ANVIL_API int anvilIsInUse(void);
// Whether this is a forked child of a process that used a device.
ANVIL_API int anvilIsForkedChild(void);

// ---------------------------------------------------------------- device memory

typedef struct anvilBlock_st* anvilBlock_t;  // handle of one allocation

#define ANVIL_ALLOC_DEFAULT 0u
#define ANVIL_ALLOC_ZEROED 1u  // zero-filled; fresh pages from the OS are not touched

typedef struct anvilStream_st* anvilStream_t;

// Allocates from the device's caching pool of the calling thread's current tag, for use at once.
// bytes == 0 succeeds with *ptr == NULL and *block == NULL. On failure waits for the device's
// streams, releases cached blocks and tries again once before ANVIL_ERROR_OUT_OF_MEMORY (inside a
// command, which cannot wait for its own device, it releases what no queued command may use).
// Must not be freed while queued commands use the memory.
ANVIL_API anvilError_t anvilMalloc(anvilBlock_t* block, void** ptr, size_t bytes, int device,
                                   unsigned flags);
// Allocates in stream order: the memory is for commands that are submitted to `stream` from now on,
// and, once freed, is handed out again for later commands of the same stream without waiting for
// those that still use it. Every stream has pools of its own for that. The host, and other
// streams, may use the memory only after what orders them behind `stream` (a wait, an event), and
// other streams' use has to be told with anvilBlockRecordStream. While `stream` is being captured,
// the memory comes from the graph pool's arena.
ANVIL_API anvilError_t anvilMallocAsync(anvilBlock_t* block, void** ptr, size_t bytes,
                                        anvilStream_t stream, unsigned flags);
// Commands submitted to `stream` so far use the block, which was allocated for another stream: once
// freed, it is not handed out again before those have run. Cheap when repeated.
ANVIL_API anvilError_t anvilBlockRecordStream(anvilBlock_t block, anvilStream_t stream);
// Returns the block to its pool, in stream order when it was allocated so. NULL is allowed. Never
// touches the memory (except to poison it, ANVIL_DEBUG_POISON) and never waits. May be called at
// any time before exit, also after the last use of every other function (static destruction order
// does not matter).
ANVIL_API anvilError_t anvilFree(anvilBlock_t block);
// Changes whenever the block is freed: tells whether a remembered block is still the same one. May
// be asked of a block that has been freed.
ANVIL_API uint64_t anvilBlockGeneration(anvilBlock_t block);
ANVIL_API int anvilBlockDevice(anvilBlock_t block);
ANVIL_API size_t anvilBlockSize(anvilBlock_t block);  // usable bytes, >= what was asked

// Device that owns the address, or ANVIL_ERROR_INVALID_VALUE when it is no device memory.
ANVIL_API anvilError_t anvilPointerGetDevice(int* device, const void* ptr);

// total: the device's hard limit. free: limit minus what is reserved and not cached, bounded by
// what the host can give.
ANVIL_API anvilError_t anvilMemGetInfo(size_t* free_bytes, size_t* total_bytes, int device);
// Waits for the device's streams, then returns cached memory to the operating system.
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

// Gives back what is held under a tag, without its blocks: they keep their addresses, and may not
// be used (which ends the process) nor others be allocated under the tag before anvilMemResume.
// With `folder` the contents are kept there, in a file without a name; NULL: they are lost, and
// zeros afterwards. Waits for the device's streams. *bytes: what went back to the operating system.
// On failure nothing has changed: ANVIL_ERROR_SYSTEM when the file cannot be written,
// ANVIL_ERROR_INVALID_VALUE when the tag is suspended already.
ANVIL_API anvilError_t anvilMemSuspend(size_t* bytes, int device, const char* tag,
                                       const char* folder);
// Brings it back. On failure it stays suspended: ANVIL_ERROR_OUT_OF_MEMORY when there is no longer
// room for it, ANVIL_ERROR_SYSTEM when the file cannot be read.
ANVIL_API anvilError_t anvilMemResume(size_t* bytes, int device, const char* tag);

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

#define ANVIL_ACCESS_READ 1u
#define ANVIL_ACCESS_WRITE 2u

// Memory that a command touches: [ptr, ptr + bytes).
typedef struct anvilAccess {
  anvilBlock_t block;  // NULL: not device memory (pinned, or the caller's)
  const void* ptr;
  size_t bytes;
  unsigned flags;  // ANVIL_ACCESS_*
} anvilAccess;

// A command: run() does the work and returns ANVIL_SUCCESS or an error; destroy() (may be NULL)
// releases what the command kept alive, exactly once, also when it never ran. run() is called once,
// or, when the command was captured into a graph, once for each replay. Both are called on the
// executor; destroy() may be called on any thread. `name` must outlive the command (a literal, or
// owned by arg). `accesses` are looked at during the submission only, and needed only where
// anvilStreamWantsAccesses says so.
typedef struct anvilCommand {
  const char* name;
  anvilError_t (*run)(void* arg);
  void (*destroy)(void* arg);
  void* arg;
  const anvilAccess* accesses;
  size_t access_count;
} anvilCommand;

// The default stream (id 0) always exists. Priorities: 0 normal, negative is more urgent.
ANVIL_API anvilError_t anvilStreamCreate(anvilStream_t* stream, int device, int priority);
ANVIL_API anvilError_t anvilStreamDestroy(anvilStream_t stream);
ANVIL_API anvilError_t anvilStreamGetDefault(anvilStream_t* stream, int device);
ANVIL_API int anvilStreamDevice(anvilStream_t stream);
ANVIL_API int anvilStreamPriority(anvilStream_t stream);
ANVIL_API uint64_t anvilStreamId(anvilStream_t stream);
// Queues the command behind those of the same stream and returns. The device runs one command at a
// time: of the streams whose next command may run, the most urgent, then the one that waited
// longest. A failure is kept and reported, with the command's name, by the next call that waits for
// the stream; later commands still run. With ANVIL_LAUNCH_BLOCKING=1 the command has run when
// submit returns, on the calling thread, and submit reports its error too. Inside a command,
// submitted work is part of it and runs at once.
ANVIL_API anvilError_t anvilStreamSubmit(anvilStream_t stream, const anvilCommand* command);
// Whether the next submission should say what memory it touches (sanitizer, capture).
ANVIL_API int anvilStreamWantsAccesses(anvilStream_t stream);
// SUCCESS, NOT_READY, or the error of a command, which is then forgotten.
ANVIL_API anvilError_t anvilStreamQuery(anvilStream_t stream);
// Waits until everything submitted so far has run; reports the first error since the last report.
// Fails with ANVIL_ERROR_CAPTURE while the stream is captured.
ANVIL_API anvilError_t anvilStreamSynchronize(anvilStream_t stream);
// Whether anything submitted has not run yet; cheap, takes no error. 0 inside a command of the
// stream.
ANVIL_API int anvilStreamIsBusy(anvilStream_t stream);

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

// ---------------------------------------------------------------- graphs

// A graph is a list of recorded commands, run in the order in which they were submitted. Capturing
// executes nothing. Another stream joins the capture by waiting for an event that was recorded in
// it, and leaves with its end. A replay allocates nothing.
typedef struct anvilGraph_st* anvilGraph_t;

// The memory behind the graphs of one pool: an arena of reserved addresses in which the
// allocations of every capture are placed lowest first, so that graphs share it. Blocks still held
// when a capture ends keep their place until they are freed. Graphs of one pool must not run at the
// same time.
typedef struct anvilGraphPool_st* anvilGraphPool_t;

ANVIL_API anvilError_t anvilGraphPoolCreate(anvilGraphPool_t* pool, int device);
// The pool lives on until its graphs and blocks are gone as well.
ANVIL_API anvilError_t anvilGraphPoolDestroy(anvilGraphPool_t pool);
// reserved: bytes of the arena backed by memory, its high-water mark; allocated: held by blocks.
ANVIL_API anvilError_t anvilGraphPoolGetInfo(anvilGraphPool_t pool, size_t* allocated_bytes,
                                             size_t* reserved_bytes);

ANVIL_API anvilError_t anvilStreamBeginCapture(anvilStream_t stream, anvilGraphPool_t pool);
// Fails, with the reason, when something happened meanwhile that cannot be recorded; the capture is
// over in any case.
ANVIL_API anvilError_t anvilStreamEndCapture(anvilStream_t stream, anvilGraph_t* graph);
ANVIL_API int anvilStreamIsCapturing(anvilStream_t stream);
// Makes the capture that `stream` takes part in fail with these words; returns
// ANVIL_ERROR_CAPTURE with them.
ANVIL_API anvilError_t anvilStreamFailCapture(anvilStream_t stream, const char* reason);

// Queues all of the graph's commands as one command. Fails with ANVIL_ERROR_INVALID_VALUE when the
// graph uses memory that has been freed since the capture.
ANVIL_API anvilError_t anvilGraphLaunch(anvilGraph_t graph, anvilStream_t stream);
ANVIL_API anvilError_t anvilGraphDestroy(anvilGraph_t graph);

typedef struct anvilGraphNode {
  const char* name;           // valid until the graph is destroyed
  uint64_t stream;            // id of the stream it was captured on
  uint64_t runs;              // with timing on
  uint64_t last_nanoseconds;  // with timing on
  uint64_t total_nanoseconds;
} anvilGraphNode;

// Fills at most `capacity` entries, in the order in which they run; *count is their number.
ANVIL_API anvilError_t anvilGraphGetNodes(anvilGraph_t graph, anvilGraphNode* nodes,
                                          size_t capacity, size_t* count);
// Whether replays from now on take the time of each node (off at first).
ANVIL_API anvilError_t anvilGraphSetTiming(anvilGraph_t graph, int enabled);

// ---------------------------------------------------------------- trace

// One run of a command, or of one of a graph's nodes.
typedef struct anvilTraceSpan {
  char name[64];               // the command's, cut where it is longer
  uint64_t begin_nanoseconds;  // of the monotonic clock
  uint64_t end_nanoseconds;
  uint64_t stream;  // id
  int device;
  uint32_t depth;  // 0; more: the run is part of one that encloses it, as a node is of its graph's
} anvilTraceSpan;

// Keeps a span of each run from now on, up to so many, and forgets those that are there. A process
// that never starts a trace pays one load for each run.
ANVIL_API anvilError_t anvilTraceStart(size_t capacity);
// Runs that began before are still kept when they end.
ANVIL_API anvilError_t anvilTraceStop(void);
// Hands out at most `capacity` spans, in the order in which they ended, and forgets these. *count
// is the number that there was, *dropped that of those there was no room for since the start.
ANVIL_API anvilError_t anvilTraceTake(anvilTraceSpan* spans, size_t capacity, size_t* count,
                                      uint64_t* dropped);

// ---------------------------------------------------------------- sanitizer (ANVIL_SANITIZE=1)

// Finds, by the order that streams, events and waits establish: memory used on two streams without
// an order (one of them writing), memory freed and used again across streams, pinned memory
// changed while a copy from it is queued, and graphs that use memory freed since their capture.
ANVIL_API int anvilSanitizerEnabled(void);

// Writes where the calling thread is in the user's program ("file.py:12 in step"), for reports.
typedef void (*anvilCallSiteFn)(char* text, size_t capacity);
ANVIL_API anvilError_t anvilSanitizerSetCallSite(anvilCallSiteFn function);
// The same from inside a signal handler (a write to pinned memory): it may only do what is safe
// there. NULL, for both functions: reports say "an unknown place".
typedef void (*anvilSignalSafeCallSiteFn)(char* text, size_t capacity);
ANVIL_API anvilError_t anvilSanitizerSetSignalCallSite(anvilSignalSafeCallSiteFn function);

// Reports since the last call, one text each, joined by blank lines; "" when there are none. Every
// report is printed to stderr as well. *count is the number of reports so far in this process.
// Writes at most `capacity` bytes, terminator included; *size is what all of it needs. Reports that
// do not fit are kept for the next call.
ANVIL_API anvilError_t anvilSanitizerTakeReports(char* text, size_t capacity, size_t* size,
                                                 uint64_t* count);

// ---------------------------------------------------------------- parallel regions

typedef void (*anvilRangeFn)(void* arg, int64_t begin, int64_t end, int worker);

// Runs fn over [0, n) split into contiguous ranges of at least `grain`, on the device's workers and
// the calling thread, and returns when all are done. `worker` is 0 .. anvilWorkerCount()-1. Nested
// calls run inline. Workers start at the first region that needs more than one, are bound to the
// device's cores, spin briefly after a region, then sleep.
ANVIL_API anvilError_t anvilParallelFor(int device, int64_t n, int64_t grain, anvilRangeFn fn,
                                        void* arg);
ANVIL_API int anvilWorkerCount(int device);  // threads that take part, the caller included; >= 1

// As many threads take part in later regions; by default one for each of the device's cores. Fails
// with ANVIL_ERROR_INVALID_VALUE for a count below 1, or above 64 and the number of cores.
ANVIL_API anvilError_t anvilSetWorkerCount(int device, int count);

#ifdef __cplusplus
}
#endif
