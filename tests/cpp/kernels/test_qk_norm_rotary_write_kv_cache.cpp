// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "element_rows.h"
#include "every_table.h"

namespace anvil::kernels {
namespace {

constexpr int64_t kTokens = 6, kQueryHeads = 3, kHeads = 2, kPositions = 9;
constexpr int64_t kBlocks = 3, kBlockSize = 4;
constexpr float kUntouched = 0.5f;

// A call, and what the kernels for its steps leave one after the other.
struct Call {
  ElementType type, cache_type;
  int64_t head_size, value_head_size, half;
  bool is_neox, normed, weighed;
  std::vector<int64_t> slots;

  int64_t head_stride() const { return std::max(head_size, value_head_size) + 3; }
  int64_t token_stride(int64_t heads) const { return heads * head_stride() + 5; }

  HeadStates states(ElementRows& rows, int64_t heads) const {
    return {rows.data(), token_stride(heads), head_stride(), heads, rows.type()};
  }
  PagedStates paged(ElementRows& cache, int64_t size) const {
    return {.data = cache.data(),
            .type = cache.type(),
            .block_stride = kBlockSize * kHeads * (size + 1) + 2,
            .token_stride = size + 1,  // heads outside of tokens
            .head_stride = kBlockSize * (size + 1)};
  }
  ElementRows cache(int64_t size) const {
    ElementRows rows(cache_type, kBlocks * (kBlockSize * kHeads * (size + 1) + 2));
    for (int64_t i = 0; i < rows.size(); ++i) rows.set(i, kUntouched);
    return rows;
  }

  void norm(const KernelTable& table, ElementRows& rows, int64_t heads,
            const RmsNormParameters& parameters) const {
    RmsNormArgs args = {.input = {}, .residual = {}, .output = {}, .total = {}, .norm = parameters};
    args.input = {.data = rows.data(),
                  .type = type,
                  .dims = 2,
                  .sizes = {kTokens, heads},
                  .strides = {token_stride(heads), head_stride()}};
    args.output = args.input;
    table.rms_norm(args, 0, kTokens * heads);
  }

  // One element after the other, by what the cache's type makes of it.
  void write(ElementRows& rows, ElementRows& cache, int64_t size) const {
    const PagedStates to = paged(cache, size);
    for (size_t token = 0; token < slots.size(); ++token) {
      if (slots[token] < 0) continue;
      for (int64_t head = 0; head < kHeads; ++head) {
        for (int64_t i = 0; i < size; ++i) {
          const float value = rows.get(static_cast<int64_t>(token) * token_stride(kHeads) +
                                       head * head_stride() + i);
          cache.set(slots[token] / kBlockSize * to.block_stride +
                        slots[token] % kBlockSize * to.token_stride + head * to.head_stride + i,
                    rounded(value));
        }
      }
    }
  }

  // To the nearest number of the cache's type, ties to even; `set` then cuts off zeros.
  float rounded(float value) const {
    if (cache_type != ElementType::kBf16) return value;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    std::memcpy(&value, &bits, sizeof(bits));
    return value;
  }

