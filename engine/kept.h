// The launches that an op keeps: those of the shapes that it met again since others came, and its programs.
#pragma once

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "launch.h"

namespace engine {

// The CUDA context, whether all pointers are aligned, then rank and dimensions of each input.
using Key = std::vector<int64_t>;
constexpr size_t kAlignedWord = 1, kShapesBegin = 2;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 1469598103934665603ull;
    for (int64_t word : key) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 1099511628211ull;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// Whoever uses a launch shares it: another thread may drop it for other shapes meanwhile.
using SharedLaunch = std::shared_ptr<const Launch>;

// The launch that a program has for these shapes, if it has one and its kernels are loaded; in the registers given.
inline SharedLaunch launch_by(const std::shared_ptr<const Program>& program, const Key& key,
                              std::vector<tape::Register>& held) {
  if (program->context != key[0] || program->aligned != (key[kAlignedWord] != 0)) return nullptr;
  const int64_t found = program->tape.evaluate(key.data() + kShapesBegin, key.size() - kShapesBegin, held);
  if (found < 0 || program->plans_itself(key.data() + kShapesBegin, key.data() + key.size())) return nullptr;
  size_t at = static_cast<size_t>(found);
  auto launch = std::make_shared<const Launch>(program, held.data(), at);
  return launch->is_loaded() ? launch : nullptr;
}

constexpr size_t kMostPrograms = 64;    // of an op: families of shapes, each for the nodes that have the same weights
constexpr size_t kMostLaunches = 1024;  // of an op: a server's lengths of text; each is a few kilobytes

// What goes is freed outside the lock: that can run the host's code.
class Kept {
 public:
  struct One {
    SharedLaunch launch;
    std::atomic<bool> met{false};  // again, since it was looked at for a place

    explicit One(SharedLaunch launch) : launch(std::move(launch)) {}
  };
  using Launches = std::unordered_map<Key, One, KeyHash>;
  struct All {
    Launches launches;
    std::vector<std::shared_ptr<const Program>> programs;
  };

  SharedLaunch find(const Key& key) {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    auto found = launches_.find(key);
    if (found == launches_.end()) return nullptr;
    auto& met = found->second.met;
    if (!met.load(std::memory_order_relaxed)) met.store(true, std::memory_order_relaxed);
    return found->second.launch;
  }

  SharedLaunch keep(const Key& key, SharedLaunch launch) {
    SharedLaunch gone;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    const auto [at, fresh] = launches_.try_emplace(key, std::move(launch));
    if (!fresh) return at->second.launch;
    if (launches_.size() > kMostLaunches) {
      Launches::value_type*& place = unmet();
      gone = std::move(place->second.launch);
      launches_.erase(launches_.find(place->first));
      place = &*at;
    } else {
      ring_.push_back(&*at);
    }
    SharedLaunch kept = at->second.launch;
    lock.unlock();
    return kept;
  }

  // The launch that a program has for these shapes, if one has; in the registers that are given.
  SharedLaunch by_program(const Key& key, std::vector<tape::Register>& held) {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    for (const auto& program : programs_)
      if (SharedLaunch launch = launch_by(program, key, held)) return launch;
    return nullptr;
  }

  // In the place of the program that it grew from; the newest first.
  void learn(std::shared_ptr<const Program> program) {
    std::shared_ptr<const Program> gone;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    for (auto& one : programs_)
      if (one->family == program->family && one->context == program->context) {
        gone = std::exchange(one, std::move(program));
        return lock.unlock();
      }
    programs_.insert(programs_.begin(), std::move(program));
    if (programs_.size() > kMostPrograms) {
      gone = std::move(programs_.back());
      programs_.pop_back();
    }
    lock.unlock();
  }

  // All of it, for the caller to free.
  All taken() {
    All gone;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    gone.launches.swap(launches_);
    ring_.clear();
    hand_ = 0;
    gone.programs.swap(programs_);
    return gone;
  }

 private:
  // The place in the ring of a launch that was not met again since the hand came by, behind which the hand then is: a
  // few steps, however many there are.
  Launches::value_type*& unmet() {
    while (true) {
      Launches::value_type*& one = ring_[hand_];
      hand_ = (hand_ + 1) % ring_.size();
      if (!one->second.met.exchange(false, std::memory_order_relaxed)) return one;
    }
  }

  std::shared_mutex mutex_;
  Launches launches_;
  std::vector<std::shared_ptr<const Program>> programs_;
  std::vector<Launches::value_type*> ring_;  // of all `launches_`, by which the place for a new one is found
  size_t hand_ = 0;                          // in the ring, where that begins
};

}  // namespace engine
