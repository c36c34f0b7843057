// SPDX-License-Identifier: Apache-2.0
// Every op of torch.ops.anvil and what it mutates. Kernels register in the file that is named after
// the op.
#include <torch/library.h>

#include <vector>

TORCH_LIBRARY(anvil, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};

  // cache: see vllm_anvil/ops/cache.py for shapes and meaning
  m.def(
      "compute_slot_mapping(Tensor query_start_loc, Tensor positions, Tensor block_table, "
      "Tensor(a!) slot_mapping, SymInt num_tokens, int block_size, int cp_world_size=1, "
      "int cp_rank=0, int cp_interleave=1, int pad_id=-1) -> ()",
      tags);
  m.def(
      "write_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
      "Tensor slot_mapping) -> ()",
      tags);
  m.def("copy_blocks(Tensor(a!) cache, Tensor block_pairs) -> ()", tags);
  m.def("swap_blocks(Tensor src, Tensor(a!) dst, Tensor block_pairs) -> ()", tags);

  // gemm: see vllm_anvil/ops/gemm.py
  m.def("linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", tags);
}