  void check(const KernelTable& table) const {
    ElementRows query(type, kTokens * token_stride(kQueryHeads));
    ElementRows key(type, kTokens * token_stride(kHeads));
    ElementRows value(type, kTokens * token_stride(kHeads));
    ElementRows angles(ElementType::kFloat32, kPositions * 2 * half);
    ElementRows query_weight(ElementType::kFloat32, head_size);
    ElementRows key_weight(ElementType::kFloat32, head_size);
    uint32_t seed = 0;
    for (ElementRows* rows : {&query, &key, &value, &angles, &query_weight, &key_weight}) {
      rows->fill(++seed);
    }
    const std::vector<int64_t> positions = {8, 0, 3, 3, 1, 7};
    ElementRows key_cache = cache(head_size), value_cache = cache(value_head_size);

    const auto parameters = [&](ElementRows& weight) -> RmsNormParameters {
      return {.weight = {weighed ? weight.data() : nullptr, ElementType::kFloat32},
              .size = head_size,
              .variance_size = head_size,
              .epsilon = 1e-5,
              .weight_offset = 1.0f};
    };
    QkNormRotaryWriteKvCacheArgs args = {
        .rotary = {.positions = positions.data(),
                   .position_stride = 1,
                   .axis_stride = 0,
                   .positions_are_int32 = false,
                   .table = angles.data(),
                   .table_stride = 2 * half,
                   .table_type = ElementType::kFloat32,
                   .half = half,
                   .is_neox = is_neox,
                   .multimodal = false,
                   .interleaved = false,
                   .section = {half, 0, 0},
                   .query = states(query, kQueryHeads),
                   .key = states(key, kHeads)},
        .normed = normed,
        .query_norm = parameters(query_weight),
        .key_norm = parameters(key_weight),
        .value = states(value, kHeads),
        .head_size = head_size,
        .value_head_size = value_head_size,
        .key_cache = paged(key_cache, head_size),
        .value_cache = paged(value_cache, value_head_size),
        .slot_mapping = slots.data(),
        .slots = static_cast<int64_t>(slots.size()),
        .block_size = kBlockSize,
    };

    ElementRows query_expected = query, key_expected = key;
    ElementRows key_cache_expected = key_cache, value_cache_expected = value_cache;
    if (normed) {
      norm(table, query_expected, kQueryHeads, args.query_norm);
      norm(table, key_expected, kHeads, args.key_norm);
    }
    RotaryArgs turning = args.rotary;
    turning.query = states(query_expected, kQueryHeads);
    turning.key = states(key_expected, kHeads);
    table.rotary_embedding(turning, 0, kTokens);
    write(key_expected, key_cache_expected, head_size);
    write(value, value_cache_expected, value_head_size);

    const ElementRows value_before = value;
    table.qk_norm_rotary_write_kv_cache(args, 0, 2);
    table.qk_norm_rotary_write_kv_cache(args, 2, kTokens);
    EXPECT_EQ(query.bytes(), query_expected.bytes());
    EXPECT_EQ(key.bytes(), key_expected.bytes());
    EXPECT_EQ(value.bytes(), value_before.bytes());
    EXPECT_EQ(key_cache.bytes(), key_cache_expected.bytes());
    EXPECT_EQ(value_cache.bytes(), value_cache_expected.bytes());
  }
};

class QkNormRotaryWriteKvCache : public EveryTable {};
ANVIL_TEST_EVERY_TABLE(QkNormRotaryWriteKvCache);

// The first and the last slot of the cache, and tokens that are not written.
const std::vector<int64_t> kSlots = {11, -1, 0, 5, -7, 4};

TEST_P(QkNormRotaryWriteKvCache, IsItsStepsBitForBit) {
  for (ElementType type : kElementTypes) {
    for (ElementType cache_type : kElementTypes) {
      for (bool is_neox : {false, true}) {
        for (bool normed : {false, true}) {
          for (int64_t half : {1, 3, 16, 32, 40}) {
            SCOPED_TRACE(testing::Message() << "types " << static_cast<int>(type) << " into "
                                            << static_cast<int>(cache_type) << ", neox " << is_neox
                                            << ", normed " << normed << ", half " << half);
            Call{type, cache_type, 2 * half, 24, half, is_neox, normed, true, kSlots}.check(
                table());
          }
        }
      }
    }
  }
}

TEST_P(QkNormRotaryWriteKvCache, TurnsAPartAndNormsWithoutWeights) {
  for (ElementType type : kElementTypes) {
    Call{type, type, 77, 13, 17, true, true, false, kSlots}.check(table());
    Call{type, type, 77, 13, 17, false, true, false, kSlots}.check(table());
  }
}

TEST_P(QkNormRotaryWriteKvCache, TokensBeyondTheSlotsAreNotWritten) {
  for (size_t count : {0, 1, 4}) {
    const std::vector<int64_t> slots(kSlots.begin(), kSlots.begin() + count);
    Call{ElementType::kBf16, ElementType::kBf16, 64, 64, 32, true, true, true, slots}.check(
        table());
  }
}

}  // namespace
}  // namespace anvil::kernels
