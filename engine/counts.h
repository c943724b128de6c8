// What is counted, by op name, for the whole process.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace engine {

using Counter = std::atomic<uint64_t>;

// An op without elements is called and launches nothing; a plan may be several launches. Programs answer for shapes.
struct Counts {
  Counter calls{0}, launches{0}, answers{0};
};

// Never destroyed: a session may outlive static destructors.
struct Counters {
  std::mutex mutex;
  std::map<std::string, Counts> by_name;
};

inline Counters& counters() {
  static auto* all = new Counters;
  return *all;
}

inline Counts& counts_of(const std::string& name) {
  std::lock_guard<std::mutex> lock(counters().mutex);
  return counters().by_name[name];
}

}  // namespace engine
