// A polynomial at many places, by Horner's rule.
extern "C" __global__ void polynomial(const float *x, const float *coefficient, float *out, int n,
                                      int degree)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float at = x[i];
        float sum = 0.0f;
        for (int k = 0; k < degree; k++)
            sum = sum * at + coefficient[k];
        out[i] = sum;
    }
}
