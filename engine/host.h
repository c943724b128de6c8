// The host's side of the C ABI: its functions, its objects, and what they answer.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "onnxfuse.h"

namespace engine {

template <class Struct>
void check_size(const Struct& given, const char* name) {
  if (given.size != sizeof(Struct))
    throw std::runtime_error(std::string(name) + " of " + std::to_string(given.size) + " bytes, expected " +
                             std::to_string(sizeof(Struct)) + ": library and caller are of different versions");
}

struct Host : onnxfuse_host {
  explicit Host(const onnxfuse_host& functions) : onnxfuse_host(functions) { check_size(functions, "a host"); }

  bool is_gone() const { return (is_there && !is_there()) || (is_leaving && is_leaving()); }
  void expect(const char* what) const {
    if (is_gone()) throw std::runtime_error(std::string(name) + " is shutting down, " + what);
  }
};

using SharedHost = std::shared_ptr<const Host>;

// An object of the host's; the last one to let go of it gives it back, in any thread.
using Held = std::shared_ptr<void>;

inline Held held(const SharedHost& host, void* object) {
  if (!object) return nullptr;
  return Held(object, [host](void* mine) {
    if (!host->is_gone()) host->release(mine);  // else the process takes it with it
  });
}

}  // namespace engine
