#include "pack_host.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "cuda_driver.h"
#include "launch.h"
#include "pack.h"

namespace engine {
namespace {

// What the engine holds of this host's.
struct Object {
  virtual ~Object() = default;
};

pack::Gpu gpu_of(int device) {
  const auto attribute = [&](int which) {
    int value = 0;
    check(cuda::driver().attribute(&value, which, device), "cuDeviceGetAttribute");
    return static_cast<uint32_t>(value);
  };
  return {10 * attribute(cuda::kMajor) + attribute(cuda::kMinor), attribute(cuda::kMultiprocessors),
          attribute(cuda::kMostSharedBytes)};
}

int64_t next_family() {
  static std::atomic<int64_t> next{0};
  return next++;
}

// A program as it stands in a pack, with functions that are the numbers of its kernels, from 1 on.
struct Stored {
  const pack::Program* program;
  int64_t family = next_family();
  std::shared_ptr<const Program> numbered;

  Stored(const pack::Pack& pack, const SharedHost& host, const pack::Program& program, const pack::Entry& op)
      : program(&program) {
    std::vector<onnxfuse_kernel> kernels;
    for (size_t n = 1; n <= program.kernels.size(); ++n) kernels.push_back({reinterpret_cast<void*>(n), 0, nullptr});
    try {
      numbered = std::make_shared<const Program>(host, described(kernels), 0, program.aligned);
      if (numbered->tape.outputs != op.outputs.size()) throw std::runtime_error("a launch program of other outputs");
    } catch (const std::exception& error) {
      throw std::runtime_error("the kernel pack " + pack.path + " is damaged: " + op.name + " has " + error.what() +
                               ". Build it again: onnxfuse compile MODEL");
    }
  }

  onnxfuse_program described(const std::vector<onnxfuse_kernel>& kernels) const {
    // clang-format off
    return {sizeof(onnxfuse_program), family, program->tape.data(), program->tape.size(), kernels.data(),
            kernels.size(), nullptr, 0};
    // clang-format on
  }

  // The numbers of the kernels that it launches for these shapes; none where it has no answer.
  std::set<size_t> launched(const std::vector<int64_t>& shapes) const {
    std::set<size_t> wanted;
    std::vector<tape::Register> held;
    const int64_t found = numbered->tape.evaluate(shapes.data(), shapes.size(), held);
    if (found < 0) return wanted;
    size_t at = static_cast<size_t>(found);
    add(Launch(numbered, held.data(), at), wanted);
    return wanted;
  }

 private:
  static void add(const Launch& launch, std::set<size_t>& wanted) {
    wanted.insert(reinterpret_cast<size_t>(launch.function) - 1);
    for (const auto& next : launch.then) add(*next, wanted);
  }
};

class PackHost;

struct Planner : Object {
  PackHost& host;
  const pack::Entry& op;
  std::vector<Stored> programs;

  Planner(PackHost& host, const pack::Entry& op) : host(host), op(op) {}
};

// A bit for each number.
uint64_t mask(const std::vector<uint32_t>& numbers) {
  uint64_t bits = 0;
  for (uint32_t number : numbers) bits |= number < 64 ? uint64_t{1} << number : 0;
  return bits;
}

class PackHost {
 public:
  explicit PackHost(std::unique_ptr<const pack::Pack> pack)
      : pack_(std::move(pack)), host_(std::make_shared<const Host>(functions())) {
    const std::set<uint32_t> targets = targets_here();
    std::vector<std::unique_ptr<Planner>> planners;
    std::vector<onnxfuse_op> rows;
    for (const pack::Entry& op : pack_->ops) {
      // What has no kernels on a GPU keeps its body.
      if (!std::all_of(targets.begin(), targets.end(), [&](uint32_t target) {
            return std::any_of(op.programs.begin(), op.programs.end(),
                               [&](const pack::Program& program) { return program.target == target; });
          }))
        continue;
      planners.push_back(std::make_unique<Planner>(*this, op));
      for (const pack::Program& program : op.programs)
        planners.back()->programs.emplace_back(*pack_, host_, program, op);
      rows.push_back({sizeof(onnxfuse_op), op.name.c_str(), op.inputs.data(), op.inputs.size(), op.outputs.data(),
                      op.outputs.size(), mask(op.may_alias), mask(op.on_host),
                      static_cast<Object*>(planners.back().get())});
    }
    if (rows.empty())
      throw std::runtime_error("the kernel pack " + pack_->path +
                               " has no launch programs for any GPU of this machine");
    for (auto& planner : planners) planner.release();  // to the engine, from here on
    ops_ = std::make_unique<onnxfuse_ops>(host_, rows.data(), rows.size());
  }

