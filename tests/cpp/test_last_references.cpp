// The end of a call's arguments: once inside the host's lock, and, without a host that has one, where they end anyhow.
#include <optional>
#include <string>
#include <vector>

#include "operators/last_references.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

std::vector<std::string>& events() {
    static std::vector<std::string> all;
    return all;
}

struct Reference {
    explicit Reference(std::string name) : name(std::move(name)) {}
    ~Reference() { events().push_back(name); }
    std::string name;
};
struct Arguments {
    Reference query{"query"}, key{"key"};
};

void with_lock(void (*drop)(void*), void* arguments) {
    events().push_back("lock");
    drop(arguments);
    events().push_back("unlock");
}

std::vector<std::string> events_of_a_call(WithGil hook) {
    with_gil.store(hook);
    events().clear();
    {
        std::optional<Arguments> arguments(std::in_place);
        drop(arguments);
        EXPECT_EQ(arguments.has_value(), hook == nullptr);
        events().push_back("results");
    }
    return events();
}

TEST(LastReferences, AllEndInsideTheLockWhichIsTakenOnce) {
    EXPECT_EQ(events_of_a_call(with_lock), (std::vector<std::string>{"lock", "key", "query", "unlock", "results"}));
}

TEST(LastReferences, WithoutALockTheyEndWithTheCall) {
    EXPECT_EQ(events_of_a_call(nullptr), (std::vector<std::string>{"results", "key", "query"}));
}

TEST(LastReferences, ArgumentsThatEndedAlreadyAreNoError) {
    with_gil.store(with_lock);
    std::optional<Arguments> none;
    drop(none);
    EXPECT_FALSE(none.has_value());
}

}  // namespace
}  // namespace gdn_cuda::test
