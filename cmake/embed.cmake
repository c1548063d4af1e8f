# Turns the kernel headers into one C++ file: a table of their names and texts.
#   cmake -DROOT=... -DFILES=a.h|b/c.cuh -DOUT=... -P embed.cmake
string(REPLACE "|" ";" names "${FILES}")
set(code "// Made by cmake/embed.cmake from kernels/.\n#include \"src/jit/source.hpp\"\n\n")
string(APPEND code "namespace attune::jit {\n\nconst Header kEmbedded[] = {\n")
foreach(name IN LISTS names)
  file(READ "${ROOT}/${name}" text)
  string(APPEND code "{\"${name}\", R\"ATTUNE(${text})ATTUNE\"},\n")
endforeach()
list(LENGTH names count)
string(APPEND code "};\nconst size_t kEmbeddedCount = ${count};\n\n}  // namespace attune::jit\n")
file(WRITE "${OUT}" "${code}")
