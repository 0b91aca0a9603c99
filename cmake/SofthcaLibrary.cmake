include(GoogleTest)

# softhca_library(FOLDER [folders that it may include...])
#
# One static library per folder of src/, from its *.cc and those in its
# live/ (what only a real process has) and frames/ (moving its pages); unit tests are the *_test.cc beside them.
# The list of folders is the row of the folder table in ARCHITECTURE.md; tools/check_layers.py
# holds both against each other.
function(softhca_library folder)
  file(GLOB sources CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_SOURCE_DIR}/*.cc ${CMAKE_CURRENT_SOURCE_DIR}/live/*.cc
    ${CMAKE_CURRENT_SOURCE_DIR}/frames/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(may_include ${ARGN})
  list(TRANSFORM may_include PREPEND softhca_)

  if(sources)
    add_library(softhca_${folder} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(softhca_${folder} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(softhca_${folder} ${scope} ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(softhca_${folder} ${scope} ${may_include})

  if(tests)
    add_executable(${folder}_test ${tests})
    target_link_libraries(${folder}_test PRIVATE softhca_${folder} GTest::gtest_main)
    target_compile_definitions(${folder}_test PRIVATE
      SOFTHCA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    gtest_discover_tests(${folder}_test DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
  endif()
endfunction()

# {fmt}, header-only: nothing of it is visible outside, whatever version the host program uses.
add_library(softhca_fmt INTERFACE)
target_compile_definitions(softhca_fmt INTERFACE FMT_HEADER_ONLY=1)