  const onnxfuse_ops& ops() const { return *ops_; }

  // Throws where the pack has no kernels for a GPU: of several in a machine it may be for some.
  void begins(int device) const {
    if (const pack::Gpu gpu = gpu_of(device); best(pack_->targets, gpu) == pack::kNone)
      throw std::runtime_error(without(gpu));
  }

  void plan(const Planner& planner, const onnxfuse_question& asked, onnxfuse_reply& reply) {
    const pack::Gpu gpu = gpu_of(asked.device);
    const uint32_t target = best(pack_->targets, gpu);
    if (target == pack::kNone) throw std::runtime_error(without(gpu));
    std::vector<int64_t> shapes;
    for (size_t i = 0; i < asked.shape_count; ++i) {
      shapes.push_back(static_cast<int64_t>(asked.shapes[i].count));
      shapes.insert(shapes.end(), asked.shapes[i].at, asked.shapes[i].at + asked.shapes[i].count);
    }
    for (const Stored* stored : candidates(planner, target, asked.aligned != 0)) {
      const std::set<size_t> wanted = stored->launched(shapes);
      if (wanted.empty()) continue;
      std::vector<onnxfuse_kernel> kernels;
      for (size_t n = 0; n < stored->program->kernels.size(); ++n)
        kernels.push_back(
            {loaded(stored->program->kernels[n], wanted.count(n) > 0), pack_->targets[target].early, nullptr});
      const onnxfuse_program program = stored->described(kernels);
      if (!stored->program->general) return onnxfuse_reply_program(&reply, &program);
      // For these shapes alone: kept as a program it would answer for all, also where a better one is loaded later.
      const auto made = std::make_shared<const Program>(host_, program, reply.context, reply.aligned);
      std::vector<tape::Register> held;
      size_t at = static_cast<size_t>(made->tape.evaluate(shapes.data(), shapes.size(), held));
      reply.launch = std::make_shared<const Launch>(made, held.data(), at);
      reply.answered = true;
      return;
    }
    throw std::runtime_error("the kernel pack " + pack_->path + " has no launch program for these shapes" +
                             (asked.aligned ? "" : ", by pointers that are no multiples of 16 bytes,") + " on " +
                             pack_->targets[target].name +
                             ". Build one that covers them: onnxfuse compile MODEL --shape NAME=FROM..TO");
  }

 private:
  // The programs for a target, first those for pointers of this kind; what is for any pointers is for aligned ones,
  // too; last the general one. Not those of a measured variant: which machine they were fastest on is not known here.
  static std::vector<const Stored*> candidates(const Planner& planner, uint32_t target, bool aligned) {
    std::vector<const Stored*> found;
    const std::pair<bool, bool> order[] = {{aligned, false}, {false, false}, {false, true}};
    for (const auto& [kind, general] : order)
      for (const Stored& stored : planner.programs)
        if (stored.program->target == target && stored.program->aligned == kind && stored.program->general == general &&
            stored.program->variant.empty() && std::find(found.begin(), found.end(), &stored) == found.end())
          found.push_back(&stored);
    return found;
  }

