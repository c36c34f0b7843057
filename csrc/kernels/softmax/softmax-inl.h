// SPDX-License-Identifier: Apache-2.0
//
// Softmax of rows and its logarithm, in float32 with sums in float64.
//
// A row of which no value is finite, or that has NaN or +inf, has a sum of NaN and by that becomes
// NaN everywhere.
#pragma once

#include <cstdint>

#include "softmax/softmax_args.h"
#include "vec/elements-inl.h"
#include "vec/math-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// The greatest value that is not NaN, or -inf.
template <typename Element>
inline float greatest_of(const typename Element::Stored* row, int64_t size) {
  const Floats lowest = Floats::all(-__builtin_inff());
  Floats greatest = lowest;
  for_registers(size, [&](int64_t i, auto part) {
    greatest = Element::load(row + i, part).where(part.bits(), lowest).max(greatest);
  });
  return greatest.greatest();
}

// Calls keep(exp(value - greatest), i, part) for all, and returns their sum.
template <typename Element, typename Keep>
inline double sum_of_exponentials(const typename Element::Stored* row, int64_t size, float greatest,
                                  const Keep& keep) {
  const Floats top = Floats::all(greatest);
  Doubles sums = Doubles::zero();
  for_registers(size, [&](int64_t i, auto part) {
    const Floats power = exp(Element::load(row + i, part) - top);
    keep(power, i, part);
    sums = sums + Doubles::of(power.where(part.bits(), Floats::zero()));
  });
  return sums.sum();
}

template <typename Element>
inline void softmax_row(const typename Element::Stored* input, int64_t size, float* output) {
  const float greatest = greatest_of<Element>(input, size);
  const double sum = sum_of_exponentials<Element>(
      input, size, greatest,
      [&](Floats power, int64_t i, auto part) { Float32::store(power, output + i, part); });
  const Floats share = Floats::all(static_cast<float>(1.0 / sum));
  for_registers(size, [&](int64_t i, auto part) {
    Float32::store(Float32::load(output + i, part) * share, output + i, part);
  });
}

template <typename Element>
inline void log_softmax_row(const typename Element::Stored* input, int64_t size, float* output) {
  const float greatest = greatest_of<Element>(input, size);
  const double sum =
      sum_of_exponentials<Element>(input, size, greatest, [](Floats, int64_t, auto) {});
  // In float64, since for the likeliest value next to nothing is left of the difference.
  const Doubles top = Doubles::all(greatest), logarithm = Doubles::all(__builtin_log(sum));
  for_registers(size, [&](int64_t i, auto part) {
    const Floats x = (Doubles::of(Element::load(input + i, part)) - top - logarithm).rounded();
    Float32::store(x, output + i, part);
  });
}

// Range over the rows.
inline void softmax(const SoftmaxArgs& args, int64_t begin, int64_t end) {
  with_element(args.input.type, [&](auto element) {
    using Element = decltype(element);
    for (int64_t i = begin; i < end; ++i) {
      const auto* input = row_of<Element>(args.input, i);
      float* output = row_of<Float32>(args.output, i);
      if (args.logarithm) {
        log_softmax_row<Element>(input, args.size, output);
      } else {
        softmax_row<Element>(input, args.size, output);
      }
    }
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
