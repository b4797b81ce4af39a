// terrace.hpp: C++17 over terrace.h; header only. SPDX-License-Identifier: Apache-2.0 OR MIT
//
//   terrace::memory        the handle, RAII
//   terrace::attributes    attributes of an allocation
//   terrace::report        the outcome of a commit
//   terrace::resource      std::pmr::memory_resource over attributes
//   terrace::allocator<T>  allocator for containers; keeps memory and attributes
//   terrace::stage         processes slow data block by block through fast memory, by a callable
//   terrace::far_array<T>  an array larger than its DRAM, with the rest compressed or on a disk
//
// Errors are terrace::error, with the code and the full text. Allocators throw std::bad_alloc when
// memory runs out.
#ifndef TERRACE_HPP
#define TERRACE_HPP

#include "terrace.h"

#include <cstddef>
#include <exception>
#include <limits>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace terrace {

class error : public std::runtime_error {
public:
    explicit error(int code) : std::runtime_error(terrace_last_error()), code_(code) {}
    int code() const noexcept { return code_; }

private:
    int code_;
};

inline void check(int code) {
    if (code < 0) throw error(code);
}

// Attributes of an allocation. Copies share one state; a shared state is not changed any more.
class attributes {
public:
    attributes() {
        terrace_attr *made = nullptr;
        check(terrace_attr_create(&made));
        held_.reset(made, terrace_attr_destroy);
    }

    // Setters return the object, so that calls can be chained: wish.on(0).strict().
    attributes &on(int class_id, int index = TERRACE_INDEX_ALL) & { return set(terrace_attr_add_class(own(), class_id, index)); }
    attributes &split(int kind) & { return set(terrace_attr_set_split(own(), kind)); }
    attributes &chunk(std::uint64_t pages) & { return set(terrace_attr_set_chunk(own(), pages)); }
    attributes &weights(const std::vector<std::uint32_t> &w) & { return set(terrace_attr_set_weights(own(), w.data(), w.size())); }
    attributes &on_commit() & { return set(terrace_attr_set_binding(own(), TERRACE_BIND_ON_COMMIT)); }
    attributes &strict() & { return set(terrace_attr_set_mismatch(own(), TERRACE_MISMATCH_ERROR)); }
    attributes &priority(std::uint32_t p) & { return set(terrace_attr_set_priority(own(), p)); }
    attributes &intensity(double reads, double writes) & { return set(terrace_attr_set_intensity(own(), reads, writes)); }
    attributes &pages(int size) & { return set(terrace_attr_set_pages(own(), size)); }
    attributes &lifetime(int span) & { return set(terrace_attr_set_lifetime(own(), span)); }
    attributes &whole(bool is) & { return set(terrace_attr_set_whole(own(), is ? 1 : 0)); }
    // For CUDA managed memory: moves pages to their GPU when they are bound.
    attributes &prefetch(bool ahead = true) & { return set(terrace_attr_set_prefetch(own(), ahead ? 1 : 0)); }
    attributes &name(const std::string &text) & { return set(terrace_attr_set_name(own(), text.c_str())); }

    const terrace_attr *get() const noexcept { return held_.get(); }
    // Two objects with one state are equal.
    friend bool operator==(const attributes &a, const attributes &b) noexcept { return a.held_ == b.held_; }

private:
    terrace_attr *own() {
        if (held_.use_count() > 1) throw std::logic_error("attributes that are in use are not changed; build them first");
        return held_.get();
    }
    attributes &set(int code) {
        check(code);
        return *this;
    }
    std::shared_ptr<terrace_attr> held_;
};

// The outcome of a commit.
class report {
public:
    explicit report(terrace_report *held) : held_(held, terrace_report_destroy) {}
    std::size_t size() const noexcept { return terrace_report_count(held_.get()); }
    terrace_row operator[](std::size_t at) const {
        terrace_row row{};
        check(terrace_report_row(held_.get(), at, &row));
        return row;
    }
    std::uint64_t got(std::size_t at, int class_id) const noexcept { return terrace_report_got(held_.get(), at, class_id); }

private:
    std::unique_ptr<terrace_report, decltype(&terrace_report_destroy)> held_;
};

