// Orders whose customer is on a list: a chained hash table over the list, asked in the orders'
// order. PERCENT of the orders are of a hundredth of the customers.
// usage: semijoin SEED CUSTOMERS ORDERS PERCENT THREADS
#include "kernel.h"

struct customer {
    uint64_t id, balance, since;
};
struct order {
    uint32_t customer, amount;
    uint64_t when;
};
struct node {
    uint64_t id, sum;
    uint32_t next;
};

static struct order *orders;
static struct node *nodes;
static uint32_t *heads;
static uint64_t mask;

static uint64_t mixed(uint64_t id) {
    uint64_t state = id;
    return next_random(&state);
}

static void ask_share(struct share *s) {
    uint64_t sum = 0;
    for (uint64_t i = s->from; i < s->to; i++) {
        uint64_t id = mixed(orders[i].customer);
        for (uint32_t at = heads[id >> 20 & mask]; at; at = nodes[at].next)
            if (nodes[at].id == id) {
                sum += nodes[at].sum ^ orders[i].amount;
                break;
            }
    }
    s->result = sum;
}

int main(int argc, char **argv) {
    uint64_t state = argument(argc, argv, 1, 1), customers = argument(argc, argv, 2, 1500000);
    uint64_t many = argument(argc, argv, 3, 6000000), percent = argument(argc, argv, 4, 30);
    uint64_t threads = argument(argc, argv, 5, 1), result = 0;
    if (customers < 100 || customers >= UINT32_MAX) {
        fprintf(stderr, "%lu customers: give 100 to 4294967294\n", (unsigned long)customers);
        return 1;
    }
    orders = allocate(many * sizeof *orders);
    for (uint64_t i = 0; i < many; i++) {
        uint64_t draw = next_random(&state), few = customers / 100;
        uint64_t of = draw % 100 < percent ? few : customers * 5 / 4;
        orders[i] = (struct order){(uint32_t)(next_random(&state) % of), (uint32_t)(draw >> 40), i};
    }
    struct customer *list = allocate(customers * sizeof *list);
    for (uint64_t i = 0; i < customers; i++)
        list[i] = (struct customer){mixed(i), next_random(&state), i};
    uint64_t slots = 1;
    while (slots < customers) slots *= 2;
    mask = slots - 1;
    heads = allocate(slots * sizeof *heads);
    nodes = allocate((customers + 1) * sizeof *nodes);
    for (uint64_t i = 0; i < customers; i++) {
        uint32_t *head = &heads[list[i].id >> 20 & mask];
        nodes[i + 1] = (struct node){list[i].id, list[i].balance, *head};
        *head = (uint32_t)(i + 1);
    }
    result = in_parallel(threads, many, state, ask_share);
    printf("semijoin %016lx\n", (unsigned long)result);
    return 0;
}
