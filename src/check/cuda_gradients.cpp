// The backward pass of a case on a CUDA device.
#include <fmt/format.h>

#include <algorithm>

#include "src/api/tensor_check.hpp"
#include "src/check/cuda_cases.hpp"
#include "src/check/device_data.hpp"
#include "src/check/gradients.hpp"
#include "src/check/judge.hpp"
#include "src/cuda/device.hpp"
#include "src/rungs/rung.hpp"

namespace attune::check {
namespace {

Verdict failed(const Status& status) {
  Verdict verdict;
  verdict.status = status.code;
  verdict.why = fmt::format("{}: {}", attune_status_name(status.code), status.message);
  return verdict;
}

class CudaGradients {
 public:
  CudaGradients(const Case& c, const CudaOptions& options)
      : data_(c), g_(data_), options_(options) {}

  Status upload();
  Verdict judge(attune_mode mode);

 private:
  static constexpr const char* kInputs[] = {"out", "lse", "dout", "dlse"};

  std::vector<Tensor*> outputs() { return {&g_.dq, &g_.dk, &g_.dv, &g_.dmask, &g_.dsinks}; }
  Status prepare(attune_mode mode);
  Status launch();
  Status run();
  Status find_damage();

  Data data_;
  Gradients g_;
  const CudaOptions& options_;
  DeviceInputs inputs_, results_;      // in the order of data_.inputs() and of kInputs
  std::vector<DeviceTensor> outputs_;  // in the order of outputs()
  attune_args forward_;
  attune_backward_args args_;

  // Of one mode.
  Workspace workspace_;
  std::vector<std::vector<uint8_t>> bytes_;  // the outputs' whole memory
  std::string damage_;
};

Status CudaGradients::upload() {
  const attune_args forward = g_.forward_args();  // on the CPU
  ATTUNE_TRY(status_of(attune_forward(&forward)));
  const std::lock_guard<std::mutex> turn(device_turn());
  ATTUNE_TRY(inputs_.upload(data_.inputs()));
  ATTUNE_TRY(results_.upload(g_.inputs()));
  outputs_ = std::vector<DeviceTensor>(outputs().size());
  forward_ = device_args(data_, inputs_, options_.strict_fp32);
  args_ = g_.args(&forward_);
  forward_.out = g_.out.view;
  forward_.lse = g_.lse.view;
  attune_tensor* views[] = {&forward_.out, &forward_.lse, &args_.dout, &args_.dlse};
  for (size_t n = 0; n < std::size(views); ++n) results_.place(n, views[n]);
  return {};
}

Status CudaGradients::prepare(attune_mode mode) {
  forward_.mode = mode;
  forward_.workspace = nullptr;
  forward_.workspace_bytes = 0;
  {
    const std::lock_guard<std::mutex> turn(device_turn());
    attune_tensor* views[] = {&args_.dq, &args_.dk, &args_.dv, &args_.dmask, &args_.dsinks};
    for (size_t n = 0; n < outputs_.size(); ++n) {
      ATTUNE_TRY(outputs_[n].upload(*outputs()[n]));
      outputs_[n].place(*outputs()[n], views[n]);
    }
    if (!options_.no_workspace) {
      size_t bytes = 0;
      ATTUNE_TRY(status_of(attune_backward_workspace_size(&args_, &bytes)));
      ATTUNE_TRY(workspace_.allocate(bytes));
      forward_.workspace = workspace_.data();
      forward_.workspace_bytes = bytes;
    }
  }
  // Compiling needs no turn on the device.
  attune_plan* plan = nullptr;
  ATTUNE_TRY(status_of(attune_plan_create_backward(&args_, forward_.workspace_bytes, &plan)));
  const attune_status code = attune_plan_prepare(plan);
  attune_plan_destroy(plan);
  return status_of(code);
}

Status CudaGradients::launch() {
  for (size_t n = 0; n < outputs_.size(); ++n) ATTUNE_TRY(outputs_[n].upload(*outputs()[n]));
  if (forward_.workspace != nullptr) ATTUNE_TRY(workspace_.poison());
  ATTUNE_TRY(status_of(attune_backward(&args_)));
  ATTUNE_TRY(cuda::synchronize());
  bytes_.resize(outputs_.size());
  for (size_t n = 0; n < outputs_.size(); ++n) ATTUNE_TRY(outputs_[n].download(&bytes_[n]));
  return {};
}

Status CudaGradients::find_damage() {
  ptrdiff_t damaged = -1;
  ATTUNE_TRY(inputs_.find_damage(&damaged));
  if (damaged >= 0) damage_ = input_name(size_t(damaged));
  if (damaged < 0) {
    ATTUNE_TRY(results_.find_damage(&damaged));
    if (damaged >= 0) damage_ = kInputs[damaged];
  }
  if (damaged >= 0) {
    damage_ = fmt::format("the input {} or its surroundings were written to", damage_);
    return {};
  }
  bool intact = true;
  if (forward_.workspace != nullptr) ATTUNE_TRY(workspace_.surroundings_intact(&intact));
  if (!intact) damage_ = "memory around the workspace was written to";
  return {};
}

Status CudaGradients::run() {
  const std::lock_guard<std::mutex> turn(device_turn());
  ATTUNE_TRY(launch());
  ATTUNE_TRY(find_damage());
  if (!options_.repeat || !damage_.empty()) return {};
  const std::vector<std::vector<uint8_t>> first = bytes_;
  ATTUNE_TRY(launch());
  if (first != bytes_) damage_ = "a second run gave other bits";
  return {};
}

Verdict CudaGradients::judge(attune_mode mode) {
  damage_.clear();
  Status status = prepare(mode);
  if (status.ok()) status = run();
  if (!status.ok()) return failed(status);
  Verdict verdict;
  verdict.why = damage_;
  std::vector<std::vector<uint8_t>> poisoned;
  for (size_t n = 0; n < outputs_.size(); ++n) {
    Tensor& host = *outputs()[n];
    poisoned.push_back(host.bytes());
    std::copy(bytes_[n].begin(), bytes_[n].end(), host.bytes().begin());
    if (verdict.why.empty() && host.given() && !host.surroundings_intact())
      verdict.why = "memory around a gradient was written to";
  }
  if (verdict.why.empty()) {
    cpu::Executor one_thread;                          // the others have cases of their own
    const Rung* rung = rung_of(mode, Pass::backward);  // none: the library chooses
    verdict = compare(g_, one_thread, rung == nullptr || rung->tensor_cores);
  }
  for (size_t n = 0; n < outputs_.size(); ++n)  // the next mode begins as this one did
    std::copy(poisoned[n].begin(), poisoned[n].end(), outputs()[n]->bytes().begin());
  return verdict;
}

}  // namespace

std::vector<Verdict> run_gradients_cuda(const Case& c, const std::vector<attune_mode>& modes,
                                        const CudaOptions& options) {
  cuda::Scope scope;
  CudaGradients gradients(c, options);
  Status status = scope.enter(nullptr, nullptr);
  if (status.ok()) status = gradients.upload();
  std::vector<Verdict> verdicts;
  for (const attune_mode mode : modes)
    verdicts.push_back(status.ok() ? gradients.judge(mode) : failed(status));
  return verdicts;
}

}  // namespace attune::check
