#include "driver/live/neighbours.h"

#include <algorithm>
#include <array>
#include <utility>

#include "driver/live/peer_frames.h"
#include "driver/live/peer_receives.h"
#include "driver/peer_tables.h"
#include "os/host_name.h"
#include "os/processes.h"
#include "os/shared_memory.h"

namespace softhca::driver {

using nic::KeyRight;
using trace::ReasonId;
using transport::WorkOpcode;

namespace {

// A process number is looked at again before it may have become another's: for that all numbers
// have to be used up in between, which takes a thousand times as long.
constexpr Duration kLookEvery = milliseconds(1);

using Pieces = std::array<os::MemoryPiece, os::kPiecesAtOnce>;
static_assert(os::kPiecesAtOnce >= pcie::SpanList::kCapacity);

os::MemoryPiece piece_of(std::uint64_t& word) {
  return {reinterpret_cast<std::uintptr_t>(&word), sizeof word};
}

KeyRight right_for(WorkOpcode kind) {
  if (kind == WorkOpcode::Write) return KeyRight::RemoteWrite;
  return kind == WorkOpcode::Read ? KeyRight::RemoteRead : KeyRight::RemoteAtomic;
}

// Whether the kernel lets us into its memory, and whether that is the memory that it says.
bool is_reachable(std::uint32_t pid, const TableHeader& header) {
  TableHeader seen;
  const os::MemoryPiece there{header.own_address, sizeof seen};
  const os::MemoryPiece here{reinterpret_cast<std::uintptr_t>(&seen), sizeof seen};
  return os::read_from(pid, {&there, 1}, {&here, 1}) &&
         std::equal(std::begin(seen.magic), std::end(seen.magic), header.magic) &&
         seen.instance == header.instance;
}

}  // namespace

// The tables of a process's device, mapped to be read.
struct Neighbours::Mapped {
  os::SharedMemory memory;
  PeerTables tables;
  int file{};  // as the process numbers it
  std::uint64_t inode{};
};

std::optional<Neighbours::Mapped> Neighbours::map(std::uint32_t pid, std::uint32_t first_qpn) {
  const auto whose = static_cast<os::Pid>(pid);
  const std::string prefix = std::string("/memfd:") + kTableName;
  for (const os::OpenFile& file : os::open_files(whose)) {
    if (!file.target.starts_with(prefix)) continue;
    auto fd = os::open_file_of(whose, file.fd);
    if (!fd) continue;
    const auto identity = os::identity_of(fd->get());
    auto memory = os::SharedMemory::attach(std::move(*fd));
    if (!memory || !identity || !memory->is_sealed()) continue;
    const auto tables = PeerTables::over(memory->read_only_bytes());
    if (!tables || tables->header().first_qpn != first_qpn || tables->header().pid != whose)
      continue;
    memory->close_file();
    return Mapped{std::move(*memory), *tables, file.fd, identity->inode};
  }
  return std::nullopt;
}

// One process with a device on our interface.
class Neighbours::Process final : public nic::Neighbour {
 public:
  Process(const Settings& own, std::uint32_t pid, Mapped mapped, os::PeerTable table,
          local::Accessor accessor, const os::Clock& clock)
      : own_(own),
        pid_(pid),
        mapped_(std::move(mapped)),
        frames_(FramesOfPeer::open(pid, mapped_.tables.header())),
        table_(std::move(table)),
        accessor_(std::move(accessor)),
        clock_(clock),
        seen_at_(clock.now()),
        is_reachable_(is_reachable(pid, mapped_.tables.header())) {}

  // Whether the kernel lets us into its memory. Its rings are open to us anyway.
  bool is_let_in() const { return is_reachable_; }
  // Its ring for us; nothing if it has none.
  std::optional<local::RingSender> open_ring();
  bool has_rings() const { return mapped_.tables.header().rings_file != 0; }

  std::size_t execute(const nic::Connection& connection, wire::Psn next, WorkOpcode kind,
                      std::span<const nic::DirectRequest> requests,
                      std::span<const pcie::Span> local, Time now) override;

  bool is_self() const override { return pid_ == os::own_pid(); }
  void prefetch(wire::Qpn peer) const override { mapped_.tables.prefetch(peer); }
  std::optional<nic::NextReceive> next_receive(const nic::Connection& connection,
                                               wire::Psn next) override;
  nic::Delivered deliver(const nic::Connection& connection, wire::Psn next,
                         const nic::Delivery& what, std::span<const pcie::Span> local,
                         nic::PostedReceives& known, const std::function<bool()>& tell,
                         Time now) override;

