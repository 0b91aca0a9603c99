// Probes: single packets by hand, sent to our responder, and answers by hand to our requester. What
// the standard wants, what Linux rxe answers and what ours does is a table, docs/probes.md, that
// this test holds against itself. To renew it:
//
//     SOFTHCA_RENEW_PROBES=1 build/tests/scenario/scenario_test --gtest_filter='Probes.*'
//
// The probes are those that rxe was asked, at path MTU 256 (tests/golden/README.md, crafted-6.1 and
// crafted-6.12); what rxe answered is in those captures.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "pair.h"
#include "wire/icrc.h"

namespace softhca::sim {
namespace {

using transport::QpState;
using transport::WorkOpcode;
using wire::Operation;
using Octets = std::vector<std::byte>;

constexpr std::uint32_t kPsn = 0x500000;     // the first that the responder expects
constexpr std::uint32_t kOwnPsn = 0x123000;  // the first that the requester sends
constexpr std::uint32_t kProberQpn = 0x800;
constexpr std::uint32_t kMtu = 256;
constexpr std::uint32_t kRegionBytes = 4096;
constexpr std::size_t kReceives = 8;

template <class T>
void append(Octets& to, T value) {
  to.resize(to.size() + sizeof value);
  store_be(Bytes(to), to.size() - sizeof value, value);
}

// What a probe may say otherwise than an ordinary packet.
struct Odd {
  std::uint8_t flags = 0x40;  // MigReq; and transport version, in the low four bits
  std::uint16_t pkey = 0xffff;
  std::uint8_t reserved = 0;  // FECN, BECN and six reserved bits
  bool ack_request = true;
  std::uint32_t qpn = 0;  // 0: the queue pair's own
};

struct Heard {
  Time at;
  Octets bytes;
  wire::Packet packet() const {
    const auto parsed = wire::parse(bytes);
    EXPECT_TRUE(parsed);
    return parsed ? *parsed : wire::Packet{};
  }
};

// A host with a connection to nobody but this: packets by hand at the other end of its cable.
class Prober {
 public:
  explicit Prober(std::size_t receives = kReceives)
      : world_(one_host()), host_(world_.host(0)), cable_(world_.network().attach({&kGid, 1})) {
    const Connection::End end = connect_to(world_, host_, kGid, {kProberQpn}, connection());
    cq_ = end.cq;
    qp_ = end.qp;
    driver::Engine& engine = host_.engine();
    address_ = host_.allocate(kRegionBytes);
    const auto region =
        engine.register_memory(end.pd, address_, kRegionBytes, {address_.value},
                               driver::AccessFlags::of_bits(kAllRights), world_.now());
    EXPECT_TRUE(region);
    key_ = region->key;
    Octets letters(1024);
    for (std::size_t i = 0; i < letters.size(); ++i)
      letters[i] = static_cast<std::byte>('A' + i % 26);
    host_.store(address_, letters);
    for (std::size_t i = 0; i < receives; ++i) {
      const std::array piece{driver::Sge{address_.value + 1024, 2048, key_.value}};
      EXPECT_TRUE(engine.post_receive(*qp_, {i, piece}, false, world_.now()));
    }
  }

  std::uint64_t address() const { return address_.value; }
  std::uint32_t key() const { return key_.value; }
  QpState state() const { return qp_->state(); }

  Octets packet(std::uint8_t opcode, std::uint32_t psn, const Odd& odd = {}) const {
    Octets bytes;
    append(bytes, opcode);
    append(bytes, odd.flags);
    append(bytes, odd.pkey);
    append(bytes, std::uint32_t{odd.reserved} << 24 | (odd.qpn != 0 ? odd.qpn : qp_->qpn().value));
    append(bytes, (odd.ack_request ? 1u << 31 : 0u) | (psn & wire::kMask24));
    return bytes;
  }

