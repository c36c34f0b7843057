// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention_call.h"

namespace anvil::kernels {

std::string name_of(const Layer& layer) {
  const char* types[] = {"float32", "bf16", "fp16", "e4m3", "e5m2", "int8"};
  return std::string(types[static_cast<int>(layer.type)]) + " over " +
         types[static_cast<int>(layer.cache)] + ", " + std::to_string(layer.heads) + "/" +
         std::to_string(layer.kv_heads) + " heads of " + std::to_string(layer.head_size) + "/" +
         std::to_string(layer.value_size) + ", blocks of " + std::to_string(layer.block_size);
}

bool AttentionCall::sees(const Request& request, int64_t position, int64_t key) const {
  if (request.causal && key > position) return false;
  return layer_.window == 0 || std::abs(key - position) < layer_.window;
}

std::vector<double> AttentionCall::cached(const PagedRows& rows, int64_t request, int64_t head,
                                          int64_t size) const {
  std::vector<double> numbers;
  for (int64_t key = 0; key < requests_[request].keys; ++key) {
    const int64_t at = blocks_[request][key / layer_.block_size] * rows.block_stride +
                       key % layer_.block_size * rows.token_stride + head * rows.head_stride;
    for (int64_t i = at; i < at + size; ++i) {
      numbers.push_back(
          number_at(layer_.cache, static_cast<const char*>(rows.data) + i * size_of(layer_.cache)));
    }
  }
  return numbers;
}

AttentionCall::Expected AttentionCall::expected(const Request& request, int64_t row, int64_t head,
                                                const std::vector<double>& query,
                                                const std::vector<double>& keys,
                                                const std::vector<double>& values) const {
  const int64_t position = request.keys - request.rows + row;
  std::vector<double> logits;
  std::vector<int64_t> seen;
  double most = args.sinks == nullptr ? -INFINITY : args.sinks[head];
  for (int64_t key = 0; key < request.keys; ++key) {
    if (!sees(request, position, key)) continue;
    double logit = 0;
    for (int64_t i = 0; i < layer_.head_size; ++i) {
      logit += query[i] * keys[key * layer_.head_size + i];
    }
    logit *= args.scale;
    if (layer_.soft_cap > 0) logit = layer_.soft_cap * std::tanh(logit / layer_.soft_cap);
    if (layer_.slopes) {
      logit -= args.alibi_slopes[head] * static_cast<double>(std::abs(key - position));
    }
    seen.push_back(key);
    logits.push_back(logit);
    most = std::max(most, logit);
  }
  Expected result = {std::vector<double>(layer_.value_size, 0.0)};
  if (seen.empty()) return result;
  double total = layer_.sinks ? std::exp(args.sinks[head] - most) : 0, squares = 0, sum = 0;
  for (double logit : logits) total += std::exp(logit - most);
  for (size_t k = 0; k < seen.size(); ++k) {
    const double weight = std::exp(logits[k] - most) / total * args.value_scale;
    for (int64_t i = 0; i < layer_.value_size; ++i) {
      const double part = weight * values[seen[k] * layer_.value_size + i];
      result.values[i] += part;
      squares += part * part;
    }
  }
  for (double value : result.values) sum += value * value;
  result.norm = std::sqrt(std::max(sum, squares));
  return result;
}

void AttentionCall::make_expected() {
  const CacheType type = as_cache_type(layer_.type);
  const int64_t group = layer_.heads / layer_.kv_heads;
  expected_.resize(args.query_start_loc[args.num_requests] * layer_.heads);
  for (int64_t r = 0; r < args.num_requests; ++r) {
    for (int64_t kv_head = 0; kv_head < layer_.kv_heads; ++kv_head) {
      const std::vector<double> keys = cached(args.keys, r, kv_head, layer_.head_size);
      const std::vector<double> values = cached(args.values, r, kv_head, layer_.value_size);
      for (int64_t row = 0; row < requests_[r].rows; ++row) {
        const int64_t token = args.query_start_loc[r] + row;
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          std::vector<double> query;
          const int64_t at = token * args.query_token_stride + head * args.query_head_stride;
          for (int64_t i = at; i < at + layer_.head_size; ++i) {
            query.push_back(
                number_at(type, static_cast<const char*>(args.query) + i * size_of(type)));
          }
          expected_[token * layer_.heads + head] =
              expected(requests_[r], row, head, query, keys, values);
        }
      }
    }
  }
}

void AttentionCall::expect_right(const std::string& what) {
  if (expected_.empty()) make_expected();
  for (int64_t token = 0; token < args.query_start_loc[args.num_requests]; ++token) {
    for (int64_t head = 0; head < layer_.heads; ++head) {
      ASSERT_NO_FATAL_FAILURE(expect_row(token, head, what));
    }
  }
  expect_padding(what);
  EXPECT_TRUE(output_->surroundings_are_intact()) << what << ": memory around it was written";
}

void AttentionCall::expect_row(int64_t token, int64_t head, const std::string& what) const {
  // The result and the weights rounded to the type, sums in float32. Beside a cache of fewer bits
  // float32 queries and weights may be two bf16 numbers each.
  struct Allowed {
    double element, mean, norm;  // shares of an element, of a head's mean and of its norm
  };
  const Allowed allowed = layer_.type == ElementType::kBf16     ? Allowed{6e-3, 1.5e-2, 6e-3}
                          : layer_.type == ElementType::kFp16   ? Allowed{1.5e-3, 4e-3, 1.5e-3}
                          : layer_.cache == CacheType::kFloat32 ? Allowed{1e-4, 2e-4, 5e-5}
                                                                : Allowed{4e-4, 8e-4, 2e-4};
  const CacheType type = as_cache_type(layer_.type);
  const auto& [values, norm] = expected_[token * layer_.heads + head];
  const double mean = norm / std::sqrt(static_cast<double>(layer_.value_size));
  double squares = 0;
  for (int64_t i = 0; i < layer_.value_size; ++i) {
    const int64_t at = token * args.output_token_stride + head * args.output_head_stride + i;
    const double found = number_at(type, output_->data() + at * size_of(type));
    const double error = std::abs(found - values[i]);
    ASSERT_LE(error, allowed.element * std::abs(values[i]) + allowed.mean * mean)
        << what << ": row " << token << ", head " << head << ", element " << i << ": " << found
        << " for " << values[i];
    squares += error * error;
  }
  ASSERT_LE(std::sqrt(squares), allowed.norm * norm)
      << what << ": row " << token << ", head " << head << " as a whole";
}

void AttentionCall::expect_padding(const std::string& what) const {
  const int64_t element = size_of(as_cache_type(layer_.type));
  for (int64_t token = args.query_start_loc[args.num_requests]; token < args.num_tokens; ++token) {
    for (int64_t head = 0; head < layer_.heads; ++head) {
      const int64_t at = token * args.output_token_stride + head * args.output_head_stride;
      for (int64_t byte = 0; byte < layer_.value_size * element; ++byte) {
        ASSERT_EQ(output_->data()[at * element + byte], '\xff')
            << what << ": row " << token << " of padding was written";
      }
    }
  }
}

}  // namespace anvil::kernels
