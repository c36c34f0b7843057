// SPDX-License-Identifier: Apache-2.0
// Every op of torch.ops.anvil and what it mutates. Kernels register in the file that is named after
// the op.
#include <torch/library.h>

#include <vector>

TORCH_LIBRARY(anvil, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};

  // cache: see vllm_anvil/ops/cache.py for shapes and meaning
  m.def(
      "write_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
      "Tensor slot_mapping) -> ()",
      tags);
  m.def("copy_blocks(Tensor(a!) cache, Tensor block_pairs) -> ()", tags);
  m.def("swap_blocks(Tensor src, Tensor(a!) dst, Tensor block_pairs) -> ()", tags);

  // gemm: see vllm_anvil/ops/gemm.py
  m.def("linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", tags);

  // sampling: see vllm_anvil/ops/sampling.py
  m.def("topk_topp(Tensor(a!) logits, Tensor? k, Tensor? p, float mask_value) -> ()", tags);
}