  void send(Octets bytes, bool bad_icrc = false) {
    const wire::Datagram way{.source = kGid, .destination = host_.gid(), .source_port = 0xc123};
    const std::uint32_t icrc = wire::icrc(way, bytes) ^ (bad_icrc ? 1 : 0);
    bytes.resize(bytes.size() + wire::kIcrcBytes);
    store_le(Bytes(bytes), bytes.size() - wire::kIcrcBytes, icrc);
    const link::Frame frame{way, bytes};
    EXPECT_EQ(cable_.send({&frame, 1}, world_.now()), 1u);
  }

  // Calls `on_packet` for each packet that comes, until the time is over.
  void listen(Duration time, const std::function<void(const Heard&)>& on_packet) {
    world_.run_until(
        [&] {
          std::array<link::Frame, 16> frames;
          const std::size_t count = cable_.receive(frames, world_.now());
          std::vector<Heard> heard;
          for (const link::Frame& frame : std::span(frames).first(count))
            heard.push_back({world_.now(), {frame.bytes.begin(), frame.bytes.end()}});
          for (const Heard& one : heard) on_packet(one);
          return false;
        },
        time);
  }

  void post(WorkOpcode opcode, std::uint32_t bytes) {
    const std::array piece{driver::Sge{address_.value, bytes, key_.value}};
    driver::SendRequest request = remote_request(opcode, piece, 0x10000, {0x1234});
    request.flags |= driver::SendFlag::Signaled;
    EXPECT_TRUE(host_.engine().post_send(*qp_, request, false, world_.now()));
  }
  std::vector<driver::Completion> completions() {
    std::vector<driver::Completion> all(32);
    all.resize(cq_->poll(all));
    return all;
  }

 private:
  static WorldSettings one_host() {
    WorldSettings settings;
    settings.hosts = 1;
    return settings;
  }
  static constexpr wire::Gid kGid = wire::Gid::of_ipv4({10, 0, 0, 77});

  static ConnectionSettings connection() {
    ConnectionSettings settings;
    settings.mtu = kMtu;
    settings.depth = kReceives;
    settings.timeout = 14;
    settings.retry_count = 3;
    settings.rnr_retry = 2;
    settings.min_rnr_timer = 14;
    settings.psn_a = {kOwnPsn};
    settings.psn_b = {kPsn};
    return settings;
  }

