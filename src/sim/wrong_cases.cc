#include "sim/wrong_cases.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"
#include "trace/words.h"

namespace softhca::sim {
namespace {

using driver::Access;
using driver::AccessFlags;
using host::MoveAnswer;
using host::VtdReason;
using trace::hex;
using trace::ReasonId;
using transport::Status;

constexpr std::byte kFill{0x5a};

// The server's program writes to its buffer again.
void refill(Transfer& t) {
  const bool done = t.write(t.server, Pattern::of_byte(kFill));
  ASSERT(done);
}

// The pages that the kernel gave the server's program for its buffer.
Range<VirtSpace> buffer_pages(const Transfer& t) {
  const JourneySettings& s = t.settings();
  return {align_down(t.server.start, s.page_bytes), pages_of(s) * s.page_bytes};
}

// Another program at the server takes page after page until it has that frame, or `most` of them.
// True: it has it.
bool let_neighbour_take(Transfer& t, PhysAddr frame, std::uint64_t most) {
  Host& host = *t.server.host;
  const host::Pid other = t.neighbours.front().pid;
  const auto has_it = [&] { return host.kernel().frames().owner_of(frame).pid == other; };
  host.run(other);
  for (std::uint64_t i = 0; i < most && !has_it(); ++i)
    host.fill(host.allocate(kPage4K), kPage4K, kFill);
  host.run(t.server.pid);
  return has_it();
}

// The NIC's own table has a wrong bus address for the buffer's first page.
void misdirect_first_page(Transfer& t, BusAddr page) {
  const nic::Tables tables = t.server.host->tables();
  nic::KeyRecord& record = tables.keys[t.server.key.index()];
  if (record.layout == static_cast<std::uint32_t>(nic::KeyLayout::Pages))
    tables.translations[record.first_page] = page.value;
  else
    record.bus = page.value + offset_in(t.server.start, kPage4K);
}

// The client's own buffer stays unknown to its NIC.
void play_not_registered(Transfer& t, Account& account) {
  t.connect_ends();
  for (TransferEnd* const end : {&t.client, &t.server}) {
    t.allocate(*end);
    ASSERT(t.touch(*end));
  }
  t.register_memory(t.server, t.needed_rights(t.server));
  t.request = {.remote_address = t.server.start.value,
               .rkey = t.server.key,
               .lkey = {t.client.key.value + 0x700},
               .bytes = t.settings().bytes,
               .operation = t.settings().operation};
  t.post_and_finish();
  account.told =
      "The program skipped the registration and put a number of its own where the key belongs. Its"
      " NIC finds no entry under it, and nothing leaves the machine.";
  account.facts = {{"key used", hex(t.request.lkey.value)}};
}

void play_past_the_end(Transfer& t, Account& account) {
  t.prepare();
  t.request.remote_address += 1;
  t.post_and_finish();
  const VirtAddr last = advance(t.server.start, t.settings().bytes);
  account.told = fmt::format(
      "The request begins one byte too far, so its last byte, at {}, is one behind the region."
      " {}",
      hex(last.value),
      offset_in(last, kPage4K) == 0
          ? "The next page begins there, which the IOMMU would not allow either."
          : "The page goes on there, and the IOMMU would let the device write it: only the NIC,"
            " which knows regions to the byte, can refuse.");
  account.facts = {
      {"region", fmt::format("{} bytes from {}", trace::grouped(t.settings().bytes),
                             hex(t.server.start.value))},
      {"asked for", fmt::format("{} bytes from {}", trace::grouped(t.request.bytes),
                                hex(t.request.remote_address))},
      {"that page", offset_in(last, kPage4K) == 0 ? "ends with the region"
                                                  : "is mapped for the device as a whole"}};
}

void play_missing_right(Transfer& t, Account& account) {
  t.prepare(t.needed_rights(t.client), AccessFlags(Access::LocalWrite) | Access::RemoteRead);
  t.post_and_finish();
  account.told = "The server registered its buffer without the right that lets others write it.";
  account.facts = {{"rights given", "local write, remote read"}};
}

void play_wrong_key(Transfer& t, Account& account) {
  t.prepare();
  t.request.rkey.value ^= 1;
  t.post_and_finish();
  account.told =
      "One bit of the key is wrong. The entry that it names exists, but the low byte, which tells"
      " one use of the entry from the next, does not fit: as with a key of a region that is gone.";
  account.facts = {{"the right key", hex(t.server.key.value)},
                   {"the key sent", hex(t.request.rkey.value)}};
}

void play_other_domain(Transfer& t, Account& account) {
  t.prepare();
  const auto other = t.server.host->engine().alloc_pd();
  ASSERT(other);
  t.register_memory(t.server, t.needed_rights(t.server), *other);
  t.request.rkey = t.server.key;
  t.post_and_finish();
  account.told =
      "The region is registered, with the right to write, but in another protection domain than"
      " the queue pair over which the request comes.";
  account.facts = {
      {"domains", fmt::format("region {}, queue pair {}", *other, t.server.connection->pd)}};
}

void play_deregistered(Transfer& t, Account& account) {
  t.prepare();
  std::uint64_t arrived = 0;
  t.after_packets(2, [&t, &arrived](std::uint64_t packets) {
    arrived = packets;
    const auto done = t.server.host->engine().deregister_memory(t.server.key, t.world().now());
    ASSERT(done);
  });
  t.post_and_finish();
  account.told =
      "While packets are still on their way the server's program deregisters the buffer. Those"
      " that have arrived are in memory; the next one finds its key no longer valid.";
  account.facts = {{"had arrived", trace::counted(arrived, "packet")}};
  account.server_kernel = "unpinned the frames when the region was deregistered";
}

void unaware_of_pins(HostSettings& host) { host.kernel_knows_pins = false; }

void play_migrated(Transfer& t, Account& account) {
  t.prepare();
  const Heard::Kind& moved = t.server.moved.of(t.server.number(), trace::EventKind::FrameMoved);
  ASSERT(t.server.attempts.migrate == MoveAnswer::Done && !moved.first.empty());
  const PhysAddr old{moved.first[0].fields[1]};
  // The frame does not stay free for long: another program takes what there is.
  Host& host = *t.server.host;
  const bool is_taken = let_neighbour_take(t, old, 4096);
  const std::string owner = host.kernel().owner_text(old);
  t.post_and_finish();
  const std::byte now = *host.ram().cpu_address(advance(old, offset_in(t.server.start, kPage4K)));
  account.told = fmt::format(
      "The buffer was mapped for the device but not pinned, and the kernel moved its first page."
      " The device still has the old frame: the bytes of that page went there, no one refused, and"
      " the program does not see them. {}",
      !is_taken      ? "Whoever gets that frame next loses it to the device."
      : now == kFill ? "The frame is still as its new owner left it."
                     : "Its new owner's bytes are overwritten.");
  account.facts = {{"old frame", fmt::format("{}, now of {}", hex(old.value), owner)},
                   {"new frame", hex(moved.first[0].fields[2])}};
  account.server_kernel = fmt::format("moved the page from {} to {}, and thinks all is well",
                                      hex(old.value), hex(moved.first[0].fields[2]));
}

void play_reused(Transfer& t, Account& account) {
  t.prepare();
  Host& host = *t.server.host;
  const Range<VirtSpace> pages = buffer_pages(t);
  const PhysAddr old = host.kernel().walk(t.server.pid, pages.start).phys;
  host.unmap(pages.start, pages.length);
  const auto again =
      host.kernel().map_at(t.server.pid, pages.start, pages.length, t.settings().page_bytes,
                           host::PageRight::Read | host::PageRight::Write);
  ASSERT(again);
  refill(t);
  const std::uint64_t orphans = host.kernel().orphans();
  const PhysAddr now = host.kernel().walk(t.server.pid, pages.start).phys;
  t.post_and_finish();
  account.told =
      "The server's program gave the memory back and got new memory at the same address, but never"
      " deregistered. The old frames are pinned, so nobody else gets them: orphans. The device"
      " writes there, no one refuses, and the program does not see it.";
  account.facts = {{"the device writes to", hex(old.value) + ", " + host.kernel().owner_text(old)},
                   {"the program looks at", hex(now.value)}};
  account.server_kernel =
      fmt::format("keeps {} that no program has any more", trace::counted(orphans, "frame"));
}

void forks_as_before_5_12(HostSettings& host) { host.copy_pinned_at_fork = false; }

void play_fork(Transfer& t, Account& account) {
  t.prepare();
  Host& host = *t.server.host;
  const PhysAddr old = host.kernel().walk(t.server.pid, t.server.start).phys;
  const auto child = host.kernel().fork(t.server.pid, t.world().now());
  ASSERT(child);
  refill(t);
  const PhysAddr now = host.kernel().walk(t.server.pid, t.server.start).phys;
  t.post_and_finish();
  account.told =
      "The server's program forked, and then wrote to its buffer. Until a write, parent and child"
      " share each frame; the write gave the parent a copy, and the child kept the frame that the"
      " device has. The device writes there, no one refuses, and the parent does not see it."
      " (Linux has copied pinned pages for the child since 5.12; before, ibv_fork_init was "
      "needed.)";
  account.facts = {{"the device writes to", hex(old.value) + ", " + host.kernel().owner_text(old)},
                   {"the parent looks at", hex(now.value) + ", " + host.kernel().owner_text(now)}};
  account.server_kernel = "copied each page when the parent wrote to it, as after any fork";
}

void play_bus_master_off(Transfer& t, Account& account) {
  t.prepare();
  t.client.host->config().set_bus_master(false);
  t.post_and_finish();
  account.told =
      "The bit that lets the client's NIC speak on the bus (bus master, in its command register) is"
      " clear. The doorbell reaches it, since that is spoken to it; but it may not fetch the"
      " request, nor write a completion, nor send an interrupt.";
  account.facts = {{"command register", hex(t.client.host->config().command())}};
}

void play_not_mapped(Transfer& t, Account& account) {
  t.prepare();
  const BusAddr page{t.server.bus_pages.front()};
  t.server.host->iommu().unmap(page, kPage4K, t.world().now());
  t.server.host->port().invalidate({page, kPage4K});
  t.post_and_finish();
  account.told =
      "The NIC's table is right, the key fits; but the IOMMU has no entry for the first page. What"
      " the NIC allows, the IOMMU blocks: neither relies on the other.";
  account.facts = {{"bus address", hex(page.value)},
                   {"reason 0x05", "no right to write; also said where there is no entry at all"}};
  account.server_kernel = "finds a fault record of the IOMMU and prints it";
}

void one_page_may_be_locked(HostSettings& host) { host.memlock_limit = kPage4K; }

void play_memlock(Transfer& t, Account& account) {
  t.prepare();
  account.told =
      "Each process may pin only so much memory (ulimit -l), and this buffer is more. The"
      " registration fails (ENOMEM), and nothing else happens.";
  account.client_kernel = "counts what is pinned, and refuses what would be over the limit";
  account.facts = {
      {"limit", trace::bytes_text(kPage4K)},
      {"needed",
       trace::counted(pages_touched(Range<VirtSpace>{t.client.start, t.settings().bytes}, kPage4K),
                      "page")}};
}

// The server's region is gone from the IOMMU and from the kernel's pins, but its NIC was not told:
// it still believes in the key. That is a broken NIC, and what the IOMMU is there for.
void deregister_behind_the_nic(Transfer& t) {
  nic::KeyRecord& record = t.server.host->tables().keys[t.server.key.index()];
  const nic::KeyRecord kept = record;
  const auto done = t.server.host->engine().deregister_memory(t.server.key, t.world().now());
  ASSERT(done);
  record = kept;
}

void defers_invalidation(HostSettings& host) { host.iommu = host::IommuMode::TranslateDeferred; }

void play_stale_iotlb(Transfer& t, Account& account) {
  t.prepare();
  Host& host = *t.server.host;
  const PhysAddr frame = align_down(host.kernel().walk(t.server.pid, t.server.start).phys, kPage4K);
  const std::uint64_t in_page = offset_in(t.server.start, kPage4K);
  t.post_and_finish();  // as usual; from now on the IOTLB knows the way
  ASSERT(t.completion());
  deregister_behind_the_nic(t);
  const Range<VirtSpace> pages = buffer_pages(t);
  host.unmap(pages.start, pages.length);
  let_neighbour_take(t, frame, 1u << 16);
  const std::string owner = host.kernel().owner_text(frame);
  const Time unmapped = t.world().now();
  t.post_and_finish();
  const std::byte now = *host.ram().cpu_address(advance(frame, in_page));
  const std::uint64_t stale =
      t.heard().count(t.server.number(), trace::EventKind::StaleTranslation);
  account.told = fmt::format(
      "The buffer was deregistered and its memory given back; the kernel took the mapping out of"
      " the IOMMU's table, but put off telling the IOTLB (deferred mode: up to 10 ms, or 256"
      " unmappings). A faulty NIC, which kept the key and the old bus address, was let through {}."
      " {}",
      trace::counted(stale, "time"),
      now == kFill ? "Nobody was hit." : "It wrote into another program's memory.");
  account.facts = {{"frame", fmt::format("{}, now of {}", hex(frame.value), owner)},
                   {"open since", trace::time_text(t.world().now() - unmapped)}};
  account.server_kernel = fmt::format("gave the frame to {}; the flush is still to come", owner);
}

void without_iommu(HostSettings& host) { host.iommu = host::IommuMode::Off; }

void play_wild_address(Transfer& t, Account& account) {
  t.prepare();
  Host& host = *t.server.host;
  // The program whose memory is worth most.
  const auto victim = std::ranges::find_if(t.neighbours, [&](const Transfer::Neighbour& n) {
    return host.kernel().name_of(n.pid) == "password store";
  });
  ASSERT(victim != t.neighbours.end());
  const PhysAddr frame = host.kernel().walk(victim->pid, victim->start).phys;
  misdirect_first_page(t, {frame.value});
  t.post_and_finish();
  const std::byte now = *host.ram().cpu_address(advance(frame, offset_in(t.server.start, kPage4K)));
  account.told = fmt::format(
      "One address in the NIC's own table is wrong, and no IOMMU stands before memory. The key"
      " fits, the bounds fit, and the NIC writes to a frame that belongs to somebody else. {}",
      now == victim->filled_with ? "Nobody was hit." : "No one notices.");
  account.facts = {
      {"frame", fmt::format("{} of {}", hex(frame.value), host.kernel().owner_text(frame))},
      {"held",
       fmt::format("{:#04x} before, {:#04x} now", std::to_integer<unsigned>(victim->filled_with),
                   std::to_integer<unsigned>(now))}};
}

// To a bus address that leads nowhere: first a write, then a read.
void play_nowhere(Transfer& t, Account& account) {
  const AccessFlags all =
      AccessFlags(Access::LocalWrite) | Access::RemoteWrite | Access::RemoteRead;
  t.prepare(all, all);
  constexpr BusAddr kNowhere{0x6'0000'0000};
  misdirect_first_page(t, kNowhere);
  t.post_and_finish();
  const auto faults_of = [&] { return t.server.host->iommu().faults().records(); };
  ASSERT(!faults_of().empty());
  const std::string of_write = host::fault_text(faults_of().back());
  t.connect_ends();
  t.request.operation = Operation::Read;
  t.post_and_finish();
  account.told =
      "An address in the server's NIC leads nowhere. First the client writes there: on a real bus"
      " nobody answers a write, so it vanishes, and only the IOMMU's fault record tells of it. Then"
      " the client reads from there: a read must be answered, and is, with an error (Unsupported"
      " Request). Here the NIC is told of both.";
  account.facts = {{"the write", of_write}, {"the read", host::fault_text(faults_of().back())}};
  account.server_kernel = "finds two fault records of the IOMMU and prints them";
}

constexpr ReasonId kNoReason = ReasonId::None;

const WrongCase kCases[] = {
    {{"not-registered", "The client uses memory that it never registered."},
     Reach::ClientNic,
     nullptr,
     play_not_registered,
     {Status::LocalProtection, ReasonId::KeyUnknown, kNoReason, VtdReason::None},
     "Register the buffer (ibv_reg_mr), and use the key that this gives."},
    {{"past-the-end", "One byte past the region."},
     Reach::ServerNic,
     nullptr,
     play_past_the_end,
     {Status::RemoteAccess, ReasonId::RemoteAccess, ReasonId::OutOfBounds, VtdReason::None},
     "Check the offset and the length; or register the whole buffer."},
    {{"missing-right", "The region was registered without the right that the request needs."},
     Reach::ServerNic,
     nullptr,
     play_missing_right,
     {Status::RemoteAccess, ReasonId::RemoteAccess, ReasonId::RightMissing, VtdReason::None},
     "Register with the right that the peer needs, and no more."},
    {{"wrong-key", "The request carries a key that the server did not give out."},
     Reach::ServerNic,
     nullptr,
     play_wrong_key,
     {Status::RemoteAccess, ReasonId::RemoteAccess, ReasonId::KeyStale, VtdReason::None},
     "Send the peer the key as registration returned it, unchanged, and use it unchanged."},
    {{"other-domain", "The region belongs to another protection domain."},
     Reach::ServerNic,
     nullptr,
     play_other_domain,
     {Status::RemoteAccess, ReasonId::RemoteAccess, ReasonId::KeyOtherDomain, VtdReason::None},
     "Use one protection domain for the region and for the queue pair."},
    {{"deregistered", "The server deregisters while packets are on their way."},
     Reach::ServerNic,
     nullptr,
     play_deregistered,
     {Status::RemoteAccess, ReasonId::RemoteAccess, ReasonId::KeyStale, VtdReason::None},
     "Deregister only when the peer has said that it is done.",
     9000},
    {{"migrated", "The buffer was mapped but not pinned, and the kernel moved a page."},
     Reach::ServerNic,
     unaware_of_pins,
     play_migrated,
     {Status::Success, kNoReason, kNoReason, VtdReason::None},
     "Pin what a device may reach; a driver's bug, since registration does that."},
    {{"reused", "Memory was freed and mapped anew, but not deregistered (orphan frames)."},
     Reach::ServerNic,
     nullptr,
     play_reused,
     {Status::Success, kNoReason, kNoReason, VtdReason::None},
     "Deregister before memory is freed."},
    {{"fork", "The server's program forks, and writes to its buffer (copy on write)."},
     Reach::ServerNic,
     forks_as_before_5_12,
     play_fork,
     {Status::Success, kNoReason, kNoReason, VtdReason::None},
     "Linux before 5.12: call ibv_fork_init before registering. Later kernels copy pinned pages "
     "for the child instead."},
    {{"bus-master-off", "The NIC may not speak on the bus."},
     Reach::ClientNic,
     nullptr,
     play_bus_master_off,
     {std::nullopt, ReasonId::BusMasterOff, kNoReason, VtdReason::None},
     "The driver sets the bit when it starts the device; see lspci -vv, Control: BusMaster+."},
    {{"not-mapped", "The IOMMU has no mapping for a page that the NIC may use."},
     Reach::ServerNic,
     nullptr,
     play_not_mapped,
     {Status::RemoteOperation, ReasonId::RemoteOperational, ReasonId::IommuNotMapped,
      VtdReason::NoWrite},
     "Nothing that a program can do: a bug of the driver or the NIC. The record names the device "
     "and the page."},
    {{"stale-iotlb", "A NIC goes on with an address that was unmapped (deferred invalidation)."},
     Reach::ServerNic,
     defers_invalidation,
     play_stale_iotlb,
     {Status::Success, kNoReason, kNoReason, VtdReason::None},
     "Strict invalidation (iommu.strict=1) closes the window; a sound NIC does not use an address "
     "after its region is gone.",
     64,
     std::uint64_t{512} << 10},
    {{"wild-address", "The NIC uses a wrong address, and there is no IOMMU."},
     Reach::ServerNic,
     without_iommu,
     play_wild_address,
     {Status::Success, kNoReason, kNoReason, VtdReason::None},
     "Let an IOMMU stand between devices and memory."},
    {{"memlock", "The memlock limit is smaller than the buffer."},
     Reach::ClientRegistration,
     one_page_may_be_locked,
     play_memlock,
     {std::nullopt, ReasonId::MemlockExceeded, kNoReason, VtdReason::None},
     "Raise the limit (ulimit -l, LimitMEMLOCK=, container settings).",
     4097},
    {{"nowhere", "A posted write to nowhere, and then a read from there."},
     Reach::ServerNic,
     nullptr,
     play_nowhere,
     {Status::RemoteOperation, ReasonId::RemoteOperational, ReasonId::IommuNotMapped,
      VtdReason::NoWrite},
     "A bug of the driver or the NIC; the records name the device and the page.",
     64,
     64},
};

}  // namespace

std::span<const WrongCase> wrong_cases() { return kCases; }

}  // namespace softhca::sim
