/* Makes processes, so many a second: `storm RATE SECONDS exec|fork`. Each ends at once; with `exec` it executes this
 * program before. Prints how many there were and how many nanoseconds that took. Dies with its parent.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000L

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * SECOND + time.tv_nsec;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 0;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGCHLD, SIG_IGN);

	long every = SECOND / atol(argv[1]), begin = now(), end = begin + atol(argv[2]) * SECOND, next = begin, count = 0;
	int executes = !strcmp(argv[3], "exec");

	for (; now() < end; count++) {
		if (executes) {
			if (!vfork()) {
				execl("/proc/self/exe", "storm", NULL);
				_exit(1);
			}
		} else if (!fork()) {
			_exit(0);
		}
		next += every;
		struct timespec at = {.tv_sec = next / SECOND, .tv_nsec = next % SECOND};
		if (next > now())
			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
	}
	printf("%ld %ld\n", count, now() - begin);
	return 0;
}
