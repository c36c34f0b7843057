// SPDX-License-Identifier: Apache-2.0
// The order of streams and what contradicts it, on programs without a runtime.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "access_history.h"
#include "happens_before.h"

namespace anvil::sanitizer {
namespace {

// Runs programs, one statement each:
//   "1 writes x"  "1 reads x"  "1 allocates x"  "1 frees x"  "1 records e"  "1 waits e"
//   "host waits e"  "host syncs 1"  "host allocates x"  "host frees x"  "x recorded 1"
//   "x deferred"  "runner frees x"  "runner ran 1"  (a thread that has run stream 1 so far)
// Variables are blocks of 16 bytes in places of their own; "x.lo" and "x.hi" are halves of x, "x@0"
// is a use through a pointer to the first block in x's place. Streams are digits.
class Program {
 public:
  std::string Run(const std::vector<std::string>& statements) {
    for (const std::string& statement : statements) Step(statement);
    return Found();
  }

 private:
  static constexpr uintptr_t kSize = 16;
  using Kind = Finding::Kind;

  struct Place {
    uintptr_t begin;
    uint64_t generation = 1;  // as anvilBlockGeneration has it
    bool allocated = false;   // ever
    bool deferred = false;
  };

  Place& PlaceOf(const std::string& name) {
    const auto [found, added] = places_.try_emplace(name, Place{kSize * (places_.size() + 1)});
    return found->second;
  }
  const void* BlockOf(const Place& place) { return reinterpret_cast<const void*>(place.begin); }
  const std::string* Text(const std::string& text) { return &*texts_.insert(text).first; }

  void Step(const std::string& statement) {
    std::istringstream words(statement);
    std::string who, verb, what;
    words >> who >> verb >> what;
    const bool on_stream = isdigit(who[0]) != 0;
    const uint32_t stream = on_stream ? static_cast<uint32_t>(who[0] - '0') : kHost;
    Use use{{stream, 0}, Text(verb), Text(statement)};
    if (verb == "reads" || verb == "writes") {
      Access access;
      const std::string name = what.substr(0, what.find_first_of(".@"));
      const Place& place = PlaceOf(name);
      access.begin = place.begin + (what.ends_with(".hi") ? kSize / 2 : 0);
      access.end = place.begin + (what.ends_with(".lo") ? kSize / 2 : kSize);
      access.writes = verb == "writes";
      if (place.allocated) access.block = BlockOf(place);
      access.generation = what.ends_with("@0") ? 1 : place.generation;
      use.epoch = order_.Submit(stream);
      history_.Touch(access, use, order_.Of(stream), &findings_);
    } else if (verb == "allocates") {
      Place& place = PlaceOf(what);
      if (on_stream) use.epoch.number = order_.Of(stream).At(stream);
      history_.Allocate(BlockOf(place), place.generation, place.begin, place.begin + kSize, use);
      place.allocated = true;
    } else if (verb == "frees") {
      Place& place = PlaceOf(what);
      const void* block = place.allocated ? BlockOf(place) : nullptr;
      const Life* life = history_.Find(block);
      const VectorClock behind = order_.Free(
          who == "runner" ? 1 : 0, life != nullptr ? life->streams : std::vector<uint32_t>{});
      history_.Free(block, place.begin, place.begin + kSize, use, behind, &findings_);
      if (!place.deferred) ++place.generation;
      place.deferred = false;
    } else if (verb == "records") {
      events_[what] = order_.Record(stream);
    } else if (verb == "waits") {
      on_stream ? order_.StreamWaits(stream, events_[what]) : order_.HostWaits(events_[what]);
    } else if (verb == "syncs") {
      order_.HostWaitsFor(static_cast<uint32_t>(what[0] - '0'));
    } else if (verb == "recorded") {
      history_.Record(BlockOf(PlaceOf(who)), static_cast<uint32_t>(what[0] - '0'));
    } else if (verb == "deferred") {
      Place& place = PlaceOf(who);
      history_.DeferFree(BlockOf(place), use);
      ++place.generation;
      place.deferred = true;
    } else if (verb == "ran") {
      order_.Ran(1, order_.Of(static_cast<uint32_t>(what[0] - '0')));
    } else {
      FAIL() << "unknown statement: " << statement;
    }
  }