  bool is_there(Time now);
  void abandon() {
    if (frames_) frames_->abandon();
  }

 private:
  std::size_t execute_inside(const nic::Connection& connection, wire::Psn next, WorkOpcode kind,
                             std::span<const nic::DirectRequest> requests,
                             std::span<const pcie::Span> local);
  bool place(std::span<const pcie::Span> local, bool is_inline, std::span<const pcie::Span> remote,
             std::size_t requests = 1);
  bool change(const nic::DirectRequest& request, bool is_swap, const os::MemoryPiece& word,
              std::span<const os::MemoryPiece> local);
  bool execute_in_frames(WorkOpcode kind, const nic::DirectRequest& request,
                         const FramePieces& remote, std::span<const pcie::Span> local);
  bool has_owner() const;

  const Settings& own_;
  std::uint32_t pid_;
  Mapped mapped_;
  std::optional<FramesOfPeer> frames_;
  os::PeerTable table_;
  local::Accessor accessor_;
  os::PeerTable rings_;  // not open: nothing was sent there yet
  const os::Clock& clock_;
  Time seen_at_;
  bool is_reachable_;
  bool gone_ = false;
};

std::optional<local::RingSender> Neighbours::Process::open_ring() {
  if (!has_rings()) return std::nullopt;
  if (rings_.bytes().empty()) {
    auto rings = os::PeerTable::open(pid_, mapped_.tables.header().rings_file - 1, kRingsName,
                                     local::kRingTableBytes);
    if (!rings) return std::nullopt;
    rings_ = std::move(*rings);
    rings_.close_file();
  }
  return local::RingSender::open(rings_.bytes(), accessor_.number());
}

// Its tables lie where they lay: the process lives, has become no other program and has not closed
// its device. Where we may not look, or they do not, its open files tell; that takes 30 times as
// long.
bool Neighbours::Process::has_owner() const {
  return (is_reachable_ && is_reachable(pid_, mapped_.tables.header())) ||
         os::has_file(pid_, pid_, mapped_.file, mapped_.inode);
}

bool Neighbours::Process::is_there(Time now) {
  if (gone_ || now < seen_at_ + kLookEvery) return !gone_;
  gone_ = !has_owner();
  seen_at_ = clock_.now();
  return !gone_;
}

std::size_t Neighbours::Process::execute(const nic::Connection& connection, wire::Psn next,
                                         WorkOpcode kind,
                                         std::span<const nic::DirectRequest> requests,
                                         std::span<const pcie::Span> local, Time now) {
  // A call may be about many long requests.
  const bool is_long = requests.front().bytes > kPage4K;
  if (!is_there(is_long ? clock_.now() : now)) return 0;
  accessor_.enter();
  const std::size_t executed = execute_inside(connection, next, kind, requests, local);
  accessor_.leave();
  return executed;
}

// Inside: of a queue pair that is reset meanwhile one would read a number of each life.
std::optional<nic::NextReceive> Neighbours::Process::next_receive(const nic::Connection& connection,
                                                                  wire::Psn next) {
  accessor_.enter();
  const auto found = mapped_.tables.next_receive(connection, next);
  accessor_.leave();
  return found;
}

// The peer is told while we are inside: by the time that it may take its receives back, it has the
// notice of each that is filled.
nic::Delivered Neighbours::Process::deliver(const nic::Connection& connection, wire::Psn next,
                                            const nic::Delivery& what,
                                            std::span<const pcie::Span> local,
                                            nic::PostedReceives& known,
                                            const std::function<bool()>& tell, Time now) {
  std::uint64_t bytes = 0;
  for (const pcie::Span& span : local) bytes += span.bytes;
  if (!is_there(bytes > kPage4K ? clock_.now() : now)) return nic::Delivered::No;
  accessor_.enter();
  nic::Delivered result = nic::Delivered::No;
  if (const auto receives = mapped_.tables.receives_of(connection, next)) {
    pcie::SpanList remote;
    result = locate_message(mapped_.tables, pid_, *receives, connection.peer, what, bytes, known,
                            remote);
    if (result == nic::Delivered::Yes &&
        ((bytes != 0 && !place(local, what.is_inline, remote.all())) || (tell && !tell())))
      result = nic::Delivered::No;
  }
  accessor_.leave();
  return result;
}

// Bytes of WRITEs or of a message. Of several there may be more in `local` than have a place.
bool Neighbours::Process::place(std::span<const pcie::Span> local, bool is_inline,
                                std::span<const pcie::Span> remote, std::size_t requests) {
  FramePieces frames;
  if (frames_ && frames_->find(remote, frames)) {
    if (!write_frames(local, is_inline || own_.is_plain(local), frames)) return false;
    own_.tracer->count(trace::Counter::DirectInFrames, requests);
    return true;
  }
  Pieces here;
  Pieces there;
  return static_cast<bool>(os::write_to(pid_, pieces_of(local, here), pieces_of(remote, there)));
}

std::size_t Neighbours::Process::execute_inside(const nic::Connection& connection, wire::Psn next,
                                                WorkOpcode kind,
                                                std::span<const nic::DirectRequest> requests,
                                                std::span<const pcie::Span> local) {
  const auto pd = mapped_.tables.domain_of(connection, next, kind);
  if (!pd) return 0;
  pcie::SpanList remote;
  std::size_t count = 0;
  for (const nic::DirectRequest& request : requests) {
    const nic::KeyAccess access{.key = request.rkey,
                                .pd = *pd,
                                .right = right_for(kind),
                                .address = request.address,
                                .bytes = request.bytes};
    if (!mapped_.tables.locate(access, connection.peer, remote)) break;
    ++count;
  }
  if (count == 0) return 0;
  if (kind == WorkOpcode::Write) {
    const bool are_inline =
        std::ranges::all_of(requests.first(count), &nic::DirectRequest::is_inline);
    return place(local, are_inline, remote.all(), count) ? count : 0;
  }
  FramePieces frames;
  if (frames_ && frames_->find(remote.all(), frames)) {
    const bool done = execute_in_frames(kind, requests.front(), frames, local);
    if (done) own_.tracer->count(trace::Counter::DirectInFrames);
    return done ? 1 : 0;
  }
  Pieces here_room;
  Pieces there_room;
  const auto here = pieces_of(local, here_room);
  const auto there = pieces_of(remote.all(), there_room);
  bool moved = false;
  if (kind == WorkOpcode::Read)
    moved = static_cast<bool>(os::read_from(pid_, there, here));
  else
    moved = there.size() == 1 && requests.front().address % transport::kAtomicBytes == 0 &&
            change(requests.front(), kind == WorkOpcode::CompareSwap, there.front(), here);
  return moved ? 1 : 0;
}

// Reads the word twice at once, for us and for where the program wants it.
bool Neighbours::Process::change(const nic::DirectRequest& request, bool is_swap,
                                 const os::MemoryPiece& word,
                                 std::span<const os::MemoryPiece> local) {
  if (!accessor_.lock([this] { return has_owner(); })) return false;
  std::uint64_t original = 0;
  Pieces into{piece_of(original)};
  std::ranges::copy(local, into.begin() + 1);
  const os::MemoryPiece twice[] = {word, word};
  bool done =
      static_cast<bool>(os::read_from(pid_, twice, std::span(into).first(local.size() + 1)));
  if (done && (!is_swap || original == request.compare)) {
    std::uint64_t changed = is_swap ? request.swap_or_add : original + request.swap_or_add;
    const os::MemoryPiece from = piece_of(changed);
    done = static_cast<bool>(os::write_to(pid_, {&from, 1}, {&word, 1}));
  }
  accessor_.unlock();
  return done;
}

// A READ or an atomic.
bool Neighbours::Process::execute_in_frames(WorkOpcode kind, const nic::DirectRequest& request,
                                            const FramePieces& remote,
                                            std::span<const pcie::Span> local) {
  const bool is_plain = own_.is_plain(local);
  if (kind == WorkOpcode::Read) return read_frames(local, is_plain, remote);
  const auto words = remote.all();
  const auto place = reinterpret_cast<std::uintptr_t>(words.front().data());
  if (words.size() != 1 || (place | request.address) % transport::kAtomicBytes != 0) return false;
  if (!accessor_.lock([this] { return has_owner(); })) return false;
  const bool done =
      change_frame(request, kind == WorkOpcode::CompareSwap, words.front().data(), local, is_plain);
  accessor_.unlock();
  return done;
}

Neighbours::Neighbours(Settings settings, const os::Clock& clock)
    : settings_(std::move(settings)), clock_(clock) {
  if (!settings_.lets_in) return;
  auto table = os::PeerTable::create(kAccessorsName, sizeof(local::AccessorRecord));
  if (!table) return;
  table_ = std::move(*table);
  accessors_.emplace(table_.bytes());
  if (!settings_.has_rings) return;
  auto rings = os::PeerTable::create(kRingsName, local::kRingTableBytes);
  if (!rings) return;
  rings_memory_ = std::move(*rings);
  rings_.emplace(rings_memory_.bytes());
}

void Neighbours::abandon() {
  accessors_.reset();
  table_ = {};
  rings_.reset();
  rings_memory_ = {};
  for (auto& [block, process] : known_)
    if (const auto known = process.lock()) known->abandon();
}

nic::SameHost::Found Neighbours::find(const nic::Connection& connection) {
  if (!settings_.is_own_address(connection.peer_address)) return {};
  if (!settings_.reaches_out) return {.neighbour = nullptr, .why_not = ReasonId::DirectOff};
  Reached found = reach(local::block_of(connection.peer.value));
  if (found.process && !found.process->is_let_in())
    return {.neighbour = nullptr, .why_not = ReasonId::DirectRefused};
  return {.neighbour = std::move(found.process), .why_not = found.why_not};
}

link::RingLink::Found Neighbours::ring_to(std::uint32_t block) {
  const Reached found = reach(block);
  if (!found.process) {
    const bool is_off = found.why_not == ReasonId::DirectPeerOff;
    return {.peer = {}, .why_not = is_off ? ReasonId::MessagesPeerOff : found.why_not};
  }
  if (!found.process->has_rings()) return {.peer = {}, .why_not = ReasonId::MessagesPeerOff};
  const auto sender = found.process->open_ring();
  if (!sender) return {.peer = {}, .why_not = ReasonId::MessagesNoRoom};
  return {
      .peer = link::RingLink::Peer{.sender = *sender,
                                   .is_there = [process = found.process](
                                                   Time now) { return process->is_there(now); }},
      .why_not = {}};
}

// A process is open as long as somebody uses it.
Neighbours::Reached Neighbours::reach(std::uint32_t block) {
  if (auto process = known_[block].lock(); process && process->is_there(clock_.now()))
    return {.process = std::move(process), .why_not = {}};
  return open(block);
}

Neighbours::Reached Neighbours::open(std::uint32_t block) {
  const auto not_for = [](ReasonId why) { return Reached{.process = nullptr, .why_not = why}; };
  os::NameHolder holder{.pid = settings_.self.pid, .uid = os::own_uid()};
  if (block != settings_.block) {
    const auto found = os::holder_of(local::mailbox_name(settings_.domain, block));
    if (!found) return {};
    holder = *found;
  }
  if (holder.uid != os::own_uid()) return not_for(ReasonId::DirectOtherUser);
  if (holder.pid == 0 || !os::shares_pids(static_cast<os::Pid>(holder.pid)))
    return not_for(ReasonId::DirectPeerHidden);
  if (os::open_files(static_cast<os::Pid>(holder.pid)).empty())
    return not_for(ReasonId::DirectPeerHidden);
  auto mapped = map(holder.pid, block << local::kQpnBlockShift);
  if (!mapped || mapped->tables.header().accessors_file == 0)
    return not_for(ReasonId::DirectPeerOff);
  const TableHeader& header = mapped->tables.header();
  auto table = os::PeerTable::open(holder.pid, header.accessors_file - 1, kAccessorsName,
                                   sizeof(local::AccessorRecord));
  if (!table) return not_for(ReasonId::DirectPeerHidden);
  table->close_file();
  auto accessor = local::Accessor::claim(table->bytes(), settings_.self);
  if (!accessor) return not_for(ReasonId::DirectPeerOff);
  auto process = std::make_shared<Process>(settings_, holder.pid, std::move(*mapped),
                                           std::move(*table), std::move(*accessor), clock_);
  known_[block] = process;
  return {.process = std::move(process), .why_not = {}};
}

void Neighbours::wait_until_left() {
  if (accessors_) accessors_->wait_until_left();
}

void Neighbours::lock_atomics() {
  if (accessors_) accessors_->lock();
}

void Neighbours::unlock_atomics() {
  if (accessors_) accessors_->unlock();
}

}  // namespace softhca::driver