  World world_;
  Host& host_;
  link::Link& cable_;
  driver::CompletionQueue* cq_ = nullptr;
  driver::QueuePair* qp_ = nullptr;
  VirtAddr address_;
  wire::Key key_;
};

std::string state_text(QpState state) { return state == QpState::Error ? "ERR" : "RTS"; }

// As a cell of the table: "ACK msn 1 psn +0".
std::string answer_text(const Heard& heard) {
  const wire::Packet packet = heard.packet();
  const wire::Headers& h = packet.headers;
  std::string text(packet.info->name.substr(3));
  if (h.aeth_kind == wire::AethKind::RnrNak) text = fmt::format("RNR NAK timer {}", h.aeth_value);
  if (h.aeth_kind == wire::AethKind::Nak) text = fmt::format("NAK {}", h.aeth_value);
  if (packet.info->has(wire::Header::Aeth)) text += fmt::format(" msn {}", h.msn.value);
  text += fmt::format(" psn {:+}", wire::ahead(h.bth.psn, {kPsn}));
  if (packet.info->has(wire::Header::AtomicAckEth)) text += fmt::format(" orig {:x}", h.original);
  if (!packet.payload.empty()) text += fmt::format(" {} B", packet.payload.size());
  return text;
}

// SEND, with an opcode of its place; any bytes.
struct Message {
  std::uint32_t psn_offset;
  std::uint32_t bytes = 16;
  std::uint8_t opcode = static_cast<std::uint8_t>(Operation::SendOnly);
  Odd odd = {};
};
Octets message(const Prober& to, const Message& m) {
  Odd odd = m.odd;
  const auto pad = wire::pad_for(m.bytes);
  odd.flags = static_cast<std::uint8_t>(odd.flags | pad << 4);
  Octets bytes = to.packet(m.opcode, kPsn + m.psn_offset, odd);
  bytes.insert(bytes.end(), m.bytes + pad, std::byte{0x79});
  return bytes;
}

struct Remote {
  Operation operation;
  std::uint32_t psn_offset;
  std::uint32_t length;       // in the RETH
  std::uint32_t payload = 0;  // bytes there are
  std::uint64_t offset = 0;
  std::uint32_t key_flip = 0;
};
Octets remote(const Prober& to, const Remote& r) {
  Octets bytes = to.packet(static_cast<std::uint8_t>(r.operation), kPsn + r.psn_offset);
  if (r.operation == Operation::Flush) append(bytes, std::uint32_t{1});  // global, this range
  append(bytes, to.address() + r.offset);
  append(bytes, to.key() ^ r.key_flip);
  if (r.operation == Operation::FetchAdd) {
    append(bytes, std::uint64_t{1});
    append(bytes, std::uint64_t{0});
  } else {
    append(bytes, r.length);
  }
  bytes.insert(bytes.end(), r.payload, std::byte{0x79});
  return bytes;
}

// The texts of a row of the table. `rxe_612` only where it is not what 6.1 says.
struct Row {
  std::string what;
  std::string standard;
  std::string rxe_61;
  std::string ours;
  std::string rxe_612 = {};
  std::string why = {};  // what differs, if anything does
};

struct Probe {
  Row row;
  std::function<Octets(const Prober&)> make;
  bool bad_icrc = false;
};

struct Scene {
  std::vector<Probe> probes;
  Row end;  // the queue pair's state, and the receives that completed: status, bytes
  std::size_t receives = kReceives;
};

std::function<Octets(const Prober&)> sends(const Message& m) {
  return [m](const Prober& to) { return message(to, m); };
}
std::function<Octets(const Prober&)> asks(const Remote& r) {
  return [r](const Prober& to) { return remote(to, r); };
}

constexpr auto kSilence = "nothing";
const std::string kErr = "ERR, receives flushed (9.9.3, class C)";
const std::string kAllFlushed = "ERR; 8 × 5,0";

// What is alike for all scenes that end the connection, or leave it alone.
Row ended() { return {"state and receives", kErr, kAllFlushed, kAllFlushed}; }
Row goes_on(const std::string& receives) {
  const std::string all = "RTS; " + receives;
  return {"state and receives", "as before", all, all};
}

std::vector<Scene> scenes();

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : "; ") + part;
  return all.empty() ? kSilence : all;
}

std::string end_text(Prober& prober) {
  std::string text = state_text(prober.state()) + ";";
  std::string last;
  int times = 0;
  const auto flush = [&] {
    if (times > 1) text += fmt::format(" {} × {}", times, last);
    if (times == 1) text += " " + last;
  };
  for (const driver::Completion& done : prober.completions()) {
    const auto one = fmt::format("{},{}", static_cast<unsigned>(done.status), done.byte_count);
    if (one != last) flush(), times = 0;
    last = one;
    ++times;
  }
  flush();
  return times == 0 ? text + " none" : text;
}

TEST(Probes, AreAnsweredAsTheStandardWants) {
  for (const Scene& scene : scenes()) {
    Prober prober(scene.receives);
    for (const Probe& probe : scene.probes) {
      SCOPED_TRACE(probe.row.what);
      prober.send(probe.make(prober), probe.bad_icrc);
      std::vector<std::string> answers;
      prober.listen(milliseconds(1), [&](const Heard& h) { answers.push_back(answer_text(h)); });
      EXPECT_EQ(joined(answers), probe.row.ours);
    }
    EXPECT_EQ(end_text(prober), scene.end.ours) << scene.probes.front().row.what;
  }
}

// Answers by hand, to what our requester sends.
struct Answering {
  Prober& prober;
  int count = 0;  // packets heard before

