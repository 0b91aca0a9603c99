#include "abi/errno_of.h"

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace softhca::abi {
namespace {

using enum trace::ReasonId;

struct Row {
  trace::ReasonId reason;
  int code;
};

// Reasons of failed calls. Those of completions never get here; if one did, it would be EIO.
constexpr Row kErrnos[] = {
    // Memory: what get_user_pages answers, and EFAULT also for a page without the right.
    {HoleInRange, EFAULT},
    {PageReadOnly, EFAULT},
    {SpecialMapping, EFAULT},
    {MemlockExceeded, ENOMEM},
    {BadAccessFlags, EINVAL},
    {BadLength, EINVAL},
    {PageOffsetDiffers, EINVAL},
    {OutOfMemory, ENOMEM},
    {KeysExhausted, ENOMEM},
    {AddressesExhausted, ENOMEM},
    // Work requests: providers answer ENOMEM for a full queue.
    {QueueFull, ENOMEM},
    {QpNotReady, EINVAL},
    {TooManySges, EINVAL},
    {InlineTooLong, EINVAL},
    {MessageTooLong, EINVAL},
    {OpcodeNotSupported, EOPNOTSUPP},
    // Objects and attributes.
    {BadTransition, EINVAL},
    {AttributeMissing, EINVAL},
    {AttributeNotAllowed, EINVAL},
    {AttributeOutOfRange, EINVAL},
    {MtuTooLarge, EINVAL},
    {GidIndexUnset, EINVAL},
    {NoGrh, EINVAL},
    {GidFamilyDiffers, EINVAL},
    {DestinationGidZero, EINVAL},
    {StateDiffers, EINVAL},
    {RawNotPermitted, EPERM},
    {FlowNotRaw, EINVAL},
    {ObjectBusy, EBUSY},
    {RegionHasWindows, EBUSY},
    {WindowsExhausted, ENOMEM},
    {WindowTypeUnknown, EINVAL},
    {BindKeyIndex, EINVAL},
    {RegionIsFixed, EINVAL},
    {NotMulticast, EINVAL},
    {MulticastService, EINVAL},
    {NotAttached, EINVAL},
    {LimitExceeded, ENOMEM},
    {CompletionsUnpolled, EINVAL},
    {OutOfBounds, EINVAL},
    {DeviceMemoryExhausted, ENOMEM},
    {DeviceMemoryAlignment, EINVAL},
    {ZeroBasedMissing, EINVAL},
    {DeviceMemoryGone, EINVAL},
    {KeyUnknown, EINVAL},
    {NotHugePages, EINVAL},
    {OnDemandUntranslated, EOPNOTSUPP},
    {AdviceOnOtherRegion, EFAULT},
    {AdviceOutOfBounds, EFAULT},
    {ImportFromElsewhere, EOPNOTSUPP},
    {ImportUnknown, ENOENT},
    {NotDmaBuf, EINVAL},
    {ProfileUnknown, EINVAL},
    {SettingUnknown, EINVAL},
    {NotInProfile, EOPNOTSUPP},
    {SlotsNeverFree, ENOMEM},
    // Shared receive queues and XRC: what the kernel answers for domains of files.
    {SharedQueueOtherDomain, EINVAL},
    {ReceivesAreShared, EINVAL},
    {SharedQueueTooSmall, EINVAL},
    {SharedQueueKind, EINVAL},
    {XrcDomainElsewhere, EOPNOTSUPP},
    {XrcDomainExists, EINVAL},
    {XrcDomainMissing, EAGAIN},
    // Device and port.
    {PortDown, ENETDOWN},
    {NoInterface, ENODEV},
    {UdpPortTaken, EADDRINUSE},
    {NoRoute, EHOSTUNREACH},
    {AssertionBroken, EIO},
    {LeftBehind, EPERM},
    {PlanUnusable, EINVAL},
    // Connections: what the kernel's rdma_cm answers, and its events say.
    {ConnectTimedOut, ETIMEDOUT},
    {NoListener, ECONNREFUSED},
    {RejectedByProgram, ECONNREFUSED},
    {RejectedByPeer, ECONNREFUSED},
    {PeerExhausted, ECONNREFUSED},
    {ConnectionStale, ECONNREFUSED},
    {ConnectionUnknown, ECONNREFUSED},
    {PeerGaveUp, ECONNREFUSED},
    {AcceptUnconfirmed, ETIMEDOUT},
    {DisconnectUnanswered, ETIMEDOUT},
    {PrivateTooLong, EINVAL},
    {ServiceTaken, EADDRINUSE},
    {ConnectionState, EINVAL},
    {ConnectionsExhausted, ENOMEM},
    {NoDeviceForAddress, ENODEV},
    {NeighbourSilent, ETIMEDOUT},
    {AddressFamily, EAFNOSUPPORT},
    {DeviceDiffers, EINVAL},
    {IdGone, EINVAL},
};

}  // namespace

Errno errno_of(trace::ReasonId id) {
  const auto* row = std::ranges::find(kErrnos, id, &Row::reason);
  return {row == std::end(kErrnos) ? EIO : row->code};
}

}  // namespace softhca::abi
