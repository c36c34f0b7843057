// SPDX-License-Identifier: Apache-2.0
// The collectives of torch.distributed: what is checked, and what runs on the group.
#include <ATen/ops/empty.h>

#include "distributed/process_group.h"

namespace anvil {
namespace {

using c10d::OpType;
using comm::Buffer;
using comm::ConstBuffer;
using comm::Group;
using Tensors = std::vector<at::Tensor>;

comm::ReduceOp reduce_op(const char* name, const c10d::ReduceOp& op, const at::Tensor& tensor) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return comm::ReduceOp::kSum;
    case c10d::ReduceOp::PRODUCT:
      return comm::ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return comm::ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return comm::ReduceOp::kMax;
    case c10d::ReduceOp::AVG:
      TORCH_CHECK_TYPE(tensor.scalar_type() != at::kBool, name, ": there is no average of bool.");
      return comm::ReduceOp::kAverage;
    default:
      TORCH_CHECK_VALUE(false, name, " on anvil reduces by SUM, AVG, PRODUCT, MIN or MAX.");
  }
}

const at::Tensor& only(const char* name, const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, name, " takes one tensor; got ", tensors.size());
  return tensors.front();
}

void check_root(const char* name, int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, name, ": there is no rank ", root, " in a group of ",
                    size);
}

void check_list(const char* name, size_t length, int size) {
  TORCH_CHECK_VALUE(length == static_cast<size_t>(size), name, " takes a list of ", size,
                    " tensors, one for each rank; got ", length);
}

void check_type(const char* name, const at::Tensor& output, const at::Tensor& input) {
  TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), name,
                   " takes tensors of one dtype; got ", output.scalar_type(), " and ",
                   input.scalar_type());
}

// That `whole` has the elements of `part` for each rank.
void check_whole(const char* name, const at::Tensor& whole, const at::Tensor& part, int size) {
  check_type(name, whole, part);
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * size, name, ": ", whole.numel(),
                    " elements are not those of ", size, " ranks with ", part.numel(), " each");
}

void check_same(const char* name, const at::Tensor& a, const at::Tensor& b) {
  check_type(name, a, b);
  TORCH_CHECK_VALUE(a.numel() == b.numel(), name, ": ", a.numel(), " and ", b.numel(),
                    " elements do not fit each other");
}

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

ProcessGroup::Work ProcessGroup::allreduce(Tensors& tensors,
                                           const c10d::AllreduceOptions& options) {
  only("all_reduce", tensors);
  c10d::AllreduceCoalescedOptions coalesced;
  coalesced.reduceOp = options.reduceOp;
  coalesced.timeout = options.timeout;
  return allreduce_coalesced(tensors, coalesced);
}

ProcessGroup::Work ProcessGroup::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  struct Part {
    Buffer data;
    size_t count;
    comm::DataType type;
    comm::ReduceOp op;
  };
  Operands operands("all_reduce");
  std::vector<Part> parts;
  for (const at::Tensor& tensor : tensors) {
    const comm::DataType type = data_type("all_reduce", tensor);
    const comm::ReduceOp op = reduce_op("all_reduce", options.reduceOp, tensor);
    parts.push_back({operands.in_out(tensor), static_cast<size_t>(tensor.numel()), type, op});
  }
  return run(OpType::ALLREDUCE, std::move(operands), tensors,
             [parts = std::move(parts), timeout = timeout_for(options.timeout)](Group& group) {
               for (const Part& part : parts) {
                 group.AllReduce(part.data.data, part.data.data, part.count, part.type, part.op,
                                 timeout);
               }
             });
}

ProcessGroup::Work ProcessGroup::all_reduce_into(const at::Tensor& output,
                                                 const at::Tensor& input) {
  Operands operands("all_reduce");
  check_same("all_reduce", output, input);
  const comm::DataType type = data_type("all_reduce", input);
  const ConstBuffer from = operands.in(input);
  const Buffer to = operands.out(output);
  const size_t count = static_cast<size_t>(input.numel());
  return run(OpType::ALLREDUCE, std::move(operands), {output},
             [=, timeout = timeout_](Group& group) {
               group.AllReduce(from.data, to.data, count, type, comm::ReduceOp::kSum, timeout);
             });
}

ProcessGroup::Work ProcessGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Operands operands("reduce");
  const at::Tensor& tensor = only("reduce", tensors);
  check_root("reduce", options.rootRank, getSize());
  const int root = static_cast<int>(options.rootRank);
  const comm::DataType type = data_type("reduce", tensor);
  const comm::ReduceOp op = reduce_op("reduce", options.reduceOp, tensor);
  const Buffer data =
      root == getRank() ? operands.in_out(tensor) : writable({operands.in(tensor)}).front();
  const size_t count = static_cast<size_t>(tensor.numel());
  return run(OpType::REDUCE, std::move(operands), tensors,
             [=, timeout = timeout_for(options.timeout)](Group& group) {
               group.Reduce(data.data, data.data, count, type, op, root, timeout);
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

ProcessGroup::Work ProcessGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const c10d::ReduceScatterOptions& options) {
  Operands operands("reduce_scatter");
  const at::Tensor& output = only("reduce_scatter", outputs);
  TORCH_CHECK_VALUE(inputs.size() == 1, "reduce_scatter takes one list of inputs");
  check_list("reduce_scatter", inputs.front().size(), getSize());
  for (const at::Tensor& input : inputs.front()) check_type("reduce_scatter", output, input);
  check_same("reduce_scatter", output, inputs.front()[static_cast<size_t>(getRank())]);
  const comm::DataType type = data_type("reduce_scatter", output);
  const comm::ReduceOp op = reduce_op("reduce_scatter", options.reduceOp, output);
  std::vector<ConstBuffer> from = operands.in(inputs.front());
  const Buffer to = operands.out(output);
  return run(OpType::REDUCE_SCATTER, std::move(operands), outputs,
             [=, from = std::move(from), timeout = timeout_for(options.timeout)](Group& group) {
               group.ReduceScatter(from, to.data, type, op, timeout);
             });
}

ProcessGroup::Work ProcessGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) {
  Tensors outputs = {output}, inputs = {input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

ProcessGroup::Work ProcessGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  struct Part {
    std::vector<ConstBuffer> from;
    Buffer to;
    comm::DataType type;
    comm::ReduceOp op;
  };
  Operands operands("reduce_scatter");
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(),
                    "reduce_scatter takes an output for each input");
  std::vector<Part> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_whole("reduce_scatter", inputs[i], outputs[i], getSize());
    const comm::DataType type = data_type("reduce_scatter", inputs[i]);
    const comm::ReduceOp op = reduce_op("reduce_scatter", options.reduceOp, inputs[i]);
    const ConstBuffer from = operands.in(inputs[i]);
    parts.push_back({equal_parts(from, getSize()), operands.out(outputs[i]), type, op});
  }
  return run(OpType::_REDUCE_SCATTER_BASE, std::move(operands), outputs,
             [parts = std::move(parts), timeout = timeout_for(options.timeout)](Group& group) {
               for (const Part& part : parts) {
                 group.ReduceScatter(part.from, part.to.data, part.type, part.op, timeout);
               }
             });
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
