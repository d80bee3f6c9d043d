/* lockstep-verify FILE: accepts (exit 0) or rejects (1, with the reason) what `lockstep check --certificate` wrote; 2: usage; 3: not a
 * certificate (src/check/certificate.md). It shares no code with the checker, searches nothing and checks all that the proof needs:
 *   - the contract is a tree, and the scope of each communicator is derived from it
 *   - numbers rise along every local edge of every program (stream, queue, wait, host wait, blocking call)
 *   - the start is reached; what is reached is closed under every letter the contract allows, successors computed anew
 *   - inside a scope, the words on a communicator are equal, and so are the numbers of their ops; sends meet receives */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEVELS = 4, STREAMS = 256, EVENTS = 1 << 24, MOST = 2000000000, NO = 1, BAD = 3 };
/* Rows by their first word; ops of all programs share one table. */
enum word { COLLECTIVE, SEND, RECV, RUN, RECORD, WAIT, HOST_WAIT, LEVEL, DIMS, ROLES, START, LETTER, CONTRACT, NODE, NEXT, ALLOW, COMM, SIG,
            PROGRAM, STEP, SET0, SET1, SET2, REACH, ORDER, ROUND, END, PLAN, CLAIM, PAYLOAD, WORDS, OP = COLLECTIVE };
enum { STREAM, OBJECT, SIGNATURE, PEER, FUSED, BLOCKING, COLUMNS }; /* of an op */
static const struct { const char *text; int least, id; } known[WORDS] = { /* least numbers; id: the first one counts the rows */
    { "collective", COLUMNS, 0 }, { "send", COLUMNS, 0 }, { "recv", COLUMNS, 0 }, { "run", COLUMNS, 0 }, { "record", COLUMNS, 0 },
    { "wait", COLUMNS, 0 }, { "host_wait", COLUMNS, 0 }, { "level", 1, 0 }, { "dims", 1, 0 }, { "roles", 1, 0 }, { "start", 1, 0 },
    { "letter", 1, 1 }, { "contract", 2, 1 }, { "node", 2, 1 }, { "next", 1, 1 }, { "allow", 1, 1 }, { "comm", 2, 1 }, { "sig", 1, 1 },
    { "program", 2, 1 }, { "step", 4, 0 }, { "set0", 2, 1 }, { "set1", 2, 1 }, { "set2", 2, 1 }, { "reach", 2, 0 }, { "order", 2, 1 },
    { "round", 3, 0 }, { "end", 0, 0 }, { "plan", 0, 0 }, { "claim", 0, 0 }, { "payload", 1, 1 } };
struct row { int *v, n, from; enum word kind; size_t line; }; /* from: of a program, its first op */
static struct { struct row *at; int n; } table[WORDS];
static int last, roles, letters, comms, *scope, *word_of, *p2p; /* scope: level of each communicator; p2p: of each program */
static int node, cursor; static const struct row *round_now; /* the round that is looked at, and the next rank in it */

static void check(int status, int holds, const char *format, ...)
{
    va_list list;
    if (holds)
        return;
    va_start(list, format);
    fputs(status == NO ? "rejected: " : "not a certificate: ", stdout);
    vprintf(format, list);
    putchar('\n');
    exit(status);
}

static int *ints(size_t count, int value)
{
    int *v = malloc((count + 1) * sizeof *v);
    check(BAD, v != NULL, "out of memory");
    for (size_t i = 0; i < count; i++)
        v[i] = value;
    return v;
}

static int num(const struct row *r, int i, int limit) /* every number that selects something is read through this */
{
    check(BAD, i < r->n && r->v[i] >= 0 && r->v[i] < limit, "line %zu: number %d is missing or out of range", r->line, i + 1);
    return r->v[i];
}

static const struct row *get(enum word t, int i)
{
    check(BAD, i >= 0 && i < table[t].n, "there is no '%s' %d", known[t].text, i);
    return &table[t].at[i];
}

static int single(enum word t) { return num(get(t, table[t].n - 1), 0, table[t].n == 1 ? MOST : 0); } /* of the only row */

