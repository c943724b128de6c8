// The host where there is no other: a kernel pack answers, and the driver gives memory.
#pragma once

#include <string>

#include "ops.h"

namespace engine {

// The ops of a pack that some GPU of this machine can run, the same for all who open it: they stay for the life of the
// process, and so do its kernels once they are loaded. Throws what is wrong with the pack, or with the machine.
const onnxfuse_ops& ops_of_pack(const std::string& path);

}  // namespace engine