  void acknowledge(std::uint32_t psn, std::uint8_t syndrome = 0x1f, std::uint32_t msn = 1,
                   bool bad_icrc = false) {
    Octets bytes = head(Operation::Acknowledge, psn);
    append(bytes, std::uint32_t{syndrome} << 24 | msn);
    prober.send(bytes, bad_icrc);
  }
  void respond(Operation operation, std::uint32_t psn, std::uint32_t payload) {
    Octets bytes = head(operation, psn);
    if (operation != Operation::ReadResponseMiddle) append(bytes, std::uint32_t{0x1f000001});
    bytes.insert(bytes.end(), payload, std::byte{0x72});
    prober.send(bytes);
  }
  // All of a READ's response.
  void respond_whole(std::uint32_t psn, std::uint32_t length) {
    for (std::uint32_t at = 0, left = length; left != 0; ++at) {
      const std::uint32_t bytes = std::min(left, kMtu);
      left -= bytes;
      respond(left == 0 ? (at == 0 ? Operation::ReadResponseOnly : Operation::ReadResponseLast)
                        : (at == 0 ? Operation::ReadResponseFirst : Operation::ReadResponseMiddle),
              psn + at, bytes);
    }
  }

 private:
  Octets head(Operation operation, std::uint32_t psn) {
    Odd odd;
    odd.ack_request = false;
    return prober.packet(static_cast<std::uint8_t>(operation), psn, odd);
  }
};

struct Posted {
  WorkOpcode opcode = WorkOpcode::Send;
  std::uint32_t bytes = 64;
  std::size_t count = 1;
};
struct Answered {
  Row row;
  Posted posted;
  std::function<void(Answering&, const wire::Headers&)> answer;
};

std::vector<Answered> answered();

// "0:SEND_ONLY+0 67:SEND_ONLY+0; 12; ERR": what was sent, ms after the first; the statuses.
std::string conduct_text(const Answered& probe) {
  Prober prober;
  Answering answering{prober};
  std::string text;
  Time first{};
  for (std::size_t i = 0; i < probe.posted.count; ++i)
    prober.post(probe.posted.opcode, probe.posted.bytes);
  prober.listen(seconds(10), [&](const Heard& heard) {
    const wire::Packet packet = heard.packet();
    if (answering.count == 0) first = heard.at;
    text +=
        fmt::format("{}{}:{}{:+}", text.empty() ? "" : " ", (heard.at - first).ps / 1'000'000'000,
                    packet.info->name.substr(3), wire::ahead(packet.headers.bth.psn, {kOwnPsn}));
    if (packet.info->kind == wire::Kind::ReadRequest)
      text += fmt::format(" ({} B)", packet.headers.dma_length);
    probe.answer(answering, packet.headers);
    ++answering.count;
  });
  const auto done = prober.completions();
  EXPECT_EQ(done.size() - (prober.state() == QpState::Error ? kReceives : 0), probe.posted.count);
  for (std::size_t i = 0; i < probe.posted.count && i < done.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "; " : " ", static_cast<unsigned>(done[i].status));
  return text + "; " + state_text(prober.state());
}

TEST(Probes, AreTakenAsTheStandardWants) {
  for (const Answered& probe : answered()) {
    SCOPED_TRACE(probe.row.what);
    EXPECT_EQ(conduct_text(probe), probe.row.ours);
  }
}

std::string line_of(const Row& row) {
  const std::string rxe_612 = row.rxe_612.empty() ? row.rxe_61 : row.rxe_612;
  std::string theirs =
      row.rxe_61 == rxe_612 ? row.rxe_61 : fmt::format("6.1: {}; 6.12: {}", row.rxe_61, rxe_612);
  if (theirs == row.ours) theirs = "the same";
  return fmt::format("| {} | {} | {} | {} | {} |\n", row.what, row.standard, row.ours, theirs,
                     row.why);
}

TEST(Probes, AreWrittenInTheDocumentation) {
  constexpr auto kHead =
      "| probe | the standard | ours | rxe | why they differ |\n|---|---|---|---|---|\n";
  std::string page = R"(# Probes

Packets by hand, one at a time, and what comes back. `tests/scenario/probes_test.cc` sends them to
our device and writes this page; what Linux rxe answers (6.1.0-57 and 6.12.117, path MTU 256) was
captured from virtual machines (`tests/golden`, crafted-6.1 and crafted-6.12). Clauses, sections and
annexes are those of IBTA volume 1. A table is a connection; PSNs count from the one that it expects
first. "State and receives" is what its queue pair has come to, and its completed receives: status,
bytes.
)";
  page += "\n## To a responder\n";
  for (const Scene& scene : scenes()) {
    page += fmt::format("\n{}", kHead);
    for (const Probe& probe : scene.probes) page += line_of(probe.row);
    page += line_of(scene.end);
  }
  page += R"(
