// SPDX-License-Identifier: Apache-2.0
#include "cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace anvil::kernels {
namespace {

constexpr uint32_t bit(int n) { return uint32_t{1} << n; }

// CPUID leaf 1, ECX
constexpr uint32_t kFma = bit(12), kOsxsave = bit(27), kAvx = bit(28), kF16c = bit(29);
// CPUID leaf 7, EBX
constexpr uint32_t kBmi1 = bit(3), kAvx2 = bit(5), kBmi2 = bit(8), kAvx512f = bit(16),
                   kAvx512dq = bit(17), kAvx512cd = bit(28), kAvx512bw = bit(30),
                   kAvx512vl = bit(31);
// CPUID leaf 7 subleaf 1, EAX
constexpr uint32_t kAvx512Bf16 = bit(5);
// XCR0: SSE and AVX halves of the YMM registers; opmask, upper ZMM halves, ZMM16-31.
constexpr uint64_t kYmmState = 0x06, kZmmState = 0xe6;

constexpr bool has_all(uint64_t value, uint64_t mask) { return (value & mask) == mask; }

}  // namespace

CpuidRegisters read_cpuid() {
  CpuidRegisters registers;
#if defined(__x86_64__)
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return registers;
  registers.leaf1_ecx = ecx;
  uint32_t max_subleaf = 0;
  if (__get_cpuid_count(7, 0, &max_subleaf, &ebx, &ecx, &edx)) {
    registers.leaf7_ebx = ebx;
    if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
      registers.leaf7_1_eax = eax;
    }
  }
  if (registers.leaf1_ecx & kOsxsave) {
    uint32_t low = 0, high = 0;
    // The intrinsic would need -mxsave, and this file is compiled with baseline flags.
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    registers.xcr0 = (uint64_t{high} << 32) | low;
  }
#endif
  return registers;
}

CpuFeatures decode_cpu_features(const CpuidRegisters& r) {
  CpuFeatures features;
  // A kernel or hypervisor may mask the register state while CPUID still shows the instructions.
  features.avx2 = has_all(r.leaf1_ecx, kFma | kOsxsave | kAvx | kF16c) &&
                  has_all(r.leaf7_ebx, kBmi1 | kAvx2 | kBmi2) && has_all(r.xcr0, kYmmState);
  features.avx512 =
      features.avx2 &&
      has_all(r.leaf7_ebx, kAvx512f | kAvx512dq | kAvx512cd | kAvx512bw | kAvx512vl) &&
      has_all(r.xcr0, kZmmState);
  features.avx512_bf16 = features.avx512 && has_all(r.leaf7_1_eax, kAvx512Bf16);
  return features;
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = decode_cpu_features(read_cpuid());
  return features;
}

}  // namespace anvil::kernels
