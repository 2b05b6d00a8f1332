// Stands in for engine/cuda in builds without it.
#include "oasis/engine/graph_step.h"

namespace oasis::engine {

Result<std::unique_ptr<GraphStep>> make_graph_step(Device&, model::Transformer&, lookahead::KvCore&, draft::Drafter&,
                                                   const EngineConfig&) {
  return std::unique_ptr<GraphStep>();
}

}  // namespace oasis::engine
