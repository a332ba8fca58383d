/* The GPUs of a node that is not there. Their state lies in a file that all processes map, so that several programs see
 * one node, and a test can load it, break it and read the trace of every write.
 *
 * The cap that counts follows a new limit exponentially; a GPU draws what it wants, up to that cap. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_GPUS 128
#define MOST_WRITES 65536
#define MAGIC 0x70645057u

typedef struct {
    double demand_w, kept_w, since_s, energy_j;
    double read_delay_s, write_delay_s; /* how long a call takes; a write takes effect at its end */
    uint32_t limit_mw, min_mw, max_mw, default_mw;
    uint32_t read_fault, write_fault; /* return codes of the library; 0 for none */
    uint32_t good_writes;             /* writes until write_fault begins */
    uint32_t deaf;                    /* takes the limit, and its draw never follows */
    uint32_t persistent, no_instant;
} gpu_t;

typedef struct {
    double at_s;
    uint32_t pid, gpu, mw, result; /* result: return code; ~0 at the beginning of a delayed write */
} write_t;

typedef struct {
    uint32_t magic, gpus, init_fault, root_only;
    double tau_s, clock_s; /* clock_s < 0: the machine's own */
    double list_delay_s;   /* how long the first call of a list of the GPUs takes */
    uint32_t writes, base;
    pthread_mutex_t lock;
    gpu_t gpu[MOST_GPUS];
    write_t trace[MOST_WRITES];
} node_t;

static node_t *N;

static double now(void) {
    if (N->clock_s >= 0) return N->clock_s;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void take(void) {
    if (pthread_mutex_lock(&N->lock) == EOWNERDEAD) pthread_mutex_consistent(&N->lock);
}

static void leave(void) { pthread_mutex_unlock(&N->lock); }

static void fill(void) {
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&N->lock, &shared);
    N->gpus = 8;
    N->tau_s = 0.05;
    N->clock_s = -1;
    N->base = (uint32_t)getpid() & 0xffff;
    for (int i = 0; i < MOST_GPUS; i++) {
        gpu_t *g = &N->gpu[i];
        g->demand_w = 120;
        g->limit_mw = g->max_mw = g->default_mw = 700000;
        g->min_mw = 200000;
        g->kept_w = 700;
        g->since_s = now();
        g->good_writes = 0;
        g->persistent = 1;
    }
    N->magic = MAGIC;
}

/* Map the file that the environment names now; 0 when that works. */
static int attach(const char *variable) {
    if (N) munmap(N, sizeof(node_t));
    N = 0;
    const char *path = getenv(variable);
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    struct stat facts;
    if (fd < 0) return 1;
    flock(fd, LOCK_EX);
    if (fstat(fd, &facts) || (facts.st_size < (off_t)sizeof(node_t) && ftruncate(fd, sizeof(node_t)))) return 1;
    node_t *map = mmap(0, sizeof(node_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return 1;
    N = map;
    if (N->magic != MAGIC) fill();
    flock(fd, LOCK_UN); /* the mapping would keep it */
    close(fd);
    return 0;
}

static void wait_for(double seconds) {
    if (seconds > 0) usleep((useconds_t)(seconds * 1e6));
}

/* Bring a GPU to this instant. */
static void follow(gpu_t *g) {
    double t = now(), passed = t - g->since_s, target = g->deaf ? g->kept_w : g->limit_mw / 1e3;
    if (passed <= 0) return;
    double begin = g->kept_w, step = passed / 32;
    for (int k = 0; k < 32; k++) {
        double kept = N->tau_s > 0 ? target + (begin - target) * exp(-(k + .5) * step / N->tau_s) : target;
        g->energy_j += step * fmin(g->demand_w, kept);
    }
    g->kept_w = N->tau_s > 0 ? target + (begin - target) * exp(-passed / N->tau_s) : target;
    g->since_s = t;
}

static double draw_w(gpu_t *g) { return fmin(g->demand_w, g->kept_w); }

static void note(unsigned gpu, uint32_t mw, uint32_t result) {
    write_t *w = &N->trace[N->writes++ % MOST_WRITES];
    *w = (write_t){now(), (uint32_t)getpid(), gpu, mw, result};
}

/* Set a limit as a driver does; `no_permission` and `out_of_range` are the library's own codes. */
static int set_limit(unsigned gpu, uint32_t mw, int no_permission, int out_of_range) {
    gpu_t *g = &N->gpu[gpu];
    double delay = g->write_delay_s;
    if (delay > 0) {
        take();
        note(gpu, mw, ~0u);
        leave();
        wait_for(delay);
    }
    take();
    follow(g);
    int result = 0;
    if (N->root_only && geteuid()) result = no_permission;
    else if (g->write_fault && g->good_writes == 0) result = (int)g->write_fault;
    else if (mw < g->min_mw || mw > g->max_mw) result = out_of_range;
    else g->limit_mw = mw;
    if (g->good_writes) g->good_writes--;
    note(gpu, mw, (uint32_t)result);
    leave();
    return result;
}
