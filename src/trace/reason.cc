#include "trace/reason.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace softhca::trace {
namespace {

using enum ReasonId;
using enum Checker;

constexpr ReasonInfo kReasons[] = {
    {KeyUnknown, "key_unknown", Nic, "The key's upper 24 bits must name an entry of the key table.",
     "Use the lkey or rkey that registration returned, and send the peer's rkey unchanged."},
    {KeyStale, "key_stale", Nic,
     "The key's low byte must equal that of the entry; it changes when a region is deregistered.",
     "Keep the region registered until the last transfer that uses it has completed."},
    {KeyOtherDomain, "key_other_domain", Nic,
     "A queue pair may use only regions and addresses of its own protection domain.",
     "Allocate both from the same protection domain."},
    {RightMissing, "right_missing", Nic, "The region must have been registered with this right.",
     "Add LOCAL_WRITE, REMOTE_READ or REMOTE_WRITE to the access flags of the registration."},
    {OutOfBounds, "out_of_bounds", Nic,
     "Every byte must lie between the first and the last byte that was registered.",
     "Correct the address or the length, or register the whole buffer."},
    {AddressWraps, "address_wraps", Nic, "Address plus length must not pass 2^64.",
     "Correct the address or the length."},
    {QpRightMissing, "qp_right_missing", Nic,
     "The queue pair itself must allow remote access of this kind.",
     "Add the right to qp_access_flags when the queue pair goes to INIT or RTR."},
    {IommuNotMapped, "iommu_not_mapped", Iommu, "The bus address must be mapped for this device.",
     "A bus error: the device used an address that registration did not map."},
    {IommuNoRead, "iommu_no_read", Iommu, "The mapping must allow reads (VT-d fault reason 06h).",
     "A bus error: the page was not mapped for reading."},
    {IommuNoWrite, "iommu_no_write", Iommu,
     "The mapping must allow writes (VT-d fault reason 05h).",
     "Register the region with LOCAL_WRITE if the device is to write to it."},
    {IommuBadAddress, "iommu_bad_address", Iommu,
     "The bus address must fit the domain's address width (VT-d fault reason 04h).",
     "A bus error: the device used an address wider than the domain."},
    {BusMasterOff, "bus_master_off", Pcie,
     "A function whose bus-master bit is clear must not issue memory requests.",
     "Set bit 2 of the PCI command register; drivers do so when they start a device."},
    {IommuNoContext, "iommu_no_context", Iommu,
     "A device's requester id must lead to a valid context entry (VT-d fault reasons 01h to 03h).",
     "A bus error: the kernel attached the device to no domain, or detached it."},
    {UnsupportedRequest, "unsupported_request", Pcie,
     "A memory request must be claimed by RAM or a function, on a path that is routed.",
     "Check the target's BAR and memory-space bit, and whether the root complex routes peers."},
    {FrameGone, "frame_gone", Host,
     "The pages behind a registration must stay mapped until it is deregistered.",
     "Deregister before munmap, mremap or brk; a registration cache must see such calls."},
    {FrameProtected, "frame_protected", Host,
     "The pages behind a registration must keep the protection they were registered with.",
     "Deregister before mprotect."},
    {FrameReplaced, "frame_replaced", Host,
     "The pages behind a registration must not be replaced by a new mapping.",
     "Deregister before mapping over the address; hardware would have reached the old frames."},
    {WqeMalformed, "wqe_malformed", Nic, "A descriptor in the ring must make sense.",
     "The program, or something else, wrote over a queue's memory."},
    {TooManySges, "too_many_sges", Driver,
     "A work request may have no more scatter-gather entries than its queue was created with.",
     "Raise max_send_sge or max_recv_sge at create_qp."},
    {InlineTooLong, "inline_too_long", Driver,
     "Inline data must fit max_inline_data, and only SEND and WRITE may be inline.",
     "Raise max_inline_data at create_qp or clear IBV_SEND_INLINE."},
    {MessageTooLong, "message_too_long", Driver,
     "A message holds at most max_msg_sz bytes, a datagram what the port's active_mtu allows.",
     "Split it."},
    {OpcodeNotSupported, "opcode_not_supported", Driver,
     "The queue pair's service must offer the operation.", "See `softhca devices` for what is."},
    {QueueFull, "queue_full", Driver, "A queue holds as many work requests as it was created with.",
     "Poll completions before posting more, or raise max_send_wr or max_recv_wr."},
    {QpNotReady, "qp_not_ready", Driver, "Sends may be posted from RTS on, receives from INIT on.",
     "Bring the queue pair to the right state with modify_qp first."},
    {Flushed, "flushed", Transport,
     "Work that was outstanding when a queue pair failed is flushed.",
     "Look for the first failed completion; this one is its consequence."},
    {AtomicLength, "atomic_length", Nic,
     "The scatter-gather entries of an atomic take exactly its eight bytes.",
     "Give it eight bytes for the original value, in one entry or several."},
    {ReceiveTooSmall, "receive_too_small", Transport,
     "A receive's buffers must hold the whole message.", "Post larger receives."},
    {NoReceivePosted, "no_receive_posted", Transport,
     "A SEND or WRITE with immediate needs a posted receive.",
     "Post receives earlier or more of them; see also min_rnr_timer and rnr_retry."},
    {RnrRetriesSpent, "rnr_retries_spent", Peer,
     "The peer had no receive posted, rnr_retry + 1 times.",
     "Post receives earlier at the peer, or set rnr_retry to 7 (for ever)."},
    {RetriesSpent, "retries_spent", Transport,
     "The peer must acknowledge within retry_cnt + 1 time-outs.",
     "Check that the peer runs, its GID and QPN, the route, the MTU and that UDP 4791 is open."},
    {RemoteAccess, "remote_access", Peer, "The peer's key table refused the access.",
     "Check rkey, address, length and rights; the peer's own log says which."},
    {RemoteInvalidRequest, "remote_invalid_request", Peer,
     "The peer could not accept the request as it is.",
     "Check the size of its receives and the limits that it advertises."},
    {RemoteOperational, "remote_operational", Peer, "The peer failed while executing the request.",
     "The peer's own log says why."},
    {SequenceError, "sequence_error", Transport, "Requests arrive in the order of their PSNs.",
     "None: the requester sends again."},
    {UnexpectedOpcode, "unexpected_opcode", Transport,
     "FIRST, MIDDLE and LAST follow each other, and an opcode fits the queue pair's service.",
     "A peer's bug, or both sides disagree on the service."},
    {LengthMismatch, "length_mismatch", Transport,
     "FIRST and MIDDLE fill the path MTU, LAST and ONLY do not exceed it, and all add up to RETH.",
     "Set the same path MTU on both sides."},
    {TooManyReads, "too_many_reads", Transport,
     "No more READs and atomics may be outstanding than max_dest_rd_atomic.",
     "Set the requester's max_rd_atomic to at most the responder's max_dest_rd_atomic."},
    {BadResponse, "bad_response", Transport, "A response must fit the request that it answers.",
     "A peer's bug."},
    {AtomicMisaligned, "atomic_misaligned", Transport,
     "An atomic's remote address is a multiple of eight.", "Align the word that it works on."},
    {HoleInRange, "hole_in_range", Kernel, "Every page of a registration must be mapped.",
     "Register only memory that exists; the address named is not mapped."},
    {PageReadOnly, "page_read_only", Kernel,
     "Pages of a registration with LOCAL_WRITE must be writable, others readable.",
     "Map the memory with the needed protection, or register without LOCAL_WRITE."},
    {MemlockExceeded, "memlock_exceeded", Kernel, "Pinned pages count against RLIMIT_MEMLOCK.",
     "Raise it (ulimit -l, LimitMEMLOCK=, container settings), or drop SOFTHCA_STRICT."},
    {BadAccessFlags, "bad_access_flags", Driver,
     "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE, and unknown flags are refused.",
     "Add LOCAL_WRITE or remove the flag."},
    {BadLength, "bad_length", Driver, "A registration has at least one byte and does not wrap.",
     "Correct the length."},
    {SpecialMapping, "special_mapping", Kernel,
     "Device memory and other special mappings cannot be pinned.",
     "Use ordinary memory, or register the dma-buf that stands for it."},
    {KeysExhausted, "keys_exhausted", Driver, "The key table has max_mr entries.",
     "Deregister regions that are not needed any more."},
    {AddressesExhausted, "addresses_exhausted", Driver,
     "The IOMMU domain and the device's tables must have room for the region.",
     "Deregister regions that are not needed any more."},
    {PageOffsetDiffers, "page_offset_differs", Driver,
     "The I/O address and the buffer must have the same offset in a page.",
     "Choose an I/O address with the buffer's page offset."},
    {OutOfMemory, "out_of_memory", Kernel, "The kernel must have a page for every page registered.",
     "Free memory, raise the container's limit, or register less."},
    {BadTransition, "bad_transition", Driver,
     "A queue pair moves RESET, INIT, RTR, RTS; RESET and ERR from anywhere.",
     "Follow the order of states."},
    {AttributeMissing, "attribute_missing", Driver,
     "Each transition has required attributes (man ibv_modify_qp; IBTA 11.2.5.2).",
     "Add the attribute and its bit in the mask."},
    {AttributeNotAllowed, "attribute_not_allowed", Driver,
     "Each transition allows only some attributes.", "Remove the attribute's bit from the mask."},
    {MtuTooLarge, "mtu_too_large", Driver,
     "Path MTU plus headers must fit the MTU of the interface.",
     "Use at most the port's active_mtu, or raise the MTU of the interface."},
    {GidIndexUnset, "gid_index_unset", Driver, "sgid_index must name a GID of the port.",
     "Choose one from `softhca devices`; perftest and ibv_rc_pingpong take it as -x or -g."},
    {NoGrh, "no_grh", Driver, "On RoCE every address has a global route (is_global = 1).",
     "Set ah_attr.is_global and ah_attr.grh; ibv_rc_pingpong needs -g INDEX."},
    {GidFamilyDiffers, "gid_family_differs", Driver,
     "Source and destination GID must be of the same kind: both IPv4-mapped or both IPv6.",
     "Choose the sgid_index whose GID is of the peer's kind."},
    {AttributeOutOfRange, "attribute_out_of_range", Driver,
     "An attribute must be within the range that the device advertises.",
     "See ibv_devinfo -v for the limits."},
    {ObjectBusy, "object_busy", Driver, "An object that others depend on cannot be destroyed.",
     "Destroy its dependants first."},
    {CqOverrun, "cq_overrun", Nic, "A completion queue must have room for every completion.",
     "Create it larger or poll it more often."},
    {RawNotPermitted, "raw_not_permitted", Driver,
     "Whoever sends and receives whole Ethernet frames must have the capability CAP_NET_RAW.",
     "Run as root, or in a user namespace of your own: unshare -Ur PROGRAM."},
    {FlowNotRaw, "flow_not_raw", Driver, "Flow rules steer frames to raw packet queue pairs.",
     "Create the flow on a queue pair of type IBV_QPT_RAW_PACKET."},
    {LimitExceeded, "limit_exceeded", Driver, "The device has limited numbers of objects.",
     "See ibv_devinfo -v for the limits."},
    {DestinationGidZero, "destination_gid_zero", Driver, "A destination GID must not be zero.",
     "Exchange GIDs with the peer; ibv_rc_pingpong needs -g INDEX on both sides."},
    {PortDown, "port_down", Driver, "The interface must be up and have an address.",
     "ip link set dev IF up (in a new network namespace: ip link set lo up)."},
    {NoInterface, "no_interface", Driver, "A device needs a network interface with an address.",
     "Bring one up, or name one with SOFTHCA_NETDEV."},
    {UdpPortTaken, "udp_port_taken", Driver, "RoCEv2 needs UDP port 4791 at the GID's address.",
     "Stop what owns the port; `softhca doctor` names it."},
    {NoRoute, "no_route", Host, "The host must have a route to the peer's address.",
     "Check `ip route get` for the peer's address."},
    {AssertionBroken, "assertion_broken", Host, "The device's own code must be right.",
     "A bug in SoftHCA: please report it with the line above."},
    {LeftBehind, "left_behind", Driver,
     "A device belongs to the process that opened it, not to its forked children.",
     "Open the device in the child, after the fork."},
    {CompletionsUnpolled, "completions_unpolled", Driver,
     "A completion queue must keep every completion that was not polled when it is resized.",
     "Poll what is there before making the queue that small."},
    {DeviceMemoryExhausted, "device_memory_exhausted", Driver,
     "All allocations of device memory together hold at most max_dm_size bytes.",
     "Free device memory that is not needed any more, or allocate less."},
    {DeviceMemoryAlignment, "device_memory_alignment", Driver,
     "Copies from and to device memory begin and end at multiples of four bytes.",
     "Make offset and length multiples of four."},
    {ZeroBasedMissing, "zero_based_missing", Driver,
     "A region of device memory has no virtual address: its addresses begin at zero.",
     "Add IBV_ACCESS_ZERO_BASED to the access flags."},
    {NotHugePages, "not_huge_pages", Kernel,
     "A region with IBV_ACCESS_HUGETLB must lie in huge pages throughout.",
     "Map the memory with MAP_HUGETLB, or leave the flag out."},
    {OnDemandUntranslated, "on_demand_untranslated", Driver,
     "Pages can be mapped on demand only where the IOMMU translates for the device, and a whole "
     "address space only in a live process.",
     "Register without IBV_ACCESS_ON_DEMAND."},
    {AdviceOnOtherRegion, "advice_on_other_region", Driver,
     "Advice is about on-demand regions of the protection domain named, and needs their rights.",
     "Name the region's lkey and domain; PREFETCH_WRITE needs LOCAL_WRITE."},
    {AdviceOutOfBounds, "advice_out_of_bounds", Driver,
     "Every byte that advice is about must lie in its region.",
     "Correct the address or the length."},
};

}  // namespace

