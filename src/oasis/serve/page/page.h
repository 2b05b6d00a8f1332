// The operator's page, compiled in.
#pragma once

#include <string_view>

namespace oasis::serve {

// page/index.html as it was at build time.
std::string_view page();

}  // namespace oasis::serve