## To a requester

Timeout 14 (67 ms), retry_cnt 3, rnr_retry 2. What it sends, after how many ms, with the PSN from
the first on; the statuses of the work requests; the queue pair's state. rxe ran on an interpreted
machine: its times are told where they differ for another reason.

)";
  page += kHead;
  for (const Answered& probe : answered()) page += line_of(probe.row);

  const std::string file = SOFTHCA_DOCS_DIR "/probes.md";
  if (std::getenv("SOFTHCA_RENEW_PROBES") != nullptr) std::ofstream(file) << page;
  std::ifstream in(file);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), page)
      << "SOFTHCA_RENEW_PROBES=1 writes " << file;
}

const std::string kAck = "ACK msn 1 psn +0";

std::string nak(int code, int psn = 0) {
  return fmt::format("NAK {} msn {} psn {:+}", code, psn, psn);
}
std::uint8_t number(Operation operation) { return static_cast<std::uint8_t>(operation); }

Scene sound_requests() {
  Odd no_ack, decorated, no_migration;
  no_ack.ack_request = false;
  decorated.reserved = 0xff;
  no_migration.flags = 0;
  const std::string gap = "NAK 0 msn 1 psn +1";
  const auto ack = [](int msn) { return fmt::format("ACK msn {} psn {:+}", msn, msn - 1); };
  const auto alike = [](const char* what, const char* standard, const std::string& answer) {
    return Row{what, standard, answer, answer};
  };
  return {{{alike("SEND ONLY, 16 B", "ACK (9.7.5.1)", ack(1)), sends({0})},
           {alike("the same again", "ACK again, not executed (C9-105)", ack(1)), sends({0})},
           {alike("PSN one too far", "NAK 0 with the expected PSN (C9-99)", gap), sends({2})},
           {alike("a second one too far", "silence: a NAK for each gap (C9-112)", kSilence),
            sends({3})},
           {alike("the missing one", "ACK", ack(2)), sends({1})},
           {alike("no ACK asked for", "no ACK needed", kSilence),
            sends({.psn_offset = 2, .odd = no_ack})},
           {alike("FECN, BECN and the reserved bits set", "ACK; reserved bits are ignored (9.2)",
                  ack(4)),
            sends({.psn_offset = 3, .odd = decorated})},
           {alike("13 B, pad 3", "ACK", ack(5)), sends({4, 13})},
           {alike("0 B", "ACK", ack(6)), sends({5, 0})},
           {alike("MigReq 0", "ACK; nothing migrates that is not armed (17.2.8)", ack(7)),
            sends({.psn_offset = 6, .odd = no_migration})}},
          goes_on("4 × 0,16 0,13 0,0 0,16")};
}

Scene strays() {
  Odd other_key, limited_key, version, nobody, bare;
  other_key.pkey = 0x1234;
  limited_key.pkey = 0x7fff;
  version.flags = 0x41;
  nobody.qpn = 0x777777;
  bare.ack_request = false;
  const auto dropped = [](const char* what, const char* standard) {
    return Row{what, standard, kSilence, kSilence};
  };
  const auto ghost = [bare](const Prober& to) {
    Octets bytes = to.packet(number(Operation::Acknowledge), kOwnPsn + 9, bare);
    append(bytes, std::uint32_t{0x1f000001});
    return bytes;
  };
  return {
      {{dropped("wrong ICRC", "silence (A17)"), sends({0}), true},
       {dropped("P_Key 0x1234", "silence (9.6.1)"), sends({.psn_offset = 0, .odd = other_key})},
       {{"P_Key 0x7fff, a limited member", "ACK: one of the two is a full member (10.9.3)", kAck,
         kAck},
        sends({.psn_offset = 0, .odd = limited_key})},
       {dropped("transport version 1", "silence (9.6.1)"),
        sends({.psn_offset = 0, .odd = version})},
       {dropped("no such queue pair", "silence (9.6.1)"), sends({.psn_offset = 0, .odd = nobody})},
       {dropped("an opcode of UC", "silence (9.6.1)"),
        sends(
            {.psn_offset = 0, .opcode = wire::opcode_of(wire::Service::Uc, Operation::SendOnly)})},
       {dropped("an ACK that nobody waits for", "silence"), ghost},
       {{"the limited member's again, in full", "ACK again, not executed (C9-105)", kAck, kAck},
        sends({0})}},
      goes_on("0,16")};
}

