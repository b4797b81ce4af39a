/* Fast Fourier transform, Mandelbrot set, complex and long double arithmetic. */
#include <complex.h>
#include <fenv.h>
#include <math.h>
#include <stdio.h>

#define N 1024
static double complex data[N], scratch[N];

static void transform(double complex *in, double complex *out, int n, int stride)
{
	if (n == 1) {
		out[0] = in[0];
		return;
	}
	transform(in, out, n / 2, stride * 2);
	transform(in + stride, out + n / 2, n / 2, stride * 2);
	for (int k = 0; k < n / 2; k++) {
		double complex even = out[k], odd = cexp(-2 * I * M_PI * k / n) * out[k + n / 2];
		out[k] = even + odd;
		out[k + n / 2] = even - odd;
	}
}

int main(void)
{
	for (int i = 0; i < N; i++)
		data[i] = sin(i * 0.1) + I * cos(i * 0.37);
	transform(data, scratch, N, 1);
	double complex sum = 0;
	for (int i = 0; i < N; i++)
		sum += scratch[i] * (i % 7);
	printf("%.17g %.17g\n", creal(sum), cimag(sum));
	long inside = 0;
	for (int y = -60; y < 60; y++)
		for (int x = -120; x < 60; x++) {
			float complex z = 0, c = x / 60.0f + I * (y / 60.0f);
			int n = 0;
			while (n < 100 && crealf(z) * crealf(z) + cimagf(z) * cimagf(z) < 4)
				z = z * z + c, n++;
			inside += n;
		}
	long double e = 1, term = 1;
	for (int i = 1; i < 30; i++)
		e += term /= i;
	printf("%ld %.33Lg\n", inside, e);
	int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
	for (int i = 0; i < 4; i++) {
		fesetround(modes[i]);
		volatile double third = 1.0, three = 3.0;
		volatile float f = 0.1f;
		printf("%a %a %ld\n", third / three, f * f, lrint(2.5));
	}
	fesetround(FE_TONEAREST);
	printf("%.17g %.17g %.17g %.17g\n", tgamma(4.5), erf(0.3), pow(2.1, 7.3), fma(1e16, 1.1, -1e16));
	return 0;
}
