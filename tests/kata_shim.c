/* A stand-in for Kata's shim, which counts its CPUs where Kata does, by its own mask.
 *
 *   -id SANDBOX … start   as containerd runs it: starts the shim itself (the same words but the last) and ends
 *   -id SANDBOX …         the shim: writes its pid and the number of CPUs it may use at its start (Go's
 *                         runtime.NumCPU()), then obeys lines of standard input, with one line of answer each:
 *   create                the Go shim, checking a pod's annotations: what it counted at its start
 *   config                runtime-rs, loading its configuration: num_cpus::get() in a worker thread
 *   vmm PROGRAM WORD…     starts a VMM: its pid
 *   vcpu N                Dragonball: makes a vCPU thread of its own: its tid
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORDS 64

static sem_t asked, answered;
static int counted;

static int count(void)
{
	cpu_set_t mask;

	return sched_getaffinity(0, sizeof mask, &mask) ? -1 : CPU_COUNT(&mask);
}

static void *worker(void *unused)
{
	for (;;) {
		sem_wait(&asked);
		counted = count();
		sem_post(&answered);
	}
	return unused;
}

static void *vcpu(void *name)
{
	prctl(PR_SET_NAME, name);
	counted = (int)syscall(SYS_gettid);
	sem_post(&answered);
	for (;;)
		pause();
	return NULL;
}

static void thread(void *(*run)(void *), void *with)
{
	pthread_t made;

	if (pthread_create(&made, NULL, run, with))
		exit(1);
}

static int vmm(char *line)
{
	char *words[WORDS] = {NULL};
	int number = 0;
	pid_t pid;

	for (char *word = strtok(line, " "); word && number < WORDS - 1; word = strtok(NULL, " "))
		words[number++] = word;
	pid = fork();
	if (!pid) {
		freopen("/dev/null", "r", stdin);
		freopen("/dev/null", "w", stdout);
		execvp(words[0], words);
		_exit(127);
	}
	return pid;
}

int main(int argc, char **argv)
{
	static char line[65536];
	int at_start = count();

	if (!strcmp(argv[argc - 1], "start")) {
		argv[argc - 1] = NULL;
		if (!fork())
			execv("/proc/self/exe", argv);
		return 0;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	sem_init(&asked, 0, 0);
	sem_init(&answered, 0, 0);
	thread(worker, NULL);
	printf("%d\n%d\n", getpid(), at_start);
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "create")) {
			counted = at_start;
		} else if (!strcmp(line, "config")) {
			sem_post(&asked);
			sem_wait(&answered);
		} else if (!strncmp(line, "vcpu ", 5)) {
			char name[16];

			snprintf(name, sizeof name, "db_vcpu%d", atoi(line + 5));
			thread(vcpu, strdup(name));
			sem_wait(&answered);
		} else if (!strncmp(line, "vmm ", 4)) {
			counted = vmm(line + 4);
		} else {
			return 1;
		}
		printf("%d\n", counted);
	}
	return 0;
}
