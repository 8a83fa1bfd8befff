// What a thread knows to be over, as numbers that only grow: a thread that waits for another one
// learns all that this one knew. Threads mostly know the same, so that they share one list.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

namespace elman::emulation {

using Known = std::shared_ptr<const std::vector<unsigned>>;

unsigned known_at(const Known& known, size_t index);

bool covers(const Known& known, const Known& other);

// What both know.
Known joined(const Known& one, const Known& other);

// The same with a number that is at least so large.
Known raised(const Known& known, size_t index, unsigned least);

}  // namespace elman::emulation
