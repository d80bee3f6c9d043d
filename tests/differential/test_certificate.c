/* Certificates of proved plans are accepted by lockstep-verify, and certificates with one change are judged like a second
 * checker judges them. That one is written from semantics.md and certificate.md on the plain data: ops pair by pair, ranks pair
 * by pair, agents listed level by level. Where a change leaves a certificate valid, its system is also run by brute force. */
#include "check/certificate.h"

#include "base/hash.h"
#include "brute.h"
#include "cases.h"
#include "check/proof.h"
#include "cli/files.h"
#include "golden.h"
#include "random_system.h"
#include "scenario/scenario.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char verifier[] = LS_BINARY_DIR "/lockstep-verify";

/* The verifier's exit status. */
static int verify_text(const char *text, size_t length)
{
    char path[] = "/tmp/lockstep-certificate-XXXXXX", *args[] = { (char *)verifier, path, NULL };
    int fd = mkstemp(path), status = -1;
    cr_assert(fd >= 0);
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, text + done, length - done);
        cr_assert(n > 0);
        done += (size_t)n;
    }
    close(fd);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    pid_t pid;
    cr_assert_eq(posix_spawn(&pid, verifier, &actions, NULL, args, environ), 0);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    posix_spawn_file_actions_destroy(&actions);
    unlink(path);
    cr_assert(WIFEXITED(status), "the verifier was killed");
    return WEXITSTATUS(status);
}

static int verify(const struct ls_certificate *c)
{
    struct ls_str text = { 0 };
    ls_certificate_print(c, &text);
    int status = verify_text(ls_str_text(&text), text.length);
    ls_str_release(&text);
    return status;
}

/* --- the second checker --- */

static bool same_group(const struct ls_cert_op *op, size_t i, size_t j)
{
    for (size_t k = i; k <= j; k++)
        if (!op[i].fused || op[k].fused != op[i].fused)
            return i == j;
    return true;
}

/* The record that an op means: the latest before it, or -1. */
static long record_of(const struct ls_cert_op *op, size_t i)
{
    for (size_t k = i; k-- > 0;)
        if (op[k].kind == LS_CERT_RECORD && op[i].object != LS_NO_ID && op[k].object == op[i].object)
            return (long)k;
    return -1;
}

/* Must op i be finished before op j > i, by what i's own rank knows? */
static bool precedes(const struct ls_certificate *c, const struct ls_cert_op *op, size_t i, size_t j)
{
    bool together = same_group(op, i, j);
    if (op[i].kind == LS_CERT_HOST_WAIT || op[j].kind == LS_CERT_HOST_WAIT)
        return false; /* host waits have no number; below they order others */
    if (op[i].stream == op[j].stream && !together)
        return true;
    if (op[i].kind <= LS_CERT_RECV && op[i].kind == op[j].kind && op[i].object == op[j].object &&
        (op[i].kind == LS_CERT_COLLECTIVE || op[i].peer == op[j].peer))
        return true;
    if (op[j].kind == LS_CERT_WAIT && record_of(op, j) == (long)i)
        return true;
    for (size_t b = 0; b < j; b++) { /* some op b of i's group and stream blocks */
        bool mine = b <= i ? same_group(op, b, i) : same_group(op, i, b);
        if (mine && !together && op[b].stream == op[i].stream && op[b].kind != LS_CERT_HOST_WAIT && (op[b].blocking || c->level == 1))
            return true;
    }
    for (size_t h = i + 1; h < j; h++)
        if (op[h].kind == LS_CERT_HOST_WAIT && record_of(op, h) == (long)i)
            return true;
    return false;
}

static bool ops_fit(const struct ls_certificate *c, const struct ls_cert_program *p)
{
    for (size_t i = 0; i < p->ops; i++) {
        const struct ls_cert_op *o = &p->op[i];
        if (o->blocking > 1 || (o->kind != LS_CERT_HOST_WAIT && o->stream >= 256))
            return false;
        if (o->kind <= LS_CERT_RECV ? o->object >= c->comms || o->sig >= c->sigs : o->fused != 0)
            return false;
        if ((o->kind == LS_CERT_SEND || o->kind == LS_CERT_RECV) && o->peer >= c->roles)
            return false;
    }
    return true;
}

struct place { size_t parent; uint32_t macro, klass; }; /* parent: index one level up */
struct places { struct place *at; size_t count; };

static bool allows(const struct ls_certificate *c, uint32_t node, size_t level, uint32_t klass, uint32_t above)
{
    for (size_t i = 0; i < c->node[node].letters; i++) {
        uint32_t z = c->node[node].letter[i];
        if (c->tier[level].class_of[z] == klass && (level == 0 || c->tier[level - 1].class_of[z] == above))
            return true;
    }
    return false;
}

static const struct ls_cert_step *step_of(const struct ls_certificate *c, uint32_t state, uint32_t round, uint32_t letter)
{
    for (size_t i = 0; i < c->steps; i++)
        if (c->step[i].state == state && c->step[i].round == round && c->step[i].letter == letter)
            return &c->step[i];
    return NULL;
}

static bool reached(const struct ls_certificate *c, uint32_t node, uint32_t macro)
{
    bool found = false;
    for (size_t i = 0; i < c->reaches; i++)
        found = found || (c->reach[i].node == node && c->reach[i].macro == macro);
    return found;
}

static uint32_t find_set(const struct ls_certificate *c, size_t level, const bool *member, size_t most)
{
    for (uint32_t s = 0; s < c->sets[level]; s++) {
        const struct ls_cert_set *x = &c->set[level][s];
        size_t count = 0;
        bool same = true;
        for (size_t i = 0; i < most; i++)
            count += member[i];
        for (size_t i = 0; i < x->members; i++)
            same = same && x->member[i] < most && member[x->member[i]] && (i == 0 || x->member[i - 1] < x->member[i]);
        if (same && count == x->members)
            return s;
    }
    return LS_NO_ID;
}

static size_t level_of(const struct ls_certificate *c, size_t comm)
{
    size_t level = 0;
    for (size_t i = 0; i < c->levels; i++)
        if (!(c->tier[i].dims & c->comm[comm].dims))
            level = i;
    return level;
}

/* The word of a rank: (signature, number) of each op of one kind, communicator and peer. */
static size_t word(const struct ls_certificate *c, const struct ls_cert_order *o, uint32_t kind, uint32_t comm, uint32_t peer,
                   uint32_t (*out)[2])
{
    size_t n = 0;
    const struct ls_cert_program *p = &c->program[o->program];
    for (size_t i = 0; i < p->ops; i++)
        if (p->op[i].kind == kind && p->op[i].object == comm && (kind == LS_CERT_COLLECTIVE || p->op[i].peer == peer)) {
            out[n][0] = p->op[i].sig;
            out[n++][1] = o->number[i];
        }
    return n;
}

