// Reason: why something was refused. One table for the whole product.
//
// Every error completion, NAK, failed call and asynchronous event carries one. Its number is the
// completion's vendor_err, so it shows in the program's own log; `softhca explain N` tells the
// rest. Numbers are for ever: they appear in other people's logs. Add, never renumber.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace softhca::trace {

// Who said no.
enum class Checker : std::uint8_t {
  Driver,
  Kernel,
  Nic,
  Iommu,
  Pcie,
  Transport,
  Peer,
  Host,
  Plan,
  ConnectionManager
};

enum class ReasonId : std::uint16_t {
  None = 0,
  // The NIC's key table, byte-exact.
  KeyUnknown = 1,
  KeyStale = 2,
  KeyOtherDomain = 3,
  RightMissing = 4,
  OutOfBounds = 5,
  AddressWraps = 6,
  QpRightMissing = 7,
  // The bus and the IOMMU, page-exact.
  IommuNotMapped = 20,
  IommuNoRead = 21,
  IommuNoWrite = 22,
  IommuBadAddress = 23,
  BusMasterOff = 24,
  IommuNoContext = 25,
  UnsupportedRequest = 26,
  // The frames behind the mapping.
  FrameGone = 30,
  FrameProtected = 31,
  FrameReplaced = 32,
  // Work requests.
  WqeMalformed = 40,
  TooManySges = 41,
  InlineTooLong = 42,
  MessageTooLong = 43,
  OpcodeNotSupported = 44,
  QueueFull = 45,
  QpNotReady = 46,
  Flushed = 47,
  AtomicLength = 48,
  // The transport.
  ReceiveTooSmall = 60,
  NoReceivePosted = 61,
  RnrRetriesSpent = 62,
  RetriesSpent = 63,
  RemoteAccess = 64,
  RemoteInvalidRequest = 65,
  RemoteOperational = 66,
  SequenceError = 67,
  UnexpectedOpcode = 68,
  LengthMismatch = 69,
  TooManyReads = 70,
  BadResponse = 71,
  AtomicMisaligned = 72,
  // Registration.
  HoleInRange = 80,
  PageReadOnly = 81,
  MemlockExceeded = 82,
  BadAccessFlags = 83,
  BadLength = 84,
  SpecialMapping = 85,
  KeysExhausted = 86,
  AddressesExhausted = 87,
  PageOffsetDiffers = 88,
  OutOfMemory = 89,
  // Queue pairs, completion queues and their attributes.
  BadTransition = 100,
  AttributeMissing = 101,
  AttributeNotAllowed = 102,
  MtuTooLarge = 103,
  GidIndexUnset = 104,
  NoGrh = 105,
  GidFamilyDiffers = 106,
  AttributeOutOfRange = 107,
  ObjectBusy = 108,
  CqOverrun = 109,
  LimitExceeded = 110,
  DestinationGidZero = 111,
  StateDiffers = 182,
  RawNotPermitted = 180,
  FlowNotRaw = 181,
  FramesStayInside = 183,
  FrameTooShort = 184,
  // Warnings: nothing has failed.
  EventsUnacknowledged = 188,
  PeerSilent = 189,
  // Device and port.
  PortDown = 120,
  NoInterface = 121,
  UdpPortTaken = 122,
  NoRoute = 123,
  AssertionBroken = 124,
  LeftBehind = 125,
  // Shared receive queues and XRC.
  SharedQueueOtherDomain = 130,
  ReceivesAreShared = 131,
  SharedQueueTooSmall = 132,
  SharedQueueFailed = 133,
  XrcQueueUnknown = 134,
  XrcDomainElsewhere = 135,
  XrcDomainExists = 136,
  XrcDomainMissing = 137,
  SharedQueueKind = 138,
  TagNotThere = 139,
  // Memory windows, invalidation, re-registration: the NIC's key table again.
  WindowUnbound = 140,
  WindowIsRemote = 141,
  WindowOtherQp = 142,
  NotInvalidatable = 143,
  WindowBound = 144,
  BindNotAllowed = 145,
  BindRights = 146,
  BindZeroBased = 147,
  BindEmpty = 148,
  RegionHasWindows = 149,
  NotARegion = 150,
  NullRegionBound = 151,
  WindowsExhausted = 152,
  WindowTypeUnknown = 153,
  BindKeyIndex = 154,
  RegionIsFixed = 155,
  // Multicast.
  NotMulticast = 156,
  MulticastService = 157,
  NotAttached = 158,
  // Objects beyond queue pairs.
  CompletionsUnpolled = 160,
  DeviceMemoryExhausted = 161,
  DeviceMemoryAlignment = 162,
  ZeroBasedMissing = 163,
  DeviceMemoryGone = 171,
  NotHugePages = 164,
  OnDemandUntranslated = 165,
  AdviceOnOtherRegion = 166,
  AdviceOutOfBounds = 167,
  ImportFromElsewhere = 168,
  ImportUnknown = 169,
  NotDmaBuf = 170,
  // Profiles of devices.
  ProfileUnknown = 185,
  NotInProfile = 186,
  SlotsNeverFree = 187,
  // What the user asked of the device as a whole.
  SettingUnknown = 192,
  // A plan of faults.
  InjectedFault = 190,
  PlanUnusable = 191,
  // How connections are made and ended.
  ConnectTimedOut = 200,
  NoListener = 201,
  RejectedByProgram = 202,
  RejectedByPeer = 203,
  PeerExhausted = 204,
  ConnectionStale = 205,
  ConnectionUnknown = 206,
  PeerGaveUp = 207,
  AcceptUnconfirmed = 208,
  DisconnectUnanswered = 209,
  PrivateTooLong = 210,
  ServiceTaken = 211,
  ConnectionState = 212,
  ConnectionsExhausted = 213,
  BacklogFull = 214,
  PeerEnded = 215,
  NoDeviceForAddress = 216,
  NeighbourSilent = 217,
  AddressFamily = 218,
  DeviceDiffers = 219,
  IdGone = 220,
  // Why one-sided requests between processes of one host go as packets.
  DirectOff = 221,
  DirectPeerOff = 222,
  DirectOtherUser = 223,
  DirectPeerHidden = 224,
  DirectRefused = 225,
  MessagesOff = 226,
  MessagesPeerOff = 227,
  MessagesNoRoom = 228,
  // Why registered memory stays ordinary memory (SOFTHCA_MEMORY=frames), or frames stay shared.
  FramesUnavailable = 234,
  FramesNotMovable = 235,
  FramesKeptByAddress = 236,
  FramesOtherThreads = 237,
  FramesExhausted = 238,
  FramesLeftShared = 239,
};

