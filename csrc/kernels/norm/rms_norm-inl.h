// SPDX-License-Identifier: Apache-2.0
//
// Root-mean-square norm of rows, or of their sums with a residual.
//
// Squares are summed in float64: none is too large or too small for it, and the order of the sum
// does not matter. All else is float32, rounded once more where the result is stored.
#pragma once

#include <cstdint>

#include "norm/norm_args.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// What is normed: a row as it lies in memory,
template <typename Input>
struct PlainRow {
  const typename Input::Stored* input;
  template <typename Part>
  Floats load(int64_t i, Part part) const {
    return Input::load(input + i, part);
  }
  template <typename Part>
  void keep(Floats, int64_t, Part) const {}
};

// or the sum of two, which is kept.
template <typename Input, typename Residual>
struct SummedRow {
  const typename Input::Stored* input;
  const typename Residual::Stored* residual;
  typename Residual::Stored* total;
  template <typename Part>
  Floats load(int64_t i, Part part) const {
    return Input::load(input + i, part) + Residual::load(residual + i, part);
  }
  template <typename Part>
  void keep(Floats sum, int64_t i, Part part) const {
    Residual::store(sum, total + i, part);
  }
};

// 1 / sqrt(mean square + epsilon)
template <typename Row>
inline double rms_scale(const RmsNormParameters& norm, const Row& row) {
  Doubles squares = Doubles::zero();
  for_registers(norm.variance_size, [&](int64_t i, auto part) {
    squares.add_square(Doubles::of(row.load(i, part)));  // lanes beyond the row are 0
  });
  const double mean = squares.sum() / static_cast<double>(norm.variance_size);
  return 1.0 / __builtin_sqrt(mean + norm.epsilon);
}

// row * scale * weight
template <typename Output, typename Weight, typename Row>
inline void scale_row(const RmsNormParameters& norm, const Row& row, double scale,
                      typename Output::Stored* output) {
  const auto write = [&](const auto& scaled) {
    const auto* weight = data_of<Weight>(norm.weight);
    if (weight == nullptr) {
      for_registers(norm.size, [&](int64_t i, auto part) {
        const Floats x = row.load(i, part);
        row.keep(x, i, part);
        Output::store(scaled(x), output + i, part);
      });
    } else {
      const Floats offset = Floats::all(norm.weight_offset);
      for_registers(norm.size, [&](int64_t i, auto part) {
        const Floats x = row.load(i, part);
        row.keep(x, i, part);
        const Floats factor = Weight::load(weight + i, part) + offset;
        Output::store(scaled(x) * factor, output + i, part);
      });
    }
  };
  const Floats factor = Floats::all(static_cast<float>(scale));
  if (scale >= static_cast<double>(__FLT_MIN__) && scale <= static_cast<double>(__FLT_MAX__)) {
    write([&](Floats x) { return x * factor; });
  } else {  // float32 has no such number: values are near its largest, or too small to be squared
    write([&](Floats x) { return (Doubles::of(x) * Doubles::all(scale)).rounded(); });
  }
}

template <typename Output, typename Weight, typename Row>
inline void rms_norm_row(const RmsNormParameters& norm, const Row& row,
                         typename Output::Stored* output) {
  scale_row<Output, Weight>(norm, row, rms_scale(norm, row), output);
}

// Range over the rows.
inline void rms_norm(const RmsNormArgs& args, int64_t begin, int64_t end) {
  with_element(args.input.type, [&](auto input) {
    with_element(args.norm.weight.type, [&](auto weight) {
      using Input = decltype(input);
      using Weight = decltype(weight);
      if (args.residual.data == nullptr) {
        for (int64_t i = begin; i < end; ++i) {
          const PlainRow<Input> row = {row_of<Input>(args.input, i)};
          rms_norm_row<Input, Weight>(args.norm, row, row_of<Input>(args.output, i));
        }
        return;
      }
      with_element(args.residual.type, [&](auto residual) {
        using Residual = decltype(residual);
        for (int64_t i = begin; i < end; ++i) {
          const SummedRow<Input, Residual> row = {row_of<Input>(args.input, i),
                                                  row_of<Residual>(args.residual, i),
                                                  row_of<Residual>(args.total, i)};
          rms_norm_row<Input, Weight>(args.norm, row, row_of<Input>(args.output, i));
        }
      });
    });
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
