/* Formats, parsing, regular expressions, time and locale of the C library. */
#define _GNU_SOURCE
#include <float.h>
#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wchar.h>

int main(int argc, char **argv)
{
	char text[200];
	printf("%d %s [%5d|%-5d|%05d|%+d|%x|%#o]\n", argc, argv[1], 42, 42, 42, 42, 255, 8);
	printf("%.17g %a %e %g %Lg\n", 0.1, 1.0 / 3, DBL_MAX, DBL_MIN, (long double)1 / 3);
	printf("%.30f %g %g\n", M_PI, INFINITY, -NAN);
	printf("%.17g %.9g\n", strtod("123456789.123456789e-20", NULL), strtof("1e-45", NULL));
	printf("%ld %llu\n", strtol("-0x7fffffff", NULL, 16), strtoull("18446744073709551615", NULL, 10));
	regex_t pattern;
	regmatch_t found[3];
	regcomp(&pattern, "([a-z]+)=([0-9]+)", REG_EXTENDED);
	printf("%d", regexec(&pattern, "!! width=640;", 3, found, 0));
	for (int i = 0; i < 3; i++)
		printf(" %d-%d", (int)found[i].rm_so, (int)found[i].rm_eo);
	regfree(&pattern);
	time_t then = 1234567890;
	strftime(text, sizeof text, "%A %d %B %Y %H:%M:%S", gmtime(&then));
	printf("\n%s\n", text);
	for (char *at = strtok(strcpy(text, "a,b;;c d"), ",; "); at; at = strtok(NULL, ",; "))
		printf("<%s>", at);
	wchar_t wide[20];
	printf("\n%zu %ls\n", mbstowcs(wide, "wide", 20), wide);
	printf("%d %d\n", strverscmp("a9", "a10") < 0, strcasecmp("ABC", "abc"));
	return argc;
}
