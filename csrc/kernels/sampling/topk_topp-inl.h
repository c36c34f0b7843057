// SPDX-License-Identifier: Apache-2.0
//
// Top-k and top-p: which tokens of a row are kept is said by one value, the boundary, and by how
// many of the tokens that have it are kept. The search for it narrows a range of values: a pass
// weighs what lies above each of a few values, and what remains between two of them is copied
// together, so that later passes go over ever less.
#pragma once

#include <cstdint>

#include "sampling/sampling_args.h"
#include "vec/math-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Calls body(x, i, n) on the registers that make up `values`; the last one may have n < kLanes
// lanes of them, and `rest` in the others.
template <typename Body>
inline void for_lanes(const float* values, int64_t count, float rest, const Body& body) {
  int64_t i = 0;
  for (; i + Floats::kLanes <= count; i += Floats::kLanes) {
    body(Floats::load(values + i), i, Floats::kLanes);
  }
  if (i < count) body(Floats::load(values + i, count - i, rest), i, count - i);
}

// A list of values and the range they are in. `count` leaves out what no range contains: NaN, and
// -inf, of which a row of logits may have many.
struct Values {
  const float* data;
  int64_t size;
  int64_t count;
  float least;
  float greatest;
};

struct RowFacts {
  Values values;
  float mean;
  bool has_nan;
};

inline RowFacts survey_row(const float* row, int64_t size) {
  constexpr float kInfinity = __builtin_inff();
  const Floats minus_infinity = Floats::all(-kInfinity);
  Floats least = Floats::all(kInfinity), greatest = minus_infinity, sum = Floats::all(0.0f);
  int64_t count = 0;
  LaneBits nan = 0;
  for_lanes(row, size, -kInfinity, [&](Floats x, int64_t, int64_t) {
    const LaneBits counted = x.greater(minus_infinity);
    count += __builtin_popcount(counted);
    nan |= x.nan();
    greatest = x.max(greatest);
    least = x.where(counted, least).min(least);
    sum = sum + x.where(counted, Floats::all(0.0f));
  });
  return {.values = {.data = row,
                     .size = size,
                     .count = count,
                     .least = least.least(),
                     .greatest = greatest.greatest()},
          .mean = sum.sum() / static_cast<float>(count),
          .has_nan = nan != 0};
}

// Copies the values in [low, end) to `to`, in order; NaN for `end` means no end. `to` may be where
// they are.
inline Values copy_range(const Values& values, float low, float end, float* to) {
  constexpr float kInfinity = __builtin_inff();
  const Floats lows = Floats::all(low), ends = Floats::all(end);
  Floats least = Floats::all(kInfinity), greatest = Floats::all(-kInfinity);
  int64_t count = 0;
  for_lanes(values.data, values.size, __builtin_nanf(""), [&](Floats x, int64_t, int64_t) {
    const LaneBits inside = x.at_least(lows) & ~x.at_least(ends);
    x.store_packed(to + count, inside);
    count += __builtin_popcount(inside);
    least = x.where(inside, least).min(least);
    greatest = x.where(inside, greatest).max(greatest);
  });
  return {.data = to,
          .size = count,
          .count = count,
          .least = least.least(),
          .greatest = greatest.greatest()};
}

// What is kept: all above `value`, and the first `ties` of those that are equal to it. A value of
// NaN: there is no such boundary, since weights are not finite.
struct Boundary {
  float value;
  int64_t ties;
  bool has_all_ties;  // no others are equal to `value`
};

// How top-k weighs values.
struct Number {
  double k;
  Floats weigh(Floats) const { return Floats::all(1.0f); }
  double target(double) const { return k; }
};

// How top-p weighs values: by their probability, up to a factor.
struct Likelihood {
  Floats greatest;
  double p;
  Floats weigh(Floats x) const { return exp(x - greatest); }
  double target(double total) const { return p * total; }
};

constexpr int kSteps = 8;

// Weights of the values that are at least steps[0], steps[1], ...
template <typename Weight>
inline void weigh_above(const Values& values, const Weight& weight, const float (&steps)[kSteps],
                        double (&weights)[kSteps]) {
  // Sums of float32 stay short, so that they lose nothing that matters.
  constexpr int64_t kBlock = 64 * Floats::kLanes;
  for (int j = 0; j < kSteps; ++j) weights[j] = 0;
  for (int64_t begin = 0; begin < values.size; begin += kBlock) {
    const int64_t size = values.size - begin < kBlock ? values.size - begin : kBlock;
    Floats sums[kSteps], lows[kSteps];
    for (int j = 0; j < kSteps; ++j) {
      sums[j] = Floats::all(0.0f);
      lows[j] = Floats::all(steps[j]);
    }
    for_lanes(values.data + begin, size, __builtin_nanf(""), [&](Floats x, int64_t, int64_t) {
      const Floats w = weight.weigh(x);
      for (int j = 0; j < kSteps; ++j) sums[j].add_where(x, lows[j], w);
    });
    for (int j = 0; j < kSteps; ++j) weights[j] += static_cast<double>(sums[j].sum());
  }
}

// steps[0] is the least value and the others rise evenly from `guess` towards the greatest; at
// least one divides the values.
inline void place_steps(const Values& values, float guess, float (&steps)[kSteps]) {
  steps[0] = values.least;
  for (int j = 1; j < kSteps; ++j) {
    const float share = static_cast<float>(j) / kSteps;
    const float step = guess * (1 - share) + values.greatest * share;
    const float bounded = step < values.greatest ? step : values.greatest;
    steps[j] = bounded > steps[j - 1] ? bounded : steps[j - 1];
  }
  if (!(steps[kSteps - 1] > values.least)) steps[kSteps - 1] = values.greatest;
}

