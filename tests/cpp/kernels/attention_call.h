// SPDX-License-Identifier: Apache-2.0
//
// Calls of the attention kernels for their tests: every tensor in guarded memory of its own, NaN in
// all that must not be read, and what must come out, from loops in double over what a row sees.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cache_numbers.h"
#include "guarded_memory.h"
#include "kernel_table.h"

namespace anvil::kernels {

struct Layer {
  ElementType type = ElementType::kFloat32;
  CacheType cache = CacheType::kFloat32;
  int64_t heads = 4, kv_heads = 2, head_size = 32, value_size = 32, block_size = 16;
  int64_t window = 0;
  float soft_cap = 0;
  bool slopes = false, sinks = false;
};

constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kBf16, ElementType::kFp16};

std::string name_of(const Layer& layer);

struct Request {
  int64_t rows, keys;
  bool causal = true;
};

// Long ranges of keys, which are cut, beside short ones.
inline const std::vector<Request> kLongAndShort = {{1, 2100}, {1, 3},    {1, 700},
                                                   {2, 1030}, {50, 300}, {1, 1}};

enum class CacheIs {
  kTwo,          // keys and values in memory of their own, without gaps
  kOne,          // each key with its value behind it, heads before tokens
  kShared,       // a value is the first elements of its key
  kGuardedRows,  // each key and value before a page without access
  kFar,          // blocks lie beyond what 32 bits count
};

struct Placing {
  Place place = Place::kBeforeGuard;
  CacheIs cache = CacheIs::kTwo;
  bool heads_first = false;  // the order of query and output in memory
  int64_t padding = 0;       // rows beyond the requests'
};

enum class Order { kForward, kBackward, kThreads, kOneCall };

class AttentionCall {
 public:
  AttentionCall(const Layer& layer, std::vector<Request> requests, const Placing& placing = {},
                uint32_t seed = 0);

  AttentionArgs args = {};  // all but workers and workspace

  // The bytes of the output.
  std::vector<char> run(const KernelTable& table, int64_t workers = 1,
                        Order order = Order::kForward);
  // The same of a batch of one of the requests, where heads lie within tokens.
  std::vector<char> run_alone(const KernelTable& table, int64_t request, int64_t workers);
  // Of its rows [begin, end), as they are computed when it has none behind them.
  std::vector<char> run_rows(const KernelTable& table, int64_t request, int64_t begin, int64_t end,
                             int64_t workers);
  // What of the output's bytes is a request's, and its rows' [begin, end).
  std::vector<char> part_of(int64_t request, const std::vector<char>& output) const;
  std::vector<char> rows_of(int64_t request, int64_t begin, int64_t end,
                            const std::vector<char>& output) const;

  // Compares what the last run wrote with what must come out, and that it wrote nothing else.
  void expect_right(const std::string& what);

 private:
  void make_table();
  void make_cache();
  void make_rows();
  char* open(const PagedRows& rows, int64_t block, int64_t token, int64_t head);
  bool sees(const Request& request, int64_t position, int64_t key) const;

  // What must come out for a row and head.
  struct Expected {
    std::vector<double> values;
    // Of the values, or what it would be if what is summed had random signs, if that is more. Where
    // values happen to cancel out, errors still are shares of that.
    double norm = 0;
  };
  Expected expected(const Request& request, int64_t row, int64_t head,
                    const std::vector<double>& query, const std::vector<double>& keys,
                    const std::vector<double>& values) const;
  void make_expected();
  void expect_row(int64_t token, int64_t head, const std::string& what) const;
  void expect_padding(const std::string& what) const;
  // The first `size` numbers of all of a request's keys or values.
  std::vector<double> cached(const PagedRows& rows, int64_t request, int64_t head,
                             int64_t size) const;

  GuardedMemory* memory(int64_t bytes) {
    memories_.push_back(std::make_unique<GuardedMemory>(bytes, placing_.place));
    return memories_.back().get();
  }

  const Layer layer_;
  const std::vector<Request> requests_;
  const Placing placing_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<GuardedMemory>> memories_;
  std::vector<std::unique_ptr<GuardedRows>> guarded_rows_;
  std::unique_ptr<AddressSpace> far_;
  GuardedMemory* output_ = nullptr;
  std::vector<std::vector<int32_t>> blocks_;  // of each request
  int64_t num_blocks_ = 0;
  std::vector<Expected> expected_;  // [row][head], when something has been compared
};

}  // namespace anvil::kernels
