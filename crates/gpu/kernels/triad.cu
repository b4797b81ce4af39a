// STREAM's triad.
extern "C" __global__ void triad(const float *b, const float *c, float *a, int n, float scale)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        a[i] = b[i] + scale * c[i];
}
