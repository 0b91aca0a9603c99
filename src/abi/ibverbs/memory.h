// Protection domains and memory regions as programs hold them.
//
// Threads  any
#pragma once
#include <atomic>
#include <memory>
#include <optional>

#include "abi/ibverbs/context.h"
#include "os/dma_buf.h"

namespace softhca::abi {

// A thread domain: objects in it are used by one thread at a time. A hint that nothing depends on.
class Td final : public ibv_td, public Owned {
 public:
  explicit Td(Context& owner) : ibv_td{&owner.context()} { owner.adopt(*this); }
  static Td& of(ibv_td* verbs) { return static_cast<Td&>(*verbs); }
  void abandon(driver::Engine&, Time) override {}
  Context& owner() { return Context::of(context); }

  std::atomic<std::uint32_t> users{0};  // parent domains
};

class Pd final : public ibv_pd, public Owned {
 public:
  // FAILS WITH ENOMEM
  static Outcome<Pd*> create(Context& owner);
  // A domain within another one, which it stands for wherever a domain is named, with hints for how
  // its objects are used and with memory for their queues. FAILS WITH EINVAL, EOPNOTSUPP
  static Outcome<Pd*> create_parent(Context& owner, const ibv_parent_domain_init_attr& wanted);
  // Another handle on a domain of the context's family. FAILS WITH ENOENT
  static Outcome<Pd*> import(Context& owner, std::uint32_t handle);
  static Pd& of(ibv_pd* verbs) { return static_cast<Pd&>(*verbs); }
  ~Pd() override;
  // An imported one goes; the domain stays.
  static void unimport(Pd& imported);

  // FAILS WITH EBUSY
  Outcome<void> destroy();

  void abandon(driver::Engine& engine, Time now) override;
  bool holds_others() const override { return true; }

  Context& owner() { return Context::of(context); }
  std::uint32_t number() const { return handle; }

  // Memory for the queues of a parent domain's objects: what its program chose to give.
  struct Allocator {
    void* (*alloc)(ibv_pd*, void*, std::size_t, std::size_t, std::uint64_t){};
    void (*free)(ibv_pd*, void*, void*, std::uint64_t){};
    void* context{};
  };
  bool is_parent() const { return within_ != nullptr; }
  const Allocator& allocator() const { return allocator_; }  // alloc null: there is none

  // Objects that name this domain; the device knows only of some of them.
  using Users = std::shared_ptr<std::atomic<std::uint32_t>>;
  const Users& users() const { return users_; }

 private:
  explicit Pd(Context& owner) : ibv_pd{&owner.context(), 0} {}

  bool is_import_ = false;
  Users users_ = std::make_shared<std::atomic<std::uint32_t>>(0);  // outlives this for its objects
  Pd* within_ = nullptr;                                           // of a parent domain
  Td* thread_ = nullptr;
  Allocator allocator_;
};

// An object's hold on its domain, for as long as it lives.
class PdUse {
 public:
  explicit PdUse(ibv_pd* domain) : users_(domain == nullptr ? nullptr : Pd::of(domain).users()) {
    if (users_) ++*users_;
  }
  ~PdUse() {
    if (users_) --*users_;
  }
  PdUse(const PdUse&) = delete;
  PdUse& operator=(const PdUse&) = delete;
  // Goes over to another domain.
  void move_to(ibv_pd* domain) {
    const PdUse old(std::move(users_));
    users_ = Pd::of(domain).users();
    ++*users_;
  }

 private:
  explicit PdUse(Pd::Users users) : users_(std::move(users)) {}
  Pd::Users users_;
};

class Mr final : public ibv_mr, public Owned {
 public:
  struct Request {
    void* start{};
    std::size_t length{};
    std::uint64_t io_address{};
    unsigned access{};
    std::uintptr_t caller{};  // where the program calls
  };
  // FAILS WITH EFAULT, EINVAL, ENOMEM, EOPNOTSUPP
  static Outcome<Mr*> create(Pd& domain, const Request& request);
  // Of memory on the device. FAILS WITH EINVAL, ENOMEM
  static Outcome<Mr*> create_on_device(Pd& domain, const driver::Engine::DeviceRange& range,
                                       unsigned access);
  // FAILS WITH ENOMEM
  static Outcome<Mr*> create_null(Pd& domain);
  static Mr& of(ibv_mr* verbs) { return static_cast<Mr&>(*verbs); }

  // Of a dma-buf. FAILS WITH EBADF, EINVAL, ENOMEM
  struct DmaBufRange {
    int fd{};
    std::uint64_t offset{};
    std::size_t bytes{};
  };
  static Outcome<Mr*> create_on_dma_buf(Pd& domain, const DmaBufRange& range,
                                        std::uint64_t io_address, unsigned access);
  // Another handle on a region of the context's family, without its address.
  // FAILS WITH ENOENT; EINVAL for a region of another domain
  static Outcome<Mr*> import(Pd& domain, std::uint32_t handle);
  static void unimport(Mr& imported);

  void abandon(driver::Engine& engine, Time now) override;

  Context& owner() { return Context::of(context); }
  wire::Key key() const { return {lkey}; }
  // It belongs to another domain now.
  void move_to(ibv_pd* domain) {
    pd = domain;
    domain_.move_to(domain);
  }

 private:
  explicit Mr(Pd& domain) : ibv_mr{}, domain_(&domain) {
    context = domain.context;
    pd = &domain;
  }
  void take(const driver::Region& region);

  bool is_import_ = false;

  PdUse domain_;
  std::optional<os::DmaBuf> dma_buf_;
};

// Operations that programs reach through the context.
ibv_mr* alloc_null_mr(ibv_pd* pd) noexcept;
ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attributes) noexcept;
int dealloc_td(ibv_td* td) noexcept;
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attributes) noexcept;
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, std::uint32_t flags, ibv_sge* list,
              std::uint32_t count) noexcept;

}  // namespace softhca::abi