std::span<const ReasonInfo> reasons() { return kReasons; }

const ReasonInfo* find_reason(ReasonId id) {
  const auto* row = std::ranges::find(kReasons, id, &ReasonInfo::id);
  return row == std::end(kReasons) ? nullptr : row;
}

std::string_view checker_name(Checker checker) {
  constexpr std::array<std::string_view, 8> kNames = {"driver", "kernel",    "nic",  "iommu",
                                                      "pcie",   "transport", "peer", "host"};
  return kNames[static_cast<std::size_t>(checker)];
}

std::string reason_text(const Reason& reason) {
  const ReasonInfo* row = find_reason(reason.id);
  if (row == nullptr) return fmt::format("reason {}", static_cast<unsigned>(reason.id));
  std::string text =
      fmt::format("{} (reason {}, {}): {}", row->name, static_cast<unsigned>(reason.id),
                  checker_name(row->checker), row->rule);
  if (reason.object != 0) text += fmt::format(" Object {:#x}.", reason.object);
  if (reason.address != 0)
    text += fmt::format(" Asked for {:#x}, {} bytes.", reason.address, reason.length);
  else if (reason.length != 0)
    text += fmt::format(" Asked for {}.", reason.length);
  // Without an address the bounds are those of a number, both included.
  if (reason.low != 0 && reason.address != 0)
    text += fmt::format(" Allowed from {:#x}, {} bytes.", reason.low, reason.high - reason.low);
  else if (reason.low != 0)
    text += fmt::format(" Allowed {} to {}.", reason.low, reason.high);
  else if (reason.high != 0)
    text += fmt::format(" Limit {}.", reason.high);
  return text + " Remedy: " + std::string(row->remedy);
}

}  // namespace softhca::trace