static void read_line(char *text, size_t line)
{
    size_t room = strlen(text) / 2;
    char *word = strtok(text, " \n");
    enum word t = COLLECTIVE;
    if (!word || *word == '#')
        return;
    while (t < WORDS && strcmp(word, known[t].text) != 0)
        t++;
    struct row r = { ints(room, 0), 0, table[OP].n, t, line };
    t = t <= HOST_WAIT ? OP : t;
    check(BAD, t < WORDS && !table[END].n, "line %zu: unexpected '%.40s'", line, word);
    while ((word = strtok(NULL, " \n")) && *word != '"') { /* what is quoted is for people */
        char *end = word + 1;
        long x = strcmp(word, "-") == 0 ? -1 : *word >= '0' && *word <= '9' ? strtol(word, &end, 10) : MOST + 1L;
        check(BAD, *end == 0 && x <= MOST, "line %zu: '%.40s' is not a number", line, word);
        r.v[r.n++] = (int)x;
    }
    check(BAD, r.n >= known[t].least && (!known[t].id || r.v[0] == table[t].n), "line %zu: too short, or out of turn", line);
    if ((table[t].n & (table[t].n - 1)) == 0) /* room for the next power of two */
        table[t].at = realloc(table[t].at, (size_t)(2 * table[t].n + 1) * sizeof r);
    check(BAD, table[t].at != NULL, "out of memory");
    table[t].at[table[t].n++] = r;
}

static const struct row *find(enum word t, int keys, int a, int b, int c) /* rows that start with their key, ascending */
{
    int key[3] = { a, b, c }, low = 0, high = table[t].n;
    while (low < high) {
        int middle = (low + high) / 2, i = 0, *v = table[t].at[middle].v;
        while (i < keys && v[i] == key[i])
            i++;
        if (i == keys)
            return &table[t].at[middle];
        *(v[i] < key[i] ? &low : &high) = middle + (v[i] < key[i]);
    }
    return NULL;
}

static int max(int a, int b) { return a > b ? a : b; }
static int class_of(int level, int letter) { return num(get(CONTRACT, level), 2 + letter, letters); }
static int tier_dims(int level) { return num(get(CONTRACT, level), 1, MOST); }

static void check_contract(void)
{
    check(NO, tier_dims(0) == 0 && tier_dims(last) == single(DIMS), "the levels do not go from the job to one replica");
    for (int i = 0; i <= last; i++)
        for (int a = 0; a < letters; a++) {
            check(NO, !i || (tier_dims(i - 1) & ~tier_dims(i)) == 0, "level %d does not refine the level above", i);
            check(NO, i < last || class_of(i, a) == a, "a replica does not choose letter %d", a);
            for (int b = 0; b < a && i > 0; b++)
                check(NO, class_of(i, a) != class_of(i, b) || class_of(i - 1, a) == class_of(i - 1, b), "the classes are no tree");
        }
    for (int c = 0; c < comms; c++)
        for (int i = 0, spans = num(get(COMM, c), 1, MOST); i <= last; i++) /* the deepest agent that all of a group share */
            scope[c] = (tier_dims(i) & spans) == 0 ? i : scope[c];
}

/* Ops of a program are well-formed, and the numbers of one order rise along its local edges. */
static void check_order(const struct row *r)
{
    const struct row *program = get(PROGRAM, r->v[1]), *o = table[OP].at + program->from;
    int n = num(program, 1, MOST), host = 0, group = 0, pending = 0, events = 0;
    check(BAD, r->n == 2 + n && n <= table[OP].n - program->from, "line %zu: not one number per op", r->line);
    for (int i = 0; i < n; i++)
        events = o[i].kind >= RECORD && o[i].v[OBJECT] >= 0 ? max(events, num(&o[i], OBJECT, EVENTS) + 1) : events;
    int *below = ints(4 * STREAMS + (size_t)events + (size_t)comms * (size_t)(2 * roles + 1), 0), *top = below + STREAMS;
    int *bundle = top + STREAMS, *held = bundle + STREAMS, *record = held + STREAMS, *queue = record + events;
    for (int i = 0; i < n; i++) {
        int fused = num(&o[i], FUSED, MOST), x = r->v[2 + i];
        if (i == 0 || !fused || fused != o[i - 1].v[FUSED]) { /* a new bundle; the one before may hold the host at its end */
            for (int s = 0; s < STREAMS && pending; s++)
                host = held[s] ? max(host, top[s]) : host;
            memset(held, 0, pending ? STREAMS * sizeof *held : 0);
            pending = 0, group++;
        }
        check(BAD, o[i].kind <= RECV || !fused, "line %zu: only communication can be fused", o[i].line);
        if (o[i].kind == HOST_WAIT) {
            host = o[i].v[OBJECT] >= 0 ? max(host, record[o[i].v[OBJECT]]) : host;
            continue;
        }
        int s = num(&o[i], STREAM, STREAMS);
        below[s] = bundle[s] != group ? top[s] : below[s], bundle[s] = group;
        check(NO, x > below[s] && x > host, "line %zu: op %d is not above its stream or host", r->line, i);
        check(NO, o[i].kind != WAIT || o[i].v[OBJECT] < 0 || x > record[o[i].v[OBJECT]], "line %zu: op %d is not above its wait", r->line, i);
        if (o[i].kind <= RECV) {
            int *q = queue + num(&o[i], OBJECT, comms) * (2 * roles + 1);
            q += o[i].kind == COLLECTIVE ? 0 : 2 * num(&o[i], PEER, roles) + (o[i].kind == SEND ? 1 : 2);
            check(NO, x > *q, "line %zu: op %d is not above the one before in its queue", r->line, i);
            (void)num(&o[i], SIGNATURE, table[SIG].n);
            *q = x;
            p2p[r->v[1]] |= o[i].kind != COLLECTIVE;
        }
        if (o[i].kind == RECORD && o[i].v[OBJECT] >= 0)
            record[o[i].v[OBJECT]] = x;
        top[s] = max(top[s], x);
        if (num(&o[i], BLOCKING, 2) || single(LEVEL) == 1)
            held[s] = pending = 1;
    }
    free(below);
}

