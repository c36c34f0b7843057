// SPDX-License-Identifier: Apache-2.0
#include "sanitizer_report.h"

#include <cinttypes>
#include <cstdio>

namespace anvil::sanitizer {
namespace {

std::string Address(uintptr_t address) {
  char text[2 + 16 + 1];
  std::snprintf(text, sizeof text, "0x%" PRIxPTR, address);
  return text;
}

std::string Range(uintptr_t begin, uintptr_t end) {
  return std::to_string(end - begin) + (end - begin == 1 ? " byte at " : " bytes at ") +
         Address(begin);
}

std::string At(const std::string* where) {
  return where == nullptr || where->empty() ? "at an unknown place" : "at " + *where;
}

// Two findings of the same kind between the same two places are one.
std::string Key(const char* kind, const Use& a, const Use& b) {
  std::string key = kind;
  for (const std::string* part : {a.what, a.where, b.what, b.where}) {
    key += '\n';
    if (part != nullptr) key += *part;
  }
  return key;
}

std::string Line(const char* label, const std::string& words) {
  return "\n  " + std::string(label) + words;
}

}  // namespace

std::string Reports::StreamName(uint32_t stream) const {
  return stream < streams_->size() ? (*streams_)[stream] : "the host";
}

// "'memcpy' writes on stream 1 of device 0, at step.py:12 in step"
std::string Reports::Words(const Use& use, const char* verb) const {
  if (use.what == nullptr) return std::string("something unknown ") + verb;
  const std::string by = use.epoch.stream == kHost ? "" : " on " + StreamName(use.epoch.stream);
  return "'" + *use.what + "' " + verb + by + ", " + At(use.where);
}

std::string Reports::Memory(const Finding& finding) const {
  const Life* life = finding.life.get();
  if (finding.pinned) return Range(finding.begin, finding.end) + " of pinned host memory";
  if (life == nullptr) return Range(finding.begin, finding.end);  // of a graph's arena
  return Range(finding.begin, finding.end) + ", of the block of " +
         std::to_string(life->end - life->begin) + " bytes at " + Address(life->begin) +
         " allocated " + At(life->allocated.where);
}

void Reports::Add(const Finding& finding) {
  const auto verb = [](bool writes) { return writes ? "writes" : "reads"; };
  const Use& use = finding.use;
  const Use& earlier = finding.earlier;
  const std::string memory = Line("memory:  ", Memory(finding));
  const std::string now = Line("now:     ", Words(use, verb(finding.writes)));
  const std::string before = Line("earlier: ", Words(earlier, verb(finding.earlier_writes)));
  switch (finding.kind) {
    case Finding::Kind::kRace:
      return Print(Key("race", use, earlier),
                   "race: memory is used on two streams without an order" + memory + now + before +
                       Line("remedy:  ", "let " + StreamName(use.epoch.stream) + " wait for " +
                                             StreamName(earlier.epoch.stream) +
                                             " (wait_stream, or an event recorded after the "
                                             "earlier use)"));
    case Finding::Kind::kUseBeforeAllocation:
      return Print(
          Key("early", use, earlier),
          "use before allocation: memory of one stream is used on another without an "
          "order" +
              memory + now + Line("owner:   ", Words(earlier, "gives it out")) +
              Line("remedy:  ", "let " + StreamName(use.epoch.stream) + " wait for " +
                                    StreamName(earlier.epoch.stream) + " after the allocation"));
    case Finding::Kind::kUseAfterFree: {
      const bool reused = finding.life->live && finding.life->freed.what == nullptr;
      return Print(Key("freed", use, earlier),
                   std::string("use after free: memory is used that has been freed") +
                       (reused ? " and belongs to another block now" : "") + memory + now +
                       Line("freed:   ", At(earlier.where)) +
                       Line("remedy:  ", "keep the memory until its last use was submitted"));
    }
    case Finding::Kind::kFreedInUse:
      return Print(
          Key("in use", use, earlier),
          "memory freed while another stream may still use it" + memory +
              Line("freed:   ", At(use.where)) +
              Line("use:     ", Words(earlier, verb(finding.earlier_writes))) +
              Line("remedy:  ", "call record_stream for " + StreamName(earlier.epoch.stream) +
                                    " after the use, or wait for that stream before freeing"));
  }
}

void Reports::AddPinnedChange(uintptr_t begin, uintptr_t end, const Use& reader,
                              const char* where) {
  const std::string writer = where != nullptr ? where : "";
  const std::string words =
      where != nullptr
          ? "the host writes, " + At(&writer)
          : "by someone whose write was not seen (a system call, or a later write to a "
            "page that was written before)";
  Print(Key("pinned", reader, Use{{kHost, 0}, nullptr, &writer}),
        "pinned memory changed while a command that reads it is queued" +
            Line("memory:  ", Range(begin, end) + ", pinned") + Line("changed: ", words) +
            Line("queued:  ", Words(reader, "reads")) +
            Line("remedy:  ",
                 "wait for " + StreamName(reader.epoch.stream) +
                     " (an event after the reading command) before the memory is written again"));
}

void Reports::AddStaleGraph(const std::string& node, const std::string* captured,
                            const std::string* freed) {
  const Use use{{kHost, 0}, &node, captured};
  Print(
      Key("graph", use, Use{{kHost, 0}, nullptr, freed}),
      "a graph uses memory that has been freed since its capture" +
          Line("node:    ", "'" + node + "', captured " + At(captured)) +
          Line("freed:   ", At(freed)) +
          Line("remedy:  ", "keep what the graph uses as long as the graph, or capture it again"));
}

void Reports::Print(const std::string& key, const std::string& text) {
  if (!known_.insert(key).second) return;
  ++count_;
  const std::string whole = "anvil sanitizer: " + text;
  // At once: what follows may well be the crash that the report explains.
  std::fprintf(stderr, "%s\n\n", whole.c_str());
  if (!text_.empty()) text_ += "\n\n";
  text_ += whole;
}

}  // namespace anvil::sanitizer
