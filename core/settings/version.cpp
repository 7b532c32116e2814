#include "settings/version.hpp"

std::string_view jali::version() {
    return JALI_VERSION;
}
