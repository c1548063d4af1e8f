#include "src/check/cuda_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "src/api/tensor_check.hpp"
#include "src/check/device_data.hpp"
#include "src/check/judge.hpp"
#include "src/check/user_code.hpp"
#include "src/cuda/device.hpp"
#include "src/rungs/rung.hpp"

namespace attune::check {
namespace {

// One mode's call: its arguments, and the memory and text that they point to.
struct Candidate {
  attune_args args;
  UserCode code;
  cuda::Buffer words;
  Workspace workspace;
  Status status;
  std::string damage;
  std::vector<uint8_t> out, lse;  // the whole memory of the results
};

class CudaRun {
 public:
  CudaRun(const Case& c, const CudaOptions& options) : data_(c), options_(options) {}

  std::vector<Verdict> judge(const std::vector<attune_mode>& modes);

 private:
  Status upload();
  Status prepare(attune_mode mode, Candidate* candidate);
  Status fill_args(attune_mode mode, Candidate* candidate);
  Status write_words(Candidate* candidate);
  Status run(Candidate* candidate);
  Status launch(Candidate* candidate);
  Status find_damage(Candidate* candidate);
  Allowance allowance(attune_mode mode) const;

  Data data_;
  const CudaOptions& options_;
  DeviceInputs inputs_;  // in the order of data_.inputs()
  DeviceTensor out_, lse_;
  attune_args args_;  // all but mode, workspace and user code
};

Status CudaRun::upload() {
  const std::lock_guard<std::mutex> turn(device_turn());
  ATTUNE_TRY(inputs_.upload(data_.inputs()));
  ATTUNE_TRY(out_.upload(data_.out));
  ATTUNE_TRY(lse_.upload(data_.lse));
  args_ = device_args(data_, inputs_, options_.strict_fp32);
  out_.place(data_.out, &args_.out);
  lse_.place(data_.lse, &args_.lse);
  return {};
}

Status CudaRun::prepare(attune_mode mode, Candidate* candidate) {
  ATTUNE_TRY(fill_args(mode, candidate));
  return status_of(attune_prepare(&candidate->args));  // compiling needs no turn on the device
}

Status CudaRun::fill_args(attune_mode mode, Candidate* candidate) {
  const std::lock_guard<std::mutex> turn(device_turn());
  candidate->args = args_;
  candidate->args.mode = mode;
  if (options_.as_user_code || !options_.sabotage.empty()) {
    candidate->code = as_user_code(data_, &candidate->args);
    const size_t body = candidate->code.score_mod.find('\n') + 1;  // after the declaration of words
    candidate->code.score_mod.insert(body, options_.sabotage);
    candidate->args.score_mod = candidate->code.score_mod.c_str();
    candidate->args.mask_mod = candidate->code.mask_mod.c_str();
  }
  if (!options_.no_workspace) {
    size_t bytes = 0;
    ATTUNE_TRY(status_of(attune_workspace_size(&candidate->args, &bytes)));
    ATTUNE_TRY(candidate->workspace.allocate(bytes));
    candidate->args.workspace = candidate->workspace.data();
    candidate->args.workspace_bytes = bytes;
  }
  return candidate->args.score_mod != nullptr ? write_words(candidate) : Status{};
}

Status CudaRun::write_words(Candidate* candidate) {
  const Params a = data_.params();
  const auto address = [](const void* p) { return int64_t(reinterpret_cast<intptr_t>(p)); };
  std::array<int64_t, kUserWords> words{};
  words[kSlopes] = address(args_.alibi_slopes.data);
  words[kSlopesStrideB] = a.alibi_stride_b;
  words[kSlopesStrideH] = a.alibi_stride_h;
  words[kMask] = address(args_.mask.data);
  for (size_t d = 0; d < 4; ++d) words[kMaskStride + d] = a.mask.stride[d];
  words[kCuQ] = address(args_.cu_seqlens_q.data);
  words[kCuK] = address(args_.cu_seqlens_k.data);
  words[kKeyLengths] = address(args_.key_lengths.data);
  words[kOut] = address(args_.out.data);
  words[kQ] = address(args_.q.data);
  words[kWorkspace] = address(candidate->args.workspace);
  ATTUNE_TRY(candidate->words.allocate(sizeof(words)));
  candidate->args.user_data = candidate->words.data();
  return cuda::copy_to_device(candidate->words.data(), words.data(), sizeof(words));
}

Status CudaRun::launch(Candidate* candidate) {
  ATTUNE_TRY(out_.upload(data_.out));
  ATTUNE_TRY(lse_.upload(data_.lse));
  if (candidate->args.workspace != nullptr) ATTUNE_TRY(candidate->workspace.poison());
  ATTUNE_TRY(status_of(attune_forward(&candidate->args)));
  ATTUNE_TRY(cuda::synchronize());
  ATTUNE_TRY(out_.download(&candidate->out));
  return lse_.download(&candidate->lse);
}

Status CudaRun::find_damage(Candidate* candidate) {
  ptrdiff_t damaged = -1;
  ATTUNE_TRY(inputs_.find_damage(&damaged));
  if (damaged >= 0) {
    candidate->damage = fmt::format("the input {} or its surroundings were written to",
                                    input_name(size_t(damaged)));
    return {};
  }
  bool intact = true;
  if (candidate->args.workspace != nullptr)
    ATTUNE_TRY(candidate->workspace.surroundings_intact(&intact));
  if (!intact) candidate->damage = "memory around the workspace was written to";
  return {};
}

Status CudaRun::run(Candidate* candidate) {
  const std::lock_guard<std::mutex> turn(device_turn());
  ATTUNE_TRY(launch(candidate));
  ATTUNE_TRY(find_damage(candidate));
  if (!options_.repeat || !candidate->damage.empty()) return {};
  const std::vector<uint8_t> out = candidate->out, lse = candidate->lse;
  ATTUNE_TRY(launch(candidate));
  if (out != candidate->out || lse != candidate->lse)
    candidate->damage = "a second run gave other bits";
  return {};
}

Allowance CudaRun::allowance(attune_mode mode) const {
  const Rung* rung = rung_of(mode);  // none: the library chooses
  return rung == nullptr || rung->tensor_cores ? tensor_core_allowance(data_.p) : Allowance{};
}

std::vector<Verdict> CudaRun::judge(const std::vector<attune_mode>& modes) {
  std::vector<Candidate> candidates(modes.size());
  const Status uploaded = upload();
  for (size_t n = 0; n < modes.size(); ++n) {
    Candidate& candidate = candidates[n];
    candidate.status = uploaded;
    if (candidate.status.ok()) candidate.status = prepare(modes[n], &candidate);
    if (candidate.status.ok()) candidate.status = run(&candidate);
  }

  cpu::Executor one_thread;  // the others have cases of their own
  const Expected expected = expect(data_, one_thread);
  std::vector<Verdict> verdicts;
  for (size_t n = 0; n < modes.size(); ++n) {
    Candidate& candidate = candidates[n];
    Verdict verdict;
    verdict.status = candidate.status.code;
    if (!candidate.status.ok()) {
      verdict.why = fmt::format("{}: {}", attune_status_name(candidate.status.code),
                                candidate.status.message);
    } else {
      std::copy(candidate.out.begin(), candidate.out.end(), data_.out.bytes().begin());
      std::copy(candidate.lse.begin(), candidate.lse.end(), data_.lse.bytes().begin());
      verdict.why = candidate.damage.empty() ? damage_around_outputs(data_) : candidate.damage;
    }
    if (verdict.why.empty()) verdict = compare(data_, expected, allowance(modes[n]));
    verdicts.push_back(verdict);
  }
  return verdicts;
}

}  // namespace

Allowance tensor_core_allowance(const Problem& p) {
  if (p.dtype == DType::f32) return {};
  return {2 * (p.dtype == DType::bf16 ? 0x1p-8 : 0x1p-11), 4.0 * ((p.dim + 15) / 16)};
}

std::vector<Verdict> run_case_cuda(const Case& c, const std::vector<attune_mode>& modes,
                                   const CudaOptions& options) {
  cuda::Scope scope;
  if (const Status entered = scope.enter(nullptr, nullptr); !entered.ok()) {
    Verdict verdict;
    verdict.status = entered.code;
    verdict.why = fmt::format("{}: {}", attune_status_name(entered.code), entered.message);
    return std::vector<Verdict>(modes.size(), verdict);
  }
  return CudaRun(c, options).judge(modes);
}

Verdict run_case_cuda(const Case& c, attune_mode mode, const CudaOptions& options) {
  return run_case_cuda(c, std::vector<attune_mode>{mode}, options).front();
}

std::vector<attune_mode> cuda_rungs(int compute_capability, Pass pass) {
  std::vector<attune_mode> modes;
  for (const Rung* rung : rungs(pass))
    if (rung->runs_on(compute_capability)) modes.push_back(rung->mode);
  return modes;
}

}  // namespace attune::check
