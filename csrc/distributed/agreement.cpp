// Agreement: the keys that ranks write into the group's store, and how they are compared.
#include <c10/util/Exception.h>
#include <csrc/distributed/agreement.h>

#include <sstream>

namespace metalops::distributed {
namespace {

constexpr char kAgreed[] = "agreed";

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// The message of a rank to the others, one field per line.
struct Told {
  std::string rank;
  Agreement::Description description;

  std::string text() const {
    return rank + '\n' + description.call + '\n' + description.known_to_some;
  }
  static Told from(const std::string& text) {
    std::istringstream lines(text);
    Told told;
    std::getline(lines, told.rank);
    std::getline(lines, told.description.call);
    std::getline(lines, told.description.known_to_some);
    return told;
  }
};

bool agree(const Agreement::Description& a, const Agreement::Description& b) {
  return a.call == b.call &&
         (a.known_to_some == b.known_to_some || a.known_to_some.empty() || b.known_to_some.empty());
}

}  // namespace

Agreement::Agreement(c10::intrusive_ptr<c10d::Store> store, int rank, Scope scope)
    : shared_(std::move(store)), rank_(rank), scope_(std::move(scope)) {}

Agreement::Call Agreement::begin() {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(disagreement_.empty(), "there has been a disagreement before: ", disagreement_);
  return {calls_++};
}

// A clone of the group's store: threads that use the shared one must not wait for our requests.
c10d::Store& Agreement::store() {
  if (!store_) store_ = shared_->clone();
  return *store_;
}

std::string Agreement::key_of(const Call& call, const char* name) const {
  return "metalops/" + scope_.calls + "/" + std::to_string(call.number) + "/" + name;
}

std::string Agreement::key_of_disagreement() const {
  return "metalops/" + scope_.calls + "/disagreement";
}

void Agreement::disagree(const std::string& text) {
  disagreement_ = text;
  TORCH_CHECK(false, text);
}

void Agreement::tell(Call& call, const Describe& describe) {
  call.told = true;
  // (Store::compareSet would do this in one step, but FileStore's does not compare.)
  const Told mine{std::to_string(rank_), describe()};
  Told first = mine;
  if (store().add(key_of(call, "tickets"), 1) == 1) {
    store().set(key_of(call, "first"), bytes_of(mine.text()));
  } else {
    first = Told::from(text_of(store().get(key_of(call, "first"))));
  }
  if (!agree(first.description, mine.description)) {
    const auto said = [&](const Told& told) {
      return "rank " + told.rank + " " + scope_.verb + " " + told.description.call +
             told.description.known_to_some;
    };
    const std::string text = scope_.calls + " " + std::to_string(call.number) +
                             " of mps tensors in this group: " + said(first) + ", but " +
                             said(mine) + scope_.advice;
    store().set(key_of_disagreement(), bytes_of(text));
    store().set(key_of(call, "verdict"), bytes_of(text));
    disagree(text);
  }
  if (store().add(key_of(call, "agreeing"), 1) == scope_.size) {
    store().set(key_of(call, "verdict"), bytes_of(kAgreed));
  }
}

void Agreement::compare(Call& call, std::string key, const Describe& describe,
                        std::chrono::milliseconds patience) {
  const std::lock_guard lock(mutex_);
  if (!known_.insert(std::move(key)).second) return;
  tell(call, describe);
  const std::string verdict = key_of(call, "verdict");
  if (patience.count() > 0) {
    try {
      store().wait({verdict}, patience);
    } catch (const c10::DistNetworkError&) {
      throw;  // the store is gone
    } catch (const c10::Error&) {
      return;  // the other ranks are late
    }
  } else if (!store().check({verdict})) {
    return;
  }
  const std::string text = text_of(store().get(verdict));
  if (text != kAgreed) disagree(text);
}

void Agreement::look(Call& call, const Describe& describe, bool tells) {
  const std::lock_guard lock(mutex_);
  if (store().check({key_of_disagreement()})) {
    disagree(text_of(store().get(key_of_disagreement())));
  }
  if (call.told || !(tells || store().check({key_of(call, "first")}))) return;
  tell(call, describe);
}

}  // namespace metalops::distributed