  static onnxfuse_host functions() {
    onnxfuse_host host{};
    host.size = sizeof host;
    host.plan = [](void* planner, const onnxfuse_question* asked, onnxfuse_reply* reply) {
      answered(reply, [&] {
        auto& mine = *static_cast<Planner*>(static_cast<Object*>(planner));
        mine.host.plan(mine, *asked, *reply);
      });
    };
    host.begins = [](void* planner, int32_t device, onnxfuse_reply* reply) {
      answered(reply, [&] { static_cast<Planner*>(static_cast<Object*>(planner))->host.begins(device); });
    };
    host.release = [](void* object) { delete static_cast<Object*>(object); };
    host.name = "the kernel pack";
    return host;
  }

  template <class Work>
  static void answered(onnxfuse_reply* reply, Work work) noexcept {
    try {
      work();
    } catch (const std::exception& error) {
      onnxfuse_reply_error(reply, error.what());
    }
  }

  // In the current context; null where it is not loaded and not wanted.
  cuda::Function loaded(uint32_t number, bool wanted) {
    cuda::Context context = nullptr;
    check(cuda::driver().context(&context), "cuCtxGetCurrent");
    std::lock_guard<std::mutex> lock(mutex_);
    const auto key = std::make_pair(context, number);
    if (auto found = functions_.find(key); found != functions_.end()) return found->second;
    if (!wanted) return nullptr;
    const pack::Kernel& kernel = pack_->kernels[number];
    const std::string image = pack_->image(kernel);
    const BesideCaptures beside;
    cuda::Module module = nullptr;
    cuda::Function function = nullptr;
    if (int result = cuda::driver().load(&module, image.c_str()); result != cuda::kSuccess)
      fail(result, "loading the kernel " + kernel.entry + " of " + pack_->path);
    if (int result = cuda::driver().function(&function, module, kernel.entry.c_str()); result != cuda::kSuccess)
      fail(result, "finding the kernel " + kernel.entry + " in its module");
    return functions_[key] = function;
  }

  // The targets that the GPUs of this machine run; of several GPUs some may find none.
  std::set<uint32_t> targets_here() const {
    std::set<uint32_t> found;
    for (const pack::Gpu& gpu : gpus())
      if (const uint32_t target = best(pack_->targets, gpu); target != pack::kNone) found.insert(target);
    if (found.empty()) {
      const std::vector<pack::Gpu> all = gpus();
      throw std::runtime_error(all.empty() ? "the NVIDIA driver reports no device" : without(all[0]));
    }
    return found;
  }

  static std::vector<pack::Gpu> gpus() {
    check(cuda::driver().init(0), "cuInit");
    int count = 0;
    check(cuda::driver().count(&count), "cuDeviceGetCount");
    std::vector<pack::Gpu> all;
    for (int device = 0; device < count; ++device) all.push_back(gpu_of(device));
    return all;
  }

  std::string without(const pack::Gpu& gpu) const {
    const std::string name = "sm_" + std::to_string(gpu.number);
    std::string there;
    for (const pack::Target& target : pack_->targets) there += (there.empty() ? "" : ", ") + target.name;
    return "the kernel pack " + pack_->path + " has no kernels for this GPU, " + name + "; it has " + there +
           ". Build one that has: onnxfuse compile MODEL --arch " + name;
  }

  std::unique_ptr<const pack::Pack> pack_;
  SharedHost host_;
  std::unique_ptr<onnxfuse_ops> ops_;
  std::mutex mutex_;
  std::map<std::pair<cuda::Context, uint32_t>, cuda::Function> functions_;
};

}  // namespace

const onnxfuse_ops& ops_of_pack(const std::string& path) {
  // Never destroyed: ONNX Runtime keeps pointers to the ops.
  static auto* const open = new std::map<Digest, std::unique_ptr<PackHost>>;
  static auto* const mutex = new std::mutex;
  std::lock_guard<std::mutex> lock(*mutex);
  auto pack = std::make_unique<const pack::Pack>(path);
  const Digest digest = pack->digest;
  if (!open->count(digest)) open->emplace(digest, std::make_unique<PackHost>(std::move(pack)));
  return open->at(digest)->ops();
}

}  // namespace engine