/* The next op of this kind, communicator and peer, from index `at` on; -1: no more. */
static int next_op(const struct row *order, enum word kind, int comm, int peer, int at)
{
    const struct row *program = get(PROGRAM, order->v[1]), *o = table[OP].at + program->from;
    while (at < program->v[1] && (o[at].kind != kind || o[at].v[OBJECT] != comm || (kind != COLLECTIVE && o[at].v[PEER] != peer)))
        at++;
    return at < program->v[1] ? at : -1;
}

/* Do two queues hold ops with equal signatures and equal numbers? */
static int meet(const struct row *x, enum word x_kind, int x_peer, const struct row *y, enum word y_kind, int y_peer, int comm)
{
    const struct row *x_op = table[OP].at + get(PROGRAM, x->v[1])->from, *y_op = table[OP].at + get(PROGRAM, y->v[1])->from;
    int i = next_op(x, x_kind, comm, x_peer, 0), k = next_op(y, y_kind, comm, y_peer, 0);
    while (i >= 0 && k >= 0 && x_op[i].v[SIGNATURE] == y_op[k].v[SIGNATURE] && x->v[2 + i] == y->v[2 + k]) {
        i = next_op(x, x_kind, comm, x_peer, i + 1);
        k = next_op(y, y_kind, comm, y_peer, k + 1);
    }
    return i < 0 && k < 0;
}

/* A replica: its ranks' words are compared with the first ones of their scopes, which word_of keeps. Returns its next state. */
static int leaf(int state, int letter)
{
    const struct row *step = find(STEP, 3, state, num(get(NODE, node), 1, MOST), letter);
    check(NO, step != NULL, "state %d has no step for node %d, letter %d", state, node, letter);
    const int *order = round_now->v + cursor;
    check(NO, (cursor += roles) <= round_now->n, "line %zu: the round has more replicas than that", round_now->line);
    for (int y = 0; y < roles; y++) {
        const struct row *mine = get(ORDER, order[y]);
        check(NO, mine->v[1] == num(step, 4 + y, MOST), "line %zu: role %d runs another program", round_now->line, y);
        for (int c = 0; c < comms; c++) {
            int part = get(COMM, c)->n > 2 + y ? get(COMM, c)->v[2 + y] : -1, inner = part >= 0 && get(COMM, c)->v[1] == 0;
            int *have = part < 0 ? NULL : &word_of[c * roles + num(get(COMM, c), 2 + y, roles)];
            if (have && *have >= 0 && *have != order[y])
                check(NO, meet(get(ORDER, *have), COLLECTIVE, 0, mine, COLLECTIVE, 0, c), "line %zu: role %d of state %d, letter %d differs "
                      "from others on communicator %d", round_now->line, y, state, letter, c);
            check(NO, have || next_op(mine, COLLECTIVE, c, 0, 0) < 0, "role %d is not a member of communicator %d", y, c);
            if (have)
                *have = order[y];
            for (int z = 0; z < roles && p2p[mine->v[1]]; z++) {
                int member = inner && get(COMM, c)->n > 2 + z && get(COMM, c)->v[2 + z] == part;
                const struct row *theirs = get(ORDER, order[z]);
                check(NO, (member && meet(mine, SEND, z, theirs, RECV, y, c) && meet(mine, RECV, z, theirs, SEND, y, c)) ||
                              (next_op(mine, SEND, c, z, 0) < 0 && next_op(mine, RECV, c, z, 0) < 0),
                      "line %zu: sends and receives of roles %d and %d do not meet", round_now->line, y, z);
            }
        }
    }
    return num(step, 3, MOST);
}