  // "race(2 reads x | 1 writes x)", ...
  std::string Found() const {
    std::string all;
    for (const Finding& finding : findings_) {
      const char* kind = finding.kind == Kind::kRace                  ? "race"
                         : finding.kind == Kind::kUseBeforeAllocation ? "early"
                         : finding.kind == Kind::kUseAfterFree        ? "stale"
                                                                      : "in use";
      all += (all.empty() ? "" : ", ") + std::string(kind) + "(" + *finding.use.where + " | " +
             (finding.earlier.where != nullptr ? *finding.earlier.where : "?") + ")";
    }
    return all;
  }

  HappensBefore order_;
  AccessHistory history_;
  Findings findings_;
  std::map<std::string, Place> places_;
  std::map<std::string, VectorClock> events_;
  std::set<std::string> texts_;
};

struct Case {
  const char* name;
  std::vector<std::string> program;
  const char* found;
};

const Case kCases[] = {
    // Order.
    {"SameStream", {"1 writes x", "1 reads x", "1 writes x"}, ""},
    {"ReadersShare", {"1 reads x", "2 reads x", "3 reads x"}, ""},
    {"WriteRead", {"1 writes x", "2 reads x"}, "race(2 reads x | 1 writes x)"},
    {"ReadWrite", {"1 reads x", "2 writes x"}, "race(2 writes x | 1 reads x)"},
    {"WriteWrite", {"1 writes x", "2 writes x"}, "race(2 writes x | 1 writes x)"},
    {"EveryReaderCounts",
     {"1 reads x", "2 reads x", "3 writes x"},
     "race(3 writes x | 1 reads x), race(3 writes x | 2 reads x)"},
    {"OtherHalf", {"1 writes x.lo", "2 writes x.hi"}, ""},
    {"OverlapWithHalf", {"1 writes x.lo", "2 reads x"}, "race(2 reads x | 1 writes x.lo)"},
    {"Event", {"1 writes x", "1 records e", "2 waits e", "2 writes x"}, ""},
    {"EventTooEarly",
     {"1 records e", "1 writes x", "2 waits e", "2 reads x"},
     "race(2 reads x | 1 writes x)"},
    {"WaitTooLate",
     {"1 writes x", "1 records e", "2 reads x", "2 waits e"},
     "race(2 reads x | 1 writes x)"},
    {"EventRecordedAgain",
     {"1 writes x", "1 records e", "3 records e", "2 waits e", "2 reads x"},
     "race(2 reads x | 1 writes x)"},
    {"WaitKeepsWhatItWaitedFor",
     {"1 writes x", "1 records e", "2 waits e", "3 records e", "2 reads x"},
     ""},
    {"NeverRecorded", {"1 writes x", "2 waits e", "2 reads x"}, "race(2 reads x | 1 writes x)"},
    {"OverAThirdStream",
     {"1 writes x", "1 records e", "2 waits e", "2 records f", "3 waits f", "3 writes x"},
     ""},
    {"OneWay",
     {"1 records e", "2 waits e", "2 writes x", "1 reads x"},
     "race(1 reads x | 2 writes x)"},
    {"HostSynchronises", {"1 writes x", "host syncs 1", "2 writes x"}, ""},
    {"HostWaitsForEvent",
     {"1 writes x", "1 records e", "1 writes y", "host waits e", "2 reads x", "2 reads y"},
     "race(2 reads y | 1 writes y)"},
    {"HostSynchronisedAnother",
     {"1 writes x", "host syncs 2", "2 reads x"},
     "race(2 reads x | 1 writes x)"},
    {"EventAfterHostWait",
     {"1 writes x", "host syncs 1", "2 records e", "3 waits e", "3 reads x"},
     ""},
    {"OneReportThenTheNextWriteCounts",
     {"1 writes x", "2 writes x", "2 reads x", "1 reads x"},
     "race(2 writes x | 1 writes x), race(1 reads x | 2 writes x)"},
    // A block's life.
    {"OwnStream", {"1 allocates x", "1 writes x", "1 frees x", "1 allocates x", "1 writes x"}, ""},
    {"UntouchedStream", {"1 allocates x", "2 writes x", "1 records e"}, ""},
    {"UsedBeforeAllocation",
     {"1 writes y", "1 allocates x", "2 reads x"},
     "early(2 reads x | 1 allocates x)"},
    {"UsedBehindAllocation",
     {"1 writes y", "1 allocates x", "1 records e", "2 waits e", "2 writes x"},
     ""},
    {"AllocatedAtOnce", {"1 writes y", "host allocates x", "2 writes x"}, ""},
    {"FreedInUse",
     {"1 allocates x", "1 records e", "2 waits e", "2 reads x", "1 frees x"},
     "in use(1 frees x | 2 reads x)"},
    {"FreedBehindUse",
     {"1 allocates x", "2 writes x", "2 records e", "1 waits e", "1 frees x"},
     ""},
    {"FreedAfterHostWait", {"1 allocates x", "2 writes x", "host syncs 2", "1 frees x"}, ""},
    {"FreedRecorded",
     {"1 allocates x", "2 reads x", "x recorded 2", "x deferred", "1 frees x"},
     ""},
    {"UsedAfterRecord",
     {"1 allocates x", "2 reads x", "x recorded 2", "2 writes x", "1 frees x"},
     ""},  // as long as it comes before the free
    {"FreedByTheThreadThatRanTheUse",
     {"1 allocates x", "2 reads x", "runner ran 2", "runner frees x"},
     ""},
    {"FreedAtOnceInUse",
     {"host allocates x", "1 writes x", "host frees x"},
     "in use(host frees x | 1 writes x)"},
    {"FreedAtOnceWhenDone", {"host allocates x", "1 writes x", "host syncs 1", "host frees x"}, ""},
    {"UsedAfterFree", {"1 allocates x", "1 frees x", "1 reads x"}, "stale(1 reads x | 1 frees x)"},
    {"UsedAfterFreeOnAnotherStream",
     {"1 allocates x", "1 frees x", "1 records e", "2 waits e", "2 writes x"},
     "stale(2 writes x | 1 frees x)"},
    {"UsedWhileTheFreeIsDeferred",
     {"1 allocates x", "2 reads x", "x recorded 2", "x deferred", "1 reads x", "1 frees x"},
     "stale(1 reads x | x deferred)"},
    {"StalePointer",
     {"1 allocates x", "1 frees x", "1 allocates x", "1 reads x@0"},
     "stale(1 reads x@0 | 1 frees x)"},
    {"NoConsequencesOfAStalePointer",
     {"1 allocates x", "1 frees x", "1 allocates x", "2 writes x@0", "1 writes x"},
     "stale(2 writes x@0 | 1 frees x)"},
    // Memory of which no allocation is known: pinned.
    {"PinnedFreedInUse", {"1 reads p", "host frees p"}, "in use(host frees p | 1 reads p)"},
    {"PinnedFreedWhenDone", {"1 reads p", "host syncs 1", "host frees p", "2 writes p"}, ""},
    {"PinnedForgotten", {"1 reads p", "runner ran 1", "runner frees p", "2 writes p"}, ""},
};

class HappensBeforeTable : public testing::TestWithParam<Case> {};

TEST_P(HappensBeforeTable, Finds) {
  EXPECT_EQ(Program().Run(GetParam().program), GetParam().found);
}

INSTANTIATE_TEST_SUITE_P(Programs, HappensBeforeTable, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// The same questions answered by search in the graph of everything that happened.
class Oracle {
 public:
  // Node -1 is before everything.
  int Add(std::vector<int> predecessors) {
    predecessors_.push_back(std::move(predecessors));
    return static_cast<int>(predecessors_.size()) - 1;
  }
  bool Reaches(int from, const std::vector<int>& to) const {
    std::vector<bool> seen(predecessors_.size());
    std::vector<int> todo = to;
    while (!todo.empty()) {
      const int node = todo.back();
      todo.pop_back();
      if (node == from) return true;
      if (node < 0 || seen[static_cast<size_t>(node)]) continue;
      seen[static_cast<size_t>(node)] = true;
      const auto& before = predecessors_[static_cast<size_t>(node)];
      todo.insert(todo.end(), before.begin(), before.end());
    }
    return false;
  }

 private:
  std::vector<std::vector<int>> predecessors_;
};

TEST(HappensBefore, AgreesWithReachabilityOnRandomPrograms) {
  constexpr uint32_t kStreams = 3, kPlaces = 3, kEvents = 2;
  int reports = 0, silent = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&random](uint32_t count) { return static_cast<uint32_t>(random() % count); };
    HappensBefore order;
    AccessHistory history;
    Oracle oracle;
    const std::string text = "text";
    int host = -1, event_node[kEvents] = {-1, -1};
    int last[kStreams] = {-1, -1, -1}, last_submission[kStreams] = {-1, -1, -1};
    VectorClock event_clock[kEvents];
    struct Place {
      std::vector<std::pair<int, bool>> uses;  // node, writes
      bool allocated = false, tainted = false;
      int allocation = -1;  // the owner's last submission by then
    } places[kPlaces];
    const auto next = [&](uint32_t stream, int other = -1) {
      return last[stream] = oracle.Add({last[stream], host, other});
    };
    for (int step = 0; step < 40; ++step) {
      const uint32_t stream = pick(kStreams), event = pick(kEvents), index = pick(kPlaces);
      Place& place = places[index];
      const uintptr_t begin = 64 * (index + 1), end = begin + 64;
      const void* block = reinterpret_cast<const void*>(begin);
      Findings findings;
      switch (pick(9)) {
        default: {
          const bool writes = pick(2) == 0;
          const int node = last_submission[stream] = next(stream);
          const Use use{order.Submit(stream), &text, &text};
          history.Touch({place.allocated ? block : nullptr, 0, begin, end, writes}, use,
                        order.Of(stream), &findings);
          bool race = false, early = false;
          for (const auto& [earlier, wrote] : place.uses) {
            race |= (writes || wrote) && !oracle.Reaches(earlier, {node});
          }
          early = place.allocation >= 0 && !oracle.Reaches(place.allocation, {node});
          place.uses.push_back({node, writes});
          bool found_race = false, found_early = false;
          for (const Finding& finding : findings) {
            found_race |= finding.kind == Finding::Kind::kRace;
            found_early |= finding.kind == Finding::Kind::kUseBeforeAllocation;
          }
          ASSERT_EQ(found_early, early) << "seed " << seed << " step " << step;
          // Only the last write is remembered: after a first race, others may be hidden by it.
          if (!place.tainted) {
            ASSERT_EQ(found_race, race) << "seed " << seed << " step " << step;
          }
          place.tainted |= race;
          ++(race || early ? reports : silent);
          break;
        }
        case 0:
          event_node[event] = next(stream);
          event_clock[event] = order.Record(stream);
          break;
        case 1:
          next(stream, event_node[event]);
          order.StreamWaits(stream, event_clock[event]);
          break;
        case 2:
          if (pick(3) != 0) break;  // rarely: it orders a lot
          host = oracle.Add({host, last[stream]});
          order.HostWaitsFor(stream);
          break;
        case 3:
          if (pick(3) != 0) break;
          host = oracle.Add({host, event_node[event]});
          order.HostWaits(event_clock[event]);
          break;
        case 4: {
          const Use use{{stream, order.Of(stream).At(stream)}, &text, &text};
          if (place.allocated && pick(2) == 0) {
            history.Record(block, stream);
            break;
          }
          if (!place.allocated) {
            if (!place.uses.empty()) break;
            history.Allocate(block, 0, begin, end, use);
            place.allocated = true;
            place.allocation = last_submission[stream];
            break;
          }
          const std::vector<uint32_t> streams = history.Find(block)->streams;
          history.Free(block, begin, end, use, order.Free(0, streams), &findings);
          std::vector<int> behind = {host};
          for (const uint32_t waited_for : streams) behind.push_back(last[waited_for]);
          bool in_use = false;
          for (const auto& [earlier, wrote] : place.uses) {
            in_use |= !oracle.Reaches(earlier, behind);
          }
          if (!place.tainted) {
            ASSERT_EQ(!findings.empty(), in_use) << "seed " << seed << " step " << step;
          }
          ++(in_use ? reports : silent);
          history.Allocate(block, 0, begin, end, use);
          place = {{}, true, false, last_submission[stream]};
          break;
        }
      }
    }
  }
  // Neither answer is the only one ever given.
  EXPECT_GT(reports, 10000);
  EXPECT_GT(silent, 10000);
}

}  // namespace
}  // namespace anvil::sanitizer
