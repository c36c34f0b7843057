# SPDX-License-Identifier: Apache-2.0
# Fails when an object of an isa/ folder defines a mergeable (weak or unique) symbol outside its own
# namespace: an inline function or a template instance compiled with that instruction set's flags, of
# which the linker keeps one copy for the whole program.
#   cmake -DNM=<nm> "-DOBJECTS=<list>" -DNAMESPACE=<above that of the set> -DTABLE=<name> -P check_isa_symbols.cmake
if(NOT OBJECTS)
  message(FATAL_ERROR "no objects to check")
endif()
foreach(object IN LISTS OBJECTS)
  get_filename_component(isa ${object} NAME)
  string(REGEX REPLACE "\\..*$" "" isa ${isa})
  execute_process(COMMAND ${NM} --defined-only --demangle ${object}
                  OUTPUT_VARIABLE symbols RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${NM} cannot read ${object}")
  endif()
  if(NOT symbols MATCHES " ${NAMESPACE}::${isa}::${TABLE}\n")
    message(FATAL_ERROR "${object} does not define ${NAMESPACE}::${isa}::${TABLE}")
  endif()
  string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
  foreach(line IN LISTS lines)
    if(line MATCHES "^[0-9a-f]+ [WwVvu] " AND NOT line MATCHES " ${NAMESPACE}::${isa}::")
      message(SEND_ERROR "${isa}: shared inline code: ${line}")
    endif()
  endforeach()
endforeach()
