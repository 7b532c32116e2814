#include "settings/utf8.hpp"

#include <cstdio>

namespace jali {

namespace {

// Bytes of the character at the beginning, 0 where none is (RFC 3629: the shortest form, no surrogates).
std::size_t character(std::string_view text) {
    const auto byte = [&](std::size_t k) {
        return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u;
    };
    const unsigned first = byte(0);
    if (first < 0x80) return 1;
    const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4) return 0;
    for (std::size_t k = 1; k < bytes; ++k)
        if ((byte(k) & 0xc0) != 0x80) return 0;
    const unsigned second = byte(1);
    const bool too_long = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
    const bool beyond = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
    return too_long || beyond ? 0 : bytes;
}

} // namespace

std::size_t first_of_no_text(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t bytes = text[at] == '\0' ? 0 : character(text.substr(at));
        if (bytes == 0) return at;
        at += bytes;
    }
    return std::string_view::npos;
}

std::string shown(std::string_view text, std::size_t most) {
    std::string words;
    const std::size_t end = text.size();
    bool cut = false;
    for (std::size_t at = 0; at < end;) {
        if (end > most && !cut && at >= most / 2) { // the middle is left out
            words += "...";
            at = end - most / 4;
            while (at < end && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
            cut = true;
            continue;
        }
        const std::size_t bytes = character(text.substr(at));
        const auto byte = static_cast<unsigned char>(text[at]);
        const std::string_view here = text.substr(at, bytes);
        const bool control = byte < 0x20 || byte == 0x7f || (here >= "\xc2\x80" && here < "\xc2\xa0") ||
                             here == "\xe2\x80\xa8" || here == "\xe2\x80\xa9"; // they part lines, too
        if (bytes == 0 || control) {
            for (std::size_t k = 0; k < (bytes == 0 ? 1 : bytes); ++k) {
                char code[8];
                std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(text[at + k]));
                words += code;
            }
            at += bytes == 0 ? 1 : bytes;
        } else {
            words.append(text.substr(at, bytes));
            at += bytes;
        }
    }
    return cut ? words + " (" + std::to_string(end) + " bytes)" : words;
}

} // namespace jali
