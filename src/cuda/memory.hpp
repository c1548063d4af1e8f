// Device memory, streams, events and graphs that clean up after themselves: for the tool and the
// tests. The library itself allocates nothing. All of it works in the context that is current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "src/cuda/driver.hpp"
#include "src/status.hpp"

namespace attune::cuda {

// A handle that has one owner.
template <class Handle, void (*Destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != Handle{}) Destroy(handle_);
  }

  Handle get() const { return handle_; }
  void reset(Handle handle = {}) {
    if (handle_ != Handle{}) Destroy(handle_);
    handle_ = handle;
  }

 private:
  Handle handle_{};
};

void destroy_memory(CUdeviceptr address);
void destroy_stream(CUstream stream);
void destroy_event(CUevent event);
void destroy_graph(CUgraphExec graph);

class Buffer {
 public:
  Status allocate(size_t bytes);  // in place of what it held

  void* data() const { return reinterpret_cast<void*>(uintptr_t(memory_.get())); }
  size_t bytes() const { return bytes_; }

 private:
  Owned<CUdeviceptr, destroy_memory> memory_;
  size_t bytes_ = 0;
};

class Stream {
 public:
  Status create();  // does not wait for the default stream
  Status synchronize() const;

  void* get() const { return stream_.get(); }

 private:
  Owned<CUstream, destroy_stream> stream_;
};

class Event {
 public:
  Status create();
  Status record(void* stream) const;
  Status synchronize() const;
  // From the other event to this one; both are done.
  Status milliseconds_since(const Event& begin, float* milliseconds) const;

 private:
  Owned<CUevent, destroy_event> event_;
};

class Graph {
 public:
  // Captures what `work` enqueues on the stream. Any thread's unsafe call would spoil the capture,
  // which is how most programs capture.
  Status capture(void* stream, const std::function<Status()>& work);
  Status launch(void* stream) const;

 private:
  Owned<CUgraphExec, destroy_graph> graph_;
};

// These return when the copy is done.
Status copy_to_device(void* to, const void* from, size_t bytes);
Status copy_to_host(void* to, const void* from, size_t bytes);
// Enqueued on the stream.
Status fill_bytes(void* to, uint8_t value, size_t bytes, void* stream);
Status fill_words(void* to, uint32_t value, size_t words, void* stream);
Status synchronize();  // all of the current context
Status free_memory(size_t* available, size_t* total);

}  // namespace attune::cuda
