// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "ranks.h"

namespace anvil::comm {
namespace {

class Collectives : public RanksTest {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, kSettings, SettingName);

// Around what a slot, its parts and one exchange can hold.
const size_t kSizes[] = {0, 1, 3, 100, 1016, 1024, 1032, 5000, 40001};

template <typename T>
std::vector<T> ValuesOf(int rank, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(static_cast<T>((i * 37 + static_cast<size_t>(rank) * 101) % 1000) /
                               static_cast<T>(7));
  }
  return values;
}

template <typename T>
std::vector<T> SumInOrder(int ranks, size_t count) {
  std::vector<T> total = ValuesOf<T>(0, count);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<T> next = ValuesOf<T>(rank, count);
    for (size_t i = 0; i < count; ++i) total[i] += next[i];
  }
  return total;
}

template <typename T>
void CheckAllReduce(Group& group, DataType type) {
  for (const size_t count : {0, 1, 5, 127, 128, 129, 1000, 8192, 8193, 30011}) {
    const std::vector<T> input = ValuesOf<T>(group.rank(), count);
    const std::vector<T> expected = SumInOrder<T>(group.size(), count);
    std::vector<T> output(count + 1, T{55});
    group.AllReduce(input.data(), output.data(), count, type, ReduceOp::kSum, kPatience);
    ASSERT_EQ(std::memcmp(output.data(), expected.data(), count * sizeof(T)), 0) << count;
    EXPECT_EQ(output[count], T{55});
    // In place.
    std::vector<T> both = input;
    group.AllReduce(both.data(), both.data(), count, type, ReduceOp::kSum, kPatience);
    ASSERT_EQ(both, expected);
    for (int root = 0; root < group.size(); ++root) {
      std::vector<T> result(count, T{55});
      group.Reduce(input.data(), result.data(), count, type, ReduceOp::kSum, root, kPatience);
      ASSERT_EQ(result, group.rank() == root ? expected : std::vector<T>(count, T{55}));
    }
  }
}

TEST_P(Collectives, AllReduceAndReduce) {
  Run([](Group& group) {
    CheckAllReduce<float>(group, DataType::kFloat32);
    CheckAllReduce<double>(group, DataType::kFloat64);
    CheckAllReduce<int16_t>(group, DataType::kInt16);
  });
}

void CheckAllGather(Group& group, size_t bytes, bool even) {
  const auto size_of = [&](int rank) {
    return even ? bytes : bytes * static_cast<size_t>(rank) / 2;
  };
  const auto input = BytesOf(group.rank(), size_of(group.rank()));
  std::vector<Guarded> results;
  std::vector<Buffer> outputs;
  for (int rank = 0; rank < group.size(); ++rank) results.emplace_back(size_of(rank));
  for (Guarded& result : results) outputs.push_back(result.buffer());
  group.AllGather({input.data(), input.size()}, outputs, kPatience);
  for (int rank = 0; rank < group.size(); ++rank) {
    const Guarded& result = results[static_cast<size_t>(rank)];
    ASSERT_EQ(result.values(), BytesOf(rank, size_of(rank)));
    EXPECT_TRUE(result.IsIntact());
  }
}

TEST_P(Collectives, AllGather) {
  Run([](Group& group) {
    for (const size_t bytes : kSizes) {
      for (const bool even : {true, false}) CheckAllGather(group, bytes, even);
    }
  });
}

TEST_P(Collectives, ReduceScatter) {
  Run([](Group& group) {
    for (const size_t count : {0, 1, 50, 130, 1000, 9000}) {
      for (const bool even : {true, false}) {
        const auto count_of = [&](int rank) {
          return even ? count : count * static_cast<size_t>(rank);
        };
        size_t total = 0, before = 0;
        for (int rank = 0; rank < group.size(); ++rank) {
          if (rank < group.rank()) before += count_of(rank);
          total += count_of(rank);
        }
        const std::vector<float> input = ValuesOf<float>(group.rank(), total);
        const std::vector<float> sum = SumInOrder<float>(group.size(), total);
        std::vector<ConstBuffer> inputs;
        const float* next = input.data();
        for (int rank = 0; rank < group.size(); ++rank) {
          inputs.push_back({next, count_of(rank) * sizeof(float)});
          next += count_of(rank);
        }
        std::vector<float> output(count_of(group.rank()) + 1, 55.0f);
        group.ReduceScatter(inputs, output.data(), DataType::kFloat32, ReduceOp::kSum, kPatience);
        ASSERT_EQ(
            std::memcmp(output.data(), sum.data() + before, count_of(group.rank()) * sizeof(float)),
            0);
        EXPECT_EQ(output.back(), 55.0f);
      }
    }
  });
}

