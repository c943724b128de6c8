// The ops of one model.
#pragma once

#include <vector>

#include "op.h"

struct onnxfuse_ops {
  std::vector<engine::Op*> all;  // not freed, see op.h

  onnxfuse_ops(const engine::SharedHost& host, const onnxfuse_op* rows, size_t count) {
    std::vector<engine::Held> planners;  // first of all, so that what is refused is given back
    for (size_t i = 0; i < count; ++i) {
      engine::check_size(rows[i], "an op");
      planners.push_back(engine::held(host, rows[i].planner));
    }
    for (size_t i = 0; i < count; ++i) all.push_back(new engine::Op(host, rows[i], std::move(planners[i])));
  }
};
