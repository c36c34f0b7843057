// SPDX-License-Identifier: Apache-2.0
#include "exchange_group.h"

#include <cstring>

#include "reduce.h"

namespace anvil::comm {
namespace {

// Up to here an all-reduce sends everything to everyone, which takes one exchange instead of two.
constexpr size_t kAtOnceBytes = 64 << 10;

Transfer SendTo(int rank, ConstBuffer data) {
  return {Transfer::kSend, rank, const_cast<void*>(data.data), data.bytes};
}
Transfer ReceiveFrom(int rank, Buffer data) {
  return {Transfer::kReceive, rank, data.data, data.bytes};
}

void CopyTo(Buffer to, const void* from) {
  if (to.bytes > 0 && to.data != from) std::memmove(to.data, from, to.bytes);
}

size_t Index(int rank) { return static_cast<size_t>(rank); }

}  // namespace

void ExchangeGroup::ReduceHere(const char* name, ConstBuffer mine, void* output, DataType type,
                               ReduceOp op, std::vector<Transfer> sends, Milliseconds timeout) {
  const ReduceFn reduce = FindReduce(type, op);
  if (reduce == nullptr) {
    throw CommError(std::string("there is no ") + NameOf(op) + " of " + NameOf(type));
  }
  std::vector<std::byte> received(mine.bytes * Index(size()));
  std::vector<const void*> parts(Index(size()), mine.data);
  for (int from = 0; from < size(); ++from) {
    if (from == rank()) continue;
    std::byte* const part = received.data() + Index(from) * mine.bytes;
    sends.push_back(ReceiveFrom(from, {part, mine.bytes}));
    parts[Index(from)] = part;
  }
  Exchange(name, sends, timeout);
  reduce(output, parts.data(), size(), mine.bytes / SizeOf(type));
}

void ExchangeGroup::AllReduce(const void* input, void* output, size_t count, DataType type,
                              ReduceOp op, Milliseconds timeout) {
  const size_t bytes = count * SizeOf(type);
  if (bytes <= kAtOnceBytes) {
    std::vector<Transfer> sends;
    for (int to = 0; to < size(); ++to) {
      if (to != rank()) sends.push_back(SendTo(to, {input, bytes}));
    }
    ReduceHere("all_reduce", {input, bytes}, output, type, op, std::move(sends), timeout);
    return;
  }
  std::vector<ConstBuffer> inputs;
  std::vector<Buffer> outputs;
  for (int each = 0; each < size(); ++each) {
    const size_t begin = ShareBegin(count, size(), each) * SizeOf(type);
    const size_t end = ShareBegin(count, size(), each + 1) * SizeOf(type);
    inputs.push_back({static_cast<const std::byte*>(input) + begin, end - begin});
    outputs.push_back({static_cast<std::byte*>(output) + begin, end - begin});
  }
  const Buffer mine = outputs[Index(rank())];
  ReduceScatter(inputs, mine.data, type, op, timeout);
  AllGather({mine.data, mine.bytes}, outputs, timeout);
}

void ExchangeGroup::Reduce(const void* input, void* output, size_t count, DataType type,
                           ReduceOp op, int root, Milliseconds timeout) {
  const ConstBuffer mine = {input, count * SizeOf(type)};
  if (rank() == root) return ReduceHere("reduce", mine, output, type, op, {}, timeout);
  const Transfer send = SendTo(root, mine);
  Exchange("reduce", {&send, 1}, timeout);
}

void ExchangeGroup::AllGather(ConstBuffer input, std::span<const Buffer> outputs,
                              Milliseconds timeout) {
  std::vector<Transfer> transfers;
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    transfers.push_back(SendTo(other, input));
    transfers.push_back(ReceiveFrom(other, outputs[Index(other)]));
  }
  Exchange("all_gather", transfers, timeout);
  CopyTo(outputs[Index(rank())], input.data);
}

void ExchangeGroup::ReduceScatter(std::span<const ConstBuffer> inputs, void* output, DataType type,
                                  ReduceOp op, Milliseconds timeout) {
  std::vector<Transfer> sends;
  for (int to = 0; to < size(); ++to) {
    if (to != rank()) sends.push_back(SendTo(to, inputs[Index(to)]));
  }
  ReduceHere("reduce_scatter", inputs[Index(rank())], output, type, op, std::move(sends), timeout);
}

void ExchangeGroup::Broadcast(Buffer data, int root, Milliseconds timeout) {
  std::vector<Transfer> transfers;
  if (rank() != root) transfers.push_back(ReceiveFrom(root, data));
  for (int to = 0; to < size() && rank() == root; ++to) {
    if (to != root) transfers.push_back(SendTo(to, {data.data, data.bytes}));
  }
  Exchange("broadcast", transfers, timeout);
}

void ExchangeGroup::Gather(ConstBuffer input, std::span<const Buffer> outputs, int root,
                           Milliseconds timeout) {
  std::vector<Transfer> transfers;
  if (rank() != root) transfers.push_back(SendTo(root, input));
  for (int from = 0; from < size() && rank() == root; ++from) {
    if (from != root) transfers.push_back(ReceiveFrom(from, outputs[Index(from)]));
  }
  Exchange("gather", transfers, timeout);
  if (rank() == root) CopyTo(outputs[Index(root)], input.data);
}

void ExchangeGroup::Scatter(std::span<const ConstBuffer> inputs, Buffer output, int root,
                            Milliseconds timeout) {
  std::vector<Transfer> transfers;
  if (rank() != root) transfers.push_back(ReceiveFrom(root, output));
  for (int to = 0; to < size() && rank() == root; ++to) {
    if (to != root) transfers.push_back(SendTo(to, inputs[Index(to)]));
  }
  Exchange("scatter", transfers, timeout);
  if (rank() == root) CopyTo(output, inputs[Index(root)].data);
}

void ExchangeGroup::AllToAll(std::span<const ConstBuffer> inputs, std::span<const Buffer> outputs,
                             Milliseconds timeout) {
  std::vector<Transfer> transfers;
  // What is sent may lie where something is received into.
  std::vector<std::vector<std::byte>> copies(Index(size()));
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    ConstBuffer input = inputs[Index(other)];
    if (input.data == outputs[Index(other)].data && input.bytes > 0) {
      const auto* const bytes = static_cast<const std::byte*>(input.data);
      copies[Index(other)].assign(bytes, bytes + input.bytes);
      input.data = copies[Index(other)].data();
    }
    transfers.push_back(SendTo(other, input));
    transfers.push_back(ReceiveFrom(other, outputs[Index(other)]));
  }
  Exchange("all_to_all", transfers, timeout);
  CopyTo(outputs[Index(rank())], inputs[Index(rank())].data);
}

void ExchangeGroup::Barrier(Milliseconds timeout) {
  std::vector<unsigned char> bytes(Index(size()));
  std::vector<Buffer> outputs;
  for (unsigned char& byte : bytes) outputs.push_back({&byte, 1});
  const unsigned char mine = 0;
  AllGather({&mine, 1}, outputs, timeout);
}

}  // namespace anvil::comm
