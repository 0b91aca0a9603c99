// KeyTable: whether an access by key is allowed, and where it lands on the bus. Byte-exact.
//
// The only code that answers yes or no to an access by key. Regions are made by
// driver/registration; they are consulted for every SGE and every packet. A page that an entry
// wrongly points to is still stopped by the IOMMU, which knows nothing of keys.
//
// A window is an entry too, with a key of its own: an access by it is checked against the window
// and then lands where its region is. Which windows there are, and to which region each is bound,
// is kept here; what is published of a window is its record.
//
// check() and locate() are free of state, so that an initiator on the same host can run them on a
// view of its peer's table.
//
// Spec        IBTA vol. 1, 10.6.3 (access checks); order: index, validity, variant, PD, rights,
// bounds;
//             10.6.7.2 (windows; C10-72 ff.)
// Threads     owned by the device
// Invariants  (1) an entry's pages in the translation table belong to it alone
//             (2) a key that was given back is not valid again before 255 reuses of its index
//             (3) a region to which windows are bound is not removed or changed (CASES C45)
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/address.h"
#include "base/free_list.h"
#include "base/result.h"
#include "nic/records.h"
#include "nic/same_host.h"
#include "trace/reason.h"
#include "wire/psn.h"

namespace softhca::nic {

enum class KeyRight : std::uint8_t { LocalRead, LocalWrite, RemoteRead, RemoteWrite, RemoteAtomic };

struct KeyAccess {
  wire::Key key;
  std::uint32_t pd{};
  KeyRight right{};
  std::uint64_t address{};
  std::uint64_t bytes{};  // > 0
};

// A stretch of bus addresses.
struct BusPiece {
  BusAddr at;
  std::uint64_t bytes{};
};

// May queue pair `qpn` make this access?
trace::Reason check_key(std::span<const KeyRecord> keys, const KeyAccess& access, wire::Qpn qpn);
// The same, where the record that the key names is in hand.
trace::Reason check_record(const KeyRecord& key, const KeyAccess& access, wire::Qpn qpn);

// The first piece of [address, +bytes) of an entry. REQUIRES: check_key gave None for it, and it is
// not a null region.
BusPiece first_piece(std::span<const KeyRecord> keys, std::span<const std::uint64_t> translations,
                     const KeyRecord& key, std::uint64_t address, std::uint64_t bytes);

// As ibv_mw_type. The second is the kind that IBTA calls 2B: it belongs to the queue pair that
// bound it, and to its protection domain.
enum class WindowType : std::uint8_t { One = 1, Two = 2 };

class KeyTable {
 public:
  // OWNS nothing; the tables outlive it. `neighbours` are asked to leave what is taken back; null:
  // there are none. REQUIRES: at least two key records.
  explicit KeyTable(Tables tables, SameHost* neighbours = nullptr);

  struct Entry {
    std::uint32_t pd{};
    std::uint32_t access{};
    std::uint64_t start{};
    std::uint64_t bytes{};
    BusAddr bus;                           // of the first byte, if `pages` is empty
    std::span<const std::uint64_t> pages;  // bus addresses of its 4 KiB pages, in order
    bool is_on_device{};                   // then `bus` is a place in its own memory
    bool is_null = false;                  // every address, and no bytes
  };
  // FAILS WITH KeysExhausted, AddressesExhausted (translation table)
  Result<wire::Key, trace::Reason> insert(const Entry& entry);
  // The key stays. REQUIRES: a region without windows. FAILS WITH AddressesExhausted; then nothing
  // has changed.
  Result<void, trace::Reason> replace(wire::Key key, const Entry& entry);
  // Likewise, where only domain and rights change.
  void set_rights(wire::Key key, std::uint32_t pd, std::uint32_t access);
  // REQUIRES: a region without windows.
  void remove(wire::Key key);
  bool has_windows(wire::Key region) const { return bound_.contains(region.index()); }

  // A window that opens nothing yet. FAILS WITH WindowsExhausted
  Result<wire::Key, trace::Reason> insert_window(std::uint32_t pd, WindowType type);
  // REQUIRES: a window; whatever its key's low byte.
  void remove_window(wire::Key window);
  void remove_windows();

  struct Bind {
    wire::Key window;   // whatever its low byte
    wire::Key new_key;  // from now on; type 2: any low byte
    wire::Key region;   // 0: none
    std::uint64_t address{};
    std::uint64_t bytes{};  // 0: type 1 opens nothing any more
    std::uint32_t access{};
  };
  // As queue pair `qpn` of domain `pd` asks. FAILS WITH KeyUnknown, KeyStale, KeyOtherDomain,
  // OutOfBounds, AddressWraps and the reasons that begin with Bind
  trace::Reason bind(const Bind& bind, std::uint32_t pd, wire::Qpn qpn);
  // Ends the key of a type 2 window. FAILS WITH KeyUnknown, KeyStale, KeyOtherDomain,
  // NotInvalidatable, WindowUnbound, WindowOtherQp
  trace::Reason invalidate(wire::Key key, std::uint32_t pd, wire::Qpn qpn);
  void unbind_all(wire::Key region);
  // A queue pair goes: the windows that belong to it are unbound.
  void forget_queue_pair(wire::Qpn qpn);
  std::size_t window_count() const { return windows_.size(); }
  // The windows of a domain.
  std::vector<wire::Key> windows_of(std::uint32_t pd) const;

  trace::Reason check(const KeyAccess& access, wire::Qpn qpn) const {
    return check_key(tables_.keys, access, qpn);
  }
  BusPiece locate(const KeyAccess& access) const {
    return first_piece(tables_.keys, tables_.translations, tables_.keys[access.key.index()],
                       access.address, access.bytes);
  }
  // REQUIRES: check gave None.
  bool is_null(const KeyAccess& access) const {
    return tables_.keys[access.key.index()].layout == static_cast<std::uint32_t>(KeyLayout::Null);
  }
  // Is it memory of the device, and locate() gives a place there? REQUIRES: a valid key.
  bool is_on_device(wire::Key key) const {
    const KeyRecord* record = &tables_.keys[key.index()];
    if (record->layout == static_cast<std::uint32_t>(KeyLayout::Window))
      record = &tables_.keys[record->first_page];
    return record->layout == static_cast<std::uint32_t>(KeyLayout::OnDevice);
  }
  // The record behind a key; null if the key is not valid now.
  const KeyRecord* find(wire::Key key) const;
  std::uint32_t regions_in_use() const {
    return free_.in_use() - static_cast<std::uint32_t>(windows_.size());
  }

 private:
  static void open(KeyRecord& record);
  void close(KeyRecord& record, KeyState state);
  trace::Reason fill(KeyRecord& record, const Entry& entry);
  trace::Reason check_bind(const Bind& bind, WindowType type) const;
  void unbind(std::uint32_t index);
  std::optional<std::uint32_t> take_pages(std::uint32_t count);
  void give_back_pages(std::uint32_t first, std::uint32_t count);

  Tables tables_;
  SameHost* neighbours_;
  FreeList free_;
  std::map<std::uint32_t, std::uint32_t> free_pages_;  // first -> count, no two touch
  std::map<std::uint32_t, WindowType> windows_;        // by index
  std::map<std::uint32_t, std::uint32_t> bound_;       // windows of a region, by its index; > 0
};

}  // namespace softhca::nic
