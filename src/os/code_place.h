// CodePlace: an address in this process's code, as people know it.
//
// Threads  any
#pragma once
#include <cstdint>
#include <string>

namespace softhca::os {

// "ib_write_bw(main+0x1f0)" where the program exports the function's name, else
// "ib_write_bw+0x41f0"; "0x..." for what lies in no file.
std::string code_place(std::uint64_t address);

}  // namespace softhca::os
