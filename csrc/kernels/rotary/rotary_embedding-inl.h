// SPDX-License-Identifier: Apache-2.0
//
// Pairs of elements turned by the angles of a token's position. The angles are widened once per
// token, into scratch on the stack, and serve all of its heads.
#pragma once

#include <cstdint>

#include "rotary/rotary_args.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

constexpr int64_t kPairsAtOnce = 128;

// Cosines and sines of up to kPairsAtOnce pairs.
struct Angles {
  float cosines[kPairsAtOnce];
  float sines[kPairsAtOnce];
};

// The same with an entry per element, as neighbouring pairs lie in memory: each cosine twice, each
// sine first with the sign that it has in the pair's first element.
struct SpreadAngles {
  float cosines[2 * kPairsAtOnce];
  float sines[2 * kPairsAtOnce];
};

inline int64_t position_of(const RotaryArgs& args, int64_t axis, int64_t token) {
  const int64_t index = axis * args.axis_stride + token * args.position_stride;
  if (args.positions_are_int32) return static_cast<const int32_t*>(args.positions)[index];
  return static_cast<const int64_t*>(args.positions)[index];
}

// Which of the three positions turns a pair.
inline int64_t axis_of(const RotaryArgs& args, int64_t pair) {
  if (!args.interleaved) {
    return pair < args.section[0] ? 0 : pair < args.section[0] + args.section[1] ? 1 : 2;
  }
  const int64_t axis = pair % 3;
  return pair < 3 * args.section[axis] ? axis : 0;
}

template <typename Table>
inline void read_angles(const RotaryArgs& args, int64_t token, int64_t first, int64_t count,
                        Angles& angles) {
  const auto* table = static_cast<const typename Table::Stored*>(args.table);
  if (!args.multimodal) {
    const auto* row = table + position_of(args, 0, token) * args.table_stride + first;
    convert_row<Table, Float32>(row, angles.cosines, count);
    convert_row<Table, Float32>(row + args.half, angles.sines, count);
    return;
  }
  const typename Table::Stored* rows[3];
  for (int64_t axis = 0; axis < 3; ++axis) {
    rows[axis] = table + position_of(args, axis, token) * args.table_stride + first;
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto* row = rows[axis_of(args, first + i)];
    angles.cosines[i] = Table::widen(row[i]);
    angles.sines[i] = Table::widen(row[args.half + i]);
  }
}

inline void spread(const Angles& angles, int64_t count, SpreadAngles& result) {
  for (int64_t i = 0; i < count; ++i) {
    result.cosines[2 * i] = result.cosines[2 * i + 1] = angles.cosines[i];
    result.sines[2 * i] = -angles.sines[i];
    result.sines[2 * i + 1] = angles.sines[i];
  }
}

// a * b - c * d, with one rounding less than its operations have.
inline Floats difference_of_products(Floats a, Floats b, Floats c, Floats d) {
  return a.multiply_add(b, Floats::zero() - c * d);
}

// `count` pairs whose elements are `distance` apart.
template <typename Element>
inline void turn_halves(typename Element::Stored* states, int64_t distance, int64_t count,
                        const Angles& angles) {
  auto* firsts = states;
  auto* seconds = states + distance;
  for_registers(count, [&](int64_t i, auto part) {
    const Floats x = Element::load(firsts + i, part), y = Element::load(seconds + i, part);
    const Floats c = Float32::load(angles.cosines + i, part);
    const Floats s = Float32::load(angles.sines + i, part);
    Element::store(difference_of_products(x, c, y, s), firsts + i, part);
    Element::store(y.multiply_add(c, x * s), seconds + i, part);
  });
}

#if ANVIL_VECTOR_BYTES == 64
inline Floats swap_neighbours(Floats x) { return {_mm512_permute_ps(x.value, 0xb1)}; }
#elif ANVIL_VECTOR_BYTES == 32
inline Floats swap_neighbours(Floats x) { return {_mm256_permute_ps(x.value, 0xb1)}; }
#endif

// `count` pairs of neighbours.
template <typename Element>
inline void turn_neighbours(typename Element::Stored* states, int64_t count,
                            const SpreadAngles& angles) {
#if ANVIL_VECTOR_BYTES > 8
  for_registers(2 * count, [&](int64_t i, auto part) {
    const Floats x = Element::load(states + i, part);
    const Floats c = Float32::load(angles.cosines + i, part);
    const Floats s = Float32::load(angles.sines + i, part);
    Element::store(x.multiply_add(c, swap_neighbours(x) * s), states + i, part);
  });
#else
  for (int64_t i = 0; i < 2 * count; i += 2) {
    const Floats x = Element::load(states + i), y = Element::load(states + i + 1);
    const Floats c = Floats::load(angles.cosines + i), s = Floats::load(angles.sines + i + 1);
    Element::store(difference_of_products(x, c, y, s), states + i);
    Element::store(y.multiply_add(c, x * s), states + i + 1);
  }
#endif
}

// All heads of a token.
template <typename Element, typename Turn>
inline void for_heads(const HeadStates& states, int64_t token, const Turn& turn) {
  auto* head = static_cast<typename Element::Stored*>(states.data) + token * states.token_stride;
  for (int64_t i = 0; i < states.heads; ++i, head += states.head_stride) turn(head);
}

// Queries and keys of a token.
inline void turn_token(const RotaryArgs& args, int64_t token) {
  Angles angles;
  SpreadAngles spread_angles;
  for (int64_t first = 0; first < args.half; first += kPairsAtOnce) {
    const int64_t rest = args.half - first;
    const int64_t count = rest < kPairsAtOnce ? rest : kPairsAtOnce;
    with_element(args.table_type, [&](auto table) {
      read_angles<decltype(table)>(args, token, first, count, angles);
    });
    if (!args.is_neox) spread(angles, count, spread_angles);
    const HeadStates* const sides[2] = {&args.query, &args.key};
    for (const HeadStates* side : sides) {
      with_element(side->type, [&](auto element) {
        using Element = decltype(element);
        for_heads<Element>(*side, token, [&](typename Element::Stored* head) {
          if (args.is_neox) {
            turn_halves<Element>(head + first, args.half, count, angles);
          } else {
            turn_neighbours<Element>(head + 2 * first, count, spread_angles);
          }
        });
      });
    }
  }
}

inline void rotary_embedding(const RotaryArgs& args, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) turn_token(args, token);
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
