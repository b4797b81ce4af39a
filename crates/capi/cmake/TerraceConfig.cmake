# find_package(Terrace) gives Terrace::terrace (shared) and Terrace::terrace_static. Lies in PREFIX/lib/cmake/Terrace.
get_filename_component(_terrace_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
foreach(_terrace_file include/terrace.h lib/libterrace.so lib/libterrace.a)
  if(NOT EXISTS "${_terrace_prefix}/${_terrace_file}")
    set(Terrace_FOUND FALSE)
    set(Terrace_NOT_FOUND_MESSAGE "${_terrace_prefix}/${_terrace_file} is missing")
    return()
  endif()
endforeach()
if(NOT TARGET Terrace::terrace)
  add_library(Terrace::terrace SHARED IMPORTED)
  set_target_properties(Terrace::terrace PROPERTIES
    IMPORTED_LOCATION "${_terrace_prefix}/lib/libterrace.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_terrace_prefix}/include")
  add_library(Terrace::terrace_static STATIC IMPORTED)
  set_target_properties(Terrace::terrace_static PROPERTIES
    IMPORTED_LOCATION "${_terrace_prefix}/lib/libterrace.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_terrace_prefix}/include"
    INTERFACE_LINK_LIBRARIES "pthread;dl;m")
endif()
unset(_terrace_prefix)
unset(_terrace_file)