// The handle. Its memory is freed with it, so it must outlive containers.
class memory {
public:
    memory() {
        terrace_memory *made = nullptr;
        check(terrace_memory_create(&made));
        held_.reset(made);
    }
    void *allocate(std::size_t bytes, const attributes &wish) {
        void *at = nullptr;
        check(terrace_memory_alloc(held_.get(), bytes, wish.get(), &at));
        return at;
    }
    void free(void *at) { check(terrace_memory_free(held_.get(), at)); }
    // Refused strict allocations are in the report; they throw no exception.
    report commit(int scope = TERRACE_COMMIT_EPOCH) {
        terrace_report *made = nullptr;
        const int code = terrace_memory_commit(held_.get(), scope, &made);
        if (code < 0 && made == nullptr) throw error(code);
        return report(made);
    }
    report describe(const void *at) {
        terrace_report *made = nullptr;
        check(terrace_memory_describe(held_.get(), at, &made));
        return report(made);
    }
    int classes() const noexcept { return terrace_memory_class_count(held_.get()); }
    // Number of GPUs with managed memory, which bounds the indices of TERRACE_CLASS_CUDA_MANAGED.
    // 0 if there are none; terrace_last_error says why.
    int gpus() const noexcept {
        const int count = terrace_memory_class_nodes(held_.get(), TERRACE_CLASS_CUDA_MANAGED);
        return count < 0 ? 0 : count;
    }
    terrace_gpu gpu(int index) const {
        terrace_gpu told{};
        check(terrace_memory_gpu(held_.get(), index, &told));
        return told;
    }
    terrace_memory *get() const noexcept { return held_.get(); }

private:
    struct destroy {
        void operator()(terrace_memory *m) const noexcept { terrace_memory_destroy(m); }
    };
    std::unique_ptr<terrace_memory, destroy> held_;
};

// Commits the allocations of its scope when the scope ends.
class epoch {
public:
    explicit epoch(memory &m) : memory_(m) {}
    epoch(const epoch &) = delete;
    epoch &operator=(const epoch &) = delete;
    ~epoch() {
        // Without placement the memory is usable all the same, so errors are ignored.
        (void)terrace_memory_commit(memory_.get(), TERRACE_COMMIT_EPOCH, nullptr);
    }

private:
    memory &memory_;
};

namespace detail {
inline void *get(terrace_memory *m, std::size_t bytes, const terrace_attr *wish) {
    void *at = nullptr;
    switch (const int code = terrace_memory_alloc(m, bytes, wish, &at)) {
    case TERRACE_OK: return at;
    case TERRACE_E_NO_ROOM:
    case TERRACE_E_TOO_LARGE:
    case TERRACE_E_KERNEL: throw std::bad_alloc();
    default: throw error(code);
    }
}
// Alignment of the memory that terrace_memory_alloc returns.
constexpr std::size_t page = 4096;
} // namespace detail

// For std::pmr containers. Every allocation takes whole pages. For small objects, put a
// std::pmr::monotonic_buffer_resource or a pool on top.
class resource : public std::pmr::memory_resource {
public:
    resource(memory &m, attributes wish) : memory_(m.get()), wish_(std::move(wish)) {}

private:
    void *do_allocate(std::size_t bytes, std::size_t align) override {
        if (align > detail::page) throw std::bad_alloc();
        return detail::get(memory_, bytes, wish_.get());
    }
    void do_deallocate(void *at, std::size_t, std::size_t) override { (void)terrace_memory_free(memory_, at); }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
        const auto *o = dynamic_cast<const resource *>(&other);
        return o != nullptr && o->memory_ == memory_;
    }
    terrace_memory *memory_;
    attributes wish_;
};

// For containers. Allocators over the same memory are equal: each may free what the other
// allocated.
template <class T> class allocator {
public:
    using value_type = T;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;

    allocator(memory &m, attributes wish) : memory_(m.get()), wish_(std::move(wish)) {}
    template <class U> allocator(const allocator<U> &other) noexcept : memory_(other.memory_), wish_(other.wish_) {}

    T *allocate(std::size_t count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T) || alignof(T) > detail::page) {
            throw std::bad_array_new_length();
        }
        return static_cast<T *>(detail::get(memory_, count * sizeof(T), wish_.get()));
    }
    void deallocate(T *at, std::size_t) noexcept { (void)terrace_memory_free(memory_, at); }

    template <class U> bool operator==(const allocator<U> &other) const noexcept { return memory_ == other.memory_; }
    template <class U> bool operator!=(const allocator<U> &other) const noexcept { return memory_ != other.memory_; }

private:
    template <class U> friend class allocator;
    terrace_memory *memory_;
    attributes wish_;
};

// Processes blocks of data in slow memory through buffers on a fast node. Several threads call
// kernels at once.
class stage {
public:
    // Elements [first, last) of the data.
    struct block {
        std::size_t first, last;
    };

    // The callable that gives blocks.
    template <class N> using given_by = std::enable_if_t<std::is_invocable_r<std::optional<block>, N &>::value>;

