// Far memory from C++: elements, ranges of them, errors. Whole pages, so that all of them can be discarded.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <terrace.hpp>

int main() {
    try {
        const std::size_t count = 4u << 20, dram = 8u << 20;
        terrace::far_array<double> a(count, dram, "compressed");
        std::iota(a.begin(), a.end(), 0.5);
        a.flush();
        const double sum = std::accumulate(a.begin(), a.end(), 0.0);
        const terrace_far_counts counts = a.counts();
        if (sum != 0.5 * count * count || counts.read_bytes == 0 || counts.resident_bytes > dram) {
            return std::printf("wrong: %f, %llu bytes read\n", sum, static_cast<unsigned long long>(counts.read_bytes)), 1;
        }
        a.pin(0, 1000);
        a.prefetch(100'000, 200'000);
        a.advise(0, count, TERRACE_FAR_DISCARD);
        if (std::any_of(a.begin(), a.end(), [](double x) { return x != 0; })) return std::printf("not zeros\n"), 1;
        try {
            a.pin(0, count + 1);
            return std::printf("a range beyond the array was taken\n"), 1;
        } catch (const std::out_of_range &) {
        }
        std::printf("%zu elements, %llu bytes read\n", a.size(), static_cast<unsigned long long>(counts.read_bytes));
    } catch (const terrace::error &e) {
        if (e.code() != TERRACE_E_KERNEL) throw;
        std::printf("skipped: %s\n", e.what());
    }
    try {
        terrace::far_array<int> none(10, 8u << 20, "/no/such/folder");
        return 1;
    } catch (const terrace::error &e) {
        return e.code() == TERRACE_E_STORE ? 0 : 1;
    }
}