Scene reads() {
  const std::string both = "READ_RESP_FIRST msn 1 psn +0 256 B; READ_RESP_LAST msn 1 psn +1 44 B";
  const std::string next = "READ_RESP_ONLY msn 2 psn +2 4 B";
  return {{{{"READ, 300 B", "a response of two packets", both, both},
            asks({Operation::ReadRequest, 0, 300})},
           {{"the same again", "the same (C9-105)", both, both},
            asks({Operation::ReadRequest, 0, 300})},
           {{"its second packet only", "that (C9-105)", "READ_RESP_LAST msn 1 psn +1 44 B",
             "READ_RESP_ONLY msn 1 psn +1 44 B", "",
             "rxe goes on with the response that it began, ours answers the request as it is"},
            asks({Operation::ReadRequest, 1, 44, 0, 256})},
           {{"the next, 4 B", "a response of one packet", next, next},
            asks({Operation::ReadRequest, 2, 4})}},
          goes_on("none")};
}

Scene atomics() {
  const std::string first = "ATOMIC_ACK msn 1 psn +0 orig 4847464544434241";
  const std::string next = "ATOMIC_ACK msn 2 psn +1 orig 4847464544434242";
  return {{{{"FETCH_ADD 1", "what was there", first, first}, asks({Operation::FetchAdd, 0, 0})},
           {{"the same again", "the same answer, not executed (9.4.5)", first, first},
            asks({Operation::FetchAdd, 0, 0})},
           {{"the next FETCH_ADD 1", "one more", next, next}, asks({Operation::FetchAdd, 1, 0})}},
          goes_on("none")};
}

// Opcodes that not every device has.
std::vector<Scene> rare_opcodes() {
  const auto reserved = [](const Prober& to) {
    Octets bytes = to.packet(21, kPsn);
    bytes.resize(bytes.size() + 16);
    return bytes;
  };
  const std::string no_bytes = "READ_RESP_ONLY msn 1 psn +0";
  const Row end{"state and receives", kErr, "RTS; none", kAllFlushed};
  return {{{{{"opcode 21, which is reserved", "NAK 1 (9.9.3, class C)", kSilence, nak(1), "",
              "rxe drops what it has no row for"},
             reserved}},
           end},
          {{{{"ATOMIC WRITE (29)", "a response of no bytes (A19)", kSilence, no_bytes, no_bytes,
              "6.1 has no atomic WRITE"},
             asks({Operation::AtomicWrite, 0, 8, 8})}},
           goes_on("none")},
          {{{{"WRITE ONLY, 16 B", "ACK", kAck, kAck}, asks({Operation::WriteOnly, 0, 16, 16})},
            {{"FLUSH (28)", "NAK 1 where it is not offered (9.9.3)", kSilence, nak(1, 1), "",
              "6.1 was not asked; 6.12 offers FLUSH, but did not answer"},
             asks({Operation::Flush, 1, 16})}},
           end}};
}

std::vector<Scene> wrong_lengths() {
  const std::string later = "6.12 takes a receive before it looks";
  const auto end = [&](const std::string& rxe_61) {
    return Row{"state and receives", kErr, rxe_61, kAllFlushed, "ERR; 9,0 7 × 5,0", later};
  };
  return {{{{{"SEND ONLY, 300 B: more than the path MTU", "NAK 1 (9.9.3, length)", kAck, nak(1),
              nak(1), "6.1 does not look"},
             sends({0, 300})}},
           end("RTS; 0,300")},
          {{{{"SEND FIRST, 64 B: less than the path MTU", "NAK 1 (9.9.3, length)",
              "ACK msn 0 psn +0", nak(1), nak(1), "6.1 does not look"},
             sends({0, 64, number(Operation::SendFirst)})}},
           end("RTS; none")},
          {{{{"WRITE ONLY, 16 B, whose RETH says 64", "NAK 1 (9.9.3, length)", nak(1), nak(1)},
             asks({Operation::WriteOnly, 0, 64, 16})}},
           ended()}};
}