static bool words_meet(const struct ls_certificate *c, uint32_t a, uint32_t kind_a, uint32_t peer_a, uint32_t b, uint32_t kind_b,
                       uint32_t peer_b, uint32_t comm, struct ls_arena *arena)
{
    const struct ls_cert_order *x = &c->order[a], *y = &c->order[b];
    uint32_t(*v)[2] = (uint32_t(*)[2])LS_NEW(arena, uint32_t, 2 * c->program[x->program].ops + 2);
    uint32_t(*w)[2] = (uint32_t(*)[2])LS_NEW(arena, uint32_t, 2 * c->program[y->program].ops + 2);
    size_t n = word(c, x, kind_a, comm, peer_a, v);
    return n == word(c, y, kind_b, comm, peer_b, w) && memcmp(v, w, n * sizeof *v) == 0;
}

static bool round_holds(const struct ls_certificate *c, const struct ls_cert_round *r, struct ls_arena *arena)
{
    struct places level[LS_LEVELS_MAX] = { { 0 } };
    size_t l = c->levels - 1, room = 1;
    level[0] = (struct places){ LS_NEW(arena, struct place, 1), 1 };
    level[0].at[0] = (struct place){ 0, r->macro, r->klass };
    for (size_t i = 0; i < l; i++) { /* depth first keeps children of one parent together and in the parents' order */
        size_t count = 0;
        room = 0;
        for (size_t a = 0; a < level[i].count; a++) {
            if (level[i].at[a].macro >= c->sets[i])
                return false;
            room += c->set[i][level[i].at[a].macro].members * c->letters;
        }
        level[i + 1].at = LS_NEW(arena, struct place, room + 1);
        for (size_t a = 0; a < level[i].count; a++) {
            const struct ls_cert_set *s = &c->set[i][level[i].at[a].macro];
            for (size_t m = 0; m < s->members; m++)
                for (uint32_t q = 0; q < c->letters; q++)
                    if (allows(c, r->node, i + 1, q, level[i].at[a].klass))
                        level[i + 1].at[count++] = (struct place){ a, s->member[m], q };
        }
        level[i + 1].count = count;
    }
    size_t leaves = level[l].count;
    uint32_t **next = LS_NEW(arena, uint32_t *, c->levels);
    if (r->orders != leaves * c->roles)
        return false;
    next[l] = LS_NEW(arena, uint32_t, leaves + 1);
    for (size_t a = 0; a < leaves; a++) {
        const struct ls_cert_step *s = step_of(c, level[l].at[a].macro, c->node[r->node].round, level[l].at[a].klass);
        if (!s)
            return false;
        next[l][a] = s->next;
        for (size_t y = 0; y < c->roles; y++)
            if (r->order[a * c->roles + y] >= c->orders || c->order[r->order[a * c->roles + y]].program != s->program[y])
                return false;
    }
    for (uint32_t comm = 0; comm < c->comms; comm++) {
        size_t *scope = LS_NEW(arena, size_t, leaves + 1), at = level_of(c, comm);
        const uint32_t *part = c->comm[comm].part;
        for (size_t a = 0; a < leaves; a++) {
            scope[a] = a;
            for (size_t i = l; i > at; i--)
                scope[a] = level[i].at[scope[a]].parent;
        }
        for (size_t x = 0; x < r->orders; x++)
            for (size_t z = 0; z <= x; z++) {
                size_t a = x / c->roles, b = z / c->roles, y = x % c->roles, w = z % c->roles;
                bool meet = part[y] != LS_NO_ID && part[y] == part[w];
                if (meet && scope[a] == scope[b] &&
                    !words_meet(c, r->order[x], LS_CERT_COLLECTIVE, 0, r->order[z], LS_CERT_COLLECTIVE, 0, comm, arena))
                    return false;
                const struct ls_cert_program *mine = &c->program[c->order[r->order[x]].program];
                for (size_t i = 0; i < mine->ops && x == z && !meet; i++) /* not a member */
                    if (mine->op[i].kind == LS_CERT_COLLECTIVE && mine->op[i].object == comm)
                        return false;
                if (a != b)
                    continue;
                for (int swap = 0; swap < 2; swap++) {
                    size_t from = swap ? z : x, to = swap ? x : z;
                    uint32_t f = (uint32_t)(from % c->roles), t = (uint32_t)(to % c->roles);
                    if (!words_meet(c, r->order[from], LS_CERT_SEND, t, r->order[to], LS_CERT_RECV, f, comm, arena))
                        return false;
                    const struct ls_cert_program *p = &c->program[c->order[r->order[from]].program];
                    for (size_t i = 0; i < p->ops; i++)
                        if ((p->op[i].kind == LS_CERT_SEND || p->op[i].kind == LS_CERT_RECV) && p->op[i].object == comm &&
                            p->op[i].peer == t && (!meet || c->comm[comm].dims))
                            return false;
                }
            }
    }
    if (!c->node[r->node].nexts)
        return true; /* nobody asks what comes after the last round */
    for (size_t i = l; i-- > 0;) {
        next[i] = LS_NEW(arena, uint32_t, level[i].count + 1);
        for (size_t a = 0; a < level[i].count; a++) {
            size_t most = 0;
            for (size_t k = 0; k < level[i + 1].count; k++)
                most = next[i + 1][k] != LS_NO_ID && next[i + 1][k] >= most ? (size_t)next[i + 1][k] + 1 : most;
            bool *member = LS_NEW(arena, bool, most + 1);
            for (size_t k = 0; k < level[i + 1].count; k++)
                if (level[i + 1].at[k].parent == a) {
                    if (next[i + 1][k] == LS_NO_ID)
                        return false;
                    member[next[i + 1][k]] = true;
                }
            next[i][a] = find_set(c, i, member, most);
        }
    }
    for (size_t i = 0; i < c->node[r->node].nexts; i++)
        if (!reached(c, c->node[r->node].next[i], next[0][0]))
            return false;
    return true;
}

static bool contract_holds(const struct ls_certificate *c)
{
    if (c->tier[0].dims || c->tier[c->levels - 1].dims != c->dims || c->level < 1 || c->level > 2)
        return false;
    for (size_t i = 0; i < c->levels; i++)
        for (size_t a = 0; a < c->letters; a++) {
            if (c->tier[i].class_of[a] >= c->letters || (i && (c->tier[i - 1].dims & c->tier[i].dims) != c->tier[i - 1].dims))
                return false;
            if (i + 1 == c->levels && c->tier[i].class_of[a] != a)
                return false;
            for (size_t b = 0; b < c->letters && i; b++)
                if (c->tier[i].class_of[a] == c->tier[i].class_of[b] && c->tier[i - 1].class_of[a] != c->tier[i - 1].class_of[b])
                    return false;
        }
    return true;
}

