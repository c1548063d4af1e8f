cmake_minimum_required(VERSION 3.25)
# Writes the commit that is built into OUT, when it is another than before: nothing else is compiled again for it.
# cmake -DSOURCE=... -DOUT=... -P commit.cmake
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "")  # a source package has no history
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define ATTUNE_COMMIT \"@commit@\"\n" @ONLY)