void CheckRooted(Group& group, size_t bytes, int root) {
  Guarded data(bytes);
  data.Fill(BytesOf(group.rank(), bytes));
  group.Broadcast(data.buffer(), root, kPatience);
  ASSERT_EQ(data.values(), BytesOf(root, bytes));
  EXPECT_TRUE(data.IsIntact());

  const auto input = BytesOf(group.rank(), bytes, 1);
  std::vector<Guarded> gathered(static_cast<size_t>(group.size()), Guarded(bytes));
  std::vector<Buffer> outputs;
  for (Guarded& each : gathered) outputs.push_back(each.buffer());
  group.Gather({input.data(), bytes}, outputs, root, kPatience);
  for (int rank = 0; rank < group.size() && group.rank() == root; ++rank) {
    ASSERT_EQ(gathered[static_cast<size_t>(rank)].values(), BytesOf(rank, bytes, 1));
    EXPECT_TRUE(gathered[static_cast<size_t>(rank)].IsIntact());
  }

  std::vector<std::vector<unsigned char>> parts;
  std::vector<ConstBuffer> inputs;
  for (int rank = 0; rank < group.size(); ++rank)
    parts.push_back(BytesOf(root, bytes, 2u + static_cast<unsigned>(rank)));
  for (const auto& part : parts) inputs.push_back({part.data(), bytes});
  Guarded scattered(bytes);
  group.Scatter(inputs, scattered.buffer(), root, kPatience);
  ASSERT_EQ(scattered.values(), BytesOf(root, bytes, 2u + static_cast<unsigned>(group.rank())));
  EXPECT_TRUE(scattered.IsIntact());
}

TEST_P(Collectives, BroadcastGatherAndScatter) {
  Run([](Group& group) {
    for (const size_t bytes : kSizes) {
      for (int root = 0; root < group.size(); ++root) CheckRooted(group, bytes, root);
    }
  });
}

void CheckAllToAll(Group& group, size_t bytes, bool even) {
  const auto size_of = [&](int from, int to) {
    return even ? bytes : bytes * static_cast<size_t>((from + 2 * to) % 3) / 2;
  };
  std::vector<std::vector<unsigned char>> parts;
  std::vector<Guarded> results;
  std::vector<ConstBuffer> inputs;
  std::vector<Buffer> outputs;
  for (int other = 0; other < group.size(); ++other) {
    parts.push_back(
        BytesOf(group.rank(), size_of(group.rank(), other), static_cast<unsigned>(other)));
    results.emplace_back(size_of(other, group.rank()));
  }
  for (const auto& part : parts) inputs.push_back({part.data(), part.size()});
  for (Guarded& result : results) outputs.push_back(result.buffer());
  group.AllToAll(inputs, outputs, kPatience);
  for (int other = 0; other < group.size(); ++other) {
    const Guarded& result = results[static_cast<size_t>(other)];
    ASSERT_EQ(result.values(),
              BytesOf(other, size_of(other, group.rank()), static_cast<unsigned>(group.rank())));
    EXPECT_TRUE(result.IsIntact());
  }
}

TEST_P(Collectives, AllToAll) {
  Run([](Group& group) {
    for (const size_t bytes : kSizes) {
      for (const bool even : {true, false}) CheckAllToAll(group, bytes, even);
    }
  });
}

// Past the caches, from and to places that are aligned to nothing.
TEST_P(Collectives, LargeMessages) {
  Run(
      [](Group& group) {
        for (const size_t bytes : {(size_t{900} << 10) + 3, (size_t{5} << 20) + 13}) {
          CheckAllGather(group, bytes, true);
          CheckRooted(group, bytes, group.size() - 1);
          CheckAllToAll(group, bytes, true);
          const size_t count = bytes / sizeof(float);
          const std::vector<float> input = ValuesOf<float>(group.rank(), count);
          std::vector<float> output(count + 1, 55.0f);
          group.AllReduce(input.data(), output.data() + 1, count, DataType::kFloat32,
                          ReduceOp::kSum, kPatience);
          const std::vector<float> expected = SumInOrder<float>(group.size(), count);
          ASSERT_EQ(std::memcmp(output.data() + 1, expected.data(), count * sizeof(float)), 0);
          EXPECT_EQ(output[0], 55.0f);
        }
      },
      SharedGroup::SlotBytes(GetParam().ranks, 1));
}

TEST_P(Collectives, InLargeSlotsAndOneAfterTheOther) {
  Run(
      [](Group& group) {
        for (int round = 0; round < 200; ++round) {
          const size_t count = static_cast<size_t>(round) * 997 % 70000;
          const std::vector<float> input = ValuesOf<float>(group.rank(), count);
          std::vector<float> output(count);
          group.AllReduce(input.data(), output.data(), count, DataType::kFloat32, ReduceOp::kSum,
                          kPatience);
          ASSERT_EQ(output, SumInOrder<float>(group.size(), count));
          if (round % 3 == 0) group.Barrier(kPatience);
        }
      },
      SharedGroup::SlotBytes(GetParam().ranks, 1));
}

TEST_P(Collectives, ABarrierIsPassedWhenAllHaveArrived) {
  Run([](Group& group) {
    const auto begin = std::chrono::steady_clock::now();
    if (group.rank() == group.size() - 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    group.Barrier(kPatience);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(90));
  });
}

}  // namespace
}  // namespace anvil::comm
