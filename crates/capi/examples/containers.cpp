// Containers in a class of memory: an allocator, a memory_resource, and a commit at the end of a scope.
#include <cstdio>
#include <numeric>
#include <terrace.hpp>

int main() {
    terrace::memory memory;
    try {
        terrace::attributes later;
        later.on(TERRACE_CLASS_FASTEST).on_commit().priority(5).name("matrix");
        terrace::allocator<double> in_class(memory, later);
        std::vector<double, terrace::allocator<double>> matrix(in_class);
        {
            terrace::epoch commit_at_the_end(memory);
            matrix.reserve(1u << 20);
        }
        matrix.resize(1u << 20, 0.5);
        const auto where = memory.describe(matrix.data());
        std::printf("matrix: %s\n", where[0].why);
        if (std::accumulate(matrix.begin(), matrix.end(), 0.0) != (1u << 19)) return 1;

        terrace::attributes slow;
        slow.on(TERRACE_CLASS_SLOWEST);
        terrace::resource pages(memory, slow);
        std::pmr::unsynchronized_pool_resource small(&pages);
        std::pmr::vector<std::pmr::string> names(&small);
        for (int i = 0; i < 1000; i++) names.emplace_back("a name too long to be kept in the string itself");
        if (names.back().size() != 47) return 2;
    } catch (const terrace::error &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 3;
    }
    terrace::attributes strict;
    strict.on(0).strict();
    try {
        memory.allocate(std::size_t{1} << 45, strict);
        return 4;
    } catch (const terrace::error &e) {
        if (e.code() != TERRACE_E_NO_ROOM) return 5;
    }
    std::puts("done");
}
