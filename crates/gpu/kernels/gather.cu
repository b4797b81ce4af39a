// Rows of a key-value table gathered by index, one element a thread.
#define DIMENSION 64
extern "C" __global__ void gather(const int *slot, const float *table, float *out, int n)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < n * DIMENSION) {
        int row = t / DIMENSION;
        int column = t % DIMENSION;
        out[t] = table[slot[row] * DIMENSION + column];
    }
}
