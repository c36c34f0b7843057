// SPDX-License-Identifier: Apache-2.0
//
// The rows of a mixture of experts: gathered from their tokens, multiplied with the weights of
// their experts by the tiles of packed linear layers, and added up for each token. A row's result
// does not depend on the others, nor a token's on the batch.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "experts/expert_plan.h"
#include "experts/experts_args.h"
#include "gemm/packed_linear-inl.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Bytes of a row as the product reads it.
inline int64_t expert_row_bytes(const PackedLinearArgs& args) {
  int64_t bytes = 0;
  with_product(args, [&](auto product) {
    using Product = decltype(product);
    bytes = prepared_size<Product>(args) *
            static_cast<int64_t>(sizeof(typename Product::Input::Stored));
  });
  return bytes;
}

// Range over the rows.
inline void gather_expert_rows(const GatherRowsArgs& args, int64_t begin, int64_t end) {
  const PackedLinearArgs& linear = args.product;
  with_product(linear, [&](auto product) {
    using Product = decltype(product);
    with_element(linear.input_type, [&](auto element) {
      using From = decltype(element);
      const int64_t size = prepared_size<Product>(linear);
      const auto* from = static_cast<const typename From::Stored*>(linear.input);
      auto* to = static_cast<typename Product::Input::Stored*>(linear.prepared);
      for (int64_t row = begin; row < end; ++row) {
        prepare_row<Product, From>(linear, from + args.token_of_row[row] * linear.input_stride,
                                   to + row * size);
      }
    });
  });
}

// Range over the units of cost (expert_plan.h): of strips that begin in it.
inline void expert_product(const ExpertProductArgs& args, int64_t begin, int64_t end) {
  const int64_t strips = parts_of(args.product.columns, kStripColumns);
  int64_t first_unit = 0;
  for (int64_t i = 0; i < args.num_blocks && first_unit < end; ++i) {
    const ExpertBlock& block = args.blocks[i];
    const int64_t cost = strip_cost(block.rows);
    const int64_t last_unit = first_unit + strips * cost;
    if (last_unit > begin) {
      const int64_t first = begin > first_unit ? parts_of(begin - first_unit, cost) : 0;
      const int64_t last = end < last_unit ? parts_of(end - first_unit, cost) : strips;
      if (first < last) {
        PackedLinearArgs product = args.product;
        product.weight =
            static_cast<const char*>(product.weight) + block.expert * args.expert_bytes;
        with_product(product, [&](auto kind) {
          multiply_block<decltype(kind)>(product, {block.row, block.row + block.rows},
                                         {first, last});
        });
      }
    }
    first_unit = last_unit;
  }
}

// Range over the tokens.
inline void combine_expert_rows(const CombineRowsArgs& args, int64_t begin, int64_t end) {
  with_element(args.output_type, [&](auto element) {
    using To = decltype(element);
    for (int64_t token = begin; token < end; ++token) {
      const int32_t* row_of = args.row_of_choice + token * args.choices;
      const float* weights = args.weights + token * args.weights_stride;
      auto* output = static_cast<typename To::Stored*>(args.output) + token * args.size;
      for_registers(args.size, [&](int64_t i, auto part) {
        Floats sum = Floats::zero();
        for (int64_t choice = 0; choice < args.choices; ++choice) {
          if (row_of[choice] < 0) continue;
          sum.add_product(Floats::all(weights[choice]),
                          Float32::load(args.rows + row_of[choice] * args.size + i, part));
        }
        To::store(sum, output + i, part);
      });
    }
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
