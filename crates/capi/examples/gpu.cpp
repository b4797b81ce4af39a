// A vector in CUDA managed memory, in C++; without CUDA in the fastest memory there is, and it is said why.
#include <cstdio>
#include <terrace.hpp>
#include <vector>

int main() {
    terrace::memory memory;
    terrace::attributes wish;
    wish.on(TERRACE_CLASS_CUDA_MANAGED).on(TERRACE_CLASS_FASTEST).prefetch();
    std::vector<double, terrace::allocator<double>> field(1 << 19, 1.0, terrace::allocator<double>(memory, wish));
    std::printf("%d GPUs; %s\n", memory.gpus(), memory.describe(field.data())[0].why);
    for (int i = 0; i < memory.gpus(); i++) std::printf("%s\n", memory.gpu(i).name);
    return field.back() == 1.0 ? 0 : 1;
}
