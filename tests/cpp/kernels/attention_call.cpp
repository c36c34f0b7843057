// SPDX-License-Identifier: Apache-2.0
#include "attention_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

namespace anvil::kernels {

AttentionCall::AttentionCall(const Layer& layer, std::vector<Request> requests,
                             const Placing& placing, uint32_t seed)
    : layer_(layer), requests_(std::move(requests)), placing_(placing), random_(seed) {
  args.type = layer.type;
  args.cache_type = layer.cache;
  args.num_requests = static_cast<int64_t>(requests_.size());
  args.num_heads = layer.heads;
  args.num_kv_heads = layer.kv_heads;
  args.head_size = layer.head_size;
  args.value_head_size = layer.value_size;
  args.block_size = layer.block_size;
  // int8 numbers are large.
  const float unit = layer.cache == CacheType::kInt8 ? 1.0f / 64 : 1.0f;
  args.scale = 1.5f * unit / std::sqrt(static_cast<float>(layer.head_size));
  args.value_scale = layer.cache == CacheType::kFloat32 ? 1.0f : 0.75f * unit;
  args.soft_cap = layer.soft_cap;
  args.window = layer.window;
  make_table();
  make_cache();
  make_rows();
  // What kernels read they do not write.
  for (auto& memory : memories_) {
    if (memory.get() != output_) memory->make_read_only();
  }
}

// Block tables in random order, with numbers that lead nowhere beyond each request's length. The
// first block of the cache is some request's first one, and the last one's end is a request's end.
void AttentionCall::make_table() {
  int64_t width = 1;
  for (const Request& request : requests_) {
    const int64_t used = (request.keys + layer_.block_size - 1) / layer_.block_size;
    blocks_.emplace_back(used);
    num_blocks_ += used;
    width = std::max(width, used);
  }
  std::vector<int32_t> numbers(num_blocks_);
  std::iota(numbers.begin(), numbers.end(), 0);
  if (num_blocks_ > 2) std::shuffle(numbers.begin() + 1, numbers.end() - 1, random_);
  auto next = numbers.begin();
  int32_t* table = memory(args.num_requests * width * 4)->as<int32_t>();
  for (int64_t r = 0; r < args.num_requests; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const bool used = i < static_cast<int64_t>(blocks_[r].size());
      if (used) blocks_[r][i] = *next++;
      table[r * width + i] = used ? blocks_[r][i] : std::numeric_limits<int32_t>::max() - i % 2;
    }
  }
  num_blocks_ = std::max<int64_t>(num_blocks_, 1);
  args.block_table = table;
  args.block_table_stride = width;
}

void AttentionCall::make_cache() {
  const int64_t element = size_of(layer_.cache), heads = layer_.kv_heads;
  const int64_t key = layer_.head_size, value = layer_.value_size, tokens = layer_.block_size;
  const int64_t rows = num_blocks_ * tokens * heads;
  switch (placing_.cache) {
    case CacheIs::kTwo:
      for (auto [side, size] : {std::pair(&args.keys, key), std::pair(&args.values, value)}) {
        *side = {memory(rows * size * element)->data(), tokens * heads * size, heads * size, size};
      }
      break;
    case CacheIs::kOne: {
      const int64_t size = key + value;
      char* data = memory(rows * size * element)->data();
      args.keys = {data, heads * tokens * size, size, tokens * size};
      args.values = args.keys;
      args.values.data = data + key * element;
      break;
    }
    case CacheIs::kShared:
      args.keys = {memory(rows * key * element)->data(), tokens * heads * key, heads * key, key};
      args.values = args.keys;
      break;
    case CacheIs::kGuardedRows:
      for (auto [side, size] : {std::pair(&args.keys, key), std::pair(&args.values, value)}) {
        guarded_rows_.push_back(std::make_unique<GuardedRows>(rows, size * element));
        const auto stride = static_cast<int64_t>(guarded_rows_.back()->stride()) / element;
        *side = {guarded_rows_.back()->data(), tokens * heads * stride, heads * stride, stride};
      }
      break;
    case CacheIs::kFar: {
      const int64_t size = key + value;
      // The second block begins more than 2^31 elements and 2^33 bytes behind the first.
      const int64_t stride = std::max((int64_t{1} << 31) + 5, (int64_t{1} << 33) / element + 5);
      far_ = std::make_unique<AddressSpace>((num_blocks_ * stride + size) * element);
      args.keys = {far_->data(), stride, heads * size, size};
      args.values = args.keys;
      args.values.data = far_->data() + key * element;
      break;
    }
  }
  for (int64_t r = 0; r < args.num_requests; ++r) {
    for (int64_t k = 0; k < requests_[r].keys; ++k) {
      // A key is there for the sake of some row that sees it.
      bool seen = false;
      for (int64_t i = 0; i < requests_[r].rows && !seen; ++i) {
        seen = sees(requests_[r], requests_[r].keys - requests_[r].rows + i, k);
      }
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t block = blocks_[r][k / tokens], token = k % tokens;
        char* key_row = open(args.keys, block, token, h);
        char* value_row = open(args.values, block, token, h);
        for (int64_t i = 0; i < std::max(key, value); ++i) {
          for (auto [row, size] : {std::pair(key_row, key), std::pair(value_row, value)}) {
            if (i >= size) continue;
            if (seen) {
              put_random(layer_.cache, random_, row + i * element);
            } else {
              put_poison(layer_.cache, row + i * element);
            }
          }
        }
      }
    }
  }
}

char* AttentionCall::open(const PagedRows& rows, int64_t block, int64_t token, int64_t head) {
  const int64_t element = size_of(layer_.cache);
  const int64_t offset =
      (block * rows.block_stride + token * rows.token_stride + head * rows.head_stride) * element;
  char* row = const_cast<char*>(static_cast<const char*>(rows.data)) + offset;
  if (far_) far_->open(row - far_->data(), layer_.head_size * element);
  return row;
}

