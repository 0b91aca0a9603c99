// A device's tables and the parts that fill them, for tests that look at them as a peer does.
#pragma once
#include <utility>
#include <vector>

#include "driver/peer_tables.h"
#include "driver/table_memory.h"
#include "host/iommu.h"
#include "host/table_frames.h"
#include "nic/key_table.h"
#include "os/shared_memory.h"
#include "trace/journal.h"

namespace softhca::driver {

struct FilledTables {
  os::SharedMemory memory =
      std::move(*os::SharedMemory::create("softhca-test", TableMemory::bytes_needed()));
  TableMemory owner{memory.bytes()};
  std::vector<std::uint64_t> cells = std::vector<std::uint64_t>(trace::kCounterCount);
  trace::Tracer tracer{trace::Counters(cells), nullptr};
  host::TableFrames frames{owner.iommu()};
  host::Iommu iommu{frames, {}, tracer};
  nic::KeyTable keys{owner.tables()};

  // As a peer finds them. REQUIRES: the header says where they are.
  PeerTables as_peer() const { return *PeerTables::over(memory.read_only_bytes()); }
};

}  // namespace softhca::driver
