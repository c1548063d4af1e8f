// Gives this process the driver without a GPU.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tests/cuda/fake/fake.hpp"

namespace attune::cuda {

// The library will ask for libcuda.so.1, and get the one that is loaded already.
inline fake::Books& fake_books() {
  static fake::Books* const the_books = [] {
    void* library = dlopen(fake::library_path("libcuda.so.1").c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) ADD_FAILURE() << dlerror();
    return reinterpret_cast<fake::Books* (*)()>(dlsym(library, "attune_fake_books"))();
  }();
  return *the_books;
}

}  // namespace attune::cuda
