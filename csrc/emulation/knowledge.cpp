// What knowledge.h declares.
#include "emulation/knowledge.h"

namespace elman::emulation {

unsigned known_at(const Known& known, size_t index) {
  return known && index < known->size() ? (*known)[index] : 0;
}

bool covers(const Known& known, const Known& other) {
  for (size_t i = 0; i < other->size(); i++)
    if (known_at(known, i) < (*other)[i]) return false;
  return true;
}

Known joined(const Known& one, const Known& other) {
  if (one == other || !other) return one;
  if (!one || covers(other, one)) return other;
  if (covers(one, other)) return one;
  auto made = std::make_shared<std::vector<unsigned>>(*one);
  made->resize(std::max(one->size(), other->size()));
  for (size_t i = 0; i < other->size(); i++) (*made)[i] = std::max((*made)[i], (*other)[i]);
  return made;
}

Known raised(const Known& known, size_t index, unsigned least) {
  if (known_at(known, index) >= least) return known;
  auto made = known ? std::make_shared<std::vector<unsigned>>(*known)
                    : std::make_shared<std::vector<unsigned>>();
  made->resize(std::max(made->size(), index + 1));
  (*made)[index] = least;
  return made;
}

}  // namespace elman::emulation
