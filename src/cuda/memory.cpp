#include "src/cuda/memory.hpp"

#include <fmt/format.h>

namespace attune::cuda {
namespace {

CUdeviceptr address_of(const void* pointer) {
  return CUdeviceptr(reinterpret_cast<uintptr_t>(pointer));
}

CUstream stream_of(void* stream) { return static_cast<CUstream>(stream); }

}  // namespace

// What exists was made by the driver, so there is one. A handle whose context is gone is gone with
// it.
void destroy_memory(CUdeviceptr address) { driver()->cuMemFree(address); }
void destroy_stream(CUstream stream) { driver()->cuStreamDestroy(stream); }
void destroy_event(CUevent event) { driver()->cuEventDestroy(event); }
void destroy_graph(CUgraphExec graph) { driver()->cuGraphExecDestroy(graph); }

Status Buffer::allocate(size_t bytes) {
  const Driver* d = nullptr;
  if (Status s = need_driver(&d); !s.ok()) return s;
  memory_.reset();
  bytes_ = 0;
  CUdeviceptr address = 0;
  const size_t wanted = bytes > 0 ? bytes : 1;  // the driver refuses 0
  if (Status s = cuda_status(d->cuMemAlloc(&address, wanted), "cuMemAlloc"); !s.ok()) {
    s.message += fmt::format(" for {} bytes", bytes);
    return s;
  }
  memory_.reset(address);
  bytes_ = bytes;
  return {};
}

Status Stream::create() {
  const Driver* d = nullptr;
  if (Status s = need_driver(&d); !s.ok()) return s;
  CUstream stream = nullptr;
  ATTUNE_CUDA_TRY(*d, cuStreamCreate, &stream, kStreamNonBlocking);
  stream_.reset(stream);
  return {};
}

Status Stream::synchronize() const {
  return cuda_status(driver()->cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
}

Status Event::create() {
  const Driver* d = nullptr;
  if (Status s = need_driver(&d); !s.ok()) return s;
  CUevent event = nullptr;
  ATTUNE_CUDA_TRY(*d, cuEventCreate, &event, kEventDefault);
  event_.reset(event);
  return {};
}

Status Event::record(void* stream) const {
  return cuda_status(driver()->cuEventRecord(event_.get(), stream_of(stream)), "cuEventRecord");
}

Status Event::synchronize() const {
  return cuda_status(driver()->cuEventSynchronize(event_.get()), "cuEventSynchronize");
}

Status Event::milliseconds_since(const Event& begin, float* milliseconds) const {
  return cuda_status(driver()->cuEventElapsedTime(milliseconds, begin.event_.get(), event_.get()),
                     "cuEventElapsedTime");
}

Status Graph::capture(void* stream, const std::function<Status()>& work) {
  const Driver* d = nullptr;
  if (Status s = need_driver(&d); !s.ok()) return s;
  ATTUNE_CUDA_TRY(*d, cuStreamBeginCapture, stream_of(stream), kCaptureGlobal);
  Status worked = work();
  CUgraph graph = nullptr;
  const CUresult ended = d->cuStreamEndCapture(stream_of(stream), &graph);
  if (worked.ok()) worked = cuda_status(ended, "cuStreamEndCapture");
  CUgraphExec executable = nullptr;
  if (worked.ok())
    worked = cuda_status(d->cuGraphInstantiateWithFlags(&executable, graph, 0),
                         "cuGraphInstantiateWithFlags");
  if (graph != nullptr) d->cuGraphDestroy(graph);
  if (worked.ok()) graph_.reset(executable);
  return worked;
}

Status Graph::launch(void* stream) const {
  return cuda_status(driver()->cuGraphLaunch(graph_.get(), stream_of(stream)), "cuGraphLaunch");
}

Status copy_to_device(void* to, const void* from, size_t bytes) {
  const Driver* d = nullptr;
  if (Status s = need_driver(&d); !s.ok()) return s;
  if (bytes == 0) return {};
  return cuda_status(d->cuMemcpyHtoD(address_of(to), from, bytes), "cuMemcpyHtoD");
}

Status copy_to_host(void* to, const void* from, size_t bytes) {
  const Driver* d = nullptr;
  if (Status s = need_driver(&d); !s.ok()) return s;
  if (bytes == 0) return {};
  return cuda_status(d->cuMemcpyDtoH(to, address_of(from), bytes), "cuMemcpyDtoH");
}

Status fill_bytes(void* to, uint8_t value, size_t bytes, void* stream) {
  const Driver* d = nullptr;
  if (Status s = need_driver(&d); !s.ok()) return s;
  if (bytes == 0) return {};
  return cuda_status(d->cuMemsetD8Async(address_of(to), value, bytes, stream_of(stream)),
                     "cuMemsetD8Async");
}

Status fill_words(void* to, uint32_t value, size_t words, void* stream) {
  const Driver* d = nullptr;
  if (Status s = need_driver(&d); !s.ok()) return s;
  if (words == 0) return {};
  return cuda_status(d->cuMemsetD32Async(address_of(to), value, words, stream_of(stream)),
                     "cuMemsetD32Async");
}

Status synchronize() {
  const Driver* d = nullptr;
  if (Status s = need_driver(&d); !s.ok()) return s;
  return cuda_status(d->cuCtxSynchronize(), "cuCtxSynchronize");
}

Status free_memory(size_t* available, size_t* total) {
  const Driver* d = nullptr;
  if (Status s = need_driver(&d); !s.ok()) return s;
  return cuda_status(d->cuMemGetInfo(available, total), "cuMemGetInfo");
}

}  // namespace attune::cuda
