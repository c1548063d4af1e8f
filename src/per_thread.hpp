// What each thread has of its own. Not by thread_local: where there is no memory to register its
// destructor, or for the variables of a library that dlopen loaded, the C library ends the process.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace attune {

// A pointer of each thread, at first nullptr. A global object: its key is made when the library is
// loaded, and is never given back, since threads may end later than anything else.
class ThreadPointer {
 public:
  // `destroy` gets what is not nullptr when its thread ends.
  explicit ThreadPointer(void (*destroy)(void*) = nullptr)
      : usable_(pthread_key_create(&key_, destroy) == 0) {}
  ThreadPointer(const ThreadPointer&) = delete;
  ThreadPointer& operator=(const ThreadPointer&) = delete;

  void* get() const noexcept { return usable_ ? pthread_getspecific(key_) : nullptr; }
  bool set(const void* value) const noexcept {  // false: no memory
    return usable_ && pthread_setspecific(key_, value) == 0;
  }

 private:
  pthread_key_t key_ = 0;
  bool usable_;
};

// Whether something holds for this thread. Where there is no memory to note it, it does not.
class ThreadFlag {
 public:
  operator bool() const noexcept { return pointer_.get() != nullptr; }
  ThreadFlag& operator=(bool on) noexcept {
    pointer_.set(on ? this : nullptr);
    return *this;
  }

 private:
  ThreadPointer pointer_;
};

// A value that each thread makes at its first use.
template <class T>
class PerThread {
 public:
  T* get() const noexcept {  // nullptr: no memory
    if (void* value = pointer_.get()) return static_cast<T*>(value);
    // Not by new, which throws and catches an exception even where it says that it does not.
    void* memory = std::malloc(sizeof(T));
    if (memory == nullptr) return nullptr;
    T* fresh = ::new (memory) T;
    if (pointer_.set(fresh)) return fresh;
    destroy(fresh);
    return nullptr;
  }

 private:
  static_assert(alignof(T) <= alignof(std::max_align_t));
  static void destroy(void* value) {
    static_cast<T*>(value)->~T();
    std::free(value);
  }

  ThreadPointer pointer_{destroy};
};

}  // namespace attune
