// SPDX-License-Identifier: Apache-2.0
//
// The experts of each token: scores of a router's logits, the greatest of them, and their weights.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "experts/experts_args.h"
#include "softmax/softmax-inl.h"
#include "vec/elements-inl.h"
#include "vec/math-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

template <typename Element>
inline void score_experts(const ChooseExpertsArgs& args, int64_t token, float* scores) {
  const auto* logits = row_of<Element>(args.logits, token);
  if (args.scoring == Scoring::kSoftmax) return softmax_row<Element>(logits, args.experts, scores);
  for_registers(args.experts, [&](int64_t i, auto part) {
    Float32::store(sigmoid(Element::load(logits + i, part)), scores + i, part);
  });
}

inline void write_choice(const ChooseExpertsArgs& args, int64_t at, int64_t expert, float weight) {
  args.weights[at] = weight;
  if (args.ids_are_int32) {
    static_cast<int32_t*>(args.ids)[at] = static_cast<int32_t>(expert);
  } else {
    static_cast<int64_t*>(args.ids)[at] = expert;
  }
}

template <typename Element>
inline void choose_for_token(const ChooseExpertsArgs& args, int64_t token, float* scores,
                             float* ranks) {
  const int64_t first = token * args.choices;
  if (args.skip != nullptr && args.skip[token]) {
    for (int64_t c = 0; c < args.choices; ++c) write_choice(args, first + c, -1, 0.0f);
    return;
  }
  score_experts<Element>(args, token, scores);
  const float least = -__builtin_inff();
  for (int64_t i = 0; i < args.experts; ++i) {
    const float rank = args.bias == nullptr ? scores[i] : scores[i] + args.bias[i];
    ranks[i] = rank == rank ? rank : least;
  }
  double sum = 0.0;
  for (int64_t c = 0; c < args.choices; ++c) {
    // NaN marks who is chosen: nothing compares with it.
    int64_t best = -1;
    float greatest = least;
    for (int64_t i = 0; i < args.experts; ++i) {
      if (ranks[i] > greatest || (best < 0 && ranks[i] == least)) {
        best = i;
        greatest = ranks[i];
      }
    }
    ranks[best] = __builtin_nanf("");
    sum += scores[best];
    write_choice(args, first + c, best, scores[best]);
  }
  const double divisor = args.renormalize && !(sum == 0.0) ? sum : 1.0;
  for (int64_t c = first; c < first + args.choices; ++c) {
    args.weights[c] = static_cast<float>(args.weights[c] / divisor * args.scale);
  }
}

// Range over the tokens.
inline void choose_experts(const ChooseExpertsArgs& args, int64_t begin, int64_t end) {
  float scores[kMostExperts], ranks[kMostExperts];
  with_element(args.logits.type, [&](auto element) {
    for (int64_t token = begin; token < end; ++token) {
      choose_for_token<decltype(element)>(args, token, scores, ranks);
    }
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
