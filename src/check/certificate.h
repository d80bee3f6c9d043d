/* src/check/certificate.h -- what an independent reader needs to believe a `safe: proved`.
 *
 * The programs that replicas may issue, the transducer that chooses among them, the driver, the contract, an invariant (the
 * joint sets of replica states that are reached at each driver node), and for each folded round a number per op that rises
 * along every local edge and is the same for ops that are paired. Checking it needs no search; src/verify/lockstep_verify.c
 * does so and shares no code with this. Format, meaning and limits: certificate.md.
 *
 * Plain data, so that tests can change one field and see that the verifier notices. Ids are indices unless said otherwise. */
#ifndef LS_CHECK_CERTIFICATE_H
#define LS_CHECK_CERTIFICATE_H

#include "ir/system.h"

#define LS_CERT_KINDS(X) /* id, keyword */                                                                        \
    X(COLLECTIVE, "collective") X(SEND, "send") X(RECV, "recv") X(RUN, "run") X(RECORD, "record") X(WAIT, "wait") \
    X(HOST_WAIT, "host_wait")
#define LS_CERT_ENUM(id, name) LS_CERT_##id,
enum ls_cert_kind { LS_CERT_KINDS(LS_CERT_ENUM) LS_CERT_KIND_COUNT };
#undef LS_CERT_ENUM

struct ls_cert_op {
    uint32_t kind;     /* enum ls_cert_kind */
    uint32_t stream;   /* not of a host_wait */
    uint32_t object;   /* the communicator in whose queue it waits, or the event; LS_NO_ID: none */
    uint32_t sig;      /* what must be equal on both sides: index of a signature; LS_NO_ID: no communication */
    uint32_t peer;     /* send, recv: role of the other side */
    uint32_t fused;    /* neighbours with one number > 0 are one fused group; 0: alone */
    uint32_t blocking; /* the host goes on when it is done */
};
struct ls_cert_program { struct ls_cert_op *op; size_t ops; };
struct ls_cert_step { uint32_t state, round, letter, next, *program; };   /* program[roles] */
struct ls_cert_comm { const char *name; uint32_t dims, *part; };          /* part[roles]; LS_NO_ID: not a member */
struct ls_cert_node { const char *name; uint32_t round; uint32_t *next, *letter; size_t nexts, letters; };
struct ls_cert_level { uint32_t dims, *class_of; };                       /* class_of[letters] */
struct ls_cert_set { uint32_t *member; size_t members; };                 /* ascending */
struct ls_cert_reach { uint32_t node, macro; };
struct ls_cert_order { uint32_t program, *number; };                      /* number[ops]; 0 for a host_wait */
struct ls_cert_round { uint32_t node, macro, klass, *order; size_t orders; }; /* order[agents of the last level][roles] */

struct ls_certificate {
    const char *name;
    uint32_t level;    /* 1: every op blocks its host; 2: streams and host waits */
    uint32_t dims;     /* free dimensions, a bit set as in system.h */
    uint32_t start;    /* state */
    size_t roles, letters, levels;
    const char **letter_name;
    struct ls_cert_level tier[LS_LEVELS_MAX];
    struct ls_cert_comm *comm; size_t comms;
    const char **sig; size_t sigs;
    const char **payload; size_t payloads; /* for people: what "payload N" of a signature is */
    struct ls_cert_node *node; size_t nodes;
    struct ls_cert_program *program; size_t programs;
    struct ls_cert_step *step; size_t steps;                      /* ascending by state, round, letter */
    struct ls_cert_set *set[LS_LEVELS_MAX]; size_t sets[LS_LEVELS_MAX]; /* levels but the last, whose macro-states are states */
    struct ls_cert_reach *reach; size_t reaches;                  /* ascending by node, macro */
    struct ls_cert_order *order; size_t orders;
    struct ls_cert_round *round; size_t rounds;                   /* ascending by node, macro, class */
};

/* Searches the joint sets of states again and numbers the ops of every folded round; numbers are the least possible.
 *   errors  LS_EUNDECIDED: the plan is not safe by folding aligned rounds alone (ops that stay late, a mesh of given sizes that
 *           had to be unfolded, agreed values, a violation), or the limits were reached. Whatever input() and step() report */
LS_MUST_USE enum ls_code ls_certificate_make(const struct ls_system *s, const char *name, size_t macro_states_max,
                                             struct ls_arena *arena, struct ls_certificate *out, struct ls_error *err);
void ls_certificate_print(const struct ls_certificate *c, struct ls_str *out);

#endif
