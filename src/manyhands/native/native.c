/* Loops over the integers of a pass. `plain.py` says the same in numpy, function by function, and is what this file
   is tested against; its docstrings have the shapes. Every array is int64 and contiguous.

   Functions write into arrays that `compiled.py` has made. They raise for arrays of another kind, and where the integers
   themselves would lead out of an array: a strip without readers, a row that reads nothing. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t Int;

#define MOST_ARRAYS 24
#define MOST_LISTS 4
#define ENDLESS ((Int)1 << 30)
#define ITEM_FIELDS 6

/* -- arguments ------------------------------------------------------------------------------- */

typedef struct {
    Py_buffer held[MOST_ARRAYS];
    Int *copied[MOST_LISTS]; /* of lists */
    int count, num_copied;
} Arrays;

static void let_go(Arrays *arrays) {
    while (arrays->count) PyBuffer_Release(&arrays->held[--arrays->count]);
    while (arrays->num_copied) free(arrays->copied[--arrays->num_copied]);
}

/* Copy the integers of a list; 0 with an error where it is no list, or has something else. */
static int copy_list(PyObject *list, Int *into, Py_ssize_t size) {
    for (Py_ssize_t at = 0; at < size; at++) {
        PyObject *item = PyList_GET_ITEM(list, at);
        Py_INCREF(item);
        into[at] = PyLong_AsLongLong(item);
        Py_DECREF(item);
        if (into[at] == -1 && PyErr_Occurred()) return 0;
        if (PyList_GET_SIZE(list) != size) {
            PyErr_SetString(PyExc_ValueError, "a list has changed while it was read");
            return 0;
        }
    }
    return 1;
}

static int is_list(PyObject *list) {
    if (PyList_Check(list)) return 1;
    PyErr_Format(PyExc_TypeError, "a loop was given a %s; expected a list", Py_TYPE(list)->tp_name);
    return 0;
}

/* The integers of a list, until the arrays are let go of, and how many there are; NULL with an error. */
static Int *listed(Arrays *arrays, PyObject *list, Py_ssize_t *size) {
    if (!is_list(list)) return NULL;
    if (arrays->num_copied == MOST_LISTS) {
        PyErr_SetString(PyExc_SystemError, "more lists than a loop may have");
        return NULL;
    }
    *size = PyList_GET_SIZE(list);
    Int *found = malloc(sizeof(Int) * (*size + 1));
    if (!found) {
        PyErr_NoMemory();
        return NULL;
    }
    arrays->copied[arrays->num_copied++] = found;
    return copy_list(list, found, *size) ? found : NULL;
}

/* The integers of an array of so many bytes each, and how many there are; NULL with an error. Empty arrays have a place, too. */
static void *integers(Arrays *arrays, PyObject *array, Py_ssize_t *size, int flags, Py_ssize_t bytes) {
    static Int nothing;
    Py_buffer *held = &arrays->held[arrays->count];
    if (arrays->count == MOST_ARRAYS) {
        PyErr_SetString(PyExc_SystemError, "more arrays than a loop may have");
        return NULL;
    }
    if (PyObject_GetBuffer(array, held, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) < 0) return NULL;
    arrays->count++;
    if (held->itemsize != bytes || !held->format || !strchr("ilq", held->format[0])) {
        PyErr_Format(PyExc_TypeError, "a loop was given an array of format %s; expected int%zd",
                     held->format ? held->format : "?", 8 * bytes);
        return NULL;
    }
    if (size) *size = held->len / bytes;
    return held->buf ? held->buf : &nothing;
}

static Int *ints(Arrays *arrays, PyObject *array, Py_ssize_t *size, int flags) {
    return integers(arrays, array, size, flags, sizeof(Int));
}

