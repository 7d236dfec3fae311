# Writes OUT, a C file with the texts of the files FILES (a list) as `builtin_files`. Run by the build. A text is cut
# into literals of one line each; compilers must accept strings of any length (-Woverlength-strings is not on).
set(table "")
foreach(path ${FILES})
    get_filename_component(name ${path} NAME)
    file(READ ${path} text)
    string(REPLACE "\\" "\\\\" text "${text}")
    string(REPLACE "\"" "\\\"" text "${text}")
    string(REPLACE "\n" "\\n\"\n     \"" text "${text}")
    string(APPEND table "    {\"${name}\",\n     \"${text}\"},\n")
endforeach()
file(WRITE ${OUT} "#include \"hardware/parts.h\"\n\nconst struct builtin_file builtin_files[] = {\n${table}    {NULL, NULL},\n};\n")
