#include "os/self.h"

#include <gtest/gtest.h>

#include <cstdlib>

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

}  // namespace
}  // namespace softhca::os
