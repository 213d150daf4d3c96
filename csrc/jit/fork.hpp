// What a forked child inherits. Only the thread that forked exists there: locks of the others would stay locked for ever, work
// of theirs half done, and their lock files' descriptors would outlive the parent.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace gdn_cuda::jit {

// Held, no thread of this process forks. For a few instructions at a time; the rest of the core's short critical sections share
// it, so that a child finds what they guard whole.
[[nodiscard]] std::unique_lock<std::mutex> fork_lock();

// How many forks lie between this process and the one that loaded the library.
unsigned fork_generation();

// Calls `reset` in every child, before fork() returns there. It must not wait for anything.
void in_forked_child(std::function<void()> reset);

struct InForkedChild {  // the same from static storage
    explicit InForkedChild(std::function<void()> reset) { in_forked_child(std::move(reset)); }
};

// A mutex for work that takes long. A waiter notices interrupts, and a thread that already holds it (a signal handler that an
// interruption point ran) hears an Error in place of a deadlock.
class Mutex {
  public:
    void lock();
    void unlock();
    bool lost();  // in a forked child: a thread that only its parent has holds it

  private:
    std::timed_mutex mutex_;
    std::atomic<std::thread::id> owner_{};
};

// A value and the mutex of those who work on it, in static storage. Never destroyed, since threads may run while the process
// ends. A child gets a new value in place of one that a thread of its parent was working on.
template <class Value>
class Guarded {
    struct Node {
        Mutex mutex;
        Value value;
    };

  public:
    Guarded() {
        in_forked_child([this] {
            if (current_.load()->mutex.lost()) current_.store(new Node);
        });
    }

    class Access {
      public:
        Value* operator->() const { return &node_->value; }
        Value& operator*() const { return node_->value; }

      private:
        friend class Guarded;
        struct Unlock {
            void operator()(Node* node) const { node->mutex.unlock(); }
        };
        explicit Access(Node* node) : node_(node) {}
        std::unique_ptr<Node, Unlock> node_;
    };

    Access lock() {
        Node* node = current_.load();
        node->mutex.lock();
        return Access(node);
    }

  private:
    std::atomic<Node*> current_{new Node};
};

// What `make` gives, kept in `kept` for the rest of the process. Threads that race may each make one, and the first is kept: a
// function's static variable would be locked while it is made, and in a child for ever.
template <class Value, class Make>
Value& made_once(std::atomic<Value*>& kept, Make&& make) {
    if (Value* value = kept.load(std::memory_order_acquire)) return *value;
    Value* made = new Value(make());
    Value* first = nullptr;
    if (kept.compare_exchange_strong(first, made, std::memory_order_acq_rel)) return *made;
    delete made;
    return *first;
}

}  // namespace gdn_cuda::jit