// The boundary where all values are equal and weigh `weight`, and those before them `before`.
inline Boundary boundary_of_equals(const Values& values, double weight, double before,
                                   double target) {
  const double all = static_cast<double>(values.count);
  const double wanted = __builtin_ceil((target - before) / (weight / all));
  const int64_t ties = wanted < all ? static_cast<int64_t>(wanted) : values.count;
  return {.value = values.least, .ties = ties > 1 ? ties : 1, .has_all_ties = ties == values.count};
}

// So few values are sorted.
constexpr int64_t kFew = 32;

// The boundary among at most kFew values, of which those before weigh `before`.
template <typename Weight>
inline Boundary boundary_of_few(const Values& values, const Weight& weight, double before,
                                double target) {
  float sorted[kFew + Floats::kLanes] = {}, weights[kFew + Floats::kLanes] = {};
  for (int64_t i = 0; i < values.count; ++i) {
    const float x = values.data[i];
    int64_t place = i;
    for (; place > 0 && sorted[place - 1] < x; --place) sorted[place] = sorted[place - 1];
    sorted[place] = x;
  }
  for_lanes(sorted, values.count, values.greatest,
            [&](Floats x, int64_t i, int64_t) { weight.weigh(x).store(weights + i); });
  int64_t last = 0, ties = 1;
  double reached = before + static_cast<double>(weights[0]);
  while (reached < target && last + 1 < values.count) {
    ++last;
    ties = sorted[last] == sorted[last - 1] ? ties + 1 : 1;
    reached += static_cast<double>(weights[last]);
  }
  const bool has_all_ties = last + 1 == values.count || sorted[last + 1] < sorted[last];
  return {.value = sorted[last], .ties = ties, .has_all_ties = has_all_ties};
}

// The boundary of the fewest greatest values whose weight reaches the target. `guess`: most likely
// the boundary is above it. `scratch` has room for all values and kTopkToppSlack more, and may be
// where they are.
template <typename Weight>
inline Boundary find_boundary(Values values, const Weight& weight, float guess, float* scratch) {
  double before = 0;  // weight of what is above the range
  double target = -1;
  for (;;) {
    float steps[kSteps];
    double weights[kSteps];
    place_steps(values, guess, steps);
    weigh_above(values, weight, steps, weights);
    if (target < 0) target = weight.target(weights[0]);
    if (!(target >= 0)) return {.value = __builtin_nanf(""), .ties = 0, .has_all_ties = false};
    if (values.least == values.greatest) {
      return boundary_of_equals(values, weights[0], before, target);
    }
    int low = 0;
    while (low + 1 < kSteps && before + weights[low + 1] >= target) ++low;
    const bool top = low + 1 == kSteps;
    values = copy_range(values, steps[low], top ? __builtin_nanf("") : steps[low + 1], scratch);
    before += top ? 0 : weights[low + 1];
    if (values.count <= kFew) return boundary_of_few(values, weight, before, target);
    guess = values.least;
  }
}

inline void mask_row(float* row, int64_t size, Boundary boundary, float mask_value) {
  const Floats value = Floats::all(boundary.value), mask = Floats::all(mask_value);
  int64_t ties = boundary.ties;
  for_lanes(row, size, __builtin_nanf(""), [&](Floats x, int64_t i, int64_t n) {
    LaneBits kept = x.greater(value);
    for (LaneBits equal = x.equal(value); equal != 0 && ties > 0; equal &= equal - 1) {
      kept |= equal & -equal;
      --ties;
    }
    const Floats masked = x.where(kept, mask);
    if (n == Floats::kLanes) {
      masked.store(row + i);
    } else {
      masked.store(row + i, n);
    }
  });
}

// The k greatest of a row, in any order: those above the boundary, and as many equal to it as are
// needed, which are all alike.
inline Values copy_greatest(const Values& row, int64_t k, float boundary, float* to) {
  Values kept = copy_range(row, boundary, __builtin_nanf(""), to);
  for (int64_t i = kept.count; kept.count > k && i-- > 0;) {
    if (to[i] == boundary) to[i] = to[--kept.count];
  }
  kept.size = kept.count;
  return kept;
}

inline void topk_topp_row(float* row, int64_t size, int64_t k, float p, float mask_value,
                          float* scratch) {
  const RowFacts facts = survey_row(row, size);
  Values values = facts.values;
  const bool cut_by_k = k < values.count, cut_by_p = p < 1.0f && values.count > 0;
  Boundary boundary = {};
  if (cut_by_k) {
    if (k < 1) k = 1;
    boundary = find_boundary(values, Number{static_cast<double>(k)}, facts.mean, scratch);
    if (cut_by_p) values = copy_greatest(values, k, boundary.value, scratch);
  }
  if (cut_by_p) {
    if (!cut_by_k && facts.has_nan) return;
    // Values further below the greatest weigh next to nothing, even all together.
    const float near = values.greatest - 20.0f;
    const float guess = near > values.least ? near : values.least;
    const Likelihood likelihood = {Floats::all(values.greatest), p > 0.0f ? double{p} : 0.0};
    boundary = find_boundary(values, likelihood, guess, scratch);
    if (boundary.value != boundary.value) return;
    if (!cut_by_k && boundary.value == values.least && boundary.has_all_ties) return;
  }
  if (cut_by_k || cut_by_p) mask_row(row, size, boundary, mask_value);
}

// Range over the rows.
inline void topk_topp(const TopkToppArgs& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t k = args.k != nullptr ? int64_t{args.k[i]} : args.vocab_size;
    const float p = args.p != nullptr ? args.p[i] : 1.0f;
    topk_topp_row(args.logits + i * args.row_stride, args.vocab_size, k, p, args.mask_value,
                  args.scratch);
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
