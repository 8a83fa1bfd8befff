"""Wrong indices, sizes and orders that are planted in the matrix kernels, by what is wrong."""

# File, old text, new text.
EDITS = {
    "copies into the buffer in use, alone": (
        "forward",
        "in.staging.fetch(length(segment + 1), buffer(segment + 1));",
        "in.staging.fetch(length(segment + 1), buffer(segment));",
    ),
    "set in use prepared": (
        "forward",
        "in.turn(second);\n    }\n  }",
        "}\n  }",
    ),
    "copies into the buffer in use": (
        "forward",
        "in.staging.fetch(length(round + 1), buffer(round + 1));",
        "in.staging.fetch(length(round + 1), buffer(round));",
    ),
    "copies one step too many": ("smem_staging", "if (step < length) {", "if (step <= length) {"),
    "copies from the next step": (
        "smem_staging",
        "(step - first) * stride",
        "(step - first + 1) * stride",
    ),
    "row of the raw inputs + 1": (
        "smem_staging",
        "+ step * G::row_bytes(ROLE);",
        "+ (step + 1) * G::row_bytes(ROLE);",
    ),
    "prepared one vector too far": (
        "inputs",
        "store<V, A>(row + first, y);",
        "store<V, A>(row + (first + 4), y);",
    ),
    "rows of v from the next step": ("step", "(v, in.v, step);", "(v, in.v, step + 1);"),
    "one step too many": (
        "step",
        "for (; step < to; step++) advance_to(step);",
        "for (; step <= to; step++) advance_to(step);",
    ),
    "eight steps at once beyond the end": ("step", "step <= to - UNROLL;", "step <= to;"),
    "seven of eight steps": ("step", "i < UNROLL; i++", "i < UNROLL - 1; i++"),
    "one of eight steps again and again": ("step", "advance_to(step + i)", "advance_to(step)"),
    "no steps but whole eights": (
        "step",
        "for (; step < to; step++) advance_to(step);",
        "step = to;",
    ),
    "no stop within a segment": (
        "step",
        "const int to = visitor.stop(step, length, S);",
        "visitor.stop(step, length, S);\n    const int to = length;",
    ),
    "reads of the step after": (
        "step",
        "lane.read(q, in.q, step);",
        "lane.read(q, in.q, step + 1);",
    ),
    "history of the next thread": (
        "trail",
        "Checkpoint>(vector, history + history_at(step, m));",
        "Checkpoint>(vector, history + (history_at(step, m) ^ G::HISTORY_VECTOR));",
    ),
    "history one step short": (
        "tile_config",
        "HISTORY = (STEPS +",
        "HISTORY = (STEPS - 1 +",
    ),
    "sums of the step before": (
        "walk_back",
        "put_sums(step + 1, done, share);",
        "put_sums(step, done, share);",
    ),
    "sums of one warp alone": ("gradients", "warp < G::WARPS; warp++", "warp < 1; warp++"),
    "half a warp without the sum": (
        "lane",
        "for (int mask = 1; mask < G::LANES; mask *= 2) {",
        "for (int mask = 1; mask < (thread_index() % 32 < 16 ? G::LANES : 1); mask *= 2) {",
    ),
    "copies of a vector too close": (
        "tile_config",
        "COPY_STRIDE = STEPS * WIDTH +",
        "COPY_STRIDE = STEPS * WIDTH - 32 +",
    ),
    "state kept a step too late": (
        "forward",
        "due = pass.a.K;",
        "due = pass.a.K + 1;",
    ),
    "parts of rows in whole vectors": ("tile_config", "WARP_ROWS & -WARP_ROWS);", "WARP_ROWS);"),
    "three rows of a lane as four": (
        "tile_config",
        "WARP_ROWS = ROW_LANES * TALL,",
        "WARP_ROWS = ROW_LANES * power_above(TALL),",
    ),
    "the second of three rows twice": (
        "lane",
        "array + (step * STRIDE + tile_row + i));",
        "array + (step * STRIDE + tile_row + least(i, 1)));",
    ),
    "rows of the lanes before": (
        "lane",
        "lane / G::LANES * TALL;",
        "lane / G::LANES * (TALL - 1);",
    ),
    "producers arrive before they have prepared": (
        "forward",
        """      if (round < segments) in.prepare(round * G::STEPS, buffer(round));
      if (round >= 2) write_outputs(output, y + (second ? READS : 0), round - 2);
      wait_copies<0>();
      if (round <= segments) relay.meet((unsigned)round + 1);
""",
        """      wait_copies<0>();
      if (round <= segments) relay.meet((unsigned)round + 1);
      if (round < segments) in.prepare(round * G::STEPS, buffer(round));
      if (round >= 2) write_outputs(output, y + (second ? READS : 0), round - 2);
""",
    ),
    "producers arrive before they have written": (
        "forward",
        """      if (round >= 2) write_outputs(output, y + (second ? READS : 0), round - 2);
      wait_copies<0>();
      if (round <= segments) relay.meet((unsigned)round + 1);
""",
        """      wait_copies<0>();
      if (round <= segments) relay.meet((unsigned)round + 1);
      if (round >= 2) write_outputs(output, y + (second ? READS : 0), round - 2);
""",
    ),
    "producers prepare before they wait": (
        "forward",
        """      if (round >= 2) relay.walked.wait((unsigned)round - 2);
      if (round < segments) in.prepare(round * G::STEPS, buffer(round));
""",
        """      if (round < segments) in.prepare(round * G::STEPS, buffer(round));
      if (round >= 2) relay.walked.wait((unsigned)round - 2);
""",
    ),
    "walkers arrive before they have walked": (
        "forward",
        """      walk.run(segment, y + (second ? READS : 0));
      relay.walked.arrive((unsigned)segment);
""",
        """      relay.walked.arrive((unsigned)segment);
      walk.run(segment, y + (second ? READS : 0));
""",
    ),
    "walkers walk before they wait": (
        "forward",
        """      relay.prepared.wait((unsigned)segment + 1);
      walk.run(segment, y + (second ? READS : 0));
""",
        """      walk.run(segment, y + (second ? READS : 0));
      relay.prepared.wait((unsigned)segment + 1);
""",
    ),
    "walkers wait for the turn before": (
        "forward",
        "relay.prepared.wait((unsigned)segment + 1);",
        "relay.prepared.wait((unsigned)segment);",
    ),
    "walkers wait for the turn after": (
        "forward",
        "relay.prepared.wait((unsigned)segment + 1);",
        "relay.prepared.wait((unsigned)segment + 2);",
    ),
    "producers wait for the turn before": (
        "forward",
        "relay.walked.wait((unsigned)round - 2);",
        "relay.walked.wait((unsigned)round - 3);",
    ),
    "producers wait for the turn after": (
        "forward",
        "relay.walked.wait((unsigned)round - 2);",
        "relay.walked.wait((unsigned)round - 1);",
    ),
    "walkers arrive for the turn after": (
        "forward",
        "relay.walked.arrive((unsigned)segment);",
        "relay.walked.arrive((unsigned)segment + 1);",
    ),
    "producers meet for the turn before": (
        "forward",
        "relay.meet((unsigned)round + 1);",
        "relay.meet((unsigned)round);",
    ),
    "producers meet for the turn after": (
        "forward",
        "relay.meet((unsigned)round + 1);",
        "relay.meet((unsigned)round + 2);",
    ),
    "last segment not written": (
        "forward",
        "segments + 2; round++",
        "segments + 1; round++",
    ),
    "walkers arrive as producers": (
        "forward",
        "Signal<0, G::THREADS> walked;",
        "Signal<G::THREADS, G::producer_threads(false)> walked;",
    ),
    "one buffer too few": ("tile_config", "? 4 : 2;", "? 3 : 2;"),
    "reads of all segments in one set": (
        "forward",
        "walk.run(segment, y + (second ? READS : 0));",
        "walk.run(segment, y);",
    ),
    "two rows' parts on the same numbers": (
        "tile_config",
        "(PART_ROWS / N) + e / N",
        "(PART_ROWS / N)",
    ),
    "two warps' parts on the same numbers": (
        "tile_config",
        "/ WARP_ROWS * WARP_PARTS",
        "/ WARP_ROWS * 0",
    ),
    "two steps' parts on the same numbers": (
        "tile_config",
        "above(WARPS * WARP_PARTS,",
        "above(WARPS * WARP_PARTS - 32,",
    ),
    "two lanes' parts on the same number": (
        "step",
        "G::part_at(lane.tile_row + i) + lane.part]",
        "G::part_at(lane.tile_row + i) + lane.part / 2]",
    ),
    "parts of the row beside": ("step", "G::part_at(row + e)", "G::part_at(row + (e ^ 1))"),
    "parts of the step after": (
        "step",
        "y + ((step + 1) * G::PARTS +",
        "y + ((step + 2) * G::PARTS +",
    ),
    "state copied to the step before": (
        "recompute",
        "history_at(G::STEPS - 1, n / EACH)",
        "history_at(G::STEPS - 2, n / EACH)",
    ),
    "state copied onto one that is needed": (
        "backward",
        "walk.start(segment.length, recompute.S);",
        "recompute.copy_start(index - 1);\n      walk.start(segment.length, recompute.S);",
    ),
    "copy of a checkpoint that nobody has written": ("recompute", "if (segment <= 0) return;", ""),
    "state copied without its order": ("lane", "reorder(S + m * V);", ";"),
    "state copied for rows that are not there": (
        "lane",
        "const bool there = live(i) && inside(m);",
        "const bool there = inside(m);",
    ),
    "checkpoint of the segment after": (
        "recompute",
        "next_checkpoint -= trail.a.B",
        "next_checkpoint -= 0 * trail.a.B",
    ),
    "producers arrive before they have recomputed": (
        "backward",
        """      recompute.run(segment.length);
      if constexpr (G::NEEDS_Y) {
        crew.meet();
        gradients.output(trail.in, trail.sums, y, segment);
      }
      handover.recomputed.arrive(round);
""",
        """      handover.recomputed.arrive(round);
      recompute.run(segment.length);
      if constexpr (G::NEEDS_Y) {
        crew.meet();
        gradients.output(trail.in, trail.sums, y, segment);
      }
""",
    ),
    "walkers arrive before they have walked back": (
        "backward",
        """      walk.run(segment.t0, segment.length, segment.buffer);
      handover.walked.arrive(round);
""",
        """      handover.walked.arrive(round);
      walk.run(segment.t0, segment.length, segment.buffer);
""",
    ),
    "walkers start before they wait": (
        "backward",
        """      handover.recomputed.wait(round);
      walk.start(segment.length);
""",
        """      walk.start(segment.length);
      handover.recomputed.wait(round);
""",
    ),
    "walkers wait for the segment behind": (
        "backward",
        "handover.recomputed.wait(round);",
        "handover.recomputed.wait(round - 1);",
    ),
    "producers wait for the segment behind": (
        "backward",
        "if (round) handover.walked.wait(round - 1);",
        "if (round) handover.walked.wait(round - 2);",
    ),
    "state copied while it is walked": (
        "backward",
        """      if (round) handover.walked.wait(round - 1);
      recompute.copy_start(index - 1);
""",
        """      recompute.copy_start(index - 1);
      if (round) handover.walked.wait(round - 1);
""",
    ),
    "gradients of the segment that is walked": (
        "backward",
        "segment_at(index + 1, buffer(round - 1)));",
        "segment_at(index, buffer(round)));",
    ),
    "one buffer too few on the way back": ("tile_config", "backward ? 3 :", "backward ? 2 :"),
    "recomputation and walk in one history": (
        "trail",
        "history = history + (back ? -G::HISTORY : G::HISTORY);",
        "",
    ),
    "reads of the recomputation among those of the walk": ("gradients", "dv = dv + rows;", ""),
    "norms of the segment before": ("inputs", "k_scale = k_scale + steps;", ""),
    "state behind the segment not kept": (
        "recompute",
        "if constexpr (G::produces(true)) trail.keep(length, S);",
        "",
    ),
    "state behind the segment from before it": (
        "walk_back",
        "trail.recall(length, S);",
        "trail.recall(length - 1, S);",
    ),
    "gradient one number too far": (
        "gradients",
        "store<V, IO>((IO*)to + numbers, x);",
        "store<V, IO>((IO*)to + numbers + V, x);",
    ),
    "sum over one batch too few": (
        "finish",
        "batch < a.B; batch++",
        "batch < a.B - 1; batch++",
    ),
    "sum over one row tile too few": (
        "finish",
        "row_tile = 1; row_tile < G::ROW_TILES; row_tile++",
        "row_tile = 1; row_tile < G::ROW_TILES - 1; row_tile++",
    ),
    "sum of the vector beside": (
        "finish",
        "row_tile_part<G, ROLE>(a, 0, 0, 0, 0) + number * V;",
        "row_tile_part<G, ROLE>(a, 0, 0, 0, 0) + number / 2 * 2 * V;",
    ),
    "state of rows that are not there": (
        "lane",
        "if (live && inside(m)) elman::load<V, T>",
        "if (inside(m)) elman::load<V, T>",
    ),
    "state written for rows that are not there": (
        "lane",
        "if (live && inside(m)) elman::store<V, T>",
        "if (inside(m)) elman::store<V, T>",
    ),
    "gradients of rows that are not there": (
        "gradients",
        "if (first >= rows_here<G>(at)) continue;",
        "",
    ),
    "parameters of rows that are not there": (
        "walk_back",
        "if (trail.lane.live(i))",
        "",
    ),
    "output's parameters of rows that are not there": (
        "step",
        "const bool there = row < rows_here<G>(at);",
        "const bool there = true;",
    ),
    "one thread too many in the end": ("finish", "if (number < count) {", "{"),
}
# Neighbours of a fault that is planted in every run.
LATER = (
    "state written for rows that are not there",
    "gradients of rows that are not there",
    "parameters of rows that are not there",
    "output's parameters of rows that are not there",
    "one thread too many in the end",
)

