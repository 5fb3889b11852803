/* A stand-in for a running QEMU: its command line, its threads by name, all asleep.
 *
 * Reads `-smp N` from its arguments and makes N vCPU threads and seven others, so that with the main thread
 * `-smp 8` gives 16. Writes one byte to standard output when all are there and named. Dies with its parent.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *asleep(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static void make(const char *name)
{
	pthread_t thread;
	pthread_attr_t small;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	if (pthread_create(&thread, &small, asleep, NULL) || pthread_setname_np(thread, name)) {
		perror(name);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	char name[16];
	int vcpus = 1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "qemu-system-x86");
	for (int at = 1; at + 1 < argc; at++)
		if (!strcmp(argv[at], "-smp"))
			vcpus = atoi(argv[at + 1]);
	make("call_rcu");
	make("IO iothread0");
	make("IO mon_iothread");
	for (int vcpu = 0; vcpu < vcpus; vcpu++) {
		snprintf(name, sizeof name, "CPU %u/KVM", (unsigned short)vcpu);
		make(name);
	}
	snprintf(name, sizeof name, "vhost-%u", (unsigned)getpid() % 100000000u);
	for (int queue = 0; queue < 4; queue++)
		make(name);
	if (write(STDOUT_FILENO, ".", 1) != 1)
		return 1;
	asleep(NULL);
	return 0;
}
