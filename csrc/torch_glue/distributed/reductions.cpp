// SPDX-License-Identifier: Apache-2.0
// The collectives of torch.distributed that reduce.
#include "distributed/arguments.h"
#include "distributed/process_group.h"

namespace anvil {
namespace {

using c10d::OpType;
using comm::Buffer;
using comm::ConstBuffer;
using comm::Group;

}  // namespace

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
  const bool wanted = root == getRank();
  const ConstBuffer from = wanted ? ConstBuffer{} : operands.in(tensor);
  const Buffer to = wanted ? operands.in_out(tensor) : Buffer{};
  const void* const input = wanted ? to.data : from.data;
  const size_t count = static_cast<size_t>(tensor.numel());
  return run(OpType::REDUCE, std::move(operands), tensors,
             [=, timeout = timeout_for(options.timeout)](Group& group) {
               group.Reduce(input, to.data, count, type, op, root, timeout);
             });
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

}  // namespace anvil