static bool valid(const struct ls_certificate *c)
{
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    bool fine = contract_holds(c);
    for (size_t i = 0; i < c->nodes && fine; i++) {
        for (size_t k = 0; k < c->node[i].nexts; k++)
            fine = fine && c->node[i].next[k] < c->nodes;
        for (size_t k = 0; k < c->node[i].letters; k++)
            fine = fine && c->node[i].letter[k] < c->letters;
    }
    for (size_t i = 0; i < c->orders && fine; i++) {
        const struct ls_cert_order *o = &c->order[i];
        fine = o->program < c->programs && ops_fit(c, &c->program[o->program]);
        const struct ls_cert_program *p = fine ? &c->program[o->program] : NULL;
        for (size_t k = 0; fine && k < p->ops; k++) {
            fine = p->op[k].kind == LS_CERT_HOST_WAIT || (o->number[k] > 0 && o->number[k] != LS_NO_ID);
            for (size_t j = k + 1; fine && j < p->ops; j++)
                fine = !precedes(c, p->op, k, j) || o->number[k] < o->number[j];
        }
    }
    uint32_t macro = c->start;
    for (size_t i = c->levels - 1; i-- > 0 && fine;) {
        bool *member = LS_NEW(&arena, bool, (size_t)macro + 1);
        member[macro] = true;
        macro = find_set(c, i, member, (size_t)macro + 1);
        fine = macro != LS_NO_ID;
    }
    fine = fine && reached(c, 0, macro);
    for (size_t i = 0; i < c->reaches && fine; i++) {
        fine = c->reach[i].node < c->nodes;
        for (uint32_t q = 0; q < c->letters && fine; q++) {
            if (!allows(c, c->reach[i].node, 0, q, 0))
                continue;
            const struct ls_cert_round *r = NULL;
            for (size_t k = 0; k < c->rounds && !r; k++)
                if (c->round[k].node == c->reach[i].node && c->round[k].macro == c->reach[i].macro && c->round[k].klass == q)
                    r = &c->round[k];
            fine = r && round_holds(c, r, &arena);
        }
    }
    ls_arena_release(&arena);
    return fine;
}

/* --- the system of a certificate, for brute force --- */

struct rebuilt {
    struct ls_transducer base; /* first */
    const struct ls_certificate *c;
    const struct ls_segment **segment; /* [programs] */
    const struct ls_segment ***role;   /* [steps] */
};

static enum ls_code rebuilt_step(struct ls_transducer *self, uint32_t state, uint32_t round, uint32_t letter, struct ls_step *out,
                                 struct ls_error *err)
{
    struct rebuilt *b = (struct rebuilt *)self;
    const struct ls_cert_step *s = step_of(b->c, state, round, letter);
    if (!s)
        return ls_fail(err, LS_EINPUT, LS_NOWHERE, "no such step");
    *out = (struct ls_step){ b->role[s - b->c->step], s->next };
    return LS_OK;
}

static const char *rebuilt_letter(const struct ls_transducer *self, uint32_t letter)
{
    (void)self;
    (void)letter;
    return "letter";
}

/* Collectives with equal signatures become all_reduces of one payload. False: some round allows no letter at all. */
static bool rebuild(const struct ls_certificate *c, struct ls_arena *arena, struct ls_tables *tables, struct ls_system *out)
{
    struct rebuilt *b = LS_NEW(arena, struct rebuilt, 1);
    struct ls_comm_roles *comm = LS_NEW(arena, struct ls_comm_roles, c->comms + 1);
    char name[32];
    *b = (struct rebuilt){ .c = c, .segment = LS_NEW(arena, const struct ls_segment *, c->programs + 1),
                           .role = LS_NEW(arena, const struct ls_segment **, c->steps + 1) };
    b->base = (struct ls_transducer){ tables, c->roles, c->letters, c->start, rebuilt_step, rebuilt_letter, 10000 };
    for (size_t i = 0; i < c->comms; i++) {
        snprintf(name, sizeof name, "c%zu", i);
        uint32_t id = ls_tables_comm(tables, name);
        tables->comm.at[id].free_dims = c->comm[i].dims & c->dims;
        tables->comm.at[id].parent = LS_NO_ID;
        comm[i].part = c->comm[i].part;
    }
    for (size_t i = 0; i < c->sigs; i++) {
        snprintf(name, sizeof name, "s%zu", i);
        (void)ls_tables_payload(tables, name, NULL, 0, 1);
    }
    for (size_t i = 0; i < c->programs; i++) {
        struct ls_op *op = LS_NEW(arena, struct ls_op, c->program[i].ops + 1);
        for (size_t k = 0; k < c->program[i].ops; k++) {
            static const enum ls_op_kind kinds[] = { LS_OP_ALL_REDUCE, LS_OP_SEND, LS_OP_RECV, LS_OP_COMPUTE, LS_OP_RECORD, LS_OP_WAIT,
                                                     LS_OP_HOST_WAIT };
            const struct ls_cert_op *o = &c->program[i].op[k];
            op[k] = ls_op_make(kinds[o->kind]);
            op[k].stream = (uint8_t)(o->stream == LS_NO_ID ? 0 : o->stream);
            op[k].blocking = o->blocking;
            op[k].fused = o->fused;
            if (o->kind <= LS_CERT_RECV) {
                const uint32_t *part = c->comm[o->object].part;
                op[k].comm = (uint16_t)o->object;
                op[k].payload = o->sig;
                op[k].count = 1;
                if (o->kind != LS_CERT_COLLECTIVE) /* a role, as its place in its group */
                    op[k].peer = 0;
                for (uint32_t y = 0; o->kind != LS_CERT_COLLECTIVE && y < o->peer; y++)
                    op[k].peer += part[y] == part[o->peer];
            } else {
                op[k].event = o->object;
            }
        }
        struct ls_segment *s = LS_NEW(arena, struct ls_segment, 1);
        *s = (struct ls_segment){ op, c->program[i].ops, ls_segment_hash(op, c->program[i].ops) };
        b->segment[i] = s;
    }
    for (size_t i = 0; i < c->steps; i++) {
        b->role[i] = LS_NEW(arena, const struct ls_segment *, c->roles);
        for (size_t y = 0; y < c->roles; y++)
            b->role[i][y] = b->segment[c->step[i].program[y]];
    }
    struct ls_driver_node *node = LS_NEW(arena, struct ls_driver_node, c->nodes);
    for (size_t i = 0; i < c->nodes; i++) {
        node[i] = (struct ls_driver_node){ c->node[i].round, "round", 0, true, c->node[i].next, c->node[i].nexts,
                                           LS_NEW(arena, uint64_t, c->letters / 64 + 1) };
        for (size_t k = 0; k < c->node[i].letters; k++)
            node[i].allowed[c->node[i].letter[k] / 64] |= UINT64_C(1) << c->node[i].letter[k] % 64;
        if (!c->node[i].letters)
            return false;
    }
    *out = (struct ls_system){ .replica = &b->base, .driver = { node, c->nodes }, .comm = comm, .free_dims = c->dims,
                               .level = (int)c->level };
    out->contract.levels = c->levels;
    out->contract.name = "as certified";
    for (size_t d = 0; d < LS_FREE_DIMS; d++)
        out->size[d] = c->dims >> d & 1 ? 0 : 1;
    for (size_t i = 0; i < c->levels; i++) {
        out->contract.dims[i] = c->tier[i].dims;
        out->contract.class_of[i] = c->tier[i].class_of;
    }
    return true;
}

