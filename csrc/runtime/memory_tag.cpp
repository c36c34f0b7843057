// SPDX-License-Identifier: Apache-2.0
#include "memory_tag.h"

#include <cstring>
#include <deque>
#include <mutex>
#include <string>

#include "error.h"
#include "process.h"

namespace anvil {
namespace {

struct TagTable {
  std::mutex mutex;
  std::deque<std::string> names{"default"};  // a deque: names stay where they are
};

TagTable& Table() {
  static TagTable& table = *new TagTable;
  return table;
}

constexpr int kMaxDepth = 64;

// Plain memory, like the last error's: usable for as long as the thread runs anything at all.
struct TagStack {
  int depth;
  int tags[kMaxDepth];
};
thread_local TagStack stack{};

}  // namespace

int InternTag(const char* name) {
  TagTable& table = Table();
  std::lock_guard lock(table.mutex);
  for (size_t tag = 0; tag < table.names.size(); ++tag) {
    if (table.names[tag] == name) return static_cast<int>(tag);
  }
  table.names.emplace_back(name);
  return static_cast<int>(table.names.size() - 1);
}

int CurrentTag() noexcept { return stack.depth == 0 ? kDefaultTag : stack.tags[stack.depth - 1]; }

const char* TagName(int tag) {
  TagTable& table = Table();
  std::lock_guard lock(table.mutex);
  return table.names[static_cast<size_t>(tag)].c_str();
}

}  // namespace anvil

anvilError_t anvilMemPushTag(const char* tag) {
  using namespace anvil;
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (tag == nullptr || *tag == '\0' || std::strlen(tag) >= sizeof(anvilTagStats::tag)) {
      return Fail(ANVIL_ERROR_INVALID_VALUE, "anvilMemPushTag: a tag has 1 to " +
                                                 std::to_string(sizeof(anvilTagStats::tag) - 1) +
                                                 " characters.");
    }
    if (stack.depth == kMaxDepth) {
      return Fail(ANVIL_ERROR_INVALID_VALUE, "anvilMemPushTag: more than " +
                                                 std::to_string(kMaxDepth) +
                                                 " tags are nested; is a pop missing?");
    }
    stack.tags[stack.depth++] = InternTag(tag);
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilMemPopTag(void) {
  using namespace anvil;
  if (IsForkedChild()) return FailForked();
  if (stack.depth == 0) {
    return Fail(ANVIL_ERROR_INVALID_VALUE,
                "anvilMemPopTag: this thread has pushed no tag that is still there.");
  }
  --stack.depth;
  return ANVIL_SUCCESS;
}