// Query, output, and what there is for each request and each head.
void AttentionCall::make_rows() {
  const CacheType type = as_cache_type(layer_.type);
  const int64_t element = size_of(type), heads = layer_.heads;
  int32_t* starts = memory((args.num_requests + 1) * 4)->as<int32_t>();
  int32_t* lens = memory(args.num_requests * 4)->as<int32_t>();
  bool* causal = memory(args.num_requests)->as<bool>();
  starts[0] = 0;
  bool same = true;
  for (int64_t r = 0; r < args.num_requests; ++r) {
    starts[r + 1] = starts[r] + static_cast<int32_t>(requests_[r].rows);
    lens[r] = static_cast<int32_t>(requests_[r].keys);
    causal[r] = requests_[r].causal;
    same &= requests_[r].causal == requests_[0].causal;
  }
  args.query_start_loc = starts;
  args.seq_lens = lens;
  args.causal = requests_.empty() || requests_[0].causal;
  args.causal_per_request = same ? nullptr : causal;
  const int64_t rows = starts[args.num_requests], tokens = rows + placing_.padding;
  args.num_tokens = tokens;
  char* query = memory(tokens * heads * layer_.head_size * element)->data();
  output_ = memory(tokens * heads * layer_.value_size * element);
  args.query = query;
  args.output = output_->data();
  for (auto [size, token_stride, head_stride] :
       {std::tuple(layer_.head_size, &args.query_token_stride, &args.query_head_stride),
        std::tuple(layer_.value_size, &args.output_token_stride, &args.output_head_stride)}) {
    *token_stride = placing_.heads_first ? size : heads * size;
    *head_stride = placing_.heads_first ? tokens * size : size;
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < layer_.head_size; ++i) {
        const int64_t at = row * args.query_token_stride + h * args.query_head_stride + i;
        put_random(type, random_, query + at * element);
      }
    }
  }
  float* slopes = memory(heads * 4)->as<float>();
  float* sinks = memory(heads * 4)->as<float>();
  for (int64_t h = 0; h < heads; ++h) {
    slopes[h] = std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(heads));
    put_random(CacheType::kFloat32, random_, reinterpret_cast<char*>(sinks + h));
  }
  if (layer_.slopes) args.alibi_slopes = slopes;
  if (layer_.sinks) args.sinks = sinks;
}

std::vector<char> AttentionCall::run(const KernelTable& table, int64_t workers, Order order) {
  args.workers = workers;
  // How much memory a call needs must not depend on what is in its tensors.
  AttentionArgs known = args;
  known.query = known.output = nullptr;
  known.keys.data = known.values.data = nullptr;
  known.block_table = known.query_start_loc = known.seq_lens = nullptr;
  const int64_t bytes = table.attention_workspace_bytes(known);
  const GuardedMemory workspace(bytes, placing_.place, 64);
  args.workspace = workspace.data();
  std::memset(output_->data(), 0xff, output_->bytes());
  table.attention_plan(args);
  switch (order) {
    case Order::kForward:
      for (int64_t w = 0; w < workers; ++w) table.attention(args, w, w + 1);
      break;
    case Order::kBackward:
      for (int64_t w = workers; w-- > 0;) table.attention(args, w, w + 1);
      break;
    case Order::kOneCall:
      table.attention(args, 0, workers);
      break;
    case Order::kThreads: {
      std::vector<std::thread> threads;
      for (int64_t w = 0; w < workers; ++w) {
        threads.emplace_back([&, w] { table.attention(args, w, w + 1); });
      }
      for (std::thread& thread : threads) thread.join();
    }
  }
  EXPECT_TRUE(workspace.surroundings_are_intact()) << "memory around the workspace was written";
  return {output_->data(), output_->data() + output_->bytes()};
}

std::vector<char> AttentionCall::run_alone(const KernelTable& table, int64_t request,
                                           int64_t workers) {
  return run_rows(table, request, 0, requests_[request].rows, workers);
}

std::vector<char> AttentionCall::run_rows(const KernelTable& table, int64_t request, int64_t begin,
                                          int64_t end, int64_t workers) {
  const AttentionArgs together = args;
  const int64_t element = size_of(as_cache_type(layer_.type));
  const int64_t start = args.query_start_loc[request] + begin, rows = end - begin;
  const int32_t starts[] = {0, static_cast<int32_t>(rows)};
  const int32_t length =
      static_cast<int32_t>(args.seq_lens[request] - requests_[request].rows + end);
  args.query = static_cast<const char*>(args.query) + start * args.query_token_stride * element;
  args.output = static_cast<char*>(args.output) + start * args.output_token_stride * element;
  args.block_table += request * args.block_table_stride;
  args.query_start_loc = starts;
  args.seq_lens = &length;
  args.causal = requests_[request].causal;
  args.causal_per_request = nullptr;
  args.num_tokens = rows;
  args.num_requests = 1;
  std::vector<char> output = run(table, workers);
  args = together;
  return output;
}

std::vector<char> AttentionCall::part_of(int64_t request, const std::vector<char>& output) const {
  return rows_of(request, 0, requests_[request].rows, output);
}

std::vector<char> AttentionCall::rows_of(int64_t request, int64_t begin, int64_t end,
                                         const std::vector<char>& output) const {
  const int64_t row = args.output_token_stride * size_of(as_cache_type(layer_.type));
  const auto first = output.begin() + args.query_start_loc[request] * row;
  return {first + begin * row, first + end * row};
}

}  // namespace anvil::kernels
