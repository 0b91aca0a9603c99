// KeyTable: whether an access by key is allowed, and where it lands on the bus. Byte-exact.
//
// The only code that answers yes or no to an access by key. Entries are made by
// driver/registration; they are consulted for every SGE and every packet. A page that an entry
// wrongly points to is still stopped by the IOMMU, which knows nothing of keys.
//
// check() and locate() are free of state, so that an initiator on the same host can run them on a
// view of its peer's table.
//
// Spec        IBTA vol. 1, 10.6.3 (access checks); order: index, validity, variant, PD, rights,
// bounds Threads     owned by the device Invariants  (1) an entry's pages in the translation table
// belong to it alone
//             (2) a key that was given back is not valid again before 255 reuses of its index
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/address.h"
#include "base/free_list.h"
#include "base/result.h"
#include "nic/records.h"
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

trace::Reason check_key(std::span<const KeyRecord> keys, const KeyAccess& access);

// The first piece of [address, +bytes) of an entry. REQUIRES: check_key gave None for it.
BusPiece first_piece(std::span<const std::uint64_t> translations, const KeyRecord& key,
                     std::uint64_t address, std::uint64_t bytes);

class KeyTable {
 public:
  // OWNS nothing; the tables outlive it. REQUIRES: at least two key records.
  explicit KeyTable(Tables tables);

  struct Entry {
    std::uint32_t pd{};
    std::uint32_t access{};
    std::uint64_t start{};
    std::uint64_t bytes{};
    BusAddr bus;                           // of the first byte, if `pages` is empty
    std::span<const std::uint64_t> pages;  // bus addresses of its 4 KiB pages, in order
    bool is_on_device{};                   // then `bus` is a place in its own memory
  };
  // FAILS WITH KeysExhausted, AddressesExhausted (translation table)
  Result<wire::Key, trace::Reason> insert(const Entry& entry);
  // REQUIRES: a valid key.
  void remove(wire::Key key);

  trace::Reason check(const KeyAccess& access) const { return check_key(tables_.keys, access); }
  BusPiece locate(const KeyAccess& access) const {
    return first_piece(tables_.translations, tables_.keys[access.key.index()], access.address,
                       access.bytes);
  }
  // Is it memory of the device, and locate() gives a place there? REQUIRES: a valid key.
  bool is_on_device(wire::Key key) const {
    return tables_.keys[key.index()].layout == static_cast<std::uint32_t>(KeyLayout::OnDevice);
  }
  // The record behind a key; null if the key is not valid now.
  const KeyRecord* find(wire::Key key) const;
  std::uint32_t in_use() const { return free_.in_use(); }

 private:
  std::optional<std::uint32_t> take_pages(std::uint32_t count);
  void give_back_pages(std::uint32_t first, std::uint32_t count);

  Tables tables_;
  FreeList free_;
  std::map<std::uint32_t, std::uint32_t> free_pages_;  // first -> count, no two touch
};

}  // namespace softhca::nic
