// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "api_checks.h"
#include "stream_work.h"

namespace {

anvilStream_t Stream() {
  anvilStream_t stream = nullptr;
  EXPECT_OK(anvilStreamGetDefault(&stream, 0));
  return stream;
}

// Sizes on both sides of the point where the work is split, not multiples of anything.
const std::vector<size_t> kSizes = {
    1, 63, 4097, (size_t{1} << 20) - 1, (size_t{1} << 20) + 1, (size_t{5} << 20) + 12345};

TEST(Transfers, CopyEveryByteAndNoOther) {
  for (size_t bytes : kSizes) {
    std::vector<uint8_t> src(bytes), dst(bytes + 2, 0xee);
    std::iota(src.begin(), src.end(), uint8_t{3});
    ASSERT_OK(anvilMemcpyAsync(dst.data() + 1, src.data(), bytes, Stream()));
    ASSERT_OK(anvilStreamSynchronize(Stream()));
    EXPECT_EQ(std::memcmp(dst.data() + 1, src.data(), bytes), 0) << bytes;
    EXPECT_EQ(dst.front(), 0xee);
    EXPECT_EQ(dst.back(), 0xee);
  }
}

TEST(Transfers, FillEveryByteAndNoOther) {
  for (size_t bytes : kSizes) {
    std::vector<uint8_t> dst(bytes + 2, 0xee);
    ASSERT_OK(anvilMemsetAsync(dst.data() + 1, 0x1a7, bytes, Stream()));  // low byte
    ASSERT_OK(anvilStreamSynchronize(Stream()));
    EXPECT_TRUE(std::all_of(dst.begin() + 1, dst.end() - 1, [](uint8_t b) { return b == 0xa7; }));
    EXPECT_EQ(dst.front(), 0xee);
    EXPECT_EQ(dst.back(), 0xee);
  }
}

TEST(Transfers, RunInTheOrderOfTheirStream) {
  const auto gate = std::make_shared<Gate>();
  std::vector<uint8_t> a(100, 1), b(100, 2);
  ASSERT_OK(WaitAt(Stream(), gate));
  ASSERT_OK(anvilMemsetAsync(a.data(), 3, a.size(), Stream()));
  ASSERT_OK(anvilMemcpyAsync(b.data(), a.data(), a.size(), Stream()));
  ASSERT_OK(anvilMemsetAsync(a.data(), 4, a.size(), Stream()));
  EXPECT_EQ(a[99], 1);
  gate->Open();
  ASSERT_OK(anvilStreamSynchronize(Stream()));
  EXPECT_EQ(a[99], 4);
  EXPECT_EQ(b[99], 3);
}

TEST(Transfers, MistakesAreErrors) {
  char a[16] = {}, b[16] = {};
  EXPECT_OK(anvilMemcpyAsync(nullptr, nullptr, 0, Stream()));
  EXPECT_OK(anvilMemsetAsync(nullptr, 0, 0, Stream()));
  EXPECT_FAILS(anvilMemcpyAsync(nullptr, b, 16, Stream()), ANVIL_ERROR_INVALID_VALUE, "dst");
  EXPECT_FAILS(anvilMemcpyAsync(a, nullptr, 16, Stream()), ANVIL_ERROR_INVALID_VALUE, "src");
  EXPECT_FAILS(anvilMemcpyAsync(a, b, 16, nullptr), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilMemsetAsync(nullptr, 0, 16, Stream()), ANVIL_ERROR_INVALID_VALUE, "dst");
  EXPECT_FAILS(anvilMemsetAsync(a, 0, 16, nullptr), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilMemcpyAsync(a, a + 8, 9, Stream()), ANVIL_ERROR_INVALID_VALUE, "overlap");
  EXPECT_FAILS(anvilMemcpyAsync(a + 8, a, 9, Stream()), ANVIL_ERROR_INVALID_VALUE, "overlap");
  EXPECT_OK(anvilMemcpyAsync(a, a + 8, 8, Stream()));
  EXPECT_OK(anvilStreamSynchronize(Stream()));
}

}  // namespace
