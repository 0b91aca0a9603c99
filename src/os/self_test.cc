#include "os/self.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "os/test_child.h"

namespace softhca::os {
namespace {

TEST(CodePlace, NamesTheFileAndTheFunction) {
  const std::string place = code_place(reinterpret_cast<std::uintptr_t>(&::getenv) + 5);
  EXPECT_NE(place.find("getenv+0x5)"), std::string::npos) << place;
  EXPECT_EQ(place.find('/'), std::string::npos) << place;
}

TEST(CodePlace, WhatLiesInNoFileIsANumber) {
  int local = 0;
  EXPECT_EQ(code_place(reinterpret_cast<std::uintptr_t>(&local)).substr(0, 2), "0x");
}

TEST(OptionalFunction, IsThereOrNot) {
  EXPECT_EQ(optional_function("libsofthca-that-nobody-has.so.1", "anything"), nullptr);
  EXPECT_EQ(optional_function("libc.so.6", "softhca_that_libc_has_not"), nullptr);
  EXPECT_NE(optional_function("libc.so.6", "getpid"), nullptr);
}

TEST(Self, EachThreadHasANumberOfItsOwn) {
  EXPECT_EQ(own_thread(), own_pid()) << "the main one";
  std::uint32_t other = 0;
  std::thread([&] { other = own_thread(); }).join();
  EXPECT_NE(other, 0u);
  EXPECT_NE(other, own_thread());
  EXPECT_EQ(run_in_child([] { return own_thread() == own_pid() ? 0 : 1; }), 0);
}

}  // namespace
}  // namespace softhca::os
