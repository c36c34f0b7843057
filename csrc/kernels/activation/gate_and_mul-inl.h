// SPDX-License-Identifier: Apache-2.0
//
// Gated activations: one half of a row, through a function, times the other half. float32 until the
// product is stored.
#pragma once

#include <cstdint>

#include "activation/activation_args.h"
#include "vec/elements-inl.h"
#include "vec/math-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

inline Floats silu(Floats x) { return x * sigmoid(x); }

inline Floats gelu(Floats x) { return x * normal_cdf(x); }

// (1 + tanh(u)) / 2 is sigmoid(2 u), which loses nothing where tanh(u) nears -1.
inline Floats gelu_tanh(Floats x) {
  const Floats cubic = (x * x).multiply_add(Floats::all(0.044715f), Floats::all(1.0f));
  return x * sigmoid(x * cubic * Floats::all(1.59576912f));
}

template <typename Element, typename Function>
inline void gate_and_mul_rows(const GateAndMulArgs& args, int64_t begin, int64_t end,
                              const Function& function) {
  for (int64_t row = begin; row < end; ++row) {
    const auto* gate = row_of<Element>(args.input, row);
    const auto* up = gate + args.size;
    auto* output = row_of<Element>(args.output, row);
    for_registers(args.size, [&](int64_t i, auto part) {
      const Floats gated = function(Element::load(gate + i, part));
      Element::store(gated * Element::load(up + i, part), output + i, part);
    });
  }
}

// Range over the rows.
inline void gate_and_mul(const GateAndMulArgs& args, int64_t begin, int64_t end) {
  with_element(args.input.type, [&](auto element) {
    using Element = decltype(element);
    switch (args.gate) {
      case Gate::kSilu:
        return gate_and_mul_rows<Element>(args, begin, end, [](Floats x) { return silu(x); });
      case Gate::kGelu:
        return gate_and_mul_rows<Element>(args, begin, end, [](Floats x) { return gelu(x); });
      case Gate::kGeluTanh:
        return gate_and_mul_rows<Element>(args, begin, end, [](Floats x) { return gelu_tanh(x); });
    }
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
