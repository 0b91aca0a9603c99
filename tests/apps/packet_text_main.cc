// packet_text_main: for each UDP payload on stdin, a line of hexadecimal digits, what
// wire/packet_text says of it.
// packet_text_main --names: what the opcodes are called.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "wire/packet_text.h"

namespace softhca::wire {
namespace {

std::vector<std::byte> bytes_of(const std::string& digits) {
  std::vector<std::byte> bytes;
  for (std::size_t at = 0; at + 1 < digits.size(); at += 2)
    bytes.push_back(static_cast<std::byte>(std::stoul(digits.substr(at, 2), nullptr, 16)));
  return bytes;
}

void print_names() {
  for (unsigned opcode = 0; opcode < 256; ++opcode) {
    const OpcodeInfo* const info = find_opcode(static_cast<std::uint8_t>(opcode));
    if (info != nullptr) std::printf("%s\n", std::string(info->name).c_str());
  }
}

void print_packets() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto bytes = bytes_of(line);
    const auto packet = parse(bytes);
    const auto text =
        packet ? packet_text(packet->headers, packet->payload.size()) : std::string("no packet");
    std::printf("%s\n", text.c_str());
  }
}

}  // namespace
}  // namespace softhca::wire

int main(int count, char** arguments) {
  if (count == 2 && std::string(arguments[1]) == "--names")
    softhca::wire::print_names();
  else
    softhca::wire::print_packets();
}