/* Does some run of at most 4 replicas and 3 rounds fail? *runs counts them. */
static bool fails(const struct ls_certificate *c, uint64_t seed, size_t *runs)
{
    struct ls_arena arena;
    struct ls_tables tables;
    struct ls_system s;
    struct ls_brute found = { 0 };
    ls_arena_init(&arena, 0);
    ls_tables_init(&tables, &arena);
    if (rebuild(c, &arena, &tables, &s)) {
        struct ls_brute_options o = { .replicas_max = 4, .rounds_max = 3, .runs_max = 20, .total_max = 60, .seed = seed };
        ls_brute_force(&s, &o, &arena, &found);
    }
    *runs += found.runs;
    ls_tables_release(&tables);
    ls_arena_release(&arena);
    return found.failed;
}

/* --- one change --- */

#define CHANGES(X)                                                                                                        \
    X(OP_DROP, "an op dropped") X(OP_SWAP, "two ops swapped") X(OP_TWICE, "an op repeated") X(OP_SIG, "a payload")          \
    X(OP_COMM, "a communicator or event") X(OP_STREAM, "a stream") X(OP_KIND, "a wait or record gone") X(OP_FUSED, "a fused group") \
    X(OP_BLOCKING, "blocking") X(NUMBER_LOWER, "a number lowered") X(NUMBER_ANY, "a number") X(ORDER_PROGRAM, "an order's program")  \
    X(STEP_NEXT, "a transition") X(STEP_PROGRAM, "a program of a transition") X(STEP_DROP, "a transition dropped")          \
    X(REACH_DROP, "a joint set dropped") X(REACH_MACRO, "a joint set") X(SET_DROP, "a member dropped") X(SET_ADD, "a member")  \
    X(ROUND_DROP, "a round dropped") X(ROUND_ORDER, "an order of a round") X(ALLOW_DROP, "a letter dropped")                 \
    X(ALLOW_ADD, "a letter allowed") X(NEXT, "the driver") X(COMM_DIMS, "a communicator's dimensions") X(COMM_PART, "a part") \
    X(CLASS, "a class") X(TIER_DIMS, "a level's dimensions") X(DIMS, "the free dimensions") X(LEVEL, "L1 or L2") X(START, "the start")
#define CHANGE_ENUM(id, text) CHANGE_##id,
enum change { CHANGES(CHANGE_ENUM) CHANGE_COUNT };
#define CHANGE_TEXT(id, text) text,
static const char *const change_text[] = { CHANGES(CHANGE_TEXT) };

static uint32_t other(uint64_t *random, uint32_t old, size_t below) /* a different one */
{
    return below < 2 ? old : (uint32_t)((old + 1 + ls_random_below(random, below - 1)) % below);
}

