// The operator's page, compiled in.
#pragma once

#include <string_view>

namespace oasis::serve {

// page/index.html with its style sheet and scripts, as they were at build time.
std::string_view page();

}  // namespace oasis::serve
