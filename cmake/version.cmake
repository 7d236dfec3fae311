# Writes OUT, a C file with the version and a digest over all sources and the compile recipe. Run by the build.
file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/src/*.c ${ROOT}/src/*.h ${ROOT}/src/CMakeLists.txt)
list(SORT files)
list(APPEND files CMakeLists.txt)
set(all "${RECIPE}")
foreach(name ${files})
    file(SHA256 ${ROOT}/${name} sum)
    string(APPEND all "\n${name} ${sum}")
endforeach()
string(SHA256 digest "${all}")
string(SUBSTRING ${digest} 0 16 digest)
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[#include "base/version.h"

const char *version_number(void) {
    return "@VERSION@";
}
const char *version_digest(void) {
    return "@digest@";
}
const char *version_recipe(void) {
    return "@RECIPE@";
}
]])
