// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string_view>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"
#include "ops/rows.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::choose_experts");

kernels::Scoring scoring_of(std::string_view name) {
  if (name == "softmax") return kernels::Scoring::kSoftmax;
  TORCH_CHECK_VALUE(name == "sigmoid", kCheck.op(), ": scoring must be softmax or sigmoid, but is ",
                    name);
  return kernels::Scoring::kSigmoid;
}

// Where choices are written: [tokens, choices] without gaps.
void check_result(const at::Tensor& result, const char* name, const at::Tensor& logits) {
  kCheck.device(result, name, logits.device());
  kCheck.dim(result, name, 2);
  TORCH_CHECK_VALUE(result.is_contiguous(), kCheck.op(), ": ", name,
                    " must be contiguous, but its strides are ", result.strides());
  TORCH_CHECK_VALUE(result.size(0) == logits.size(0) && result.size(1) <= logits.size(1),
                    kCheck.op(), ": ", name, " must be [", logits.size(0), ", choices] with up to ",
                    logits.size(1), " choices, but is ", result.sizes());
  kCheck.disjoint(result, name, logits, "logits");
}

void choose_experts(const at::Tensor& logits, at::Tensor& weights, at::Tensor& ids,
                    std::string_view scoring, bool renormalize,
                    const std::optional<at::Tensor>& bias, double scale,
                    const std::optional<at::Tensor>& skip) {
  check_floats(kCheck, logits, "logits");
  kCheck.dim(logits, "logits", 2);
  kCheck.dtype(weights, "weights", at::kFloat);
  kCheck.index_type(ids, "ids");
  check_result(weights, "weights", logits);
  check_result(ids, "ids", logits);
  kCheck.disjoint(weights, "weights", ids, "ids");
  const int64_t tokens = logits.size(0), experts = logits.size(1), choices = ids.size(1);
  TORCH_CHECK_VALUE(weights.size(1) == choices, kCheck.op(), ": weights has ", weights.size(1),
                    " choices, but ids has ", choices);
  TORCH_CHECK_VALUE(experts <= kernels::kMostExperts, kCheck.op(), ": logits has ", experts,
                    " experts, but at most ", kernels::kMostExperts, " can be chosen from");
  at::Tensor offsets, skipped;
  if (bias.has_value() && bias->defined()) {
    offsets = parameter_of(kCheck, bias, "bias", logits, experts).to(at::kFloat);
  }
  if (skip.has_value() && skip->defined()) {
    kCheck.index_array(*skip, "skip", at::kBool);
    kCheck.device(*skip, "skip", logits.device());
    TORCH_CHECK_VALUE(skip->size(0) == tokens, kCheck.op(), ": skip has ", skip->size(0),
                      " elements for ", tokens, " tokens");
    skipped = *skip;
  }
  const kernels::Scoring kind = scoring_of(scoring);
  if (ids.numel() == 0) return;
  const at::Tensor rows = readable_rows(logits);
  const kernels::ChooseExpertsArgs args = {
      .logits = rows_of(rows),
      .bias = offsets.defined() ? offsets.const_data_ptr<float>() : nullptr,
      .skip = skipped.defined() ? skipped.const_data_ptr<bool>() : nullptr,
      .weights = weights.mutable_data_ptr<float>(),
      .ids = ids.mutable_data_ptr(),
      .ids_are_int32 = ids.scalar_type() == at::kInt,
      .experts = experts,
      .choices = choices,
      .scoring = kind,
      .renormalize = renormalize,
      .scale = static_cast<float>(scale),
  };
  const c10::Device device = logits.device();
  const auto kernel = kernels::active_table().choose_experts;
  // Comparisons one by one take longer than the bytes they read.
  const int64_t grain = grain_of(experts * 4 * (choices + 4));
  launch(kCheck.op(), device, {rows, offsets, skipped}, {weights, ids}, [=] {
    for_ranges(device, tokens, grain,
               [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  });
}

ANVIL_OPS(m) { m.impl("choose_experts", &choose_experts); }

}  // namespace
}  // namespace anvil::ops
