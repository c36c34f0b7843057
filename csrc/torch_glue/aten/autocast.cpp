// SPDX-License-Identifier: Apache-2.0
// torch.autocast("anvil"): the same lists of ops as torch's other accelerators.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace {

using namespace at;            // NOLINT: torch's macros below name members of both
using namespace at::autocast;  // NOLINT

Tensor refuse_binary_cross_entropy(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                   int64_t) {
  TORCH_CHECK(false,
              "binary_cross_entropy takes logarithms of probabilities, which overflow in half "
              "precision. Under autocast use "
              "binary_cross_entropy_with_logits on the values before the sigmoid, or leave "
              "autocast for this call.");
}

#define ANVIL_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define ANVIL_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define ANVIL_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define ANVIL_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(ANVIL_LOWER_PRECISION)
  AT_FORALL_FP32(ANVIL_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(ANVIL_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(ANVIL_PROMOTE)
  m.impl("binary_cross_entropy", TORCH_FN(refuse_binary_cross_entropy));
}

}  // namespace
