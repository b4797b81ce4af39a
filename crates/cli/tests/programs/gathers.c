/* Gathers four doubles of which a mask takes three, and four integers: prints where they lie.
 * Status 0, or 3 without AVX2. */
#include <immintrin.h>
#include <stdio.h>

static double doubles[64];
static int integers[64];

__attribute__((target("avx2"), noinline)) static void gather(double *d, int *i)
{
    __m256d mask = _mm256_castsi256_pd(_mm256_set_epi64x(-1, 0, -1, -1));
    __m256d some = _mm256_mask_i32gather_pd(_mm256_setzero_pd(), doubles, _mm_set_epi32(30, 20, 10,
        0), mask, 8);
    __m128i all = _mm256_i64gather_epi32(integers, _mm256_set_epi64x(50, 30, 20, 10), 4);
    _mm256_storeu_pd(d, some);
    _mm_storeu_si128((__m128i *)i, all);
}

int main(void)
{
    double d[4];
    int i[4];
    if (!__builtin_cpu_supports("avx2"))
        return 3;
    gather(d, i);
    printf("%#lx %#lx\n", (unsigned long)doubles, (unsigned long)integers);
    return 0;
}
