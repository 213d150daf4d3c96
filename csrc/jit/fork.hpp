// Safety after fork(). Only the forking thread exists in the child: mutexes held by other threads would stay locked, their work
// would stay half done, and inherited descriptors of lock files would keep those locked after the parent exits.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace gdn_cuda::jit {

// While this lock is held, no thread forks. Hold it for a few instructions only. It also guards the core's short critical
// sections, so that a child finds their data consistent.
[[nodiscard]] std::unique_lock<std::mutex> fork_lock();

// The number of forks between this process and the one that loaded the library.
unsigned fork_generation();

// Calls `reset` in every child before fork() returns there. It must not block.
void in_forked_child(std::function<void()> reset);

struct InForkedChild {  // the same, for static objects
    explicit InForkedChild(std::function<void()> reset) { in_forked_child(std::move(reset)); }
};

// A mutex for long work. Waiters notice interrupts; a thread that already owns it (in a signal handler run by an interruption
// point) gets an Error instead of a deadlock.
class Mutex {
  public:
    void lock();
    void unlock();
    bool lost();  // in a forked child: the owner was another thread of the parent

  private:
    std::timed_mutex mutex_;
    std::atomic<std::thread::id> owner_{};
};

// A value with its mutex, for static storage. Never destroyed, since threads may run during exit. If another thread of the
// parent held it at the fork, the child gets a fresh value.
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

// Stores the result of `make` in `kept` for the rest of the process. Racing threads may each call it; the first result wins. A
// function-local static is no alternative: its guard, locked during the call, would stay locked in a child.
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
