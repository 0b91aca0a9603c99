#include "abi/rdmacm/lookup.h"

#include <netdb.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace softhca::abi {

namespace {

using OwnedAddrinfo = std::unique_ptr<rdma_addrinfo, FreeAddrinfo>;

int socket_type_of(int qp_type) {
  switch (qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
      return SOCK_STREAM;
    case IBV_QPT_UD:
      return SOCK_DGRAM;
    default:
      return 0;
  }
}

int protocol_of(int port_space) {
  switch (port_space) {
    case RDMA_PS_TCP:
      return IPPROTO_TCP;
    case RDMA_PS_UDP:
    case RDMA_PS_IPOIB:
      return IPPROTO_UDP;
    default:
      return 0;
  }
}

addrinfo in_words_of_libc(const rdma_addrinfo& hints) {
  addrinfo wanted{};
  if ((hints.ai_flags & RAI_PASSIVE) != 0) wanted.ai_flags |= AI_PASSIVE;
  if ((hints.ai_flags & RAI_NUMERICHOST) != 0) wanted.ai_flags |= AI_NUMERICHOST;
  if ((hints.ai_flags & RAI_FAMILY) != 0 && hints.ai_family != AF_IB)
    wanted.ai_family = hints.ai_family;
  wanted.ai_socktype = socket_type_of(hints.ai_qp_type);
  wanted.ai_protocol = protocol_of(hints.ai_port_space);
  return wanted;
}

void copy_address(const sockaddr* from, socklen_t bytes, sockaddr*& to, socklen_t& to_bytes) {
  if (from == nullptr || bytes == 0) return;
  to = static_cast<sockaddr*>(std::malloc(bytes));
  if (to == nullptr) throw std::bad_alloc();
  std::memcpy(to, from, bytes);
  to_bytes = bytes;
}

// What the caller left open is as the first answer has it.
void take_over(const addrinfo& answer, const rdma_addrinfo& hints, rdma_addrinfo& made) {
  made.ai_family = answer.ai_family;
  made.ai_qp_type = hints.ai_qp_type;
  if (made.ai_qp_type == 0)
    made.ai_qp_type = answer.ai_socktype == SOCK_DGRAM ? IBV_QPT_UD : IBV_QPT_RC;
  made.ai_port_space = hints.ai_port_space;
  if (made.ai_port_space == 0)
    made.ai_port_space = answer.ai_protocol == IPPROTO_UDP ? RDMA_PS_UDP : RDMA_PS_TCP;
  if ((hints.ai_flags & RAI_PASSIVE) != 0) {
    made.ai_flags = RAI_PASSIVE;
    copy_address(answer.ai_addr, answer.ai_addrlen, made.ai_src_addr, made.ai_src_len);
  } else {
    copy_address(answer.ai_addr, answer.ai_addrlen, made.ai_dst_addr, made.ai_dst_len);
  }
}

struct FreeAnswers {
  void operator()(addrinfo* first) const { freeaddrinfo(first); }
};

}  // namespace

void FreeAddrinfo::operator()(rdma_addrinfo* first) const {
  while (first != nullptr) {
    rdma_addrinfo* const next = first->ai_next;
    std::free(first->ai_src_addr);
    std::free(first->ai_dst_addr);
    std::free(first->ai_src_canonname);
    std::free(first->ai_dst_canonname);
    std::free(first->ai_route);
    std::free(first->ai_connect);
    std::free(first);
    first = next;
  }
}

Outcome<int> look_up(const char* node, const char* service, const rdma_addrinfo* hints,
                     rdma_addrinfo** found) {
  if (node == nullptr && service == nullptr && hints == nullptr) return Errno{EINVAL};
  const rdma_addrinfo given = hints == nullptr ? rdma_addrinfo{} : *hints;
  OwnedAddrinfo made(static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo))));
  if (made == nullptr) return Errno{ENOMEM};

  if (node != nullptr || service != nullptr) {
    const addrinfo wanted = in_words_of_libc(given);
    addrinfo* first = nullptr;
    const int refused = getaddrinfo(node, service, hints == nullptr ? nullptr : &wanted, &first);
    if (refused != 0) return refused;
    const std::unique_ptr<addrinfo, FreeAnswers> answers(first);
    take_over(*answers, given, *made);
  } else {
    made->ai_flags = given.ai_flags;
    made->ai_family = given.ai_family;
    made->ai_qp_type = given.ai_qp_type;
    made->ai_port_space = given.ai_port_space;
    copy_address(given.ai_dst_addr, given.ai_dst_len, made->ai_dst_addr, made->ai_dst_len);
  }
  if (made->ai_src_addr == nullptr)
    copy_address(given.ai_src_addr, given.ai_src_len, made->ai_src_addr, made->ai_src_len);
  *found = made.release();
  return 0;
}

}  // namespace softhca::abi
