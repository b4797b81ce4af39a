// Resampling of a particle filter: each thread finds its place in the cumulated weights.
extern "C" __global__ void particle(const float *cdf, const float *u, const float *x,
                                    const float *y, float *x_new, float *y_new, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float value = u[i];
        int found = n - 1;
        for (int k = 0; k < n; k++) {
            if (cdf[k] >= value) {
                found = k;
                break;
            }
        }
        x_new[i] = x[found];
        y_new[i] = y[found];
    }
}