std::vector<Scene> refusals() {
  const std::string not_ready = "RNR NAK timer 14 msn 0 psn +0";
  return {{{{{"FETCH_ADD at 4 modulo 8", "NAK 1 (9.4.5)", nak(1), nak(1)},
             asks({Operation::FetchAdd, 0, 0, 0, 4})}},
           ended()},
          {{{{"SEND MIDDLE without a FIRST", "NAK 1 (9.7.4)", nak(1), nak(1)},
             sends({0, 256, number(Operation::SendMiddle)})}},
           ended()},
          {{{{"WRITE ONLY with another rkey", "NAK 2 (C9-83)", nak(2), nak(2)},
             asks({Operation::WriteOnly, 0, 16, 16, 0, 0xff00})},
            {{"then a good SEND", "silence: the queue pair is in ERR", kSilence, kSilence},
             sends({0})}},
           ended()},
          {{{{"WRITE ONLY past the end of the region", "NAK 2 (C9-83)", nak(2), nak(2)},
             asks({Operation::WriteOnly, 0, 16, 16, kRegionBytes - 8})}},
           ended()},
          {{{{"SEND without a receive", "RNR NAK (C9-118)", not_ready, not_ready}, sends({0})}},
           goes_on("none"),
           0}};
}

std::vector<Scene> scenes() {
  std::vector<Scene> all{sound_requests(), strays(), reads(), atomics()};
  for (const auto& group : {refusals(), wrong_lengths(), rare_opcodes()})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

std::function<void(Answering&, const wire::Headers&)> always(std::uint8_t syndrome) {
  return [syndrome](Answering& to, const wire::Headers& h) {
    to.acknowledge(h.bth.psn.value, syndrome, 0);
  };
}

std::vector<Answered> acknowledged() {
  const std::string three = "0:SEND_ONLY+0 0:SEND_ONLY+1 0:SEND_ONLY+2; 0 0 0; RTS";
  const std::string twice = "0:SEND_ONLY+0 67:SEND_ONLY+0; 0; RTS";
  const std::string patient =
      "0:SEND_ONLY+0 67:SEND_ONLY+0 201:SEND_ONLY+0 469:SEND_ONLY+0; 12; ERR";
  return {{{"an ACK", "completes", "0:SEND_ONLY+0; 0; RTS", "0:SEND_ONLY+0; 0; RTS"},
           {},
           [](Answering& to, const wire::Headers& h) { to.acknowledge(h.bth.psn.value); }},
          {{"one ACK for three SENDs", "completes all (C9-107)", three, three},
           {.count = 3},
           [](Answering& to, const wire::Headers& h) {
             if (h.bth.psn.value == kOwnPsn + 2) to.acknowledge(h.bth.psn.value, 0x1f, 3);
           }},
          {{"silence", "again after the timeout, retry_cnt times; then RETRY_EXC (C9-139, C9-141)",
            "0:SEND_ONLY+0 65:SEND_ONLY+0 133:SEND_ONLY+0 201:SEND_ONLY+0; 12; ERR", patient, "",
            "ours waits longer each time, up to four times the timeout, as 9.7.6.1.3 allows"},
           {},
           [](Answering&, const wire::Headers&) {}},
          {{"an ACK with a wrong ICRC, then a good one", "the first is not there", twice, twice},
           {},
           [](Answering& to, const wire::Headers& h) {
             to.acknowledge(h.bth.psn.value, 0x1f, 1, to.count == 0);
           }},
          {{"an ACK of what was never sent", "is dropped", "0:SEND_ONLY+0; 0; RTS", patient, "",
            "rxe takes it for an ACK of what it has sent"},
           {},
           [](Answering& to, const wire::Headers& h) { to.acknowledge(h.bth.psn.value + 5); }}};
}

std::vector<Answered> refused() {
  const std::string again =
      "0:SEND_FIRST+0 0:SEND_MIDDLE+1 0:SEND_LAST+2 0:SEND_MIDDLE+1 0:SEND_LAST+2; 0; RTS";
  return {
      {{"NAK 0 for the second packet of three", "again from there on (C9-109)", again, again},
       {.bytes = 700},
       [](Answering& to, const wire::Headers& h) {
         if (h.bth.psn.value != kOwnPsn + 2) return;
         if (to.count == 2)
           to.acknowledge(kOwnPsn + 1, 0x60, 0);
         else
           to.acknowledge(h.bth.psn.value);
       }},
      {{"NAK 1", "REM_INV_REQ_ERR (9.9.2)", "0:SEND_ONLY+0; 9; ERR", "0:SEND_ONLY+0; 9; ERR"},
       {},
       always(0x61)},
      {{"NAK 2", "REM_ACCESS_ERR (9.9.2)", "0:WRITE_ONLY+0; 10; ERR", "0:WRITE_ONLY+0; 10; ERR"},
       {.opcode = WorkOpcode::Write},
       always(0x62)},
      {{"NAK 3", "REM_OP_ERR (9.9.2)", "0:SEND_ONLY+0; 11; ERR", "0:SEND_ONLY+0; 11; ERR"},
       {},
       always(0x63)},
      {{"RNR NAK with timer 14 (1.28 ms), then an ACK", "again after that time (9.7.5.2.8)",
        "0:SEND_ONLY+0 11:SEND_ONLY+0; 0; RTS", "0:SEND_ONLY+0 1:SEND_ONLY+0; 0; RTS", "",
        "the time is the shortest that is allowed; rxe ran on a slow machine"},
       {},
       [](Answering& to, const wire::Headers& h) {
         to.acknowledge(h.bth.psn.value, to.count == 0 ? 0x20 | 14 : 0x1f, to.count == 0 ? 0 : 1);
       }},
      {{"RNR NAKs for ever", "rnr_retry times; then RNR_RETRY_EXC",
        "0:SEND_ONLY+0 8:SEND_ONLY+0 19:SEND_ONLY+0; 13; ERR",
        "0:SEND_ONLY+0 1:SEND_ONLY+0 2:SEND_ONLY+0; 13; ERR"},
       {},
       always(0x20 | 14)}};
}

std::vector<Answered> responded() {
  const std::string read = "0:READ_REQUEST+0 (300 B); 0; RTS";
  const std::string added = "0:FETCH_ADD+0; 0; RTS";
  const auto whole = [](Answering& to, const wire::Headers& h) {
    to.respond_whole(h.bth.psn.value, h.dma_length);
  };
  return {{{"a READ's response", "completes", read, read}, {WorkOpcode::Read, 300}, whole},
          {{"a READ's response without its second packet", "the rest is asked for (C9-110)",
            "0:READ_REQUEST+0 (700 B) 67:READ_REQUEST+1 (444 B); 0; RTS",
            "0:READ_REQUEST+0 (700 B) 0:READ_REQUEST+1 (444 B); 0; RTS", "",
            "rxe waits for its timer, ours asks at once"},
           {WorkOpcode::Read, 700},
           [whole](Answering& to, const wire::Headers& h) {
             if (to.count != 0) return whole(to, h);
             to.respond(Operation::ReadResponseFirst, h.bth.psn.value, kMtu);
             to.respond(Operation::ReadResponseLast, h.bth.psn.value + 2, 188);
           }},
          {{"an atomic's response", "completes", added, added},
           {WorkOpcode::FetchAdd, 8},
           [](Answering& to, const wire::Headers& h) {
             to.respond(Operation::AtomicAcknowledge, h.bth.psn.value, 8);
           }}};
}

std::vector<Answered> answered() {
  std::vector<Answered> all;
  for (const auto& group : {acknowledged(), refused(), responded()})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

}  // namespace
}  // namespace softhca::sim
