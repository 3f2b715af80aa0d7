/** Whether this test runs under a sanitizer, several times as slow. What looks at memory and threads needs
 *  every path of the code there, but not every size of a sweep whose values the plain run compares. */
#ifndef TW_TESTS_COMMON_SANITIZED_H
#define TW_TESTS_COMMON_SANITIZED_H

#ifdef __has_feature
#define TW_TESTS_HAS_FEATURE(name) __has_feature(name)
#else
#define TW_TESTS_HAS_FEATURE(name) 0
#endif

namespace tw
{

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    TW_TESTS_HAS_FEATURE(address_sanitizer) || TW_TESTS_HAS_FEATURE(thread_sanitizer)
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif

} // namespace tw

#endif