#define READ(name, at)                                                                             \
    Py_ssize_t name##_size;                                                                         \
    const Int *name = ints(&arrays, args[at], &name##_size, 0);                                     \
    (void)name##_size;                                                                              \
    if (!name) goto failed
#define WRITE(name, at)                                                                            \
    Py_ssize_t name##_size;                                                                         \
    Int *name = ints(&arrays, args[at], &name##_size, PyBUF_WRITABLE);                              \
    (void)name##_size;                                                                              \
    if (!name) goto failed
#define LIST(name, at)                                                                             \
    Py_ssize_t name##_size;                                                                         \
    const Int *name = listed(&arrays, args[at], &name##_size);                                      \
    (void)name##_size;                                                                              \
    if (!name) goto failed
#define NUMBER(name, at)                                                                           \
    Int name = PyLong_AsLongLong(args[at]);                                                        \
    if (name == -1 && PyErr_Occurred()) goto failed
#define LOOP(name, wanted)                                                                         \
    static PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t given) {             \
        Arrays arrays = {.count = 0, .num_copied = 0};                                                              \
        (void)module;                                                                              \
        if (given != (wanted)) {                                                                   \
            PyErr_Format(PyExc_TypeError, #name " takes %d arguments", wanted);                     \
            return NULL;                                                                           \
        }
#define REFUSE(what)                                                                               \
    do {                                                                                           \
        PyErr_SetString(PyExc_ValueError, what);                                                   \
        goto failed;                                                                               \
    } while (0)
#define END                                                                                        \
    failed:                                                                                        \
        let_go(&arrays);                                                                           \
        return NULL;                                                                               \
    }
#define RETURN(number)                                                                             \
    do {                                                                                           \
        Int found = (number);                                                                      \
        let_go(&arrays);                                                                           \
        return PyLong_FromLongLong(found);                                                         \
    } while (0)

static inline Int least(Int one, Int other) { return one < other ? one : other; }
static inline Int most(Int one, Int other) { return one > other ? one : other; }

static int falling(const void *one, const void *other) {
    Int a = *(const Int *)one, b = *(const Int *)other;
    return (a < b) - (a > b);
}

typedef struct {
    Int key, index;
} Ranked;

static int rising(const void *one, const void *other) {
    const Ranked *a = one, *b = other;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

/* -- entries (attention/entries.py) ---------------------------------------------------------- */

/* row_indptr [R + 1], row [n] -> E */
LOOP(num_entries, 2)
    READ(row_indptr, 0);
    READ(row, 1);
    Int count = 0;
    for (Py_ssize_t n = 0; n < row_size; n++) count += row_indptr[row[n] + 1] - row_indptr[row[n]];
    RETURN(count);
END

/* row_indptr, positions, row, base, low, high, strip_indptr -> room [5, E], strip_indptr of entries */
LOOP(entries, 9)
    READ(row_indptr, 0);
    READ(positions, 1);
    READ(row, 2);
    READ(base, 3);
    READ(low, 4);
    READ(high, 5);
    READ(strip_indptr, 6);
    WRITE(room, 7);
    WRITE(indptr, 8);
    Py_ssize_t count = room_size / 5, at = 0, strip = 0;
    Int *token = room, *read = room + count, *offset = room + 2 * count;
    Int *lows = room + 3 * count, *highs = room + 4 * count;
    for (Py_ssize_t n = 0; n < row_size; n++) {
        while (strip < strip_indptr_size && strip_indptr[strip] == n) indptr[strip++] = at;
        for (Int packed = row_indptr[row[n]]; packed < row_indptr[row[n] + 1]; packed++, at++) {
            token[at] = packed;
            read[at] = n;
            offset[at] = positions[packed] - base[n];
            lows[at] = low[n];
            highs[at] = high[n];
        }
    }
    while (strip < strip_indptr_size) indptr[strip++] = at;
    RETURN(at);
END

/* low [E], high [E], strip_indptr [S + 1], least -> room [2, E + 1]: indptr and strip; how many stretches there are */
LOOP(stretches, 5)
    READ(low, 0);
    READ(high, 1);
    READ(strip_indptr, 2);
    NUMBER(least_keys, 3);
    WRITE(room, 4);
    Int *indptr = room, *strips = room + low_size + 1;
    Py_ssize_t count = 0;
    for (Py_ssize_t strip = 0; strip + 1 < strip_indptr_size; strip++) {
        Int first = strip_indptr[strip], stop = strip_indptr[strip + 1];
        if (first >= stop) REFUSE("a strip without entries");
        Int lowest = low[first], highest = high[first];
        for (Int at = first + 1; at < stop; at++) {
            lowest = least(lowest, low[at]);
            highest = most(highest, high[at]);
        }
        indptr[count] = first;
        strips[count++] = strip;
        if (highest - lowest <= least_keys) continue;
        /* What is to be seen behind each entry: kept where strips of later stretches will stand. */
        Int *to_see = strips;
        Int next = low[stop - 1];
        for (Int at = stop - 1; at > first; at--) {
            next = least(next, low[at]);
            to_see[at] = next;
        }
        Int seen = high[first];
        for (Int at = first + 1; at < stop; at++) {
            if (to_see[at] >= seen) {
                /* `count` is at most `at`, so nothing that is still wanted is written over. */
                indptr[count] = at;
                strips[count++] = strip;
            }
            seen = most(seen, high[at]);
        }
    }
    indptr[count] = low_size;
    RETURN(count);
END

/* low, high, offset [E], indptr [stretches + 1] -> room [2, stretches]: entries, and keys up to the last one */
LOOP(sizes, 5)
    READ(low, 0);
    READ(high, 1);
    READ(offset, 2);
    READ(indptr, 3);
    WRITE(room, 4);
    Py_ssize_t count = indptr_size - 1;
    for (Py_ssize_t stretch = 0; stretch < count; stretch++) {
        Int first = indptr[stretch], stop = indptr[stretch + 1];
        if (first >= stop) REFUSE("a stretch without entries");
        Int begin = low[first], end = least(high[first], offset[first] + 1);
        for (Int at = first + 1; at < stop; at++) {
            begin = least(begin, low[at]);
            end = most(end, least(high[at], offset[at] + 1));
        }
        room[stretch] = stop - first;
        room[count + stretch] = end - begin;
    }
    RETURN(count);
END

/* -- tiles and items (attention/work.py) ----------------------------------------------------- */

/* indptr [stretches + 1], picked [n], most -> I */
LOOP(num_tiles, 3)
    READ(indptr, 0);
    READ(picked, 1);
    NUMBER(most_entries, 2);
    if (most_entries < 1) REFUSE("a tile without entries");
    Int count = 0;
    for (Py_ssize_t n = 0; n < picked_size; n++)
        count += (indptr[picked[n] + 1] - indptr[picked[n]] + most_entries - 1) / most_entries;
    RETURN(count);
END

/* low, high, offset [E], indptr, picked [n], most, key_tile -> room [5, I]: stretch, first, count, start, num_keys */
LOOP(tiles, 8)
    READ(low, 0);
    READ(high, 1);
    READ(offset, 2);
    READ(indptr, 3);
    READ(picked, 4);
    NUMBER(most_entries, 5);
    NUMBER(key_tile, 6);
    WRITE(room, 7);
    Py_ssize_t width = room_size / 5, tile = 0;
    for (Py_ssize_t n = 0; n < picked_size; n++) {
        Int stop = indptr[picked[n] + 1];
        for (Int first = indptr[picked[n]]; first < stop; first += most_entries, tile++) {
            Int end = least(first + most_entries, stop);
            Int begin = low[first], reach = least(high[first], offset[first] + 1);
            for (Int at = first + 1; at < end; at++) {
                begin = least(begin, low[at]);
                reach = most(reach, least(high[at], offset[at] + 1));
            }
            Int is_cut = begin % key_tile;
            room[tile] = picked[n];
            room[width + tile] = first;
            room[2 * width + tile] = end - first;
            room[3 * width + tile] = begin - is_cut;
            room[4 * width + tile] = reach - begin + is_cut;
        }
    }
    RETURN(tile);
END

static inline Int splits_of(Int num_keys, Int size, Int key_tile) {
    Int beyond = num_keys - key_tile;
    return beyond <= size ? 1 : (beyond + size - 1) / size;
}

/* num_keys [I], size, key_tile -> splits [I]; their sum */
LOOP(num_splits, 4)
    READ(num_keys, 0);
    NUMBER(size, 1);
    NUMBER(key_tile, 2);
    WRITE(splits, 3);
    Int sum = 0;
    for (Py_ssize_t tile = 0; tile < num_keys_size; tile++)
        sum += splits[tile] = splits_of(num_keys[tile], size, key_tile);
    RETURN(sum);
END

/* Groups of processors that are done at the same time, the first ones first: when, and how many. */
typedef struct {
    Int done, count;
} Group;

/* So many programs of this length, each on the processor that is done first; how many groups there are then. */
static Py_ssize_t placed(Group *groups, Py_ssize_t num_groups, Int programs, Int length) {
    while (programs > 0) {
        Group taken = {groups[0].done + length, least(programs, groups[0].count)};
        programs -= taken.count;
        Py_ssize_t at = 1;
        while (at < num_groups && groups[at].done < taken.done) at++;
        int is_known = at < num_groups && groups[at].done == taken.done;
        if (is_known) groups[at].count += taken.count;
        groups[0].count -= taken.count;
        if (groups[0].count) {
            if (is_known) continue;
            memmove(groups + at + 1, groups + at, sizeof(Group) * (num_groups++ - at));
            groups[at] = taken;
        } else if (is_known) {
            memmove(groups, groups + 1, sizeof(Group) * --num_groups);
        } else {
            memmove(groups, groups + 1, sizeof(Group) * (at - 1));
            groups[at - 1] = taken;
        }
    }
    return num_groups;
}

/* num_keys [I], sizes [n], num_heads, num_processors, key_tile, to_begin -> rests [I], groups [2, num_processors] (both of no
   meaning), found [2, n] */
LOOP(last_done, 9)
    READ(num_keys, 0);
    READ(sizes, 1);
    NUMBER(num_heads, 2);
    NUMBER(num_processors, 3);
    NUMBER(key_tile, 4);
    NUMBER(to_begin, 5);
    WRITE(rests, 6);
    WRITE(rooms, 7);
    WRITE(found, 8);
    Group *groups = (Group *)rooms;
    for (Py_ssize_t n = 0; n < sizes_size; n++) {
        Int size = sizes[n], whole = 0;
        for (Py_ssize_t tile = 0; tile < num_keys_size; tile++) {
            Int splits = splits_of(num_keys[tile], size, key_tile);
            whole += splits - 1;
            rests[tile] = num_keys[tile] - (splits - 1) * size;
        }
        qsort(rests, num_keys_size, sizeof(Int), falling);
        groups[0] = (Group){0, num_processors};
        Py_ssize_t num_groups = 1, tile = 0;
        for (; tile < num_keys_size && rests[tile] > size; tile++)
            num_groups = placed(groups, num_groups, num_heads, rests[tile] + to_begin);
        num_groups = placed(groups, num_groups, whole * num_heads, size + to_begin);
        for (; tile < num_keys_size; tile++)
            num_groups = placed(groups, num_groups, num_heads, rests[tile] + to_begin);
        found[n] = groups[num_groups - 1].done;
        found[sizes_size + n] = whole + num_keys_size;
    }
    RETURN(sizes_size);
END

/* tiles [5, I], splits [I], size, strip_of [stretches], first_page [S] -> items [sum, ITEM_FIELDS], ranked [2, sum] (of no
   meaning), num_splits [E]. The longest first, and of those that are alike the first. */
LOOP(items, 8)
    READ(tiles, 0);
    READ(splits, 1);
    NUMBER(size, 2);
    READ(strip_of, 3);
    READ(first_page, 4);
    WRITE(items, 5);
    WRITE(ranked, 6);
    WRITE(num_splits, 7);
    Py_ssize_t width = tiles_size / 5, item = 0;
    const Int *stretch = tiles, *first = tiles + width, *entries = tiles + 2 * width;
    const Int *start = tiles + 3 * width, *num_keys = tiles + 4 * width;
    Ranked *order = (Ranked *)ranked;
    Int is_sorted = 1;
    for (Py_ssize_t tile = 0; tile < width; tile++) {
        for (Int at = first[tile]; at < first[tile] + entries[tile]; at++)
            num_splits[at] = splits[tile];
        for (Int split = 0; split < splits[tile]; split++, item++) {
            order[item].key = -least(num_keys[tile] - split * size, size);
            order[item].index = (Int)tile << 32 | split;
            is_sorted &= !item || order[item - 1].key <= order[item].key;
        }
    }
    if (!is_sorted) qsort(order, item, sizeof(Ranked), rising);
    for (Py_ssize_t at = 0; at < item; at++) {
        Int tile = order[at].index >> 32, split = order[at].index & 0xffffffff;
        Int begin = start[tile] + split * size;
        Int *one = items + at * ITEM_FIELDS;
        one[0] = first[tile];
        one[1] = entries[tile];
        one[2] = begin;
        one[3] = split == splits[tile] - 1 ? ENDLESS : begin + size;
        one[4] = first_page[strip_of[stretch[tile]]];
        one[5] = split;
    }
    RETURN(item);
END

/* token [E], num_splits [E] -> entry_partial [E], indptr [T + 1] */
LOOP(partials, 4)
    READ(token, 0);
    READ(num_splits, 1);
    WRITE(entry_partial, 2);
    WRITE(indptr, 3);
    Py_ssize_t num_tokens = indptr_size - 1;
    memset(indptr, 0, sizeof(Int) * indptr_size);
    for (Py_ssize_t entry = 0; entry < token_size; entry++) indptr[token[entry] + 1] += num_splits[entry];
    for (Py_ssize_t at = 0; at < num_tokens; at++) indptr[at + 1] += indptr[at];
    /* Each token's beginning moves on with its entries, and ends where the next one begins. */
    for (Py_ssize_t entry = 0; entry < token_size; entry++) {
        entry_partial[entry] = indptr[token[entry]];
        indptr[token[entry]] += num_splits[entry];
    }
    memmove(indptr + 1, indptr, sizeof(Int) * num_tokens);
    indptr[0] = 0;
    RETURN(indptr[num_tokens]);
END

/* -- lists of a plan (cache/planner.py) ------------------------------------------------------ */

/* The place of a key in a table of `mask` + 1 places, a power of two: its own, or the first that is free. */
static inline Int place_of(const Int *keys, const Int *values, Int mask, Int key) {
    Int at = (Int)((uint64_t)key * 0x9e3779b97f4a7c15u >> 20) & mask;
    while (values[at] >= 0 && keys[at] != key) at = (at + 1) & mask;
    return at;
}

static Int power_above(Int count) {
    Int size = 16;
    while (size < 2 * count) size *= 2;
    return size;
}

/* table [n, 6], num_reads [R], ages [R], fed [R] -> row_indptr [R + 1], offsets [T], positions [T], room [6, n], indptr [n + 1],
   names [n], own [R]; how many strips there are */
LOOP(lists, 11)
    READ(table, 0);
    READ(num_reads, 1);
    READ(ages, 2);
    READ(fed, 3);
    WRITE(row_indptr, 4);
    WRITE(offsets, 5);
    WRITE(positions, 6);
    WRITE(room, 7);
    WRITE(indptr, 8);
    WRITE(names, 9);
    WRITE(own, 10);
    Py_ssize_t count = table_size / 6;
    for (Py_ssize_t row = 0; row < num_reads_size; row++)
        if (num_reads[row] < 1) REFUSE("a row that reads nothing");
    Int size = power_above(count);
    Int *scratch = malloc(sizeof(Int) * (2 * size + 2 * count) + sizeof(Ranked) * count);
    if (!scratch) {
        PyErr_NoMemory();
        goto failed;
    }
    Int *keys = scratch, *values = scratch + size, *strip = values + size, *next = strip + count;
    Ranked *order = (Ranked *)(next + count);
    memset(values, 0xff, sizeof(Int) * size);
    /* Strips in the order in which they appear first. */
    Int strips = 0;
    memset(indptr, 0, sizeof(Int) * indptr_size);
    for (Py_ssize_t n = 0; n < count; n++) {
        Int at = place_of(keys, values, size - 1, table[6 * n]);
        if (values[at] < 0) {
            keys[at] = names[strips] = table[6 * n];
            values[at] = strips++;
        }
        strip[n] = values[at];
        indptr[strip[n] + 1]++;
    }
    for (Int s = 0; s < strips; s++) {
        indptr[s + 1] += indptr[s];
        next[s] = indptr[s];
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        Ranked *one = &order[next[strip[n]]++];
        one->key = table[6 * n + 2];
        one->index = n;
    }
    /* Of each first the reads of what lies in front, in the order of the rows. */
    for (Int s = 0; s < strips; s++) {
        Int first = indptr[s], stop = indptr[s + 1], is_sorted = 1;
        for (Int at = first + 1; at < stop; at++) is_sorted &= order[at - 1].key <= order[at].key;
        if (!is_sorted) qsort(order + first, stop - first, sizeof(Ranked), rising);
    }
    Int *rows = next; /* of each read its row */
    Py_ssize_t read = 0;
    Int packed = 0;
    row_indptr[0] = 0;
    for (Py_ssize_t row = 0; row < num_reads_size; row++) {
        for (Int stop = read + num_reads[row]; read < stop; read++) rows[read] = row;
        /* A row reads its own block last. */
        const Int *last = table + 6 * (read - 1);
        Int base = last[1] + ages[row] * last[4], high = last[3] + ages[row] * last[5];
        own[row] = strip[read - 1];
        for (Int at = 0; at < fed[row]; at++, packed++) {
            offsets[packed] = high - fed[row] + at;
            positions[packed] = base + offsets[packed];
        }
        row_indptr[row + 1] = packed;
    }
    for (Py_ssize_t at = 0; at < count; at++) {
        Int n = order[at].index, row = rows[n];
        const Int *one = table + 6 * n;
        room[at] = row;
        room[count + at] = one[1] + ages[row] * one[4];
        room[2 * count + at] = one[2];
        room[3 * count + at] = one[3] + ages[row] * one[5];
        room[4 * count + at] = one[4];
        room[5 * count + at] = one[5];
    }
    free(scratch);
    RETURN(strips);
END

/* views, a list of R tuples of one length -> of_rows [R, length]; a list of the objects that stand there */
static PyObject *numbered(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    Arrays arrays = {.count = 0, .num_copied = 0};
    PyObject *found = NULL;
    Int *scratch = NULL;
    (void)module;
    if (given != 2 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "numbered takes a list of tuples and an array");
        return NULL;
    }
    WRITE(of_rows, 1);
    Py_ssize_t num_rows = PyList_GET_SIZE(args[0]);
    Py_ssize_t width = num_rows ? of_rows_size / num_rows : 0;
    Int size = power_above(of_rows_size), count = 0;
    scratch = malloc(sizeof(Int) * 2 * size);
    found = PyList_New(0);
    if (!scratch || !found) {
        PyErr_NoMemory();
        goto failed;
    }
    Int *keys = scratch, *values = scratch + size;
    memset(values, 0xff, sizeof(Int) * size);
    for (Py_ssize_t row = 0; row < num_rows; row++) {
        PyObject *objects = PyList_GET_ITEM(args[0], row);
        if (!PyTuple_Check(objects) || PyTuple_GET_SIZE(objects) != width) {
            PyErr_SetString(PyExc_TypeError, "numbered takes tuples of one length");
            goto failed;
        }
        for (Py_ssize_t index = 0; index < width; index++) {
            PyObject *object = PyTuple_GET_ITEM(objects, index);
            Int at = place_of(keys, values, size - 1, (Int)(intptr_t)object);
            if (values[at] < 0) {
                if (PyList_Append(found, object) < 0) goto failed;
                keys[at] = (Int)(intptr_t)object;
                values[at] = count++;
            }
            of_rows[row * width + index] = values[at];
        }
    }
    free(scratch);
    let_go(&arrays);
    return found;
failed:
    free(scratch);
    Py_XDECREF(found);
    let_go(&arrays);
    return NULL;
}

/* of_rows [R, B], and lists: lies [P * 6], is_live [P], fused [k], begun [F * 4] -> table [R * (F + B), 6], told [3, R], scratch [2, B];
   how many reads there are; -1: the rows are not alike */
LOOP(team, 8)
    READ(of_rows, 0);
    LIST(lies, 1);
    LIST(is_live, 2);
    LIST(fused, 3);
    LIST(begun, 4);
    WRITE(table, 5);
    WRITE(told, 6);
    WRITE(scratch, 7);
    Py_ssize_t num_rows = told_size / 3, width = scratch_size / 2, count = 0;
    Int *low = scratch, *length = scratch + width;
    for (Py_ssize_t row = 0; row < num_rows; row++) {
        const Int *blocks = of_rows + row * width;
        for (Py_ssize_t at = 0; at < width; at++) {
            const Int *lying = lies + 6 * blocks[at];
            if (blocks[at] != of_rows[at] && !(is_live[blocks[at]] && is_live[of_rows[at]])) RETURN(-1);
            low[at] = lying[1];
            length[at] = lying[2];
            if (at && lying[4] >= 0 && lying[4] == blocks[at - 1] && lying[5]) {
                if (at == 1) RETURN(-1); /* it is a copy of the beginning's last block */
                low[at] -= lying[5];
                length[at] += lying[5];
                length[at - 1] -= lying[5];
            }
        }
        for (Py_ssize_t n = 0; n < fused_size; n++) {
            length[fused[n] - 1] += length[fused[n]];
            length[fused[n]] = 0;
        }
        length[0] = 0; /* it is one of the finished ones */
        Int start = 0, growth = 0;
        Py_ssize_t before = count;
        for (Py_ssize_t at = 0; at < begun_size / 4 + width; at++) {
            Py_ssize_t behind = at - begun_size / 4;
            const Int *lying = behind < 0 ? begun + 4 * at : lies + 6 * blocks[behind];
            Int from = behind < 0 ? lying[1] : low[behind];
            Int size = behind < 0 ? lying[2] : length[behind];
            if (size > 0) {
                Int *one = table + 6 * count++;
                one[0] = lying[0];
                one[1] = start - from;
                one[2] = from;
                one[3] = from + size;
                one[4] = growth;
                one[5] = lying[3];
            }
            start += size;
            growth += lying[3];
        }
        told[row] = count - before;
        told[num_rows + row] = growth;
        told[2 * num_rows + row] = start;
    }
    RETURN(count);
END

/* tables, a list of S lists of pages, own [R], row_indptr [R + 1], offsets [T], page_size -> pages of all, indptr [S + 1],
   slots [T] */
LOOP(pages, 8)
    READ(own, 1);
    READ(row_indptr, 2);
    READ(offsets, 3);
    NUMBER(page_size, 4);
    WRITE(pages, 5);
    WRITE(indptr, 6);
    WRITE(slots, 7);
    if (!is_list(args[0])) goto failed;
    Py_ssize_t strips = indptr_size - 1;
    if (PyList_GET_SIZE(args[0]) != strips) REFUSE("another number of page tables than there is room for");
    if (row_indptr_size != own_size + 1 || row_indptr[own_size] > least(offsets_size, slots_size))
        REFUSE("rows with more tokens than there are places");
    if (page_size < 1) REFUSE("pages without tokens");
    indptr[0] = 0;
    for (Py_ssize_t strip = 0; strip < strips; strip++) {
        PyObject *table = PyList_GET_ITEM(args[0], strip);
        if (!is_list(table)) goto failed;
        Py_ssize_t size = PyList_GET_SIZE(table);
        if (indptr[strip] + size > pages_size) REFUSE("more pages than there is room for");
        if (!copy_list(table, pages + indptr[strip], size)) goto failed;
        indptr[strip + 1] = indptr[strip] + size;
    }
    for (Py_ssize_t row = 0; row < own_size; row++) {
        Int strip = own[row];
        if (strip < 0 || strip >= strips) REFUSE("a row writes to no strip");
        if (row_indptr[row] < 0 || row_indptr[row + 1] > row_indptr[own_size])
            REFUSE("rows that do not stand one behind another");
        for (Int at = row_indptr[row]; at < row_indptr[row + 1]; at++) {
            Int page = indptr[strip] + offsets[at] / page_size;
            if (offsets[at] < 0 || page >= indptr[strip + 1]) REFUSE("a row writes beside its pages");
            slots[at] = pages[page] * page_size + offsets[at] % page_size;
        }
    }
    RETURN(0);
END

/* -- a buffer (attention/prepared.py) -------------------------------------------------------- */

/* buffer (int32), places [2, sections]: where they begin and how long they are, padding [sections], an array for each section */
static PyObject *pack(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    Arrays arrays = {.count = 0, .num_copied = 0};
    (void)module;
    if (given < 3) {
        PyErr_SetString(PyExc_TypeError, "pack takes a buffer, places, padding, and arrays");
        return NULL;
    }
    Py_ssize_t room;
    int32_t *buffer = integers(&arrays, args[0], &room, PyBUF_WRITABLE, sizeof(int32_t));
    if (!buffer) goto failed;
    READ(places, 1);
    READ(padding, 2);
    Py_ssize_t sections = padding_size;
    if (given != 3 + sections || places_size != 2 * sections) {
        PyErr_SetString(PyExc_ValueError, "pack takes an array for each section");
        goto failed;
    }
    for (Py_ssize_t section = 0; section < sections; section++) {
        READ(array, 3 + section);
        Int start = places[section], size = places[sections + section];
        if (start < 0 || size < array_size || start + size > room) {
            PyErr_Format(PyExc_ValueError, "an array of %zd integers for a section of %lld at %lld",
                         array_size, (long long)size, (long long)start);
            goto failed;
        }
        int32_t *into = buffer + start;
        for (Py_ssize_t at = 0; at < array_size; at++) into[at] = (int32_t)array[at];
        int32_t value = (int32_t)padding[section];
        if (!value) /* as in all long sections */
            memset(into + array_size, 0, sizeof(int32_t) * (size - array_size));
        else
            for (Int at = array_size; at < size; at++) into[at] = value;
    }
    let_go(&arrays);
    Py_RETURN_NONE;
failed:
    let_go(&arrays);
    return NULL;
}

/* -- the module ------------------------------------------------------------------------------ */

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    METHOD(num_entries), METHOD(entries), METHOD(stretches), METHOD(sizes), METHOD(num_tiles),
    METHOD(tiles), METHOD(num_splits), METHOD(last_done), METHOD(items), METHOD(partials),
    METHOD(lists), METHOD(numbered), METHOD(team), METHOD(pages), METHOD(pack), {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "native", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

/* In two phases: one that is made in one would take the name `native` among all modules of the process. */
PyMODINIT_FUNC PyInit_native(void) { return PyModuleDef_Init(&definition); }
