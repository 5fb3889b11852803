/* A process that executes itself again and again: `reexec RATE SECONDS BYTES NAME`. RATE is how often a second, 0 for as
 * often as it can; each time it has BYTES of command line (as far as the kernel takes so many) under the name NAME. Prints
 * how often it did and how many nanoseconds that took. Dies with its parent.
 *
 * A command line is worst to read in its first part: that is of very many very short options. What follows is long words,
 * so that the pointers to them fit into what the kernel allows (execve(2): a quarter of the stack's limit, at most 6 MB;
 * a word at most 128 KiB).
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000L
#define SHORT (128 * 1024L)
#define LONG (64 * 1024L)

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * SECOND + time.tv_nsec;
}

int main(int argc, char **argv)
{
	/* What is to be kept goes through the environment: the command line is what is measured. */
	long every, begin, end, next, bytes, count;
	char name[256];
	const char *kept = getenv("REEXEC");

	if (kept) {
		if (sscanf(kept, "%ld %ld %ld %ld %ld %ld %255s", &every, &begin, &end, &next, &bytes, &count, name) != 7)
			return 2;
	} else {
		if (argc != 5)
			return 2;
		struct rlimit stack;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!getrlimit(RLIMIT_STACK, &stack)) {
			stack.rlim_cur = stack.rlim_max;
			setrlimit(RLIMIT_STACK, &stack);
		}
		every = atol(argv[1]) ? SECOND / atol(argv[1]) : 0;
		begin = next = now();
		end = begin + atol(argv[2]) * SECOND;
		bytes = atol(argv[3]);
		count = 0;
		snprintf(name, sizeof(name), "%s", argv[4]);
	}
	if (now() >= end) {
		printf("%ld %ld\n", count, now() - begin);
		return 0;
	}
	next += every;
	if (every && next > now()) {
		struct timespec at = {.tv_sec = next / SECOND, .tv_nsec = next % SECOND};

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
	}

	char said[512], *word = malloc(LONG);
	char **words = malloc((SHORT / 4 + bytes / LONG + 8) * sizeof(*words));
	long at = 0, used = strlen(name) + 1;

	if (!word || !words)
		return 2;
	words[at++] = name;
	for (; used < bytes && used < SHORT; used += 8) {
		words[at++] = "-name";
		words[at++] = "a";
	}
	memset(word, 'x', LONG - 1);
	word[LONG - 1] = 0;
	for (; used < bytes; used += LONG)
		words[at++] = word;
	words[at] = NULL;
	snprintf(said, sizeof(said), "REEXEC=%ld %ld %ld %ld %ld %ld %s", every, begin, end, next, bytes, count + 1, name);
	execve("/proc/self/exe", words, (char *[]){said, NULL});
	perror("reexec");
	return 1;
}
