# Turns source files into one C++ file: a table NAME of their names and texts, and NAME's Count.
#   cmake -DROOT=... -DFILES=a.h|b/c.cuh -DNAMESPACE=attune::jit -DNAME=kEmbedded -DOUT=... -P embed.cmake
string(REPLACE "|" ";" names "${FILES}")
set(code "// Made by cmake/embed.cmake.\n#include \"src/jit/source.hpp\"\n\n")
string(APPEND code "namespace ${NAMESPACE} {\n\n")
string(APPEND code "extern const attune::jit::Header ${NAME}[];\nextern const size_t ${NAME}Count;\n\n")
string(APPEND code "const attune::jit::Header ${NAME}[] = {\n")
foreach(name IN LISTS names)
  file(READ "${ROOT}/${name}" text)
  string(APPEND code "{\"${name}\", R\"ATTUNE(${text})ATTUNE\"},\n")
endforeach()
list(LENGTH names count)
string(APPEND code "};\nconst size_t ${NAME}Count = ${count};\n\n}  // namespace ${NAMESPACE}\n")
file(WRITE "${OUT}" "${code}")
