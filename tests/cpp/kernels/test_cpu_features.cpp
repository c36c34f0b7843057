// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cpu_features.h"

namespace anvil::kernels {
namespace {

// Register values with just the bits that matter: FMA, OSXSAVE, AVX, F16C; BMI1, AVX2, BMI2;
// AVX-512 F, DQ, CD, BW, VL; AVX-512 BF16.
constexpr uint32_t kLeaf1 = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
constexpr uint32_t kLeaf7Avx2 = 1u << 3 | 1u << 5 | 1u << 8;
constexpr uint32_t kLeaf7Avx512 = kLeaf7Avx2 | 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
constexpr uint32_t kLeaf71Bf16 = 1u << 5;

struct Machine {
  const char* name;
  CpuidRegisters registers;
  bool avx2, avx512, avx512_bf16;
};

class DecodeCpuFeatures : public testing::TestWithParam<Machine> {};

TEST_P(DecodeCpuFeatures, FollowsProcessorAndOperatingSystem) {
  const CpuFeatures features = decode_cpu_features(GetParam().registers);
  EXPECT_EQ(features.avx2, GetParam().avx2);
  EXPECT_EQ(features.avx512, GetParam().avx512);
  EXPECT_EQ(features.avx512_bf16, GetParam().avx512_bf16);
}

INSTANTIATE_TEST_SUITE_P(
    Machines, DecodeCpuFeatures,
    testing::Values(
        Machine{"NoCpuid", {}, false, false, false},
        Machine{"Haswell", {kLeaf1, kLeaf7Avx2, 0, 0x7}, true, false, false},
        Machine{"Skylake", {kLeaf1, kLeaf7Avx512, 0, 0xe7}, true, true, false},
        Machine{"Zen4", {kLeaf1, kLeaf7Avx512, kLeaf71Bf16, 0xe7}, true, true, true},
        Machine{
            "NoFma", {kLeaf1 & ~(1u << 12), kLeaf7Avx512, kLeaf71Bf16, 0xe7}, false, false, false},
        Machine{"NoBmi2", {kLeaf1, kLeaf7Avx512 & ~(1u << 8), 0, 0xe7}, false, false, false},
        // Knights Landing has AVX-512 F and CD alone.
        Machine{"NoAvx512bw", {kLeaf1, kLeaf7Avx512 & ~(1u << 30), 0, 0xe7}, true, false, false},
        // The instructions are there, but the operating system does not save the registers.
        Machine{"OsWithoutXsave",
                {kLeaf1 & ~(1u << 27), kLeaf7Avx512, kLeaf71Bf16, 0},
                false,
                false,
                false},
        Machine{"OsSavesSseOnly", {kLeaf1, kLeaf7Avx512, kLeaf71Bf16, 0x3}, false, false, false},
        Machine{"OsSavesYmmOnly", {kLeaf1, kLeaf7Avx512, kLeaf71Bf16, 0x7}, true, false, false}),
    [](const auto& info) { return std::string(info.param.name); });

#if defined(__x86_64__) && defined(__GNUC__)
TEST(CpuFeatures, AgreesWithTheCompilerRuntime) {
  __builtin_cpu_init();
  EXPECT_EQ(cpu_features().avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                     __builtin_cpu_supports("bmi") &&
                                     __builtin_cpu_supports("bmi2"));
  EXPECT_EQ(cpu_features().avx512,
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vl"));
  EXPECT_EQ(cpu_features().avx512_bf16,
            cpu_features().avx512 && __builtin_cpu_supports("avx512bf16"));
}
#endif

}  // namespace
}  // namespace anvil::kernels
