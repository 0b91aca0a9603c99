#include "wire/cm_text.h"

#include <gtest/gtest.h>

#include <set>

namespace softhca::wire {
namespace {

TEST(CmText, NamesTheConversation) {
  CmReq req;
  req.local_id = {0x12};
  req.service = {0x1061c06};
  req.qpn = {0x24};
  req.psn = {0xc7fd46};
  req.path_mtu = 3;
  req.primary.local_gid = Gid::of_ipv4({192, 0, 2, 1});
  req.primary.remote_gid = Gid::of_ipv4({192, 0, 2, 2});
  EXPECT_EQ(cm_text({.transaction = 7, .message = req}),
            "CM ConnectRequest tid 0x7 local 0x12 service 0x1061c06 qp 0x000024 psn 0xc7fd46 from "
            "::ffff:192.0.2.1 to ::ffff:192.0.2.2 mtu 3");
  EXPECT_EQ(cm_text({.message = CmRtu{.local_id = {1}, .remote_id = {2}}}),
            "CM ReadyToUse tid 0x0 local 0x1 remote 0x2");
  EXPECT_EQ(cm_text({.message = CmMra{.remote_id = {2}, .service_timeout = 24}}),
            "CM MsgRcptAck tid 0x0 local 0x0 remote 0x2 of REQ timeout 24");
}

TEST(CmText, SaysWhyAConnectionIsRefused) {
  CmRej rej;
  rej.remote_id = {0x12};
  rej.reason = RejReason::InvalidServiceId;
  EXPECT_EQ(cm_text({.transaction = 7, .message = rej}),
            "CM ConnectReject tid 0x7 local 0x0 remote 0x12 of REQ reason 8 (invalid service id)");
  rej.subject = CmSubject::Other;
  rej.reason = static_cast<RejReason>(999);
  EXPECT_TRUE(cm_text({.message = rej}).ends_with("of other reason 999 (another reason)"));
  CmSidrRep sidr;
  sidr.status = SidrStatus::Unsupported;
  EXPECT_NE(cm_text({.message = sidr}).find("status 1 (service not supported)"), std::string::npos);
}

TEST(CmText, HasALineForEachMessage) {
  std::set<std::string> lines;
  for (const CmMessage& message :
       {CmMessage{CmReq{}}, CmMessage{CmMra{}}, CmMessage{CmRej{}}, CmMessage{CmRep{}},
        CmMessage{CmRtu{}}, CmMessage{CmDreq{}}, CmMessage{CmDrep{}}, CmMessage{CmSidrReq{}},
        CmMessage{CmSidrRep{}}})
    lines.insert(cm_text({.message = message}));
  EXPECT_EQ(lines.size(), std::variant_size_v<CmMessage>);
}

}  // namespace
}  // namespace softhca::wire