#define COPY(arena, at, count) ((at) = ls_arena_copy((arena), (at), (count) * sizeof *(at)))
static void remove_at(void *at, size_t *count, size_t i, size_t bytes)
{
    memmove((char *)at + i * bytes, (char *)at + (i + 1) * bytes, (*count - i - 1) * bytes);
    --*count;
}
static int by_pair(const void *a, const void *b)
{
    const struct ls_cert_reach *x = a, *y = b;
    return x->node != y->node ? (x->node < y->node ? -1 : 1) : (x->macro > y->macro) - (x->macro < y->macro);
}
static int by_word(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* False: there is nothing of this kind to change. */
static bool change(struct ls_certificate *c, enum change what, uint64_t *random, struct ls_arena *arena)
{
    size_t p = c->programs ? ls_random_below(random, c->programs) : 0, ops = c->programs ? c->program[p].ops : 0;
    size_t i = ops ? ls_random_below(random, ops) : 0;
    size_t o = ls_random_below(random, c->orders), s = ls_random_below(random, c->steps), r = ls_random_below(random, c->rounds);
    size_t n = ls_random_below(random, c->nodes), m = c->comms ? ls_random_below(random, c->comms) : 0;
    struct ls_cert_op *op = NULL;
    if (what <= CHANGE_OP_BLOCKING) {
        if (!ops)
            return false;
        COPY(arena, c->program, c->programs);
        struct ls_cert_op *room = LS_NEW(arena, struct ls_cert_op, ops + 1);
        memcpy(room, c->program[p].op, ops * sizeof *room);
        c->program[p].op = room;
        for (size_t k = 0; k < ops; k++) { /* from i on, the first op that has such a field */
            const struct ls_cert_op *x = &room[(i + k) % ops];
            bool talks = x->kind <= LS_CERT_RECV, host = x->kind == LS_CERT_HOST_WAIT;
            if (what == CHANGE_OP_SIG || what == CHANGE_OP_FUSED ? talks : what == CHANGE_OP_COMM ? x->object != LS_NO_ID
                : what == CHANGE_OP_STREAM || what == CHANGE_OP_BLOCKING ? !host
                : what == CHANGE_OP_KIND ? x->kind == LS_CERT_WAIT || x->kind == LS_CERT_RECORD : true) {
                i = (i + k) % ops;
                break;
            }
        }
        op = &room[i];
    }
    switch (what) {
    case CHANGE_OP_DROP: /* with its numbers, so that only the op is missing */
    case CHANGE_OP_TWICE:
        if (what == CHANGE_OP_DROP) {
            remove_at(c->program[p].op, &c->program[p].ops, i, sizeof *op);
        } else {
            memmove(op + 1, op, (ops - i) * sizeof *op);
            c->program[p].ops++;
        }
        COPY(arena, c->order, c->orders);
        for (size_t k = 0; k < c->orders; k++)
            if (c->order[k].program == p) {
                uint32_t *number = LS_NEW(arena, uint32_t, ops + 1);
                size_t left = ops;
                memcpy(number, c->order[k].number, ops * sizeof *number);
                if (what == CHANGE_OP_DROP)
                    remove_at(number, &left, i, sizeof *number);
                else
                    memmove(number + i + 1, number + i, (ops - i) * sizeof *number);
                c->order[k].number = number;
            }
        return true;
    case CHANGE_OP_SWAP:
        if (i + 1 >= ops || memcmp(op, op + 1, sizeof *op) == 0)
            return false;
        op[ops - i] = op[0];
        op[0] = op[1];
        op[1] = op[ops - i];
        return true;
    case CHANGE_OP_SIG: {
        uint32_t old = op->sig;
        if (old == LS_NO_ID)
            return false;
        op->sig = other(random, old, c->sigs);
        return op->sig != old;
    }
    case CHANGE_OP_COMM: {
        uint32_t old = op->object;
        if (old == LS_NO_ID)
            return false;
        op->object = op->sig == LS_NO_ID ? old + 1 : other(random, old, c->comms);
        return op->object != old;
    }
    case CHANGE_OP_STREAM:
        if (op->kind == LS_CERT_HOST_WAIT)
            return false;
        op->stream = other(random, op->stream, 4);
        return true;
    case CHANGE_OP_KIND:
        if (op->kind != LS_CERT_WAIT && op->kind != LS_CERT_RECORD)
            return false;
        op->kind = LS_CERT_RUN;
        op->object = LS_NO_ID;
        return true;
    case CHANGE_OP_FUSED:
        if (op->kind > LS_CERT_RECV)
            return false;
        op->fused = op->fused ? 0 : 1;
        return true;
    case CHANGE_OP_BLOCKING:
        if (op->kind == LS_CERT_HOST_WAIT)
            return false;
        op->blocking = !op->blocking;
        return true;
    case CHANGE_NUMBER_LOWER:
    case CHANGE_NUMBER_ANY: {
        size_t count = c->program[c->order[o].program].ops;
        if (!count)
            return false;
        COPY(arena, c->order, c->orders);
        COPY(arena, c->order[o].number, count);
        uint32_t *x = &c->order[o].number[ls_random_below(random, count)];
        if (*x == 0)
            return false;
        *x = what == CHANGE_NUMBER_LOWER ? (uint32_t)ls_random_below(random, *x) : other(random, *x, *x + 4);
        return true;
    }
    case CHANGE_ORDER_PROGRAM: {
        COPY(arena, c->order, c->orders);
        size_t to = other(random, c->order[o].program, c->programs);
        if (to == c->order[o].program || c->program[to].ops != c->program[c->order[o].program].ops)
            return false;
        c->order[o].program = (uint32_t)to;
        return true;
    }
    case CHANGE_STEP_NEXT: {
        uint32_t most = 0;
        for (size_t k = 0; k < c->steps; k++)
            most = c->step[k].state > most ? c->step[k].state : most;
        COPY(arena, c->step, c->steps);
        c->step[s].next = other(random, c->step[s].next, most + 2);
        return true;
    }
    case CHANGE_STEP_PROGRAM: {
        COPY(arena, c->step, c->steps);
        COPY(arena, c->step[s].program, c->roles);
        uint32_t *at = &c->step[s].program[ls_random_below(random, c->roles)], old = *at;
        *at = other(random, old, c->programs);
        return *at != old;
    }
    case CHANGE_STEP_DROP:
        COPY(arena, c->step, c->steps);
        remove_at(c->step, &c->steps, s, sizeof *c->step);
        return true;
    case CHANGE_REACH_DROP:
        COPY(arena, c->reach, c->reaches);
        remove_at(c->reach, &c->reaches, ls_random_below(random, c->reaches), sizeof *c->reach);
        return true;
    case CHANGE_REACH_MACRO: {
        struct ls_cert_reach *at = &COPY(arena, c->reach, c->reaches)[ls_random_below(random, c->reaches)];
        at->macro = other(random, at->macro, c->levels > 1 ? c->sets[0] + 1 : 3);
        qsort(c->reach, c->reaches, sizeof *c->reach, by_pair);
        return true;
    }
    case CHANGE_SET_DROP:
    case CHANGE_SET_ADD: {
        size_t l = c->levels > 1 ? ls_random_below(random, c->levels - 1) : 0;
        if (c->levels < 2)
            return false;
        size_t k = ls_random_below(random, c->sets[l]);
        COPY(arena, c->set[l], c->sets[l]);
        struct ls_cert_set *x = &c->set[l][k];
        uint32_t *member = LS_NEW(arena, uint32_t, x->members + 1);
        memcpy(member, x->member, x->members * sizeof *member);
        x->member = member;
        if (what == CHANGE_SET_DROP) {
            if (x->members < 2)
                return false;
            remove_at(member, &x->members, ls_random_below(random, x->members), sizeof *member);
        } else {
            uint32_t new = (uint32_t)ls_random_below(random, l + 2 < c->levels ? c->sets[l + 1] : 6);
            for (size_t j = 0; j < x->members; j++)
                if (member[j] == new)
                    return false;
            member[x->members++] = new;
            qsort(member, x->members, sizeof *member, by_word);
        }
        return true;
    }
    case CHANGE_ROUND_DROP:
        COPY(arena, c->round, c->rounds);
        remove_at(c->round, &c->rounds, r, sizeof *c->round);
        return true;
    case CHANGE_ROUND_ORDER: {
        COPY(arena, c->round, c->rounds);
        COPY(arena, c->round[r].order, c->round[r].orders);
        uint32_t *at = &c->round[r].order[ls_random_below(random, c->round[r].orders)], old = *at;
        *at = other(random, old, c->orders);
        return *at != old;
    }
    case CHANGE_ALLOW_DROP:
        COPY(arena, c->node, c->nodes);
        COPY(arena, c->node[n].letter, c->node[n].letters);
        if (!c->node[n].letters)
            return false;
        remove_at(c->node[n].letter, &c->node[n].letters, ls_random_below(random, c->node[n].letters), sizeof(uint32_t));
        return true;
    case CHANGE_ALLOW_ADD: {
        uint32_t new = (uint32_t)ls_random_below(random, c->letters), *letter = LS_NEW(arena, uint32_t, c->letters + 1);
        for (size_t k = 0; k < c->node[n].letters; k++)
            if (c->node[n].letter[k] == new)
                return false;
        COPY(arena, c->node, c->nodes);
        memcpy(letter, c->node[n].letter, c->node[n].letters * sizeof *letter);
        letter[c->node[n].letters++] = new;
        c->node[n].letter = letter;
        return true;
    }
    case CHANGE_NEXT: {
        uint32_t new = (uint32_t)ls_random_below(random, c->nodes), *next = LS_NEW(arena, uint32_t, c->node[n].nexts + 1);
        for (size_t k = 0; k < c->node[n].nexts; k++)
            if (c->node[n].next[k] == new)
                return false;
        COPY(arena, c->node, c->nodes);
        memcpy(next, c->node[n].next, c->node[n].nexts * sizeof *next);
        next[c->node[n].nexts++] = new;
        c->node[n].next = next;
        return true;
    }
    case CHANGE_COMM_DIMS:
    case CHANGE_COMM_PART:
        if (!c->comms)
            return false;
        COPY(arena, c->comm, c->comms);
        COPY(arena, c->comm[m].part, c->roles);
        if (what == CHANGE_COMM_DIMS) {
            c->comm[m].dims = other(random, c->comm[m].dims, 4);
        } else {
            uint32_t *at = &c->comm[m].part[ls_random_below(random, c->roles)], old = *at;
            *at = old == LS_NO_ID || ls_random_below(random, 2) ? (uint32_t)ls_random_below(random, c->roles) : LS_NO_ID;
            return *at != old;
        }
        return true;
    case CHANGE_CLASS: {
        size_t l = ls_random_below(random, c->levels);
        COPY(arena, c->tier[l].class_of, c->letters);
        uint32_t *at = &c->tier[l].class_of[ls_random_below(random, c->letters)], old = *at;
        *at = other(random, old, c->letters);
        return *at != old;
    }
    case CHANGE_TIER_DIMS: {
        size_t l = ls_random_below(random, c->levels);
        c->tier[l].dims = other(random, c->tier[l].dims, 4);
        return true;
    }
    case CHANGE_DIMS:
        c->dims = other(random, c->dims, 4);
        return true;
    case CHANGE_LEVEL:
        c->level = 3 - c->level;
        return true;
    case CHANGE_START:
        c->start = other(random, c->start, 4);
        return true;
    case CHANGE_COUNT:
        break;
    }
    return false;
}

struct sum { size_t tried[CHANGE_COUNT], rejected[CHANGE_COUNT], malformed, runs; };

static void change_and_compare(const struct ls_certificate *c, enum change what, uint64_t seed, const char *name, struct sum *sum)
{
    struct ls_arena arena;
    struct ls_certificate changed = *c;
    uint64_t random = seed;
    ls_arena_init(&arena, 0);
    if (change(&changed, what, &random, &arena)) {
        bool fine = valid(&changed);
        int status = verify(&changed);
        sum->tried[what]++;
        sum->rejected[what] += status != 0;
        sum->malformed += status == 3;
        cr_assert(status == 0 || status == 1 || status == 3, "%s, %s, seed %llu: status %d", name, change_text[what], (unsigned long long)seed, status);
        cr_assert_eq(fine, status == 0, "%s, %s changed, seed %llu: the verifier says %d, the second checker %s", name, change_text[what],
                     (unsigned long long)seed, status, fine ? "valid" : "not valid");
        cr_assert(status != 0 || !fails(&changed, seed, &sum->runs), "%s, %s changed, seed %llu: accepted, but a run fails", name,
                  change_text[what], (unsigned long long)seed);
    }
    ls_arena_release(&arena);
}

static bool random_certificate(uint64_t seed, struct ls_random_system *r, struct ls_certificate *c, struct ls_proof *proof)
{
    struct ls_error err = { 0 };
    ls_random_system_open(r, seed);
    cr_assert_eq(ls_prove(&r->system, 0, &r->arena, proof, &err), LS_OK, "%s", err.text);
    char name[40];
    snprintf(name, sizeof name, "random %llu", (unsigned long long)seed);
    enum ls_code rc = ls_certificate_make(&r->system, name, 0, &r->arena, c, &err);
    cr_assert(rc == LS_OK || rc == LS_EUNDECIDED, "seed %llu: %s", (unsigned long long)seed, err.text);
    return rc == LS_OK;
}

Test(certificate, random_systems_that_are_proved)
{
    size_t proved = 0, certified = 0, late = 0, runs = 0;
    for (uint64_t seed = 1; certified < 220; seed++) {
        struct ls_random_system r;
        struct ls_certificate c;
        struct ls_proof proof;
        bool have = random_certificate(seed, &r, &c, &proof);
        proved += proof.end == LS_PROOF_SAFE;
        if (have) {
            certified++;
            cr_assert_eq(proof.end, LS_PROOF_SAFE, "seed %llu: a certificate of a plan that is not proved", (unsigned long long)seed);
            cr_assert(valid(&c), "seed %llu", (unsigned long long)seed);
            cr_assert_eq(verify(&c), 0, "seed %llu", (unsigned long long)seed);
            cr_assert(!fails(&c, seed, &runs), "seed %llu", (unsigned long long)seed);
        } else if (proof.end == LS_PROOF_SAFE) {
            late++; /* ops in residues: even a window of one round is not aligned */
        }
        ls_random_system_close(&r);
    }
    printf("certificates: %zu random systems proved, %zu certified and accepted, %zu with late operations; %zu runs by brute force\n", proved,
           certified, late, runs);
    cr_assert(late * 2 < proved);
}

static void print_sum(const char *what, const struct sum *sum)
{
    size_t tried = 0, rejected = 0;
    for (int k = 0; k < CHANGE_COUNT; k++) {
        printf("  %-30s %4zu changed, %4zu rejected\n", change_text[k], sum->tried[k], sum->rejected[k]);
        tried += sum->tried[k];
        rejected += sum->rejected[k];
    }
    printf("%s: %zu changed certificates, %zu rejected (%zu of them malformed), %zu still valid; %zu runs of those by brute force\n", what, tried,
           rejected, sum->malformed, tried - rejected, sum->runs);
}

Test(certificate, changes_are_judged_like_a_second_checker_does)
{
    struct sum sum = { 0 };
    size_t systems = 0, rejected = 0;
    for (uint64_t seed = 1; systems < 75; seed++) {
        struct ls_random_system r;
        struct ls_certificate c;
        struct ls_proof proof;
        if (random_certificate(seed, &r, &c, &proof)) {
            systems++;
            for (int k = 0; k < CHANGE_COUNT; k++)
                change_and_compare(&c, (enum change)k, seed * 1000 + (uint64_t)k, c.name, &sum);
        }
        ls_random_system_close(&r);
    }
    print_sum("random systems", &sum);
    for (int k = 0; k < CHANGE_COUNT; k++) {
        rejected += sum.rejected[k];
        cr_assert(sum.rejected[k] > 0 || k == CHANGE_OP_KIND || k == CHANGE_OP_FUSED || k == CHANGE_ALLOW_ADD, "%s: never rejected", change_text[k]);
    }
    /* Numbers are the least, and nothing is listed that is not needed: these leave nothing valid. */
    static const enum change never[] = { CHANGE_NUMBER_LOWER, CHANGE_STEP_DROP, CHANGE_REACH_DROP, CHANGE_ROUND_DROP, CHANGE_STEP_PROGRAM };
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        cr_assert_eq(sum.tried[never[i]], sum.rejected[never[i]], "%s", change_text[never[i]]);
    cr_assert(rejected >= 1000);
}

/* What random systems lack: transfers inside a replica, fused groups, creation of a communicator, an agreed branch. */
static void open_rich(struct ls_random_system *r, int level)
{
    *r = (struct ls_random_system){ 0 };
    ls_arena_init(&r->arena, 0);
    ls_tables_init(&r->tables, &r->arena);
    struct ls_table_transducer *t = LS_NEW(&r->arena, struct ls_table_transducer, 1);
    struct ls_comm_roles *comm = LS_NEW(&r->arena, struct ls_comm_roles, 3);
    static const char *const names[] = { "pp", "dp", "later" };
    static const uint32_t all[] = { 0, 0, 0 }, each[] = { 0, 1, 2 }, spans[] = { 0, LS_DIM_SHARD, LS_DIM_SHARD };
    static const uint32_t reversed[] = { 2, 1, 0 }; /* member index of a role: 2, 1, 0 */
    enum { PP, DP, LATER, ROLES = 3, LETTERS = 2, ROUNDS = 2, OPS = 16 };
    for (uint32_t c = 0; c < 3; c++) {
        uint32_t id = ls_tables_comm(&r->tables, names[c]);
        r->tables.comm.at[id].free_dims = spans[c];
        r->tables.comm.at[id].parent = c == LATER ? DP : LS_NO_ID;
        comm[c] = (struct ls_comm_roles){ c == PP ? all : each, c == PP ? reversed : NULL };
    }
    for (size_t i = 0; i < 4; i++) {
        static const char *const payload[] = { "right", "left", "sum", "flag" };
        (void)ls_tables_payload(&r->tables, payload[i], NULL, 0, 4);
    }
    ls_table_transducer_init(t, &r->tables, 2, ROUNDS, LETTERS, ROLES, &r->arena);
    for (uint32_t state = 0; state < 2; state++)
        for (uint32_t round = 0; round < ROUNDS; round++)
            for (uint32_t z = 0; z < LETTERS; z++) {
                *ls_table_next(t, state, round, z) = 1;
                for (uint32_t y = 0; y < ROLES; y++) {
                    struct ls_op *op = LS_NEW(&r->arena, struct ls_op, OPS), o;
                    size_t n = 0;
                    if (state == 0) { /* created at the first round, on the queue of its parent */
                        o = ls_op_make(LS_OP_COMM_INIT);
                        o.comm = LATER;
                        op[n++] = o;
                    }
                    if (z == 1) { /* compute and a wait for it, on another stream */
                        op[n] = ls_op_make(LS_OP_COMPUTE);
                        op[n++].stream = 1;
                        op[n] = ls_op_make(LS_OP_RECORD);
                        op[n].stream = 1;
                        op[n++].event = 0;
                        op[n] = ls_op_make(z == 1 && y == 1 ? LS_OP_HOST_WAIT : LS_OP_WAIT);
                        op[n++].event = 0;
                    }
                    for (int way = 0; way < 2; way++) { /* a ring both ways, fused; letter 1 lists it the other way round */
                        uint32_t to = (y + 1) % ROLES, from = (y + ROLES - 1) % ROLES;
                        o = ls_op_make((way == 0) == (z == 0) ? LS_OP_SEND : LS_OP_RECV);
                        o.comm = PP;
                        o.count = 4;
                        o.dtype = LS_DTYPE_F32;
                        o.payload = 0;
                        o.fused = 5;
                        o.blocking = y == 2 && way == 0;
                        o.peer = (int32_t)reversed[o.kind == LS_OP_SEND ? to : from];
                        op[n++] = o;
                    }
                    if (round == 1) {
                        o = ls_op_make(LS_OP_DECIDE);
                        o.comm = DP;
                        o.payload = 3;
                        o.count = 1;
                        o.dtype = LS_DTYPE_BOOL;
                        o.value = 1;
                        o.then_count = 1;
                        o.else_count = 1;
                        op[n++] = o;
                    }
                    for (int side = 0; side < (round == 1 ? 2 : 1); side++) {
                        o = ls_op_make(side ? LS_OP_BARRIER : LS_OP_ALL_REDUCE);
                        o.comm = LATER;
                        o.count = 4;
                        o.dtype = LS_DTYPE_F32;
                        o.reduce = LS_REDUCE_SUM;
                        o.payload = 2;
                        o.stream = 2;
                        op[n++] = o;
                    }
                    struct ls_segment *s = LS_NEW(&r->arena, struct ls_segment, 1);
                    *s = (struct ls_segment){ op, n, ls_segment_hash(op, n) };
                    *ls_table_segment(t, state, round, z, y) = s;
                }
            }
    static uint32_t to_one[] = { 1, 0 };
    static struct ls_driver_node node[] = { { 0, "microbatch", 0, false, to_one, 2, NULL }, { 1, "step end", 0, true, to_one + 1, 1, NULL } };
    node[0].nexts = 2;
    static const uint32_t one[LETTERS] = { 0 };
    r->system = (struct ls_system){ .replica = &t->base, .driver = { node, 2 }, .comm = comm, .free_dims = LS_DIM_SHARD, .size = { 1, 0 },
                                    .level = level };
    r->system.contract = (struct ls_contract){ .levels = 2, .dims = { 0, LS_DIM_SHARD }, .class_of = { one, NULL }, .name = "any" };
}

Test(certificate, transfers_fused_groups_and_branches)
{
    struct sum sum = { 0 };
    for (int level = 1; level <= 2; level++) {
        struct ls_random_system r;
        struct ls_certificate c;
        struct ls_proof proof;
        struct ls_error err = { 0 };
        size_t kinds[LS_CERT_KIND_COUNT] = { 0 }, fused = 0, runs = 0;
        open_rich(&r, level);
        cr_assert_eq(ls_prove(&r.system, 0, &r.arena, &proof, &err), LS_OK, "%s", err.text);
        cr_assert_eq(proof.end, LS_PROOF_SAFE);
        cr_assert_eq(ls_certificate_make(&r.system, "rich", 0, &r.arena, &c, &err), LS_OK, "%s", err.text);
        for (size_t p = 0; p < c.programs; p++)
            for (size_t i = 0; i < c.program[p].ops; i++) {
                kinds[c.program[p].op[i].kind]++;
                fused += c.program[p].op[i].fused != 0;
            }
        for (size_t k = 0; k < LS_CERT_KIND_COUNT; k++)
            cr_assert(kinds[k] > 0, "no op of kind %zu", k);
        cr_assert(fused > 0);
        cr_assert(valid(&c));
        cr_assert_eq(verify(&c), 0);
        cr_assert(!fails(&c, 1, &runs) && runs > 0);
        for (uint64_t seed = 0; seed < 8; seed++)
            for (int k = 0; k < CHANGE_COUNT; k++)
                if (k <= CHANGE_NUMBER_ANY || seed < 2)
                    change_and_compare(&c, (enum change)k, seed * 100 + (uint64_t)k, "rich", &sum);
        ls_random_system_close(&r);
    }
    print_sum("transfers and fused groups", &sum);
    cr_assert(sum.rejected[CHANGE_OP_DROP] > 0 && sum.rejected[CHANGE_OP_FUSED] > 0 && sum.rejected[CHANGE_OP_BLOCKING] > 0);
}

/* Every fourth scenario of the catalogue, in the order of their names. */
Test(certificate, catalogue)
{
    struct ls_arena list;
    ls_paths paths = { 0 };
    bool folder;
    struct ls_error err = { 0 };
    struct sum sum = { 0 };
    size_t proved = 0, certified = 0, refused = 0, rejected = 0;
    ls_arena_init(&list, 0);
    cr_assert_eq(ls_paths_add(&paths, &list, LS_SOURCE_DIR "/scenarios", &folder, &err), LS_OK, "%s", err.text);
    for (size_t i = 1; i < paths.count; i += 4) {
        struct ls_arena arena;
        struct ls_names *names = ls_names_open();
        struct ls_scenario s;
        struct ls_compiled compiled;
        struct ls_variant variant = LS_AS_WRITTEN;
        ls_arena_init(&arena, 0);
        cr_assert_eq(ls_scenario_load(paths.at[i], &arena, names, &s, &err), LS_OK, "%s: %s", paths.at[i], err.text);
        cr_assert_eq(ls_scenario_compile(&s, &variant, false, &compiled, &err), LS_OK, "%s: %s", paths.at[i], err.text);
        if (!compiled.refusal.rule && compiled.system.contract.extra != LS_CONTRACT_TABLE) {
            struct ls_proof proof;
            struct ls_certificate c;
            cr_assert_eq(ls_prove(&compiled.system, 0, &arena, &proof, &err), LS_OK, "%s: %s", paths.at[i], err.text);
            enum ls_code rc = ls_certificate_make(&compiled.system, s.name, 0, &arena, &c, &err);
            proved += proof.end == LS_PROOF_SAFE;
            if (rc == LS_OK) {
                certified++;
                cr_assert_eq(proof.end, LS_PROOF_SAFE, "%s: a certificate of a plan that is not proved", paths.at[i]);
                cr_assert_eq(verify(&c), 0, "%s", paths.at[i]);
                size_t most = 0;
                for (size_t p = 0; p < c.programs; p++)
                    most = c.program[p].ops > most ? c.program[p].ops : most;
                for (int k = 0; k < CHANGE_COUNT && most < 200; k++) /* the second checker looks at all pairs of ops */
                    change_and_compare(&c, (enum change)k, i * 100 + (size_t)k, paths.at[i], &sum);
            } else {
                cr_assert_eq(rc, LS_EUNDECIDED, "%s: %s", paths.at[i], err.text);
                refused += proof.end == LS_PROOF_SAFE;
            }
        }
        ls_compiled_release(&compiled);
        ls_names_close(names);
        ls_arena_release(&arena);
    }
    print_sum("catalogue", &sum);
    for (int k = 0; k < CHANGE_COUNT; k++)
        rejected += sum.rejected[k];
    printf("certificates: %zu scenarios proved by folding, %zu certified and accepted, %zu not expressible\n", proved, certified, refused);
    cr_assert(certified >= 20 && rejected >= 100);
    ls_vec_release(&paths);
    ls_arena_release(&list);
}

/* Cut and garbled files end with status 1 or 3, never in a crash. */
Test(certificate, garbled_files)
{
    struct ls_random_system r;
    struct ls_certificate c;
    struct ls_proof proof;
    struct ls_str text = { 0 };
    uint64_t seed = 1, random = 7;
    while (!random_certificate(seed++, &r, &c, &proof))
        ls_random_system_close(&r);
    ls_certificate_print(&c, &text);
    for (int i = 0; i < 150; i++) {
        char *copy = ls_arena_strn(&r.arena, text.text, text.length);
        size_t length = text.length;
        if (i % 3 == 0)
            length = ls_random_below(&random, text.length - 1); /* without its end */
        else
            for (int k = 0; k < i % 5; k++)
                copy[ls_random_below(&random, length)] = (char)(i % 3 == 1 ? '0' + (int)ls_random_below(&random, 10) : (int)ls_random_below(&random, 256));
        int status = verify_text(copy, length);
        cr_assert(status == 0 || status == 1 || status == 3, "case %d: status %d", i, status);
        cr_assert(i % 3 || status == 3, "a cut file: status %d", status);
    }
    ls_str_release(&text);
    ls_random_system_close(&r);
}

Test(certificate, late_operations_are_refused)
{
    struct ls_case c;
    struct ls_proof proof;
    struct ls_certificate cert;
    struct ls_error err = { 0 };
    case_open(&c, LS_DIM_SHARD, 2, 2, 2, 1);
    case_comm(&c, 'A', LS_DIM_SHARD, "0");
    case_comm(&c, 'B', LS_DIM_SHARD, "0");
    case_driver(&c, "0*:1 1:");
    for (size_t z = 0; z < 2; z++) {
        case_step(&c, 0, 0, z, (uint32_t)z, z ? "A" : "A B", NULL);
        case_step(&c, 1, 0, z, 0, "A", NULL);
        case_step(&c, 0, 1, z, 0, "", NULL);
        case_step(&c, 1, 1, z, 0, "B", NULL);
    }
    cr_assert_eq(ls_prove(&c.system, 0, &c.arena, &proof, &err), LS_OK);
    cr_assert_eq(proof.end, LS_PROOF_SAFE);
    cr_assert_eq(ls_certificate_make(&c.system, "late", 0, &c.arena, &cert, &err), LS_EUNDECIDED);
    cr_assert_not_null(strstr(err.text, "a round later"), "%s", err.text);
    case_close(&c);
}

static int run_check(const char *scenario, const char *path)
{
    struct golden_run run;
    struct ls_str args = { 0 };
    ls_str_printf(&args, "check --no-repairs --certificate %s %s", path, scenario);
    golden_run(LS_BINARY_DIR "/lockstep", LS_SOURCE_DIR, ls_str_text(&args), &run);
    int status = run.status;
    cr_assert(status == 0 || strstr(ls_str_text(&run.err), "no certificate"), "%s", ls_str_text(&run.err));
    golden_release(&run);
    ls_str_release(&args);
    return status;
}

Test(certificate, command_line)
{
    char folder[] = "/tmp/lockstep-certificate-XXXXXX", path[64];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/plan.cert", folder);
    cr_assert_eq(run_check("scenarios/raw/agreed-branch.yaml", path), 5); /* proved, but not expressible */
    cr_assert(access(path, F_OK) != 0);
    cr_assert_eq(run_check("scenarios/raw/two-comms-dependent.yaml", path), 5); /* executed */
    cr_assert_eq(run_check("scenarios/mixed-media/per-layer.yaml", path), 1); /* not safe */
    cr_assert(access(path, F_OK) != 0);
    cr_assert_eq(run_check("scenarios/mixed-media/root.yaml", path), 0);
    struct golden_run run;
    golden_run(verifier, folder, "plan.cert", &run);
    cr_assert_eq(run.status, 0, "%s", ls_str_text(&run.out));
    golden_release(&run);
    golden_run(verifier, folder, "nothing.cert", &run);
    cr_assert_eq(run.status, 3);
    golden_release(&run);
    golden_run(verifier, folder, "", &run);
    cr_assert_eq(run.status, 2);
    golden_release(&run);
    unlink(path);
    rmdir(folder);
}
