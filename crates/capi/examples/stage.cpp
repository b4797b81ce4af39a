// Staging from C++: results, and an exception of the kernel.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <terrace.hpp>

int main() {
    std::vector<float> data(400'000);
    std::iota(data.begin(), data.end(), 0.0f);
    std::vector<terrace::stage::block> blocks;
    for (std::size_t at = 0; at < data.size(); at += 30'000) blocks.push_back({at, std::min(at + 30'000, data.size())});

    terrace::stage stage(0);
    stage.fixed(1, 1).buffers(4u << 20).work(2.0);
    try {
        const auto done = stage.update(data.data(), data.size(), blocks, [](std::size_t, float *part, std::size_t count) {
            for (std::size_t i = 0; i < count; i++) part[i] = part[i] * 2 + 1;
        });
        for (std::size_t i = 0; i < data.size(); i++) {
            if (data[i] != static_cast<float>(i) * 2 + 1) return std::printf("wrong at %zu\n", i), 1;
        }
        std::printf("%zu blocks, %llu bytes brought\n", blocks.size(), static_cast<unsigned long long>(done.brought_bytes));
    } catch (const terrace::error &e) {
        if (e.code() != TERRACE_E_KERNEL) throw;
        return std::printf("skipped: %s\n", e.what()), 0;
    }
    std::size_t at = 0;
    const auto rest = [&]() -> std::optional<terrace::stage::block> {
        if (at == data.size()) return std::nullopt;
        const std::size_t first = at;
        return terrace::stage::block{first, at = std::min(at + 30'000, data.size())};
    };
    std::atomic<double> sum{0};
    stage.sequence(1).read(data.data(), data.size(), rest, [&](std::size_t, const float *part, std::size_t count) {
        const double of = std::accumulate(part, part + count, 0.0);
        for (double was = sum; !sum.compare_exchange_weak(was, was + of);) {}
    });
    if (sum != std::accumulate(data.begin(), data.end(), 0.0)) return std::printf("the sum is wrong\n"), 1;
    try {
        const auto breaks = []() -> std::optional<terrace::stage::block> { throw std::out_of_range("no blocks"); };
        stage.update(data.data(), data.size(), breaks, [](std::size_t, float *, std::size_t) {});
        return std::printf("the exception was lost\n"), 1;
    } catch (const std::out_of_range &) {
    }
    try {
        stage.read(data.data(), data.size(), blocks, [](std::size_t number, const float *, std::size_t) {
            if (number == 3) throw std::runtime_error("three");
        });
        return std::printf("the exception was lost\n"), 1;
    } catch (const std::runtime_error &e) {
        return std::string(e.what()) == "three" ? 0 : 1;
    }
}