# Those of kernels that read a mask of resets.
RESET_EDITS = {
    "mask of the segment before": (
        "resets",
        "t0 += steps;\n    fetch(a, at);",
        "fetch(a, at);\n    t0 += steps;",
    ),
    "reset of the next step": ("resets", "bits >> step & 1", "bits >> (step + 1) & 1"),
    "mask of the first row": ("resets", "at.batch * a.T + t0", "t0"),
    "mask behind its end": ("resets", " && t0 + step < a.T", ""),
    "state across a reset": ("step", "if (visitor.starts(step)) clear_state<G>(S);", ";"),
    "zeros kept for the state before a reset": (
        "step",
        "visitor.state(step, S);",
        "if (visitor.starts(step)) clear_state<G>(S);\n    visitor.state(step, S);",
    ),
    "mask that does not go on": (
        "walk_back",
        "trail.resets.next(trail.a, trail.at, -G::STEPS);",
        "",
    ),
    "state across a reset on the way back": (
        "walk_back",
        "if (zero) clear_state<G>(before);",
        "",
    ),
    "gradient across a reset": (
        "walk_back",
        "clear_state<G>(dS);\n      trail.recall(step, S);",
        "trail.recall(step, S);",
    ),
    "zeros for the state behind the step before": (
        "walk_back",
        "clear_state<G>(dS);\n      trail.recall(step, S);",
        "clear_state<G>(dS);",
    ),
    "copies over a state that is read again": (
        "backward",
        "if constexpr (!G::Spec::RESETS) recompute.copy_start(index - 1);\n"
        "      walk.run(segment.t0, segment.length, buffer);\n"
        "      if constexpr (G::Spec::RESETS) recompute.copy_start(index - 1);",
        "recompute.copy_start(index - 1);\n      walk.run(segment.t0, segment.length, buffer);",
    ),
}
