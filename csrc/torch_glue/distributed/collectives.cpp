// SPDX-License-Identifier: Apache-2.0
// The collectives of torch.distributed that move data: what is checked, and what runs on the group.
#include "distributed/arguments.h"
#include "distributed/process_group.h"

namespace anvil {
namespace {

using c10d::OpType;
using comm::Buffer;
using comm::ConstBuffer;
using comm::Group;
using Tensors = std::vector<at::Tensor>;

// Slices of a contiguous tensor along dim 0, by their sizes; equal ones where there are no sizes.
std::vector<ConstBuffer> slices(const char* name, ConstBuffer whole, const at::Tensor& tensor,
                                const std::vector<int64_t>& splits, int size) {
  const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : tensor.numel();
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, name, ": ", rows, " rows cannot be shared equally by ",
                      size, " ranks; give split sizes");
    return equal_parts(whole, size);
  }
  check_list(name, splits.size(), size);
  const size_t row = rows == 0 ? 0 : whole.bytes / static_cast<size_t>(rows);
  std::vector<ConstBuffer> parts;
  int64_t begin = 0;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, name, ": a split size is negative");
    parts.push_back({static_cast<const std::byte*>(whole.data) + static_cast<size_t>(begin) * row,
                     static_cast<size_t>(split) * row});
    begin += split;
  }
  TORCH_CHECK_VALUE(begin == rows, name, ": split sizes sum to ", begin, " of ", rows, " rows");
  return parts;
}

std::vector<Buffer> writable(const std::vector<ConstBuffer>& parts) {
  std::vector<Buffer> buffers;
  for (const ConstBuffer& part : parts)
    buffers.push_back({const_cast<void*>(part.data), part.bytes});
  return buffers;
}

}  // namespace

ProcessGroup::Work ProcessGroup::broadcast(Tensors& tensors,
                                           const c10d::BroadcastOptions& options) {
  Operands operands("broadcast");
  const at::Tensor& tensor = only("broadcast", tensors);
  check_root("broadcast", options.rootRank, getSize());
  const int root = static_cast<int>(options.rootRank);
  const Buffer data =
      root == getRank() ? writable({operands.in(tensor)}).front() : operands.out(tensor);
  return run(OpType::BROADCAST, std::move(operands), tensors,
             [=, timeout = timeout_for(options.timeout)](Group& group) {
               group.Broadcast(data, root, timeout);
             });
}

ProcessGroup::Work ProcessGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  Operands operands("all_gather");
  const at::Tensor& input = only("all_gather", inputs);
  TORCH_CHECK_VALUE(outputs.size() == 1, "all_gather takes one list of outputs");
  check_list("all_gather", outputs.front().size(), getSize());
  for (const at::Tensor& output : outputs.front()) check_type("all_gather", output, input);
  check_same("all_gather", outputs.front()[static_cast<size_t>(getRank())], input);
  const ConstBuffer from = operands.in(input);
  std::vector<Buffer> to = operands.out(outputs.front());
  return run(OpType::ALLGATHER, std::move(operands), outputs.front(),
             [from, to = std::move(to), timeout = timeout_for(options.timeout)](Group& group) {
               group.AllGather(from, to, timeout);
             });
}

ProcessGroup::Work ProcessGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) {
  Tensors outputs = {output}, inputs = {input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

ProcessGroup::Work ProcessGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  Operands operands("all_gather");
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "all_gather takes an output for each input");
  std::vector<std::pair<ConstBuffer, std::vector<Buffer>>> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_whole("all_gather", outputs[i], inputs[i], getSize());
    const ConstBuffer from = operands.in(inputs[i]);
    parts.emplace_back(from, equal_parts(operands.out(outputs[i]), getSize()));
  }
  return run(OpType::_ALLGATHER_BASE, std::move(operands), outputs,
             [parts = std::move(parts), timeout = timeout_for(options.timeout)](Group& group) {
               for (const auto& [from, to] : parts) group.AllGather(from, to, timeout);
             });
}

// outputs[rank][i] gets inputs[i] of the rank.
ProcessGroup::Work ProcessGroup::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& options) {
  Operands operands("all_gather");
  check_list("all_gather", outputs.size(), getSize());
  std::vector<std::pair<ConstBuffer, std::vector<Buffer>>> parts;
  Tensors all;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors received;
    for (const Tensors& of_rank : outputs) {
      TORCH_CHECK_VALUE(of_rank.size() == inputs.size(),
                        "all_gather takes an output for each input");
      check_type("all_gather", of_rank[i], inputs[i]);
      received.push_back(of_rank[i]);
    }
    const ConstBuffer from = operands.in(inputs[i]);
    parts.emplace_back(from, operands.out(received));
    all.insert(all.end(), received.begin(), received.end());
  }
  return run(OpType::ALLGATHER_COALESCED, std::move(operands), all,
             [parts = std::move(parts), timeout = timeout_for(options.timeout)](Group& group) {
               for (const auto& [from, to] : parts) group.AllGather(from, to, timeout);
             });
}

