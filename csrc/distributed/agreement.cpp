#include <c10/util/Exception.h>
#include <csrc/distributed/agreement.h>

namespace metalops::distributed {
namespace {

constexpr char kAgreed[] = "agreed";

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

Agreement::Agreement(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : shared_(std::move(store)), rank_(rank), size_(size) {}

Agreement::Call Agreement::begin() {
  const std::lock_guard lock(mutex_);
  return {calls_++};
}

std::string Agreement::key_of(const Call& call, const char* name) {
  return "metalops/" + std::to_string(call.number) + "/" + name;
}

void Agreement::tell(Call& call, const Signature& signature) {
  // A store of our own: others' threads must not wait for what we wait for.
  if (!store_) store_ = shared_->clone();
  if (call.told) return;
  call.told = true;
  // (Store::compareSet would be one step, but FileStore's compares with nothing.)
  const std::string mine = signature();
  std::string first = mine;
  std::string rank = std::to_string(rank_);
  if (store_->add(key_of(call, "tickets"), 1) == 1) {
    store_->set(key_of(call, "first"), bytes_of(rank + '\n' + first));
  } else {
    first = text_of(store_->get(key_of(call, "first")));
    const size_t end = first.find('\n');
    rank = first.substr(0, end);
    first = first.substr(end + 1);
  }
  if (first != mine) {
    const std::string verdict = "collective " + std::to_string(call.number) +
                                " of mps tensors in this group: rank " + rank + " calls " + first +
                                ", but rank " + std::to_string(rank_) + " calls " + mine;
    store_->set(key_of(call, "verdict"), bytes_of(verdict));
  } else if (store_->add(key_of(call, "agreeing"), 1) == size_) {
    store_->set(key_of(call, "verdict"), bytes_of(kAgreed));
  }
}

void Agreement::compare(Call& call, std::string key, const Signature& signature,
                        std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  if (!known_.insert(std::move(key)).second) return;
  tell(call, signature);
  const std::string verdict = key_of(call, "verdict");
  if (timeout.count() > 0) {
    store_->wait({verdict}, timeout);
  } else {
    store_->wait({verdict});
  }
  const std::string text = text_of(store_->get(verdict));
  TORCH_CHECK(text == kAgreed, text);
}

void Agreement::look(Call& call, const Signature& signature) {
  const std::lock_guard lock(mutex_);
  if (!store_) store_ = shared_->clone();
  if (!store_->check({key_of(call, "first")})) return;
  tell(call, signature);
  const std::string verdict = key_of(call, "verdict");
  if (!store_->check({verdict})) return;
  const std::string text = text_of(store_->get(verdict));
  TORCH_CHECK(text == kAgreed, text);
}

}  // namespace metalops::distributed