    explicit stage(std::uint32_t fast_node) {
        terrace_stage *made = nullptr;
        check(terrace_stage_create(fast_node, &made));
        held_.reset(made);
    }
    stage &threads(std::uint32_t all) { return set(terrace_stage_set_threads(held_.get(), TERRACE_STAGE_AUTO, all, 0)); }
    stage &fixed(std::uint32_t workers, std::uint32_t migrators) {
        return set(terrace_stage_set_threads(held_.get(), TERRACE_STAGE_FIXED, workers, migrators));
    }
    stage &in_place(std::uint32_t all) { return set(terrace_stage_set_threads(held_.get(), TERRACE_STAGE_IN_PLACE, all, 0)); }
    stage &cpus(const std::vector<std::uint32_t> &list) { return set(terrace_stage_set_cpus(held_.get(), list.data(), list.size())); }
    stage &buffers(std::uint64_t room_bytes, std::uint32_t slots = 0) { return set(terrace_stage_set_buffers(held_.get(), room_bytes, slots)); }
    // Kernels work on their blocks in place; pages move, and no bytes are copied.
    stage &keep_addresses(bool keep = true) { return set(terrace_stage_keep_addresses(held_.get(), keep)); }
    stage &work(double passes, double compute_ns_per_byte = 0) { return set(terrace_stage_set_work(held_.get(), passes, compute_ns_per_byte)); }
    // Figures of a machine file or a preset; if empty, of this machine.
    stage &machine(const std::string &from, std::uint32_t initiator, std::uint32_t slow) {
        return set(terrace_stage_set_machine(held_.get(), from.empty() ? nullptr : from.c_str(), initiator, slow));
    }

    // Facts about blocks that a callable gives: how many to ask for before the run starts, their
    // number, and the bytes of the largest. 0: unknown.
    stage &sequence(std::size_t ahead, std::size_t expected = 0, std::uint64_t largest_bytes = 0) {
        return set(terrace_stage_set_sequence(held_.get(), ahead, expected, largest_bytes));
    }

    // kernel(number, T *part, count); its results are kept. An exception ends the run and is thrown
    // again here.
    template <class T, class F> terrace_staged update(T *data, std::size_t count, const std::vector<block> &blocks, F &&kernel) {
        static_assert(std::is_trivially_copyable<T>::value, "blocks are copied as bytes");
        call<T, F> c(kernel);
        const auto list = bytes<T>(blocks);
        terrace_staged done{};
        c.ended(terrace_stage_update(held_.get(), data, count * sizeof(T), list.data(), list.size(), call<T, F>::run, &c, &done));
        return done;
    }
    // kernel(number, const T *part, count).
    template <class T, class F> terrace_staged read(const T *data, std::size_t count, const std::vector<block> &blocks, F &&kernel) {
        static_assert(std::is_trivially_copyable<T>::value, "blocks are copied as bytes");
        call<const T, F> c(kernel);
        const auto list = bytes<T>(blocks);
        terrace_staged done{};
        c.ended(terrace_stage_read(held_.get(), data, count * sizeof(T), list.data(), list.size(), call<const T, F>::run, &c, &done));
        return done;
    }

