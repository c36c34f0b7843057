// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "units.h"

namespace anvil {
namespace {

TEST(Units, ReadsAmountsOfMemory) {
  EXPECT_EQ(ParseBytes("4096"), 4096u);
  EXPECT_EQ(ParseBytes(" 8GiB "), 8 * kGiB);
  EXPECT_EQ(ParseBytes("8 gib"), 8 * kGiB);
  EXPECT_EQ(ParseBytes("1.5GiB"), kGiB + kGiB / 2);
  EXPECT_EQ(ParseBytes("1.5g"), kGiB + kGiB / 2);
  EXPECT_EQ(ParseBytes("512M"), 512 * kMiB);
  EXPECT_EQ(ParseBytes("512MIB"), 512 * kMiB);
  EXPECT_EQ(ParseBytes("64k"), 64 * kKiB);
  EXPECT_EQ(ParseBytes("2TiB"), 2 * kTiB);
  EXPECT_EQ(ParseBytes("0"), 0u);
  // More digits than a double holds.
  EXPECT_EQ(ParseBytes("9007199254740993"), 9007199254740993u);
}

TEST(Units, RefusesWhatIsNoAmount) {
  for (const char* text :
       {"", " ", "-1", "-1GiB", "GiB", "8GB", "8 giga", "1e3", "0x10", "1.5", "1..5G", "8GiB8",
        "inf", "nan", "+8G", "9223372036854775808", "99999999TiB", "1,5G"}) {
    EXPECT_FALSE(ParseBytes(text)) << text;
  }
}

TEST(Units, ReadsWholeNumbers) {
  EXPECT_EQ(ParseInteger(" 12\n"), 12);
  EXPECT_EQ(ParseInteger("-3"), -3);
  for (const char* text : {"", "max", "1.0", "1 2", "99999999999999999999"}) {
    EXPECT_FALSE(ParseInteger(text)) << text;
  }
}

TEST(Units, WritesAmountsOfMemory) {
  EXPECT_EQ(FormatBytes(0), "0 bytes");
  EXPECT_EQ(FormatBytes(1), "1 byte");
  EXPECT_EQ(FormatBytes(1023), "1023 bytes");
  EXPECT_EQ(FormatBytes(kKiB), "1 KiB");
  EXPECT_EQ(FormatBytes(1536 * kKiB), "1.50 MiB");
  EXPECT_EQ(FormatBytes(3 * kGiB), "3 GiB");
  EXPECT_EQ(FormatBytes(5 * kTiB), "5 TiB");
}

}  // namespace
}  // namespace anvil
