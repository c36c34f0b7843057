// SPDX-License-Identifier: Apache-2.0
//
// Layer norm of rows. The mean is taken off in float64, since it may be far larger than what is
// left; weight and bias are applied in float32.
#pragma once

#include <cstdint>

#include "norm/norm_args.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

template <typename Element, typename Parameter>
inline void layer_norm_row(const LayerNormArgs& args, const typename Element::Stored* input,
                           typename Element::Stored* output) {
  const double size = static_cast<double>(args.size);
  Doubles sums = Doubles::zero();
  for_registers(args.size, [&](int64_t i, auto part) {
    sums = sums + Doubles::of(Element::load(input + i, part));
  });
  const Doubles mean = Doubles::all(sums.sum() / size);
  Doubles squares = Doubles::zero();
  for_registers(args.size, [&](int64_t i, auto part) {
    const Doubles centred = Doubles::of(Element::load(input + i, part)) - mean;
    squares.add_square(centred.where(part.bits()));
  });
  const Doubles scale = Doubles::all(1.0 / __builtin_sqrt(squares.sum() / size + args.epsilon));
  const auto* weight = data_of<Parameter>(args.weight);
  const auto* bias = data_of<Parameter>(args.bias);
  for_registers(args.size, [&](int64_t i, auto part) {
    Floats x = ((Doubles::of(Element::load(input + i, part)) - mean) * scale).rounded();
    if (weight != nullptr) x = x * Parameter::load(weight + i, part);
    if (bias != nullptr) x = x + Parameter::load(bias + i, part);
    Element::store(x, output + i, part);
  });
}

// Range over the rows.
inline void layer_norm(const LayerNormArgs& args, int64_t begin, int64_t end) {
  with_element(args.input.type, [&](auto element) {
    with_element(args.weight.type, [&](auto parameter) {
      using Element = decltype(element);
      for (int64_t i = begin; i < end; ++i) {
        layer_norm_row<Element, decltype(parameter)>(args, row_of<Element>(args.input, i),
                                                     row_of<Element>(args.output, i));
      }
    });
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