    // For blocks that `next` gives as a std::optional<block> when a buffer is free. Its exceptions end
    // the run too.
    template <class T, class N, class F, class = given_by<N>> terrace_staged update(T *data, std::size_t count, N &&next, F &&kernel) {
        static_assert(std::is_trivially_copyable<T>::value, "blocks are copied as bytes");
        call<T, F> c(kernel);
        giver<T, N> g(next);
        terrace_staged done{};
        const int code = terrace_stage_update_from(held_.get(), data, count * sizeof(T), giver<T, N>::give, &g, call<T, F>::run, &c, &done);
        if (g.thrown) std::rethrow_exception(g.thrown);
        c.ended(code);
        return done;
    }
    template <class T, class N, class F, class = given_by<N>> terrace_staged read(const T *data, std::size_t count, N &&next, F &&kernel) {
        static_assert(std::is_trivially_copyable<T>::value, "blocks are copied as bytes");
        call<const T, F> c(kernel);
        giver<T, N> g(next);
        terrace_staged done{};
        const int code = terrace_stage_read_from(held_.get(), data, count * sizeof(T), giver<T, N>::give, &g, call<const T, F>::run, &c, &done);
        if (g.thrown) std::rethrow_exception(g.thrown);
        c.ended(code);
        return done;
    }

private:
    // One thread at a time calls it.
    template <class T, class N> struct giver {
        explicit giver(N &n) : next(n) {}
        static int give(terrace_block *to, void *user) {
            auto *self = static_cast<giver *>(user);
            try {
                const std::optional<block> b = self->next();
                if (!b) return 0;
                *to = as_bytes<T>(*b);
                return 1;
            } catch (...) {
                self->thrown = std::current_exception();
                return -1;
            }
        }
        N &next;
        std::exception_ptr thrown;
    };
    template <class T> static terrace_block as_bytes(const block &b) {
        if (b.last < b.first) throw std::invalid_argument("a block ends before it begins");
        return {b.first * sizeof(T), (b.last - b.first) * sizeof(T)};
    }
    // An exception must not pass through the library, so it is kept here until the threads end.
    template <class T, class F> struct call {
        explicit call(F &k) : kernel(k) {}
        static int run(std::size_t block, void *at, std::size_t bytes, void *user) {
            auto *self = static_cast<call *>(user);
            try {
                self->kernel(block, static_cast<T *>(at), bytes / sizeof(T));
                return 0;
            } catch (...) {
                const std::lock_guard<std::mutex> lock(self->mutex);
                if (!self->thrown) self->thrown = std::current_exception();
                return 1;
            }
        }
        void ended(int code) {
            if (thrown) std::rethrow_exception(thrown);
            check(code);
        }
        F &kernel;
        std::mutex mutex;
        std::exception_ptr thrown;
    };
    template <class T> static std::vector<terrace_block> bytes(const std::vector<block> &blocks) {
        std::vector<terrace_block> list;
        list.reserve(blocks.size());
        for (const block &b : blocks) list.push_back(as_bytes<T>(b));
        return list;
    }
    stage &set(int code) {
        check(code);
        return *this;
    }
    struct destroy {
        void operator()(terrace_stage *s) const noexcept { terrace_stage_destroy(s); }
    };
    std::unique_ptr<terrace_stage, destroy> held_;
};

// An array in far memory, all zero bytes at first; freed with the object. Ranges are of elements,
// from `first` to before `last`.
template <class T> class far_array {
public:
    static_assert(std::is_trivially_copyable<T>::value, "elements go to a store and come back as bytes");

    // `store`: a folder, "compressed", or a folder and "+compressed".
    far_array(std::size_t count, std::size_t dram_bytes, const std::string &store) : count_(count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
        terrace_far *made = nullptr;
        check(terrace_far_map(count * sizeof(T), dram_bytes, store.c_str(), &made));
        held_.reset(made);
    }
    // The whole elements of an existing file. With `writable`, changes are written to the file.
    static far_array open(const std::string &path, std::size_t dram_bytes, bool writable = false) {
        terrace_far *made = nullptr;
        std::size_t bytes = 0;
        check(terrace_far_open(path.c_str(), dram_bytes, writable ? 1 : 0, &made, &bytes));
        return far_array(made, bytes / sizeof(T));
    }
    T *data() const noexcept { return static_cast<T *>(terrace_far_address(held_.get())); }
    std::size_t size() const noexcept { return count_; }
    T *begin() const noexcept { return data(); }
    T *end() const noexcept { return data() + count_; }
    T &operator[](std::size_t at) const noexcept { return data()[at]; }

    void flush() const { check(terrace_far_flush(held_.get())); }
    void prefetch(std::size_t first, std::size_t last) const { advise(first, last, TERRACE_FAR_WILL_NEED); }
    void advise(std::size_t first, std::size_t last, int advice) const {
        check(terrace_far_advise(held_.get(), first * sizeof(T), bytes(first, last), advice));
    }
    void pin(std::size_t first, std::size_t last, bool on = true) const {
        check(terrace_far_pin(held_.get(), first * sizeof(T), bytes(first, last), on ? 1 : 0));
    }
    void set_dram(std::size_t dram_bytes) const { check(terrace_far_set_dram(held_.get(), dram_bytes)); }
    terrace_far_counts counts() const {
        terrace_far_counts told{};
        check(terrace_far_stats(held_.get(), &told));
        return told;
    }
    terrace_far *get() const noexcept { return held_.get(); }

private:
    far_array(terrace_far *held, std::size_t count) noexcept : held_(held), count_(count) {}
    std::size_t bytes(std::size_t first, std::size_t last) const {
        if (last < first || last > count_) throw std::out_of_range("a range that is not of the array");
        return (last - first) * sizeof(T);
    }
    struct destroy {
        void operator()(terrace_far *f) const noexcept { (void)terrace_far_unmap(f); }
    };
    std::unique_ptr<terrace_far, destroy> held_;
    std::size_t count_;
};

} // namespace terrace

#endif