ProcessGroup::Work ProcessGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::GatherOptions& options) {
  Operands operands("gather");
  const at::Tensor& input = only("gather", inputs);
  check_root("gather", options.rootRank, getSize());
  const int root = static_cast<int>(options.rootRank);
  const ConstBuffer from = operands.in(input);
  std::vector<Buffer> to;
  Tensors results;
  if (root == getRank()) {
    TORCH_CHECK_VALUE(outputs.size() == 1, "gather takes one list of outputs on its root");
    check_list("gather", outputs.front().size(), getSize());
    for (const at::Tensor& output : outputs.front()) check_same("gather", output, input);
    to = operands.out(outputs.front());
    results = outputs.front();
  }
  return run(OpType::GATHER, std::move(operands), std::move(results),
             [from, to = std::move(to), root, timeout = timeout_for(options.timeout)](
                 Group& group) { group.Gather(from, to, root, timeout); });
}

ProcessGroup::Work ProcessGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ScatterOptions& options) {
  Operands operands("scatter");
  const at::Tensor& output = only("scatter", outputs);
  check_root("scatter", options.rootRank, getSize());
  const int root = static_cast<int>(options.rootRank);
  std::vector<ConstBuffer> from;
  if (root == getRank()) {
    TORCH_CHECK_VALUE(inputs.size() == 1, "scatter takes one list of inputs on its root");
    check_list("scatter", inputs.front().size(), getSize());
    for (const at::Tensor& input : inputs.front()) check_same("scatter", output, input);
    from = operands.in(inputs.front());
  }
  const Buffer to = operands.out(output);
  return run(OpType::SCATTER, std::move(operands), outputs,
             [from = std::move(from), to, root, timeout = timeout_for(options.timeout)](
                 Group& group) { group.Scatter(from, to, root, timeout); });
}

ProcessGroup::Work ProcessGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) {
  Operands operands("all_to_all");
  check_type("all_to_all", output, input);
  const ConstBuffer from = operands.in(input);
  const Buffer to = operands.out(output);
  std::vector<ConstBuffer> inputs = slices("all_to_all", from, input, input_splits, getSize());
  std::vector<Buffer> outputs =
      writable(slices("all_to_all", {to.data, to.bytes}, output, output_splits, getSize()));
  return run(OpType::ALLTOALL_BASE, std::move(operands), {output},
             [inputs = std::move(inputs), outputs = std::move(outputs),
              timeout = timeout_for(options.timeout)](Group& group) {
               group.AllToAll(inputs, outputs, timeout);
             });
}

ProcessGroup::Work ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllToAllOptions& options) {
  Operands operands("all_to_all");
  check_list("all_to_all", inputs.size(), getSize());
  check_list("all_to_all", outputs.size(), getSize());
  for (size_t i = 0; i < inputs.size(); ++i) check_type("all_to_all", outputs[i], inputs[i]);
  std::vector<ConstBuffer> from = operands.in(inputs);
  std::vector<Buffer> to = operands.out(outputs);
  return run(OpType::ALLTOALL, std::move(operands), outputs,
             [from = std::move(from), to = std::move(to), timeout = timeout_for(options.timeout)](
                 Group& group) { group.AllToAll(from, to, timeout); });
}

ProcessGroup::Work ProcessGroup::send(Tensors& tensors, int to, int tag) {
  Operands operands("send");
  check_root("send", to, getSize());
  const ConstBuffer data = operands.in(only("send", tensors));
  return transfer(OpType::SEND, std::move(operands),
                  {comm::Transfer::kSend, to, const_cast<void*>(data.data), data.bytes,
                   static_cast<uint64_t>(tag)},
                  {});
}

ProcessGroup::Work ProcessGroup::recv(Tensors& tensors, int from, int tag) {
  Operands operands("recv");
  check_root("recv", from, getSize());
  const Buffer data = operands.out(only("recv", tensors));
  return transfer(
      OpType::RECV, std::move(operands),
      {comm::Transfer::kReceive, from, data.data, data.bytes, static_cast<uint64_t>(tag)}, tensors);
}

// Over when all ranks' streams have come to it; its work makes the host wait as well.
ProcessGroup::Work ProcessGroup::barrier(const c10d::BarrierOptions& options) {
  return run(OpType::BARRIER, Operands("barrier"), {},
             [timeout = timeout_for(options.timeout)](Group& group) { group.Barrier(timeout); });
}

}  // namespace anvil
