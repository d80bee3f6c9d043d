#include "certificate_valid.h"

#include <string.h>

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

const struct ls_cert_step *certificate_step(const struct ls_certificate *c, uint32_t state, uint32_t round, uint32_t letter)
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
        const struct ls_cert_step *s = certificate_step(c, level[l].at[a].macro, c->node[r->node].round, level[l].at[a].klass);
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

bool certificate_valid(const struct ls_certificate *c)
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
