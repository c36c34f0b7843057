// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one instruction set. Each file in isa/ exports one such table, and dispatch.h
// picks.
//
// Kernels take raw pointers and a half-open range [begin, end) of their parallel dimension, and may
// run on disjoint ranges at once; who calls them splits the work and has checked the arguments.
// They allocate nothing, throw nothing and keep no state.
#pragma once

#include <cstdint>

#include "activation/activation_args.h"
#include "attention/attention_args.h"
#include "attention_states/attention_states_args.h"
#include "cache/cache_args.h"
#include "ceiling/ceiling_args.h"
#include "embedding/embedding_args.h"
#include "experts/experts_args.h"
#include "gemm/linear_args.h"
#include "gemm/packed_linear_args.h"
#include "lora/lora_args.h"
#include "norm/norm_args.h"
#include "rotary/qk_norm_rotary_write_kv_cache_args.h"
#include "rotary/rotary_args.h"
#include "sampling/sampling_args.h"
#include "softmax/softmax_args.h"

namespace anvil::kernels {

struct KernelTable {
  const char* isa;   // "scalar", "avx2", ...: the value of ANVIL_ISA that selects this table
  int vector_bytes;  // width of the registers its kernels use

  // Index of the first of values[0], values[stride], ... values[(count - 1) * stride] that is not
  // in [low, high), or -1 when all are.
  int64_t (*find_out_of_range)(const int64_t* values, int64_t count, int64_t stride, int64_t low,
                               int64_t high);
  int64_t (*find_out_of_range_int32)(const int32_t* values, int64_t count, int64_t stride,
                                     int64_t low, int64_t high);

  // Range over the tokens. Two tokens of one slot in different ranges race; within a range the last
  // wins.
  void (*write_kv_cache)(const WriteKvCacheArgs& args, int64_t begin, int64_t end);

  // Range over the bytes of a block, [0, block_bytes). Every range goes through all pairs in order,
  // so that a chain (a to b, then b to c) gives the same result however the range is split.
  void (*copy_blocks)(const CopyBlocksArgs& args, int64_t begin, int64_t end);

  // Range over the columns of the output.
  void (*linear)(const LinearArgs& args, int64_t begin, int64_t end);

  // The bytes of a row in the form in which packed_linear wants its input; 0: as it lies.
  int64_t (*linear_input_bytes)(const PackedLinearArgs& args);

  // Range over the rows.
  void (*prepare_linear_input)(const PackedLinearArgs& args, int64_t begin, int64_t end);

  // Range over row_blocks times strips: strip i % strips of block i / strips, with strips of
  // kStripColumns columns.
  void (*packed_linear)(const PackedLinearArgs& args, int64_t begin, int64_t end);

  // Ranges over the strips.
  void (*pack_linear)(const PackArgs& args, int64_t begin, int64_t end);
  void (*unpack_linear)(const PackArgs& args, int64_t begin, int64_t end);

  // Range over the tokens.
  void (*choose_experts)(const ChooseExpertsArgs& args, int64_t begin, int64_t end);

  // A mixture of experts: the bytes of a row as a product reads it; rows are gathered (a range of
  // them), multiplied (a range of what product_cost() counts) and added up (a range of the tokens).
  int64_t (*expert_row_bytes)(const PackedLinearArgs& args);
  void (*gather_expert_rows)(const GatherRowsArgs& args, int64_t begin, int64_t end);
  void (*expert_product)(const ExpertProductArgs& args, int64_t begin, int64_t end);
  void (*combine_expert_rows)(const CombineRowsArgs& args, int64_t begin, int64_t end);

  // Low-rank adapters: range over runs times slices times blocks of ranks, and over runs times the
  // slices' blocks of columns.
  void (*lora_shrink)(const LoraShrinkArgs& args, int64_t begin, int64_t end);
  void (*lora_expand)(const LoraExpandArgs& args, int64_t begin, int64_t end);

  // Ranges over the rows, each of which is computed by itself.
  void (*rms_norm)(const RmsNormArgs& args, int64_t begin, int64_t end);
  void (*layer_norm)(const LayerNormArgs& args, int64_t begin, int64_t end);
  void (*gate_and_mul)(const GateAndMulArgs& args, int64_t begin, int64_t end);
  void (*softmax)(const SoftmaxArgs& args, int64_t begin, int64_t end);

  // Range over the rows. Ranges that run at once need scratch of their own.
  void (*topk_topp)(const TopkToppArgs& args, int64_t begin, int64_t end);

  // Range over the tokens.
  void (*rotary_embedding)(const RotaryArgs& args, int64_t begin, int64_t end);

  // Range over the tokens. Slots of two tokens as in write_kv_cache.
  void (*qk_norm_rotary_write_kv_cache)(const QkNormRotaryWriteKvCacheArgs& args, int64_t begin,
                                        int64_t end);

  // Range over the ids.
  void (*embedding)(const EmbeddingArgs& args, int64_t begin, int64_t end);
  // The same with a packed weight, whose stride is not looked at.
  void (*packed_embedding)(const EmbeddingArgs& args, int64_t begin, int64_t end);

  // Range over the tokens.
  void (*merge_attn_states)(const MergeAttnStatesArgs& args, int64_t begin, int64_t end);

  // Attention over a paged cache, in two steps: a thread plans, then any number of them compute
  // what is left of the plan, each with a number of its own in [0, workers); planning says how many
  // are worth it. The workspace that they share has so many bytes, for which no length need be
  // known.
  int64_t (*attention_workspace_bytes)(const AttentionArgs& args);
  int64_t (*attention_plan)(const AttentionArgs& args);
  void (*attention)(const AttentionArgs& args, int64_t begin, int64_t end);

  // Range over the requests; the first of it that has something wrong.
  BlockTableFault (*check_block_table)(const BlockTableArgs& args, int64_t begin, int64_t end);

  // Range over the bytes. Sum of the 64-bit words from `begin` on, and of the bytes behind the last
  // of them; wraps around.
  int64_t (*ceiling_read)(const char* data, int64_t begin, int64_t end);

  // What one core does; all of them do the same.
  CeilingArithmeticResult (*ceiling_arithmetic)(const CeilingArithmeticArgs& args);
};

}  // namespace anvil::kernels
