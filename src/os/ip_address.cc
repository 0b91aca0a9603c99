#include "os/ip_address.h"

#include <arpa/inet.h>

namespace softhca::os {

std::string address_text(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.is_ipv4())
    inet_ntop(AF_INET, address.bytes.data() + 12, text, sizeof text);
  else
    inet_ntop(AF_INET6, address.bytes.data(), text, sizeof text);
  return text;
}

}  // namespace softhca::os
