/* A wall clock that a test sets for a whole family of processes: preload this library into them.
 *
 * SHIFTED_CLOCK names a file of eight bytes: seconds, to be added to the time of day. A change of the file is a jump of the
 * clock, at once and in every process. The monotonic clock stays, as it does in truth. A wait until a time of day ends when
 * it would have without the jump.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const time_t A_DATE = 1000000000; /* no monotonic clock has reached it */

static volatile int64_t *shift;
static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_cond)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_sem)(sem_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SHIFTED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_cond = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real_cond) real_cond = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    real_sem = dlsym(RTLD_NEXT, "sem_timedwait");
    if (file >= 0) {
        void *mapped = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) shift = mapped;
        close(file);
    }
}

static int64_t by(void) { return shift ? *shift : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_gettime) real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_gettime(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += by();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now) *now = at.tv_sec;
    return at.tv_sec;
}

static struct timespec in_truth(const struct timespec *until) {
    struct timespec real = *until;
    if (real.tv_sec > A_DATE) real.tv_sec -= by();
    return real;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    struct timespec real = in_truth(until);
    return real_cond(cond, mutex, &real);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
    struct timespec real = in_truth(until);
    return real_sem(sem, &real);
}
