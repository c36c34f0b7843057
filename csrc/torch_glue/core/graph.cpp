// SPDX-License-Identifier: Apache-2.0
#include "core/graph.h"

#include <atomic>
#include <fstream>
#include <map>
#include <mutex>

#include "core/stream.h"
#include "core/wait.h"

namespace anvil {

// A pool of the runtime under the id by which graphs share it.
class MemoryPool {
 public:
  MemoryPool(at::MempoolId_t id, c10::DeviceIndex device) : id_(id), device_(device) {
    check(anvilGraphPoolCreate(&handle_, device));
  }
  ~MemoryPool() { anvilGraphPoolDestroy(handle_); }
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  at::MempoolId_t id() const { return id_; }
  c10::DeviceIndex device() const { return device_; }
  anvilGraphPool_t handle() const { return handle_; }

 private:
  const at::MempoolId_t id_;
  const c10::DeviceIndex device_;
  anvilGraphPool_t handle_ = nullptr;
};

namespace {

// The pools that some graph uses, by id.
std::shared_ptr<MemoryPool> shared_pool(at::MempoolId_t id, c10::DeviceIndex device) {
  static auto* mutex = new std::mutex;
  static auto* pools = new std::map<at::MempoolId_t, std::weak_ptr<MemoryPool>>;
  const std::lock_guard<std::mutex> lock(*mutex);
  std::weak_ptr<MemoryPool>& known = (*pools)[id];
  std::shared_ptr<MemoryPool> pool = known.lock();
  if (pool == nullptr) {
    pool = std::make_shared<MemoryPool>(id, device);
    known = pool;
  }
  TORCH_CHECK(pool->device() == device,
              "This graph pool belongs to anvil:", static_cast<int>(pool->device()),
              ", and the capture is on anvil:", static_cast<int>(device), ".");
  return pool;
}

}  // namespace

at::MempoolId_t new_graph_pool_id() {
  static std::atomic<uint64_t> next{1};
  return {0, next++};
}

Graph::~Graph() {
  if (stream_ != nullptr) anvilStreamEndCapture(stream_, &graph_);
  anvilGraphDestroy(graph_);
}

void Graph::capture_begin(at::MempoolId_t pool, at::GraphCaptureMode /*mode*/) {
  TORCH_CHECK(stream_ == nullptr, "This graph is being captured already.");
  TORCH_CHECK(graph_ == nullptr, "This graph has been captured; reset() it first.");
  device_ = current_device();
  static std::atomic<uint64_t> next_own{1};
  const bool own = pool.first == 0 && pool.second == 0;
  pool_ = shared_pool(own ? at::MempoolId_t{next_own++, 0} : pool, device_);
  anvilStream_t stream = current_stream_handle(device_);
  check(anvilStreamBeginCapture(stream, pool_->handle()));
  stream_ = stream;
}

void Graph::capture_end() {
  TORCH_CHECK(stream_ != nullptr, "This graph is not being captured.");
  anvilStream_t stream = std::exchange(stream_, nullptr);
  check(anvilStreamEndCapture(stream, &graph_));
  if (timing_) check(anvilGraphSetTiming(graph_, 1));
}

anvilGraph_t Graph::captured() const {
  TORCH_CHECK(graph_ != nullptr, "This graph has not been captured.");
  return graph_;
}

void Graph::instantiate() { captured(); }

void Graph::replay() {
  anvilStream_t stream = current_stream_handle(device_ < 0 ? current_device() : device_);
  const LaunchSection section(stream);
  check(anvilGraphLaunch(captured(), stream));
}

void Graph::reset() {
  TORCH_CHECK(stream_ == nullptr, "This graph is being captured.");
  check(anvilGraphDestroy(std::exchange(graph_, nullptr)));
  pool_.reset();
}

at::MempoolId_t Graph::pool() const {
  TORCH_CHECK(pool_ != nullptr, "This graph has no pool before its capture.");
  return pool_->id();
}

void Graph::set_timing(bool enabled) {
  timing_ = enabled;
  if (graph_ != nullptr) check(anvilGraphSetTiming(graph_, enabled ? 1 : 0));
}

std::vector<Graph::Node> Graph::nodes() const {
  size_t count = 0;
  check(anvilGraphGetNodes(captured(), nullptr, 0, &count));
  std::vector<anvilGraphNode> raw(count);
  check(anvilGraphGetNodes(captured(), raw.data(), raw.size(), &count));
  std::vector<Node> nodes;
  for (const anvilGraphNode& node : raw) {
    const double total = static_cast<double>(node.total_nanoseconds) / 1e3;
    nodes.push_back({node.name, node.stream, node.runs,
                     static_cast<double>(node.last_nanoseconds) / 1e3,
                     node.runs > 0 ? total / static_cast<double>(node.runs) : 0.0});
  }
  return nodes;
}

std::pair<size_t, size_t> Graph::pool_bytes() const {
  TORCH_CHECK(pool_ != nullptr, "This graph has no pool before its capture.");
  size_t allocated = 0;
  size_t reserved = 0;
  check(anvilGraphPoolGetInfo(pool_->handle(), &allocated, &reserved));
  return {allocated, reserved};
}

void Graph::debug_dump(const std::string& path) {
  const std::vector<Node> list = nodes();
  std::ofstream file(path);
  file << "digraph anvil {\n  node [shape=box];\n";
  for (size_t i = 0; i < list.size(); ++i) {
    std::string label =
        std::to_string(i) + ": " + list[i].name + "\\nstream " + std::to_string(list[i].stream);
    if (list[i].runs > 0) label += ", " + std::to_string(list[i].mean_us) + " us";
    file << "  n" << i << " [label=\"" << label << "\"];\n";  // names hold no quotes
    if (i > 0) file << "  n" << i - 1 << " -> n" << i << ";\n";
  }
  file << "}\n";
  file.close();
  TORCH_CHECK(!file.fail(), "Cannot write the graph to '", path, "'.");
}

void register_graphs() {
  auto* registry = at::GraphImplRegistry();
  const std::string key = c10::DeviceTypeName(kAnvil, /*lower_case=*/false);
  if (registry->Has(key)) return;
  registry->Register(key,
                     [](at::GraphImplArgs /*args*/) -> std::unique_ptr<at::GraphImplInterface> {
                       return std::make_unique<Graph>();
                     });
}

}  // namespace anvil
