// Ops into the options of a session: by a pointer to these, or when ONNX Runtime asks for it.

#include "registration.h"

#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ops.h"
#include "pack_host.h"

namespace engine {
namespace {

constexpr const char* kPackEntry = "onnxfuse.pack";
constexpr const char* kSuffix = ".kernels";

// What the next RegisterCustomOps of this thread is for.
thread_local const onnxfuse_ops* staged = nullptr;

ort::Status* status(ort::Api api, const std::string& message) {
  return ort::CreateStatus::in(api)(ort::kFail, message.c_str());
}

ort::Status* too_old(const ort::ApiBase* base) {
  return status(base->get_api(1), std::string("onnxfuse needs ONNX Runtime 1.24 or newer, this is ") + base->version());
}

// The pack that options name; empty where they name none.
std::string named_pack(ort::Api api, const ort::SessionOptions* options) {
  const auto check = [&](ort::Status* failed) {
    if (!failed) return;
    const std::string words = ort::StatusMessage::in(api)(failed);
    ort::ReleaseStatus::in(api)(failed);
    throw std::runtime_error(words);
  };
  int there = 0;
  check(ort::HasConfig::in(api)(options, kPackEntry, &there));
  if (!there) return "";
  size_t size = 0;
  check(ort::Config::in(api)(options, kPackEntry, nullptr, &size));
  std::string path(size, '\0');
  check(ort::Config::in(api)(options, kPackEntry, &path[0], &size));
  path.resize(path.find('\0') == std::string::npos ? path.size() : path.find('\0'));
  return path;
}

// Where this library lies: asked for when it is loaded, as its path may begin at the current folder.
const std::string own_folder = [] {
  Dl_info mine{};
  if (!dladdr(&kSuffix, &mine) || !mine.dli_fname) return std::string();
  const std::string library = mine.dli_fname;
  const size_t slash = library.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : library.substr(0, slash);
  char current[PATH_MAX];
  return folder[0] == '/' || !getcwd(current, sizeof current) ? folder : std::string(current) + "/" + folder;
}();

// The one pack that lies beside this library.
std::string pack_beside() {
  const std::string& folder = own_folder;
  if (folder.empty()) throw std::runtime_error("the library does not know where it lies");
  std::vector<std::string> packs;
  if (DIR* const opened = opendir(folder.c_str())) {
    while (const dirent* entry = readdir(opened)) {
      const std::string name = entry->d_name, suffix = kSuffix;
      if (name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0)
        packs.push_back(name);
    }
    closedir(opened);
  }
  if (packs.size() == 1) return folder + "/" + packs[0];
  if (packs.empty())
    throw std::runtime_error(
        "no fused ops are staged: register with onnxfuse.register(session_options, model). Without Python, name the "
        "model's kernel pack in the session config entry \"onnxfuse.pack\", or put it into " +
        folder);
  throw std::runtime_error("there are " + std::to_string(packs.size()) + " kernel packs in " + folder +
                           ": name the model's one in the session config entry \"onnxfuse.pack\"");
}

// Where sessions are made, ONNX Runtime looks whether the process knows a domain and else adds it, without a lock: two
// threads that open the first sessions of the process at once would both add it, and one of them fail. So the first
// session that has the domain is made here, by one thread.
ort::Status* make_known(ort::Api api, ort::CustomOpDomain* domain) {
  static std::mutex mutex;
  static bool known = false;
  // y = Identity(x), bool, opset 13.
  static constexpr char kModel[] =
      "\x08\x04:-\n\x12\n\x01x\x12\x01y\"\x08Identity:"
      "\0\x12\x01gZ\t\n\x01x\x12\x04\n\x02\x08\tb\t\n\x01y\x12\x04\n\x02\x08\tB\x04"
      "\n\0\x10\r";
  std::lock_guard<std::mutex> lock(mutex);
  if (known) return nullptr;
  ort::Env* env = nullptr;
  ort::SessionOptions* options = nullptr;
  ort::Session* session = nullptr;
  ort::Status* failed = ort::CreateEnv::in(api)(ort::kWarning, kDomain, &env);  // the process's own where it has one
  if (!failed) failed = ort::CreateOptions::in(api)(&options);
  if (!failed) failed = ort::SetThreads::in(api)(options, 1);
  if (!failed) failed = ort::AddDomain::in(api)(options, domain);
  if (!failed) failed = ort::CreateSession::in(api)(env, kModel, sizeof kModel - 1, options, &session);
  if (session) ort::ReleaseSession::in(api)(session);
  if (options) ort::ReleaseOptions::in(api)(options);
  if (env) ort::ReleaseEnv::in(api)(env);
  known = !failed;
  return failed;
}

}  // namespace

ort::Status* add_domain(ort::SessionOptions* options, const ort::ApiBase* base, const onnxfuse_ops& ops) {
  ort::Api api = base->get_api(ort::kApiVersion);
  if (!api) return too_old(base);
  ort::CustomOpDomain* domain = nullptr;
  if (auto* failed = ort::CreateDomain::in(api)(kDomain, &domain)) return failed;
  for (const Op* op : ops.all)
    if (auto* failed = ort::AddOp::in(api)(domain, op)) return failed;
  if (auto* failed = make_known(api, domain)) return failed;
  return ort::AddDomain::in(api)(options, domain);
}

ort::Status* add_what_is_there(ort::SessionOptions* options, const ort::ApiBase* base) {
  if (const onnxfuse_ops* ops = std::exchange(staged, nullptr)) return add_domain(options, base, *ops);
  ort::Api api = base->get_api(ort::kApiVersion);
  if (!api) return too_old(base);
  try {
    std::string path = named_pack(api, options);
    if (path.empty()) path = pack_beside();
    return add_domain(options, base, ops_of_pack(path));
  } catch (const std::exception& error) {
    return status(api, error.what());
  }
}

void stage(const onnxfuse_ops* ops) { staged = ops; }

}  // namespace engine