static int by_value(const void *a, const void *b) { return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b); }

static int set_of(int level, int *member, int count) /* the macro-state of `level` with these members */
{
    int n = 0;
    qsort(member, (size_t)count, sizeof *member, by_value);
    for (int i = 0; i < count; i++)
        if (i == 0 || member[i] != member[i - 1])
            member[n++] = member[i];
    for (const struct row *r = table[SET0 + level].at; r < table[SET0 + level].at + table[SET0 + level].n; r++)
        if (r->n == n + 1 && memcmp(r->v + 1, member, (size_t)n * sizeof *member) == 0)
            return r->v[0];
    return -1;
}

/* Does node's round allow a letter of this class of `level`, inside `klass` of the level above? */
static int allowed(int level, int klass, int above)
{
    const struct row *r = get(ALLOW, node);
    for (int i = 1; i < r->n; i++)
        if (class_of(level, num(r, i, letters)) == klass && (level == 0 || class_of(level - 1, r->v[i]) == above))
            return 1;
    return 0;
}

static int agent(int level, int macro, int klass) /* returns its macro-state after the round */
{
    for (int c = 0; c < comms; c++)
        for (int y = 0; y < roles && scope[c] == level; y++)
            word_of[c * roles + y] = -1;
    if (level == last)
        return leaf(macro, klass);
    const struct row *set = get((enum word)(SET0 + level), macro);
    int count = 0, *next = ints((size_t)(set->n - 1) * (size_t)letters, 0);
    for (int i = letters; i < set->n * letters; i++) /* members, and for each the classes it may pick */
        if (allowed(level + 1, i % letters, klass))
            next[count++] = agent(level + 1, set->v[i / letters], i % letters);
    macro = set_of(level, next, count);
    free(next);
    return macro;
}

int main(int argc, char **argv)
{
    FILE *in = argc == 2 ? fopen(argv[1], "r") : NULL;
    char *text = NULL;
    size_t room = 0, line = 0;
    if (argc != 2)
        return fputs("usage: lockstep-verify FILE\n", stderr), 2;
    check(BAD, in != NULL, "'%s' cannot be read", argv[1]);
    while (getline(&text, &room, in) > 0)
        if (line++)
            read_line(text, line);
        else
            check(BAD, strcmp(text, "lockstep-certificate 1\n") == 0, "it does not start with 'lockstep-certificate 1'");
    letters = table[LETTER].n, comms = table[COMM].n, last = table[CONTRACT].n - 1, roles = single(ROLES);
    check(BAD, !ferror(in) && table[END].n == 1 && last >= 0 && last < LEVELS, "it is cut, or has no contract");
    check(BAD, roles > 0 && roles <= 1 << 12 && comms <= 1 << 10 && letters <= 1 << 12 && single(LEVEL) >= 1 && single(LEVEL) <= 2,
          "it has too many roles, communicators or letters, or another level than 1 and 2");
    scope = ints((size_t)comms, 0), word_of = ints((size_t)comms * (size_t)roles, -1), p2p = ints((size_t)table[PROGRAM].n, 0);
    check_contract();
    for (int i = 0; i < table[ORDER].n; i++)
        check_order(get(ORDER, i));
    int macro = single(START);
    for (int level = last; level-- > 0;)
        macro = set_of(level, &macro, 1);
    check(NO, find(REACH, 2, 0, macro, 0) != NULL, "the start is not among what is reached");
    for (int i = 0; i < table[REACH].n; i++) {
        const struct row *at = get(REACH, i);
        node = num(at, 0, table[NODE].n);
        for (int q = 0; q < letters; q++) {
            if (!allowed(0, q, 0))
                continue;
            round_now = find(ROUND, 3, node, at->v[1], q), cursor = 3;
            check(NO, round_now != NULL, "node %d, joint set %d, class %d has no round", node, at->v[1], q);
            macro = agent(0, at->v[1], q);
            check(NO, cursor == round_now->n, "line %zu: the round has fewer replicas than that", round_now->line);
            for (int k = 1; k < get(NEXT, node)->n; k++)
                check(NO, find(REACH, 2, num(get(NEXT, node), k, table[NODE].n), macro, 0) != NULL,
                      "line %zu: what follows the round is not among what is reached", round_now->line);
        }
    }
    return printf("accepted: %d joint sets of states, %d folded rounds, level L%d\n", table[REACH].n, table[ROUND].n, single(LEVEL)) < 0;
}
