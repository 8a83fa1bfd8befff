// Deliveries between the blocks of a cluster, and the boxes that count them: barriers in shared
// memory with transaction bytes, as PTX has them. A delivery arrives at a random moment after it
// was sent, in any order with others. A turn of a box is over when no arrival and no byte is
// pending; bytes may come before the arrival that says how many there are, which keeps the turn
// open.
//
// A delivery is right if no order of events breaks it, so that what is checked is not what happened
// but what is known: who sends must know that the turn before is over, and that whatever read or
// wrote the place has done so; who reads or writes the place must know that the turn of the last
// delivery is over. A thread knows what it has seen by its waits, and what others knew who met it
// (sync_warp, sync_block, sync_cluster) or delivered what it has waited for. Reads and writes count
// as over when all threads of the block have met since: sync_block, or an arrival at a Signal.
#pragma once
#include <deque>

#include "emulation/clusters.h"

namespace elman::emulation {

struct Box {
  int rank = 0;
  size_t byte = 0;    // of the block's shared memory
  unsigned made = 0;  // meetings of the cluster before that
  int maker = 0;      // thread
  bool announced = true;
  unsigned number = 0;             // among what threads know
  int count = 1, pending = 1;      // arrivals of every turn, and those that are missing
  long long missing = 0;           // bytes; negative where they came before they were expected
  long long sent = 0, wanted = 0;  // bytes of this turn
  bool delivers = false;           // whether bytes were ever sent to it
  bool expected = false;           // whether somebody has said how many bytes this turn has
  unsigned over = 0, seen = 0;     // turns that are over, and that somebody has waited for
  Known gathered, told;            // what those who delivered knew, in this turn and in the last
};

struct Delivery {
  Box* box;
  size_t byte;
  int words;
  unsigned word[4];
  int thread;
  long long sender;  // its block
  Known known;
};

extern std::deque<Box> boxes;
extern std::map<std::pair<int, size_t>, Box*> box_at;
extern std::vector<Delivery> in_flight;
inline constexpr long long MOST_BYTES = (1 << 20) - 1;  // of a turn

// A place in the shared memory of a block of the cluster.
struct Remote {
  int rank = -1;
  long long byte = 0, first = 0, end = 0;  // of an array, in the block's shared memory
  Remote operator+(long long bytes) const { return {rank, byte + bytes, first, end}; }
  Remote operator-(long long bytes) const { return *this + -bytes; }
  Remote& operator+=(long long bytes) { return *this = *this + bytes; }
};

std::string name_of(const Box& box);

// ---- making boxes, and turns of theirs

void make_box(size_t byte, int count, bool announced);

// Announces to other blocks the boxes that the current thread has made.
void announce_boxes();

// The box at a place; nullptr, and a report, if it may not be used yet.
Box* box_of(int rank, size_t byte);

// Ends the turn if nothing is pending.
void end_turn(Box& box);

void check_amount(const Box& box);

bool knows_turns(const Box& box);

// Arrives for this turn, and says that so many more bytes belong to it.
void end_empty_turn(Box& box);

void expect_bytes(Box& box, long long bytes);

// Learns what the end of the last turn tells, if that is one of a kind, even or odd.
bool see_turn(Box& box, unsigned parity);

// Waits for the end of a turn of this kind.
void await_turn(Box& box, unsigned parity, const char* where);

// The same with an instruction that may give up: nothing is promised of how long it waits.
bool try_turn(Box& box, unsigned parity);

// What a thread that waits for a box waits for.
std::string state_of_box(const void* at);

// ---- deliveries

// Whether the current thread, at home in another block or in this one, knows that all of a part of
// the block that is visited have arrived since.
bool knows_past(const Known& known, int part, unsigned arrivals);

// The same of a warp, whose lanes have met since.
bool knows_met(const Known& known, int warp, unsigned warp_epoch);

// Says which use of a word the sender cannot know to be over.
void check_word(const Word& word, const Delivery& sent, size_t byte);

// Takes a place over for a delivery, which arrives later.
void claim(const Delivery& sent);

void deliver_words(const Remote& to, const Remote& counted, const unsigned* word, int count);

void arrive(const Delivery& sent);

// A copy of the block's own from global memory, piece by piece.
void copy_to_box(unsigned char* to, const void* from, int bytes, size_t box);

// Stands for the policy by which what is copied leaves the L2 cache first; reports any other.
inline constexpr unsigned long long PASSING = 0x70617373696e67;
void check_policy(unsigned long long policy);

bool let_one_arrive();

// ---- a launch

// What has to be true when a thread of a cluster ends.
void check_leaving();

// What has to be true of the boxes when a cluster ends.
void check_boxes();

void run_cluster(long long first, int size, int threads, size_t bytes);

// Runs blocks of a grid of clusters, from `first` on; both numbers are of whole clusters.
std::string launch_clusters(long long first, long long blocks, int size, int threads, size_t bytes,
                            unsigned seed, const std::function<void()>& kernel);

}  // namespace elman::emulation
