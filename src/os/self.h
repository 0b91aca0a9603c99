// This process: its name, its number, what it is to those that it came from, and its code.
//
// Threads  any
#pragma once
#include <cstdint>
#include <string>

namespace softhca::os {

// comm: at most 15 characters, of the calling thread.
std::string own_name();

// The process id, without a system call.
std::uint32_t own_pid();

// The number of the calling thread; a system call the first time.
std::uint32_t own_thread();

// A number, not 0, that differs from that of every process that this one was forked from. What was
// made under another number is of an ancestor: this process has a copy of its memory, but no share
// in its device. Holds however the process came about; no code has to run in the child.
std::uint64_t lineage();

// An address in this process's code as people know it: "ib_write_bw(main+0x1f0)" where the program
// exports the function's name, else "ib_write_bw+0x41f0"; "0x..." for what lies in no file.
std::string code_place(std::uint64_t address);

// A function of a library that need not be there; null if it is not. The library stays loaded until
// the process ends, and its names are visible to nobody else.
void* optional_function(const char* library, const char* name);

}  // namespace softhca::os