// The key table said no, and not what lies behind it.
constexpr bool is_key_refusal(ReasonId id) {
  return id < ReasonId::IommuNotMapped ||
         (id >= ReasonId::WindowUnbound && id <= ReasonId::NullRegionBound);
}

struct ReasonInfo {
  ReasonId id;
  std::string_view name;  // lower_case, as printed and in JSON
  Checker checker;
  std::string_view rule;    // one sentence: what has to hold
  std::string_view remedy;  // one sentence: what to change
};

// One refusal with its particulars. What `object`, `address` and `length` are is said by the table
// row's rule; 0 where they mean nothing.
//
// Each outcome carries one, mostly none. Laid out without gaps and in pieces of 16 bytes, so that
// it is cleared and copied by the same pieces: a copy by others would wait for the clearing.
struct Reason {
  ReasonId id = ReasonId::None;
  std::uint16_t unused = 0;
  std::uint32_t object = 0;  // key, QPN, CQN or index
  std::uint64_t unused_too = 0;
  // The address asked for, in the address space that was checked.
  alignas(16) std::uint64_t address = 0;
  std::uint64_t length = 0;  // bytes asked for
  std::uint64_t low = 0;     // where the permitted range starts (bounds), else 0
  std::uint64_t high = 0;    // first byte behind it, else 0

  explicit operator bool() const { return id != ReasonId::None; }
  friend bool operator==(const Reason&, const Reason&) = default;
};
static_assert(std::has_unique_object_representations_v<Reason>);

// How a reason is told.
enum class Telling : std::uint32_t {
  Cause,    // why something was refused, for the first time
  Again,    // a call, for a reason that a call was refused for before; not printed
  Warning,  // nothing has failed yet
};

std::span<const ReasonInfo> reasons();
const ReasonInfo* find_reason(ReasonId id);
std::string_view checker_name(Checker checker);

// "out_of_bounds (reason 5, nic): RULE. Object 0x1207. Asked for 0x5000, 64 bytes. Allowed from
// 0x4000, 4096 bytes. Remedy: REMEDY"
// `particulars`, sentences with a space in front of each, go before the remedy.
std::string reason_text(const Reason& reason, std::string_view particulars = {});

}  // namespace softhca::trace
