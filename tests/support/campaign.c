#include "campaign.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double campaign_clock_s(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double campaign_cpu_s(void)
{
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

static uint64_t number(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    if (!text || !text[0])
        return fallback;
    char *end;
    errno = 0;
    uint64_t out = strtoull(text, &end, 10);
    if (errno || *end || text[0] < '0' || text[0] > '9') {
        fprintf(stderr, "%s is '%s', not a number\n", name, text);
        exit(2);
    }
    return out;
}

struct campaign campaign_open(void)
{
    uint64_t seed = number("LS_SEED", 1);
    struct campaign c = { seed, seed, campaign_clock_s() + (double)number("LS_CAMPAIGN_SECONDS", 600) };
    printf("seed %" PRIu64 "\n", seed);
    fflush(stdout);
    return c;
}

bool campaign_next(struct campaign *c, uint64_t *seed)
{
    if (campaign_clock_s() >= c->until_s)
        return false;
    *seed = c->next++;
    return true;
}

void campaign_close(const struct campaign *c, const char *what)
{
    printf("%s: %" PRIu64 " cases, next seed %" PRIu64 "\n", what, c->next - c->first, c->next);
}
